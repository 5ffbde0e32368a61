"""Chooses the next compacted log that is due and has a round of compaction done (Kafka's LogCleaner).

Theory of operation
===================
`look` is called every log.cleaner.backoff.ms, and after each round. It takes the log with the highest cleanable ratio
of those that are due, if a worker is free: there are log.cleaner.threads. The work of a round goes to an executor, the
steps in between run on the owner's thread. A look goes through all dirty logs, in several turns if they are many.

Other settings replace the workers: the rounds under way end, and the next
look begins them again.

A round that fails by damage sets its partition aside until the broker restarts, and reports it with the reason. The log
is served, and not compacted. An error of the disk takes the directory offline, as any does. A worker that fails is no
fault of the log, nor is a truncation. The round is repeated, after those of other logs that are due. A round that a
truncation or the removal of its log made useless is not waited for: a throttled one may take hours.

Invariants:
1. One round of a log runs at a time, and one round of a worker.
2. The first dirty offset of a log moves when its round has reached the end, and not otherwise.
3. A log without a high watermark here, of which nothing is known to be committed, is not cleaned.

Owner: `LogManager`, on the owner's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple, Protocol

from kbroker.common.steps import at_once
from kbroker.common.topic_partition import TopicPartition
from kbroker.config import KafkaConfig
from kbroker.config.log import LogConfig
from kbroker.log.cleaner import CleanerSizes, RoundLimits, SourceSegment
from kbroker.log.cleaning_round import CleaningRound, RoundCleaner, Steps, state_of
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


MIN_BUFFER_BYTES: Final = 4096
"""The smallest read buffer; log.cleaner.io.buffer.size may be 0."""


HighWatermark = Callable[[TopicPartition], int | None]
"""Gives a partition's; None where it is not hosted."""

LookSteps = Generator[None, None, None]
RunSteps = Callable[[LookSteps], object]


