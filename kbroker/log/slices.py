"""Slices of segment files: what a fetch hands to the network instead of bytes.

The network sends a slice with ``sendfile``, or reads it where it must see the bytes (TLS). The segment and every slice
of it share one `SegmentFile`. The descriptor is closed when the last of them lets go. So neither retention nor deletion
can close a file under a send.
"""

from __future__ import annotations

from kbroker.log.disk import Disk


class SegmentFile:
    """An open segment file, shared by its segment and the slices of it.

    Closed when nothing refers to it any more: that is Python's own reference count, which costs
    no bookkeeping per slice and cannot leak.
    """

    __slots__ = ("_disk", "fd", "path")

    def __init__(self, disk: Disk, path: str, flags: int) -> None:
        self._disk = disk
        self.path = path
        self.fd = -1
        self.fd = disk.open(path, flags)

    def pread(self, size: int, position: int) -> bytes:
        """Read up to *size* bytes at *position*."""
        return self._disk.pread(self.fd, size, position)

    def __del__(self) -> None:
        if self.fd >= 0:
            self._disk.close(self.fd)
            self.fd = -1


class FileSlice:
    """*size* bytes at *position* of a segment file that stays open until `release`.

    A truncation may cut the file under a slice (a follower that was leader a moment ago). Then ``sendfile`` and `read`
    come to the end of the file early. The connection that promised the bytes has to be closed.
    """

    __slots__ = ("_file", "position", "size")

    def __init__(self, file: SegmentFile, position: int, size: int) -> None:
        self._file: SegmentFile | None = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        path = self._file.path if self._file else "released"
        return f"FileSlice({path!r}, position={self.position}, size={self.size})"

    def fileno(self) -> int:
        """Return the descriptor to send from; it is valid until `release`."""
        return self._opened().fd

    def read(self) -> bytes:
        """Return the bytes; fewer than `size` only when the file was cut off meanwhile."""
        return self.read_part(0, self.size)

    def read_part(self, start: int, size: int) -> bytes:
        """Return up to *size* bytes from byte *start* of the slice on."""
        file = self._opened()
        want = min(size, self.size - start)
        data = file.pread(want, self.position + start)
        if len(data) == want or not data:
            return data
        chunks = [data]
        got = len(data)
        while got < want and (data := file.pread(want - got, self.position + start + got)):
            chunks.append(data)
            got += len(data)
        return b"".join(chunks)

    def is_of(self, file: SegmentFile | None) -> bool:
        """Return whether this is a slice of *file*."""
        return file is not None and self._file is file

    def release(self) -> None:
        """Release the file; a second call does nothing."""
        self._file = None

    def _opened(self) -> SegmentFile:
        if self._file is None:
            raise ValueError("this slice of a segment was released already")
        return self._file
