"""DescribeProducers (61): the producers that a log knows, and where their open transactions begin (KIP-664).

Versions served: 0. Every replica answers, as in Kafka, so that they can be compared. The timestamp is when the producer
wrote last, by the broker's clock.

Differs from Kafka: a partition that is named twice has INVALID_REQUEST the second time. A producer of another cluster,
the open transaction of which a mirror copied, has no sequence and no timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.apis.request import RequestContext
from kbroker.common.turns import Slice
from kbroker.log.producer_state_manager import ProducerStateManager
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.errors import InvalidRequest, KafkaError, NotLeaderOrFollower, code_of
from kclient.wire.schema.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

_PRODUCERS_IN_A_STEP = 1000


class DescribeProducers:
    """Describes the producers of partitions."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    async def __call__(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse:
        """Answer every partition with its producers or its error."""
        share = context.turns.slice()
        seen: set[tuple[str, int]] = set()
        topics = []
        for topic in request.topics:
            answer = TopicResponse(topic.name)
            topics.append(answer)
            for index in topic.partition_indexes:
                if share.is_over():
                    await share.next()
                answer.partitions.append(await self._answer(topic.name, index, seen, share))
        return DescribeProducersResponse(topics=topics)

    async def _answer(
        self, topic: str, index: int, seen: set[tuple[str, int]], share: Slice
    ) -> PartitionResponse:
        response = PartitionResponse(index)
        try:
            if (topic, index) in seen:
                raise InvalidRequest(f"{topic}-{index} is named twice")
            seen.add((topic, index))
            partition = self._replica_manager.partition(topic, index)
            if partition.log is None:
                raise NotLeaderOrFollower(f"{partition} has no log here")
            for count, producer in enumerate(_producers(partition.log.producers), 1):
                response.active_producers.append(producer)
                if not count % _PRODUCERS_IN_A_STEP and share.is_over():
                    await share.next()
        except KafkaError as error:
            response.error_code = int(code_of(error))
            response.error_message = str(error)
        return response


def _producers(known: ProducerStateManager) -> Iterator[ProducerState]:
    """Yield what is known now; the log may change while the caller takes its turns."""
    ongoing = dict(known.transactions.ongoing)
    for producer_id, entry in list(known.states.entries.items()):
        transaction = ongoing.pop(producer_id, None)
        yield ProducerState(
            producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.touched_ms,
            entry.coordinator_epoch,
            -1 if transaction is None else transaction.first_offset,
        )
    for producer_id, copied in ongoing.items():
        yield ProducerState(producer_id, copied.producer_epoch, -1, -1, -1, copied.first_offset)
