"""The pictures of a report show what the report states: an area that was not compared is never drawn as equal."""

from __future__ import annotations

import re

from kclient.types import TopicPartition
from spark_jobs.engine import FailureKind
from spark_jobs.reconcile import Options, Reconciliation
from spark_jobs.report.document import Document, build_document
from spark_jobs.report.pictures import heatmap
from tests.kit.audit_logs import Fault, Log, Rec, audit, log_of
from tests.kit.audit_reports import META

TP = TopicPartition("t", 0)


def full(count: int = 50) -> Log:
    return log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(count)))


def document_of(run: Reconciliation) -> Document:
    return build_document(run, META)


def titles(picture: str) -> list[str]:
    return re.findall(r"<title>t p0: (.*?)</title>", picture)


def test_a_window_that_neither_cluster_returned_is_not_drawn_as_equal() -> None:
    source, target = full(), full()
    for log in (source, target):
        log.faults = [Fault(20, 30, FailureKind.UNREADABLE)]
    drawn = titles(heatmap(document_of(audit({TP: source}, {TP: target}, Options(window=10)))))
    assert drawn[2] == "offsets 20 to 29: not read, at least in part"
    assert [each.partition(": ")[2] for each in drawn[:2] + drawn[3:]] == ["equal"] * 4


def test_a_window_that_differs_names_the_offsets_that_were_not_read() -> None:
    source, target = full(), full()
    source.faults = [Fault(20, 25, FailureKind.UNREADABLE)]
    drawn = titles(heatmap(document_of(audit({TP: source}, {TP: target}, Options(window=10)))))
    assert drawn[2].endswith("5 records in the source, 10 in the target; 5 offsets were not read")


def test_cells_of_many_windows_show_that_one_was_not_read() -> None:
    source, target = full(1000), full(1000)
    for log in (source, target):
        log.faults = [Fault(500, 501, FailureKind.UNREADABLE)]
    drawn = titles(heatmap(document_of(audit({TP: source}, {TP: target}, Options(window=1)))))
    assert [each for each in drawn if not each.endswith("equal")] == [
        "offsets 500 to 504: not read, at least in part"
    ]
