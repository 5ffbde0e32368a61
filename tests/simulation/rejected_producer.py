"""A producer that sends what a leader must reject: a sequence gap, or a former producer epoch (KIP-98)."""

from __future__ import annotations

from kclient.errors import ConnectError
from kclient.wire.errors import KafkaError
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.records import Record, encode_batch
from kclient.wire.versions import ApiKey
from tests.simulation.cluster_access import ClusterAccess
from tests.simulation.copies import Broken

ATTEMPTS = 6
TIMEOUT_MS = 3000
EPOCH = 1
"""The producer epoch of the valid batch."""


class RejectedProducer:
    """Sends one valid batch, and behind it an invalid one."""

    def __init__(self, clients: ClusterAccess, topic: str, partition: int, number: int) -> None:
        self._clients = clients
        self._topic, self._partition = topic, partition
        self._number = number

    async def run(self, kind: str) -> None:
        """Have the first batch acknowledged, then send the other one a few times."""
        clients = self._clients
        topic_id = clients.observer.topics.get(self._topic)
        if not await self._until_acknowledged(self._batch(EPOCH, 0)):
            return
        skipped = clients.rng.choice((1, 3))
        wrong = self._batch(EPOCH, 1 + skipped) if kind == "gap" else self._batch(EPOCH - 1, 0)
        for _ in range(ATTEMPTS):
            acknowledged = await self._offer(wrong)
            must_know = not clients.observer.has_lost(self._topic, self._partition)
            if clients.observer.topics.get(self._topic) != topic_id:
                return
            if acknowledged and must_know:
                raise Broken(
                    f"Sequences: {self._topic}-{self._partition}: a batch of producer {self._number}"
                    f" is acknowledged that is wrong by its {kind}"
                )
            await clients.pause()

    async def _until_acknowledged(self, batch: bytes) -> bool:
        for _ in range(ATTEMPTS):
            if await self._offer(batch):
                return True
            await self._clients.pause()
        return False

    async def _offer(self, batch: bytes) -> bool:
        clients = self._clients
        leader = clients.leader(self._topic, self._partition)
        if leader is None:
            return False
        partition = ProducePartition(self._partition, batch)
        request = ProduceRequest(-1, TIMEOUT_MS, [ProduceTopic(self._topic, [partition])])
        try:
            connection = await clients.connection(leader, "rejected")
            response = await connection.request(ApiKey.PRODUCE, 9, request)
        except (KafkaError, ConnectError):
            return False
        return not response.topics[0].partitions[0].error_code

    def _key(self, epoch: int, sequence: int) -> bytes | None:
        is_needed = self._topic in self._clients.compacted
        return b"rejected %d %d %d" % (self._number, epoch, sequence) if is_needed else None

    def _batch(self, epoch: int, sequence: int) -> bytes:
        record = Record(
            0, self._clients.now_ms(), self._key(epoch, sequence), b"%d" % self._number, ()
        )
        return encode_batch(
            [record],
            producer_id=self._number,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
