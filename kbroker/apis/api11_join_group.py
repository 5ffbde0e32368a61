"""JoinGroup (11), versions 0-9: become a member of a group, or stay one through a rebalance.

v1 rebalance timeout (in v0 it is the session timeout); v2 throttle time; v4 a new member first gets its id
(KIP-394); v5 group instance id (KIP-345); v6 flexible; v7 protocol type (KIP-559); v8 reason (KIP-800);
v9 skip_assignment (KIP-814).

The request waits until the group's members are together, as long as the rebalance timeout.
"""

from kbroker.apis.request import RequestContext
from kbroker.coordinator.group.core.effects import Join
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kclient.wire.errors import ErrorCode
from kclient.wire.schema.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)


class JoinGroup:
    """Answers JoinGroup."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse:
        """Answer when the group's next generation begins."""
        version = context.api_version
        rebalance_ms = request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms
        join = Join(
            member_id=request.member_id,
            fresh_member_id=self._coordinator.new_member_id(
                request.group_instance_id or context.client_id
            ),
            client_id=context.client_id,
            client_host=f"/{context.peer.host}",
            session_timeout=request.session_timeout_ms / 1000,
            rebalance_timeout=max(rebalance_ms, 0) / 1000,
            protocol_type=request.protocol_type,
            protocols=tuple((p.name, bytes(p.metadata)) for p in request.protocols),
            group_instance_id=request.group_instance_id,
            requires_known_member_id=version >= 4,
            supports_skip_assignment=version >= 9,
            reason=_shown(request.reason),
        )
        joined = await self._coordinator.join(request.group_id, join)
        failed = joined.error is not ErrorCode.NONE
        return JoinGroupResponse(
            error_code=joined.error,
            generation_id=joined.generation_id,
            protocol_type=None if failed else joined.protocol_type,
            # Before version 7 the name could not be null.
            protocol_name=joined.protocol_name or (None if version >= 7 else ""),
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=[
                JoinGroupResponseMember(member_id, instance_id, metadata)
                for member_id, instance_id, metadata in joined.members
            ],
        )


def _shown(reason: str | None) -> str:
    """Return a client's words as they may be logged: short, and on one line."""
    return repr(reason[:200]) if reason else ""
