"""DeleteRecords (21): raise a partition's log start offset.

Versions served: 0 to 2 (v2 flexible). -1 stands for the high watermark; an offset beyond it is OFFSET_OUT_OF_RANGE. A
topic without `delete` in its cleanup.policy gets POLICY_VIOLATION, an internal topic INVALID_TOPIC_EXCEPTION. The
records are hidden at once; the next retention check deletes their segments.
"""

from __future__ import annotations

from kbroker.apis.request import RequestContext
from kbroker.common.internal_topics import INTERNAL_TOPICS
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
    """Moves log start offsets."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    async def __call__(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse:
        """Answer every partition with its new low watermark or its error."""
        topics = []
        share = context.turns.slice()
        for topic in request.topics:
            answer = DeleteRecordsTopicResult(name=topic.name)
            topics.append(answer)
            for asked in topic.partitions:
                if share.is_over():
                    await share.next()
                answer.partitions.append(self._delete(topic.name, asked))
        self._replica_manager.log_schedule.checkpoint_soon()
        return DeleteRecordsResponse(topics=topics)

    def _delete(self, topic: str, asked: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        result = DeleteRecordsPartitionResult(
            partition_index=asked.partition_index, low_watermark=-1, error_code=0
        )
        try:
            if topic in INTERNAL_TOPICS:
                raise InvalidTopicException(f"{topic} is written by brokers only")
            partition = self._replica_manager.partition(topic, asked.partition_index)
            result.low_watermark = partition.delete_records(asked.offset)
        except KafkaError as error:
            result.error_code = int(code_of(error))
        return result
