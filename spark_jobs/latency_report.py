"""The result of `kaudit latency` as a table, CSV, JSON and a picture. Pure, apart from numpy in the picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable

from kclient.mirror_latency import Histogram, latency_topic
from spark_jobs.latency import Judgement, Measurement, Row
from spark_jobs.record_text import moment_text, printable
from spark_jobs.step_chart import Panel, chart
from spark_jobs.text_table import text_table
from spark_jobs.verdict import ExitCode

MEANING = (
    "Latency: from the newest record timestamp of a batch to the acknowledgement of the target, by kmirror's clock.",
    "With CreateTime a timestamp is the producer's, so the time to the source counts. A quantile is an upper bound.",
)
NOT_SHOWN = (
    "Not shown: records that are not copied yet (`kmirror status` has the lag), copied while emit.latency.enabled was "
    "false, of an interval that was not written (a kill), or copied by an append without an answer."
)
HOW_TO_MEASURE = (
    "Set emit.latency.enabled=true for kmirror. If it is set: nothing was copied in that time, retention has deleted "
    "the figures, or this user may not describe the topic."
)
BELOW_ZERO = -1
"""The quantile of latencies of which no more is known than that they are below 0."""

_ROWS = 20
_PANELS = 12
_NAMES = 4
_FAILURES = 2
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def word(found: Measurement) -> str:
    """Return the result in one or two words."""
    code = found.exit_codes[0]
    if code is ExitCode.UNREADABLE:
        return "NOT READ"
    if code is ExitCode.DIVERGED:
        return "ABOVE"
    if code is ExitCode.NO_VERDICT_YET:
        return "NOT JUDGED" if any(row.total.records for row in found.rows) else "NOTHING MEASURED"
    return "MEASURED" if found.scope.max_p99_ms is None else "WITHIN"


def screen(found: Measurement) -> str:
    """Return the result as text of at most 40 lines."""
    limit = found.scope.max_p99_ms
    limited = "" if limit is None else f"--max-p99 {duration(limit)}   "
    lines = [
        f"LATENCY  {word(found)}   {found.scope.target}   {limited}exit {int(found.exit_codes[0])}",
        _period(found),
        *MEANING,
        *_problems(found),
    ]
    if found.rows:
        lines += ["", *_table(found)]
    if not any(row.total.records for row in found.rows):
        lines += ["", *_nothing(found)]
    return "\n".join([*lines, "", *_skew(found), *_without_figure(found), NOT_SHOWN])


def _period(found: Measurement) -> str:
    if found.period is None:
        return f"no figures of these topics   latency topics read: {found.topics_read:,}"
    first, last = map(moment_text, found.period)
    intervals = sum(row.intervals for row in found.rows)
    processes = len({each for row in found.rows for each in row.added})
    return (
        f"figures from {first} to {last}   rows: {len(found.rows):,}   intervals: {intervals:,}   "
        f"processes of kmirror: {processes:,}"
    )


def _problems(found: Measurement) -> list[str]:
    lines = [
        f"not read    {topic}: {printable(cause)}"
        for topic, cause in list(found.failures.items())[:_FAILURES]
    ]
    if len(found.failures) > _FAILURES:
        lines.append(f"not read    {len(found.failures) - _FAILURES:,} more topics")
    for label, judgement in (("above", Judgement.ABOVE), ("not judged", Judgement.UNKNOWN)):
        rows = found.judged(judgement)
        if rows:
            lines.append(f"{label:<12}{_listed(_name(found, row) for row in rows)}")
    if found.judged(Judgement.UNKNOWN):
        lines.append(
            "            p99 is too close to the limit, or too many records have no timestamp or one ahead of the clock"
        )
    if found.unreadable:
        counts = (f"{n:,} in {latency_topic(alias)}" for alias, n in found.unreadable.items())
        also = (
            "" if found.scope.max_p99_ms is None else "   (no row is proven to be within a limit)"
        )
        lines.append(f"unreadable  records that are none of this version: {_listed(counts)}{also}")
    if found.several_clusters:
        aliases = (f"{alias} ({_listed(ids)})" for alias, ids in found.several_clusters.items())
        lines.append(
            f"several source clusters of one alias, in rows apart: {printable(_listed(aliases))}"
        )
    return lines


def _nothing(found: Measurement) -> list[str]:
    if found.rows:
        return ["No record had a timestamp, so none has a latency."]
    if found.failures:
        return ["Nothing is known of these topics: see what was not read."]
    scope = found.scope
    since = "" if scope.since_ms is None else f" since {moment_text(scope.since_ms)}"
    return [
        f"Nothing was measured for topics that match {printable(scope.topics.pattern)!r}{since}.",
        HOW_TO_MEASURE,
    ]


def _table(found: Measurement) -> list[str]:
    judged = found.scope.max_p99_ms is not None
    headings = ["source", "topic", "records", *_QUANTILES, "max", "partition", "ahead", "no time"]
    rows = []
    for row in found.rows[:_ROWS]:
        total = row.total
        cells = [
            _alias(found, row),
            printable(row.key.topic),
            f"{total.records:,}",
            *(_bound(total.quantile(share)) for share in _QUANTILES.values()),
            "-" if total.max_ms is None else duration(total.max_ms),
            "-" if total.max_ms is None else f"{total.max_partition}",
            f"{total.ahead:,}",
            f"{total.without_timestamp:,}",
        ]
        judgement = found.judgement(row)
        rows.append(cells if judgement is None else [*cells, judgement.value])
    if judged:
        headings.append("p99 is")
    lines = text_table(headings, rows, left=2)
    left_out = found.rows[_ROWS:]
    if left_out:
        records = sum(row.total.records for row in left_out)
        lines.append(f"{len(left_out):,} more rows, with {records:,} records: --out has all")
    return lines


def _skew(found: Measurement) -> list[str]:
    rows = [row for row in found.rows if row.total.ahead]
    if not rows:
        return []
    least = min(rows, key=lambda row: row.total.min_ms or 0)
    return [
        f"Clock skew: timestamps ahead of kmirror's clock in {sum(row.total.ahead for row in rows):,} records "
        f"(rows: {len(rows):,}). The least latency is {duration(least.total.min_ms or 0)} ({_name(found, least)}); "
        "others of that clock are too small by as much, or more."
    ]


def _without_figure(found: Measurement) -> list[str]:
    if not found.rows or found.failures or not found.without_figure:
        return []
    names = _listed(map(printable, found.without_figure))
    return [f"Topics that match and have no figure in this time: {names}"]


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _NAMES:,} more" if len(every) > _NAMES else ""
    return ", ".join(every[:_NAMES]) + more


def _alias(found: Measurement, row: Row) -> str:
    alias, cluster_id, _ = row.key
    return printable(f"{alias} ({cluster_id})" if alias in found.several_clusters else alias)


def _name(found: Measurement, row: Row) -> str:
    return f"{_alias(found, row)} {printable(row.key.topic)}"


def _bound(quantile: int | None) -> str:
    if quantile is None:
        return "-"
    return "< 0 ms" if quantile == BELOW_ZERO else f"<= {duration(quantile)}"


def duration(ms: int) -> str:
    """Return *ms* in readable units. Above a minute it is rounded, never towards 0.

    >>> duration(255), duration(4095), duration(-2000), duration(90_001), duration(7_200_000)
    ('255 ms', '4.095 s', '-2 s', '1 min 31 s', '2 h')
    """
    sign, size = ("-" if ms < 0 else ""), abs(ms)
    if size < 1000:
        return f"{ms} ms"
    if size < 60_000:
        return f"{sign}{size // 1000}{f'.{size % 1000:03d}'.rstrip('0').rstrip('.')} s"
    units = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
    at = next(n for n, (width, _) in enumerate(units) if size >= width)
    (large, name), (small, part) = units[at : at + 2]
    whole, rest = divmod(-(-size // small), large // small)
    return f"{sign}{whole:,} {name}" + (f" {rest} {part}" if rest else "")


def csv_text(found: Measurement) -> str:
    """Return every time bucket of every row as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            *("source_alias", "source_cluster_id", "topic", "start_ms", "time", "records"),
            *(f"{name}_ms" for name in _QUANTILES),
            *("max_ms", "max_partition", "ahead", "min_ms", "without_timestamp"),
        ]
    )
    for row in found.rows:
        for start, each in sorted(row.buckets.items()):
            figures = _figures(each)
            writer.writerow([*row.key, start, moment_text(start), *figures.values()])
    return out.getvalue()


