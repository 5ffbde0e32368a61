"""What a consumer knows of each partition it is assigned: where it is, what is buffered, what it may fetch.

Theory of operation
===================
A partition has two offsets. `position` is the next one the caller will get; `fetch_offset` is the next one to ask a
broker for. Between the two lies what was fetched and not handed out yet: whole batches, and the decoded rest of the
batch that the caller has had a part of. A seek or a loss raises the partition's `epoch`; a new assignment makes a new
`PartitionState`. An answer counts only for the state and the epoch that asked for it (`Partitions.current`).

Invariants: 1. position <= fetch_offset. 2. data is buffered only in the order of its offsets, without a hole that the
broker did not have. 3. nothing is handed out of a partition that is paused or no longer assigned.
Pure: no I/O, no clock. Owner: the consumer, on the reactor's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kclient.consumer.preferred_read_replica import PreferredReadReplica
from kclient.errors import KafkaError
from kclient.types import AnyRecord, OffsetAndMetadata, TopicPartition
from kclient.wire.batches import BatchInfo

Batch = tuple[BatchInfo, memoryview]
"""A whole record batch: its header, and the fetched bytes that info.position points into."""


class FetchedBatch(NamedTuple):
    """A batch as buffered. *hidden*: a control batch, or of a transaction that was aborted."""

    info: BatchInfo
    data: memoryview
    hidden: bool = False


@dataclass(slots=True, eq=False)
class PartitionState:
    """One assigned partition."""

    tp: TopicPartition
    position: int | None = None
    """Next offset to hand out; None until it has been found."""
    fetch_offset: int = 0
    leader_epoch: int = -1
    """Of the last record handed out; goes into commits (KIP-320)."""
    fetch_epoch: int = -1
    """Leader epoch of the record before fetch_offset, -1 if that is not known."""
    validated_in: int = -1
    """The leader epoch in which the log is known to hold that record."""
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_start_offset: int | None = None
    paused: bool = False
    epoch: int = 0
    buffered: deque[FetchedBatch] = field(default_factory=deque)
    buffered_bytes: int = 0
    decoded: list[AnyRecord] = field(default_factory=list)
    """Records of the batch taken last, from `decoded_from` on not handed out yet."""
    decoded_from: int = 0
    decoded_end: int = 0
    """The offset after that batch."""
    problem: KafkaError | None = None
    """Why the record at the position cannot be handed out; every poll says so until a seek."""
    in_flight: bool = False
    not_before: float = 0.0
    """Not fetched again before this moment of the reactor's clock: it failed a moment ago."""
    read_replica: PreferredReadReplica = field(default_factory=PreferredReadReplica)
    reset_because: str = ""
    """Why the last position was lost (out of range), until a new one is found."""
    committed: OffsetAndMetadata | None = None
    """What this consumer committed last for it."""

    def seek(self, offset: int, leader_epoch: int = -1) -> None:
        """Go to *offset*; what was fetched or is on its way is dropped."""
        self.forget()
        self.position = self.fetch_offset = offset
        self.leader_epoch = self.fetch_epoch = leader_epoch
        self.validated_in = -1
        self.reset_because = ""

    def forget(self) -> None:
        """Lose the position, to be found anew."""
        self.epoch += 1
        self.position = None
        self.buffered.clear()
        self.buffered_bytes = 0
        self.decoded, self.decoded_from = [], 0
        self.problem = None
        self.in_flight = False

    def fetched(self, batches: Iterable[FetchedBatch], next_offset: int, size: int) -> None:
        """Buffer *batches* of *size* bytes that were fetched at fetch_offset."""
        self.buffered.extend(batches)
        self.buffered_bytes += size
        self.fetch_offset = next_offset
        self.fetch_epoch = self.buffered[-1].info.leader_epoch

    def take(self) -> FetchedBatch | None:
        """Remove and return the oldest buffered batch."""
        if not self.buffered:
            return None
        batch = self.buffered.popleft()
        self.buffered_bytes -= batch.info.size
        return batch

    @property
    def active(self) -> bool:
        """Whether records may be handed out and fetched."""
        return self.position is not None and not self.paused

    @property
    def ready(self) -> bool:
        """Whether there is something to hand out, be it a problem."""
        return self.active and bool(
            self.decoded_from < len(self.decoded) or self.buffered or self.problem
        )

    @property
    def lag(self) -> int | None:
        """Records between the position and the high watermark, as last heard; never negative."""
        if self.position is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.position)


class Partitions:
    """All assigned partitions, in the order in which they are served.

    Serving takes turns: a partition that gave records goes to the end of the line.
    """

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(list(self._states.values()))

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._states

    def __len__(self) -> int:
        return len(self._states)

    def get(self, tp: TopicPartition) -> PartitionState | None:
        """Return the state of *tp*, None if it is not assigned."""
        return self._states.get(tp)

    def current(self, state: PartitionState, epoch: int) -> bool:
        """Tell whether what was asked for *state* in *epoch* still matters."""
        return self._states.get(state.tp) is state and state.epoch == epoch

    def assigned(self) -> set[TopicPartition]:
        """Return what is assigned."""
        return set(self._states)

    def assign(self, wanted: Iterable[TopicPartition]) -> None:
        """Assign exactly *wanted*; what stays keeps its position and its buffer."""
        target = set(wanted)
        for tp in self._states.keys() - target:
            self._states.pop(tp).forget()
        for tp in sorted(target - self._states.keys()):
            self._states[tp] = PartitionState(tp)

    def served(self, tp: TopicPartition) -> None:
        """Put *tp* at the end of the line."""
        state = self._states.pop(tp, None)
        if state is not None:
            self._states[tp] = state

    def without_position(self) -> list[PartitionState]:
        """Return the partitions whose position has to be found."""
        return [state for state in self._states.values() if state.position is None]

    def fetchable(self, now: float, max_buffered: int) -> list[PartitionState]:
        """Return what may be fetched now, each partition buffering at most *max_buffered* bytes."""
        return [
            state
            for state in self._states.values()
            if state.active
            and not state.in_flight
            and state.buffered_bytes < max_buffered
            and state.not_before <= now
            and state.problem is None
        ]

    def next_retry_at(self, now: float) -> float | None:
        """Return when the first partition that waits after a failure may be fetched again."""
        waits = [s.not_before for s in self._states.values() if s.active and s.not_before > now]
        return min(waits, default=None)

    def ready(self) -> Iterator[PartitionState]:
        """Iterate over partitions that have something to hand out, in their order."""
        for state in list(self._states.values()):
            if state.ready:
                yield state

    @property
    def buffered_bytes(self) -> int:
        """Bytes fetched and not handed out; what a paused partition holds back is not counted."""
        return sum(state.buffered_bytes for state in self._states.values() if state.active)
