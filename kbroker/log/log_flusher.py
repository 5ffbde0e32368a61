"""Syncs logs while the broker runs: by flush.messages and flush.ms, and segments that are full.

The pool syncs; the log handles the outcome on the owner's thread. Replication protects records that were never synced,
so by default only full segments are synced, as in Kafka. A sync that fails, by whatever error, fences its log: what of
it is on the disk is not known (S15). Segments that fill up during a sync of full segments wait for the next one, which
covers them all. A sync for each would sync the same segments again, as often as the disk is late.

Where flush.messages or flush.ms is set, appends wait for their sync (`pending_flush`). One such sync of a log runs at a
time. The next one begins when it has ended, and covers every append that was made meanwhile (group commit).

The sync of a new partition.metadata begins within a second. A few logs are synced at a time, so that syncs that
acknowledgements wait for are not behind thousands of them. Kafka waits for it before the first append. A power loss
before it leaves a log that is taken for that of the partition that its directory is named after.

Owner: `LogManager`, on the owner's thread
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kbroker.common.topic_partition import TopicPartition
from kbroker.log.flush_work import FlushWork
from kbroker.log.log_dir import LogDir
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.errors import KafkaError

IDENTITIES_AT_ONCE: Final = 16
"""The most logs with a partition.metadata that is being synced: other syncs in the pool wait."""


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


class LogFlusher:
    """Syncs *logs*, each in the directory that *where* names."""

    def __init__(
        self,
        logs: Mapping[TopicPartition, UnifiedLog],
        where: Mapping[TopicPartition, LogDir],
        in_pool: InPool,
        flushed: Callable[[TopicPartition], None],
    ) -> None:
        """*flushed* is called with a partition after each sync of all of its log."""
        self._flushed = flushed
        self._running: dict[UnifiedLog, None] = {}
        """Logs that are being synced, all of them."""
        self._sealing: dict[UnifiedLog, bool] = {}
        """Logs with a sync of full segments under way, and whether one was rolled meanwhile."""
        self._is_identifying = False
        """Whether a sync of some logs' partition.metadata is under way."""
        self._is_stopped = False
        self._logs = logs
        self._where = where
        self._in_pool = in_pool
        self._since_ms: dict[TopicPartition, int] = {}
        """When a log was flushed last, or was first seen with something to flush."""

    def stop(self) -> None:
        """Begin no further sync: the logs are to be closed."""
        self._is_stopped = True

    def forget(self, key: TopicPartition) -> None:
        """Handle the removal of a log."""
        self._since_ms.pop(key, None)

    def due(self, now_ms: int) -> None:
        """Start the flush of new identities, and of logs due by flush.messages or flush.ms; cheap to call often."""
        self._find_identities()
        for key, log in list(self._logs.items()):
            if self._logs.get(key) is not log:
                continue  # the directory of one before it has failed
            waiting = log.log_end_offset - log.recovery_point
            if not waiting:
                self._since_ms.pop(key, None)
                continue
            since = self._since_ms.setdefault(key, now_ms)
            if log in self._running:
                continue
            if waiting >= log.config.flush_messages or now_ms - since >= log.config.flush_ms:
                self._since_ms[key] = now_ms
                self._start(key, log)

    def appended(self, key: TopicPartition) -> None:
        """Sync a log with appends that wait for it; if a sync of the log runs, after it."""
        log = self._logs.get(key)
        if log is not None and log not in self._running:
            self._start(key, log)

    def sealed(self, key: TopicPartition) -> None:
        """Start the flush of a log's full segments: one was rolled."""
        log = self._logs.get(key)
        if log is None:
            return
        if log in self._sealing:
            self._sealing[log] = True
        else:
            self._start(key, log, sealed_only=True)

    def _find_identities(self) -> None:
        """Look for partition.metadata that was written, and start the sync of some, all in one directory.

        Those of this run come first: after an unclean shutdown those of all logs are synced again.
        """
        if self._is_identifying or self._is_stopped:
            return
        due: dict[LogDir, list[UnifiedLog]] = {}
        earlier: dict[LogDir, list[UnifiedLog]] = {}
        for key, log in self._logs.items():
            if log.flush_state.is_identity_due:
                of_this_run = log.flush_state.is_identity_of_this_run
                (due if of_this_run else earlier).setdefault(self._where[key], []).append(log)
        chosen = due or earlier
        if not chosen:
            return
        directory, logs = next(iter(chosen.items()))
        works = [(log, log.flush_state.begin_identity()) for log in logs[:IDENTITIES_AT_ONCE]]
        self._is_identifying = True

        def run() -> None:
            for _, work in works:
                work.run()
            directory.sync_names()

        def finished(error: BaseException | None) -> None:
            self._is_identifying = False
            if self._is_stopped:
                return  # the logs may be closed in another thread
            for log, work in works:
                if error is None:
                    log.finish_flush(work)
                else:
                    log.flush_failed(error)
            self._find_identities()

        self._in_pool(directory, run, finished)

    def _start(self, key: TopicPartition, log: UnifiedLog, *, sealed_only: bool = False) -> None:
        if self._is_stopped:
            return
        try:
            work = log.start_flush(sealed_only=sealed_only)
        except KafkaError:
            return  # its directory is offline now, and the callback has reported that
        if work is None:
            return
        if sealed_only:
            self._sealing[log] = False
        else:
            self._running[log] = None

        def finished(error: BaseException | None, work: FlushWork = work) -> None:
            if self._is_stopped:
                return  # the logs may be closed in another thread
            has_rolled = sealed_only and self._sealing.pop(log)
            if not sealed_only:
                self._running.pop(log, None)
            if error is not None:
                log.flush_failed(error)
                return
            log.finish_flush(work)
            if self._logs.get(key) is log:
                if has_rolled:
                    self._start(key, log, sealed_only=True)
                self._go_on(key, log)

        self._in_pool(self._where[key], work.run, finished)

    def _go_on(self, key: TopicPartition, log: UnifiedLog) -> None:
        """Begin the next sync if appends wait for one, and report the sync that has ended."""
        if log.held_at is not None and log not in self._running:
            self._start(key, log)
        self._flushed(key)
