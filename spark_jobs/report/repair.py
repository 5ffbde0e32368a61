"""The repair plan: which offsets of the target to replace with the source's, and what a copy cannot repair.

Theory of operation
===================
A range of `copy` means: what the target has at these offsets is to be replaced by what the source has there. Records of
a partition may sit at other offsets as a consequence of other findings, and findings may be joined in runs. Then the
ranges are the windows that differ, because no finding names each of those records. Digests prove the other windows.
What needs a deletion at the target, or is gone at the source, is in `not_repairable` with its reason.

With `--renumbered` a copy can only append. There a range has the source's offsets of records that the target lacks,
and everything else is not repairable.

Lag is not in the plan: the mirror copies it. What was not compared is counted, because no plan covers it.

Invariants (tests/property/test_repair_plan.py cites the numbers):
 1. with the ranges replaced, and what is listed at the target deleted, an audit finds only what the source has lost;
 2. no range has an offset that the source's log does not have, or that the source did not return.

In: a Reconciliation.  Out: JSON-ready values, made from all findings, not from those that are written.  Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.cut import PartitionCut
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.ranges import Ranges, intersect, merged, nearest_joined, subtract
from spark_jobs.reconcile import Reconciliation
from spark_jobs.report.document import Document, cluster_document
from spark_jobs.windows import offset_ranges

SCHEMA_VERSION = 1
MAX_RANGES = 1_000
"""Ranges of one partition and reason. Above it the nearest ones are joined, with the records between them."""

_LACKING = (FindingClass.MISSING, FindingClass.TRUNCATED, FindingClass.MISROUTED)

ONLY_TARGET = "the source has no such record: delete it at the target"
AMONG = (
    "among these offsets, beside others: more findings than are kept one by one (--max-findings)"
)
ABOVE_SOURCE = "above the end of the source's log: delete it at the target"
VISIBLE = "the records are equal: a broker's transaction index or last stable offset is wrong"
ELSEWHERE = "the record belongs to another partition: delete it at the target"
SOURCE_GONE = "the source has deleted these offsets"
SOURCE_DAMAGED = "the source's own batch cannot be read"
RENUMBERED = (
    "the target assigns offsets itself: a copy would be appended, and this record would stay"
)


def repair_plan(run: Reconciliation, max_ranges: int = MAX_RANGES) -> Document:
    """Return repair.json of *run*. `kmirror repair` applies it; `dry_run` is true."""
    findings: dict[TopicPartition, list[Finding]] = defaultdict(list)
    misplaced: dict[TopicPartition, list[Finding]] = defaultdict(list)
    for each in run.findings:
        findings[each.topic_partition].append(each)
        if each.target_partition is not None:
            misplaced[TopicPartition(each.topic, each.target_partition)].append(each)
    differing = offset_ranges(run.windows, run.options.window)
    copy: list[Document] = []
    left: list[Document] = []
    for cut in run.cuts:
        tp = cut.topic_partition
        plan = _Plan(cut, run.options.renumbered, max_ranges)
        plan.add(findings[tp], misplaced[tp])
        moved = run.account.partitions[tp].different.get(FindingClass.SHIFTED, 0)
        if moved or any(each.is_run for each in findings[tp]):
            tail = (cut.high, cut.source_end) if run.options.complete else (cut.high, cut.high)
            plan.add_windows([*differing.get(tp, []), tail])
        plan.settle(run.account.failed.get(tp, []))
        place = {
            "topic": cut.topic,
            "target_topic": run.target.topic_of(cut.topic),
            "partition": cut.partition,
        }
        ranges = plan.ranges()
        if ranges:
            copy.append({**place, "whole_windows": plan.whole_windows, "ranges": ranges})
        left += [{**place, **each} for each in plan.not_repairable()]
    counts = run.counts
    return {
        "schema_version": SCHEMA_VERSION,
        "dry_run": True,
        "verdict": run.outcome.verdict.value,
        "source": cluster_document(run.source),
        "target": cluster_document(run.target),
        "renumbered": run.options.renumbered,
        "copy": copy,
        "not_repairable": left,
        "not_compared": {
            "aged_out": counts.aged_out,
            "not_read": counts.not_read,
            "lagging": counts.lagging,
        },
    }


class _Piece(NamedTuple):
    """Offsets [low, high) that a finding is about, and how many records; 0 if no finding counts them."""

    low: int
    high: int
    finding_class: FindingClass
    records: int


class _Reason(NamedTuple):
    log: str
    """Where the trouble is: source, target, or both if either log may be wrong."""
    finding_class: FindingClass
    text: str


@dataclass(slots=True)
class _Plan:
    """The plan of one partition while it is made."""

    cut: PartitionCut
    renumbered: bool
    max_ranges: int
    copied: list[_Piece] = field(default_factory=list)
    left: dict[_Reason, list[_Piece]] = field(default_factory=lambda: defaultdict(list))
    planned: Ranges = field(default_factory=list)
    whole_windows: bool = False

    def add(self, findings: Sequence[Finding], misplaced: Sequence[Finding]) -> None:
        """Add the *findings* of the partition, and records *misplaced* in it that belong to another one."""
        for each in findings:
            piece = _piece(each)
            kind = each.finding_class
            if each.is_run:
                self._add_run(each, piece)
            elif kind in (FindingClass.EXTRA, FindingClass.DUPLICATE):
                self._leave("target", ONLY_TARGET, piece)
            elif kind is FindingClass.GAP:
                self._leave("source", SOURCE_GONE, piece)
            elif kind is FindingClass.UNDECODABLE and each.source_offset is not None:
                self._leave("source", SOURCE_DAMAGED, piece)
            elif kind is FindingClass.VISIBILITY:
                self._leave("both", VISIBLE, piece)
            elif self.renumbered and kind not in _LACKING:
                self._leave("target", RENUMBERED, piece)
            else:
                self.copied.append(piece)
        for each in misplaced:
            at = each.target_offset or 0
            self._leave("target", ELSEWHERE, _Piece(at, at + 1, each.finding_class, each.records))

    def _add_run(self, run: Finding, piece: _Piece) -> None:
        """Add what is known of *run*: its records are in windows that differ, and these are copied (`add_windows`)."""
        kind = run.finding_class
        if kind is FindingClass.VISIBILITY:
            self._leave("both", VISIBLE, piece)
        elif self.renumbered:
            self._leave("target", AMONG, piece)
        elif piece.low >= self.cut.source_end:
            self._leave("target", ABOVE_SOURCE, piece)
        elif kind not in (FindingClass.EXTRA, FindingClass.DUPLICATE):
            self.copied.append(piece._replace(high=piece.low + 1))

    def add_windows(self, differing: Ranges) -> None:
        """Add the windows that differ, because records in them sit at other offsets than at the source.

        The last ones of a complete mirror sit below its end, and belong above it.
        """
        if not self.renumbered:
            self.whole_windows = True
            end = max(self.cut.source_end, self.cut.target_end)
            self.copied += [
                _Piece(*each, FindingClass.SHIFTED, 0)
                for each in intersect(differing, self.cut.low, end)
            ]

    def settle(self, failed: Ranges) -> None:
        """Plan the ranges to copy, without what the source does not have or what was not read."""
        start, end = self.cut.only_source[0], self.cut.source_end
        damaged = [
            piece[:2]
            for reason, pieces in self.left.items()
            if reason.text == SOURCE_DAMAGED
            for piece in pieces
        ]
        undecodable = [
            each[:2] for each in self.copied if each.finding_class is FindingClass.UNDECODABLE
        ]
        without = [*damaged, *subtract(failed, undecodable)]
        wanted = merged(each[:2] for each in self.copied)
        self.planned = nearest_joined(
            subtract(intersect(wanted, start, end), without), self.max_ranges, without
        )
        for each in self.copied:
            if each.high > end:
                self._leave("target", ABOVE_SOURCE, _part(each, end, each.high))
            if each.low < start and each.finding_class is FindingClass.UNDECODABLE:
                self._leave("source", SOURCE_GONE, _part(each, each.low, start))

    def ranges(self) -> list[Document]:
        """Return the ranges to copy, ascending; a finding is counted in the first range that has a part of it."""
        counts = [Counter[str]() for _ in self.planned]
        ends = [high for _, high in self.planned]
        for each in self.copied:
            at = bisect_right(ends, each.low)
            if at < len(ends) and self.planned[at][0] < each.high:
                counts[at][each.finding_class.value] += each.records
        # Counter's unary plus drops the classes of windows that no finding counts.
        return [
            {"from": low, "until": high, "records": dict(sorted((+of_class).items()))}
            for (low, high), of_class in zip(self.planned, counts, strict=True)
        ]

    def not_repairable(self) -> list[Document]:
        """Return what a copy does not repair, by log and offset, without what a range of the copy replaces."""
        rows = []
        for reason, pieces in self.left.items():
            if reason.log == "target" and not self.renumbered:
                pieces = [each for each in pieces if not self._replaces(each)]
            spans = nearest_joined(merged(each[:2] for each in pieces), self.max_ranges)
            counts = [0] * len(spans)
            ends = [high for _, high in spans]
            for each in pieces:
                counts[bisect_right(ends, each.low)] += each.records
            rows += [
                {
                    "log": reason.log,
                    "class": reason.finding_class.value,
                    "reason": reason.text,
                    "from": low,
                    "until": high,
                    "records": count,
                }
                for (low, high), count in zip(spans, counts, strict=True)
            ]
        return sorted(rows, key=lambda row: (row["log"], row["from"], row["class"], row["reason"]))

    def _replaces(self, piece: _Piece) -> bool:
        """Return whether a range of the copy covers *piece*."""
        at = bisect_right(self.planned, piece.low, key=lambda each: each[0]) - 1
        return at >= 0 and piece.high <= self.planned[at][1]

    def _leave(self, log: str, text: str, piece: _Piece) -> None:
        self.left[_Reason(log, piece.finding_class, text)].append(piece)


def _part(piece: _Piece, low: int, high: int) -> _Piece:
    """Return what *piece* has in [low, high)."""
    low, high = max(low, piece.low), min(high, piece.high)
    return piece._replace(low=low, high=high, records=min(piece.records, high - low))


def _piece(finding: Finding) -> _Piece:
    """Return the offsets in either log that *finding* is about."""
    kind = finding.finding_class
    if finding.lowest is not None and finding.highest is not None:
        return _Piece(finding.lowest, finding.highest + 1, kind, finding.records)
    places = [finding.source_offset]
    if kind is not FindingClass.MISROUTED:
        places.append(finding.target_offset)
    if finding.last_offset is not None:
        places.append(finding.last_offset)
        if kind is FindingClass.SHIFTED and finding.distance is not None:
            places.append(finding.last_offset - finding.distance)
    known = [each for each in places if each is not None]
    return _Piece(min(known), max(known) + 1, kind, finding.records)
