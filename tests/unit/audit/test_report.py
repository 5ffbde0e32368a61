"""Reports state what was proven, found and not compared; no number stands without its denominator."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kclient.types import TopicPartition
from kclient.wire.produce import MIRROR_SOURCE_CONFIG
from spark_jobs.accounting import AcceptedGap
from spark_jobs.comparison import Options
from spark_jobs.findings import FindingClass
from spark_jobs.reconcile import Reconciliation, TimeBuckets
from spark_jobs.report.document import build_document, config_drift, error_document
from spark_jobs.report.files import FILES, remove_report, write_error, write_report
from spark_jobs.report.markdown import markdown
from spark_jobs.report.page import render_page
from spark_jobs.report.screen import LINES, first_screen
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.verdict import Limits, Verdict
from tests.kit.audit_logs import Log, Logs, Rec, audit, digest, log_of, placed
from tests.kit.audit_reports import (
    META,
    report_of,
    report_with_every_remark,
    violations,
    without_leader,
    without_log_end,
)

TP = TopicPartition("t", 0)
OF_LATER_RUNS = {"digests.parquet", "digests.report.json"}
OF_AN_ERROR = {"report.json", "report.md", "metrics.prom"}
"""The files of a run that ended early."""


def full(count: int = 50) -> Log:
    return log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(count)))


def damaged() -> Log:
    target = full()
    target.records[7] = Rec(b"k", b"other", 7)
    return target


def proven(source: Logs, target: Logs) -> int:
    document = build_document(audit(source, target), META)
    offset: int = document["topics"][0]["partitions"][0]["proven_up_to"]
    return offset


def screen(run: Reconciliation) -> str:
    report = report_of(run)
    text = first_screen(report.document, report="report.html", findings=report.first_findings(8))
    assert len(text.splitlines()) <= 40
    return text


def test_the_screen_names_the_command_that_shows_the_first_finding() -> None:
    target = full()
    target.records[10] = Rec(b"k", b"other", 10)
    lines = screen(audit({TP: full()}, {TP: target})).splitlines()
    assert lines[-1] == "next    kaudit explain --run . --finding 1"
    assert not any(
        line.startswith("next") for line in screen(audit({TP: full()}, {TP: full()})).splitlines()
    )


def test_a_record_moved_far_limits_the_proof_to_where_it_was() -> None:
    target = full()
    target.records[10], target.records[45] = target.records[45], target.records[10]
    assert proven({TP: full()}, {TP: target}) == 10
    moved = full()
    records = [moved.records[n] for n in range(50)]
    records.insert(45, records.pop(10))
    assert proven({TP: full()}, {TP: log_of(*records)}) == 10


def test_a_misrouted_record_limits_the_proof_of_both_partitions() -> None:
    other = TopicPartition("t", 1)
    foreign = Rec(b"s", b"foreign!", 1)
    source, target = full(), full()
    source.append(foreign)
    source.append(Rec(b"k", b"last", 1))
    target.end = 51
    target.append(Rec(b"k", b"last", 1))
    here = log_of(*(Rec(b"x", b"x%d" % n, n) for n in range(20)))
    del here.records[7]
    wrong = here.copy()
    wrong.records[7] = foreign
    run = audit({TP: source, other: here}, {TP: target, other: wrong})
    partitions = build_document(run, META)["topics"][0]["partitions"]
    assert [each["proven_up_to"] for each in partitions] == [50, 7]
    assert [each["first_bad_offset"] for each in partitions] == [50, 7]


def test_offsets_that_were_not_read_limit_the_proof() -> None:
    from spark_jobs.engine import FailureKind
    from tests.kit.audit_logs import Fault

    source = full()
    source.faults = [Fault(20, 25, FailureKind.UNREADABLE)]
    assert proven({TP: source}, {TP: full()}) == 20


def test_corrupt_records_are_compared_and_not_verified() -> None:
    target = log_of(*(Rec(b"k", b"x%d" % n, n) for n in range(50)))
    text = screen(audit({TP: full()}, {TP: target}))
    assert "verified 0.00 % (0 of 50)   compared 100 % (50 of 50)" in text
    assert "t nothing proven" not in text
    assert "t p0 -> 0 of 50" in text


OTHER = TopicPartition("t", 1)


def test_accepted_gaps_are_not_compared_and_the_proof_states_that_they_are_in_it() -> None:
    target = full()
    del target.records[7], target.records[8]
    accepted = (AcceptedGap("t", 0, 5, 10, "known"),)
    run = audit({TP: full()}, {TP: target}, Options(window=10, accepted=accepted))
    text, document = screen(run), report_of(run).document
    assert (run.outcome.verdict, run.outcome.exit_code) == (Verdict.CONSISTENT, 0)
    assert "compared 96.00 % (48 of 50)" in text
    assert "explained 2   not compared: aged out 0" in text
    assert "proven equal up to" not in text
    assert "equal or explained up to:  t 96.00 % equal, 4.00 % explained (48 and 2 of 50)" in text
    assert document["topics"][0]["partitions"][0]["proven_up_to"] == 50
    assert document["totals"]["coverage"] == 0.96
    page = render_page(report_of(run), "out")
    assert "equal or explained, offsets 0 to 49" in page
    assert "proven equal" not in page


def test_a_gap_that_neither_log_has_is_not_compared_when_it_is_accepted() -> None:
    source, target = full(20), full(20)
    source.delete_below(10)
    target.records = {at: each for at, each in target.records.items() if at >= 10}
    accepted = (AcceptedGap("t", 0, 0, 10, "known"),)
    run = audit({TP: source}, {TP: target}, Options(window=10, accepted=accepted))
    assert run.outcome.verdict is Verdict.CONSISTENT
    assert "compared 50.00 % (10 of 20)" in screen(run)
    assert report_of(run).document["totals"]["coverage"] == 0.5


def empty(end: int) -> Log:
    return Log(start=end, end=end)


def test_a_source_that_retention_emptied_before_the_first_copy_is_not_consistent() -> None:
    run = audit({TP: empty(400)}, {TP: Log()})
    text = screen(run)
    assert (run.outcome.verdict, run.outcome.exit_code) == (Verdict.LAGGING, 3)
    assert "verified nothing (0 of 0)" in text
    assert "neither log has an offset: 1 partitions (t p0), nothing of them was compared" in text
    assert "  t p0 ends at 400 in source and at 0 in target" in text
    (partition,) = report_of(run).document["topics"][0]["partitions"]
    assert partition["log_ends"] == {"source": 400, "target": 0}


@pytest.mark.parametrize("end", [0, 400])
def test_empty_logs_with_the_same_end_are_consistent_and_named(end: int) -> None:
    alone = audit({TP: empty(end)}, {TP: empty(end)})
    assert alone.outcome.verdict is Verdict.CONSISTENT
    assert report_of(alone).document["totals"]["coverage"] is None
    beside = audit({TP: full(), OTHER: empty(end)}, {TP: full(), OTHER: empty(end)})
    text = screen(beside)
    assert "neither log has an offset: 1 partitions (t p1), nothing of them was compared" in text
    assert "ends at" not in text


def test_emptied_logs_of_a_renumbered_target_are_never_consistent() -> None:
    for target in (5, 1_000_000):
        logs = {TP: empty(1_000_000)}, {TP: empty(target)}
        run = audit(*logs, Options(window=10, renumbered=True))
        assert (run.outcome.verdict, run.outcome.exit_code) == (Verdict.LAGGING, 3)
        ends = f"1 000 000 in source and at {target:,} in target".replace(",", " ")
        assert f"  t p0 ends at {ends}" in screen(run)
    run = audit({TP: Log()}, {TP: Log()}, Options(window=10, renumbered=True))
    assert run.outcome.verdict is Verdict.CONSISTENT


def test_an_empty_partition_that_the_target_never_got_is_named_beside_others() -> None:
    run = audit({TP: full(), OTHER: empty(9)}, {TP: full(), OTHER: Log()})
    assert run.outcome.verdict is Verdict.CONSISTENT
    assert "  t p1 ends at 9 in source and at 0 in target" in screen(run)


def test_a_partition_without_a_leader_in_both_clusters_leaves_no_share() -> None:
    alone, beside = without_leader(TP, {}), without_leader(TP, {OTHER: full()})
    for run in (alone, beside):
        text = screen(run)
        assert text.startswith("VERDICT  ERROR")
        assert "100 %" not in text
        assert "nothing to compare" not in text
        assert "not read: all of 1 partitions, which have no known offsets" in text
        document = report_of(run).document
        assert document["totals"]["coverage"] is None
        assert document["totals"]["unknown_partitions"] == 1
        assert document["topics"][0]["partitions"][0]["coverage"] is None
        assert '<span class="faint">not read</span>' in render_page(report_of(run), "out")
    assert "verified 50 of at least 50   compared 50 of at least 50" in screen(beside)
    assert report_of(beside).document["topics"][0]["partitions"][1]["coverage"] == 1


@pytest.mark.parametrize("side", [0, 1])
def test_where_a_log_end_is_not_known_lag_and_scope_are_lower_bounds(side: int) -> None:
    text = screen(without_log_end(side, TP, {TP: full(), OTHER: full()}))
    assert text.startswith("VERDICT  ERROR")
    assert "compared 50 of at least 100   in scope at least 100 offsets" in text
    assert "not read 50   lag at least 0\n" in text
    assert "lag 50\n" in screen(audit({TP: full()}, {}))


@pytest.mark.parametrize("side", [0, 1, None])
def test_a_lag_that_is_not_known_is_null(side: int | None) -> None:
    logs = {TP: full(), OTHER: full()}
    run = without_leader(TP, {OTHER: full()}) if side is None else without_log_end(side, TP, logs)
    report = report_of(run)
    first, second = report.document["topics"][0]["partitions"]
    assert None in first["log_ends"].values()
    assert (first["lagging"], second["lagging"]) == (None, 0)
    assert not violations("report", report.document)
    [row] = [
        line for line in markdown(report, page="p").splitlines() if line.startswith("| t | 0 ")
    ]
    assert "not known" in row
    assert '<td class="n" data-of="lagging">not known</td>' in render_page(report, "out")
    behind = report_of(audit({TP: full()}, {})).document
    assert behind["topics"][0]["partitions"][0]["lagging"] == 50


def test_nothing_compared_is_never_a_hundred_percent() -> None:
    text = screen(audit({TP: Log()}, {TP: Log()}))
    assert "verified nothing (0 of 0)" in text
    assert "t nothing to compare" in text
    text = screen(audit({TP: full()}, {}))
    assert text.startswith("VERDICT  LAGGING")
    assert "t nothing proven" in text
    assert "100 %" not in text


def test_a_directory_with_a_byte_that_is_not_utf_8_has_all_files(tmp_path: Path) -> None:
    out = tmp_path / os.fsdecode(b"a\xff")
    page = write_report(out, report_of(audit({TP: full()}, {TP: damaged()})))
    assert "a\\xff" in page.read_text()
    assert {each.name for each in out.iterdir()} == {*FILES, *OF_LATER_RUNS}


def test_a_finding_outside_fail_on_is_in_the_verdict_and_named() -> None:
    limits = Limits(fail_on=frozenset({FindingClass.MISSING}))
    run = audit({TP: full()}, {TP: damaged()}, Options(window=10, limits=limits))
    text = screen(run)
    assert text.startswith("VERDICT  DIVERGED")
    assert "exit 0" in text
    assert "found and not failed on (--fail-on): corrupt 1" in text


def test_an_accepted_coverage_is_printed() -> None:
    target = full()
    target.delete_below(10)
    options = Options(window=10, limits=Limits(min_coverage=0.5))
    text = screen(audit({TP: full()}, {TP: target}, options))
    assert text.startswith("VERDICT  INCOMPLETE")
    assert "compared or explained 80.00 %, accepted from 50 % on (--min-coverage)" in text
    assert "aged out 10" in text


def test_a_proof_that_begins_above_aged_out_offsets_names_where() -> None:
    target = damaged()
    target.records[40] = Rec(b"k", b"other", 40)
    target.delete_below(10)
    assert "t p0 from 10 -> 40 of 50" in screen(audit({TP: full()}, {TP: target}))


def test_an_audit_of_a_cluster_with_itself_is_named() -> None:
    """The verdict is true, and about nothing but the reads: an operator has mistyped an address."""
    run = audit({TP: full()}, {TP: full()})
    assert "one cluster" not in screen(run)
    itself = replace(run, target=replace(run.target, cluster_id=run.source.cluster_id))
    assert "source and target are one cluster" in screen(itself)
    assert "source and target are one cluster" in render_page(report_of(itself), "out")
    prefixed = replace(itself, target=replace(itself.target, prefix="east."))
    assert "one cluster" not in screen(prefixed)
    assert "one cluster" not in render_page(report_of(prefixed), "out")


def roots(source: Logs, target: Logs, window: int = 10) -> tuple[str, str]:
    """Return the roots of report.json, which are those of the first screen."""
    run = audit(source, target, Options(window=window))
    found = build_document(run, META)["roots"]
    assert f"roots   source {found['source']}   target {found['target']}" in screen(run)
    return found["source"], found["target"]


def test_a_root_is_the_sum_of_the_hashes_of_all_records_at_their_offsets() -> None:
    """It is of a cluster: the records of all partitions that were digested, without those that only lag."""
    logs: Logs = {TP: full(), TopicPartition("t", 1): full(7), TopicPartition("u", 0): full(3)}
    summed = sum(
        placed(digest(offset, record))
        for log in logs.values()
        for offset, record in log.records.items()
    )
    expected = f"{summed % 2**64:016x}"
    assert roots(logs, logs) == (expected, expected)
    assert roots(logs, logs, window=7) == (expected, expected)
    assert roots({**logs, TP: full(60)}, logs) == (expected, expected)
    assert roots({}, {}) == ("0" * 16, "0" * 16)


@pytest.mark.parametrize("difference", ["value", "lost", "offset", "order", "extra partition"])
def test_the_roots_of_logs_that_differ_are_different(difference: str) -> None:
    source, target = full(), full()
    del source.records[20], target.records[20]
    logs = {TP: target}
    match difference:
        case "value":
            target.records[7] = Rec(b"k", b"other", 7)
        case "lost":
            del target.records[42]
        case "offset":
            target.records[20] = target.records.pop(21)
        case "order":
            target.records[7], target.records[30] = target.records[30], target.records[7]
        case "extra partition":
            logs[TopicPartition("t", 1)] = full(1)
    here, there = roots({TP: source}, logs)
    assert here != there
    assert here == roots({TP: source}, {TP: source})[1]


def test_records_that_changed_partitions_at_the_same_offset_leave_the_roots_equal() -> None:
    """A root has neither topic nor partition: the verdict is of the windows, never of the roots."""
    one, other = full(10), log_of(*(Rec(b"o", b"w%d" % n, n) for n in range(10)))
    source = {TP: one, TopicPartition("t", 1): other}
    target = {TP: other, TopicPartition("t", 1): one}
    here, there = roots(source, target)
    assert here == there
    assert audit(source, target).outcome.verdict is Verdict.DIVERGED


class Counted(list[Any]):
    """A list that counts how often it was read from the start."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        self.reads += 1
        return super().__iter__()


