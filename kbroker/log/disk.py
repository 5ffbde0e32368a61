"""Every call of the log to the operating system, behind one small object.

The attributes of the real disk *are* the functions of ``os``, so that an append pays one attribute look-up for the
seam. A simulation implements the same protocol with a page cache that forgets un-synced bytes. Tests subclass `OsDisk`
and let the Nth call fail or write short.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
from collections.abc import Sequence
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

READ: Final = os.O_RDONLY | os.O_CLOEXEC
"""Flags to open an existing file for reading."""

READ_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
"""Flags to open a file for reading and writing, and create it where it is missing."""

CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
"""Flags to create a file, or empty an existing one."""

FILE_MODE: Final = 0o640
"""Permissions of a new data file, less the process's umask."""

DIRECTORY_MODE: Final = 0o750
"""Permissions of a new directory, less the process's umask."""

DISK_FAILURES: Final = frozenset(
    getattr(errno, name)
    for name in ("EIO", "EROFS", "ENXIO", "ENODEV", "ESTALE", "EREMOTEIO", "EUCLEAN")
    if hasattr(errno, name)
)
"""Errors of a disk, not of the configuration: a broker starts without the log directories on it, as Kafka does."""

NOT_PREALLOCATED: Final = frozenset(
    (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR, errno.EFBIG, errno.ENOSPC, errno.EDQUOT)
)
"""Errors of a reservation that is not possible: the file works without. A full disk fails the appends themselves."""

SYNCED_AS_ONE: Final = frozenset({"ext4", "xfs"})
"""File systems that one call brings to the disk as surely as an fsync of every file."""


class Disk(Protocol):
    """What the log needs of a file system. Every method may raise OSError; paths are absolute."""

    def open(self, path: str, flags: int, mode: int = FILE_MODE, /) -> int:
        """Return a descriptor of *path*."""
        ...

    def close(self, fd: int, /) -> None:
        """Close a descriptor."""
        ...

    def pread(self, fd: int, size: int, offset: int, /) -> bytes:
        """Read up to *size* bytes at *offset*; fewer only at the end of the file."""
        ...

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int, /) -> int:
        """Write *buffers* at *offset*; return the bytes written, which may be fewer."""
        ...

    def ftruncate(self, fd: int, size: int, /) -> None:
        """Cut the file off after *size* bytes."""
        ...

    def preallocate(self, fd: int, size: int, /) -> None:
        """Reserve disk space for *size* bytes; the file does not grow. Does nothing where that is not possible."""
        ...

    def fsync(self, fd: int, /) -> None:
        """Sync the file's bytes and size; slow, never on the owner's thread."""
        ...

    def sync_dir(self, path: str, /) -> None:
        """Sync a directory's entries, so that a rename in it lasts (KAFKA-3968)."""
        ...

    def sync_all(self, fd: int, paths: Sequence[str], /) -> bool:
        """Sync the whole file system of *fd*: all content and all names.

        False, and nothing is certain, where that cannot be done at once or relied on, or where one of the directories
        *paths* is in another. Slow. Raises for a failed write of any process since *fd* was opened.
        """
        ...

    def size(self, path: str, /) -> int:
        """Return the file's size in bytes; raise FileNotFoundError where there is none."""
        ...

    def modified_ms(self, path: str, /) -> int:
        """Return when the file was last written, in ms since the epoch."""
        ...

    def is_dir(self, path: str, /) -> bool:
        """Return whether *path* is a directory."""
        ...

    def listdir(self, path: str, /) -> list[str]:
        """Return the names in a directory, in no order."""
        ...

    def mkdir(self, path: str, mode: int = DIRECTORY_MODE, /) -> None:
        """Create a directory; raise FileExistsError when it is there."""
        ...

    def rename(self, source: str, target: str, /) -> None:
        """Rename a file or directory, replacing a file of that name."""
        ...

    def unlink(self, path: str, /) -> None:
        """Remove a file."""
        ...

    def rmdir(self, path: str, /) -> None:
        """Remove an empty directory."""
        ...

    def lock(self, path: str, /) -> int | None:
        """Lock the file for this process while the descriptor is open; None: another has it."""
        ...


def _open(path: str, flags: int, mode: int = FILE_MODE, /) -> int:
    return os.open(path, flags, mode)  # Python's own default is 0o777


def _mkdir(path: str, mode: int = DIRECTORY_MODE, /) -> None:
    os.mkdir(path, mode)


