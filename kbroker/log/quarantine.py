"""Batches that recovery cuts off although they are whole: kept aside, for a person to look at.

They lie behind damage or behind a hole, so no reader of this log can ever have them; but they may be
the only copy. Kafka's tools read the files (``DumpLogSegments``); nothing here does.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from kbroker.log.disk import CREATE, Disk, unlink_if_there, write_all
from kbroker.log.log_segment import GAP_SUFFIX, LogSegment

SUFFIX: Final = ".quarantined"
_CHUNK: Final = 1 << 20


def put_aside(disk: Disk, segment: LogSegment) -> str:
    """Take *segment* out of the log; return the name its batches have now, "" without any."""
    segment.close()
    segment.reset_indexes()
    unlink_if_there(disk, segment.stem + GAP_SUFFIX)
    if not segment.size:
        disk.unlink(segment.path)
        return ""
    path = _unused(disk, segment.path)
    disk.rename(segment.path, path)
    return path


def copy_tail(disk: Disk, segment: LogSegment, file_size: int) -> str:
    """Copy what lies behind the valid prefix of *segment*; return the name of the copy."""
    path = _unused(disk, f"{segment.path}.{segment.size}")
    fd = disk.open(path, CREATE)
    try:
        position = segment.size
        while chunk := segment.file.pread(min(_CHUNK, file_size - position), position):
            write_all(disk, fd, [chunk], position - segment.size)
            position += len(chunk)
    finally:
        disk.close(fd)
    return path


def _unused(disk: Disk, path: str) -> str:
    for number in count():
        name = f"{path}.{number}{SUFFIX}" if number else f"{path}{SUFFIX}"
        try:
            disk.size(name)
        except FileNotFoundError:
            return name
    raise AssertionError("unreachable")
