"""Which topics can change their roles, and what a report of kaudit proves of them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kclient.types import TopicPartition
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.promotion import (
    PromotedPartition,
    Record,
    Refused,
    Stage,
    mirrors_of,
    not_at_the_cut,
    not_proven,
    stage_of,
    stages,
)
from mirrormaker.topics import MARK, Topic, TopicPair

ID, OTHER = UUID(int=1), UUID(int=2)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def topic(mark: str = "", copied: UUID | None = None, *, partitions: int = 2) -> Topic:
    overrides = {MARK: mark, SOURCE_TOPIC_ID: text_of(copied)}
    return Topic(partitions, ID, {name: value for name, value in overrides.items() if value})


def pair(name: str, source: Topic, target: Topic | None, *, copy: str) -> TopicPair:
    return TopicPair(
        name=name, source=source, target=target, copy=copy, source_id="E", target_id="W"
    )


def stage(source: Topic, target: Topic | None, *, copy: str = "t") -> Stage:
    return stage_of(pair("t", source, target, copy=copy))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (topic(), topic("E", ID), Stage.MIRRORED),
        (topic(), topic("E"), Stage.MIRRORED),
        (topic("W"), topic("E", ID), Stage.FENCED),
        (topic("W"), topic(), Stage.PROMOTED),
    ],
)
def test_the_marks_of_both_clusters_are_the_state(
    source: Topic, target: Topic, expected: Stage
) -> None:
    assert stage(source, target) is expected


@pytest.mark.parametrize(
    ("source", "target", "copy", "reason"),
    [
        (topic(), None, "t", "does not exist"),
        (topic(), topic("E", ID), "east.t", "the target's name is east.t"),
        (topic(), topic("E", ID, partitions=3), "t", "2 partitions at the source, 3"),
        (topic("N"), topic("E", ID), "t", "itself a mirror, of cluster N"),
        (topic(), topic("N", ID), "t", "a mirror of cluster N"),
        (topic(), topic(), "t", "not marked as a mirror"),
        (topic(), topic("E", OTHER), "t", "it was created again"),
        (topic("W"), topic("N"), "t", "a mirror of cluster N"),
    ],
)
def test_what_cannot_change_its_role_is_refused_with_the_reason(
    source: Topic, target: Topic | None, copy: str, reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        stage(source, target, copy=copy)


def test_a_refusal_names_every_topic_that_cannot_be_promoted() -> None:
    targets = {"a": None, "b": topic("E"), "c": None}
    with pytest.raises(Refused, match=r"a: .*; c: "):
        stages(pair(name, topic(), target, copy=name) for name, target in targets.items())
    with pytest.raises(Refused, match="no topic"):
        stages([])


def test_without_the_source_its_mirrors_are_found_by_their_mark() -> None:
    topics = {"a": topic("E"), "b": topic("N"), "c": topic(), "d": topic("E")}
    assert mirrors_of(topics, ["a", "c", "d"], None) == ["a", "d"]
    assert mirrors_of(topics, topics, "N") == ["b"]
    with pytest.raises(Refused, match="several clusters"):
        mirrors_of(topics, topics, None)
    with pytest.raises(Refused, match="no mirror topics"):
        mirrors_of(topics, ["c"], None)
    with pytest.raises(Refused, match="of cluster X"):
        mirrors_of(topics, topics, "X")


def test_a_target_that_is_behind_or_ahead_of_the_cut_is_named() -> None:
    assert not_at_the_cut({T0: 3, T1: 4}, {T0: 3, T1: 4}) == ""
    assert not_at_the_cut({T0: 3, T1: 4}, {T0: 2, T1: 5}) == (
        "t-0 ends at 2, not at 3; t-1 ends at 5, not at 4"
    )


def report(*, verdict: str = "CONSISTENT", target: str = "W", **proven: int) -> dict[str, Any]:
    partitions = [{"partition": int(name[1:]), "proven_up_to": end} for name, end in proven.items()]
    return {
        "verdict": verdict,
        "source": {"cluster_id": "E"},
        "target": {"cluster_id": target},
        "topics": [{"topic": "t", "partitions": partitions}],
    }


@pytest.mark.parametrize(
    ("found", "left_open"),
    [
        (report(p0=3, p1=9), ""),
        (report(p0=2, p1=4), "t-0 is proven up to 2, not to 3"),
        (report(p0=3), "t-1 is not in it"),
        (report(verdict="DIVERGED", p0=3, p1=4), "the verdict is DIVERGED"),
        (report(target="X", p0=3, p1=4), "the report compares clusters E and X"),
        ({"verdict": "ERROR"}, "the report compares clusters None and None"),
    ],
)
def test_a_report_proves_only_what_it_compared(found: dict[str, Any], left_open: str) -> None:
    cuts = {T0: 3, T1: 4}
    assert not_proven(found, cuts, source_id="E", target_id="W") == left_open


def test_records_left_behind_are_unknown_unless_every_source_partition_was_read() -> None:
    def made(*ends: int | None) -> int | None:
        partitions = tuple(PromotedPartition(T0, 5, end) for end in ends)
        return Record("east->west", "E", "W", "exchanged", partitions).left_behind

    assert made(5, 5) == 0
    assert made(5, 8) == 3
    assert made(5, None) is None