def reads_of(topics: int) -> list[int]:
    """Return how often the report of *topics* reads all cuts, windows and findings."""
    logs = {TopicPartition(f"t{n}", 0): full() for n in range(topics)}
    run = audit(logs, {tp: damaged() for tp in logs})
    cuts, windows, findings = (Counted(each) for each in (run.cuts, run.windows, run.findings))
    account = replace(run.account, findings=findings)
    document = build_document(replace(run, cuts=cuts, windows=windows, account=account), META)
    assert [topic["findings"] for topic in document["topics"]] == [{"corrupt": 1}] * topics
    return [each.reads for each in (cuts, windows, findings)]


def test_a_report_of_many_topics_reads_all_windows_as_often_as_one_of_a_single_topic() -> None:
    assert reads_of(1) == reads_of(7)


def test_every_class_has_a_line_for_its_first_findings() -> None:
    from spark_jobs.report.screen import finding_line

    template = dict.fromkeys(
        ("topic", "partition", "field", "first_dst_offset", "distance", "last_offset"), 1
    )
    template |= dict.fromkeys(("dst_partition", "src_offset", "dst_offset", "records", "seq"), 1)
    for each in FindingClass:
        assert each.value in finding_line({**template, "class": each.value})


@pytest.mark.parametrize("damage", [False, True])
def test_the_page_has_every_count(tmp_path: Path, damage: bool) -> None:
    target = damaged() if damage else full()
    run = audit({TP: full()}, {TP: target, TopicPartition("t", 1): full(3)})
    page = write_report(tmp_path, report_of(run))
    assert "<svg" in page.read_text()
    document: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    assert document["partition_drift"] == [{"topic": "t", "partition": 1, "only_at": "target"}]
    assert document["totals"]["findings"]["extra"] == 3


