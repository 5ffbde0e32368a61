"""What kmirror applies of kaudit's repair.json, and what it refuses by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from mirrormaker.command_exit import Refused
from mirrormaker.export_manifest import ExportedPartition, Manifest
from mirrormaker.failback_stage import Stage
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.repair import show_repair
from mirrormaker.repair_plan import SOURCE_DAMAGED, RepairPlan, read_plan, stage_of
from mirrormaker.topics import MARK, Topic, TopicPair
from spark_jobs.report import repair
from tests.kit.audit_faults import EVERY
from tests.kit.audit_reports import audited

SOURCE, TARGET, AGAIN = UUID(int=1), UUID(int=2), UUID(int=3)


def document(**changes: Any) -> dict[str, Any]:
    place = {"topic": "t", "target_topic": "t", "partition": 0}
    at = {"from": 5, "until": 7, "records": 2}
    return {
        "schema_version": 1,
        "renumbered": False,
        "source": {"cluster_id": "E"},
        "target": {"cluster_id": "W"},
        "copy": [{**place, "whole_windows": False, "ranges": [{**at}, {**at}]}],
        "not_repairable": [
            {**place, **at, "log": "target", "class": "extra", "reason": "delete it"},
            {**place, **at, "log": "source", "class": "gap", "reason": "gone"},
        ],
        "not_compared": {"aged_out": 3, "not_read": 1, "lagging": 9},
        **changes,
    }


def test_every_line_of_the_plan_is_printed() -> None:
    plan = read_plan(document())
    assert list(plan.lines()) == [
        "t: 2 ranges differ: is compared and, if needed, copied again",
        "only at the target, a copy of the topic exports and removes it: t-0 offsets 5-6 (extra, target): delete it",
        "CANNOT be repaired: t-0 offsets 5-6 (gap, source): gone",
        "4 offsets were not compared by the audit: the plan does not cover them",
    ]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (document(schema_version=2), "schema_version 2"),
        (document(renumbered=True), "offsets cannot be repaired"),
        ({"verdict": "CONSISTENT"}, "not a repair.json"),
        ([], "not a repair.json"),
        (document(copy=[{"topic": "t"}]), "not a repair.json"),
        (
            document(not_compared={"aged_out": float("inf"), "not_read": 0}),
            "not a repair.json",
        ),
    ],
)
def test_what_is_no_plan_for_kmirror_is_refused(found: Any, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        read_plan(found)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "no JSON", "[]"], ids=["nested", "text", "list"]
)
def test_a_file_that_is_no_plan_is_named(tmp_path: Path, content: str) -> None:
    plan, printed = tmp_path / "repair.json", list[str]()
    plan.write_text(content)
    nothing: Any = None  # no cluster is contacted
    showing = show_repair(nothing, nothing, nothing, plan, ".*", printed.append)
    with pytest.raises(StopIteration) as ended:
        showing.send(None)
    assert ended.value.value == (5, None)
    assert printed[0].startswith(f"refused: {plan}: ")


SOURCE_TOPIC = Topic(1, SOURCE, {}, {"cleanup.policy": "delete"})
MIRROR = Topic(
    1, TARGET, {MARK: "E", SOURCE_TOPIC_ID: text_of(SOURCE)}, {"cleanup.policy": "delete"}
)


def stage(
    target: Topic | None,
    manifest: Manifest | None = None,
    *,
    plan: RepairPlan | None = None,
    source: Topic = SOURCE_TOPIC,
    copy: str = "t",
    source_id: str = "E",
) -> Stage:
    pair = TopicPair(
        name="t", source=source, target=target, copy=copy, source_id=source_id, target_id="W"
    )
    return stage_of(plan or read_plan(document()), pair, manifest)


def test_the_export_of_this_plan_shows_how_far_the_repair_is() -> None:
    equal = ExportedPartition(0, 0, 9, 0, 9, None, 3, 0, ())
    one = Manifest("t", text_of(TARGET), "W", "E", text_of(SOURCE), 1, 1, (equal,))
    moved = replace(one, partitions=(replace(equal, first_unequal=4),))
    assert stage(MIRROR) is Stage.FENCED
    assert stage(MIRROR, moved) is Stage.FENCED
    assert stage(None, moved) is Stage.DELETED
    assert stage(replace(MIRROR, topic_id=AGAIN), moved) is Stage.MIRROR
    assert stage(MIRROR, one) is Stage.MIRROR


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source_id": "N"}, "the plan is of clusters E and W"),
        ({"copy": "east.t"}, "the plan is of the target's topic t, the flow copies to east.t"),
        ({"target": None}, "does not exist at the target"),
        ({"target": replace(MIRROR, overrides={})}, "is no mirror of the source's"),
        ({"target": replace(MIRROR, overrides={MARK: "E"})}, "is no mirror of the source's"),
        ({"source": replace(SOURCE_TOPIC, topic_id=AGAIN)}, "is no mirror of the source's"),
        ({"source": replace(SOURCE_TOPIC, effective={"cleanup.policy": "compact"})}, "compacted"),
    ],
)
def test_only_a_mirror_of_the_clusters_of_the_plan_is_repaired(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        stage(**{"target": MIRROR, **changes})


def test_the_plan_of_a_renamed_mirror_is_applied_to_that_name_only() -> None:
    renamed = {"topic": "t", "target_topic": "east.t", "partition": 0, "ranges": [{}]}
    plan = read_plan(document(copy=[renamed], not_repairable=[]))
    assert stage(MIRROR, plan=plan, copy="east.t") is Stage.FENCED
    with pytest.raises(Refused, match=r"topic east\.t, the flow copies to t"):
        stage(MIRROR, plan=plan)


def test_a_topic_with_a_damaged_batch_at_the_source_is_refused() -> None:
    row = document()["not_repairable"][1]
    plan = read_plan(document(not_repairable=[{**row, "reason": SOURCE_DAMAGED}]))
    with pytest.raises(Refused, match="--topics leaves it out"):
        stage(MIRROR, plan=plan)


@pytest.mark.parametrize("kind", EVERY)
def test_the_plan_of_an_audit_of_each_fault_is_understood_whole(kind: str) -> None:
    assert repair.SOURCE_DAMAGED == SOURCE_DAMAGED
    for seed in range(3):
        written = json.loads(json.dumps(repair.repair_plan(audited(seed, kind))))
        plan = read_plan(written)
        assert sum(plan.ranges.values()) == sum(len(each["ranges"]) for each in written["copy"])
        assert len(plan.removed) + len(plan.beyond) == len(written["not_repairable"])
        named = {each["topic"] for each in written["copy"]}
        assert named <= set(plan.topics)
