"""OffsetForLeaderEpoch (23): where a leader epoch ends (KIP-101, KIP-279, KIP-320).

Versions served: 2 to 4 (v3 replica id; v4 flexible). The response has the largest epoch not above the requested one,
and the offset after its last record; -1 and -1 where that is unknown. Only a leader answers: a follower (replica id)
while it may be followed, a consumer while no other broker can have been elected (S11). A broker's id is accepted only
on a connection that proved to come from that broker, else every partition has CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.apis.request import RequestContext
from kbroker.replica.offset_lookup import last_offset_for_leader_epoch
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.errors import ClusterAuthorizationFailed, KafkaError, code_of
from kclient.wire.schema.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from kclient.wire.versions import ApiKey


class OffsetForLeaderEpoch:
    """Looks leader epochs up in the logs."""

    def __init__(self, replica_manager: ReplicaManager, authorizer: InterBrokerAuthorizer) -> None:
        self._replica_manager = replica_manager
        self._authorizer = authorizer

    async def __call__(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        """Answer every partition with an epoch and its end, or its error."""
        replica = request.replica_id
        is_refused = replica >= 0 and not self._authorizer.authorize_as(
            context.peer, replica, ApiKey.OFFSET_FOR_LEADER_EPOCH
        )
        topics = []
        share = context.turns.slice()
        for topic in request.topics:
            answer = OffsetForLeaderTopicResult(topic=topic.topic)
            topics.append(answer)
            for asked in topic.partitions:
                if share.is_over():
                    await share.next()
                answer.partitions.append(
                    self._answer(topic.topic, asked, replica, is_refused=is_refused)
                )
        return OffsetForLeaderEpochResponse(topics=topics)

    def _answer(
        self, topic: str, asked: OffsetForLeaderPartition, replica_id: int, *, is_refused: bool
    ) -> EpochEndOffset:
        response = EpochEndOffset(
            partition=asked.partition, error_code=0, leader_epoch=-1, end_offset=-1
        )
        try:
            if is_refused:
                raise ClusterAuthorizationFailed(f"not a request of broker {replica_id}")
            partition = self._replica_manager.partition(topic, asked.partition)
            response.leader_epoch, response.end_offset = last_offset_for_leader_epoch(
                partition, asked.leader_epoch, asked.current_leader_epoch, replica_id
            )
        except KafkaError as error:
            response.error_code = int(code_of(error))
        return response
