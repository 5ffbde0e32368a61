"""A topic that was created again is compared with the copy of its present topic id; earlier copies are named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from kclient.mirror_ledger import GAP, LINEAGE, GapEntry, encode, view
from kclient.types import TopicPartition
from kclient.wire.produce import MIRROR_SOURCE_TOPIC_CONFIG
from spark_jobs import counts_report, headers_report
from spark_jobs.comparison import Options
from spark_jobs.finding_places import places
from spark_jobs.gap_ledger import LedgerRead
from spark_jobs.headers import HeaderAudit
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.recreated_topics import (
    EarlierCopy,
    RecreatedTopic,
    named_by_source,
    recreated_topics,
    with_deleted,
)
from spark_jobs.report.recreated import recreated_document, recreated_lines
from spark_jobs.report.screen import first_screen
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.time_counts import TimeCounts
from spark_jobs.verdict import ExitCode, Limits, Verdict
from spark_jobs.watch_start import begin_at, unwatched
from tests.kit.audit_logs import Log, MemoryEngine, Rec, classes, log_of, named, snapshot
from tests.kit.audit_reports import report_of, violations

A, B, C = ("A" * 22, "B" * 22, "C" * 22)
LATER = f"lineage.{B}.orders"
ENDED = GapEntry(
    "source",
    "orders",
    0,
    30,
    30,
    "recreated",
    source_topic="orders",
    source_topic_id_before=A,
    source_topic_id_after=B,
    target_topic_id="id of orders",
    type=LINEAGE,
)


def records(count: int, name: str) -> Log:
    return log_of(*(Rec(b"k", b"%s %d" % (name.encode(), n), n) for n in range(count)))


class Clusters:
    """A source with `orders` of the topic id B, and a target with topics by name; each states a topic id."""

    def __init__(
        self, target: Mapping[str, tuple[str, Log]], source: Log, *, now: str = B, prefix: str = ""
    ) -> None:
        self.logs = {TopicPartition("orders", 0): source}
        self.copies = {TopicPartition(name, 0): log for name, (_, log) in target.items()}
        self.source = replace(snapshot("source", self.logs), topic_ids={"orders": now})
        plain, named = f"{prefix}orders", dict(target)
        at = {plain: "orders"}
        whole = snapshot(
            "target",
            {TopicPartition(at.get(name, name), 0): log for name, (_, log) in named.items()},
        )
        self.lineages = [name for name in target if name != plain]
        self.target = replace(
            whole,
            prefix=prefix,
            configs={
                at.get(name, name): {MIRROR_SOURCE_TOPIC_CONFIG: stated}
                for name, (stated, _) in target.items()
            },
            topic_ids={at.get(name, name): f"id of {name}" for name in target},
            renamed={name: name for name in self.lineages},
        )

    def find(self, *entries: GapEntry) -> tuple[RecreatedTopic, ...]:
        return recreated_topics(entries, self.source, self.target)

    def named(self, found: Sequence[RecreatedTopic]) -> tuple[ClusterSnapshot, ClusterSnapshot]:
        target = named_by_source(found, self.target, self.lineages)
        return with_deleted(found, self.source, target), target

    def audit(self, *entries: GapEntry) -> Reconciliation:
        found = self.find(*entries)
        source, target = self.named(found)
        options = Options(
            window=10, ledger=LedgerRead(("east.gaps.internal",), entries), recreated=found
        )
        logs = {
            tp: self.copies[TopicPartition(target.topic_of(tp.topic), tp.partition)]
            for tp in target.ranges
        }
        engine = MemoryEngine(self.logs, logs, 10)
        return reconcile(engine, source, target, options, buckets=TimeBuckets.over((0, 1000)))


def clusters(later: Log | None = None, earlier: int = 30) -> Clusters:
    """Return both clusters after orders was created again, and 50 records were copied."""
    copy = records(50, "new") if later is None else later
    return Clusters({"orders": (A, records(earlier, "old")), LATER: (B, copy)}, records(50, "new"))


def test_the_present_topic_is_compared_with_its_copy_and_the_earlier_copy_is_not_compared() -> None:
    run = clusters().audit(ENDED)
    assert (named(run), run.outcome.verdict) == ([], Verdict.INCOMPLETE)
    assert run.outcome.exit_code == ExitCode.AGED_OUT
    assert classes(run) == {"verified": 50, "aged out": 30}
    by_topic = {tp.topic: counts for tp, counts in run.account.partitions.items()}
    assert by_topic["orders"].verified == 50
    assert by_topic[f"lineage.{A}.orders"].aged_out == 30


def test_without_the_ledger_nothing_takes_the_place_of_another_topic() -> None:
    run = clusters().audit()
    assert run.outcome.verdict is Verdict.DIVERGED
    assert {tp.topic for tp in run.account.partitions} == {"orders"}


def test_a_record_that_the_copy_lacks_is_missing_in_the_source_topic() -> None:
    later = records(50, "new")
    del later.records[7]
    run = clusters(later).audit(ENDED)
    assert named(run) == [("missing", 0, 7, None, 1)]
    assert run.findings[0].topic == "orders"


def test_a_copy_that_was_not_created_yet_lags() -> None:
    found = Clusters({"orders": (A, records(30, "old"))}, records(50, "new"))
    run = found.audit(ENDED)
    assert (named(run), classes(run)) == ([], {"lagging": 50, "aged out": 30})


def test_an_earlier_copy_that_lost_its_end_is_a_gap() -> None:
    run = clusters(earlier=25).audit(ENDED)
    assert named(run) == [("gap", 0, 25, None, 5)]
    assert run.findings[0].topic == f"lineage.{A}.orders"


def test_a_gap_entry_of_the_earlier_copy_explains_its_gap() -> None:
    found = clusters()
    old = found.copies[TopicPartition("orders", 0)]
    for at in range(10, 15):
        del old.records[at]
    gap = replace(ENDED, type=GAP, first=10, until=15, cause="retention")
    assert named(found.audit(ENDED)) == [("gap", 0, 10, None, 5)]
    assert named(found.audit(ENDED, gap)) == []


def test_topics_that_were_created_again_twice_have_two_earlier_copies() -> None:
    second = replace(ENDED, source_topic_id_before=A, source_topic_id_after=C)
    latest = f"lineage.{C}.orders"
    found = Clusters(
        {
            "orders": (A, records(30, "old")),
            LATER: (B, records(50, "new")),
            latest: (C, records(9, "newest")),
        },
        records(9, "newest"),
        now=C,
    )
    entries = view(map(encode, (ENDED, second))).sorted()
    (each,) = found.find(*entries)
    assert (each.copy, [old.topic for old in each.earlier]) == (latest, [LATER, "orders"])
    run = found.audit(*entries)
    assert (named(run), classes(run)) == ([], {"verified": 9, "aged out": 80})


@pytest.mark.parametrize(
    "other",
    [
        {"source_cluster_id": "another"},
        {"topic": "payments"},
        {"source_topic_id_after": C},
        {"type": GAP},
    ],
)
def test_an_entry_of_something_else_names_no_copy(other: dict[str, str]) -> None:
    assert clusters().find(replace(ENDED, **other)) == ()  # type: ignore[arg-type]


def test_a_topic_that_was_copied_again_under_its_own_name_is_compared_there() -> None:
    """After `kmirror truncate` the topic states the present topic id; the other topic is a leftover."""
    found = Clusters(
        {"orders": (B, records(50, "new")), LATER: (B, records(20, "new"))}, records(50, "new")
    )
    assert found.find(ENDED) == ()
    run = found.audit(ENDED)
    assert (run.outcome.verdict, classes(run)) == (Verdict.CONSISTENT, {"verified": 50})


def test_a_deleted_earlier_copy_leaves_the_present_one() -> None:
    found = Clusters({LATER: (B, records(50, "new"))}, records(50, "new"))
    assert found.find(ENDED) == (RecreatedTopic("orders", B, LATER),)
    assert found.audit(ENDED).outcome.verdict is Verdict.CONSISTENT
    gone = Clusters({"payments": ("", records(5, "other"))}, records(50, "new"))
    assert gone.find(ENDED) == ()


def test_names_of_a_prefixed_mirror_have_the_prefix_behind_that_of_the_lineage() -> None:
    later = f"lineage.{B}.east.orders"
    found = Clusters(
        {"east.orders": (A, records(30, "old")), later: (B, records(50, "new"))},
        records(50, "new"),
        prefix="east.",
    )
    entry = replace(ENDED, topic="east.orders", target_topic_id="id of east.orders")
    (each,) = found.find(entry)
    earlier = EarlierCopy(f"lineage.{A}.orders", "east.orders", A, {0: 30})
    assert each == RecreatedTopic("orders", B, later, (earlier,))
    assert classes(found.audit(entry)) == {"verified": 50, "aged out": 30}


def test_the_end_of_a_topic_that_was_deleted_at_the_target_is_not_that_of_its_successor() -> None:
    (each,) = clusters().find(replace(ENDED, target_topic_id="another"))
    assert each.earlier[0].ends == {}


def test_the_report_has_what_was_compared_and_what_was_not() -> None:
    later = records(50, "new")
    del later.records[7]
    report = report_of(clusters(later).audit(ENDED))
    document = json.loads(json.dumps(report.document))
    assert violations("report", document) == []
    assert document["recreated"] == [
        {
            "topic": "orders",
            "topic_id": B,
            "target_topic": LATER,
            "earlier": [
                {
                    "topic": f"lineage.{A}.orders",
                    "topic_id": A,
                    "target_topic": "orders",
                    "offsets": 30,
                }
            ],
        }
    ]
    screen = first_screen(document, report="page")
    assert f"orders was created again at the source: it is compared with {LATER}" in screen
    assert f"not compared: orders at the target, 30 offsets of topic id {A}" in screen
    (copy,) = report.repair["copy"]
    assert (copy["topic"], copy["target_topic"]) == ("orders", LATER)
    finding = json.loads(report.lines[0])
    at_source, at_target = places(finding, document)
    assert (at_source.place.topic, at_target.place.topic) == ("orders", LATER)


def test_the_commands_without_a_ledger_of_their_own_name_what_is_compared_and_what_is_not() -> None:
    """`kaudit headers` and `kaudit counts` write it as `kaudit reconcile` does; `kaudit watch` leaves the topic out."""
    both = clusters()
    found = both.find(ENDED)
    source, target = both.named(found)
    made = recreated_document(found, target)
    (each,) = made
    assert (each["target_topic"], each["topic_id"]) == (LATER, B)
    lines = [
        f"orders was created again at the source: it is compared with {LATER}",
        f"  not compared: orders at the target, 30 offsets of topic id {A}, which the source has deleted; "
        f"here lineage.{A}.orders",
    ]
    assert recreated_lines(made) == lines
    counts = TimeCounts(1000, [], {})
    assert "\n".join(lines) in counts_report.screen(counts, (source, target), made)
    assert counts_report.document(counts, (source, target), made)["recreated"] == made
    audit = HeaderAudit(10, ({}, {}), [], [], {}, frozenset(), [], Limits())
    headers = headers_report.document(audit, (source, target), {}, found)
    assert headers["recreated"] == made
    assert "\n".join(lines) in headers_report.screen(headers, "kaudit reconcile")

    start = begin_at("earliest", "orders", source, target, found)
    assert start.starts == {}
    assert unwatched(start, source, target, found) == [
        f"lineage.{A}.orders-0 (created again at the source: orders at the target)",
        f"orders-0 (created again at the source: {LATER} at the target)",
    ]


def test_many_recreated_topics_are_counted_on_the_screen() -> None:
    made = recreated_document(
        [RecreatedTopic(name, B, f"lineage.{B}.{name}") for name in "abc"], clusters().target
    )
    assert recreated_lines(made)[2:] == [
        "1 more topics were created again at the source: see `recreated`"
    ]
