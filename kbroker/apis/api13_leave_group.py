"""LeaveGroup (13), versions 0-5: members leave, or are removed by an administrator.

v1 throttle time; v3 several members, also by instance id alone (KIP-345); v4 flexible; v5 reasons (KIP-800).
"""

from kbroker.apis.request import RequestContext
from kbroker.coordinator.group.core.effects import MemberIdentity
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kclient.wire.errors import ErrorCode
from kclient.wire.schema.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)


class LeaveGroup:
    """Answers LeaveGroup."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse:
        """Answer when the group is in ZooKeeper without them."""
        if context.api_version < 3:
            identities = [MemberIdentity(request.member_id)]
            reason = ""
        else:
            identities = [MemberIdentity(m.member_id, m.group_instance_id) for m in request.members]
            reason = next((repr(m.reason[:200]) for m in request.members if m.reason), "")
        left = await self._coordinator.leave(request.group_id, identities, reason)
        if context.api_version < 3:
            first = next((error for _, error in left.members), ErrorCode.NONE)
            return LeaveGroupResponse(error_code=left.error or first)
        return LeaveGroupResponse(
            error_code=left.error,
            members=[
                MemberResponse(member_id, instance_id, error)
                for (member_id, instance_id), error in left.members
            ],
        )
