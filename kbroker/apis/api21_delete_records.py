"""DeleteRecords (21): raise a partition's log start offset, on every live replica.

Versions served: 0 to 2 (v2 flexible). -1 stands for the high watermark; an offset beyond it is OFFSET_OUT_OF_RANGE. A
topic without `delete` in its cleanup.policy gets POLICY_VIOLATION, an internal topic INVALID_TOPIC_EXCEPTION. The
records are hidden at once; the next retention check deletes their segments.

The response waits until all replicas on live brokers begin at the offset or above it. So a successor of this leader
does not show the records again. REQUEST_TIMED_OUT if that takes longer than timeout_ms; the records stay hidden here.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial

from kbroker.apis.request import RequestContext
from kbroker.common.internal_topics import INTERNAL_TOPICS
from kbroker.replica.partition import Partition
from kbroker.replica.purgatory import PendingPartition
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.errors import InvalidTopicException, KafkaError, code_of
from kclient.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)


class DeleteRecords:
    """Moves log start offsets. *live* returns the ids of the live brokers."""

    def __init__(self, replica_manager: ReplicaManager, live: Callable[[], Container[int]]) -> None:
        self._replica_manager = replica_manager
        self._live = live

    async def __call__(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse:
        """Answer every partition with its new low watermark or its error."""
        topics = []
        pending: list[PendingPartition] = []
        share = context.turns.slice()
        for topic in request.topics:
            answer = DeleteRecordsTopicResult(name=topic.name)
            topics.append(answer)
            for asked in topic.partitions:
                if share.is_over():
                    await share.next()
                answer.partitions.append(self._delete(topic.name, asked, pending))
        self._replica_manager.log_schedule.checkpoint_soon()
        await self._replica_manager.purgatory.until_done(pending, request.timeout_ms / 1000)
        return DeleteRecordsResponse(topics=topics)

    def _delete(
        self, topic: str, asked: DeleteRecordsPartition, pending: list[PendingPartition]
    ) -> DeleteRecordsPartitionResult:
        result = DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=-1, error_code=0
        )
        try:
            if topic in INTERNAL_TOPICS:
                raise InvalidTopicException(f"{topic} is written by brokers only")
            partition = self._replica_manager.partition(topic, asked.partition_index)
            start = partition.delete_records(asked.offset)
        except KafkaError as error:
            result.error_code = int(code_of(error))
        else:
            check = partial(self._begins_at, partition, start, result)
            pending.append(PendingPartition(partition.key, check, result))
        return result

    def _begins_at(
        self, partition: Partition, offset: int, result: DeleteRecordsPartitionResult
    ) -> bool:
        """Put the low watermark into *result*; return whether all live replicas begin at *offset* or above it."""
        result.low_watermark = partition.low_watermark(self._live())
        return result.low_watermark >= offset