@pytest.mark.parametrize("timestamp", [-(2**63), -1, 1_700_000_000_000_000_000, 2**63 - 1])
def test_a_timestamp_that_is_no_date_is_written_as_a_number(tmp_path: Path, timestamp: int) -> None:
    source, target = full(), full()
    source.records[7] = Rec(b"k", b"nanoseconds", timestamp)
    run = audit({TP: source}, {TP: target}, buckets=TimeBuckets.over((0, timestamp)))
    page = write_report(tmp_path, report_of(run)).read_text()
    assert (f"{timestamp} ms" in page) == (timestamp != -1)


def test_a_run_that_ends_early_leaves_no_earlier_verdict(tmp_path: Path) -> None:
    write_report(tmp_path, report_of(audit({TP: full()}, {TP: full()})))
    remove_report(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"report.previous.json", *OF_LATER_RUNS}
    write_error(tmp_path, error_document(4, "no broker answers", META))
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["verdict"], document["exit_code"]) == ("ERROR", 4)


def test_a_run_that_fails_while_it_writes_leaves_only_its_error(tmp_path: Path) -> None:
    write_report(tmp_path, report_of(audit({TP: full()}, {TP: damaged()})))
    write_error(tmp_path, error_document(70, "a bug", META))
    assert {each.name for each in tmp_path.iterdir()} == {*OF_AN_ERROR, *OF_LATER_RUNS}
    assert (tmp_path / "report.md").read_text().startswith("# ERROR: source to target")


