"""The verdict of `kaudit watch` as text and as JSON. It names the offsets that it covers.

In: the running verdict, its outcome.  Out: text, a JSON document.  Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_jobs.findings import FindingClass
from spark_jobs.report.one_cluster import one_cluster_lines
from spark_jobs.running_verdict import Outcome, RunningVerdict, Side, Span, WatchFinding

SCHEMA_VERSION = 1

_MOST_LINES = 20
_KINDS = (FindingClass.MISSING, FindingClass.EXTRA, FindingClass.CORRUPT)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a watch ended. *command* repeats the options that name the clusters and topics."""

    names: tuple[str, str]
    cluster_ids: tuple[str, str]
    target_prefix: str
    seconds: float
    reason: str
    command: Sequence[str]


def finding_line(finding: WatchFinding) -> str:
    """Return one finding as a line."""
    return f"{finding.kind.value} {finding.topic_partition} offset {finding.offset}"


def screen(state: RunningVerdict, outcome: Outcome, ended: Ended) -> str:
    """Return the verdict for a terminal: what was compared, then why the verdict is not EQUAL."""
    spans = state.spans()
    counts = ", ".join(f"{kind.value} {_sum(spans, kind):,}" for kind in _KINDS)
    lines = [
        f"VERDICT  {outcome.verdict.value:<12}  {ended.names[0]} -> {ended.names[1]}   "
        f"{ended.reason} after {ended.seconds:.0f} s   exit {int(outcome.exit_code)}",
        *one_cluster_lines(ended.names, ended.cluster_ids, ended.target_prefix),
        f"compared: spans of {sum(map(_covered, spans)):,} offsets in {len(spans):,} partitions; "
        f"records: equal {sum(each.equal for each in spans):,}, {counts}",
    ]
    lines += [f"  {_span_line(each)}" for each in _worst_first(spans)[:_MOST_LINES]]
    lines += _more(len(spans), "partitions")
    lines.append(
        f"not read: {_behind(outcome, Side.SOURCE)} of the source, {_behind(outcome, Side.TARGET)} of the target, "
        "up to the log ends at the end of the watch"
    )
    if state.waiting:
        lines.append(f"not compared: {state.waiting:,} records without a counterpart up to now")
    lines += [f"reason   {each}" for each in outcome.reasons[:_MOST_LINES]]
    lines += _more(len(outcome.reasons), "reasons")
    lines += [f"finding  {finding_line(each)}" for each in state.findings[:_MOST_LINES]]
    lines += _more(sum(_sum(spans, kind) for kind in _KINDS), "findings")
    lines += [
        "The verdict covers these offsets as they were when they were read, and no others.",
        f"next     {shlex.join(['kaudit', 'reconcile', *ended.command, '--out', 'report'])}",
    ]
    return "\n".join(lines)


def _behind(outcome: Outcome, side: Side) -> str:
    if outcome.behind.unknown.get(side, 0):
        return "an unknown number of offsets"
    return f"{outcome.behind.offsets.get(side, 0):,} offsets"


def document(state: RunningVerdict, outcome: Outcome, ended: Ended) -> dict[str, Any]:
    """Return the verdict as JSON."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": outcome.verdict.value,
        "exit_code": int(outcome.exit_code),
        "reasons": list(outcome.reasons),
        "source": ended.names[0],
        "target": ended.names[1],
        "cluster_ids": list(ended.cluster_ids),
        "seconds": round(ended.seconds, 3),
        "waiting": state.waiting,
        "not_read": {
            side.value: {
                "offsets": outcome.behind.offsets.get(side, 0),
                "partitions_unknown": outcome.behind.unknown.get(side, 0),
            }
            for side in Side
        },
        "partitions": [
            {
                "topic": each.topic_partition.topic,
                "partition": each.topic_partition.partition,
                "from": each.start,
                "until": each.end,
                "equal": each.equal,
                "findings": {kind.value: each.findings.get(kind, 0) for kind in _KINDS},
                "waiting": each.waiting,
            }
            for each in state.spans()
        ],
        "first_findings": [
            {
                "class": each.kind.value,
                "topic": each.topic_partition.topic,
                "partition": each.topic_partition.partition,
                "offset": each.offset,
            }
            for each in state.findings
        ],
    }


def _sum(spans: Sequence[Span], kind: FindingClass) -> int:
    return sum(each.findings.get(kind, 0) for each in spans)


def _covered(span: Span) -> int:
    return span.end - span.start


def _worst_first(spans: Sequence[Span]) -> list[Span]:
    return sorted(
        spans, key=lambda each: (-sum(each.findings.values()), -each.waiting, each.topic_partition)
    )


def _span_line(span: Span) -> str:
    if span.end == span.start:
        text = f"{span.topic_partition}: nothing, from offset {span.start} on"
    else:
        text = (
            f"{span.topic_partition}: from offset {span.start} up to and without {span.end}: "
            f"{span.equal:,} records equal"
        )
    found = [f"{kind.value} {span.findings[kind]:,}" for kind in _KINDS if span.findings.get(kind)]
    waiting = [f"{span.waiting:,} waiting"] if span.waiting else []
    return ", ".join([text, *found, *waiting])


def _more(count: int, what: str) -> list[str]:
    return [f"  ... {count - _MOST_LINES:,} more {what}"] if count > _MOST_LINES else []
