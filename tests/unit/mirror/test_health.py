"""The states of `kmirror status` and its exit codes."""

from __future__ import annotations

import itertools

import pytest

from mirrormaker.health import EXIT_CODES, Finding, Health, exit_code, judge, problem_of
from mirrormaker.lineage import Lineage
from mirrormaker.link_state import Cause, GapPolicy, LastBatch, LogEnds

SAME = LastBatch(9, 10, 7)


def ends(source_end: int, target_end: int, *, high_watermark: int = -1) -> LogEnds:
    return LogEnds(0, source_end, 0, target_end, source_high_watermark=high_watermark)


def health(before: LogEnds, now: LogEnds, max_lag: int | None = None) -> Health:
    return judge(before, now, None, max_lag=max_lag).health


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (ends(10, 10), ends(10, 10), Health.IN_SYNC),
        (ends(10, 5), ends(12, 12), Health.IN_SYNC),
        (ends(10, 5), ends(10, 6), Health.COPYING),
        (ends(10, 10), ends(12, 10), Health.COPYING),
        (ends(10, 5), ends(10, 5), Health.BEHIND),
        (ends(10, 5), ends(20, 5), Health.BEHIND),
        (ends(10, 10, high_watermark=12), ends(10, 10, high_watermark=12), Health.OPEN),
        (ends(10, 10, high_watermark=12), ends(11, 11, high_watermark=12), Health.COPYING),
        (ends(10, 8, high_watermark=12), ends(10, 8, high_watermark=12), Health.BEHIND),
        (ends(10, 10), ends(10, 10, high_watermark=12), Health.COPYING),
    ],
)
def test_a_partition_is_judged_from_two_readings(
    before: LogEnds, now: LogEnds, expected: Health
) -> None:
    assert health(before, now) is expected


@pytest.mark.parametrize(
    ("source", "target", "expected", "detail"),
    [
        ((0, 100), (100, 100), Health.EMPTIED, "100 offsets from 0 on"),
        ((0, 100), (40, 40), Health.BEHIND, "40 offsets from 0 on"),
        ((0, 100), (50, 100), Health.STARTS_LATER, "50 offsets from 0 on"),
        ((30, 100), (50, 100), Health.STARTS_LATER, "20 offsets from 30 on"),
        ((0, 100), (50, 90), Health.BEHIND, "50 offsets from 0 on"),
        ((50, 100), (50, 100), Health.IN_SYNC, ""),
        ((100, 100), (0, 100), Health.IN_SYNC, ""),
        ((100, 100), (100, 100), Health.IN_SYNC, ""),
        ((100, 100), (0, 0), Health.IN_SYNC, ""),
        ((5, 9), (0, 0), Health.BEHIND, ""),
    ],
)
def test_a_target_without_what_the_source_still_has_is_not_in_sync(
    source: tuple[int, int], target: tuple[int, int], expected: Health, detail: str
) -> None:
    """By DeleteRecords, or a shorter retention. The lag counts from the target's end, and is 0."""
    now = LogEnds(*source, *target)
    found = judge(now, now, None, max_lag=None)
    assert found.health is expected
    assert detail in found.detail
    assert bool(detail) == bool(found.detail)


def test_an_emptied_target_that_copies_on_is_no_success() -> None:
    before, now = LogEnds(0, 100, 40, 40), LogEnds(0, 100, 60, 60)
    assert health(before, now) is Health.EMPTIED
    assert health(before, LogEnds(0, 100, 40, 60)) is Health.COPYING


def test_a_compacted_topic_may_have_no_record_where_its_log_starts() -> None:
    """The cleaner removes records and leaves the log start: a copy starts at the first batch that is left."""
    later, emptied = LogEnds(0, 100, 50, 100), LogEnds(0, 100, 100, 100)
    assert judge(later, later, None, max_lag=None, compacted=True) == Finding(Health.IN_SYNC)
    found = judge(emptied, emptied, None, max_lag=None, compacted=True)
    assert found.health is Health.EMPTIED


def test_a_lag_over_the_limit_is_named_even_while_it_shrinks() -> None:
    assert health(ends(10, 2), ends(10, 5), max_lag=5) is Health.COPYING
    assert health(ends(10, 2), ends(10, 5), max_lag=4) is Health.LAGGING
    assert health(ends(10, 10, high_watermark=20), ends(10, 10, high_watermark=20), 9) is (
        Health.LAGGING
    )


def problem(at: LogEnds, policy: GapPolicy = GapPolicy.FAIL, **named: object) -> Cause | None:
    found = problem_of(at, named.pop("lineage", Lineage()), policy, compacted=bool(named))  # type: ignore[arg-type]
    return None if found is None else found.cause


def test_a_problem_is_what_stops_a_link() -> None:
    other = LastBatch(9, 10, 8)
    assert problem(LogEnds(0, 20, 0, 10, SAME, SAME)) is None
    assert problem(LogEnds(0, 20, 0, 10, SAME, other)) is Cause.DIVERGED
    assert problem(LogEnds(0, 20, 0, 10, SAME, other), compacted=True) is None
    assert problem(LogEnds(0, 20, 0, 10, LastBatch(9, 12, 7), SAME)) is Cause.STRADDLES
    assert problem(LogEnds(0, 9, 0, 10, None, SAME)) is Cause.TARGET_AHEAD
    assert problem(LogEnds(12, 20, 0, 10, None, SAME)) is Cause.RETENTION
    assert problem(LogEnds(12, 20, 0, 10, None, SAME), GapPolicy.SKIP) is None
    same = LogEnds(0, 20, 0, 10, SAME, SAME)
    assert problem(same, lineage=Lineage("new", "old")) is Cause.RECREATED
    aged = LogEnds(10, 20, 0, 10, None, SAME)
    assert problem(aged, lineage=Lineage("id", "", is_proven=False)) is Cause.UNPROVEN


def test_a_problem_is_stopped_whatever_the_numbers_are() -> None:
    found = problem_of(LogEnds(0, 9, 0, 10, None, SAME), Lineage(), GapPolicy.FAIL, compacted=False)
    judged = judge(ends(9, 10), ends(9, 10), found, max_lag=None)
    assert judged == Finding(Health.STOPPED, str(found))


def test_the_worst_state_is_the_exit_code() -> None:
    assert exit_code([]) == 0
    assert {health: exit_code([health]) for health in Health} == EXIT_CODES
    rank = {0: 0, 4: 1, 3: 2, 5: 3}
    for one, other in itertools.product(Health, Health):
        expected = max(EXIT_CODES[one], EXIT_CODES[other], key=rank.__getitem__)
        assert exit_code([one, other]) == expected
