"""A disk in memory that forgets: what was not synced may be gone after a power loss, page by page.

The model is a journalling file system. Names and sizes change in the order in which they were
changed, up to some moment before the loss; what was synced is there even if it came later. Below
its size a file may lack any 512-byte page that was not synced: it reads as zeros. Syncing a file
does not sync its name.

The first name of a path is a disk of its own as far as its faults go: `faults` has every change to it refused, with
EIO or, where it is full, with ENOSPC; or its syncs only (SYNC_FAILS). What was written before can be read.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kbroker.log.disk import Buffer

PAGE = 512

SYNC_FAILS = errno.EREMOTEIO
"""Of a disk's `faults`: syncs of segments fail with EIO, everything else is done."""


_moments = itertools.count(1)


@dataclass(eq=False)
class File:
    """Content as the process sees it, as the disk has it, and the operations between the two."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, int, bytes | None]] = field(default_factory=list)
    mount: str = ""
    """The disk it is on."""

    def write(self, offset: int, data: bytes) -> None:
        _put(self.content, offset, data)
        self.pending.append((next(_moments), offset, data))

    def truncate(self, size: int) -> None:
        _resize(self.content, size)
        self.pending.append((next(_moments), size, None))

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.pending.clear()

    def lose_power(self, rng: random.Random, last: int) -> None:
        """Become what the disk has: the synced content and some of what came up to *last*."""
        content = bytearray(self.durable)
        chance = rng.choice([0.0, 0.5, 1.0])
        for moment, offset, data in self.pending:
            if moment > last:
                break
            if data is None:
                _resize(content, offset)
                continue
            _resize(content, max(len(content), offset + len(data)))
            start = offset
            while start < offset + len(data):
                end = min(start // PAGE * PAGE + PAGE, offset + len(data))
                if rng.random() < chance:
                    _put(content, start, data[start - offset : end - offset])
                start = end
        self.content = content
        self.sync()


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        _resize(content, offset)
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if len(content) > size:
        del content[size:]
    else:
        content += bytes(size - len(content))


@dataclass(eq=False)
class Directory:
    """Names as the process sees them, as the disk has them, and the steps between the two."""

    names: dict[str, File | Directory] = field(default_factory=dict)
    durable: dict[str, File | Directory] = field(default_factory=dict)
    pending: list[tuple[int, dict[str, File | Directory | None]]] = field(default_factory=list)

    def change(self, **step: File | Directory | None) -> None:
        """Give names to nodes (None: take the name away), in one step."""
        _apply(self.names, step)
        self.pending.append((next(_moments), step))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()

    def lose_power(self, rng: random.Random, last: int) -> None:
        """Become what the disk has, and everything below with it."""
        names = dict(self.durable)
        for moment, step in self.pending:
            if moment <= last:
                _apply(names, step)
        self.names = names
        self.sync()
        for node in names.values():
            node.lose_power(rng, last)

    def sync_all(self) -> None:
        """Sync this, and everything below."""
        self.sync()
        for node in self.names.values():
            if isinstance(node, Directory):
                node.sync_all()
            else:
                node.sync()

    def moments(self) -> list[int]:
        """When the operations happened that are not synced yet, here and below."""
        found = [moment for moment, _ in self.pending]
        for node in self.names.values():
            if isinstance(node, Directory):
                found += node.moments()
            else:
                found += [moment for moment, _, _ in node.pending]
        return found


def _apply(names: dict[str, File | Directory], step: dict[str, File | Directory | None]) -> None:
    for name, node in step.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class SimulatedDisk:
    """The `Disk` protocol in memory; `kill` ends the process, `lose_power` the machine.

    Directories are renamed within their parent only, which is all that the log does.
    """

    def __init__(self) -> None:
        self._root = Directory()
        self._open: dict[int, File] = {}
        self._next_fd = 1000
        self._paths: dict[int, str] = {}
        self._failed: set[str] = set()
        """Directories in which a write or sync of a segment failed, for the process that runs."""
        self.written_after_a_failure: list[str] = []
        """Segments that were written to in such a directory: what is on the disk of the first ones is not known."""
        self.faults: dict[str, int] = {}
        """By disk ("/data"): the error of every change, errno.EIO or errno.ENOSPC."""
        self._places: dict[Directory, str] = {}
        self._found: dict[str, Directory] = {}
        """Directories by path, as they were looked up; empty after one went away."""

    def _may_change(self, path: str) -> None:
        """Raise OSError where the disk of *path* refuses everything."""
        if self.faults:
            code = self.faults.get(_mount(path))
            if code not in (None, SYNC_FAILS):
                raise _error(code, path)

    # The end

    def kill(self) -> None:
        """End the process: descriptors and locks are gone, the page cache is not."""
        self._open.clear()
        self._paths.clear()
        self._failed.clear()

    def lose_power(self, rng: random.Random) -> None:
        """End the machine: what was not synced is there or not, as *rng* decides."""
        self.kill()
        self._root.lose_power(rng, rng.choice([0, *self._root.moments()]))
        self._found.clear()

    def wipe(self, path: str) -> None:
        """Put an empty disk where a directory was; nothing is left of it, not even unsynced names."""
        parent, name = self._place(path)
        if name in parent.names:
            parent.change(**{name: None})
            parent.sync()
            self._found.clear()

    def durable(self, directory: str) -> dict[str, bytes]:
        """Return the synced names and contents of the files in *directory*: what no power loss takes."""
        node: File | Directory | None = self._root
        for name in directory.split("/"):
            if name:
                node = node.durable.get(name) if isinstance(node, Directory) else None
        if not isinstance(node, Directory):
            return {}
        return {n: file.durable for n, file in node.durable.items() if isinstance(file, File)}

    def contents(self, directory: str) -> dict[str, bytes]:
        """Return the files in *directory* as the process sees them."""
        names = self._directory(directory).names
        return {n: bytes(file.content) for n, file in names.items() if isinstance(file, File)}

    def remember_place(self, path: str) -> None:
        """Remember where a directory belongs, unless its place is known already."""
        self._places.setdefault(self._directory(path), path)

    def is_elsewhere(self, path: str) -> bool:
        """Return whether a directory at *path* belongs to another place."""
        return self.is_dir(path) and self._places.get(self._directory(path), path) != path

    # The protocol

    def open(self, path: str, flags: int, mode: int = 0, /) -> int:
        parent, name = self._place(path)
        node = parent.names.get(name)
        if node is None:
            if not flags & os.O_CREAT:
                raise _error(errno.ENOENT, path)
            self._may_change(path)
            node = File(mount=_mount(path))
            parent.change(**{name: node})
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        if flags & os.O_TRUNC and node.content:
            node.truncate(0)
        self._next_fd += 1
        self._open[self._next_fd] = node
        self._paths[self._next_fd] = path
        return self._next_fd

    def close(self, fd: int, /) -> None:
        self._open.pop(fd, None)  # those of a killed process are closed by its objects later

    def pread(self, fd: int, size: int, offset: int, /) -> bytes:
        return bytes(self._open[fd].content[offset : offset + size])

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int, /) -> int:
        data = b"".join(buffers)
        file = self._open[fd]
        if self.faults and self.faults.get(file.mount, SYNC_FAILS) != SYNC_FAILS:
            if self.faults[file.mount] == errno.ENOSPC and len(data) % 3 == 0:
                data = data[: len(data) // 2]  # there was room for a part of it
                file.write(offset, data)
                return len(data)
            self._segment_failed(fd)
            self._may_change(file.mount)
        if self._failed and self._is_segment(fd) and _parent(self._paths[fd]) in self._failed:
            self.written_after_a_failure.append(self._paths[fd])
        file.write(offset, data)
        return len(data)

    def _is_segment(self, fd: int) -> bool:
        return self._paths.get(fd, "").endswith(".log")

    def _segment_failed(self, fd: int) -> None:
        if self._is_segment(fd):
            self._failed.add(_parent(self._paths[fd]))

    def ftruncate(self, fd: int, size: int, /) -> None:
        file = self._open[fd]
        if self.faults.get(file.mount) == errno.EIO:
            self._may_change(file.mount)
        file.truncate(size)

    def preallocate(self, fd: int, size: int, /) -> None:
        pass

    def fsync(self, fd: int, /) -> None:
        file = self._open[fd]
        if self.faults and file.mount in self.faults:
            self._segment_failed(fd)
            self._may_change(file.mount)
            if self._is_segment(fd):
                raise _error(errno.EIO, self._paths[fd])
        file.sync()

    def sync_dir(self, path: str, /) -> None:
        self._may_change(path)
        self._directory(path).sync()

    def sync_all(self, fd: int, paths: Sequence[str], /) -> bool:
        self._root.sync_all()
        return True

    def size(self, path: str, /) -> int:
        parent, name = self._place(path)
        node = parent.names.get(name)
        if not isinstance(node, File):
            raise _error(errno.ENOENT, path)
        return len(node.content)

    def modified_ms(self, path: str, /) -> int:
        self.size(path)
        return 0

    def is_dir(self, path: str, /) -> bool:
        try:
            self._directory(path)
        except FileNotFoundError:
            return False
        return True

    def listdir(self, path: str, /) -> list[str]:
        return list(self._directory(path).names)

    def mkdir(self, path: str, mode: int = 0, /) -> None:
        parent, name = self._place(path)
        if name in parent.names:
            raise _error(errno.EEXIST, path)
        self._may_change(path)
        parent.change(**{name: Directory()})

    def rename(self, source: str, target: str, /) -> None:
        parent, name = self._place(source)
        new_parent, new_name = self._place(target)
        assert parent is new_parent, "the log renames within a directory"
        if name not in parent.names:
            raise _error(errno.ENOENT, source)
        if self.faults.get(_mount(source)) == errno.EIO:
            self._may_change(source)
        node = parent.names[name]
        parent.change(**{new_name: node, name: None})
        if isinstance(node, Directory):
            self._found.clear()

    def unlink(self, path: str, /) -> None:
        self.size(path)
        if self.faults.get(_mount(path)) == errno.EIO:
            self._may_change(path)
        parent, name = self._place(path)
        parent.change(**{name: None})

    def rmdir(self, path: str, /) -> None:
        if self.listdir(path):
            raise _error(errno.ENOTEMPTY, path)
        if self.faults.get(_mount(path)) == errno.EIO:
            self._may_change(path)
        parent, name = self._place(path)
        parent.change(**{name: None})
        self._found.clear()

    def lock(self, path: str, /) -> int | None:
        fd = self.open(path, os.O_CREAT)
        if any(one != fd and file is self._open[fd] for one, file in self._open.items()):
            self.close(fd)
            return None
        return fd

    def _directory(self, path: str) -> Directory:
        found = self._found.get(path)
        if found is not None:
            return found
        node: File | Directory | None = self._root
        for name in path.split("/"):
            if name:
                node = node.names.get(name) if isinstance(node, Directory) else None
        if not isinstance(node, Directory):
            raise _error(errno.ENOENT, path)
        self._found[path] = node
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _mount(path: str) -> str:
    end = path.find("/", 1)
    return path if end < 0 else path[:end]


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