def _figures(histogram: Histogram) -> dict[str, int | None]:
    return {
        "records": histogram.records,
        **{f"{name}_ms": histogram.quantile(share) for name, share in _QUANTILES.items()},
        "max_ms": histogram.max_ms,
        "max_partition": None if histogram.max_ms is None else histogram.max_partition,
        "ahead": histogram.ahead,
        "min_ms": histogram.min_ms,
        "without_timestamp": histogram.without_timestamp,
    }


def document(found: Measurement) -> dict[str, object]:
    """Return everything as JSON-ready values, but for the histograms of time buckets, which have most of the bytes."""
    scope, period, codes = found.scope, found.period, found.exit_codes
    return {
        "schema_version": 1,
        "result": word(found),
        "exit_code": int(codes[0]),
        "exit_codes": [int(code) for code in codes],
        "meaning": " ".join(MEANING),
        "not_shown": NOT_SHOWN,
        "target": scope.target,
        "topics": scope.topics.pattern,
        "bucket_ms": scope.bucket_ms,
        "since_ms": scope.since_ms,
        "max_p99_ms": scope.max_p99_ms,
        "from_ms": None if period is None else period[0],
        "until_ms": None if period is None else period[1],
        "not_read": [
            {"topic": topic, "cause": cause} for topic, cause in sorted(found.failures.items())
        ],
        "unreadable_records": [
            {"topic": latency_topic(alias), "records": count}
            for alias, count in sorted(found.unreadable.items())
        ],
        "several_clusters": found.several_clusters,
        "without_figure": list(found.without_figure),
        "rows": [_row_document(found, row) for row in found.rows],
    }


