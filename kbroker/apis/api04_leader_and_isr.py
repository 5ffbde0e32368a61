"""LeaderAndIsr (4): the controller assigns the partitions that this broker leads or follows.

Versions served: 5 to 7 (v5 topic ids, `type`; v6 leader recovery state). The settings of topics that are new here are
read first, so that no log is created with the wrong ones. `ReplicaManager` does the rest.

Differs from Kafka: only a connection that proved to be the controller's broker is accepted
(docs/design/inter-broker-trust.md).
"""

from __future__ import annotations

from kbroker.apis.request import RequestContext
from kbroker.metadata.dynamic_config_manager import DynamicConfigManager
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.interbroker import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
)


class LeaderAndIsr:
    """Answers LeaderAndIsr."""

    def __init__(
        self, replica_manager: ReplicaManager, dynamic: DynamicConfigManager, is_extended: bool
    ) -> None:
        """Without *is_extended* (inter.broker.protocol.version) responses have Kafka's own fields only."""
        self._replica_manager = replica_manager
        self._dynamic = dynamic
        self._is_extended = is_extended

    async def __call__(
        self, context: RequestContext, request: LeaderAndIsrRequest
    ) -> LeaderAndIsrResponse:
        """Answer one error code per partition."""
        topics = {topic.topic_name: topic.topic_id for topic in request.topic_states}
        await self._dynamic.load_topics(topics, context.turns)
        response = await self._replica_manager.state_changes.become_leader_or_follower(request)
        if not self._is_extended:
            for topic in response.topics:
                topic.partition_errors = [
                    LeaderAndIsrPartitionError(error.partition_index, error.error_code)
                    for error in topic.partition_errors
                ]
        return response
