"""The result of `kaudit counts` as a table, CSV, JSON and a picture. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from spark_jobs.record_text import moment_text, printable
from spark_jobs.report.one_cluster import one_cluster_lines
from spark_jobs.report.recreated import recreated_lines
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.step_chart import Panel, chart
from spark_jobs.text_table import text_table
from spark_jobs.time_counts import Bucket, TimeCounts, TopicScope
from spark_jobs.verdict import ExitCode

Clusters: TypeAlias = tuple[ClusterSnapshot, ClusterSnapshot]
"""Source and target."""

NO_PROOF = (
    "Equal counts are no proof that the records are equal, or that none is lost: "
    "`kaudit reconcile` compares the records. Each side is counted once: counts that differ may come from a change "
    "between the two reads, and `kaudit reconcile` looks again at what differs."
)
WORDS = {
    ExitCode.CONSISTENT: "EQUAL",
    ExitCode.DIVERGED: "DIFFERENT",
    ExitCode.NO_VERDICT_YET: "LAGGING",
    ExitCode.UNREADABLE: "NOT READ",
    ExitCode.AGED_OUT: "AGED OUT",
}
_NO_TIME = "no timestamp or before 1970"
_ROWS = 20
_PANELS = 12
_HEADINGS = (
    "topic",
    "start_ms",
    "time",
    "source_records",
    "target_records",
    "missing_records",
    "source_bytes",
    "target_bytes",
    "missing_bytes",
)


def screen(
    counts: TimeCounts, clusters: Clusters, recreated: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return the result as text: topics, then the first buckets that differ; *recreated* as in `document`."""
    names = _names(clusters)
    codes = counts.exit_codes
    scope, differing, topics = counts.scope, counts.differing, counts.topics()
    lines = [
        f"COUNTS  {_word(counts)}   {names[0]} -> {names[1]}   "
        f"buckets of {_span(counts.bucket_ms)} by record timestamp   exit {int(codes[0])}",
        *one_cluster_lines(
            names, (clusters[0].cluster_id, clusters[1].cluster_id), clusters[1].prefix
        ),
        f"offsets: {scope.counted:,} counted   {scope.lagging:,} lag   {scope.aged_out:,} aged out   "
        f"{scope.not_read:,} not read",
    ]
    lines += [
        f"not read  {each.cluster} {each.topic_partition} {each.span}: {printable(each.cause)}"
        for each in counts.failures[:_ROWS]
    ]
    if len(counts.failures) > _ROWS:
        lines.append(f"not read  {len(counts.failures) - _ROWS:,} more ranges: --out has all")
    rows = [(topic, *_numbers(each.total), f"{each.differing:,}") for topic, each in topics.items()]
    lines += ["", *text_table(("topic", *_COLUMNS, "buckets differ"), rows, left=1)]
    if differing:
        lines += ["", f"buckets that differ: {min(_ROWS, len(differing)):,} of {len(differing):,}"]
        found = [(each.topic, _time(each.start_ms), *_numbers(each)) for each in differing[:_ROWS]]
        lines += text_table(("topic", "time", *_COLUMNS), found, left=2)
    if recreated:
        lines += ["", *recreated_lines(recreated)]
    return "\n".join([*lines, "", NO_PROOF])


def _word(counts: TimeCounts) -> str:
    code = counts.exit_codes[0]
    if code is ExitCode.NO_VERDICT_YET and not counts.scope.lagging:
        return "NOTHING COUNTED"
    return WORDS[code]


_COLUMNS = ("records", "at target", "missing", "bytes", "at target", "missing")


def _numbers(each: Bucket) -> tuple[str, ...]:
    return tuple(
        f"{number:,}"
        for pair in zip(each.source, each.target, each.missing, strict=True)
        for number in pair
    )


def csv_text(counts: TimeCounts) -> str:
    """Return every bucket as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_HEADINGS)
    for each in counts.buckets:
        start = "" if each.start_ms is None else each.start_ms
        records, size = zip(each.source, each.target, each.missing, strict=True)
        writer.writerow([each.topic, start, _time(each.start_ms), *records, *size])
    return out.getvalue()


def document(
    counts: TimeCounts, clusters: Clusters, recreated: Sequence[Mapping[str, Any]] = ()
) -> dict[str, object]:
    """Return everything as JSON-ready values; *recreated* is a `recreated_document`."""
    codes = counts.exit_codes
    return {
        "schema_version": 1,
        "result": _word(counts),
        "exit_code": int(codes[0]),
        "exit_codes": [int(code) for code in codes],
        "note": NO_PROOF,
        "source": clusters[0].name,
        "target": clusters[1].name,
        "clusters": [
            {"name": each.name, "cluster_id": each.cluster_id, "prefix": each.prefix}
            for each in clusters
        ],
        "bucket_ms": counts.bucket_ms,
        "limits": {
            "max_lag": counts.limits.max_lag,
            "min_coverage": counts.limits.min_coverage,
        },
        "offsets": _offsets(counts.scope),
        "not_read": [each.document() for each in counts.failures],
        "topics": [
            {
                "topic": topic,
                "offsets": _offsets(each.scope),
                "buckets_differing": each.differing,
                **_sides(each.total),
            }
            for topic, each in counts.topics().items()
        ],
        "buckets": [
            {"topic": each.topic, "start_ms": each.start_ms, **_sides(each)}
            for each in counts.buckets
        ],
        "recreated": list(recreated),
    }


def json_text(
    counts: TimeCounts, clusters: Clusters, recreated: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return `document` as text."""
    out = io.StringIO()
    # json.dumps holds all pieces of the text at once, which take five times its size.
    json.dump(document(counts, clusters, recreated), out, indent=2)
    return out.getvalue() + "\n"


def picture(counts: TimeCounts, clusters: Clusters) -> bytes:
    """Return the records of each topic over time as PNG; topics that differ come first."""
    names = _names(clusters)
    topics = counts.topics()
    ranked = sorted(topics, key=lambda topic: (-topics[topic].differing, topic))
    panels = []
    for topic in ranked[:_PANELS]:
        of_topic = topics[topic]
        timed = [(each.start_ms, each) for each in of_topic.buckets if each.start_ms is not None]
        lines = {
            f"source {names[0]}": {start: each.source.records for start, each in timed},
            f"target {names[1]}": {start: each.target.records for start, each in timed},
        }
        title = f"{topic}: records, {of_topic.differing:,} of the buckets differ"
        panels.append(Panel(title, counts.bucket_ms, lines, shaded=True))
    return chart(panels)


def _names(clusters: Clusters) -> tuple[str, str]:
    return clusters[0].name, clusters[1].name


def _sides(each: Bucket) -> dict[str, object]:
    return {
        "source": each.source._asdict(),
        "target": each.target._asdict(),
        "missing": each.missing._asdict(),
    }


def _offsets(scope: TopicScope) -> dict[str, int]:
    return {
        "counted": scope.counted,
        "lag": scope.lagging,
        "aged_out": scope.aged_out,
        "not_read": scope.not_read,
    }


def _time(start_ms: int | None) -> str:
    return _NO_TIME if start_ms is None else moment_text(start_ms)


def _span(ms: int) -> str:
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m")):
        if ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms // 1000}s"
