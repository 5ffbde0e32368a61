"""What is compared, what lags and what has aged out is decided once and never mixed up."""

from __future__ import annotations

import pytest

from kclient.types import TopicPartition
from spark_jobs.cut import LogRange, PartitionCut, freeze


def cut_of(source: LogRange, target: LogRange | None) -> PartitionCut:
    tp = TopicPartition("t", 0)
    (cut,) = freeze({} if target is None else {tp: target}, {tp: source})
    return cut


def test_equal_ranges_are_compared_whole() -> None:
    cut = cut_of(LogRange(0, 10), LogRange(0, 10))
    assert (cut.low, cut.high, cut.lagging, cut.aged_out) == (0, 10, 0, 0)


def test_what_the_target_has_not_received_is_lag() -> None:
    cut = cut_of(LogRange(0, 10), LogRange(0, 7))
    assert (cut.compared, cut.lagging) == (7, 3)


def test_a_partition_the_target_lacks_lags_by_all_it_holds() -> None:
    cut = cut_of(LogRange(5, 10), None)
    assert (cut.compared, cut.lagging, cut.aged_out) == (0, 5, 0)


def test_an_empty_target_partition_lags_and_nothing_has_aged_out() -> None:
    cut = cut_of(LogRange(5, 10), LogRange(0, 0))
    assert (cut.low, cut.compared, cut.lagging, cut.aged_out) == (5, 0, 5, 0)


def test_what_retention_removed_from_the_source_is_not_compared() -> None:
    cut = cut_of(LogRange(4, 10), LogRange(0, 10))
    assert (cut.low, cut.high, cut.only_target, cut.aged_out) == (4, 10, (0, 4), 4)


def test_what_retention_removed_from_the_target_only_has_aged_out() -> None:
    cut = cut_of(LogRange(0, 10), LogRange(4, 10))
    assert (cut.low, cut.high, cut.aged_out) == (4, 10, 4)


def test_a_target_that_holds_more_than_the_source_is_cut_at_the_source_and_its_tail_known() -> None:
    cut = cut_of(LogRange(0, 10), LogRange(0, 12))
    assert (cut.high, cut.target_end, cut.lagging) == (10, 12, 0)


def test_two_empty_sides_compare_nothing() -> None:
    cut = cut_of(LogRange(0, 0), LogRange(0, 0))
    assert (cut.compared, cut.lagging, cut.aged_out) == (0, 0, 0)


@pytest.mark.parametrize(
    ("source", "target", "same"),
    [
        (LogRange(0, 0), LogRange(0, 0), True),
        (LogRange(0, 0), None, True),
        (LogRange(400, 400), LogRange(400, 400), True),
        (LogRange(400, 400), LogRange(0, 0), False),
        (LogRange(400, 400), None, False),
        (LogRange(0, 0), LogRange(400, 400), False),
    ],
)
def test_two_logs_without_an_offset_in_scope_end_at_the_same_offset_or_not(
    source: LogRange, target: LogRange | None, same: bool
) -> None:
    """The cut takes a log that was never written as one that begins where the other does: its end is not kept."""
    cut = cut_of(source, target)
    assert (cut.scope, cut.same_end) == (0, same)


@pytest.mark.parametrize(
    ("source", "target", "same"),
    [
        (0, 0, True),
        (0, None, True),
        (400, 0, False),
        (400, None, False),
        (0, 7, False),
        (400, 7, False),
        (400, 400, False),
    ],
)
def test_the_ends_of_a_renumbered_target_are_the_same_only_if_neither_log_was_written_to(
    source: int, target: int | None, same: bool
) -> None:
    """Above 0 they show nothing: a target of five records may be a copy of a million."""
    tp = TopicPartition("t", 0)
    there = {} if target is None else {tp: LogRange(target, target)}
    (cut,) = freeze(there, {tp: LogRange(source, source)}, renumbered=True)
    assert cut.same_end is same


def test_a_partition_that_only_the_target_has_is_compared_with_an_empty_log() -> None:
    (cut,) = freeze({TopicPartition("t", 1): LogRange(3, 8)}, {})
    assert (cut.low, cut.high, cut.target_end, cut.scope) == (3, 3, 8, 5)
    assert not cut.on_source


def test_offsets_between_the_targets_end_and_the_sources_start_are_lost() -> None:
    cut = cut_of(LogRange(50, 60), LogRange(0, 20))
    assert (cut.lost, cut.only_target, cut.lagging) == ((20, 50), (0, 20), 10)


def test_every_offset_of_either_log_is_in_one_part_of_the_scope() -> None:
    bounds = [(low, high) for low in range(6) for high in range(low, 6)]
    for source in bounds:
        for target in bounds:
            cut = cut_of(LogRange(*source), LogRange(*target))
            offsets = {*range(*source), *range(*target), *range(*cut.lost)}
            assert cut.scope == len(offsets), cut
