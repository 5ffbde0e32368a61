"""The report document: a reconciliation as JSON-ready values, source of report.json, screen and page.

Deterministic: the same logs and options give the same bytes on any machine at any time. Wall-clock time, durations, the
run id, the arguments and the SHA-256 of the report before are under `meta` only.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kclient.types import TopicPartition
from spark_jobs.accounting import add
from spark_jobs.attribution import Reason, Where
from spark_jobs.cut import PartitionCut
from spark_jobs.findings import DEFAULT_MAX_FINDINGS, Finding, FindingClass
from spark_jobs.kept import Compared, Earlier, Proof, by_run, compared
from spark_jobs.ranges import Ranges, total
from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.recreated import recreated_document
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.verdict import Counts
from spark_jobs.windows import Digest, WindowResult, WindowState, root

SCHEMA_VERSION = 9
"""Of report.json; `schemas/report.json` describes it."""
_MARKS = "kbroker.mirror."
"""Settings with which the mirror marks its topics at the target."""

REFUSED_ENTRIES = 100
"""Refused entries of the gap ledger that are written one by one; the others are counted."""

STANDING = 100
"""Partitions of which an earlier look stands that are written one by one; the others are counted."""

Document = dict[str, Any]
T = TypeVar("T")


def build_document(
    run: Reconciliation, meta: Mapping[str, object], max_findings: int = DEFAULT_MAX_FINDINGS
) -> Document:
    """Return the report of *run* as JSON-ready values; findings.jsonl has at most *max_findings* of the findings."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": run.outcome.verdict.value,
        "exit_code": int(run.outcome.exit_code),
        "exit_codes": [int(code) for code in run.outcome.applicable],
        "limits": {
            "max_lag": run.options.limits.max_lag,
            "min_coverage": run.options.limits.min_coverage,
            "fail_on": sorted(each.value for each in run.options.limits.fail_on),
            "complete": run.options.complete,
            "renumbered": run.options.renumbered,
        },
        "not_failed_on": {
            each.value: count for each, count in sorted(run.outcome.not_failed_on.items(), key=str)
        },
        "hash_key": run.options.hash_key.name or None,
        "source": cluster_document(run.source),
        "target": cluster_document(run.target),
        "totals": _totals(run.counts),
        "read_committed": _read_committed(run),
        "explained": _by_cause(run.account.explained.values()),
        "ledger": _ledger(run),
        "recreated": recreated_document(run.options.recreated, run.target),
        "evidence": _evidence(run),
        "settle": _settle(run),
        "since": _since(run),
        "topics": [_topic(run, topic, each) for topic, each in sorted(_by_topic(run).items())],
        "windows": {"offsets": run.options.window, "states": _states(run.windows)},
        "findings": {"found": len(run.findings), "written": min(len(run.findings), max_findings)},
        "timeline": {
            "first_ms": run.first_ms,
            "bucket_ms": run.bucket_ms,
            "source": {topic: list(series) for topic, series in sorted(run.source_buckets.items())},
            "target": {topic: list(series) for topic, series in sorted(run.target_buckets.items())},
            "findings": _finding_buckets(run),
        },
        "drift": config_drift(run.source, run.target),
        "partition_drift": partition_drift(run.cuts),
        "roots": {
            "source": _root(result.source for result in run.windows),
            "target": _root(result.target for result in run.windows),
        },
        "read": {
            "records": run.cost.records_read,
            "bytes": run.cost.bytes_read,
            "source": _read(run, (result.source for result in run.windows)),
            "target": _read(run, (result.target for result in run.windows)),
            "windows": run.cost.windows,
            "windows_drilled": run.cost.windows_drilled,
        },
        "meta": {**meta, "seconds": run.cost.seconds},
    }


