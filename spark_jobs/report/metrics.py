"""metrics.prom: the counts of one report in the text format that node_exporter's textfile collector reads.

Each family of a partition is also written for the whole run, with `audit_run_` in place of `audit_`. So a sum over
either family counts nothing twice. What was not measured is absent: a count of findings where nothing was
compared, and the coverage of an empty scope. Lag and scope are absent where a log end is not known. A run that ended
early has the verdict only.

In: the document of report.json.  Out: text, the same for the same document.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kclient.prometheus_text import family_head, label_pairs
from spark_jobs.findings import FindingClass
from spark_jobs.report.document import Document, lacks_log_end
from spark_jobs.verdict import Verdict

Labels = Mapping[str, str]
_Rows = Sequence[tuple[Labels, Mapping[str, Any]]]
"""Labels, and the counts that belong to them."""


class _Sample(NamedTuple):
    labels: Labels
    value: float


class _Family(NamedTuple):
    name: str
    help: str
    samples: list[_Sample]


_RECORDS = {
    FindingClass.MISSING: "Records of the source that the target lacks",
    FindingClass.TRUNCATED: "Records at the end of the source's log that a complete mirror lacks",
    FindingClass.EXTRA: "Records of the target that the source lacks",
    FindingClass.DUPLICATE: "Records that the target has once more than the source",
    FindingClass.CORRUPT: "Records with another key, value, headers, timestamp or timestamp type",
    FindingClass.REORDERED: "Records with the same content in another place",
    FindingClass.SHIFTED: "Records in runs at other offsets that no other finding explains",
    FindingClass.MISROUTED: "Records of the source's partition in another partition of the target",
    FindingClass.VISIBILITY: "Records that read_committed consumers get from one log only",
}
_OFFSETS = {
    "in_scope": ("scope", "Offsets of either log, without lag"),
    "compared": (
        "compared",
        "Offsets that were compared, with either result; without explained ones",
    ),
    "empty": ("empty", "Offsets that were read on both sides and have no record on either"),
    "aged_out": ("aged_out", "Offsets that only one log still has"),
    "not_read": ("not_read", "Offsets that a broker did not return"),
    "lagging": ("lagging", "Offsets of the source that the target had not received at the cut"),
}
_NEED_LOGS = ("in_scope", "aged_out", "not_read", "lagging")
"""Counts of `_OFFSETS` that are not known where a partition has no known offsets."""
_NEED_BOTH_LOGS = ("in_scope", "aged_out", "lagging")
"""Those that are not known either where one cluster did not return the log end: see `lacks_log_end`."""


def metrics(document: Document) -> str:
    """Return metrics.prom of the report *document*."""
    arguments = document["meta"]["arguments"]
    base = {
        "source": arguments["source"],
        "target": arguments["target"],
        "scope": arguments["topics"],
    }
    families = [*_run(document, base)]
    if "totals" in document:
        families += _compared(document, base)
    return "".join(_text(each) for each in families if each.samples)


def _run(document: Document, base: Labels) -> Iterator[_Family]:
    """Yield what every run measures, also one that ended early."""
    meta = document["meta"]
    ended = datetime.strptime(meta["ended_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    yield _Family(
        "audit_verdict",
        "1 for the verdict of the run, 0 for every other one",
        [
            _Sample({**base, "verdict": each.value}, int(document["verdict"] == each.value))
            for each in Verdict
        ],
    )
    yield _one("audit_exit_code", "Exit code of the run", base, document["exit_code"])
    yield _one(
        "audit_end_timestamp", "End of the run, in seconds since the epoch", base, ended.timestamp()
    )
    if document["verdict"] == Verdict.CONSISTENT.value:
        yield _one(
            "audit_last_success_timestamp",
            "End of the run if its verdict is CONSISTENT, in seconds since the epoch",
            base,
            ended.timestamp(),
        )
    yield _one("audit_seconds", "Duration of the run", base, meta["total_seconds"])
    passed = meta["self_test_passed"]
    if passed is not None:
        yield _one(
            "audit_self_test_passed",
            "1 if the self-test found all seeded faults and no other ones, now or before in this environment",
            base,
            int(passed),
        )


def _compared(document: Document, base: Labels) -> Iterator[_Family]:
    """Yield what a comparison measures: run by run, and partition by partition."""
    totals = document["totals"]
    partitions: _Rows = [
        (
            {**base, "topic": topic["topic"], "partition": str(each["partition"])},
            {**each, "lacks_log_end": lacks_log_end(each)},
        )
        for topic in document["topics"]
        for each in topic["partitions"]
    ]
    windows = {
        state: sum(each["windows"][state] for _, each in partitions)
        for state in ("equal", "different")
    }
    whole = {
        **totals,
        "explained_by": document["explained"],
        "windows": windows,
        "lacks_log_end": any(each["lacks_log_end"] for _, each in partitions),
    }
    for prefix, rows in (("audit_run_", [(base, whole)]), ("audit_", partitions)):
        yield from _counts(prefix, rows)
    yield from _proofs(partitions)
    yield from _earlier(document["since"], base)
    found, read = document["findings"], document["read"]
    yield _one("audit_run_findings", "Findings; a run of records is one", base, found["found"])
    yield _one("audit_run_findings_written", "Lines of findings.jsonl", base, found["written"])
    yield _one(
        "audit_run_unknown_partitions",
        "Partitions without a known offset of which a cluster did not return the log",
        base,
        totals["unknown_partitions"],
    )
    yield _one(
        "audit_run_unequal_ends_partitions",
        "Partitions without an offset in scope that end at different offsets in the two logs; "
        "with --renumbered, those of which a log was written to",
        base,
        totals["unequal_ends"],
    )
    yield _one(
        "audit_run_drift_partitions",
        "Partitions that only one cluster has",
        base,
        len(document["partition_drift"]),
    )
    yield _one(
        "audit_run_drift_configs", "Topic settings that differ", base, len(document["drift"])
    )
    yield _one(
        "audit_run_windows_drilled",
        "Digest windows that differ at the last look, and were compared record by record",
        base,
        read["windows_drilled"],
    )
    for what, text in (
        ("records", "Records that were digested"),
        ("bytes", "Keys and values that were digested, serialized"),
    ):
        yield _Family(
            f"audit_run_digested_{what}",
            text,
            [
                _Sample({**base, "cluster": base[side]}, read[side][what])
                for side in ("source", "target")
            ],
        )


def _earlier(since: dict[str, Any] | None, base: Labels) -> Iterator[_Family]:
    """Yield what a run with --since took from earlier ones."""
    if since is None:
        return
    yield _one(
        "audit_run_earlier_offsets",
        "Offsets that an earlier run compared, or explained, and this one did not compare again",
        base,
        since["offsets"]["earlier"],
    )
    if since["oldest"] is not None:
        ended = datetime.strptime(since["oldest"]["ended_at"], "%Y-%m-%dT%H:%M:%SZ")
        yield _one(
            "audit_run_oldest_comparison_timestamp",
            "End of the oldest run of which a comparison is used, in seconds since the epoch",
            base,
            ended.replace(tzinfo=UTC).timestamp(),
        )


def _counts(prefix: str, rows: _Rows) -> Iterator[_Family]:
    """Yield the counts of *rows*: the whole run, or its partitions."""
    yield _Family(
        f"{prefix}records_verified",
        "Records with the same content at the same offset in both logs; with --renumbered in the same order",
        [_Sample(labels, each["verified"]) for labels, each in rows],
    )
    for kind, text in _RECORDS.items():
        yield _Family(
            f"{prefix}records_{kind.value}",
            f"{text}, in what was compared",
            list(_found(rows, kind)),
        )
    yield _Family(
        f"{prefix}undecodable_offsets",
        "Offsets of batches with a wrong CRC or invalid records, in what was read",
        list(_found(rows, FindingClass.UNDECODABLE)),
    )
    yield _Family(
        f"{prefix}gap_offsets",
        "Offsets that one log lacks, explained by a cause, or never copied and deleted at the source",
        [
            *(
                _Sample({**labels, "explained": "true", "cause": cause}, count)
                for labels, each in rows
                for cause, count in each["explained_by"].items()
            ),
            *(
                _Sample({**labels, "explained": "false", "cause": ""}, count)
                for labels, count in _found(rows, FindingClass.GAP)
            ),
        ],
    )
    for name, (words, text) in _OFFSETS.items():
        yield _Family(
            f"{prefix}{words}_offsets",
            text,
            [
                _Sample(labels, each[name])
                for labels, each in rows
                if not (name in _NEED_LOGS and each["unknown_partitions"])
                and not (name in _NEED_BOTH_LOGS and each["lacks_log_end"])
            ],
        )
    yield _Family(
        f"{prefix}coverage_ratio",
        "Compared offsets divided by those in scope; explained ones are in scope and not compared",
        [
            _Sample(labels, each["coverage"])
            for labels, each in rows
            if each["coverage"] is not None and not each["lacks_log_end"]
        ],
    )
    for state, name, text in (
        ("equal", "ok", "Digest windows that are equal in everything that was read"),
        ("different", "bad", "Digest windows that differ; unread offsets may be the reason"),
    ):
        yield _Family(
            f"{prefix}windows_{name}",
            text,
            [_Sample(labels, each["windows"][state]) for labels, each in rows],
        )


def _proofs(partitions: _Rows) -> Iterator[_Family]:
    yield _Family(
        "audit_first_bad_offset",
        "The lowest offset at which the logs differ",
        [
            _Sample(labels, each["first_bad_offset"])
            for labels, each in partitions
            if each["first_bad_offset"] is not None
        ],
    )
    for name, key, text in (
        ("from", "low", "The first offset that both logs have"),
        (
            "upto",
            "proven_up_to",
            "The end, exclusive, of the offsets that are equal, or explained, without exception",
        ),
    ):
        yield _Family(
            f"audit_verified_{name}_offset",
            text,
            [_Sample(labels, each[key]) for labels, each in partitions if each["compared"]],
        )


def _found(rows: _Rows, kind: FindingClass) -> Iterator[_Sample]:
    """Yield the counts of *kind*: 0 only where something was compared."""
    for labels, each in rows:
        count = each["findings"].get(kind.value, 0)
        if count or each["compared"]:
            yield _Sample(labels, count)


def _one(name: str, text: str, labels: Labels, value: float) -> _Family:
    return _Family(name, text, [_Sample(labels, value)])


def _text(family: _Family) -> str:
    samples = (
        f"{family.name}{{{label_pairs(each)}}} {value!r}\n" for each, value in family.samples
    )
    return family_head(family.name, "gauge", family.help) + "".join(samples)
