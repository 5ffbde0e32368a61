"""ListOffsets (api key 2), v1-9: offsets by time, and the two ends of a partition.

v2 isolation level · v4 leader epoch · v6 flexible · v7 max timestamp (-3, KIP-734) · v8 earliest local (-4, KIP-405) ·
v9 latest tiered (-5, KIP-1005: nothing is tiered here, so -1). The latest offset is the high watermark, or under
read_committed the last stable offset. That is for consumers (replica id -1). A broker's id asks for the leader's log
end. Replica id -2, the debugging consumer, asks for the log end of the replica that is here, leader or not
(fetchOnlyFromLeader of Kafka's KafkaApis). A broker's id needs a connection that proved to come from that broker, else
every partition has CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final

from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.apis.request import RequestContext
from kbroker.common.turns import for_each
from kbroker.replica.fetch_reader import READ_COMMITTED
from kbroker.replica.offset_lookup import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    OffsetLookup,
)
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    UnsupportedVersion,
    code_of,
)
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kclient.wire.versions import ApiKey

SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The first version that has each special timestamp."""

PARTITIONS_AT_ONCE: Final = 8
"""Partitions of one request that are looked into at a time."""


class ListOffsets:
    """Looks offsets up in the logs."""

    def __init__(self, replica_manager: ReplicaManager, authorizer: InterBrokerAuthorizer) -> None:
        self._replica_manager = replica_manager
        self._authorizer = authorizer
        self._lookup = OffsetLookup(replica_manager.in_pool)

    async def __call__(
        self, context: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse:
        """Answer every partition with its offset or its error."""
        replica = request.replica_id
        is_refused = replica >= 0 and not self._authorizer.authorize_as(
            context.peer, replica, ApiKey.LIST_OFFSETS
        )
        asked = [
            (topic.name, partition) for topic in request.topics for partition in topic.partitions
        ]
        times = Counter((name, partition.partition_index) for name, partition in asked)

        async def answer(one: tuple[str, ListOffsetsPartition]) -> ListOffsetsPartitionResponse:
            name, partition = one
            return await self._answer(
                context,
                name,
                partition,
                request.replica_id,
                twice=times[name, partition.partition_index] > 1,
                is_refused=is_refused,
                read_committed=request.isolation_level == READ_COMMITTED,
            )

        answers = iter(await for_each(context.turns, asked, answer, PARTITIONS_AT_ONCE))
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name, partitions=list(islice(answers, len(topic.partitions)))
                )
                for topic in request.topics
            ]
        )

    async def _answer(
        self,
        context: RequestContext,
        topic: str,
        asked: ListOffsetsPartition,
        replica_id: int,
        *,
        twice: bool,
        is_refused: bool,
        read_committed: bool,
    ) -> ListOffsetsPartitionResponse:
        response = ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=0,
            timestamp=-1,
            offset=-1,
            leader_epoch=-1,
        )
        try:
            if is_refused:
                raise ClusterAuthorizationFailed(f"not a request of broker {replica_id}")
            if twice:
                raise InvalidRequest(f"{topic}-{asked.partition_index} is named twice")
            timestamp = asked.timestamp
            if timestamp < 0 and context.api_version < SINCE.get(timestamp, 99):
                raise UnsupportedVersion(
                    f"timestamp {timestamp} in ListOffsets v{context.api_version}"
                )
            partition = self._replica_manager.partition(topic, asked.partition_index)
            found = await self._lookup.find(
                partition,
                timestamp,
                asked.current_leader_epoch,
                replica_id,
                turns=context.turns,
                read_committed=read_committed,
            )
        except KafkaError as error:
            code = code_of(error)
            if code is ErrorCode.OFFSET_NOT_AVAILABLE and context.api_version < 5:
                # Retriable for clients that do not know KIP-207.
                code = ErrorCode.LEADER_NOT_AVAILABLE
            response.error_code = int(code)
            return response
        response.timestamp, response.offset, response.leader_epoch = found
        return response