def test_all_findings_are_counted_in_every_file_and_every_class_is_among_those_that_are_shown(
    tmp_path: Path,
) -> None:
    target = log_of(*(Rec(b"k", b"x%d" % n, n) for n in range(50)))
    target.append(Rec(b"s", b"foreign!", 1))
    run = audit({TP: full()}, {TP: target})
    report = report_of(run, 10)
    assert len(report.lines) == 10
    assert report.document["findings"] == {"found": 51, "written": 10}
    assert report.document["totals"]["findings"]["corrupt"] == 50
    assert sum(report.document["timeline"]["findings"]["corrupt"]) == 50
    assert {each["class"] for each in report.first_findings(2)} == {"corrupt", "extra"}
    (copied,) = report.repair["copy"]
    assert copied["ranges"] == [{"from": 0, "until": 50, "records": {"corrupt": 50}}]
    page = write_report(tmp_path, report).read_text()
    assert "10 of 51; 10 in findings.jsonl" in page
    assert "<title>corrupt: 50</title>" in page
    text = (tmp_path / "report.md").read_text()
    assert "extra 1   corrupt 50" in text
    assert "## Findings (10 of 51)" in text
    found = (tmp_path / "metrics.prom").read_text()
    assert re.search(r"^audit_run_records_corrupt{.*} 50$", found, re.MULTILINE)
    assert re.search(r"^audit_run_findings{.*} 51$", found, re.MULTILINE)
    assert re.search(r"^audit_run_findings_written{.*} 10$", found, re.MULTILINE)


