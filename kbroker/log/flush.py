"""Bring a log to the disk itself: what the owner takes note of, what the pool does.

`PartitionLog.start_flush` (owner) writes pending index entries and says what to sync; `run` (pool)
syncs, which may take as long as the disk likes; `PartitionLog.finish_flush` (owner) moves the
recovery point. A sync that failed is never tried again: the kernel may have dropped the pages, and
the second try would say that all is well (S15).
"""

from __future__ import annotations

import os

from kbroker.log.disk import READ, Disk, replace_file
from kbroker.log.slices import SegmentFile


class FlushWork:
    """Files of one log to sync, so that everything below *up_to* is safe."""

    __slots__ = (
        "_disk",
        "_epochs",
        "_files",
        "_new_directory",
        "_others",
        "directory",
        "truncations",
        "up_to",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        files: list[SegmentFile],
        others: list[str],
        epochs: tuple[str, bytes] | None,
        up_to: int,
        truncations: int,
        new_directory: bool,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self._files = files
        self._others = others
        self._epochs = epochs
        self._new_directory = new_directory
        self.up_to = up_to
        self.truncations = truncations
        """How often the log was truncated when the work began: a later one makes it void."""

    def run(self) -> None:
        """Sync it all. Slow: runs in a pool. Raise OSError at the first failure.

        A file that was deleted meanwhile is of no interest to anyone.
        """
        for file in self._files:
            self._disk.fsync(file.fd)
        for path in self._others:
            try:
                fd = self._disk.open(path, READ)
            except FileNotFoundError:
                continue
            try:
                self._disk.fsync(fd)
            finally:
                self._disk.close(fd)
        try:
            if self._epochs is not None:
                replace_file(self._disk, *self._epochs)
            self._disk.sync_dir(self.directory)
            if self._new_directory:  # its own name has to last too (KAFKA-3968)
                self._disk.sync_dir(os.path.dirname(self.directory))
        except FileNotFoundError:  # the partition was deleted, directory and all
            return
