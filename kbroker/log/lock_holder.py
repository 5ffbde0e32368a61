"""Which process holds the lock of a log directory: that is the broker which runs on it (`kbroker stop`).

The lock is a record lock of POSIX on the file .lock, as Kafka's; the kernel names its holder (F_GETLK). Only another
process may ask: one that closes the file loses its own locks on it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from typing import Final

from kbroker.log.log_dir import LOCK_FILE

_IS_DARWIN: Final = sys.platform == "darwin"
_LAYOUT: Final = "qqihh" if _IS_DARWIN else "hhqqi"
"""The C structure flock: type, whence, start, length, process; Darwin's ends with type and whence."""


def lock_holder(directory: str) -> int | None:
    """Return the process id of the holder; None if the directory is not locked, or does not exist.

    Raise OSError if the lock cannot be asked about: it is another user's file, or the holder is not visible from here
    (another container).
    """
    try:
        fd = os.open(os.path.join(directory, LOCK_FILE), os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        asked = (
            (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
            if _IS_DARWIN
            else (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        )
        found = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(_LAYOUT, *asked).ljust(64, b"\0"))
    finally:
        os.close(fd)
    values: tuple[int, ...] = struct.unpack_from(_LAYOUT, found)
    kind, process = (values[3], values[2]) if _IS_DARWIN else (values[0], values[4])
    if kind == fcntl.F_UNLCK:
        return None
    if process <= 0:
        raise OSError(f"{directory} is locked by a process of another container or machine")
    return process