def cluster(configs: dict[str, str], *overrides: str) -> ClusterSnapshot:
    return ClusterSnapshot("c", "", "c", {}, {"t": configs}, overrides={"t": frozenset(overrides)})


def test_a_default_that_only_one_cluster_knows_is_no_drift() -> None:
    source = cluster({"retention.ms": "1", "remote.storage.enable": "false"})
    assert config_drift(source, cluster({"retention.ms": "1"})) == []


def test_a_setting_of_a_topic_that_the_other_cluster_lacks_is_drift() -> None:
    source = cluster({"retention.ms": "1", "new.setting": "x"}, "new.setting")
    marks = {MIRROR_SOURCE_CONFIG: "east", "kbroker.mirror.source.topic.id": "x"}
    target = cluster({"retention.ms": "2", **marks}, *marks)
    assert [row["config"] for row in config_drift(source, target)] == [
        "new.setting",
        "retention.ms",
    ]


def test_a_screen_with_every_remark_at_once_has_forty_lines() -> None:
    """Each remark alone left room; together with later looks, a ledger and --since they made 51 lines."""
    report = report_with_every_remark()
    document = report.document
    findings = (report.first_findings(8) * 8)[:8]

    lines = first_screen(document, report="o/report.html", findings=findings).splitlines()

    assert len(lines) == LINES == 40
    assert lines[0].startswith("VERDICT")
    assert lines[-1].startswith("next ")
    assert sum(line.startswith("unreadable") for line in lines) == 4
    (left_out,) = (
        line for line in lines if line.endswith("more lines like these: see report.json")
    )
    assert int(left_out.split()[1]) > 1
    assert [line.split()[0] for line in lines if line.startswith("        #")] == ["#1"]

    document["recreated"], document["ledger"] = [], None
    lines = first_screen(document, report="o/report.html", findings=findings).splitlines()
    assert len(lines) <= LINES
    assert not any("more lines like these" in line for line in lines)
