"""The requests pending to one broker, in the order in which they are sent.

Theory of operation
===================
Requests wait in batches. Within a batch the broker gets, as from Kafka's controller, LeaderAndIsr, then UpdateMetadata,
then StopReplica; batches follow each other. A new request joins the last batch if no request of that was sent and the
order is kept. A replica that is stopped in a batch is not started again in the same one. There it replaces the states
of the same partitions: a slow broker gets the latest state once, not every state in turn. One request is unanswered at
a time. It is sent again until it is answered (S20: dropping it and sending the next is the bug) or the channel is
closed. A request has some hundred partitions at most, so that a broker handles it in some milliseconds. The parts of a
full UpdateMetadata are numbered: they replace the broker's metadata when all have arrived.

Invariants: 1. per partition, states are sent in the order in which they were decided; 2. the last state decided is
sent;
3. one request is unanswered at a time.
In: requests, responses   Out: the next request   Owner: channel_manager
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
    """A pending LeaderAndIsr request."""

    partitions: tuple[PartitionUpdate, ...]
    live_leaders: tuple[Broker, ...]
    number: int = field(default=-1, compare=False)
    """The number of the request; it rises within a controller epoch."""

    @property
    def size(self) -> int:
        """The number of partitions in it."""
        return len(self.partitions)


@dataclass(frozen=True, slots=True)
class PendingUpdateMetadata:
    """A pending UpdateMetadata request; a *full* one replaces the broker's metadata with its last *part*."""

    partitions: tuple[PartitionUpdate, ...]
    live_brokers: tuple[Broker, ...]
    full: bool = False
    part: int = -1
    """Counted from 0 in each channel; -1 if it is one request."""
    has_more: bool = False
    number: int = field(default=-1, compare=False)

    @property
    def size(self) -> int:
        """The number of partitions in it."""
        return len(self.partitions)


@dataclass(frozen=True, slots=True)
class PendingStopReplica:
    """A pending StopReplica request."""

    stops: tuple[ReplicaStop, ...]
    number: int = field(default=-1, compare=False)

    @property
    def size(self) -> int:
        """The number of partitions in it."""
        return len(self.stops)


PendingRequest = PendingLeaderAndIsr | PendingUpdateMetadata | PendingStopReplica

PARTITIONS_PER_REQUEST = 500
"""Encoded and decoded in some 5 ms, during which the reactors of controller and broker do nothing else."""

K = TypeVar("K")
V = TypeVar("V")

_TopicKey = tuple[TopicPartition, object]


@dataclass(slots=True)
class _Batch:
    """Requests that may be sent together."""

    leaders: dict[TopicPartition, PartitionUpdate] = field(default_factory=dict)
    live_leaders: dict[int, Broker] = field(default_factory=dict)
    metadata: dict[_TopicKey, PartitionUpdate] = field(default_factory=dict)
    live_brokers: tuple[Broker, ...] | None = None
    """None: no UpdateMetadata."""
    full: bool = False
    in_parts: bool = False
    """Whether the full UpdateMetadata takes more than one request."""
    stops: dict[TopicPartition, ReplicaStop] = field(default_factory=dict)
    closed: bool = False
    """A request of it was sent, or it was closed by its sender: nothing may join."""

    def take(self, most: int, numbers: Iterator[int], number: int) -> PendingRequest:
        """Take the next request, of *most* partitions, as *number*; *numbers* are for the parts of an UpdateMetadata.

        There must be one.
        """
        self.closed = True
        if self.leaders:
            leaders = tuple(self.live_leaders.values())
            return PendingLeaderAndIsr(_some(self.leaders, most), leaders, number)
        if self.live_brokers is not None:
            updates = _some(self.metadata, most)
            has_more = self.full and bool(self.metadata)
            self.in_parts = self.in_parts or has_more
            part = next(numbers) if self.in_parts else -1
            metadata = PendingUpdateMetadata(
                updates, self.live_brokers, self.full, part, has_more, number
            )
            if not self.metadata:
                self.live_brokers = None
            return metadata
        return PendingStopReplica(_some(self.stops, most), number)


class BrokerRequestQueue:
    """The requests pending to one registration of a broker. They take their numbers from *request_numbers*."""

    def __init__(
        self,
        partitions_per_request: int = PARTITIONS_PER_REQUEST,
        request_numbers: Iterator[int] | None = None,
    ) -> None:
        self._most = partitions_per_request
        self._request_numbers = count() if request_numbers is None else request_numbers
        self._rounds: deque[_Batch] = deque()
        self._numbers = count()
        self._out: PendingRequest | None = None

    @property
    def is_idle(self) -> bool:
        """Whether every request was sent and answered."""
        return self._out is None and not self._rounds

    @property
    def has_leader_and_isr(self) -> bool:
        """Whether a LeaderAndIsr waits, or is unanswered."""
        return isinstance(self._out, PendingLeaderAndIsr) or any(
            batch.leaders for batch in self._rounds
        )

    def leader_and_isr(
        self, partitions: Iterable[PartitionUpdate], live_leaders: Iterable[Broker]
    ) -> None:
        """Queue a LeaderAndIsr."""
        updates = {(u.topic, u.partition): u for u in partitions}
        last = self._open_round()
        if not last.stops.keys().isdisjoint(updates):
            last = self._new_round()
        for partition, update in updates.items():
            earlier = last.leaders.get(partition)
            if earlier is not None and earlier.is_new and earlier.topic_id == update.topic_id:
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
        """Queue an UpdateMetadata; *alone* keeps later requests out of its batch (KAFKA-4443)."""
        last = self._new_round() if alone else self._open_round()
        if full:
            last.metadata, last.full = {}, True
        for update in partitions:
            # By id as well: the end of an old topic and the beginning of a new one of the same name are both sent.
            last.metadata[(update.topic, update.partition), update.topic_id] = update
        last.live_brokers = live_brokers
        last.closed = alone

    def stop_replica(self, stops: Iterable[ReplicaStop]) -> None:
        """Queue a StopReplica; a delete is never weakened to a mere stop."""
        last = self._open_round()
        for stop in stops:
            earlier = last.stops.get(stop.partition)
            if earlier is None or stop.delete or not earlier.delete:
                last.stops[stop.partition] = stop

    def next_request(self) -> PendingRequest | None:
        """Return the request to send now; None while one is unanswered, or if there is none."""
        if self._out is not None:
            return None
        while self._rounds:
            first = self._rounds[0]
            if _is_empty(first):
                self._rounds.popleft()
                continue
            self._out = first.take(self._most, self._numbers, next(self._request_numbers))
            return self._out
        return None

    def answered(self) -> None:
        """Take note that the unanswered request was answered."""
        self._out = None
        while self._rounds and self._rounds[0].closed and _is_empty(self._rounds[0]):
            self._rounds.popleft()

    def unanswered(self) -> PendingRequest:
        """Return the unanswered request, to be sent again after its connection failed."""
        if self._out is None:
            raise RuntimeError("no request is unanswered")
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