def _sync_dir(path: str, /) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_all(fd: int, paths: Sequence[str], /) -> bool:
    device = os.fstat(fd).st_dev
    if not _syncs_as_one(device) or any(os.stat(path).st_dev != device for path in paths):
        return False
    import ctypes  # only a shutdown needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return True


def _syncs_as_one(device: int) -> bool:
    """Return whether syncfs(2) on *device* is as reliable as an fsync of every file.

    Linux reports failed writes there since 5.8; file systems in user space and of other machines promise
    less than by fsync.
    """
    system = os.uname()
    release = [int(part) for part in re.findall(r"\d+", system.release)[:2]]
    if system.sysname != "Linux" or release < [5, 8]:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as mounts:
            rows = [line.split() for line in mounts]
    except OSError:
        return False
    kinds = {row[row.index("-") + 1] for row in rows if len(row) > 2 and row[2] == number}
    return bool(kinds) and kinds <= SYNCED_AS_ONE


def _preallocate(fd: int, size: int, /) -> None:
    """Call fallocate(2) with FALLOC_FL_KEEP_SIZE: else recovery would find a tail of zeros."""
    if sys.platform != "linux":
        return
    import ctypes  # only a topic with preallocate needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 1, ctypes.c_int64(0), ctypes.c_int64(size)):
        error = ctypes.get_errno()
        if error not in NOT_PREALLOCATED:
            raise OSError(error, os.strerror(error))


def _size(path: str, /) -> int:
    return os.stat(path).st_size


def _modified_ms(path: str, /) -> int:
    return os.stat(path).st_mtime_ns // 1_000_000


def _lock(path: str, /) -> int | None:
    fd = _open(path, READ_WRITE)
    try:
        # Kafka's lock is of the second kind; the first also holds between two logs of a process.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


class OsDisk:
    """The real disk."""

    open = staticmethod(_open)
    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwritev = staticmethod(os.pwritev)
    ftruncate = staticmethod(os.ftruncate)
    preallocate = staticmethod(_preallocate)
    fsync = staticmethod(os.fdatasync)
    sync_dir = staticmethod(_sync_dir)
    sync_all = staticmethod(_sync_all)
    size = staticmethod(_size)
    modified_ms = staticmethod(_modified_ms)
    is_dir = staticmethod(os.path.isdir)
    listdir = staticmethod(os.listdir)
    mkdir = staticmethod(_mkdir)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)
    lock = staticmethod(_lock)


OS_DISK: Final[Disk] = OsDisk()


def write_all(disk: Disk, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write every byte of *buffers* at *offset*, going on after a short write.

    A write that makes no progress raises OSError, as one that fails does. Bytes written before stay where they are,
    beyond what the caller counts as its file.
    """
    total = sum(map(len, buffers))
    done = disk.pwritev(fd, buffers, offset)
    if done == total:
        return
    rest = memoryview(b"".join(buffers))
    while done < total:
        wrote = disk.pwritev(fd, [rest[done:]], offset + done)
        if wrote <= 0:
            raise OSError(f"the disk took {done} of {total} bytes and no more")
        done += wrote


def read_file(disk: Disk, path: str) -> bytes:
    """Return the whole content of a small file."""
    fd = disk.open(path, READ)
    try:
        chunks = []
        position = 0
        while chunk := disk.pread(fd, 1 << 20, position):
            chunks.append(chunk)
            position += len(chunk)
        return b"".join(chunks)
    finally:
        disk.close(fd)


def replace_file(disk: Disk, path: str, content: bytes, *, durable: bool = True) -> None:
    """Put *content* in the place of the file at *path* in one step.

    A reader finds the old content or the new, never a part: written beside it, synced,
    renamed, the directory synced (KAFKA-1539, KAFKA-3968). Slow when *durable*; otherwise a power
    loss (not a killed process) may bring back the old content.
    """
    temporary = path + ".tmp"
    fd = disk.open(temporary, CREATE)
    try:
        write_all(disk, fd, [content], 0)
        if durable:
            disk.fsync(fd)
    finally:
        disk.close(fd)
    disk.rename(temporary, path)
    if durable:
        disk.sync_dir(os.path.dirname(path))


def sync_file(disk: Disk, path: str) -> None:
    """Sync the content of a file that is not open. Slow. Raise FileNotFoundError where there is none."""
    fd = disk.open(path, READ)
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)


def unlink_if_there(disk: Disk, path: str) -> bool:
    """Remove a file; return whether there was one."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return False
    return True
