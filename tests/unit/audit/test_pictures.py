"""The pictures of a report show what the report states: an area that was not compared is never drawn as equal."""

from __future__ import annotations

import csv
import re
from collections import Counter

import pytest

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.engine import FailureKind
from spark_jobs.reconcile import Reconciliation, TimeBuckets
from spark_jobs.report.document import Document, build_document
from spark_jobs.report.pictures import cumulative, heatmap, timeline
from spark_jobs.report.timeline import timeline_csv, timeline_png
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


def over_time() -> Reconciliation:
    """Return an audit of records from 0 to 49 s: three are lost at the end, one is damaged, two offsets are a gap."""
    source = log_of(*(Rec(b"k", b"v%d" % n, n * 1000) for n in range(50)))
    target = source.copy()
    for at in (45, 46, 47):
        del target.records[at]
    target.records[20] = Rec(b"k", b"other", 20_000)
    for log in (source, target):
        del log.records[3], log.records[4]
    source.delete_below(10)
    return audit({TP: source}, {TP: target}, buckets=TimeBuckets.over((0, 60_000)))


def test_the_pictures_over_time_have_an_axis_and_name_what_they_do_not_show() -> None:
    document = document_of(over_time())
    for picture in (timeline(document, "t"), cumulative(document)):
        assert picture.count("1970-01-01 00:0") == 5
    assert "2 of 6 have no timestamp and are not in the picture" in cumulative(document)
    assert "difference: " in timeline(document, "t")


def test_records_that_balance_are_a_difference_all_the_same() -> None:
    document = document_of(over_time())
    document["timeline"]["source"]["t"][:4] = [5, 5, 0, 0]
    document["timeline"]["target"]["t"][:4] = [0, 5, 5, 0]
    document["timeline"]["target"]["t"][4:] = document["timeline"]["source"]["t"][4:]
    assert "difference: 5 records fewer, 5 more in the target" in timeline(document, "t")


@pytest.mark.timeout(20)
def test_the_picture_of_windows_does_not_count_offsets() -> None:
    """A log of 2 windows near 2^62 beside one at 0: a loop over all windows between would not end."""
    far = TopicPartition("t", 1)
    source = {TP: full(), far: log_of(*full().records.values(), start=1 << 62)}
    target = {tp: log.copy() for tp, log in source.items()}
    target[far].records[(1 << 62) + 3] = Rec(b"k", b"other", 3)
    picture = heatmap(document_of(audit(source, target)))
    assert picture.count("<title>t p0: ") == picture.count("<title>t p1: ") == 1
    assert "other content, 6 records in the source, 6 in the target" in picture

    del source[TP], target[TP]
    picture = heatmap(document_of(audit(source, target)))
    assert picture.count("<title>t p1: ") == 6, "the axis begins where the logs begin"


def test_a_topic_that_only_the_target_has_is_drawn() -> None:
    """It was an internal error, and there was no report."""
    picture = timeline(document_of(audit({}, {TP: full()}, buckets=TimeBuckets(0, 5))), "t")
    assert "difference: 0 records fewer, 50 more in the target" in picture


def test_the_rows_of_the_timeline_add_up_to_the_report() -> None:
    document = document_of(over_time())
    rows = list(csv.DictReader(timeline_csv(document).splitlines()))
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row["what"]] += int(row["records"])
    topic = document["topics"][0]
    assert (sums["source"], sums["target"]) == (
        topic["records"]["source"],
        topic["records"]["target"],
    )
    assert (sums["missing"], sums["corrupt"]) == (3, 1)
    assert {int(row["until_ms"]) - int(row["from_ms"]) for row in rows} == {
        document["timeline"]["bucket_ms"]
    }


@pytest.mark.parametrize("topics", [0, 1, 40])
def test_the_timeline_is_a_png_file_for_any_number_of_topics(topics: int) -> None:
    logs = {TopicPartition(f"t{n}", 0): full(3) for n in range(topics)}
    assert timeline_png(document_of(audit(logs, logs))).startswith(b"\x89PNG")
