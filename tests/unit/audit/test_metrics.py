"""metrics.prom agrees with report.json, and has no sample of what was not measured."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.comparison import Options
from spark_jobs.engine import FailureKind
from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.document import Document, error_document
from spark_jobs.report.metrics import metrics
from tests.kit.audit_faults import EVERY
from tests.kit.audit_logs import Fault, Log, Rec, audit, log_of
from tests.kit.audit_reports import (
    META,
    audited,
    report_of,
    without_leader,
    without_log_end,
)

TP = TopicPartition("t", 0)
Samples = dict[str, list[tuple[dict[str, str], float]]]


def full(count: int = 50) -> Log:
    return log_of(*(Rec(b"k", b"v%d" % n, n) for n in range(count)))


def parsed(document: Document) -> Samples:
    """Return the samples of each family, as Prometheus reads them."""
    text = metrics(document)
    found: Samples = {}
    seen = set()
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge", family
        assert family.documentation.endswith(".")
        assert family.name not in found, f"{family.name} is written in two places"
        for each in family.samples:
            place = each.name, tuple(sorted(each.labels.items()))
            assert place not in seen, f"{place} occurs twice"
            seen.add(place)
            assert each.name == family.name
            found.setdefault(each.name, []).append((dict(each.labels), each.value))
    assert sum(map(len, found.values())) == sum(
        not line.startswith("#") for line in text.splitlines()
    )
    return found


def of_run(run: Reconciliation) -> tuple[Document, Samples]:
    document = report_of(run).document
    return document, parsed(document)


def one(samples: Samples, name: str, **labels: str) -> float:
    (value,) = [value for of, value in samples.get(name, []) if of.items() >= labels.items()]
    return value


@pytest.mark.parametrize("kind", EVERY)
def test_the_partitions_of_each_family_add_up_to_the_run(kind: str) -> None:
    for seed in range(5):
        document, samples = of_run(audited(seed, kind))
        for name, rows in samples.items():
            if not name.startswith("audit_run_") or name.endswith("_ratio"):
                continue
            of_partitions = samples.get(name.replace("audit_run_", "audit_"))
            if of_partitions is not None:
                assert sum(v for _, v in rows) == sum(v for _, v in of_partitions), name
        totals = document["totals"]
        for each in ("missing", "truncated", "extra", "duplicate", "corrupt", "misrouted"):
            assert one(samples, f"audit_run_records_{each}") == totals["findings"][each]
        assert one(samples, "audit_run_records_verified") == totals["verified"]
        assert one(samples, "audit_run_scope_offsets") == totals["in_scope"]
        assert one(samples, "audit_verdict", verdict=document["verdict"]) == 1
        assert sum(v for _, v in samples["audit_verdict"]) == 1
        assert one(samples, "audit_exit_code") == document["exit_code"]


OF_PARTITIONS = {
    "audit_records_verified",
    "audit_records_missing",
    "audit_records_truncated",
    "audit_records_extra",
    "audit_records_duplicate",
    "audit_records_corrupt",
    "audit_records_reordered",
    "audit_records_shifted",
    "audit_records_misrouted",
    "audit_records_visibility",
    "audit_undecodable_offsets",
    "audit_gap_offsets",
    "audit_scope_offsets",
    "audit_compared_offsets",
    "audit_empty_offsets",
    "audit_aged_out_offsets",
    "audit_not_read_offsets",
    "audit_lagging_offsets",
    "audit_coverage_ratio",
    "audit_windows_ok",
    "audit_windows_bad",
}
ONLY_OF_PARTITIONS = {
    "audit_first_bad_offset",
    "audit_verified_from_offset",
    "audit_verified_upto_offset",
}
OF_THE_RUN = {
    "audit_verdict",
    "audit_exit_code",
    "audit_end_timestamp",
    "audit_seconds",
    "audit_run_findings",
    "audit_run_findings_written",
    "audit_run_drift_partitions",
    "audit_run_drift_configs",
    "audit_run_windows_drilled",
    "audit_run_digested_records",
    "audit_run_digested_bytes",
    "audit_run_unknown_partitions",
    "audit_run_unequal_ends_partitions",
}


def test_the_names_are_stable() -> None:
    _, samples = of_run(audit({TP: full()}, {TP: full(49)}, Options(window=10, complete=True)))
    whole = {name.replace("audit_", "audit_run_") for name in OF_PARTITIONS}
    assert set(samples) == OF_PARTITIONS | ONLY_OF_PARTITIONS | OF_THE_RUN | whole
    for name in OF_PARTITIONS | ONLY_OF_PARTITIONS:
        for labels, _ in samples[name]:
            assert {"source", "target", "scope", "topic", "partition"} <= labels.keys()
    for name in OF_THE_RUN | whole:
        for labels, _ in samples[name]:
            assert {"source", "target", "scope"} <= labels.keys()
            assert not {"topic", "partition"} & labels.keys()


def test_the_windows_that_were_compared_by_record_are_counted() -> None:
    _, samples = of_run(audit({TP: full()}, {TP: full()}, Options(window=10)))
    assert one(samples, "audit_run_windows_drilled") == 0
    target = full()
    target.records[17] = Rec(b"k", b"other", 17)
    _, samples = of_run(audit({TP: full()}, {TP: target}, Options(window=10)))
    assert one(samples, "audit_run_windows_drilled") == 1


def test_a_partition_that_was_not_compared_has_no_count_of_findings() -> None:
    unread = full()
    unread.faults = [Fault(0, 50, FailureKind.UNREADABLE)]
    other = TopicPartition("t", 1)
    run = audit({TP: unread, other: full()}, {TP: full(), other: full()})
    _, samples = of_run(run)
    assert [labels["partition"] for labels, _ in samples["audit_records_missing"]] == ["1"]
    assert [labels["partition"] for labels, _ in samples["audit_verified_upto_offset"]] == ["1"]
    assert one(samples, "audit_not_read_offsets", partition="0") == 50
    assert one(samples, "audit_coverage_ratio", partition="0") == 0


def test_what_is_not_known_of_a_partition_without_a_leader_is_no_sample() -> None:
    run = without_leader(TP, {TopicPartition("t", 1): full()})
    _, samples = of_run(run)
    for name in ("scope_offsets", "not_read_offsets", "aged_out_offsets", "coverage_ratio"):
        assert f"audit_run_{name}" not in samples
        assert [labels["partition"] for labels, _ in samples[f"audit_{name}"]] == ["1"]
    assert one(samples, "audit_run_unknown_partitions") == 1
    assert one(samples, "audit_run_compared_offsets") == 50


@pytest.mark.parametrize("side", [0, 1])
def test_lag_and_scope_of_a_partition_without_a_log_end_are_no_sample(side: int) -> None:
    run = without_log_end(side, TP, {TP: full(), TopicPartition("t", 1): full()})
    document, samples = of_run(run)
    assert document["totals"]["unknown_partitions"] == 0
    for name in ("lagging_offsets", "scope_offsets", "aged_out_offsets", "coverage_ratio"):
        assert f"audit_run_{name}" not in samples
        assert [labels["partition"] for labels, _ in samples[f"audit_{name}"]] == ["1"]
    assert one(samples, "audit_not_read_offsets", partition="0") == 50
    assert one(samples, "audit_run_not_read_offsets") == 50


def test_a_partition_that_a_cluster_does_not_have_keeps_its_lag() -> None:
    _, samples = of_run(audit({TP: full()}, {}))
    assert one(samples, "audit_run_lagging_offsets") == 50


def test_explained_offsets_are_no_compared_ones() -> None:
    target = full()
    del target.records[7], target.records[8]
    accepted = (AcceptedGap("t", 0, 5, 10, "known"),)
    run = audit({TP: full()}, {TP: target}, Options(window=10, accepted=accepted))
    _, samples = of_run(run)
    assert one(samples, "audit_run_compared_offsets") == 48
    assert one(samples, "audit_run_coverage_ratio") == 0.96
    assert one(samples, "audit_gap_offsets", explained="true") == 2
    text = metrics(report_of(run).document)
    assert "that are equal, or explained" in text
    assert "proven equal" not in text


def test_an_empty_scope_has_no_coverage() -> None:
    _, samples = of_run(audit({TP: Log()}, {TP: Log()}))
    assert "audit_coverage_ratio" not in samples
    assert "audit_run_coverage_ratio" not in samples
    assert "audit_run_records_missing" not in samples


def test_success_is_a_consistent_run_and_nothing_else() -> None:
    _, samples = of_run(audit({TP: full()}, {TP: full()}))
    assert one(samples, "audit_last_success_timestamp") == 1767225601
    _, samples = of_run(audit({TP: full()}, {TP: full(49)}))
    assert "audit_last_success_timestamp" not in samples
    assert one(samples, "audit_end_timestamp") == 1767225601


def test_a_run_that_ended_early_has_its_verdict_and_no_counts() -> None:
    samples = parsed(error_document(4, "no broker answers", META))
    assert one(samples, "audit_verdict", verdict="ERROR") == 1
    assert one(samples, "audit_exit_code") == 4
    assert set(samples) == {
        "audit_verdict",
        "audit_exit_code",
        "audit_end_timestamp",
        "audit_seconds",
    }


@pytest.mark.parametrize("code", [0, 4, 70, 130])
@pytest.mark.parametrize("passed", [True, False])
def test_the_self_test_is_a_metric_if_it_ran_whatever_ended_the_run(
    code: int, passed: bool
) -> None:
    """It passed and then Spark died: 70. It failed and then Ctrl-C came: 130."""
    meta = {**META, "self_test": "20/20", "self_test_passed": passed}
    document = report_of(audit({TP: full()}, {TP: full()})).document
    for each in (error_document(code, "why", META), document):
        assert "audit_self_test_passed" not in parsed(each)
        assert one(parsed({**each, "meta": meta}), "audit_self_test_passed") == passed


def test_gaps_have_their_cause_and_any_text_may_be_a_label() -> None:
    source, target = full(), full()
    source.delete_below(20)
    target.records = {at: each for at, each in target.records.items() if not 5 <= at < 15}
    cause = 'a "known"\nloss \\ of {records}'
    accepted = (AcceptedGap("t", 0, 5, 8, cause),)
    document, samples = of_run(
        audit({TP: source}, {TP: target}, Options(window=10, accepted=accepted))
    )
    assert one(samples, "audit_run_gap_offsets", explained="true", cause=cause) == 3
    assert one(samples, "audit_gap_offsets", explained="false", partition="0") == 7
    arguments: dict[str, Any] = {"source": "a", "target": "b", "topics": 'x|"\\d+'}
    document["meta"] = {**document["meta"], "arguments": arguments}
    assert {labels["scope"] for labels, _ in parsed(document)["audit_verdict"]} == {'x|"\\d+'}
