"""A partition leader as simple as can be, for senders: it checks sequences as in KIP-98.

`Wire` stands for the one connection to it. Requests queue there until the test lets them be
processed, answered, refused or lost.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from kclient.errors import ConnectionClosed
from kclient.net.metadata import Broker, ClusterMetadata, PartitionMetadata, TopicMetadata
from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.errors import ErrorCode
from kclient.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from kclient.wire.records import decode_batch
from kclient.wire.schema.init_producer_id import InitProducerIdResponse
from kclient.wire.versions import ApiKey

REMEMBERED = 5
LARGEST_BATCH = 120
"""Bytes, on partitions with an odd number: the others take all."""


class ModelLeader:
    """Logs of values, and the last batches of each producer."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[bytes | None]] = {}
        self._producers: dict[tuple[TopicPartition, int], tuple[int, deque[tuple[int, int, int]]]]
        self._producers = {}

    def produce(self, request: ProduceRequest, refuse: int = 0) -> ProduceResponse:
        """Append what may be appended; with *refuse*, nothing, and that code for an answer."""
        return ProduceResponse(
            [
                ProduceTopicResponse(
                    topic.name,
                    [
                        ProducePartitionResponse(p.index, error_code=refuse)
                        if refuse
                        else self._append(TopicPartition(topic.name, p.index), p.index, p.records)
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _append(self, tp: TopicPartition, index: int, data: Any) -> ProducePartitionResponse:
        info = batches.check_produced(data, max_batch_bytes=1 << 20)
        if index % 2 and info.size > LARGEST_BATCH:
            return ProducePartitionResponse(index, error_code=ErrorCode.MESSAGE_TOO_LARGE)
        log = self.logs.setdefault(tp, [])
        if info.producer_id >= 0:
            refused = self._check(tp, info, len(log))
            if refused is not None:
                offset, code = refused
                return ProducePartitionResponse(index, error_code=code, base_offset=offset)
        base = len(log)
        log += [record.value for record in decode_batch(data, info)]
        return ProducePartitionResponse(index, base_offset=base)

    def _check(
        self, tp: TopicPartition, info: batches.BatchInfo, offset: int
    ) -> tuple[int, int] | None:
        key = (tp, info.producer_id)
        is_known = key in self._producers
        epoch, last = self._producers.get(key, (-1, deque()))
        if info.producer_epoch < epoch:
            return -1, ErrorCode.INVALID_PRODUCER_EPOCH
        if info.producer_epoch > epoch:
            if info.base_sequence != 0 and is_known:  # else any sequence (KAFKA-14359)
                return -1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            last = deque(maxlen=REMEMBERED)
        else:
            for base_sequence, record_count, at in last:
                if (base_sequence, record_count) == (info.base_sequence, info.record_count):
                    return at, 0
            if last and info.base_sequence != last[-1][0] + last[-1][1]:
                return -1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        last.append((info.base_sequence, info.record_count, offset))
        self._producers[key] = (info.producer_epoch, last)
        return None


class Wire:
    """The connection to the leader; unanswered requests in order."""

    def __init__(self, leader: ModelLeader) -> None:
        self.leader = leader
        self.waiting: deque[tuple[ProduceRequest, Deferred[Any]]] = deque()
        self.sent = 0

    def request(
        self, api_key: int, version: int | None, message: Any, *, timeout: float | None = None
    ) -> Deferred[Any]:
        """Queue a Produce; answer InitProducerId at once."""
        if api_key == ApiKey.INIT_PRODUCER_ID:
            return succeed(InitProducerIdResponse(producer_id=77, producer_epoch=0))
        answer: Deferred[Any] = Deferred()
        self.sent += 1
        self.waiting.append((message, answer))
        return answer

    def answer(self, refuse: int = 0, *, stored: bool = False) -> None:
        """Process the oldest request and answer it; *stored*: refuse it after it was appended."""
        request, answer = self.waiting.popleft()
        if stored:
            self.leader.produce(request)
        answer.callback(self.leader.produce(request, refuse))

    def lose(self, processed: int) -> None:
        """The connection breaks: *processed* of the waiting requests still reached the log."""
        everything, self.waiting = list(self.waiting), deque()
        for request, _ in everything[:processed]:
            self.leader.produce(request)
        for _, answer in everything:
            answer.errback(ConnectionClosed("the connection was cut"))


class OneLeaderCluster:
    """What a sender sees of a cluster: one broker that leads every partition of topic ``t``."""

    def __init__(self, clock: Clock, partitions: int = 2) -> None:
        self.reactor = clock
        self.wire = Wire(ModelLeader())
        self.brokers = self
        self.closed = False
        self.last_problem = None
        self.connected = True
        self.updates = 0
        led = {p: PartitionMetadata("t", p, 1, 0, (1,), (1,)) for p in range(partitions)}
        self.metadata = ClusterMetadata(
            brokers={1: Broker(1, "broker", 9092)},
            topics={"t": TopicMetadata("t", None, False, led)},
            controller_id=1,
            version=1,
        )

    def on_change(self, callback: Any) -> None:
        """Nothing changes here."""

    def update_soon(self) -> None:
        """Count how often the metadata was found wrong."""
        self.updates += 1

    def ready(self, node: int) -> Wire | None:
        """Return the connection."""
        return self.wire if self.connected else None

    async def connection(self, node: int) -> Wire:
        """Connect again."""
        self.connected = True
        return self.wire

    async def any_connection(self) -> Wire:
        """Return the connection."""
        return self.wire
