"""Resets of committed offsets: where each scenario leads, what is clipped and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.admin.offset_resets import (
    LogOffsets,
    OffsetChange,
    ResetError,
    Scenario,
    Target,
    plan_reset,
    refusal,
    select_partitions,
)
from kclient.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOG = LogOffsets(10, 20, 15)


def planned(
    scenario: Scenario, number: int = 0, current: int | None = 12, log: LogOffsets = LOG
) -> OffsetChange:
    committed = {} if current is None else {T0: current}
    (change,) = plan_reset("g", {T0: Target(scenario, number)}, committed, {T0: log})
    return change


@pytest.mark.parametrize(
    ("scenario", "number", "current", "new"),
    [
        (Scenario.EARLIEST, 0, 12, 10),
        (Scenario.LATEST, 0, 12, 20),
        (Scenario.EARLIEST, 2, 12, 12),
        (Scenario.LATEST, -3, None, 17),
        (Scenario.CURRENT, 0, 12, 12),
        (Scenario.CURRENT, 0, 5, 5),  # below the log: not clipped, as in Kafka
        (Scenario.OFFSET, 10, 12, 10),
        (Scenario.OFFSET, 20, None, 20),
        (Scenario.SHIFT, 8, 12, 20),
        (Scenario.SHIFT, -2, 12, 10),
        (Scenario.SHIFT, 0, 12, 12),
        (Scenario.TIME, 1, 12, 15),
    ],
)
def test_an_offset_inside_the_log_is_taken_as_it_is(scenario, number, current, new):
    change = planned(scenario, number, current)
    assert (change.new, change.reason) == (new, "")
    assert change.change == (None if current is None else new - current)


@pytest.mark.parametrize(
    ("scenario", "number", "current", "new", "reason"),
    [
        (Scenario.OFFSET, 21, 12, 20, "offset 21 is higher than the latest offset of t-0: set to 20"),
        (Scenario.OFFSET, -1, 12, 10, "offset -1 is lower than the earliest offset of t-0: set to 10"),
        (Scenario.SHIFT, 9, 12, 20, "offset 21 is higher than the latest offset of t-0: set to 20"),
        (Scenario.SHIFT, -3, 12, 10, "offset 9 is lower than the earliest offset of t-0: set to 10"),
        (Scenario.SHIFT, 0, 5, 10, "offset 5 is lower than the earliest offset of t-0: set to 10"),
        (Scenario.SHIFT, 1 << 80, 12, 20, f"offset {(1 << 80) + 12} is higher than the latest offset"),
        (Scenario.CURRENT, 0, None, 20, "t-0 has no committed offset: set to its end, 20"),
    ],
)  # fmt: skip
def test_an_offset_that_is_not_the_wanted_one_has_a_reason(scenario, number, current, new, reason):
    change = planned(scenario, number, current)
    assert change.new == new
    assert change.reason.startswith(reason)


def test_a_time_after_the_last_record_is_the_end():
    change = planned(Scenario.TIME, 1, log=LogOffsets(10, 20))
    assert change.new == 20
    assert change.reason == "t-0 has no record at or after the time: set to its end, 20"


def test_the_first_record_of_a_time_may_be_offset_0():
    assert planned(Scenario.TIME, 1, log=LogOffsets(0, 20, 0)).new == 0


def test_a_shift_needs_a_committed_offset():
    with pytest.raises(ResetError, match="group 'g' has no committed offset in t-0 to shift"):
        planned(Scenario.SHIFT, 1, None)


logs = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(
    lambda ends: LogOffsets(min(ends), max(ends))
)
tps = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 3))
cases = st.dictionaries(
    tps,
    st.tuples(
        st.builds(
            Target,
            st.sampled_from([Scenario.OFFSET, Scenario.SHIFT, Scenario.EARLIEST, Scenario.LATEST]),
            st.integers(-100, 100),
        ),
        st.integers(0, 60),
        logs,
    ),
)


@given(cases)
def test_every_partition_gets_the_offset_of_its_log_that_is_nearest_to_the_wanted_one(cases):
    changes = plan_reset(
        "g",
        {tp: target for tp, (target, _, _) in cases.items()},
        {tp: current for tp, (_, current, _) in cases.items()},
        {tp: log for tp, (_, _, log) in cases.items()},
    )
    assert [change.tp for change in changes] == sorted(cases)
    for change in changes:
        target, current, log = cases[change.tp]
        wanted = {
            Scenario.OFFSET: target.number,
            Scenario.SHIFT: current + target.number,
            Scenario.EARLIEST: log.start + target.number,
            Scenario.LATEST: log.end + target.number,
        }[target.scenario]
        nearest = min(range(log.start, log.end + 1), key=lambda offset: abs(offset - wanted))
        assert change.new == nearest
        assert bool(change.reason) == (change.new != wanted)
        assert change.current == current
        assert change.change is not None
        assert change.current + change.change == change.new


# --- partitions


def test_partitions_are_selected_once_and_in_order():
    known = {"t": {0, 1, 2}, "s": {0}}
    topics = [("t", (2, 1)), ("s", None), ("t", (1,))]
    assert select_partitions(topics, known) == [
        TopicPartition("s", 0), T1, TopicPartition("t", 2)
    ]  # fmt: skip
    assert select_partitions([("t", None)], known) == [T0, T1, TopicPartition("t", 2)]


def test_a_partition_or_topic_that_does_not_exist_is_refused():
    with pytest.raises(
        ResetError, match="topic 't' has no partition 3, 9; its partitions are 0 to 2"
    ):
        select_partitions([("t", (9, 1, 3))], {"t": {0, 1, 2}})
    for numbers in (None, (0,)):
        with pytest.raises(ResetError, match="topic 'u' does not exist"):
            select_partitions([("u", numbers)], {"t": {0}})


# --- groups


@pytest.mark.parametrize("state", ["Empty", "Dead"])
def test_a_group_without_members_may_be_reset(state):
    assert refusal("g", state, []) is None


def test_a_group_with_members_is_refused_with_their_client_ids():
    assert refusal("g", "Stable", ["b", "a", "a"]) == (
        "group 'g' is in state Stable, it has members (client ids: a, b): stop its consumers, wait until "
        "`kclient group describe g --state` shows Empty, and repeat"
    )
    many = refusal("g", "Stable", [f"c{n}" for n in range(9)])
    assert many is not None
    assert "(client ids: c0, c1, c2, c3, c4 and 4 more)" in many
    joining = refusal("g", "PreparingRebalance", [])
    assert joining is not None
    assert "its members rebalance" in joining
