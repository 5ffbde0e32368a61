"""The report document: a reconciliation as JSON-ready values, source of report.json, screen and page.

Deterministic: the same logs give the same bytes on any machine at any time. Wall-clock time, durations and the run id
are under `meta` only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from spark_jobs.findings import Finding, FindingClass
from spark_jobs.reconcile import Reconciliation
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.windows import WindowResult, WindowState, root

SCHEMA_VERSION = 1

Document = dict[str, Any]


def build_document(run: Reconciliation, meta: Mapping[str, object]) -> Document:
    """Return the report of *run* as JSON-ready values."""
    topics = sorted({cut.topic for cut in run.cuts})
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": run.outcome.verdict.value,
        "exit_code": int(run.outcome.exit_code),
        "exit_codes": [int(code) for code in run.outcome.applicable],
        "source": _cluster(run.source),
        "target": _cluster(run.target),
        "totals": {
            "in_scope": run.counts.in_scope,
            "verified": run.counts.verified,
            "coverage": round(run.counts.coverage, 6),
            "lagging": run.counts.lagging,
            "aged_out": run.counts.aged_out,
            "findings": {each.value: run.counts.findings.get(each, 0) for each in FindingClass},
            "unreadable": list(run.counts.unreadable),
        },
        "topics": [_topic(run, topic) for topic in topics],
        "windows": {"offsets": run.options.window, "states": _states(run.windows)},
        "timeline": {
            "first_ms": run.first_ms,
            "bucket_ms": run.bucket_ms,
            "source": {topic: list(series) for topic, series in sorted(run.source_buckets.items())},
            "target": {topic: list(series) for topic, series in sorted(run.target_buckets.items())},
            "findings": _finding_buckets(run),
        },
        "drift": config_drift(run.source, run.target),
        "roots": {
            "source": _root(result.source for result in run.windows),
            "target": _root(result.target for result in run.windows),
        },
        "read": {
            "records": run.cost.records_read,
            "bytes": run.cost.bytes_read,
            "windows": run.cost.windows,
            "windows_drilled": run.cost.windows_drilled,
        },
        "meta": {**meta, "seconds": run.cost.seconds},
    }


def finding_lines(run_id: str, findings: Sequence[Finding]) -> list[str]:
    """Return findings.jsonl, one JSON object a line, in report order."""
    return [
        json.dumps(
            {
                "run_id": run_id,
                "seq": number,
                "topic": finding.topic,
                "partition": finding.partition,
                "class": finding.finding_class.value,
                "field": finding.field,
                "src_offset": finding.source_offset,
                "dst_offset": finding.target_offset,
                "first_dst_offset": finding.first_target_offset,
                "distance": finding.distance,
                "src_hash": _hex(finding.source_hash),
                "dst_hash": _hex(finding.target_hash),
                "ts": finding.timestamp_ms,
            },
            sort_keys=True,
        )
        for number, finding in enumerate(findings, 1)
    ]


def config_drift(source: ClusterSnapshot, target: ClusterSnapshot) -> list[dict[str, str | None]]:
    """Return every topic setting that differs, sorted; None where a cluster does not know it."""
    drift = []
    for topic in sorted(source.configs.keys() & target.configs.keys()):
        here, there = source.configs[topic], target.configs[topic]
        drift += [
            {
                "topic": topic,
                "config": name,
                "source": here.get(name),
                "target": there.get(name),
            }
            for name in sorted(here.keys() | there.keys())
            if here.get(name) != there.get(name)
        ]
    return drift


def _cluster(cluster: ClusterSnapshot) -> dict[str, object]:
    return {"name": cluster.name, "bootstrap": cluster.bootstrap, "cluster_id": cluster.cluster_id}


def _topic(run: Reconciliation, topic: str) -> dict[str, object]:
    results = [result for result in run.windows if result.key.topic == topic]
    partitions = []
    for cut in run.cuts:
        if cut.topic != topic:
            continue
        findings = [f for f in run.findings if (f.topic, f.partition) == (cut.topic, cut.partition)]
        first_bad = min((f.position for f in findings), default=None)
        partitions.append(
            {
                "partition": cut.partition,
                "low": cut.low,
                "high": cut.high,
                "source_end": cut.source_end,
                "target_end": cut.target_end,
                "lagging": run.lagging[cut.topic_partition],
                "aged_out": cut.aged_out,
                "findings": _by_class(findings),
                "first_of_class": {
                    each.value: min(f.position for f in findings if f.finding_class is each)
                    for each in FindingClass
                    if any(f.finding_class is each for f in findings)
                },
                "first_bad_offset": first_bad,
                "proven_up_to": cut.high if first_bad is None else first_bad,
            }
        )
    return {
        "topic": topic,
        "records": {
            "source": sum(result.source.records for result in results),
            "target": sum(result.target.records for result in results),
        },
        "bytes": sum(result.source.bytes for result in results),
        "findings": _by_class([f for f in run.findings if f.topic == topic]),
        "partitions": partitions,
    }


def _by_class(findings: Sequence[Finding]) -> dict[str, int]:
    return {
        each.value: count
        for each in FindingClass
        if (count := sum(f.finding_class is each for f in findings))
    }


def _states(windows: Sequence[WindowResult]) -> list[list[object]]:
    """List the windows that differ; every other window of a cut is equal."""
    return [
        [*result.key, result.state.value, result.source.records, result.target.records]
        for result in windows
        if result.state is not WindowState.EQUAL
    ]


def _finding_buckets(run: Reconciliation) -> dict[str, list[int]]:
    from spark_jobs.reconcile import BUCKETS

    series = {each.value: [0] * BUCKETS for each in FindingClass}
    for finding in run.findings:
        if finding.timestamp_ms is not None:
            bucket = (finding.timestamp_ms - run.first_ms) // run.bucket_ms
            series[finding.finding_class.value][max(0, min(BUCKETS - 1, bucket))] += 1
    return {name: counts for name, counts in series.items() if any(counts)}


def _root(digests: Any) -> str:
    return _hex(root(digests).placed) or ""


def _hex(value: int | None) -> str | None:
    return None if value is None else f"{value & (1 << 64) - 1:016x}"
