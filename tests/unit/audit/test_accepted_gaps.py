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
from spark_jobs.commands.accepted_gaps import AcceptedLine, Unmatched, accepted_here, gap_of
from spark_jobs.cut import LogRange
from spark_jobs.recreated_topics import EarlierCopy, RecreatedTopic, named_by_source, with_deleted
from spark_jobs.scope import Paired
from spark_jobs.snapshot import WHOLE_TOPIC, ClusterSnapshot
from spark_jobs.target_names import name_at_target
from tests.kit.audit_reports import audited

TP = TopicPartition("orders", 0)


def clusters(
    prefix: str = "", *partitions: TopicPartition
) -> tuple[ClusterSnapshot, ClusterSnapshot]:
    ranges = dict.fromkeys(partitions or (TP,), LogRange(0, 9))
    source = ClusterSnapshot("east", "a:1", "source", ranges)
    return source, replace(source, name="west", cluster_id="target", prefix=prefix)


def ledger_line(
    topic: str, partition: int = 0, *, source: str = "source", topic_id: str = ""
) -> AcceptedLine:
    entry = GapEntry(source, topic, partition, 2, 5, "retention", target_topic_id=topic_id)
    line = gap_of(json.dumps(entry.as_json()))
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
    reason = "in no partition in scope"
    assert found.unmatched == tuple(Unmatched(each.gap, reason) for each in lines[:3])
    assert found.notice == (
        "--accepted-gaps: 3 in no partition in scope, so without effect: "
        "orders-0 from 2 until 5, east.orders-1 from 2 until 5, east.orders-0 from 1 until 2"
    )
    assert accepted_here(lines * 2, *clusters("east.")).notice.endswith(", ...")


NONE, ONE, ANOTHER = ids = ("", "one", "another")


@given(*(st.sampled_from(ids) for _ in range(4)))
def test_a_line_of_the_ledger_explains_nothing_of_another_flow(
    of_line: str, of_source: str, topic_id: str, of_target: str
) -> None:
    """`kmirror gaps` prints the ledgers of all flows: of B to A, and of A to C, of which the topics have the same name.

    With B to A the source is another one, with A to C only the topic id.
    """
    source, target = clusters()
    source = replace(source, cluster_id=of_source)
    target = replace(target, topic_ids={"orders": of_target} if of_target else {})
    line = ledger_line("orders", source=of_line, topic_id=topic_id)
    found = accepted_here([line], source, target)
    if {of_line, of_source} == {ONE, ANOTHER}:
        assert not found.gaps
        expected = f"of another source cluster than {of_source}"
        assert found.unmatched == (Unmatched(line.gap, expected),)
    elif {topic_id, of_target} == {ONE, ANOTHER}:
        assert not found.gaps
        assert found.unmatched == (Unmatched(line.gap, "of another topic id at the target"),)
    elif topic_id and not of_target:
        assert found == ((), (), ((line.gap, topic_id),))
    else:
        assert found == ((line.gap,), (), ())


def test_the_topic_id_of_a_copy_is_that_of_its_name_at_the_target() -> None:
    source, target = clusters("east.")
    target = replace(target, topic_ids={"orders": "one"})
    lines = [ledger_line("east.orders", topic_id=each) for each in ("one", "another")]
    assert len(accepted_here(lines, source, target).gaps) == 1


def test_lines_without_effect_are_named_by_reason() -> None:
    source, target = clusters()
    target = replace(target, topic_ids={"orders": "one"})
    lines = [
        ledger_line("orders", source="other"),
        ledger_line("orders", topic_id="another"),
        ledger_line("orders", 7),
        ledger_line("elsewhere", source="other"),
    ]
    found = accepted_here(lines, source, target)
    assert not found.gaps
    assert found.notice == (
        "--accepted-gaps: 2 of another source cluster than source, so without effect: "
        "orders-0 from 2 until 5, elsewhere-0 from 2 until 5; "
        "1 of another topic id at the target, so without effect: orders-0 from 2 until 5; "
        "1 in no partition in scope, so without effect: orders-7 from 2 until 5"
    )


@pytest.mark.parametrize("name", ["source_cluster_id", "target_topic_id"])
@pytest.mark.parametrize("value", [None, 7, ["a"]])
def test_an_id_of_another_kind_is_no_unknown_one(name: str, value: object) -> None:
    line = {"topic": "orders", "partition": 0, "from": 2, "until": 5, "cause": "c", name: value}
    with pytest.raises(ValueError, match=name):
        gap_of(json.dumps(line))


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
    flows = [("source", "east.orders"), ("source", "orders"), ("other", "east.orders")]
    entries = [GapEntry(*flow, 0, 2, 5, "retention") for flow in flows]
    gaps.write_text("".join(f"{json.dumps(each.as_json())}\n" for each in entries))
    words = ["--source", "a:1", "--target", "b:1", "--topics", "orders", "--target-prefix", "east."]
    words += ["--accepted-gaps", str(gaps), "--out", str(tmp_path / "out"), "--quiet"]
    result = CliRunner().invoke(cli.kaudit, ["reconcile", *words, "--no-evidence"])
    assert (result.exit_code, found) == (0, [AcceptedGap(*TP, 2, 5, "retention")])
    assert "kaudit: --accepted-gaps: 1 in no partition in scope" in result.stderr
    assert "; 1 of another source cluster than source, so without effect" in result.stderr


def test_a_line_that_only_a_later_look_refuses_is_named_once_when_the_audit_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target does not know its topic id at the first look."""
    audited_later = audited(1, "corrupt")

    def reconciled(self: cli._Run) -> int:
        source, target = self._snapshots()
        target = replace(target, topic_ids={"orders": "another"})
        self._report(replace(audited_later, source=source, target=target))
        return 0

    monkeypatch.setattr(cli._Run, "_reconcile", reconciled)
    monkeypatch.setattr(scope, "paired", lambda *_, **__: Paired(*clusters(), (), None))
    gaps = tmp_path / "gaps.jsonl"
    entries = [
        GapEntry("source", "orders", number, 2, 5, "retention", target_topic_id="one")
        for number in (0, 7)
    ]
    gaps.write_text("".join(f"{json.dumps(each.as_json())}\n" for each in entries))
    words = ["--source", "a:1", "--target", "b:1", "--topics", "orders", "--quiet"]
    words += ["--accepted-gaps", str(gaps), "--out", str(tmp_path / "out"), "--no-evidence"]
    result = CliRunner().invoke(cli.kaudit, ["reconcile", *words])
    assert (result.exit_code, result.stderr.splitlines()) == (
        0,
        [
            "kaudit: --accepted-gaps: 1 in no partition in scope, so without effect: orders-7 from 2 until 5",
            "kaudit: --accepted-gaps: 1 of another topic id at the target, so without effect: "
            "orders-0 from 2 until 5",
        ],
    )
