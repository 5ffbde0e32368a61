"""What an earlier run has proven, and what a later run may use of it. Pure.

docs/design/audit-incremental.md has the data flow and the proof. In short: an earlier run keeps the digests of windows
that were equal on both sides. A later run *carries* them if nothing below the proof end can have been replaced, reads
the rest, and adds the sums. It reads some kept windows again (*re-check*), because stored bytes can change in place.

Invariants (tests cite the numbers):
 1. a carried window was read and equal on both sides in the run that it names, and both logs still have its offsets;
 2. a partition with another topic id, a shorter log or another leader epoch below the proof end carries nothing;
 3. the boundary, the last kept window of a partition, is never carried: it is read again;
 4. re-checks take the windows that were compared longest ago.

In: a `Kept`, the cut, both clusters  Out: a `Plan`  Owner: the caller
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from kclient.types import TopicPartition
from spark_jobs.cut import OffsetRange, PartitionCut
from spark_jobs.engine import Failure, FailureKind, by_partition
from spark_jobs.ranges import Ranges, intersect, merged, subtract
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.windows import Digest, WindowKey

DEFAULT_RECHECK = 0.01

Sums: TypeAlias = Mapping[WindowKey, Digest]


class KeptRun(NamedTuple):
    """An earlier run."""

    run_id: str
    ended_at: str
    report_sha256: str
    self_test: str


class KeptWindow(NamedTuple):
    """Offsets of one partition with the same records on both sides: a window or a part of one; or without records."""

    span: OffsetRange
    digest: Digest
    run: int
    """The number of the run that compared it, in order of time."""


class Earlier(NamedTuple):
    """Offsets [low, high) that an earlier run compared."""

    low: int
    high: int
    run: int


class Proof(NamedTuple):
    """How far a partition was compared, and the leader epochs of both logs at the offset before."""

    end: int
    source_epoch: int | None = None
    """None if unknown."""
    target_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class KeptPartition:
    """What a run kept of one partition; *windows* ascend and do not overlap."""

    windows: tuple[KeptWindow, ...]
    gone: tuple[Earlier, ...]
    proof: Proof


@dataclass(frozen=True, slots=True)
class Kept:
    """What a run kept; `spark_jobs.report.kept_files` reads it."""

    window: int
    cluster_ids: tuple[str, str]
    prefix: str
    runs: tuple[KeptRun, ...]
    """In order of time; the last one is the run that kept this."""
    topic_ids: Mapping[str, tuple[str, str]]
    """Of the source and of the target; "" if unknown."""
    partitions: Mapping[TopicPartition, KeptPartition]


Epochs: TypeAlias = Mapping[TopicPartition, int]
"""The leader epoch of one offset of each log; absent if unknown."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Leader epochs in source and target, looked up before any record is read."""

    at_cut: tuple[Epochs, Epochs] = field(default_factory=lambda: ({}, {}))
    """At the offset before the cut."""
    at_proof: tuple[Epochs, Epochs] = field(default_factory=lambda: ({}, {}))
    """At the offset before the end of the kept proof."""

    def proof_of(self, cut: PartitionCut) -> Proof:
        """Return how far the run with *cut* compares a partition."""
        tp = cut.topic_partition
        return Proof(cut.high, *(each.get(tp) for each in self.at_cut))


