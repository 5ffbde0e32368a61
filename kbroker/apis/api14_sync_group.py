"""SyncGroup (14), versions 0-5: the leader hands in the assignment, and every member fetches its own.

v1 throttle time; v3 group instance id (KIP-345); v4 flexible; v5 protocol type and name, checked (KIP-559).

A follower's request waits for the leader's.
"""

from kbroker.apis.request import RequestContext
from kbroker.coordinator.group.core.effects import Sync
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kclient.wire.errors import ErrorCode
from kclient.wire.schema.sync_group import SyncGroupRequest, SyncGroupResponse


class SyncGroup:
    """Answers SyncGroup."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse:
        """Answer when the assignment is in ZooKeeper."""
        if context.api_version >= 5 and None in (
            request.protocol_type,
            request.protocol_name,
        ):
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        sync = Sync(
            member_id=request.member_id,
            generation_id=request.generation_id,
            assignments={a.member_id: bytes(a.assignment) for a in request.assignments},
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
        )
        synced = await self._coordinator.sync(request.group_id, sync)
        return SyncGroupResponse(
            error_code=synced.error,
            protocol_type=synced.protocol_type,
            protocol_name=synced.protocol_name,
            assignment=synced.assignment,
        )
