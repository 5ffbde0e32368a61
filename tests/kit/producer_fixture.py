"""A producer on scripted brokers that keep what is produced."""

from __future__ import annotations

from typing import Any

from kclient.producer.producer import Producer
from kclient.wire import batches
from kclient.wire.batches import Buffer
from kclient.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from kclient.wire.schema.init_producer_id import InitProducerIdResponse
from kclient.wire.versions import ApiKey
from tests.kit.scripted_broker import Outcome
from tests.kit.scripted_cluster import ScriptedCluster


class ProducerFixture:
    """The producer, its metadata known, and the logs of its partitions."""

    def __init__(self, topics: dict[str, int], **settings: Any) -> None:
        self.scripted = ScriptedCluster(topics)
        self.scripted.answers[ApiKey.INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(
            producer_id=5, producer_epoch=0
        )
        self.producer: Producer[Any, Any] = Producer(reactor=self.scripted.clock, **settings)
        self.scripted.attach(self.producer.cluster)
        self.logs: dict[tuple[str, int], list[bytes]] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.sequences: dict[tuple[str, int], int] = {}

    def send_columns(self, values: Any, **options: Any) -> Outcome:
        """Send columns to topic t, or another of *options*."""
        topic = options.pop("topic", "t")
        return Outcome(self.producer.send_columns(topic, values, **options))

    def deliver(self, turns: int = 400) -> None:
        """Answer all requests until the producer has nothing left."""
        for _ in range(turns):
            self.scripted.pass_time(0.05)
            while self.answer():
                pass
            if not self.producer.undelivered:
                return

    def answer(self, code: int = 0) -> bool:
        """Answer the oldest Produce: append its batches, or refuse them with *code*."""
        waiting = self.scripted.waiting(ApiKey.PRODUCE)
        if not waiting:
            return False
        request: ProduceRequest = waiting[0].message
        waiting[0].answer(
            ProduceResponse(
                [
                    ProduceTopicResponse(
                        topic.name,
                        [
                            ProducePartitionResponse(
                                p.index,
                                error_code=code,
                                base_offset=-1 if code else self._append(topic.name, p),
                            )
                            for p in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )
        )
        return True

    def _append(self, topic: str, produced: Any) -> int:
        place = topic, produced.index
        data: Buffer = produced.records
        info = batches.parse(data)
        batches.check_crc(data, info)
        if info.producer_id >= 0:
            assert info.base_sequence == self.sequences.get(place, 0)
            self.sequences[place] = info.base_sequence + info.record_count
        base = self.ends.get(place, 0)
        self.ends[place] = base + info.record_count
        raw = bytearray(data)
        raw[:8] = base.to_bytes(8, "big")
        self.logs.setdefault(place, []).append(bytes(raw))
        return base