class Refusal(NamedTuple):
    """A partition of which nothing is carried, and why."""

    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What of a `Kept` a run carries and reads again; empty for a full run."""

    carried: Mapping[TopicPartition, Sequence[KeptWindow]] = field(default_factory=dict)
    recheck: Mapping[TopicPartition, Sequence[KeptWindow]] = field(default_factory=dict)
    gone: Mapping[TopicPartition, Sequence[Earlier]] = field(default_factory=dict)
    refused: Sequence[Refusal] = ()
    passed: frozenset[TopicPartition] = frozenset()
    """Partitions that lost all offsets below the proof end in one log: no leader epoch shows what was there."""
    aside: Mapping[TopicPartition, KeptPartition] = field(default_factory=dict)
    """Partitions that a cluster does not return now: nothing is carried, and all is kept for the next run.

    Only of topics with the topic ids of then, or with an unknown one, and not of compacted ones."""

    def without(self, refused: Sequence[Refusal]) -> Plan:
        """Return the plan that carries nothing of the *refused* partitions."""
        names = {TopicPartition(each.topic, each.partition) for each in refused}
        return replace(
            self,
            carried={tp: each for tp, each in self.carried.items() if tp not in names},
            gone={tp: each for tp, each in self.gone.items() if tp not in names},
            refused=sorted([*self.refused, *refused]),
        )

    def checked(
        self,
        kept: Kept,
        clusters: tuple[ClusterSnapshot, ClusterSnapshot],
        compacted: frozenset[str],
    ) -> Plan:
        """Return the plan without what is `aside` of topics that are known to be other ones, or compacted, by now."""
        reasons = {
            tp: _of_topic(kept, tp.topic, clusters, compacted, needs_ids=False) for tp in self.aside
        }
        others = [each for each in self.refused if not reasons.get(TopicPartition(*each[:2]))]
        found = [Refusal(*tp, reason) for tp, reason in reasons.items() if reason]
        aside = {tp: each for tp, each in self.aside.items() if not reasons[tp]}
        return replace(self, aside=aside, refused=sorted([*others, *found]))

    def at_later(self, cuts: Iterable[PartitionCut], kept: Kept | None) -> Plan:
        """Return the plan of *kept* for later *cuts* of the same run: what a log has deleted since then is gone."""
        carried: dict[TopicPartition, Sequence[KeptWindow]] = dict(self.carried)
        gone: dict[TopicPartition, Sequence[Earlier]] = dict(self.gone)
        passed = set(self.passed)
        for cut in cuts:
            tp = cut.topic_partition
            if kept is None or tp not in self.carried:
                continue
            carried[tp] = [part for each in self.carried[tp] for part in _in_both(each, cut)]
            gone[tp] = _gone(kept.partitions[tp], cut)
            if kept.partitions[tp].proof.end <= cut.low:
                passed.add(tp)
        return replace(self, carried=carried, gone=gone, passed=frozenset(passed))

    def spans(self, tp: TopicPartition) -> Ranges:
        """Return the carried offsets of *tp*."""
        return [each.span[2:] for each in self.carried.get(tp, ())]

    def rechecked(self, tp: TopicPartition) -> Ranges:
        """Return the offsets of *tp* that are read again."""
        return [each.span[2:] for each in self.recheck.get(tp, ())]

    def known_equal(self, tp: TopicPartition) -> Ranges:
        """Return the offsets of *tp* that were compared and deleted since, and not replaced in between."""
        return [] if tp in self.passed else [each[:2] for each in self.gone.get(tp, ())]

    def add_to(self, sums: Sums, window: int) -> dict[WindowKey, Digest]:
        """Return *sums* and those of all carried windows."""
        total = dict(sums)
        for tp, windows in self.carried.items():
            for each in windows:
                if each.digest.records:
                    key = WindowKey(*tp, each.span.low // window)
                    total[key] = total.get(key, Digest()) + each.digest
        return total

    def digests(self) -> Iterable[Digest]:
        """Return the digests of all carried windows."""
        return (each.digest for windows in self.carried.values() for each in windows)


def plan(
    kept: Kept,
    cuts: Sequence[PartitionCut],
    clusters: tuple[ClusterSnapshot, ClusterSnapshot],
    lineage: Lineage,
    *,
    compacted: frozenset[str],
    unknown: frozenset[TopicPartition],
    share: float = DEFAULT_RECHECK,
) -> Plan:
    """Return which kept windows a run carries, and which it reads again: the boundaries and *share* of the others.

    *unknown*: partitions of which a log range is not known.
    """
    usable: dict[TopicPartition, list[KeptWindow]] = {}
    gone: dict[TopicPartition, list[Earlier]] = {}
    refused = []
    passed = set()
    aside = {}
    for cut in cuts:
        tp = cut.topic_partition
        of_partition = kept.partitions.get(tp)
        if of_partition is None or not (of_partition.windows or of_partition.gone):
            continue
        if of_partition.proof.end <= cut.low:
            passed.add(tp)
        # Without a leader the cluster may not know the topic: then the next run compares its id.
        reason = _of_topic(kept, cut.topic, clusters, compacted, needs_ids=tp not in unknown)
        if tp not in unknown:
            reason = reason or _of_log(cut, clusters, lineage, of_partition.proof)
        elif not reason:
            reason = "a log range is unknown; what was kept stays for the next run"
            aside[tp] = of_partition
        if reason:
            refused.append(Refusal(*tp, reason))
            continue
        usable[tp] = [part for each in of_partition.windows for part in _in_both(each, cut)]
        gone[tp] = _gone(of_partition, cut)
    recheck = _to_recheck(usable, share)
    again = {each.span for windows in recheck.values() for each in windows}
    carried = {tp: [w for w in windows if w.span not in again] for tp, windows in usable.items()}
    return Plan(carried, recheck, gone, refused, frozenset(passed), aside)


def _of_topic(
    kept: Kept,
    topic: str,
    clusters: tuple[ClusterSnapshot, ClusterSnapshot],
    compacted: frozenset[str],
    *,
    needs_ids: bool,
) -> str:
    """Return why nothing of *topic* can be carried or kept again; "" if it can.

    *needs_ids*: whether a topic id that is unknown now is a reason. One that was unknown then always is.
    """
    then = kept.topic_ids.get(topic, ("", ""))
    for side, cluster in enumerate(clusters):
        now = cluster.topic_ids.get(topic, "")
        if needs_ids and not now:
            return f"{cluster.name} has no topic id for it"
        if not then[side]:
            return f"{cluster.name} had no topic id for it in the kept run"
        if now and now != then[side]:
            return f"it was created again in {cluster.name}: topic id {now}, then {then[side]}"
    return "the topic is compacted" if topic in compacted else ""


def _of_log(
    cut: PartitionCut,
    clusters: tuple[ClusterSnapshot, ClusterSnapshot],
    lineage: Lineage,
    proof: Proof,
) -> str:
    """Return why nothing below *proof* can be carried of the topic that was compared; "" if it can."""
    tp = cut.topic_partition
    ends = cut.source_end, cut.target_end
    for side, cluster in enumerate(clusters):
        if ends[side] < proof.end:
            return f"its log in {cluster.name} ends at {ends[side]}, below {proof.end}, the end then: truncated"
        if proof.end <= cut.low:
            continue
        epoch, known = lineage.at_proof[side].get(tp), proof[1 + side]
        if epoch is None or known is None:
            return f"the leader epoch of offset {proof.end - 1} in {cluster.name} is unknown"
        if epoch != known:
            return (
                f"its log in {cluster.name} was truncated and written again: "
                f"offset {proof.end - 1} has leader epoch {epoch}, then {known}"
            )
    return ""


def _in_both(each: KeptWindow, cut: PartitionCut) -> Iterable[KeptWindow]:
    """Return *each* if both logs still have all of it; of a range without records, the part that they have."""
    low, high = max(each.span.low, cut.low), min(each.span.high, cut.high)
    if low < high and ((low, high) == each.span[2:] or not each.digest.records):
        yield each._replace(span=each.span._replace(low=low, high=high))


def _gone(kept: KeptPartition, cut: PartitionCut) -> list[Earlier]:
    """Return the compared offsets below the cut's start that are still in scope: those of one log, and lost ones."""
    scope = merged([cut.only_source, cut.only_target, cut.lost])
    compared = [*kept.gone, *(Earlier(*each.span[2:], each.run) for each in kept.windows)]
    return sorted(
        Earlier(*part, run) for low, high, run in compared for part in intersect(scope, low, high)
    )


