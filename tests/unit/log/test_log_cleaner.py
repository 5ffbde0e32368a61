"""Which logs are compacted when, what their checkpoint has, and what is set aside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.common.topic_partition import TopicPartition
from kbroker.log.cleaner import Cleaner, CleanerSizes
from kbroker.log.disk import OS_DISK
from kbroker.log.log_manager import LogManager
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import TRANSACTIONAL, parse
from kclient.wire.errors import KafkaError, UnknownServerError
from kclient.wire.records import Record, encode_batch
from tests.kit.log_managers import ID, Broker
from tests.kit.logs import records

SETTINGS = {"segment_bytes": 160, "index_interval_bytes": 1, "cleanup_policy": ("compact",)}
T0: TopicPartition = ("t", 0)


class CompactingBroker(Broker):
    """A broker with *count* cleaners that run in its pool, and the partitions that were set aside."""

    def __init__(self, *paths: Path, count: int = 1, **settings: Any) -> None:
        self.set_aside: dict[TopicPartition, KafkaError] = {}
        self.failing: list[KafkaError] = []
        cleaners = [self._make_cleaner] * count
        super().__init__(*paths, **{**SETTINGS, **settings}, new_manager=self._with(cleaners))

    def _with(self, cleaners: list[Any]) -> Callable[..., LogManager]:
        def new_manager(*args: Any, **fields: Any) -> LogManager:
            return LogManager(
                *args,
                **fields,
                cleaners=cleaners,
                on_uncleanable=self.set_aside.__setitem__,
            )

        return new_manager

    def _make_cleaner(self, segments: Any, limits: Any) -> Cleaner:
        cleaner = Cleaner(OS_DISK, segments, limits, CleanerSizes(24 * 100, 0.9, 1 << 16))
        if self.failing:
            error = self.failing.pop()

            def build_offset_map() -> int:
                raise error

            cleaner.build_offset_map = build_offset_map  # type: ignore[method-assign]
        return cleaner


def put(log: UnifiedLog, *keys: bytes, **fields: int) -> None:
    for key in keys:
        batch = encode_batch([Record(0, 1, key, b"v")], **fields)
        log.append_as_leader(batch, parse(batch), 0, 1)


def filled(broker: Broker, number: int = 0) -> UnifiedLog:
    """A log of four segments in which most of the first two is superseded."""
    log = broker.dirs.create("t", number, ID)
    put(log, b"a", b"b", b"c", b"d", b"a", b"b", b"e", b"f")
    log.flush()
    return log


def offsets(log: UnifiedLog) -> list[int]:
    return [offset for offset, _ in records(log)]


def cleaner_offsets(directory: Path) -> str:
    return (directory / "cleaner-offset-checkpoint").read_text()


@pytest.fixture
def broker(tmp_path: Path) -> CompactingBroker:
    broker = CompactingBroker(tmp_path / "a")
    broker.start()
    return broker


def test_a_log_that_is_due_is_compacted_and_its_checkpoint_written(
    broker: CompactingBroker, tmp_path: Path
) -> None:
    log = filled(broker)
    broker.dirs.compact(lambda _key: 8)
    assert offsets(log) == [2, 3, 4, 5, 6, 7]
    assert log.clean_below == 6
    broker.dirs.checkpoint({})
    assert cleaner_offsets(tmp_path / "a") == "0\n1\nt 0 6\n"
    # The files of the old segments are removed after file.delete.delay.ms.
    deleted = list((tmp_path / "a" / "t-0").glob("*.deleted"))
    assert deleted
    broker.now_ms += log.config.file_delete_delay_ms
    broker.dirs.remove_due()
    assert not [each for each in deleted if each.exists()]
    # A start takes the checkpoint over.
    broker.dirs.close()
    again = CompactingBroker(tmp_path / "a").start().get("t", 0)
    assert again is not None
    assert again.clean_below == 6
    assert offsets(again) == [2, 3, 4, 5, 6, 7]


def test_what_is_not_committed_or_not_compacted_stays(broker: CompactingBroker) -> None:
    log = filled(broker)
    broker.dirs.compact(lambda _key: None)
    broker.dirs.compact(lambda _key: 3)
    assert offsets(log) == list(range(8))
    log.config = log.config.overridden({"cleanup.policy": "delete"})
    broker.dirs.compact(lambda _key: 8)
    assert offsets(log) == list(range(8))


def test_every_log_that_is_due_gets_its_round_with_one_cleaner(broker: CompactingBroker) -> None:
    logs = [filled(broker, number) for number in range(3)]
    broker.dirs.compact(lambda _key: 8)
    assert [log.clean_below for log in logs] == [6, 6, 6]


def test_a_truncation_lowers_the_checkpoint_before_the_next_append(
    broker: CompactingBroker, tmp_path: Path
) -> None:
    log = filled(broker)
    broker.dirs.compact(lambda _key: 8)
    broker.dirs.checkpoint({})
    log.truncate_to(4)
    assert log.clean_below == 4
    assert cleaner_offsets(tmp_path / "a") == "0\n1\nt 0 4\n"
    log.truncate_fully_and_start_at(0)
    assert cleaner_offsets(tmp_path / "a") == "0\n1\nt 0 0\n"


def test_a_topic_that_is_created_again_does_not_get_the_checkpoint_of_the_earlier_one(
    broker: CompactingBroker, tmp_path: Path
) -> None:
    filled(broker)
    broker.dirs.compact(lambda _key: 8)
    broker.dirs.checkpoint({})
    broker.dirs.delete("t", 0)
    again = broker.dirs.create("t", 0, ID)
    assert again.clean_below is None
    assert cleaner_offsets(tmp_path / "a") == "0\n0\n"


def test_a_checkpoint_above_the_end_of_the_log_counts_as_none(
    broker: CompactingBroker, tmp_path: Path
) -> None:
    filled(broker)
    broker.dirs.close()
    (tmp_path / "a" / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 9\n")
    log = CompactingBroker(tmp_path / "a").start().get("t", 0)
    assert log is not None
    assert log.clean_below is None


def test_a_damaged_log_is_set_aside_with_the_reason_and_others_are_compacted(
    broker: CompactingBroker,
) -> None:
    damaged, log = filled(broker, 0), filled(broker, 1)
    path = Path(damaged.segments[1].path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    broker.dirs.compact(lambda _key: 8)
    assert log.clean_below == 6
    assert damaged.clean_below is None
    assert list(broker.set_aside) == list(broker.dirs.uncleanable) == [T0]
    assert path.name in str(broker.set_aside[T0])
    assert not broker.failures
    put(damaged, b"x")  # it is served as before
    broker.dirs.delete("t", 0)
    broker.dirs.compact(lambda _key: 8)
    assert not broker.dirs.uncleanable


def test_a_log_that_begins_with_transactions_is_set_aside_and_not_tried_again(
    broker: CompactingBroker,
) -> None:
    log = broker.dirs.create("t", 0, ID)
    put(log, b"a", producer_id=5, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)
    put(log, b"a", b"a", b"a", b"a")
    log.flush()
    for _ in range(2):
        broker.dirs.compact(lambda _key: 5)
    assert "transactional" in str(broker.set_aside[T0])
    assert offsets(log) == list(range(5))


def test_a_cleaner_that_ends_within_a_round_is_no_fault_of_the_log(
    broker: CompactingBroker,
) -> None:
    log = filled(broker)
    broker.failing.append(UnknownServerError("the process ended"))
    broker.dirs.compact(lambda _key: 8)
    assert log.clean_below is None
    assert not broker.set_aside
    broker.dirs.compact(lambda _key: 8)
    assert log.clean_below == 6


def test_a_log_that_is_deleted_during_its_round_frees_the_cleaner(tmp_path: Path) -> None:
    broker = CompactingBroker(tmp_path / "a", holds=True)
    broker.start()
    filled(broker, 0)
    broker.dirs.compact(lambda _key: 8)
    broker.dirs.delete("t", 0)
    broker.pool.run()
    assert not broker.failures
    log = filled(broker, 1)
    broker.dirs.compact(lambda _key: 8)
    broker.pool.run()
    assert log.clean_below == 6
