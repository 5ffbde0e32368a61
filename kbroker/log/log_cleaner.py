"""Chooses the next compacted log that is due and has a round of compaction done (Kafka's LogCleaner).

Theory of operation
===================
`look` is called every log.cleaner.backoff.ms, and after each round. It takes the log with the highest cleanable ratio
of those that are due, if a cleaner is free: there are log.cleaner.threads. The work of a round goes to the pool, the
steps in between run on the owner's thread.

A round that fails by damage, or that meets a transactional batch at once, sets its partition aside until the broker
restarts, and reports it with the reason: the log is served, and not compacted. An error of the disk takes the directory
offline, as any does. A cleaner process that ends is no fault of the log, nor is a truncation: the next look begins
another round.

Invariants:
1. One round of a log runs at a time, and one round of a cleaner.
2. The first dirty offset of a log moves when its round has reached the end, and not otherwise.
3. A log without a high watermark here, of which nothing is known to be committed, is not cleaned.

Owner: `LogManager`, on the owner's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kbroker.common.topic_partition import TopicPartition
from kbroker.config.log import LogConfig
from kbroker.log.cleaning_round import CleaningRound, MakeCleaner, state_of
from kbroker.log.core.log_to_clean import LogToClean, log_to_clean, next_to_clean
from kbroker.log.log_dir import LogDir
from kbroker.log.log_flusher import InPool
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.errors import (
    CorruptMessage,
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)

UNCLEANABLE: Final = (
    CorruptMessage,
    InvalidRecord,
    MessageTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
"""Errors of the records themselves: another round would meet them again."""


class LogCleaner:
    """Compacts *logs*, each in the directory that *where* names, with as many rounds at a time as *cleaners*."""

    def __init__(
        self,
        logs: Mapping[TopicPartition, UnifiedLog],
        where: Mapping[TopicPartition, LogDir],
        in_pool: InPool,
        cleaners: Sequence[MakeCleaner],
        *,
        now_ms: Callable[[], int],
        remove_later: Callable[[TopicPartition, Sequence[str]], None],
        set_aside: Callable[[TopicPartition, KafkaError], None],
    ) -> None:
        """*remove_later* receives the files of replaced segments; *set_aside* a partition that cannot be cleaned."""
        self._logs = logs
        self._where = where
        self._in_pool = in_pool
        self._idle = list(cleaners)
        self._now_ms = now_ms
        self._remove_later = remove_later
        self._set_aside = set_aside
        self._running: dict[UnifiedLog, None] = {}
        self._uncleanable: dict[UnifiedLog, KafkaError] = {}
        self._is_stopped = False

    @property
    def uncleanable(self) -> dict[TopicPartition, KafkaError]:
        """Partitions that are set aside, and why."""
        return {
            key: self._uncleanable[log]
            for key, log in self._logs.items()
            if log in self._uncleanable
        }

    def stop(self) -> None:
        """Begin no round, and no further step of one."""
        self._is_stopped = True

    def look(self, high_watermark: Callable[[TopicPartition], int | None]) -> None:
        """Begin rounds while a log is due and a cleaner is free; one round of a log."""
        begun: set[TopicPartition] = set()
        while self._idle and not self._is_stopped:
            due = self._candidates(high_watermark)
            key = next_to_clean({each: found for each, found in due.items() if each not in begun})
            if key is None:
                return
            begun.add(key)
            self._begin(key, due[key][0], high_watermark)

    def _candidates(
        self, high_watermark: Callable[[TopicPartition], int | None]
    ) -> dict[TopicPartition, tuple[LogToClean, LogConfig]]:
        found = {}
        here = set(self._logs.values())
        self._uncleanable = {log: why for log, why in self._uncleanable.items() if log in here}
        now_ms = self._now_ms()
        for key, log in list(self._logs.items()):
            if (
                not log.config.compacted
                or log in self._running
                or log in self._uncleanable
                or log.failure is not None
            ):
                continue
            mark = high_watermark(key)
            if mark is None:
                continue
            try:
                state = state_of(log, mark, log.clean_below)
            except CorruptMessage as error:
                self._set_uncleanable(key, log, error)
                continue
            except OSError:
                continue  # the next append or fetch meets it, too
            found[key] = log_to_clean(state, log.config, now_ms), log.config
        return found

    def _begin(
        self,
        key: TopicPartition,
        to_clean: LogToClean,
        high_watermark: Callable[[TopicPartition], int | None],
    ) -> None:
        log = self._logs[key]
        make_cleaner = self._idle.pop()
        self._running[log] = None
        cleaning = CleaningRound(log, to_clean, make_cleaner, self._now_ms())
        steps = cleaning.steps()

        def ended() -> None:
            del self._running[log]
            self._idle.append(make_cleaner)
            if cleaning.files:
                self._remove_later(key, cleaning.files)
            if self._logs.get(key) is log and cleaning.clean_below is not None:
                log.clean_below = cleaning.clean_below

        def go_on(error: Exception | None = None) -> None:
            if self._is_stopped or self._logs.get(key) is not log:
                ended()  # closing the log has cancelled the replacement
                return
            try:
                work = next(steps) if error is None else steps.throw(error)
            except StopIteration:
                ended()
                if cleaning.clean_below is not None:
                    self.look(high_watermark)
            except UNCLEANABLE as problem:
                ended()
                self._set_uncleanable(key, log, problem)
                self.look(high_watermark)
            except KafkaError:
                ended()  # the log is fenced, or the process ended
            except Exception:
                ended()
                raise
            else:
                self._work(key, work, go_on)

        go_on()

    def _work(
        self,
        key: TopicPartition,
        work: Callable[[], object],
        go_on: Callable[[Exception | None], None],
    ) -> None:
        """Have the pool do *work*; errors of Kafka's kind go to the round, those of the disk to the directory."""
        problems: list[KafkaError] = []

        def run() -> None:
            try:
                work()
            except KafkaError as error:
                problems.append(error)

        def finished(error: BaseException | None) -> None:
            if error is None:
                go_on(problems[0] if problems else None)
            elif isinstance(error, Exception):
                go_on(error)

        self._in_pool(self._where[key], run, finished)

    def _set_uncleanable(self, key: TopicPartition, log: UnifiedLog, error: KafkaError) -> None:
        self._uncleanable[log] = error
        self._set_aside(key, error)
