"""Syncing logs while the broker runs: those that ask for it by their settings, and segments that are full.

The sync itself is done in the pool; the log is told of its outcome on the owner's thread. What was never synced is
replicated, or read from the page cache: by default nothing asks for more than a segment at a time, as in Kafka. A sync
that ended in whatever error fences its log: nobody knows what of it is on the disk (S15).

Owner: `LogDirs`, on the owner's thread
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kbroker.log.checkpoints import Partition
from kbroker.log.flush import FlushWork
from kbroker.log.log_dir import LogDir
from kbroker.log.partition_log import PartitionLog
from kclient.wire.errors import KafkaError


class InPool(Protocol):
    """Runs *work* in the pool, then *finished*, with its error if any, on the owner's thread."""

    def __call__(
        self,
        directory: LogDir,
        work: Callable[[], None],
        finished: Callable[[BaseException | None], None] | None = None,
        /,
    ) -> None:
        """Begin."""


class Flushing:
    """Syncs *logs*, each in the directory that *where* names."""

    def __init__(
        self,
        logs: Mapping[Partition, PartitionLog],
        where: Mapping[Partition, LogDir],
        in_pool: InPool,
    ) -> None:
        self._logs = logs
        self._where = where
        self._in_pool = in_pool
        self._since_ms: dict[Partition, int] = {}
        """When a log was flushed last, or was first seen with something to flush."""

    def forget(self, key: Partition) -> None:
        """Take note that a log is gone."""
        self._since_ms.pop(key, None)

    def due(self, now_ms: int) -> None:
        """Start the flush of logs that flush.messages or flush.ms asks for; cheap to call often."""
        for key, log in list(self._logs.items()):
            waiting = log.log_end_offset - log.recovery_point
            if not waiting:
                self._since_ms.pop(key, None)
                continue
            since = self._since_ms.setdefault(key, now_ms)
            if waiting >= log.config.flush_messages or now_ms - since >= log.config.flush_ms:
                self._since_ms[key] = now_ms
                self._start(key, log)

    def sealed(self, key: Partition) -> None:
        """Start the flush of a log's full segments: one was rolled."""
        log = self._logs.get(key)
        if log is not None:
            self._start(key, log, sealed_only=True)

    def _start(self, key: Partition, log: PartitionLog, *, sealed_only: bool = False) -> None:
        try:
            work = log.start_flush(sealed_only=sealed_only)
        except KafkaError:
            return  # its directory is offline now, and whoever listens knows
        if work is None:
            return

        def finished(error: BaseException | None, work: FlushWork = work) -> None:
            if error is None:
                log.finish_flush(work)
            else:
                log.flush_failed(error)

        self._in_pool(self._where[key], work.run, finished)
