"""Which offsets a query of the data source reads, in which tasks, and which losses it reports."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.types import TopicPartition
from spark_jobs.cut import OffsetRange
from spark_jobs.source.planning import (
    divide,
    from_json,
    limit_offsets,
    plan_batch,
    plan_micro_batch,
    to_json,
)

A, B, C = (TopicPartition("t", n) for n in range(3))


def bounds(ranges: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.low, each.high) for each in ranges]


def test_equal_offsets_have_equal_text() -> None:
    offsets = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    text = json.dumps(to_json(offsets))
    assert text == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'
    assert from_json(json.loads(text)) == offsets
    assert json.dumps(to_json(dict(reversed(offsets.items())))) == text


def test_a_batch_reads_between_its_offsets() -> None:
    plan = plan_batch({A: 3, B: 5}, {A: 9, B: 5}, {A: 0, B: 5}, {A: 10, B: 5})
    assert bounds(plan.ranges) == [(0, 3, 9), (1, 5, 5)]
    assert plan.losses == []


def test_a_batch_reports_what_the_log_does_not_have() -> None:
    plan = plan_batch({A: 3, B: 5}, {A: 9, B: 8}, {A: 4, B: 0}, {A: 10, B: 7})
    assert bounds(plan.ranges) == [(0, 4, 9), (1, 5, 7)]
    assert plan.losses == [
        "the log of t-0 starts at 4, above offset 3",
        "the log of t-1 ends at 7, below offset 8",
    ]


def test_a_batch_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="the starting offset 3 of t-0 is above its ending"):
        plan_batch({A: 3}, {A: 2}, {A: 0}, {A: 9})


def test_a_micro_batch_reads_new_partitions_from_their_start() -> None:
    plan = plan_micro_batch({A: 3}, {A: 9, B: 4}, {A: 0, B: 0}, {A: 9, B: 4})
    assert bounds(plan.ranges) == [(0, 3, 9), (1, 0, 4)]
    assert plan.losses == []


@pytest.mark.parametrize(
    ("start", "end", "starts", "ends", "ranges", "loss"),
    [
        ({A: 3}, {A: 9}, {A: 5}, {A: 9}, [(0, 5, 9)], "starts at 5, above the next offset 3"),
        ({A: 3}, {A: 9}, {A: 10}, {A: 12}, [(0, 10, 10)], "starts at 10, above"),
        ({A: 3}, {A: 9}, {A: 0}, {A: 7}, [(0, 3, 7)], "ends at 7, below offset 9"),
        ({A: 9}, {A: 3}, {A: 0}, {A: 3}, [], "went back from 9 to 3"),
        ({}, {B: 4}, {B: 2}, {B: 4}, [(1, 2, 4)], "t-1 starts at 2, above the next offset 0"),
        ({}, {B: 4}, {}, {}, [], "t-1 is gone; records below offset 4"),
        ({A: 3, B: 1}, {B: 1}, {B: 0}, {B: 1}, [(1, 1, 1)], "t-0 is gone; records above offset 3"),
    ],
)
def test_a_micro_batch_reports_lost_records(
    start: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    ranges: list[tuple[int, int, int]],
    loss: str,
) -> None:
    plan = plan_micro_batch(start, end, starts, ends)
    assert bounds(plan.ranges) == ranges
    (found,) = plan.losses
    assert loss in found


def test_a_partition_without_new_records_loses_none_when_its_log_is_emptied() -> None:
    assert plan_micro_batch({A: 5}, {A: 5}, {A: 5}, {A: 5}).losses == []


def test_ranges_are_divided_into_tasks() -> None:
    whole = [OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 5, 5), OffsetRange("t", 2, 0, 10)]
    assert bounds(divide(whole, None, None)) == [(0, 0, 100), (2, 0, 10)]
    assert bounds(divide(whole, 2, None)) == [(0, 0, 100), (2, 0, 10)]
    assert bounds(divide(whole, 3, None)) == [(0, 0, 50), (0, 50, 100), (2, 0, 10)]
    assert bounds(divide(whole, None, 40)) == [(0, 0, 33), (0, 33, 66), (0, 66, 100), (2, 0, 10)]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 40),
)
def test_tasks_have_every_offset_once(
    sizes: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    ranges = [OffsetRange("t", n, low, low + size) for n, (low, size) in enumerate(sizes)]
    pieces = divide(ranges, min_partitions, max_records)
    found = [(p.partition, offset) for p in pieces for offset in range(p.low, p.high)]
    assert found == [(r.partition, offset) for r in ranges for offset in range(r.low, r.high)]
    assert all(piece.high > piece.low for piece in pieces)
    if max_records is not None:
        assert all(piece.high - piece.low <= max_records for piece in pieces)


def test_a_limit_is_divided_in_proportion_and_starves_no_partition() -> None:
    latest = {A: 1000, B: 11, C: 7}
    assert limit_offsets(100, {A: 0, B: 10, C: 7}, latest, {}) == {A: 99, B: 11, C: 7}
    assert limit_offsets(10, {A: 0}, {A: 20, B: 20}, {B: 10}) == {A: 6, B: 13}
    assert limit_offsets(100, {A: 0}, {A: 20}, {}) == {A: 20}


@settings(deadline=None)
@given(
    st.integers(1, 1 << 62),
    st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 1 << 40), min_size=1),
    st.integers(0, 1 << 40),
)
def test_a_limited_micro_batch_always_goes_on(
    limit: int, start: dict[TopicPartition, int], more: int
) -> None:
    latest = {tp: offset + more for tp, offset in start.items()}
    ends = limit_offsets(limit, start, latest, {})
    assert all(start[tp] <= ends[tp] <= latest[tp] for tp in start)
    assert ends == start if more == 0 else all(ends[tp] > start[tp] for tp in start)
