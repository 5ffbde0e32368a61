"""What one broker still has to be told, in the order it has to be told it.

Theory of operation
===================
Orders wait in rounds. Within a round the broker hears, as from Kafka's controller, LeaderAndIsr, then
UpdateMetadata, then StopReplica; rounds follow each other. An order joins the last round if that has
not been begun and the order of things is kept (a replica stopped in a round is not started again in
the same one), and there replaces what the round said of the same partition before: a broker that is
slow is told the latest state once, not every state in turn. One request is out at a time; it is sent
again until it is answered (S20: dropping it and sending the next is the bug) or the channel is closed.
A request speaks of some hundred partitions at most, so that no broker is busy with one for long. The parts of a full
UpdateMetadata are numbered: they replace what the broker knew when all are there.

Invariants: 1. per partition, states are told in the order they were decided; 2. the last state decided
is told; 3. one request at a time.
In: orders, answers   Out: requests   Owner: controller.controller
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import TypeVar

from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import Broker
from kbroker.controller.core.effects import PartitionUpdate, ReplicaStop


@dataclass(frozen=True, slots=True)
class PendingLeaderAndIsr:
    """One LeaderAndIsr request to be."""

    partitions: tuple[PartitionUpdate, ...]
    live_leaders: tuple[Broker, ...]
    number: int = field(default=-1, compare=False)
    """Of the request; rises within a controller's term."""

    @property
    def size(self) -> int:
        """How many partitions it speaks of."""
        return len(self.partitions)


@dataclass(frozen=True, slots=True)
class PendingUpdateMetadata:
    """One UpdateMetadata request to be; *full* replaces all the broker knew, once the last *part* is there."""

    partitions: tuple[PartitionUpdate, ...]
    live_brokers: tuple[Broker, ...]
    full: bool = False
    part: int = -1
    """Counted from 0 through all of a channel; -1 if it comes in one."""
    has_more: bool = False
    number: int = field(default=-1, compare=False)

    @property
    def size(self) -> int:
        """How many partitions it speaks of."""
        return len(self.partitions)


@dataclass(frozen=True, slots=True)
class PendingStopReplica:
    """One StopReplica request to be."""

    stops: tuple[ReplicaStop, ...]
    number: int = field(default=-1, compare=False)

    @property
    def size(self) -> int:
        """How many partitions it speaks of."""
        return len(self.stops)


PendingRequest = PendingLeaderAndIsr | PendingUpdateMetadata | PendingStopReplica

PARTITIONS_PER_REQUEST = 500
"""Written and read in some 5 ms, during which controller and broker hear nothing else."""

K = TypeVar("K")
V = TypeVar("V")

_TopicKey = tuple[TopicPartition, object]


@dataclass(slots=True)
class _Batch:
    """Orders that may be told together."""

    leaders: dict[TopicPartition, PartitionUpdate] = field(default_factory=dict)
    live_leaders: dict[int, Broker] = field(default_factory=dict)
    metadata: dict[_TopicKey, PartitionUpdate] = field(default_factory=dict)
    live_brokers: tuple[Broker, ...] | None = None
    """None: nothing to say by UpdateMetadata."""
    full: bool = False
    in_parts: bool = False
    """Whether it takes more than one request to be full."""
    stops: dict[TopicPartition, ReplicaStop] = field(default_factory=dict)
    closed: bool = False
    """Begun, or complete by order: nothing may join."""

    def take(self, most: int, numbers: Iterator[int] | None) -> PendingRequest | None:
        """Take the next request, of *most* partitions, out of this round.

        *numbers* are for the parts of a full UpdateMetadata; without them it is one request, of any size.
        """
        self.closed = True
        if self.leaders:
            return PendingLeaderAndIsr(_some(self.leaders, most), tuple(self.live_leaders.values()))
        if self.live_brokers is not None:
            in_one = self.full and numbers is None
            updates = _some(self.metadata, len(self.metadata) if in_one else most)
            has_more = self.full and bool(self.metadata)
            self.in_parts = self.in_parts or has_more
            part = next(numbers) if numbers is not None and self.in_parts else -1
            metadata = PendingUpdateMetadata(updates, self.live_brokers, self.full, part, has_more)
            if not self.metadata:
                self.live_brokers = None
            return metadata
        if self.stops:
            return PendingStopReplica(_some(self.stops, most))
        return None