def _to_recheck(
    usable: Mapping[TopicPartition, Sequence[KeptWindow]], share: float
) -> dict[TopicPartition, list[KeptWindow]]:
    recheck = {tp: [windows[-1]] for tp, windows in usable.items() if windows}
    others = [each for windows in usable.values() for each in windows[:-1]]
    others.sort(key=lambda each: (each.run, each.span))
    for each in others[: math.ceil(share * len(others))]:
        recheck[each.span.topic_partition].insert(-1, each)
    return recheck


def changed(
    recheck: Mapping[TopicPartition, Sequence[KeptWindow]],
    sums: tuple[Sums, Sums],
    names: tuple[str, str],
    failures: Sequence[Failure],
    window: int,
) -> list[Refusal]:
    """Return the partitions of which a window that was read again is another one than the earlier run read.

    *sums*: what was read of *recheck* on each side. A window that retention deleted meanwhile shows nothing.
    """
    failed = by_partition(failures)
    read = tuple(map(_by_partition, sums))
    refusals = []
    for tp, windows in sorted(recheck.items()):
        reason = ""
        for each in windows:
            inside = [f for f in failed.get(tp, ()) if _overlaps(f, each.span)]
            damaged = [f for f in inside if f.kind is FailureKind.UNDECODABLE]
            if damaged:
                reason = (
                    f"offsets {_text(each.span)} cannot be decoded in {damaged[0].cluster} any more"
                )
            elif not inside:
                of_partition = [
                    (name, of_side[tp]) for name, of_side in zip(names, read, strict=True)
                ]
                reason = _difference(each, of_partition, window)
            if reason:
                refusals.append(Refusal(*tp, reason))
                break
    return refusals