class CleanerConfig(NamedTuple):
    """The settings of a broker's cleaner."""

    threads: int
    """Rounds at a time; 0: nothing is compacted."""
    sizes: CleanerSizes
    """Of one round."""
    max_bytes_per_second: float
    """Of one round: all of them together keep to log.cleaner.io.max.bytes.per.second."""

    @classmethod
    def of(cls, config: KafkaConfig) -> CleanerConfig:
        """Return the log.cleaner settings of *config*, for one round each."""
        each = max(config.log_cleaner_threads, 1)
        return cls(
            config.log_cleaner_threads if config.log_cleaner_enable else 0,
            CleanerSizes(
                config.log_cleaner_dedupe_buffer_size // each,
                config.log_cleaner_io_buffer_load_factor,
                max(config.log_cleaner_io_buffer_size // each // 2, MIN_BUFFER_BYTES),
            ),
            config.log_cleaner_io_max_bytes_per_second / each,
        )


class CleanerWorker(Protocol):
    """Does the slow part of rounds, one after the other: a `CleanerProcess`."""

    def round(self, segments: Sequence[SourceSegment], limits: RoundLimits, /) -> RoundCleaner:
        """Return the cleaner of a new round."""

    def kill(self) -> None:
        """Have the round under way fail, if there is one."""

    def end(self) -> None:
        """Have every round fail from now on."""

    def close(self) -> None:
        """Free what it holds, between two rounds. Slow."""


NewWorker = Callable[[CleanerSizes, float], CleanerWorker]
"""Makes a worker, of that size, for up to so many bytes in a second."""


class RoundListener(Protocol):
    """Learns how rounds end."""

    def cleaned(self, key: TopicPartition, cleaning: CleaningRound, seconds: float) -> None:
        """Handle a round that reached its end."""

    def round_failed(self, key: TopicPartition, why: KafkaError) -> None:
        """Handle a round that is to be repeated."""

    def set_aside(self, key: TopicPartition, why: KafkaError) -> None:
        """Handle a partition that is not compacted any more, until the broker restarts."""


class Compaction(NamedTuple):
    """What compaction needs of the broker."""

    new_worker: NewWorker
    executor: Executor
    """For the slow work of rounds alone: a throttled one may take hours. `LogCleaner.close` shuts it down."""
    listener: RoundListener


class _Running(NamedTuple):
    """A round that has begun."""

    key: TopicPartition
    log: UnifiedLog
    cleaning: CleaningRound
    steps: Steps
    worker: CleanerWorker
    begun_ms: int
    look: Callable[[], None]
    """Looks for the next log."""


class LogCleaner:
    """Compacts *logs*, each in the directory that *where* names; nothing before the first `configure`."""

    def __init__(
        self,
        logs: Mapping[TopicPartition, UnifiedLog],
        where: Mapping[TopicPartition, LogDir],
        in_executor: InPool,
        compaction: Compaction,
        *,
        now_ms: Callable[[], int],
        remove_later: Callable[[TopicPartition, Sequence[str]], None],
        is_paused: Callable[[TopicPartition], bool],
    ) -> None:
        """*remove_later* receives the files of replaced segments. No round begins over a log that *is_paused*."""
        self._is_paused = is_paused
        self._logs = logs
        self._where = where
        self._in_executor = in_executor
        self._new_worker, self._executor, self._listener = compaction
        self._now_ms = now_ms
        self._remove_later = remove_later
        self._config: CleanerConfig | None = None
        self._workers: list[CleanerWorker] = []
        """Those with the present settings."""
        self._idle: list[CleanerWorker] = []
        self._running: dict[UnifiedLog, _Running] = {}
        self._uncleanable: dict[UnifiedLog, KafkaError] = {}
        self._failed: dict[UnifiedLog, None] = {}
        """Logs with rounds that failed the last time: others that are due are first, or one log could keep them all."""
        self._is_stopped = False
        self._to_close: list[CleanerWorker] = []
        """The workers to close after `stop`."""
        self._is_looking = False

    @property
    def uncleanable(self) -> dict[TopicPartition, KafkaError]:
        """Partitions that are set aside, and why."""
        return {
            key: self._uncleanable[log]
            for key, log in self._logs.items()
            if log in self._uncleanable
        }

    def configure(self, config: CleanerConfig) -> None:
        """Go by *config*. Rounds under way end, unless nothing has changed."""
        if config == self._config or self._is_stopped:
            return
        self._config = config
        former, idle = self._workers, self._idle
        self._workers = [
            self._new_worker(config.sizes, config.max_bytes_per_second)
            for _ in range(config.threads)
        ]
        self._idle = list(self._workers)
        for worker in former:
            worker.end()
        for worker in idle:
            self._executor.submit(worker.close)  # one within a round is closed at its end

    def stop(self) -> None:
        """Begin no round, and no further step of one; have those under way fail."""
        self._is_stopped = True
        self._to_close = [*self._workers, *(each.worker for each in self._running.values())]
        for worker in self._to_close:
            worker.end()

    def close(self) -> None:
        """Wait for the work of the rounds, after `stop`. Slow. The owner may handle outcomes meanwhile."""
        self._executor.shutdown(wait=True)
        for worker in self._to_close:
            worker.close()

    def end_round(self, log: UnifiedLog) -> bool:
        """Have the round over *log*, which is paused, fail; return whether it runs still."""
        running = self._running.get(log)
        if running is not None:
            running.worker.kill()
        return running is not None

    def look(self, high_watermark: HighWatermark, run: RunSteps = at_once) -> None:
        """Begin rounds while a log is due and a worker is free; one round of a log.

        *run* may do the steps of the look in several turns. A look within another one does nothing.
        """
        for running in self._running.values():
            if running.cleaning.is_outdated or self._logs.get(running.key) is not running.log:
                running.worker.kill()
        if not self._is_looking and self._idle and not self._is_stopped:
            self._is_looking = True
            run(self._looking(high_watermark, run))

    def _looking(self, high_watermark: HighWatermark, run: RunSteps) -> LookSteps:
        """Begin rounds; yield after each log that has something dirty."""
        begun: set[UnifiedLog] = set()
        try:
            while self._idle and not self._is_stopped:
                due = yield from self._candidates(high_watermark, begun)
                others = {
                    key: each
                    for key, each in due.items()
                    if self._logs.get(key) not in self._failed
                }
                key = next_to_clean(others) or next_to_clean(due)
                if key is None:
                    return
                log = self._logs.get(key)
                if log is None:
                    continue  # it was removed since it was looked at
                begun.add(log)
                to_clean = self._to_clean(key, log, high_watermark)
                if to_clean is None or not to_clean.is_due(log.config):
                    continue  # it has changed since
                self._begin(key, log, to_clean, partial(self.look, high_watermark, run))
        finally:
            self._is_looking = False

    def _candidates(
        self, high_watermark: HighWatermark, begun: Collection[UnifiedLog]
    ) -> Generator[None, None, dict[TopicPartition, tuple[LogToClean, LogConfig]]]:
        found = {}
        if self._uncleanable or self._failed:
            here = set(self._logs.values())
            self._uncleanable = {log: why for log, why in self._uncleanable.items() if log in here}
            self._failed = {log: None for log in self._failed if log in here}
        for key, log in list(self._logs.items()):
            if log.config.compacted and log not in begun and not _is_clean(log):
                to_clean = self._to_clean(key, log, high_watermark)
                if to_clean is not None:
                    found[key] = to_clean, log.config
                yield
        return found

    def _to_clean(
        self, key: TopicPartition, log: UnifiedLog, high_watermark: HighWatermark
    ) -> LogToClean | None:
        """Return how dirty a log is; None for one that cannot be compacted now."""
        if (
            not log.config.compacted
            or self._is_paused(key)
            or log in self._running
            or log in self._uncleanable
            or log.failure is not None
        ):
            return None
        mark = high_watermark(key)
        if mark is None:
            return None
        try:
            state = state_of(log, mark, log.clean_below)
        except CorruptMessage as error:
            self._set_uncleanable(key, log, error)
            return None
        except OSError:
            return None  # the next append or fetch meets it, too
        return log_to_clean(state, log.config, self._now_ms())

    def _begin(
        self,
        key: TopicPartition,
        log: UnifiedLog,
        to_clean: LogToClean,
        look: Callable[[], None],
    ) -> None:
        worker = self._idle.pop()
        cleaning = CleaningRound(log, to_clean, worker.round, self._now_ms())
        running = _Running(key, log, cleaning, cleaning.steps(), worker, self._now_ms(), look)
        self._running[log] = running
        self._go_on(running, None)

    def _go_on(self, running: _Running, error: Exception | None) -> None:
        """Have the next step of a round done, after one that ended with *error* if any."""
        key, cleaning, steps = running.key, running.cleaning, running.steps
        if self._is_stopped or self._logs.get(key) is not running.log:
            self._ended(running)  # closing the log has cancelled the replacement
            return
        try:
            work = next(steps) if error is None else steps.throw(error)
        except StopIteration:
            self._ended(running)
            if cleaning.clean_below is not None:
                self._failed.pop(running.log, None)
                seconds = (self._now_ms() - running.begun_ms) / 1000
                self._listener.cleaned(key, cleaning, seconds)
                running.look()
        except UNCLEANABLE as problem:
            self._ended(running)
            self._set_uncleanable(key, running.log, problem)
            running.look()
        except KafkaError as problem:
            self._ended(running)
            has_reason = cleaning.is_outdated or self._is_paused(key)
            if not has_reason and running.worker in self._workers:
                self._failed[running.log] = None
                self._listener.round_failed(key, problem)
        except Exception:
            self._ended(running)
            raise
        else:
            self._work(running, work)

    def _ended(self, running: _Running) -> None:
        key, log, cleaning, worker = running.key, running.log, running.cleaning, running.worker
        del self._running[log]
        if worker in self._workers:
            self._idle.append(worker)
        elif not self._is_stopped:
            self._executor.submit(worker.close)
        if cleaning.files:
            self._remove_later(key, cleaning.files)
        if self._logs.get(key) is log and cleaning.clean_below is not None:
            log.clean_below = cleaning.clean_below

    def _work(self, running: _Running, work: Callable[[], object]) -> None:
        """Have *work* done; errors of Kafka's kind go to the round, those of the disk to the directory."""
        problems: list[KafkaError] = []

        def run() -> None:
            try:
                work()
            except KafkaError as error:
                problems.append(error)

        def finished(error: BaseException | None) -> None:
            if error is None:
                self._go_on(running, problems[0] if problems else None)
            elif isinstance(error, Exception):
                self._go_on(running, error)

        self._in_executor(self._where[running.key], run, finished)

    def _set_uncleanable(self, key: TopicPartition, log: UnifiedLog, error: KafkaError) -> None:
        self._uncleanable[log] = error
        self._listener.set_aside(key, error)


def _is_clean(log: UnifiedLog) -> bool:
    """Return whether no sealed segment has anything dirty. Cheap: a broker may have thousands of such logs."""
    active = log.segments[-1].base_offset
    return log.log_start_offset >= active or (
        log.clean_below is not None and log.clean_below >= active
    )