def error_document(exit_code: int, cause: str, meta: Mapping[str, object]) -> Document:
    """Return the report of a run that ended without a reconciliation."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": "ERROR",
        "exit_code": exit_code,
        "exit_codes": [exit_code],
        "cause": cause,
        "meta": dict(meta),
    }


def _totals(counts: Counts) -> dict[str, object]:
    return {
        "in_scope": counts.in_scope,
        "compared": counts.compared,
        "coverage": None
        if counts.coverage is None
        else math.floor(counts.coverage * 1_000_000) / 1_000_000,
        "verified": counts.verified,
        "empty": counts.empty,
        "explained": counts.explained,
        "aged_out": counts.aged_out,
        "not_read": counts.not_read,
        "lagging": counts.lagging,
        "different": {each.value: counts.different.get(each, 0) for each in FindingClass},
        "findings": {each.value: counts.findings.get(each, 0) for each in FindingClass},
        "unreadable": list(counts.unreadable),
        "unknown_partitions": counts.unknown,
        "unequal_ends": counts.unequal_ends,
    }


def _read_committed(run: Reconciliation) -> dict[str, object]:
    """Return of how many records it was not compared whether a consumer with read_committed gets them."""
    undecided = [cut.undecided for cut in run.cuts if cut.undecided]
    return {"undecided_offsets": sum(undecided), "undecided_partitions": len(undecided)}


def _ledger(run: Reconciliation) -> dict[str, object] | None:
    """Return what the run did with the mirror's gap ledger; None with --no-ledger."""
    ledger, entries = run.options.ledger, run.ledger_entries
    if ledger is None:
        return None
    return {
        "topics": list(ledger.topics),
        "entries": len(entries.gaps) + len(entries.refused),
        "used": len(run.account.used),
        "refused": len(entries.refused),
        "refused_entries": [
            {**each.entry.as_json(), "reason": each.reason}
            for each in entries.refused[:REFUSED_ENTRIES]
        ],
        "changes": [each.as_json() for each in entries.changes[:REFUSED_ENTRIES]],
        "unreadable": ledger.unreadable,
        "problem": ledger.problem,
    }


def _evidence(run: Reconciliation) -> dict[str, object] | None:
    """Return which log the mirror's evidence shows as changed, in records of findings; None with --no-evidence."""
    found = run.attributed
    if found is None:
        return None
    return {
        "topics": list(found.evidence.topics),
        "unreadable": found.evidence.copied.unreadable,
        "problem": found.evidence.problem,
        "where": {each.value: found.where.get(each, 0) for each in Where},
        "unknown_because": {
            each.value: found.reasons[each] for each in Reason if each in found.reasons
        },
    }


def _settle(run: Reconciliation) -> dict[str, object]:
    """Return how often the run looked again at what differed, and what came of it."""
    settled = run.settled
    return {
        "seconds": settled.patience.settle_s,
        "max_rounds": settled.patience.rounds,
        "rounds": settled.rounds,
        "partitions": settled.suspects,
        "records_digested": settled.records,
        "vanished": {each.value: settled.vanished.get(each, 0) for each in FindingClass},
        "equal_by_record": _equal_by_record(run),
        "read_later": settled.read_later,
        "standing": len(settled.standing),
        "standing_partitions": [each._asdict() for each in settled.standing[:STANDING]],
        "problem": settled.problem,
    }


def _equal_by_record(run: Reconciliation) -> int:
    """Return the windows with other digests in partitions of which the records, read after that, do not differ."""
    account = run.account
    equal = {
        tp
        for tp, counts in account.partitions.items()
        if not (counts.different or counts.findings or counts.explained or account.failed.get(tp))
    }
    return sum(
        result.state is not WindowState.EQUAL and TopicPartition(*result.key[:2]) in equal
        for result in run.windows
    )


def _since(run: Reconciliation) -> dict[str, object] | None:
    """Return what the verdict takes from earlier runs; None if this run compared everything."""
    kept, plan = run.options.kept, run.carried
    if kept is None:
        return None
    each = [_compared(run, cut) for cut in run.cuts]
    earlier = by_run(span for one in each for span in one.earlier)
    gone = by_run(span for one in each for span in one.gone)
    # What is kept again names its runs, also of offsets that are no part of the known logs.
    aside = {each.run for held in plan.aside.values() for each in held.windows}
    aside |= {each.run for held in plan.aside.values() for each in held.gone}
    runs = sorted({*earlier, *gone, *aside})
    carried = sum(map(len, plan.carried.values()))
    rechecked = [window for windows in plan.recheck.values() for window in windows]
    return {
        "base": kept.runs[-1]._asdict(),
        "runs": [kept.runs[number]._asdict() for number in runs],
        "offsets": {
            "now": sum(total(one.now) for one in each),
            "earlier": sum(earlier.values()),
            "gone": sum(gone.values()),
            "never": sum(total(one.never) for one in each),
        },
        "oldest": _oldest(run, earlier),
        "recheck": {
            "share": run.options.recheck,
            "windows": len(rechecked),
            "of_windows": carried + len(rechecked),
            "offsets": sum(window.span.high - window.span.low for window in rechecked),
        },
        "refused": [refusal._asdict() for refusal in plan.refused],
    }