def _by_partition(sums: Sums) -> Mapping[TopicPartition, dict[int, Digest]]:
    found: dict[TopicPartition, dict[int, Digest]] = defaultdict(dict)
    for key, digest in sums.items():
        found[TopicPartition(*key[:2])][key.window] = digest
    return found


def _difference(
    each: KeptWindow, sides: Sequence[tuple[str, Mapping[int, Digest]]], window: int
) -> str:
    first, last = each.span.low // window, (each.span.high - 1) // window
    for name, of_side in sides:
        # A range without records may have very many windows.
        numbers = [first] if each.digest.records else [n for n in of_side if first <= n <= last]
        now = sum((of_side.get(number, Digest()) for number in numbers), Digest())
        if now != each.digest:
            return f"offsets {_text(each.span)} in {name} have changed since they were compared"
    return ""


def _overlaps(failure: Failure, span: OffsetRange) -> bool:
    return failure.low < span.high and span.low < failure.high


def _text(span: OffsetRange) -> str:
    return f"{span.low} to {span.high - 1}"


class Compared(NamedTuple):
    """Which offsets of a partition's scope were compared, or explained, and when.

    They are disjoint and add up to the scope.
    """

    now: Ranges
    earlier: list[Earlier]
    """Carried: compared by the run that each names. Both logs still have them."""
    gone: list[Earlier]
    """Compared by an earlier run; one log has deleted them since, or they could not be read again."""
    never: Ranges
    """Lag, offsets that aged out before a run compared them, and offsets that were not read."""


def compared(
    cut: PartitionCut,
    made: Plan,
    failed: Ranges,
    *,
    lagging: bool,
    explained_gaps: Ranges = [],  # noqa: B006 - never changed
) -> Compared:
    """Return which offsets of *cut* were compared, or explained, in this run, in an earlier one, and never.

    *failed*: offsets that were not read. *lagging*: there is lag, so the source above the cut is not compared.
    *explained_gaps*: offsets that the source has deleted and the target never had, for a known reason.
    """
    tp = cut.topic_partition
    carried = made.spans(tp)
    above = cut.high if lagging else cut.source_end
    end = max(cut.high, cut.target_end, above)
    now = subtract([(cut.low, end)], [*carried, *failed])
    gone = list(made.gone.get(tp, ()))
    if tp in made.carried:
        gone += [
            Earlier(*part, each.run)
            for each in made.recheck.get(tp, ())
            for part in intersect(failed, *each.span[2:])
        ]
    scope = merged(
        [cut.only_source, cut.only_target, cut.lost, (cut.low, max(end, cut.source_end))]
    )
    if tp in made.aside:
        held = made.aside[tp]
        known = [*held.gone, *(Earlier(*each.span[2:], each.run) for each in held.windows)]
        gone += [
            Earlier(*part, run) for low, high, run in known for part in intersect(scope, low, high)
        ]
    explained = subtract(explained_gaps, [*carried, *(each[:2] for each in gone)])
    now = merged([*now, *explained])
    never = subtract(scope, [*now, *carried, *(each[:2] for each in gone)])
    earlier = [Earlier(*each.span[2:], each.run) for each in made.carried.get(tp, ())]
    return Compared(now, joined(earlier), joined(gone), never)


def joined(spans: Iterable[Earlier]) -> list[Earlier]:
    """Return *spans*, sorted, with neighbours of one run as one."""
    found: list[Earlier] = []
    for each in sorted(spans):
        if found and (found[-1].high, found[-1].run) == (each.low, each.run):
            found[-1] = found[-1]._replace(high=each.high)
        else:
            found.append(each)
    return found


def by_run(spans: Iterable[Earlier]) -> dict[int, int]:
    """Return how many offsets each run compared."""
    offsets: dict[int, int] = defaultdict(int)
    for each in spans:
        offsets[each.run] += each.high - each.low
    return dict(sorted(offsets.items()))
