"""The running verdict of `kaudit watch`: pairs the records of two growing logs by topic, partition and offset.

Records arrive in micro-batches. A micro-batch brings all records of a log up to some offset. So each side of a
partition has a *position*. Behind it, no record has arrived yet; below it, none will arrive any more. It is behind the
last record, or at the offset up to which the log was read, which also passes transaction markers. An offset below
both positions is decided at once: equal, corrupt, missing (the source alone has a record) or extra (the target alone).
Records at and above the lower position wait for the other side. Only one side has such records.

A waiting record proves nothing. It is *settled* when it was in its log for longer than the settle time. Such a record
was read before that, or is below the log end of that time. Then the caller looks up the log end of the other side:

    the target's log ends at or below the offset     late: the mirror lags
    the source's log ends at or below the offset     extra: the source never had the record
    the log is longer                                unread: the watch itself lags

These three are not kept: they end when the other record arrives.

Invariants (tests cite the numbers):
 1. the decided offsets are those from the start up to the lower position, and each has the class of a full join;
 2. waiting records are those of one side at and above the lower position, at most *limit* of them in all partitions;
 3. a repeated micro-batch on the state before it gives the same state;
 4. EQUAL: at least one record was compared, nothing differs, nothing is late, unread or not watched. This run has
    read something if there is something, and both logs' ends are known. What was in the logs for longer than the
    settle time was read; in a shorter run, what was in them when it began. What waits was not in its log that long.

In: micro-batches of (offset, hash), offsets up to which the logs were read, log ends, the time.  Out: `Outcome`.
Owner: the caller's lock.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from kclient.types import TopicPartition
from spark_jobs.findings import FindingClass
from spark_jobs.verdict import ExitCode

MOST_FINDINGS = 1000
"""Findings that are kept one by one; the others are counted."""

STATE_VERSION = 1

Records = Sequence[tuple[int, int]]
"""Offset and content hash of each record, in the order of the offsets."""


class Side(Enum):
    """Which cluster a record is from."""

    SOURCE = "source"
    TARGET = "target"

    @property
    def other(self) -> Side:
        """The other cluster."""
        return Side.TARGET if self is Side.SOURCE else Side.SOURCE


class TooManyWaiting(Exception):
    """One log is so far ahead of the other that the waiting records exceed the limit."""


class WatchVerdict(Enum):
    """The verdict about what was compared. It is never CONSISTENT: a watch covers a span of offsets only."""

    ERROR = "ERROR"
    DIVERGED = "DIVERGED"
    INCOMPLETE = "INCOMPLETE"
    LAGGING = "LAGGING"
    EQUAL = "EQUAL"


class WatchFinding(NamedTuple):
    """A record that differs, or that one side lacks for good."""

    kind: FindingClass
    topic_partition: TopicPartition
    offset: int


class Waiting(NamedTuple):
    """Records of a partition without a counterpart for longer than the settle time."""

    topic_partition: TopicPartition
    side: Side
    """The side that has them."""
    first: int
    records: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """What the log ends show about the records that wait for longer than the settle time."""

    late: tuple[Waiting, ...] = ()
    extra: tuple[Waiting, ...] = ()
    unread: tuple[Waiting, ...] = ()


@dataclass(frozen=True, slots=True)
class Behind:
    """Where the logs end when a watch ends, compared with what it has compared."""

    offsets: Mapping[Side, int] = field(default_factory=dict)
    """Offsets from the position of each side to its log end: they were not read."""
    unknown: Mapping[Side, int] = field(default_factory=dict)
    """Partitions of each side with an unknown log end."""


Positions = Mapping[tuple[Side, TopicPartition], int]
"""An offset of each log: its end at some time, or up to where it was read."""


class Failure(NamedTuple):
    """Why a watch could not go on: a cluster could not be read, or an internal error."""

    exit_code: ExitCode
    text: str


class Outcome(NamedTuple):
    """The verdict and what it rests on."""

    verdict: WatchVerdict
    exit_code: ExitCode
    reasons: tuple[str, ...]
    behind: Behind


@dataclass(slots=True)
class _Partition:
    start: int
    positions: dict[Side, int]
    waiting: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Hash and time of arrival by offset, in the order of both."""
    ahead: Side = Side.SOURCE
    """The side of the waiting records."""
    equal: int = 0
    counts: dict[FindingClass, int] = field(default_factory=dict)

    @property
    def decided(self) -> int:
        """The offset up to which all offsets are decided."""
        return min(self.positions.values())


