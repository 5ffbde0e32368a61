"""Sync a log: the owner collects the files, the pool syncs them.

`UnifiedLog.start_flush` (owner; see `FlushState`) writes pending index entries and collects the files. `run` (pool)
syncs, for as long as the disk takes. `UnifiedLog.finish_flush` (owner) moves the recovery point. A sync that failed is
never tried again: the kernel may have dropped the pages, and a second try would report success (S15).

A log may have several works under way, and the threads of a pool keep no order. Each work depends on the one before it:
it does not sync the same files again, and older leader epochs must not replace newer ones. So the first thread that
starts runs both, in order.

The work has four steps, so that those of thousands of logs can be done step by step together (`clean_shutdown`). The
leader epochs are written beside their file; content is synced. Then the epochs take their file's place; names are
synced. A file never has a name before its content is on the disk.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Lock
from typing import Final

from kbroker.log.disk import CREATE, Disk, sync_file, write_all
from kbroker.log.slices import SegmentFile

TEMPORARY: Final = ".tmp"


class DirectoryName:
    """Whether the directory of a log has the name that its works know: another log may have that name by now.

    The owner waits in `given_up` for a thread that writes a small file, never for a sync.
    """

    __slots__ = ("_is_ours", "lock")

    def __init__(self) -> None:
        self.lock = Lock()
        """A thread holds it from its look at `is_ours` until it has written by that name."""
        self._is_ours = True

    @property
    def is_ours(self) -> bool:
        """Whether the name is still that of this log's directory, or of none; ask with `lock`."""
        return self._is_ours

    def given_up(self) -> None:
        """Handle the rename of the directory, before another log takes its name."""
        with self.lock:
            self._is_ours = False


class FlushWork:
    """Files of one log to sync, so that everything below *up_to* is safe."""

    __slots__ = (
        "_after",
        "_disk",
        "_epochs",
        "_error",
        "_files",
        "_has_run",
        "_lock",
        "_name",
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
        name: DirectoryName,
        after: FlushWork | None = None,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self._name = name
        self._files = files
        self._others = others
        self._epochs = epochs
        self._new_directory = new_directory
        self.up_to = up_to
        self.truncations = truncations
        """How often the log was truncated when the work began: a later one makes it void."""
        self._has_run = False
        self._error: Exception | None = None
        self._after = after
        self._lock: Lock = after._lock if after is not None else Lock()

    @property
    def is_behind_another(self) -> bool:
        """Whether a work of the log came before it, with an outcome that the owner does not know."""
        return self._after is not None

    def run(self) -> None:
        """Sync it all, after what came before it. Slow: runs in a pool. Raise OSError at the first failure.

        A work that failed, by whatever error, is not tried again: a later call fails, too.

        A file that was deleted meanwhile is skipped. If the directory has another name by now, nothing is written by
        the former one.
        """
        with self._lock:
            self._run()

    def _run(self) -> None:
        if not self._has_run:
            try:
                if self._after is not None:
                    self._after._run()
                self._sync_it_all()
            except Exception as error:
                self._error = error
            self._after = None
            self._has_run = True
        if self._error is not None:
            raise self._error

    def _sync_it_all(self) -> None:
        try:
            self.write()
            self._sync_content()
            self.publish()
            self._sync_names()
        except FileNotFoundError:  # the partition was deleted, directory and all
            return

    def write(self) -> None:
        """Put the leader epochs beside the file that they are to replace. Not synced."""
        if self._epochs is None:
            return
        path, content = self._epochs
        with self._name.lock:
            if not self._name.is_ours:
                return
            fd = self._disk.open(path + TEMPORARY, CREATE)
            try:
                write_all(self._disk, fd, [content], 0)
            finally:
                self._disk.close(fd)

    def publish(self) -> None:
        """Put the leader epochs, which are on the disk, in the place of the former ones. Not synced."""
        if self._epochs is None:
            return
        path, _ = self._epochs
        with self._name.lock:
            if self._name.is_ours:
                self._disk.rename(path + TEMPORARY, path)

    def _sync_content(self) -> None:
        for file in self._files:
            self._disk.fsync(file.fd)
        for path in self._others:
            self._sync(path)
        if self._epochs is not None:
            self._sync(self._epochs[0] + TEMPORARY)

    def _sync(self, path: str) -> None:
        with suppress(FileNotFoundError):
            sync_file(self._disk, path)

    def _sync_names(self) -> None:
        self._disk.sync_dir(self.directory)
        if self._new_directory:  # its own name has to last too (KAFKA-3968)
            self._disk.sync_dir(os.path.dirname(self.directory))
