"""What a task returns of logs that cannot be read in full: the rest, and exactly the offsets that are missing."""

from __future__ import annotations

import random

import pytest

from kclient.errors import NoCommittedOffset
from kclient.types import TopicPartition
from kclient.wire.batches import CONTROL as CONTROL_BATCH
from kclient.wire.batches import TRANSACTIONAL, BatchInfo, parse
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs.arrow_batches import (
    digest_batches,
    hash_batches,
    unread_part,
)
from spark_jobs.cut import OffsetRange
from spark_jobs.digest import WindowShape
from spark_jobs.engine import FailureKind
from spark_jobs.findings import ABORTED, CONTROL, KEYLESS
from spark_jobs.reader import Connection, Fetched, RangesLeft, Unread, _out_of_range

TP = TopicPartition("t", 1)


def batch(base: int, count: int) -> tuple[BatchInfo, memoryview]:
    data = encode_batch([Record(n, 0, None, b"v") for n in range(count)], base_offset=base)
    return parse(data), memoryview(data)


def accept(left: RangesLeft, base: int, count: int) -> list[int]:
    return [each.number for each in left.accept(TP, *batch(base, count))]


def test_a_batch_counts_for_every_range_that_it_overlaps() -> None:
    left = RangesLeft(
        [OffsetRange("t", 1, 30, 31), OffsetRange("t", 1, 5, 12), OffsetRange("t", 1, 12, 20)]
    )
    assert left.next_offset(TP) == 5
    assert accept(left, 0, 5) == []
    assert accept(left, 5, 5) == [1]
    assert left.next_offset(TP) == 10
    assert accept(left, 10, 5) == [1, 2]
    assert accept(left, 15, 10) == [2]
    assert left.next_offset(TP) == 30
    assert not left.ended(TP)
    assert accept(left, 40, 1) == []  # Compaction removed what was in the last range.
    assert left.ended(TP)
    assert not left.partitions


def test_transaction_markers_are_compared() -> None:
    """Without them each marker was a hole, and a gap where only the target has the log."""
    marker = [Record(0, 5, bytes((0, 0, 0, 1)), bytes(6))]
    ranges = [OffsetRange("t", 1, 7, 8)]
    found = []
    for attributes in (0, CONTROL_BATCH | TRANSACTIONAL):
        data = encode_batch(marker, base_offset=7, attributes=attributes)
        (fetched,) = RangesLeft(ranges).accept(TP, parse(data), memoryview(data))
        found.append(fetched)
    plain, control = (hash_batches([each], ranges) for each in found)
    (record,), (hashed,) = (next(each).to_pylist() for each in (plain, control))
    assert (hashed["flags"], record["flags"], hashed["timestamp_type"]) == (CONTROL, 0, 0)
    assert hashed["content"] != record["content"]


def test_aborted_records_have_their_mark_and_another_place_and_the_same_content() -> None:
    ranges = [OffsetRange("t", 1, 0, 4)]
    rows, digests = [], []
    for is_aborted in (False, True):
        (fetched,) = RangesLeft(ranges).accept(TP, *batch(0, 4), is_aborted=is_aborted)
        rows.append(next(hash_batches([fetched], ranges)).to_pylist())
        digests.append(next(digest_batches([fetched], ranges, WindowShape(10))).to_pylist()[0])
    assert [{row["flags"] for row in of} for of in rows] == [{KEYLESS}, {KEYLESS | ABORTED}]
    assert [row["content"] for row in rows[0]] == [row["content"] for row in rows[1]]
    differing = {name for name in digests[0] if digests[0][name] != digests[1][name]}
    assert differing == {"placed_low", "placed_high"}


def test_what_is_passed_is_yielded_for_no_range() -> None:
    left = RangesLeft([OffsetRange("t", 1, 0, 5), OffsetRange("t", 1, 8, 12)])
    left.pass_to(TP, 10)
    assert (left.next_offset(TP), left.end(TP)) == (10, 12)
    assert accept(left, 9, 6) == [1]
    assert left.ended(TP)


def test_a_batch_with_a_wrong_crc_is_unread_and_the_next_is_not() -> None:
    left = RangesLeft([OffsetRange("t", 1, 2, 8), OffsetRange("t", 1, 8, 30)])
    info, data = batch(0, 10)
    damaged = bytearray(data)
    damaged[-1] ^= 1
    first, second = left.accept(TP, info, memoryview(bytes(damaged)))
    assert isinstance(first, Unread)
    assert first[:4] == (0, 2, 8, FailureKind.UNDECODABLE)
    assert first.cause.startswith("t-1, batch at offset 0: CORRUPT_MESSAGE")
    assert second[:3] == (1, 8, 10)
    assert accept(left, 10, 30) == [1]
    assert left.ended(TP)