def _row_document(found: Measurement, row: Row) -> dict[str, object]:
    judgement = found.judgement(row)
    return {
        **row.key._asdict(),
        "from_ms": row.from_ms,
        "until_ms": row.until_ms,
        "intervals": row.intervals,
        "processes": sorted(row.added),
        "p99_is": None if judgement is None else judgement.value,
        **_figures(row.total),
        "histogram": sorted(row.total.buckets.items()),
        "buckets": [
            {"start_ms": start, **_figures(each)} for start, each in sorted(row.buckets.items())
        ],
    }


def json_text(found: Measurement) -> str:
    """Return `document` as text, in one line: with an indent it takes ten times as long."""
    return json.dumps(document(found)) + "\n"


def picture(found: Measurement) -> bytes:
    """Return p50, p99 and maximum of the worst rows over time as PNG; a latency below 0 is drawn at 0.

    Raise ValueError if no time buckets were kept.
    """
    limit, bucket_ms = found.scope.max_p99_ms, found.scope.bucket_ms
    if bucket_ms is None:
        raise ValueError("the scope has no time buckets")
    panels = []
    for row in [row for row in found.rows if row.total.records][:_PANELS]:
        figures = {start: _figures(each) for start, each in row.buckets.items()}
        lines = {
            label: {
                start: max(0, number)
                for start, each in figures.items()
                if (number := each[f"{label}_ms"]) is not None
            }
            for label in ("p50", "p99", "max")
        }
        skew = f", {row.total.ahead:,} records ahead" if row.total.ahead else ""
        panels.append(
            Panel(
                f"{_name(found, row)}: latency in ms{skew}",
                bucket_ms,
                lines,
                largest=True,
                limit=None if limit is None else ("--max-p99", limit),
            )
        )
    return chart(panels)