def _oldest(run: Reconciliation, earlier: Mapping[int, int]) -> dict[str, str] | None:
    """Return the earliest run of which the verdict uses a comparison."""
    kept = run.options.kept
    return None if kept is None or not earlier else kept.runs[min(earlier)]._asdict()


def _compared(run: Reconciliation, cut: PartitionCut) -> Compared:
    tp = cut.topic_partition
    lagging = run.account.partitions[tp].lagging > 0
    return compared(
        cut,
        run.carried,
        run.account.failed.get(tp, []),
        lagging=lagging,
        explained_gaps=run.account.explained_gaps.get(tp, []),
    )


def _proof(run: Reconciliation, cut: PartitionCut) -> Proof:
    """Return how far the partition was compared; that of the kept run if a log could not be read now."""
    aside = run.carried.aside.get(cut.topic_partition)
    return run.options.lineage.proof_of(cut) if aside is None else aside.proof


def _compared_ranges(run: Reconciliation, cut: PartitionCut) -> dict[str, object]:
    found = _compared(run, cut)
    return {
        "now": [list(span) for span in found.now],
        "earlier": _named(run, found.earlier),
        "gone": _named(run, found.gone),
        "never": [list(span) for span in found.never],
    }


def _named(run: Reconciliation, spans: Iterable[Earlier]) -> list[list[object]]:
    runs = () if run.options.kept is None else run.options.kept.runs
    return [[low, high, runs[number].run_id] for low, high, number in spans]


def _by_cause(explained: Iterable[Mapping[str, int]]) -> dict[str, int]:
    causes: Counter[str] = Counter()
    for each in explained:
        causes.update(each)
    return dict(sorted(causes.items()))


def sample(findings: Sequence[Finding], most: int) -> list[tuple[int, Finding]]:
    """Return at most *most* of *findings* with their numbers, in order; see `fair_share`."""
    return fair_share(
        list(enumerate(findings, 1)),
        most,
        lambda each: (each[1].topic, each[1].partition, each[1].finding_class),
    )


def fair_share(rows: list[T], most: int, place: Callable[[T], Hashable]) -> list[T]:
    """Return at most *most* of *rows*, in order.

    The rows of each *place* (a class of a partition) take turns, so that one that has few is shown in full.
    """
    if len(rows) <= most:
        return rows
    turns: Counter[Hashable] = Counter()
    ranked = []
    for number, each in enumerate(rows):
        of_place = place(each)
        ranked.append((turns[of_place], number))
        turns[of_place] += 1
    return [rows[number] for number in sorted(n for _, n in sorted(ranked)[:most])]


def finding_lines(findings: Iterable[tuple[int, Finding]], window: int) -> list[str]:
    """Return findings.jsonl, one JSON object a line, in report order; *window* is the size of a window in offsets.

    No line has a run id: the file is the same for the same logs, and report.json has its SHA-256.
    """
    return [
        json.dumps(
            {
                "seq": number,
                "topic": finding.topic,
                "partition": finding.partition,
                "class": finding.finding_class.value,
                "field": finding.field,
                "src_offset": finding.source_offset,
                "dst_offset": finding.target_offset,
                "first_dst_offset": finding.first_target_offset,
                "distance": finding.distance,
                "records": finding.records,
                "last_offset": finding.last_offset,
                "dst_partition": finding.target_partition,
                "src_hash": _hex(finding.source_hash),
                "dst_hash": _hex(finding.target_hash),
                "ts": finding.timestamp_ms,
                "window": _window(finding.position, window),
                "where": finding.where,
            },
            sort_keys=True,
        )
        for number, finding in findings
    ]