def test_deleted_offsets_are_unread_in_each_range_and_reading_continues_behind() -> None:
    left = RangesLeft(
        [OffsetRange("t", 1, 0, 10), OffsetRange("t", 1, 20, 30), OffsetRange("t", 1, 40, 50)]
    )
    accept(left, 0, 5)
    gone = [each[:3] for each in left.skip(TP, 25, FailureKind.DELETED, "retention")]
    assert gone == [(0, 5, 10), (1, 20, 25)]
    assert left.next_offset(TP) == 25
    (whole,) = left.accept(TP, *batch(23, 4))
    assert whole[:3] == (1, 25, 27), "a batch comes whole, also its deleted records"
    rest = [each[:3] for each in left.give_up([TP], FailureKind.UNREADABLE, "offline")]
    assert rest == [(1, 27, 30), (2, 40, 50)]
    assert not left.partitions


def test_a_log_start_that_can_not_be_read_makes_the_partition_unreadable_and_no_other() -> None:
    left = RangesLeft([OffsetRange("t", 1, 5, 9), OffsetRange("u", 0, 0, 3)])
    nowhere = Connection(
        "127.0.0.1:1", (("default.api.timeout.ms", "300"), ("request.timeout.ms", "200"))
    )
    problem = NoCommittedOffset("t-1: offset 5 is out of range")
    (unread,) = _out_of_range(nowhere, left, TP, problem)
    assert unread[:4] == (0, 5, 9, FailureKind.UNREADABLE)
    assert unread.cause.startswith("t-1: no broker could be reached")
    assert list(left.partitions) == [("u", 0)]


def test_an_error_concerns_the_partitions_that_it_names() -> None:
    left = RangesLeft(
        [OffsetRange("a.b", 1, 0, 1), OffsetRange("a.b", 10, 0, 1), OffsetRange("b", 1, 0, 1)]
    )
    assert left.named_in("fetch of a.b-1 at offset 7: gone") == [("a.b", 1)]
    assert left.named_in("a.b-10: there is no offset") == [("a.b", 10)]
    assert left.named_in("127.0.0.1:9092: connection refused") == []
    (unread,) = left.give_up([TopicPartition("b", 1)], FailureKind.UNREADABLE, "refused")
    assert unread.cause == "b-1: refused"


@pytest.mark.parametrize("seed", range(30))
def test_every_offset_of_every_range_is_fetched_or_unread_exactly_once(seed: int) -> None:
    rng = random.Random(seed)
    bounds = sorted(rng.sample(range(200), 8))
    ranges = [
        OffsetRange("t", 1, low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=True)
    ]
    left = RangesLeft(ranges)
    seen: set[tuple[int, int]] = set()
    while left.partitions:
        place, size = left.next_offset(TP), rng.randrange(1, 20)
        if rng.random() < 0.3:
            parts: list[Fetched | Unread] = list(
                left.skip(TP, place + size, FailureKind.DELETED, "")
            )
        else:
            base = max(0, place - rng.randrange(3))
            parts = list(left.accept(TP, *batch(base, place - base + size)))
            left.ended(TP)
        new = {(each.number, offset) for each in parts for offset in range(each.low, each.high)}
        assert not new & seen
        seen |= new
    assert seen == {
        (number, offset)
        for number, each in enumerate(ranges)
        for offset in range(each.low, each.high)
    }


def test_unread_parts_are_rows_of_digests_and_hashes_and_an_error_of_whole_records() -> None:
    ranges = [OffsetRange("t", 1, 0, 100)]
    info, data = batch(0, 10)
    undecodable = bytearray(data)
    undecodable[61] ^= 0x55  # the length of the first record
    fetched = [
        Fetched(0, 0, 10, info, data),
        Fetched(
            0, 10, 20, parse(undecodable)._replace(base_offset=10), memoryview(bytes(undecodable))
        ),
        Unread(0, 20, 30, FailureKind.DELETED, "t-1: retention"),
    ]
    (sums, unread) = digest_batches(fetched, ranges, WindowShape(100))
    assert [row["records"] for row in sums.to_pylist()] == [10]
    parts = [unread_part(row["unread"]) for row in unread.to_pylist()]
    assert [part[:3] for part in parts] == [
        (10, 20, FailureKind.UNDECODABLE),
        (20, 30, FailureKind.DELETED),
    ]
    assert parts[0][3].startswith("t-1, batch at offset 10: ")
    rows = [row for each in hash_batches(fetched, ranges) for row in each.to_pylist()]
    places = [unread_part(each["unread"])[0] if each["unread"] else each["offset"] for each in rows]
    assert places == [*range(10), 10, 20]
    assert sum(row["unread"] is not None for row in rows) == 2
