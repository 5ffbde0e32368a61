"""UpdateMetadata (6): the controller sends the metadata that every broker gives to clients.

Versions served: 7 and 8. v8: `type`. FULL replaces the whole cache, and shows which replicas on the disks of this
broker are strays. With thousands of partitions it comes in parts, numbered by tagged fields of ours.

Errors: STALE_CONTROLLER_EPOCH from a deposed controller, STALE_BROKER_EPOCH for a request that was meant for an earlier
registration of this broker (KIP-380). INVALID_REQUEST when an earlier part is missing, INVALID_UPDATE_VERSION when a
later request of the same controller arrived first. Then this one is a delayed copy of a request that was resent.

Differs from Kafka: only a connection that proved to be the controller's broker is accepted
(docs/design/inter-broker-trust.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias
from uuid import UUID

from kbroker.apis.request import RequestContext
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.replica.stray_replicas import DeletedOf, StrayReplicas
from kclient.wire.interbroker import (
    LEADER_DURING_DELETE,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)

FollowTopics: TypeAlias = Callable[[Mapping[str, UUID | None], Iterable[str]], None]
"""`DynamicConfigManager.follow_topics`: receives topics with their ids, and the names of deleted ones."""


class UpdateMetadata:
    """Answers UpdateMetadata.

    *follow_topics* receives the topics of a request that the cache has applied. *deleted_of* reads ZooKeeper.
    """

    def __init__(
        self,
        cache: MetadataCache,
        replica_manager: ReplicaManager,
        follow_topics: FollowTopics,
        deleted_of: DeletedOf,
    ) -> None:
        self._cache = cache
        self._replica_manager = replica_manager
        self._follow_topics = follow_topics
        self._strays = StrayReplicas(replica_manager, cache, deleted_of)

    async def __call__(
        self, context: RequestContext, request: UpdateMetadataRequest
    ) -> UpdateMetadataResponse:
        """Answer the request; refusals are KafkaErrors."""
        is_whole = self._cache.update(request, self._replica_manager.registration.broker_epoch)
        self._follow(request)
        if is_whole:
            await self._strays.remove(request)
        else:
            await self._replica_manager.state_changes.stop_recreated_topics(request)
            if self._strays.waiting or _deletes(request):
                await self._strays.remove_led(request)
        return UpdateMetadataResponse()

    def _follow(self, request: UpdateMetadataRequest) -> None:
        hosts = self._replica_manager.registry.hosts_topic
        present: dict[str, UUID | None] = {}
        deleted: dict[str, None] = {}
        for topic in request.topic_states:
            name = topic.topic_name
            if any(state.leader != LEADER_DURING_DELETE for state in topic.partition_states):
                present[name] = topic.topic_id
            elif self._cache.topic(name) is None and not hosts(name):
                deleted[name] = None
        self._follow_topics(present, deleted.keys() - present.keys())


def _deletes(request: UpdateMetadataRequest) -> bool:
    """Return whether *request* deletes partitions."""
    return any(
        state.leader == LEADER_DURING_DELETE
        for topic in request.topic_states
        for state in topic.partition_states
    )
