"""A simulated disk that crashes its process in place of a call."""

from __future__ import annotations

from typing import Any, Self

from tests.kit.simulated_disk import SimulatedDisk

CHANGES = frozenset({"open", "pwritev", "ftruncate", "fsync", "sync_dir", "rename", "unlink"})


class Crashed(BaseException):
    """The process crashed in place of a call."""


class CrashingDisk(SimulatedDisk):
    """A disk that crashes the process in place of a call that changes something."""

    calls_left = -1
    """Negative: for ever."""

    @classmethod
    def with_log(cls, directory: str) -> Self:
        """Return a disk with an empty *directory* for a log, in a log directory that a power loss leaves."""
        disk = cls()
        parent = directory.rpartition("/")[0]
        disk.mkdir(parent)
        disk.mkdir(directory)
        for path in ("/", parent):
            disk.sync_dir(path)
        return disk

    def __getattribute__(self, name: str) -> Any:
        if name in CHANGES and self.calls_left >= 0:
            if self.calls_left == 0:
                raise Crashed
            self.calls_left -= 1
        return super().__getattribute__(name)