def _window(offset: int, size: int) -> list[int]:
    """Return the first and the last offset of the window that has *offset*."""
    low = offset // size * size
    return [low, low + size - 1]


def config_drift(source: ClusterSnapshot, target: ClusterSnapshot) -> list[dict[str, str | None]]:
    """Return every topic setting that differs, sorted; None where a cluster does not know it.

    A default that only one cluster knows is no difference: clusters of other versions have other settings.
    """
    drift = []
    for topic in sorted(source.configs.keys() & target.configs.keys()):
        here, there = source.configs[topic], target.configs[topic]
        set_here = source.overrides.get(topic, frozenset())
        set_there = target.overrides.get(topic, frozenset())
        comparable = here.keys() & there.keys() | set_here | set_there
        drift += [
            {
                "topic": topic,
                "config": name,
                "source": here.get(name),
                "target": there.get(name),
            }
            for name in sorted(comparable)
            if here.get(name) != there.get(name) and not name.startswith(_MARKS)
        ]
    return drift


def partition_drift(cuts: Sequence[PartitionCut]) -> list[dict[str, object]]:
    """Return the partitions that only one cluster has."""
    return [
        {
            "topic": cut.topic,
            "partition": cut.partition,
            "only_at": "source" if cut.on_source else "target",
        }
        for cut in cuts
        if not (cut.on_source and cut.on_target)
    ]


def _read(run: Reconciliation, digests: Iterable[Digest]) -> dict[str, int]:
    """Return what of *digests* this run read: all but the carried ones."""
    every, carried = root(digests), root(run.carried.digests())
    return {"records": every.records - carried.records, "bytes": every.bytes - carried.bytes}


def cluster_document(cluster: ClusterSnapshot) -> dict[str, object]:
    """Return which cluster it is, for a report."""
    return {
        "name": cluster.name,
        "bootstrap": cluster.bootstrap,
        "cluster_id": cluster.cluster_id,
        "prefix": cluster.prefix,
    }


class _OfTopic(NamedTuple):
    """What a run has of one topic."""

    cuts: list[PartitionCut]
    windows: list[WindowResult]
    findings: list[Finding]


def _by_topic(run: Reconciliation) -> Mapping[str, _OfTopic]:
    """Return the cuts, windows and findings of each topic: a run may have thousands of topics."""
    found: dict[str, _OfTopic] = defaultdict(lambda: _OfTopic([], [], []))
    for cut in run.cuts:
        found[cut.topic].cuts.append(cut)
    for result in run.windows:
        found[result.key.topic].windows.append(result)
    for finding in run.findings:
        found[finding.topic].findings.append(finding)
    return found


def _topic(run: Reconciliation, topic: str, has: _OfTopic) -> dict[str, object]:
    results = has.windows
    states = Counter((result.key.partition, result.state) for result in results)
    windows = Counter(result.key.partition for result in results)
    of_topic: dict[int, list[Finding]] = defaultdict(list)
    misplaced: dict[int, list[int]] = defaultdict(list)
    for finding in has.findings:
        of_topic[finding.partition].append(finding)
        if finding.target_partition is not None and finding.target_offset is not None:
            misplaced[finding.target_partition].append(finding.target_offset)
    counts = []
    partitions = []
    for cut in has.cuts:
        tp = cut.topic_partition
        findings = of_topic[cut.partition]
        differing = [*(f.first_difference for f in findings), *misplaced[cut.partition]]
        counts.append(run.account.partitions[tp])
        partitions.append(
            {
                "partition": cut.partition,
                "low": run.account.proven.get(tp, (cut.low, 0))[0],
                "high": cut.high,
                "source_end": cut.source_end,
                "target_end": cut.target_end,
                "log_ends": {
                    side: None if tp not in cluster.ranges else cluster.ranges[tp].end
                    for side, cluster in (("source", run.source), ("target", run.target))
                },
                "last_stable": None
                if cut.stable is None
                else dict(zip(("source", "target"), cut.stable, strict=True)),
                # Offsets of a renumbered target are in no place of the source's log.
                "start": min(cut.only_source[0], cut.only_target[0])
                if cut.own_target_low is None
                else cut.only_source[0],
                "unread_ranges": [list(each) for each in run.account.failed.get(tp, [])],
                "windows": {
                    "equal": states[cut.partition, WindowState.EQUAL],
                    "different": windows[cut.partition] - states[cut.partition, WindowState.EQUAL],
                },
                "explained_by": dict(sorted(run.account.explained.get(tp, {}).items())),
                "first_of_class": {
                    each.value: min(
                        f.position if f.lowest is None else f.lowest
                        for f in findings
                        if f.finding_class is each
                    )
                    for each in FindingClass
                    if any(f.finding_class is each for f in findings)
                },
                "first_bad_offset": min(differing, default=None),
                "proven_up_to": run.account.proven[tp][1]
                if tp in run.account.proven
                else proven_up_to(
                    cut, findings, misplaced[cut.partition], run.account.failed.get(tp, [])
                ),
                "proof": _proof(run, cut)._asdict(),
                "compared_ranges": _compared_ranges(run, cut),
                **_totals(counts[-1]),
                "findings": _by_class(findings),
            }
        )
    return {
        "topic": topic,
        "topic_ids": dict(zip(("source", "target"), _topic_ids(run, topic, has.cuts), strict=True)),
        "records": {
            "source": sum(result.source.records for result in results),
            "target": sum(result.target.records for result in results),
        },
        "bytes": sum(result.source.bytes for result in results),
        **_totals(add(counts)),
        "findings": _by_class(has.findings),
        "partitions": [_with_known_lag(each) for each in partitions],
    }


