"""UpdateMetadata (6): the controller sends the metadata that every broker gives to clients.

Versions served: 7 and 8. v8: `type`. FULL replaces the whole cache, and shows which replicas on the disks of this
broker are strays. With thousands of partitions it comes in parts, numbered by tagged fields of ours.

Errors: STALE_CONTROLLER_EPOCH from a deposed controller; STALE_BROKER_EPOCH when meant for an earlier registration of
this broker (KIP-380); INVALID_REQUEST when an earlier part is missing; INVALID_UPDATE_VERSION when a later request of
the same controller arrived first (this one is a delayed copy of a request that was resent).
"""

from __future__ import annotations

from kbroker.apis.request import RequestContext
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.replica.stray_replicas import StrayReplicas
from kclient.wire.interbroker import UpdateMetadataRequest, UpdateMetadataResponse


class UpdateMetadata:
    """Answers UpdateMetadata."""

    def __init__(self, cache: MetadataCache, replica_manager: ReplicaManager) -> None:
        self._cache = cache
        self._replica_manager = replica_manager
        self._strays = StrayReplicas(replica_manager, cache)

    async def __call__(
        self, context: RequestContext, request: UpdateMetadataRequest
    ) -> UpdateMetadataResponse:
        """Answer the request; refusals are KafkaErrors."""
        is_whole = self._cache.update(request, self._replica_manager.registration.broker_epoch)
        if is_whole:
            await self._strays.remove(request)
        else:
            await self._replica_manager.state_changes.stop_recreated_topics(request)
            await self._strays.remove_led(request)
        return UpdateMetadataResponse()