class BrokerRequestQueue:
    """The queue of orders for one incarnation of a broker. Requests take their numbers from *request_numbers*."""

    def __init__(
        self,
        partitions_per_request: int = PARTITIONS_PER_REQUEST,
        request_numbers: Iterator[int] | None = None,
        *,
        in_parts: bool = True,
    ) -> None:
        """*in_parts*: a full UpdateMetadata may be sent in several requests, an extension of ours."""
        self._most = partitions_per_request
        self._request_numbers = count() if request_numbers is None else request_numbers
        self._rounds: deque[_Batch] = deque()
        self._numbers = count() if in_parts else None
        self._out: PendingRequest | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the broker has been told everything and has answered."""
        return self._out is None and not self._rounds

    def leader_and_isr(
        self, partitions: Iterable[PartitionUpdate], live_leaders: Iterable[Broker]
    ) -> None:
        """Queue a LeaderAndIsr."""
        updates = {(u.topic, u.partition): u for u in partitions}
        last = self._open_round()
        if not last.stops.keys().isdisjoint(updates):
            last = self._new_round()
        for partition, update in updates.items():
            told = last.leaders.get(partition)
            if told is not None and told.is_new and told.topic_id == update.topic_id:
                update = replace(update, is_new=True)
            last.leaders[partition] = update
        last.live_leaders.update((b.broker_id, b) for b in live_leaders)

    def update_metadata(
        self,
        partitions: Iterable[PartitionUpdate],
        live_brokers: tuple[Broker, ...],
        *,
        full: bool = False,
        alone: bool = False,
    ) -> None:
        """Queue an UpdateMetadata; *alone* keeps later orders out of its round (KAFKA-4443)."""
        last = self._new_round() if alone else self._open_round()
        if full:
            last.metadata, last.full = {}, True
        for update in partitions:
            # By id as well: an old topic's end and its namesake's beginning are both told.
            last.metadata[(update.topic, update.partition), update.topic_id] = update
        last.live_brokers = live_brokers
        last.closed = alone

    def stop_replica(self, stops: Iterable[ReplicaStop]) -> None:
        """Queue a StopReplica; a delete is never weakened to a mere stop."""
        last = self._open_round()
        for stop in stops:
            told = last.stops.get(stop.partition)
            if told is None or stop.delete or not told.delete:
                last.stops[stop.partition] = stop

    def next_request(self) -> PendingRequest | None:
        """Return the request to send now; None while one is out, or when there is none."""
        if self._out is not None:
            return None
        while self._rounds:
            pending = self._rounds[0].take(self._most, self._numbers)
            if pending is not None:
                self._out = replace(pending, number=next(self._request_numbers))
                return self._out
            self._rounds.popleft()
        return None

    def answered(self) -> None:
        """Note that the request that is out was answered."""
        self._out = None
        while self._rounds and self._rounds[0].closed and _is_empty(self._rounds[0]):
            self._rounds.popleft()

    def unanswered(self) -> PendingRequest:
        """Return the request that is out, to be sent again after its connection failed."""
        if self._out is None:
            raise RuntimeError("no request is out")
        return self._out

    def _open_round(self) -> _Batch:
        if self._rounds and not self._rounds[-1].closed:
            return self._rounds[-1]
        return self._new_round()

    def _new_round(self) -> _Batch:
        self._rounds.append(_Batch())
        return self._rounds[-1]


def _some(waiting: dict[K, V], most: int) -> tuple[V, ...]:
    """Take the first values out, as many as a request may carry."""
    keys = list(islice(waiting, most))
    return tuple(waiting.pop(key) for key in keys)


def _is_empty(waiting: _Batch) -> bool:
    return not waiting.leaders and waiting.live_brokers is None and not waiting.stops
