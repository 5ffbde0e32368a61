"""A cleaner worker without a process, a listener that keeps what it learned, and a broker that compacts with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kbroker.common.topic_partition import TopicPartition
from kbroker.log.cleaner import Cleaner, CleanerSizes, RoundLimits, SourceSegment
from kbroker.log.cleaning_round import CleaningRound
from kbroker.log.disk import OS_DISK, Buffer, Disk
from kbroker.log.log_cleaner import CleanerConfig, Compaction
from kbroker.log.log_manager import LogManager
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import parse
from kclient.wire.errors import KafkaError
from kclient.wire.records import Record, encode_batch
from tests.kit.log_managers import ID, Broker, Pool


class InlineCleaner:
    """Reads *disk* where it is called: `CleanerWorker`."""

    def __init__(
        self,
        sizes: CleanerSizes,
        max_bytes_per_second: float = float("inf"),
        *,
        disk: Disk = OS_DISK,
    ) -> None:
        self.sizes = sizes
        self.max_bytes_per_second = max_bytes_per_second
        self.failing: list[KafkaError] = []
        """The next rounds fail with these, when they build their map."""
        self.failing_groups: list[KafkaError] = []
        """And with these when they filter a group."""
        self.between_buffers: Callable[[], None] | None = None
        """Called once, after the first buffer of the next group: what the owner's thread does meanwhile."""
        self.rounds = self.kills = 0
        self.is_ended = self.is_closed = False
        self._disk = disk

    def round(self, segments: Sequence[SourceSegment], limits: RoundLimits) -> Cleaner:
        """Return the cleaner of a new round."""
        assert not self.is_ended
        self.rounds += 1
        cleaner = Cleaner(self._disk, segments, limits, self.sizes, throttle=lambda _bytes: None)
        if self.failing:
            error = self.failing.pop()

            def build_offset_map() -> int:
                raise error

            cleaner.build_offset_map = build_offset_map  # type: ignore[method-assign]
        if self.between_buffers is not None:
            cleaner.cleaned = partial(  # type: ignore[method-assign]
                self._interrupted, cleaner.cleaned, self.between_buffers
            )
            self.between_buffers = None
        if self.failing_groups:
            problem = self.failing_groups.pop()

            def cleaned(*_args: object, **_fields: object) -> Iterator[Buffer]:
                raise problem

            cleaner.cleaned = cleaned  # type: ignore[method-assign]
        return cleaner

    @staticmethod
    def _interrupted(
        cleaned: Callable[..., Iterator[Buffer]],
        call: Callable[[], None],
        group: Sequence[SourceSegment],
    ) -> Iterator[Buffer]:
        for number, each in enumerate(cleaned(group, piece_bytes=1)):
            if number == 1:
                call()
            yield each

    def kill(self) -> None:
        """Count the call."""
        self.kills += 1

    def end(self) -> None:
        """Note the call."""
        self.is_ended = True

    def close(self) -> None:
        """Note the call."""
        self.is_closed = True


class RecordedRounds:
    """A `RoundListener` that keeps what it learned."""

    def __init__(self) -> None:
        self.done: list[tuple[TopicPartition, int | None]] = []
        """Partitions, and the checkpoints after their rounds."""
        self.failed: list[KafkaError] = []
        self.aside: dict[TopicPartition, KafkaError] = {}

    def cleaned(self, key: TopicPartition, cleaning: CleaningRound, seconds: float) -> None:
        """Keep the partition and its checkpoint."""
        self.done.append((key, cleaning.clean_below))

    def round_failed(self, key: TopicPartition, why: KafkaError) -> None:
        """Keep the reason."""
        self.failed.append(why)

    def set_aside(self, key: TopicPartition, why: KafkaError) -> None:
        """Keep the partition and the reason."""
        self.aside[key] = why


# A broker that compacts

SETTINGS: dict[str, Any] = {
    "segment_bytes": 160,
    "index_interval_bytes": 1,
    "cleanup_policy": ("compact",),
}
CONFIG = CleanerConfig(1, CleanerSizes(24 * 100, 0.9, 1 << 16), 1e9)


class CompactingBroker(Broker):
    """A broker with a cleaner that works in an executor of its own, at once or where it *holds_rounds*."""

    def __init__(
        self, *paths: Path, config: CleanerConfig = CONFIG, holds_rounds: bool = False
    ) -> None:
        self.rounds = RecordedRounds()
        self.workers: list[InlineCleaner] = []
        self.executor = Pool(holds=holds_rounds)
        compaction = Compaction(self._new_worker, self.executor, self.rounds)
        super().__init__(*paths, **SETTINGS, new_manager=partial(LogManager, compaction=compaction))
        self.dirs.configure_cleaner(config)

    def _new_worker(self, sizes: CleanerSizes, max_bytes_per_second: float) -> InlineCleaner:
        self.workers.append(InlineCleaner(sizes, max_bytes_per_second))
        return self.workers[-1]


def put(log: UnifiedLog, *keys: bytes, **fields: Any) -> None:
    """Append a batch for each key."""
    for key in keys:
        batch = encode_batch([Record(0, 1, key, b"v")], **fields)
        log.append_as_leader(batch, parse(batch), 0, 1)


def filled(broker: Broker, number: int = 0) -> UnifiedLog:
    """A log of four segments in which most of the first two is superseded."""
    log = broker.dirs.create("t", number, ID)
    put(log, b"a", b"b", b"c", b"d", b"a", b"b", b"e", b"f")
    log.flush()
    return log
