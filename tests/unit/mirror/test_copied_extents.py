"""The extents of what a mirror has copied, and their records in the evidence topic."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from kclient.mirror_evidence import (
    Copied,
    CopiedTopic,
    Extent,
    encode,
    hashed_batches,
    header_hash,
)
from kclient.types import TopicPartition
from kclient.wire.record_writer import Record, encode_batch
from mirrormaker.copied_extents import CopiedExtents, Place

TP = TopicPartition("orders", 3)
TOPIC = CopiedTopic("east-id", "s", "t")
PLACE = Place(TP, TOPIC)


def appended(extents: CopiedExtents, *appends: tuple[int, int]) -> None:
    """Append batches of one offset: (log end, next offset) each; the hash of a batch is its offset + 1."""
    for follows, until in appends:
        batches = [(at, at + 1, at + 1) for at in range(follows, until)]
        extents.appended(PLACE, follows, batches, until)


def found(extents: CopiedExtents) -> list[tuple[int, int, int, int]]:
    return [(e.first, e.until, e.batches, e.read) for _, e in extents.due()]


def test_appends_that_follow_each_other_are_one_extent() -> None:
    extents = CopiedExtents(10)
    appended(extents, (0, 2), (2, 5))
    assert found(extents) == [(0, 5, 5, 15)]
    assert found(extents) == []
    appended(extents, (5, 6))
    assert found(extents) == [(0, 6, 6, 21)]


def test_an_extent_ends_where_a_batch_begins_in_another_window() -> None:
    extents = CopiedExtents(10, window=4)
    appended(extents, (2, 9))
    assert found(extents) == [(2, 4, 2, 7), (4, 8, 4, 26), (8, 9, 1, 9)]


def test_offsets_that_no_acknowledgement_proves_are_in_no_extent() -> None:
    extents = CopiedExtents(10)
    appended(extents, (0, 2), (5, 6))
    assert found(extents) == [(0, 2, 2, 3), (5, 6, 1, 6)]


def test_what_was_not_written_is_due_again_and_too_much_of_it_is_dropped() -> None:
    extents = CopiedExtents(2, window=1)
    appended(extents, (0, 3))
    due = extents.due()
    extents.not_written(due)
    assert extents.dropped == 1
    assert found(extents) == [(1, 2, 1, 2), (2, 3, 1, 3)]


def test_a_removed_partition_has_its_last_extent() -> None:
    extents = CopiedExtents(10)
    appended(extents, (0, 2))
    extents.removed(TP)
    appended(extents, (2, 3))
    assert found(extents) == [(0, 2, 2, 3), (2, 3, 1, 3)]


def test_each_acknowledged_batch_is_in_one_extent_of_its_window_only() -> None:
    """Invariants 1 to 3, over appends with rewinds, gaps and writes that fail."""
    for seed in range(200):
        rng = random.Random(seed)
        extents = CopiedExtents(1000, window=10)
        view = Copied()
        end, expected = 0, {}
        for _ in range(30):
            if rng.random() < 0.2:
                end += rng.randrange(1, 8)  # no acknowledgement arrived
            follows, batches = end, []
            for _ in range(rng.randrange(1, 5)):
                end += rng.choice((0, 0, 3))
                batches.append((end, rng.getrandbits(64)))
                end += rng.randrange(1, 6)
            expected.update(batches)
            extents.appended(PLACE, follows, [(b, h, h) for b, h in batches], end)
            due = extents.due() if rng.random() < 0.3 else []
            if rng.random() < 0.3:
                extents.not_written(due)
            else:
                view.add(encode(*place, each) for place, each in due)
        view.add(encode(*place, each) for place, each in extents.due())
        got = view.extents(TP, TOPIC)
        assert all(one.until <= next_.first for one, next_ in pairwise(got))
        covered = 0
        for each in got:
            inside = {at: h for at, h in expected.items() if each.first <= at < each.until}
            covered += len(inside)
            assert (len(inside), sum(inside.values()) % 2**64) == (each.batches, each.read)
            assert len({at // 10 for at in inside}) == 1
        assert covered == len(expected)


def test_a_later_extent_replaces_those_that_it_overlaps() -> None:
    one, two, three = (Extent(n, n + 10, 1, 1, 1) for n in (0, 10, 20))
    again = Extent(15, 25, 2, 9, 9)
    view = Copied()
    view.add(encode(TP, TOPIC, each) for each in (one, two, three, again))
    assert view.extents(TP, TOPIC) == [one, again]


def test_records_that_are_no_extents_are_counted() -> None:
    key, value = encode(TP, TOPIC, Extent(0, 10, 1, 2, 3))
    view = Copied()
    damaged = [
        (key, value.replace(b'"until":10', b'"until":0')),
        (key, value.replace(b'"schema_version":1', b'"schema_version":2')),
        (key, value.replace(b"0000000000000002", b"x")),
        (None, value),
        (key, b"{"),
    ]
    view.add([*damaged, (key, None), (key, value)])
    assert view.unreadable == len(damaged)
    assert view.extents(TP, TOPIC) == [Extent(0, 10, 1, 2, 3)]


def test_the_hash_covers_all_of_the_header_except_the_leader_epoch() -> None:
    batch = bytearray(encode_batch([Record(0, 1, b"k", b"v")], base_offset=5))
    whole = header_hash(batch, 0)
    for at in range(61):
        other = bytearray(batch)
        other[at] ^= 1
        assert (header_hash(other, 0) == whole) is (12 <= at < 16), at


@pytest.mark.parametrize("count", [1, 3])
def test_every_batch_of_a_run_is_hashed(count: int) -> None:
    batches = [encode_batch([Record(0, 1, b"k", b"v")], base_offset=7 * n) for n in range(count)]
    hashed = hashed_batches(memoryview(b"".join(batches)))
    assert [each.base_offset for each in hashed] == [7 * n for n in range(count)]
    assert [each.hash for each in hashed] == [header_hash(each, 0) for each in batches]
