"""report.md fits into a comment, and states what it leaves out."""

from __future__ import annotations

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.engine import FailureKind
from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.document import error_document
from spark_jobs.report.markdown import error_markdown, markdown
from spark_jobs.report.screen import first_screen
from tests.kit.audit_logs import Fault, Log, Rec, audit, log_of
from tests.kit.audit_reports import META, report_of

TP = TopicPartition("t", 0)
COMMENT = 65_536
"""Characters of a comment at GitHub."""


def full(count: int = 50) -> Log:
    return log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(count)))


def text_of(run: Reconciliation) -> str:
    report = report_of(run)
    text = markdown(report, page="report.html")
    assert first_screen(report.document, report="report.html") in text
    assert len(text) < COMMENT
    return text


def tables(text: str) -> dict[str, list[list[str]]]:
    """Return the rows of each table, and check that all have the same number of cells."""
    found = {}
    for part in text.split("\n## ")[1:]:
        lines = [line for line in part.splitlines() if line.startswith("|")]
        rows = [line.replace("\\|", "").strip("|").split("|") for line in lines]
        assert len({len(row) for row in rows}) == 1, part
        found[part.splitlines()[0]] = [[cell.strip() for cell in row] for row in rows[2:]]
    return found


def test_a_clean_run_has_its_screen_and_its_partitions() -> None:
    text = text_of(audit({TP: full()}, {TP: full()}))
    assert text.startswith("# CONSISTENT: source to target, topics `t`\n")
    assert list(tables(text)) == ["Partitions"]


def test_the_worst_partition_is_first_and_findings_and_repair_are_listed() -> None:
    other = TopicPartition("t", 1)
    target = full()
    target.records[7] = Rec(b"k", b"other", 7)
    target.append(Rec(b"s", b"foreign!", 1))
    found = tables(text_of(audit({TP: full(), other: full()}, {TP: full(), other: target})))
    assert [row[1] for row in found["Partitions"]] == ["1", "0"]
    assert found["Partitions"][0][-2:] == ["extra 1, corrupt 1", "7"]
    assert [row[1] for row in found["Findings (2 of 2)"]] == ["corrupt", "extra"]
    assert found["Repair plan (nothing was changed)"] == [
        ["t", "1", "7 to 7", "copy again"],
        [
            "t",
            "1",
            "50 to 50",
            "extra at the target: the source has no such record: delete it at the target",
        ],
    ]


def test_many_partitions_and_findings_are_bounded_and_counted() -> None:
    source = {TopicPartition("t" * 249, number): full(3) for number in range(300)}
    target = {tp: full(3) for tp in source}
    for log in target.values():
        del log.records[1]
    text = text_of(audit(source, target))
    assert "Findings (40 of 300)" in text
    assert "260 more partitions: report.json." in text
    assert "260 more findings: findings.jsonl, which has 300." in text
    assert "260 more ranges: repair.json." in text
    assert "missing 300" in text


def test_findings_that_were_not_written_are_counted_too() -> None:
    target = log_of(*(Rec(b"k", b"x%d" % n, n) for n in range(50)))
    report = report_of(audit({TP: full()}, {TP: target}), 10)
    text = markdown(report, page="report.html")
    assert "## Findings (10 of 50)" in text
    assert "40 more findings: findings.jsonl, which has 10." in text


def test_a_cause_can_not_break_a_table() -> None:
    source = full()
    source.faults = [Fault(5, 9, FailureKind.UNDECODABLE, "a | b\n```\n<script> [x](y) `z`")]
    text = text_of(audit({TP: source}, {TP: full()}, Options(window=10)))
    (row,) = tables(text)["Findings (1 of 1)"]
    assert "<script>" not in row[2].replace("\\<", "")
    assert "```" not in text.replace("```text", "").replace("\n```\n", "")


def test_a_run_that_ended_early_has_its_cause() -> None:
    text = error_markdown(error_document(4, "no broker | answers", META))
    assert text.startswith("# ERROR: source to target")
    assert "Exit code 4: no broker \\| answers" in text
    assert "Nothing was compared." in text
