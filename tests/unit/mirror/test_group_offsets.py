"""Which committed offsets of a group kmirror commits at the target."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.errors import TopicAuthorizationFailed, UnknownMemberId
from mirrormaker.group_offsets import Decision, GroupSelection, LogRange, decide
from mirrormaker.settings import LinkSettings

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TEN_TO_HUNDRED = LogRange(10, 100)


def at(offset: int, metadata: str = "") -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, metadata)


def decided(
    source: int, target: int | None, log: LogRange = TEN_TO_HUNDRED, state: str = "Empty"
) -> Decision:
    there = {} if target is None else {T0: at(target)}
    return decide({T0: at(source)}, there, {T0: log}, state)


def committed(
    source: int, target: int | None, log: LogRange = TEN_TO_HUNDRED, state: str = "Empty"
) -> int | None:
    commits = decided(source, target, log, state).commits
    return commits[T0].offset if commits else None


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (50, None, 50),
        (50, 49, 50),
        (100, None, 100),
        (10, None, 10),
        (50, 50, None),
        (50, 51, None),
        (0, 51, None),
    ],
)
def test_an_offset_is_copied_as_it_is_and_never_backwards(
    source: int, target: int | None, expected: int | None
) -> None:
    assert committed(source, target) == expected
    assert not decided(source, target).clamped


@pytest.mark.parametrize("state", ["Empty", "Dead"])
def test_a_group_without_members_is_copied(state: str) -> None:
    assert committed(50, None, state=state) == 50


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance", ""])
def test_a_group_with_members_at_the_target_is_never_moved(state: str) -> None:
    found = decided(50, 20, state=state)
    assert not found.commits
    assert str(found) == (
        f"has members at the target ({state or 'unknown'}): its offsets there are not changed"
    )


def test_an_offset_beyond_the_log_end_is_clamped_and_advances_later() -> None:
    found = decided(120, 50)
    assert found.commits == {T0: at(100)}
    assert str(found) == (
        "clamped to the target's log end: t-0 (committed 120 at the source, the target's log ends at 100)"
    )
    again = decided(120, 100)
    assert not again.commits
    assert str(again) == str(found), "it is still clamped, although nothing is committed"
    assert committed(120, 100, LogRange(10, 130)) == 120


def test_no_offset_is_committed_to_an_empty_log_that_the_source_is_beyond() -> None:
    found = decided(120, None, LogRange(0, 0))
    assert not found.commits
    assert found.clamped == {T0: (120, 0)}
    assert committed(0, None, LogRange(0, 0)) == 0


def test_an_offset_below_the_log_start_is_not_raised() -> None:
    found = decided(5, None)
    assert found.commits == {T0: at(5)}
    assert str(found) == (
        "not in the target's log, auto.offset.reset will decide: "
        "t-0 (committed 5 at the source, the target's log starts at 10)"
    )
    assert not str(decided(5, 20)), "the target's own offset stays"


def test_metadata_is_copied_and_the_leader_epoch_of_the_source_is_not() -> None:
    found = decide(
        {T0: OffsetAndMetadata(50, "note", 7), T1: OffsetAndMetadata(500, "far", 7)},
        {},
        {T0: TEN_TO_HUNDRED, T1: TEN_TO_HUNDRED},
        "Dead",
    )
    assert found.commits == {
        T0: OffsetAndMetadata(50, "note", None),
        T1: OffsetAndMetadata(100, "far", None),
    }


def test_a_partition_without_a_known_log_is_left_alone() -> None:
    assert decide({T0: at(50), T1: at(50)}, {}, {T1: TEN_TO_HUNDRED}, "Empty").commits == {
        T1: at(50)
    }


def test_a_report_names_the_partitions_that_differ_most() -> None:
    source = {TopicPartition("t", n): at(101 + n) for n in range(5)}
    found = decide(source, {}, dict.fromkeys(source, TEN_TO_HUNDRED), "Empty")
    text = str(found)
    assert text.index("t-4") < text.index("t-3") < text.index("t-2")
    assert text.endswith("and 2 more")
    assert "t-1" not in text


def test_groups_are_selected_as_by_mirrormaker_2() -> None:
    everything = GroupSelection(LinkSettings())
    assert everything.wants("billing")
    assert not any(
        map(everything.wants, ("console-consumer-7", "connect-sink", "__internal")),
    )
    some = GroupSelection(LinkSettings(groups="a.*, b", groups_exclude="ab"))
    assert [name for name in ("a", "ab", "abc", "b", "bc") if some.wants(name)] == ["a", "abc", "b"]


def test_a_group_that_got_members_before_the_commit_is_one_with_members() -> None:
    found = decided(50, None)
    assert found.after_commit({T0: None}) is found
    rejected = found.after_commit(
        {T0: UnknownMemberId("no member"), T1: UnknownMemberId("no member")}
    )
    assert (rejected.members_state, rejected.rejected) == ("since now", "")
    assert str(rejected).startswith("has members at the target (since now)")


def test_other_rejections_are_named_with_the_first_partition() -> None:
    answers = {T1: TopicAuthorizationFailed("no"), T0: TopicAuthorizationFailed("no")}
    found = decided(50, None).after_commit(answers)
    assert found.rejected.startswith("2 offsets were rejected, t-0: TOPIC_AUTHORIZATION_FAILED")
    mixed = decided(50, None).after_commit({T0: None, T1: UnknownMemberId("gone"), **answers})
    assert mixed.rejected
    assert not mixed.members_state


OFFSETS = st.integers(0, 12)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    tps = [TopicPartition("t", n) for n in range(4)]
    some: Any = st.dictionaries(st.sampled_from(tps), st.builds(OffsetAndMetadata, OFFSETS))
    logs: Any = st.dictionaries(
        st.sampled_from(tps),
        st.tuples(OFFSETS, OFFSETS).map(lambda pair: LogRange(min(pair), max(pair))),
    )
    return draw(some), draw(some), draw(logs)


@given(cases(), st.sampled_from(["Empty", "Dead", "Stable", "PreparingRebalance"]))
def test_no_commit_is_beyond_the_source_beyond_the_log_or_backwards(
    case: tuple[Any, Any, Any], state: str
) -> None:
    source, target, logs = case
    found = decide(source, target, logs, state)
    assert not found.commits or state in ("Empty", "Dead")
    for tp, commit in found.commits.items():
        assert commit.offset <= source[tp].offset
        assert commit.offset <= logs[tp].end
        assert tp not in target or commit.offset > target[tp].offset
    after = {**target, **found.commits}
    assert not decide(source, after, logs, state).commits
    if state in ("Empty", "Dead"):
        for tp in source.keys() & logs.keys():
            log = logs[tp]
            reachable = log.start < log.end or source[tp].offset <= log.end
            least = min(source[tp].offset, log.end)
            assert not reachable or after[tp].offset >= least
