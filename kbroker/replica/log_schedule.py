"""The schedule of the log manager: retention, compaction, flushes, checkpoints, removal of deleted logs.

`LogManager` does the work; this file decides when. A task that raises is logged and runs again at its next time.
Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import THINGS_PER_TURN, WorkerTurns
from kbroker.config import KafkaConfig
from kbroker.config.log import LONG_MAX
from kbroker.log.log_cleaner import CleanerConfig, LookSteps
from kbroker.log.log_manager import LogManager

log = Logger()

LOOK_SECONDS = 1.0
"""Interval of the checks of flush.messages, flush.ms, new identities, pending deletions and moves that wait."""

SOON_SECONDS = 0.1
"""The delay before a log start offset that a client moved is checkpointed."""

SHORTEST_BACKOFF_SECONDS = 0.1
"""Between two looks for logs to compact; log.cleaner.backoff.ms may be 0."""


class LogSchedule:
    """The timers over all logs.

    *high_watermark* gives a partition's, None where it is not hosted. *log_start_advanced* receives the partitions
    where retention dropped segments. *mark_of_movable* gives the high watermark of a partition, None while its log is
    not to be moved to another directory.
    """

    def __init__(
        self,
        reactor: Any,
        config: KafkaConfig,
        log_manager: LogManager,
        high_watermark: Callable[[TopicPartition], int | None],
        log_start_advanced: Callable[[TopicPartition], None],
        mark_of_movable: Callable[[TopicPartition], int | None],
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._log_manager = log_manager
        self._high_watermark = high_watermark
        self._log_start_advanced = log_start_advanced
        self._mark_of_movable = mark_of_movable
        self._timers: set[Any] = set()
        self._checkpoint_due = False
        self._compaction_timer: Any = None

    def start(self) -> None:
        """Start the timers."""
        config = self._config
        self._every(config.log_retention_check_interval_ms / 1000, self._retain)
        self._every(LOOK_SECONDS, self._log_manager.flush_due)
        self._every(LOOK_SECONDS, self._go_on)
        self._every(checkpoint_interval_ms(config) / 1000, self._checkpoint)
        self._every(config.producer_id_expiration_check_interval_ms / 1000, self._expire_producers)
        self._compact_later()

    def reconfigure(self, config: KafkaConfig) -> None:
        """Use *config* from now on; timers keep the interval that they started with, except that of compaction."""
        backoff_ms = self._config.log_cleaner_backoff_ms
        self._config = config
        self._log_manager.configure_cleaner(CleanerConfig.of(config))
        timer = self._compaction_timer
        if timer is not None and timer.active() and config.log_cleaner_backoff_ms != backoff_ms:
            timer.cancel()
            self._timers.discard(timer)
            self._compact_later()

    def stop(self) -> None:
        """Stop the timers."""
        for timer in self._timers:
            if timer.active():
                timer.cancel()
        self._timers.clear()

    def checkpoint_soon(self) -> None:
        """Write the checkpoints after SOON_SECONDS."""
        if not self._checkpoint_due:
            self._checkpoint_due = True
            self._after(SOON_SECONDS, self._checkpoint)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the high watermark of every log: of the hosted partition, or from the last checkpoint."""
        marks = dict(self._log_manager.high_watermarks)
        for key in self._log_manager:
            mark = self._high_watermark(key)
            if mark is not None:
                marks[key] = mark
        return marks

    def _checkpoint(self) -> None:
        self._checkpoint_due = False
        self._log_manager.checkpoint(self.high_watermarks())

    def _retain(self) -> None:
        dropped = self._log_manager.sweep(self._retention_bound, self._log_start_advanced)
        if dropped:
            log.info("retention dropped {count} segments", count=dropped)

    def _expire_producers(self) -> None:
        expired = self._log_manager.expire_producers(self._config.producer_id_expiration_ms)
        if expired:
            log.info("expired {count} idle producer ids", count=expired)

    def _compact_later(self) -> None:
        seconds = max(self._config.log_cleaner_backoff_ms / 1000, SHORTEST_BACKOFF_SECONDS)
        self._compaction_timer = self._after(seconds, self._compact, self._compact_later)

    def _go_on(self) -> None:
        self._log_manager.remove_due()
        self._log_manager.moves.go_on(self._mark_of_movable)

    def _compact(self) -> None:
        self._log_manager.compact(self._high_watermark, self._in_turns)

    def _in_turns(self, look: LookSteps) -> None:
        try:
            next(look)
        except StopIteration:
            return  # nothing is dirty, as a rule
        except Exception:
            self._failed(Failure())
            return
        turns = WorkerTurns(self._reactor, THINGS_PER_TURN)
        Deferred.fromCoroutine(turns.through(look)).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        log.failure("the look for logs to compact failed", failure)

    def _retention_bound(self, key: TopicPartition) -> int:
        """Bound retention by the high watermark; a log that is not hosted yet keeps everything.

        Before the first LeaderAndIsr the topic's own settings are unknown: the broker's default retention might be
        shorter.
        """
        mark = self._high_watermark(key)
        return 0 if mark is None else mark

    def _every(self, seconds: float, work: Callable[[], object]) -> None:
        def again() -> None:
            self._every(seconds, work)

        self._after(seconds, work, again)

    def _after(
        self,
        seconds: float,
        work: Callable[[], object],
        then: Callable[[], None] = lambda: None,
    ) -> Any:
        def run() -> None:
            self._timers.discard(timer)
            try:
                work()
            except Exception:
                log.failure("a scheduled task over the logs failed")
            then()

        timer = self._reactor.callLater(seconds, run)
        self._timers.add(timer)
        return timer


def checkpoint_interval_ms(config: KafkaConfig) -> int:
    """Return how often all checkpoints are written: together, so at the shortest of Kafka's intervals; 0 is none."""
    return min(
        config.replica_high_watermark_checkpoint_interval_ms,
        config.log_flush_offset_checkpoint_interval_ms or LONG_MAX,
        config.log_flush_start_offset_checkpoint_interval_ms or LONG_MAX,
    )
