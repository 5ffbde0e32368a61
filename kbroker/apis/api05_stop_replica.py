"""StopReplica (5): the controller names the replicas that this broker stops, and those that it deletes.

Versions served: 3 and 4 (v3: leader epochs, KIP-570, and delete per partition).

Differs from Kafka: only a connection that proved to be the controller's broker is accepted
(docs/design/inter-broker-trust.md).
"""

from __future__ import annotations

from kbroker.apis.request import RequestContext
from kbroker.metadata.dynamic_config_manager import DynamicConfigManager
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.errors import ErrorCode
from kclient.wire.interbroker import StopReplicaRequest, StopReplicaResponse


class StopReplica:
    """Answers StopReplica."""

    def __init__(self, replica_manager: ReplicaManager, dynamic: DynamicConfigManager) -> None:
        self._replica_manager = replica_manager
        self._dynamic = dynamic

    async def __call__(
        self, context: RequestContext, request: StopReplicaRequest
    ) -> StopReplicaResponse:
        """Answer one error code per partition."""
        response = await self._replica_manager.state_changes.stop_replicas(request)
        if response.error_code == ErrorCode.NONE:
            deleted = {
                topic.topic_name
                for topic in request.topic_states
                if any(state.delete_partition for state in topic.partition_states)
            }
            hosts = self._replica_manager.registry.hosts_topic
            self._dynamic.forget_topics(name for name in deleted if not hosts(name))
        return response
