"""LeaderAndIsr (4): the controller says which partitions this broker leads or follows.

Versions served: 5 to 7 (v5 topic ids, `type`; v6 leader recovery state). The settings of topics that are
new here are read first, so that no log is made with the wrong ones; the rest is `Replicas`' work.
"""

from __future__ import annotations

from kbroker.apis import RequestContext
from kbroker.metadata.dynamic_config import DynamicConfig
from kbroker.replica.replica_manager import Replicas
from kclient.wire.interbroker import LeaderAndIsrRequest, LeaderAndIsrResponse


class LeaderAndIsr:
    """Answers LeaderAndIsr."""

    def __init__(self, replicas: Replicas, dynamic: DynamicConfig) -> None:
        self._replicas = replicas
        self._dynamic = dynamic

    async def __call__(
        self, context: RequestContext, request: LeaderAndIsrRequest
    ) -> LeaderAndIsrResponse:
        """Answer one error code per partition."""
        topics = {topic.topic_name: topic.topic_id for topic in request.topic_states}
        await self._dynamic.load_topics(topics, context.turns)
        return await self._replicas.orders.obey_leader_and_isr(request)
