"""A line of `--accepted-gaps` has effect for the partition that it means, and one without effect is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kclient.mirror_ledger import GapEntry
from kclient.types import TopicPartition
from spark_jobs import cli, scope
from spark_jobs.accounting import AcceptedGap
from spark_jobs.commands.accepted_gaps import AcceptedLine, accepted_here, gap_of
from spark_jobs.cut import LogRange
from spark_jobs.recreated_topics import EarlierCopy, RecreatedTopic, named_by_source, with_deleted
from spark_jobs.scope import Paired
from spark_jobs.snapshot import WHOLE_TOPIC, ClusterSnapshot
from spark_jobs.target_names import name_at_target

TP = TopicPartition("orders", 0)


def clusters(
    prefix: str = "", *partitions: TopicPartition
) -> tuple[ClusterSnapshot, ClusterSnapshot]:
    ranges = dict.fromkeys(partitions or (TP,), LogRange(0, 9))
    source = ClusterSnapshot("east", "a:1", "source", ranges)
    return source, replace(source, name="west", cluster_id="target", prefix=prefix)


def ledger_line(topic: str, partition: int = 0) -> AcceptedLine:
    line = gap_of(json.dumps(GapEntry("source", topic, partition, 2, 5, "retention").as_json()))
    assert line is not None
    return line


@given(st.sampled_from(["", "east.", "{}.from.east", "lineage."]), st.text("ab.", min_size=1))
def test_a_gap_of_the_ledger_is_one_of_the_audit(form: str, topic: str) -> None:
    tp = TopicPartition(topic, 3)
    found = accepted_here([ledger_line(name_at_target(form, topic), 3)], *clusters(form, tp))
    assert found.gaps == (AcceptedGap(*tp, 2, 5, "retention"),)
    assert (found.unmatched, found.notice) == ((), "")


def test_a_line_of_an_operator_has_the_name_of_the_audit() -> None:
    gap = AcceptedGap(*TP, 2, 5, "ticket 4711")
    line = gap_of('{"topic":"orders","partition":0,"from":2,"until":5,"cause":"ticket 4711"}')
    assert line == AcceptedLine(gap, at_target=False)
    assert accepted_here([line], *clusters("east.")).gaps == (gap,)


def test_the_gap_of_an_earlier_copy_is_none_of_the_later_topic() -> None:
    old = EarlierCopy("lineage.A.orders", "orders", "A")
    again = RecreatedTopic("orders", "B", "lineage.B.orders", (old,))
    later = TopicPartition("lineage.B.orders", 0)
    source, target = clusters("", TP, later)
    source = replace(source, ranges={TP: LogRange(0, 9)})
    target = named_by_source([again], target, [later.topic])
    source = with_deleted([again], source, target)
    lines = [ledger_line("orders"), ledger_line(later.topic)]
    found = accepted_here(lines, source, target)
    assert [each.topic for each in found.gaps] == ["lineage.A.orders", "orders"]
    assert not found.unmatched


@pytest.mark.parametrize("unreadable", [TP, TopicPartition(TP.topic, WHOLE_TOPIC)])
def test_a_partition_that_cannot_be_read_is_in_scope(unreadable: TopicPartition) -> None:
    source, target = clusters()
    source = replace(source, ranges={})
    target = replace(target, ranges={}, unreadable={unreadable: "no leader"})
    assert not accepted_here([ledger_line("orders")], source, target).unmatched


def test_gaps_without_effect_are_named() -> None:
    lines = [
        ledger_line("orders"),  # another form of name
        ledger_line("east.orders", 1),  # no such partition
        AcceptedLine(AcceptedGap("east.orders", 0, 1, 2, "c"), at_target=False),
        ledger_line("east.orders"),
    ]
    found = accepted_here(lines, *clusters("east."))
    assert found.unmatched == tuple(each.gap for each in lines[:3])
    assert found.notice == (
        "--accepted-gaps: 3 in no partition in scope, so without effect: "
        "orders-0 from 2 until 5, east.orders-1 from 2 until 5, east.orders-0 from 1 until 2"
    )
    assert accepted_here(lines * 2, *clusters("east.")).notice.endswith(", ...")


def test_an_audit_takes_the_gaps_and_names_the_others_with_quiet_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[AcceptedGap] = []

    def snapshots(self: cli._Run) -> int:
        self._snapshots()
        found.extend(self._options.accepted)
        return 0

    monkeypatch.setattr(cli._Run, "_reconcile", snapshots)
    monkeypatch.setattr(scope, "paired", lambda *_, **__: Paired(*clusters("east."), (), None))
    gaps = tmp_path / "gaps.jsonl"
    entries = [GapEntry("source", name, 0, 2, 5, "retention") for name in ("east.orders", "orders")]
    gaps.write_text("".join(f"{json.dumps(each.as_json())}\n" for each in entries))
    words = ["--source", "a:1", "--target", "b:1", "--topics", "orders", "--target-prefix", "east."]
    words += ["--accepted-gaps", str(gaps), "--out", str(tmp_path / "out"), "--quiet"]
    result = CliRunner().invoke(cli.kaudit, ["reconcile", *words, "--no-evidence"])
    assert (result.exit_code, found) == (0, [AcceptedGap(*TP, 2, 5, "retention")])
    assert "kaudit: --accepted-gaps: 1 in no partition in scope" in result.stderr
