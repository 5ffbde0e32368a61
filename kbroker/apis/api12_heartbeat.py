"""Heartbeat (12), versions 0-4: a member is alive, and learns whether it has to rejoin.

v1 throttle time; v3 group instance id (KIP-345); v4 flexible.
"""

from kbroker.apis.request import RequestContext
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kclient.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse


class Heartbeat:
    """Answers Heartbeat."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(
        self, context: RequestContext, request: HeartbeatRequest
    ) -> HeartbeatResponse:
        """Answer REBALANCE_IN_PROGRESS to call the member back."""
        error = await self._coordinator.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        return HeartbeatResponse(error_code=error)
