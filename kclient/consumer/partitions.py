"""The state of each assigned partition: position, buffered batches, and whether to fetch it.

Theory of operation
===================
A partition has two offsets. `position` is the offset of the next record to return; `fetch_offset` is the offset of the
next fetch. Between them lie the buffered data: whole batches, and the decoded rest of a batch that was returned in
part. A seek or a lost position increases the partition's `epoch`; a new assignment creates a new `PartitionState`. A
response counts only for the state and the epoch of its request (`Partitions.current`).

Invariants: 1. position <= fetch_offset. 2. buffered offsets are in order, with the log's own gaps only. 3. a paused or
unassigned partition returns no records.
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
    """A buffered batch. *hidden*: a control batch, or a batch of an aborted transaction."""

    info: BatchInfo
    data: memoryview
    hidden: bool = False


@dataclass(slots=True, eq=False)
class PartitionState:
    """An assigned partition."""

    tp: TopicPartition
    position: int | None = None
    """The offset of the next record to return; None until it is looked up."""
    fetch_offset: int = 0
    leader_epoch: int = -1
    """The leader epoch of the last returned record; commits contain it (KIP-320)."""
    fetch_epoch: int = -1
    """The leader epoch of the record before fetch_offset, -1 if unknown."""
    validated_in: int = -1
    """The leader epoch in which the log is known to contain that record."""
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_start_offset: int | None = None
    paused: bool = False
    epoch: int = 0
    buffered: deque[FetchedBatch] = field(default_factory=deque)
    buffered_bytes: int = 0
    decoded: list[AnyRecord] = field(default_factory=list)
    """Records of the last decoded batch; those before `decoded_from` were returned."""
    decoded_from: int = 0
    decoded_end: int = 0
    """The offset after that batch."""
    problem: KafkaError | None = None
    """The error of the record at the position; every poll raises it until a seek."""
    in_flight: bool = False
    drains: bool = False
    """The fetch offset is out of range: nothing is fetched until a poll has returned what is buffered."""
    not_before: float = 0.0
    """The end of a backoff, by the reactor's clock: not fetched before."""
    read_replica: PreferredReadReplica = field(default_factory=PreferredReadReplica)
    reset_because: str = ""
    """Why the last position was lost (out of range), until there is a new one."""
    committed: OffsetAndMetadata | None = None
    """The last offset that this consumer committed."""
    stored: OffsetAndMetadata | None = None
    """The offset to commit, by `store_offsets`."""

    def seek(self, offset: int, leader_epoch: int = -1) -> None:
        """Set the position to *offset*; drop buffered batches and responses in flight."""
        self.forget()
        self.position = self.fetch_offset = offset
        self.leader_epoch = self.fetch_epoch = leader_epoch
        self.validated_in = -1
        self.reset_because = ""

    def forget(self) -> None:
        """Drop the position, so that it is looked up again."""
        self.epoch += 1
        self.position = None
        self.buffered.clear()
        self.buffered_bytes = 0
        self.decoded, self.decoded_from = [], 0
        self.problem = None
        self.in_flight = False
        self.drains = False

    def fetched(self, batches: Iterable[FetchedBatch], next_offset: int, size: int) -> None:
        """Buffer *batches* of *size* bytes, fetched at fetch_offset."""
        self.drains = False
        self.buffered.extend(batches)
        self.buffered_bytes += size
        self.fetch_offset = next_offset
        self.fetch_epoch = self.buffered[-1].info.leader_epoch

    def put_back(self, records: list[AnyRecord]) -> None:
        """Return *records*, the last ones that were taken, to the head of the buffer."""
        if self.position is None:
            return
        rest = self.decoded[self.decoded_from :]
        if not rest:
            self.decoded_end = self.position
        self.decoded, self.decoded_from = [*records, *rest], 0
        self.position = records[0].offset

    def take(self) -> FetchedBatch | None:
        """Remove and return the oldest buffered batch."""
        if not self.buffered:
            return None
        batch = self.buffered.popleft()
        self.buffered_bytes -= batch.info.size
        return batch

    def fetch_again(self) -> None:
        """Drop what is buffered; the next fetch begins at the position, which stays validated."""
        assert self.position is not None, "a partition without a position buffers nothing"
        validated_in = self.validated_in
        self.seek(self.position, self.leader_epoch)
        self.validated_in = validated_in

    def untake(self, batch: FetchedBatch) -> None:
        """Buffer the batch of the last `take` again, because the position is still in it."""
        self.buffered.appendleft(batch)
        self.buffered_bytes += batch.info.size

    @property
    def active(self) -> bool:
        """Whether the partition may be fetched and return records."""
        return self.position is not None and not self.paused

    @property
    def has_buffered(self) -> bool:
        """Whether records or batches are buffered."""
        return self.decoded_from < len(self.decoded) or bool(self.buffered)

    @property
    def ready(self) -> bool:
        """Whether a poll would return records or raise an error of this partition."""
        return self.active and (self.has_buffered or self.problem is not None)

    def lag(self, *, read_committed: bool = False) -> int | None:
        """Return the number of records from the position to the last known high watermark; never negative.

        With *read_committed* it is up to the last stable offset: behind it nothing can be consumed yet (KIP-98).
        """
        end = self.last_stable_offset if read_committed else self.high_watermark
        if self.position is None or end is None:
            return None
        return max(0, end - self.position)


class Partitions:
    """All assigned partitions, in round-robin order.

    A partition that returned records goes to the end.
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
        """Return whether a response to a request of *state* in *epoch* is still valid."""
        return self._states.get(state.tp) is state and state.epoch == epoch

    def assigned(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return set(self._states)

    def assign(self, wanted: Iterable[TopicPartition]) -> None:
        """Assign exactly *wanted*; a partition that stays keeps its position and its buffer."""
        target = set(wanted)
        for tp in self._states.keys() - target:
            self._states.pop(tp).forget()
        for tp in sorted(target - self._states.keys()):
            self._states[tp] = PartitionState(tp)

    def served(self, tp: TopicPartition) -> None:
        """Move *tp* to the end of the order."""
        state = self._states.pop(tp, None)
        if state is not None:
            self._states[tp] = state

    def without_position(self) -> list[PartitionState]:
        """Return the partitions without a position."""
        return [state for state in self._states.values() if state.position is None]

    def fetchable(self, now: float, max_buffered: int) -> list[PartitionState]:
        """Return the partitions to fetch now; each buffers at most *max_buffered* bytes."""
        return [
            state
            for state in self._states.values()
            if state.active
            and not state.in_flight
            and state.buffered_bytes < max_buffered
            and state.not_before <= now
            and state.problem is None
            and not (state.drains and state.has_buffered)
        ]

    def next_retry_at(self, now: float) -> float | None:
        """Return when the first backoff of a partition ends."""
        waits = [s.not_before for s in self._states.values() if s.active and s.not_before > now]
        return min(waits, default=None)

    def ready(self) -> Iterator[PartitionState]:
        """Iterate over partitions with records or an error for poll, in order."""
        for state in list(self._states.values()):
            if state.ready:
                yield state

    @property
    def buffered_bytes(self) -> int:
        """Bytes of buffered batches, without those of paused partitions."""
        return sum(state.buffered_bytes for state in self._states.values() if state.active)
