"""DeleteRecords (21): raise a partition's log start offset, on every live replica.

Versions served: 0 to 2 (v2 flexible). -1 stands for the high watermark; an offset beyond it is OFFSET_OUT_OF_RANGE. A
topic without `delete` in its cleanup.policy gets POLICY_VIOLATION, an internal topic INVALID_TOPIC_EXCEPTION. The
records are hidden at once; the next retention check deletes their segments.

The response waits until all replicas on live brokers begin at the offset or above it: a successor of this leader does
not show the records again. REQUEST_TIMED_OUT if that takes longer than timeout_ms; the records stay hidden here.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from kbroker.apis.request import RequestContext
from kbroker.common.internal_topics import INTERNAL_TOPICS
from kbroker.replica.partition import Partition
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.errors import ErrorCode, InvalidTopicException, KafkaError, code_of
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
        pending: list[_Pending] = []
        share = context.turns.slice()
        for topic in request.topics:
            answer = DeleteRecordsTopicResult(name=topic.name)
            topics.append(answer)
            for asked in topic.partitions:
                if share.is_over():
                    await share.next()
                answer.partitions.append(self._delete(topic.name, asked, pending))
        self._replica_manager.log_schedule.checkpoint_soon()
        wait = _Wait(pending)
        if not wait.is_over():
            purgatory = self._replica_manager.purgatory
            keys = [each.partition.key for each in pending]
            seconds = request.timeout_ms / 1000
            await purgatory.delay(
                purgatory.high_watermarks, keys, seconds, wait.is_over, wait.time_out
            )
        return DeleteRecordsResponse(topics=topics)

    def _delete(
        self, topic: str, asked: DeleteRecordsPartition, pending: list[_Pending]
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
            pending.append(_Pending(partition, start, result, self._live))
        return result


class _Pending:
    """A partition with replicas that may not begin at *offset* yet."""

    __slots__ = ("_live", "_offset", "partition", "result")

    def __init__(
        self,
        partition: Partition,
        offset: int,
        result: DeleteRecordsPartitionResult,
        live: Callable[[], Container[int]],
    ) -> None:
        self.partition = partition
        self._offset = offset
        self.result = result
        self._live = live

    def is_done(self) -> bool:
        """Return whether the wait is over; the low watermark or an error is in the result then."""
        try:
            low_watermark = self.partition.low_watermark(self._live())
        except KafkaError as error:
            self.result.error_code = int(code_of(error))
            return True
        self.result.low_watermark = low_watermark
        return low_watermark >= self._offset


class _Wait:
    """The partitions of a request with a low watermark that is below its offset."""

    def __init__(self, pending: list[_Pending]) -> None:
        self._pending = pending

    def is_over(self) -> bool | None:
        """Return True when no partition is left, else None."""
        self._pending = [each for each in self._pending if not each.is_done()]
        return None if self._pending else True

    def time_out(self) -> bool:
        """Make the results of the partitions that are left an error."""
        for each in self._pending:
            each.result.error_code = int(ErrorCode.REQUEST_TIMED_OUT)
        return True