class Span(NamedTuple):
    """What was compared in one partition: the offsets from *start* up to and without *end*."""

    topic_partition: TopicPartition
    start: int
    end: int
    equal: int
    findings: Mapping[FindingClass, int]
    waiting: int


class RunningVerdict:
    """The state of one watch, from the offsets in *starts* on."""

    def __init__(self, starts: Mapping[TopicPartition, int], *, limit: int) -> None:
        self._limit = limit
        self._partitions = {
            tp: _Partition(start, dict.fromkeys(Side, start)) for tp, start in starts.items()
        }
        self._findings: list[WatchFinding] = []

    @property
    def findings(self) -> Sequence[WatchFinding]:
        """The first `MOST_FINDINGS` findings."""
        return self._findings

    @property
    def waiting(self) -> int:
        """The number of records that wait for their counterpart: the size of the state."""
        return sum(len(each.waiting) for each in self._partitions.values())

    def spans(self) -> list[Span]:
        """Return what was compared, per partition."""
        return [
            Span(tp, each.start, each.decided, each.equal, dict(each.counts), len(each.waiting))
            for tp, each in sorted(self._partitions.items())
        ]

    def apply(
        self, batch: Mapping[tuple[Side, TopicPartition], Records], now: float
    ) -> list[WatchFinding]:
        """Take in a micro-batch and return its findings; raise TooManyWaiting, after which the state is unusable."""
        found = []
        for tp in sorted({tp for _, tp in batch}):
            pair = {side: batch.get((side, tp), ()) for side in Side}
            found += self._apply(tp, pair, now)
        self._keep(found)
        if self.waiting > self._limit:
            most = max(self._partitions, key=lambda tp: len(self._partitions[tp].waiting))
            partition = self._partitions[most]
            raise TooManyWaiting(
                f"{self.waiting:,} records wait for their counterpart, more than --max-pending "
                f"{self._limit:,}: in {most} the {partition.ahead.value} is "
                f"{len(partition.waiting):,} records ahead"
            )
        return found

    def advance(self, read: Positions, now: float) -> list[WatchFinding]:
        """Take in the offsets up to which the logs were *read*, and return the findings.

        Every record below them was in a micro-batch. At the end of a log there may be none up to there. Rows
        show no transaction marker, and no batch that lost its records.
        """
        found = []
        for tp, partition in sorted(self._partitions.items()):
            before = dict(partition.positions)
            for side in Side:
                reached = read.get((side, tp), partition.start)
                partition.positions[side] = max(partition.positions[side], reached)
            if partition.positions != before:
                found += self._apply(tp, {}, now)
        self._keep(found)
        return found

    def _keep(self, found: Sequence[WatchFinding]) -> None:
        self._findings += found[: MOST_FINDINGS - len(self._findings)]

    def _apply(
        self, tp: TopicPartition, arrived: Mapping[Side, Records], now: float
    ) -> list[WatchFinding]:
        partition = self._partitions[tp]
        records: dict[Side, dict[int, tuple[int, float]]] = {side: {} for side in Side}
        records[partition.ahead] = partition.waiting
        for side, each in arrived.items():
            new = [(offset, value) for offset, value in each if offset >= partition.start]
            if new:
                partition.positions[side] = max(partition.positions[side], new[-1][0] + 1)
                records[side].update((offset, (value, now)) for offset, value in new)
        end = partition.decided
        source, target = (
            {offset: value for offset, (value, _) in records[side].items() if offset < end}
            for side in Side
        )
        found = []
        for offset in sorted(source.keys() | target.keys()):
            kind = _class(source.get(offset), target.get(offset))
            if kind is None:
                partition.equal += 1
            else:
                partition.counts[kind] = partition.counts.get(kind, 0) + 1
                found.append(WatchFinding(kind, tp, offset))
        partition.ahead = max(Side, key=lambda side: partition.positions[side])
        partition.waiting = {
            offset: each for offset, each in records[partition.ahead].items() if offset >= end
        }
        return found

    def settled(self, now: float, settle: float, earlier: Positions) -> list[Waiting]:
        """Return the waiting records that were in their logs for longer than *settle* seconds.

        *earlier* are log ends that were known so long ago.
        """
        found = []
        for tp, partition in sorted(self._partitions.items()):
            offsets = []
            end = earlier.get((partition.ahead, tp), 0)
            for offset, (_, arrived) in partition.waiting.items():
                if now - arrived <= settle and offset >= end:
                    break
                offsets.append(offset)
            if offsets:
                found.append(Waiting(tp, partition.ahead, offsets[0], len(offsets)))
        return found

    def overdue(
        self,
        ends: Positions,
        now: float,
        settle: float,
        earlier: Positions,
    ) -> Overdue:
        """Return what *ends* show about the records of `settled`: log ends that were looked up after it returned them.

        A log end that is not in *ends* is unknown: the records count as unread.
        """
        late: list[Waiting] = []
        extra: list[Waiting] = []
        unread: list[Waiting] = []
        for each in self.settled(now, settle, earlier):
            partition = self._partitions[each.topic_partition]
            end = ends.get((each.side.other, each.topic_partition))
            offsets = list(partition.waiting)[: each.records]
            beyond = [offset for offset in offsets if end is not None and offset >= end]
            if beyond:
                group = late if each.side is Side.SOURCE else extra
                group.append(each._replace(first=beyond[0], records=len(beyond)))
            if len(beyond) < len(offsets):
                unread.append(each._replace(records=len(offsets) - len(beyond)))
        return Overdue(tuple(late), tuple(extra), tuple(unread))

    def behind(self, ends: Positions) -> Behind:
        """Return how far the log *ends* are; those that are not in *ends* are unknown."""
        offsets, unknown = dict.fromkeys(Side, 0), dict.fromkeys(Side, 0)
        for tp, partition in self._partitions.items():
            for side in Side:
                end = ends.get((side, tp))
                if end is None:
                    unknown[side] += 1
                else:
                    offsets[side] += max(0, end - partition.positions[side])
        return Behind(offsets, unknown)

    def outcome(
        self,
        overdue: Overdue,
        *,
        unwatched: Sequence[str] = (),
        limit: str | None = None,
        failure: Failure | None = None,
        behind: Behind | None = None,
        earlier: Positions | None = None,
        due: Positions | None = None,
        has_read: bool = True,
    ) -> Outcome:
        """Return the verdict of now.

        *unwatched* names what is in scope and was not read, *limit* the limit that ended the watch. *behind* is by
        the log ends of now. *earlier* are those of the settle time ago, as far as this run has known them. Without
        them it is not known which waiting records are late. *due* are the log ends up to which this run has to have
        read: *earlier*, or the first ones that it knew. *has_read*: this run has completed a micro-batch.
        """
        behind, earlier = behind or Behind(), earlier or {}
        to_read = self.behind(earlier if due is None else due).offsets
        spans = self.spans()
        reasons = [f"the watch ended early: {failure.text}"] if failure is not None else []
        counts = [(kind, sum(each.findings.get(kind, 0) for each in spans)) for kind in _KINDS]
        differing = [f"{kind.value} {count:,}" for kind, count in counts if count]
        differing += _texts(overdue.extra, "extra, behind the end of the source's log")
        incomplete = [] if limit is None else [f"the watch ended early: {limit}"]
        incomplete += [f"not watched: {each}" for each in unwatched]
        incomplete += _texts(overdue.unread, "without a counterpart, which was not read yet")
        incomplete += [
            f"the log ends of {count:,} partitions of the {side.value} are unknown"
            for side, count in behind.unknown.items()
            if count
        ]
        incomplete += [
            f"{count:,} offsets of the {side.value} were in its log for longer than --settle, or when this run "
            "first knew its end, and were not read: the watch is behind"
            for side, count in to_read.items()
            if count
        ]
        if not has_read and any(behind.offsets.values()):
            incomplete.append("this run has read nothing of what the logs have now")
        young = sum(
            len(each.waiting)
            for tp, each in self._partitions.items()
            if (each.ahead, tp) not in earlier
        )
        if young:
            incomplete.append(
                f"{young:,} records wait for their counterpart, and this run was not longer than --settle, or did "
                "not know the log ends so long ago: whether they are late is not known"
            )
        if not any(each.equal or each.findings for each in spans):
            incomplete.append("no record was compared")
        lagging = _texts(overdue.late, "behind the end of the target's log")
        reasons += [*differing, *incomplete, *lagging]
        verdict, code = WatchVerdict.EQUAL, ExitCode.CONSISTENT
        if failure is not None:
            verdict, code = WatchVerdict.ERROR, failure.exit_code
        elif differing:
            verdict, code = WatchVerdict.DIVERGED, ExitCode.DIVERGED
        elif incomplete:
            verdict, code = WatchVerdict.INCOMPLETE, ExitCode.NO_VERDICT_YET
        elif lagging:
            verdict, code = WatchVerdict.LAGGING, ExitCode.NO_VERDICT_YET
        return Outcome(verdict, code, tuple(reasons), behind)

    def to_json(self) -> dict[str, Any]:
        """Return the state for `from_json`. Times of arrival are not in it: a restarted watch waits again."""
        return {
            "version": STATE_VERSION,
            "partitions": [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "start": each.start,
                    "positions": {side.value: each.positions[side] for side in Side},
                    "ahead": each.ahead.value,
                    "waiting": [[offset, value] for offset, (value, _) in each.waiting.items()],
                    "equal": each.equal,
                    "findings": {kind.value: count for kind, count in each.counts.items()},
                }
                for tp, each in sorted(self._partitions.items())
            ],
            "findings": [
                [each.kind.value, *each.topic_partition, each.offset] for each in self._findings
            ],
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any], *, limit: int, now: float) -> RunningVerdict:
        """Return the state that `to_json` gave; its waiting records arrive *now*. Raise ValueError for another one."""
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"a state of version {state.get('version')}, not {STATE_VERSION}")
        found = cls({}, limit=limit)
        for each in state["partitions"]:
            found._partitions[TopicPartition(each["topic"], each["partition"])] = _Partition(
                each["start"],
                {side: each["positions"][side.value] for side in Side},
                {offset: (value, now) for offset, value in each["waiting"]},
                Side(each["ahead"]),
                each["equal"],
                {FindingClass(kind): count for kind, count in each["findings"].items()},
            )
        found._findings = [
            WatchFinding(FindingClass(kind), TopicPartition(topic, partition), offset)
            for kind, topic, partition, offset in state["findings"]
        ]
        return found


_KINDS = (FindingClass.MISSING, FindingClass.EXTRA, FindingClass.CORRUPT)


def _class(source: int | None, target: int | None) -> FindingClass | None:
    if target is None:
        return FindingClass.MISSING
    if source is None:
        return FindingClass.EXTRA
    return None if source == target else FindingClass.CORRUPT


def _texts(found: Iterable[Waiting], what: str) -> list[str]:
    return [
        f"{each.topic_partition}: {each.records:,} records of the {each.side.value} from offset "
        f"{each.first} on are {what}"
        for each in found
    ]
