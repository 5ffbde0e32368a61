"""Two clusters that change while they are audited, and a record of what each read of the audit saw.

Before every read of the audit, and between its looks, the logs may change as clusters do: producers append, the mirror
copies and repairs, retention deletes, a cleaner compacts, a log is truncated and written again, a part cannot be read
for a while, a new leader reports a lower log end. `Live.seen` is the oracle's evidence: the last content of each offset
that was read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from kclient.types import TopicPartition
from spark_jobs.comparison import Options
from spark_jobs.cut import LogRange, OffsetRange, PartitionCut, freeze
from spark_jobs.digest import WindowShape
from spark_jobs.engine import Copies, FailureKind, Place
from spark_jobs.kept import Kept, Lineage
from spark_jobs.later_looks import Moment
from spark_jobs.reader import Fetched, Unread
from spark_jobs.reconcile import Reconciliation, TimeBuckets, reconcile
from spark_jobs.settle import Patience
from spark_jobs.snapshot import ClusterSnapshot
from tests.kit.audit_batches import BatchEngine
from tests.kit.audit_histories import Replicated
from tests.kit.audit_logs import Fault, Log, Rec, snapshot

TPS = (TopicPartition("t", 0), TopicPartition("t", 1))
SIDES = ("source", "target")


class UnreadOffset:
    """Stands for an offset that a cluster did not return."""


UNREAD = UnreadOffset()
Content = Rec | None | UnreadOffset


class _SeeingEngine(BatchEngine):
    """Records what each read that compares sees."""

    def __init__(self, live: Live) -> None:
        logs = live.source.logs, live.target.logs
        shape = WindowShape(live.window, 0, 20_000, 60)
        super().__init__(*logs, shape, meanwhile=lambda _: live.change())
        self._live = live
        self._compares = True

    def tasks(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]
    ) -> Iterator[tuple[list[OffsetRange], Iterator[Fetched | Unread]]]:
        for each in ranges if self._compares else ():
            self._live.see(cluster.name, each)
        return super().tasks(cluster, ranges)

    def copies(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], contents: frozenset[int]
    ) -> dict[Place, Copies]:
        # It looks for other copies of a finding, and compares nothing.
        self._compares = False
        try:
            return super().copies(cluster, ranges, contents)
        finally:
            self._compares = True


@dataclass
class Live:
    """A source, its mirror, and the changes during one audit."""

    rng: random.Random
    window: int = 10
    kinds: Sequence[str] = ("produce", "mirror", "retention", "repair", "unreadable", "truncate")
    renumbered: bool = False
    """The target assigns its own offsets."""
    looks_with_changes: int = 9
    """The logs change until the end of this look; the first is 1."""
    chance: float = 0.4
    damage: Sequence[float] = (0.0, 0.0, 0.2)
    """The share of records that the mirror loses or changes during the audit: one of these each time."""
    most_truncated: int = 20
    """Offsets that a truncation removes at most."""
    source: Replicated = field(init=False)
    target: Replicated = field(init=False)
    seen: dict[tuple[str, TopicPartition, int], Content] = field(default_factory=dict)
    tombstones: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """The offsets of tombstones that a cleaner may remove during the audit: delete.retention.ms is longer than one."""
    look: int = 1
    looked_at: frozenset[TopicPartition] = frozenset()
    """Partitions of which the audit took a later cut."""
    differing: set[tuple[TopicPartition, int]] | None = None
    """Offsets that both logs have had since the audit began, and that always differed."""

    def __post_init__(self) -> None:
        self.source, self.target = (Replicated({tp: Log() for tp in TPS}) for _ in SIDES)

    def produce(self, tp: TopicPartition, count: int) -> None:
        """Append *count* records to the source."""
        for _ in range(count):
            number = self.rng.getrandbits(40)
            value = None if self.is_compacted and number % 11 == 0 else b"v%d" % number
            self.source.append(tp, Rec(b"k%d" % (number % 9), value, number % 1000))

    @property
    def is_compacted(self) -> bool:
        """Whether both clusters compact the topic."""
        return "compact" in self.kinds

    def mirror(self, tp: TopicPartition, *, damage: float = 0.0, behind: int = 0) -> None:
        """Copy to the target what it lacks; *damage* is the share of records that are lost or changed."""
        source, target = self.source.logs[tp], self.target.logs[tp]
        for offset in range(target.end, max(target.end, source.end - behind)):
            record = source.records.get(offset)
            if record is not None and self.rng.random() < damage:
                record = self.rng.choice([None, record._replace(value=b"damaged")])
            self.target.append(tp, record)

    def change(self) -> None:
        """Change the logs as the draw has it."""
        if self.look <= self.looks_with_changes and self.rng.random() < self.chance:
            tp = self.rng.choice(TPS)
            getattr(self, f"_{self.rng.choice(self.kinds)}")(tp)
        self._compare()

    def _produce(self, tp: TopicPartition) -> None:
        self.produce(tp, self.rng.randrange(15))

    def _mirror(self, tp: TopicPartition) -> None:
        self.mirror(tp, damage=self.rng.choice(self.damage))

    def _retention(self, tp: TopicPartition) -> None:
        log = self.rng.choice([self.source, self.target]).logs[tp]
        log.delete_below(min(log.end, log.start + self.rng.randrange(25)))

    def _compact(self, tp: TopicPartition) -> None:
        """Let one log's cleaner run, in all but the last segment."""
        log = self.rng.choice([self.source, self.target]).logs[tp]
        gone = {at for at in self.tombstones.get(tp, ()) if self.rng.random() < 0.3}
        clean(log, log.end - self.rng.randrange(8), gone)

    def _old_tombstones(self, tp: TopicPartition) -> set[int]:
        """Return the offsets of tombstones that may go: no log has an earlier record with the key.

        That of a renumbered target is at another offset.
        """
        logs = self.source.logs[tp].records, self.target.logs[tp].records
        first: dict[bytes | None, int] = {}
        for at in sorted(logs[0].keys() | logs[1].keys()):
            for record in (log[at] for log in logs if at in log):
                first.setdefault(record.key, at)
        return {
            at
            for at, record in logs[1].items()
            if record == logs[0].get(at) and record.value is None and first[record.key] == at
        }

    def _repair(self, tp: TopicPartition) -> None:
        source, target = self.source.logs[tp], self.target.logs[tp]
        for offset in range(max(source.start, target.start), min(source.end, target.end)):
            if source.records.get(offset) != target.records.get(offset):
                target.records.pop(offset, None)
                if offset in source.records:
                    target.records[offset] = source.records[offset]
                return

    def _unreadable(self, tp: TopicPartition) -> None:
        log = self.rng.choice([self.source, self.target]).logs[tp]
        if log.faults:
            log.faults.clear()
        elif log.end > log.start:
            low = self.rng.randrange(log.start, log.end)
            log.faults.append(Fault(low, min(log.end, low + 5), FailureKind.UNREADABLE))

    def _truncate(self, tp: TopicPartition) -> None:
        side = self.rng.choice([self.source, self.target])
        log = side.logs[tp]
        log.faults.clear()
        side.truncate(tp, max(log.start, log.end - self.rng.randrange(self.most_truncated)))
        self.produce(tp, self.rng.randrange(self.most_truncated + 5))
        self.mirror(tp)

    def _leader(self, tp: TopicPartition) -> None:
        """Change nothing: `clusters` reports lower log ends."""

    def _offline(self, tp: TopicPartition) -> None:
        """Change nothing: `clusters` reports no log range."""

    def _compare(self) -> None:
        now = set(self.differences())
        self.differing = now if self.differing is None else self.differing & now

    def differences(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield the offsets of both logs at which they differ now."""
        for tp in TPS:
            source, target = self.source.logs[tp], self.target.logs[tp]
            for offset in range(max(source.start, target.start), min(source.end, target.end)):
                if source.records.get(offset) != target.records.get(offset):
                    yield tp, offset

    def see(self, name: str, span: OffsetRange) -> None:
        """Remember what a read of *span* sees."""
        tp = span.topic_partition
        log = (self.source if name == "source" else self.target).logs[tp]
        for offset in range(span.low, span.high):
            held = log.start <= offset < log.end
            lost = any(f.low <= offset < f.high for f in log.faults)
            found: Content = log.records.get(offset) if held and not lost else UNREAD
            self.seen[name, tp, offset] = found

    def clusters(self) -> tuple[ClusterSnapshot, ClusterSnapshot]:
        """Return source and target as an audit reads them: the target first, and time passes in between."""
        compacted = frozenset({"t"} if self.is_compacted else ())
        target = replace(snapshot("target", self.target.logs, compacted), topic_ids={"t": "target"})
        self.change()
        source = replace(snapshot("source", self.source.logs, compacted), topic_ids={"t": "source"})
        if "offline" in self.kinds and self.look <= self.looks_with_changes:
            target = self._without_a_leader(target)
        if "leader" in self.kinds and self.look <= self.looks_with_changes:
            source = replace(
                source, ranges={tp: self._lower(each) for tp, each in source.ranges.items()}
            )
        return source, target

    def _without_a_leader(self, target: ClusterSnapshot) -> ClusterSnapshot:
        """Return *target* without the log ranges of partitions that have no leader for a while."""
        gone = [tp for tp in TPS if self.rng.random() < self.chance / 2]
        return replace(
            target,
            ranges={tp: each for tp, each in target.ranges.items() if tp not in gone},
            unreadable=dict.fromkeys(gone, "no leader"),
        )

    def _lower(self, log: LogRange) -> LogRange:
        """Return *log* with the lower end that a new leader may report for a while."""
        lower = self.rng.randrange(8) if self.rng.random() < self.chance else 0
        return replace(log, end=max(log.start, log.end - lower))

    def moment(self, cuts: Sequence[PartitionCut]) -> Moment:
        """Return both clusters at a later cut."""
        self.look += 1
        self.looked_at = self.looked_at | {cut.topic_partition for cut in cuts}
        if self.look > self.looks_with_changes:
            for each in (self.source, self.target):
                for log in each.logs.values():
                    log.faults.clear()
        source, target = self.clusters()
        before = {cut.topic_partition: cut.high for cut in cuts}
        return Moment(source, target, self._lineage(source, target, before))

    def _lineage(
        self,
        source: ClusterSnapshot,
        target: ClusterSnapshot,
        before: Mapping[TopicPartition, int],
    ) -> Lineage:
        at_cut = {
            cut.topic_partition: cut.high
            for cut in freeze(target.ranges, source.ranges)
            if cut.high > cut.low
        }
        at_proof = {tp: before[tp] for tp in at_cut if tp in before}
        each = self.source, self.target
        return Lineage(
            (each[0].epochs_before(at_cut), each[1].epochs_before(at_cut)),
            (each[0].epochs_before(at_proof), each[1].epochs_before(at_proof)),
        )

    def audit(
        self,
        rounds: int = 2,
        *,
        complete: bool = False,
        kept: Kept | None = None,
        recheck: float = 0.0,
    ) -> Reconciliation:
        """Audit the clusters while they change; with *kept* only what it has not proven."""
        self.look, self.differing, self.looked_at = 1, None, frozenset()
        self.tombstones = {tp: self._old_tombstones(tp) for tp in TPS}
        self._compare()
        source, target = self.clusters()
        proofs = {} if kept is None else {tp: p.proof.end for tp, p in kept.partitions.items()}
        options = Options(
            self.window,
            complete,
            kept=kept,
            recheck=recheck,
            renumbered=self.renumbered,
            lineage=self._lineage(source, target, proofs),
            patience=Patience(0.0, rounds),
        )
        return reconcile(
            _SeeingEngine(self),
            source,
            target,
            options,
            buckets=TimeBuckets(0, 20_000),
            again=self.moment,
        )


def clean(log: Log, below: int, tombstones: Set[int]) -> None:
    """Compact *log* below an offset: the last record of each key remains, except at the offsets of *tombstones*."""
    for at in {*log.superseded(below), *(at for at in tombstones if at < below)}:
        log.records.pop(at, None)


class RenumberedLive(Live):
    """A mirror that appends at offsets of its own: the target's logs begin at `first`, `holes` are its markers."""

    first = 7
    holes = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.renumbered = True
        self._copied: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in TPS}
        """Offsets of copies at the target and of their records at the source, ascending."""
        for log in self.target.logs.values():
            log.start = log.end = self.first

    def mirror(self, tp: TopicPartition, *, damage: float = 0.0, behind: int = 0) -> None:
        """Copy what the target lacks, without offsets that have no record."""
        source, target, copied = self.source.logs[tp], self.target.logs[tp], self._copied[tp]
        done = copied[-1][1] + 1 if copied else 0
        for offset in range(max(done, source.start), source.end - behind):
            record = source.records.get(offset)
            if record is None:
                continue
            if self.rng.random() < self.holes:
                self.target.append(tp, None)
            if self.rng.random() < damage:
                record = self.rng.choice([None, record._replace(value=b"damaged %d" % offset)])
            copied.append((target.end, offset))
            if record is not None:
                self.target.append(tp, record)
        if self.holes and target.end % 2:
            self.target.append(tp, None)  # The marker of its last transaction ends the log.

    def _truncate(self, tp: TopicPartition) -> None:
        """The target loses its end, and the mirror copies that again."""
        log, copied = self.target.logs[tp], self._copied[tp]
        log.faults.clear()
        self.target.truncate(tp, max(log.start, log.end - self.rng.randrange(20)))
        while copied and copied[-1][0] >= log.end:
            copied.pop()
        self.mirror(tp)