def _with_known_lag(partition: dict[str, object]) -> dict[str, object]:
    """Return *partition*; its lag is null if a cluster did not return its log end: 0 would be a measured one."""
    return partition | {"lagging": None} if lacks_log_end(partition) else partition


def _topic_ids(run: Reconciliation, topic: str, cuts: Sequence[PartitionCut]) -> Iterator[str]:
    """Yield the topic ids of source and target, "" if unknown.

    If nothing of the topic was read, they are those of what is kept again. A later run must not take windows that were
    compared in a topic with an unknown id for those of another run. Of a partition that never had a record nothing is
    kept, and it is no reason to forget the id.
    """
    kept = run.options.kept
    then = ("", "")
    if kept is not None and all(cut.topic_partition in run.unknown for cut in cuts):
        then = kept.topic_ids.get(topic, then)
    for cluster, known in zip((run.source, run.target), then, strict=True):
        yield cluster.topic_ids.get(topic, "") or known


def lacks_log_end(partition: Mapping[str, Any]) -> bool:
    """Return whether a cluster did not return its log end of the *partition*: lag and scope are then lower bounds."""
    return None in partition["log_ends"].values() and bool(partition["unreadable"])


def proven_up_to(
    cut: PartitionCut, findings: Sequence[Finding], misplaced: Sequence[int], failed: Ranges
) -> int:
    """Return the end of the offsets from `cut.low` on that are equal in both logs, or explained, without exception.

    *misplaced*: the target's offsets of records that belong to other partitions.
    """
    ends = [cut.decided if cut.undecided else cut.high]
    ends += [f.first_difference for f in findings if f.first_difference >= cut.low]
    ends += [max(offset, cut.low) for offset in misplaced]
    ends += [max(low, cut.low) for low, high in failed if high > cut.low]
    # A run that begins below the cut reaches into it.
    ends += [
        cut.low
        for f in findings
        if f.first_difference < cut.low <= (f.last_offset if f.last_offset is not None else -1)
    ]
    return min(ends)


def _by_class(findings: Sequence[Finding]) -> dict[str, int]:
    return {
        each.value: count
        for each in FindingClass
        if (count := sum(f.records for f in findings if f.finding_class is each))
    }


def _states(windows: Sequence[WindowResult]) -> list[list[object]]:
    """List the windows that differ.

    Every other window of a cut is equal, has no record on either side, or is in the `unread_ranges` of its partition.
    """
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
            series[finding.finding_class.value][max(0, min(BUCKETS - 1, bucket))] += finding.records
    return {name: counts for name, counts in series.items() if any(counts)}


def _root(digests: Any) -> str:
    return _hex(root(digests).placed) or ""


def _hex(value: int | None) -> str | None:
    return None if value is None else f"{value & (1 << 64) - 1:016x}"
