"""DescribeGroups (15), versions 0-5: state and members of groups.

v1 throttle time; v3 authorized operations on demand (KIP-430); v4 group instance id
(KIP-345); v5 flexible.

As in Kafka a group that does not exist is described as Dead, without an error. Metadata and assignments are shown of
Stable groups only.
"""

from kbroker.apis.authorized_operations import ALL_GROUP_OPERATIONS
from kbroker.apis.request import RequestContext
from kbroker.common.turns import for_each
from kbroker.coordinator.group.core.states import GroupState
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kclient.wire.errors import ErrorCode, GroupIdNotFound, KafkaError
from kclient.wire.schema.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)


class DescribeGroups:
    """Answers DescribeGroups."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse:
        """Answer from memory, confirmed: all groups of a request at once."""
        names = dict.fromkeys(request.groups)  # one that is named twice is described once
        groups = await for_each(context.turns, names, self._describe)
        if request.include_authorized_operations:
            for group in groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = ALL_GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=groups)

    async def _describe(self, group_id: str) -> DescribedGroup:
        try:
            group = (await self._coordinator.describe(group_id)).machine
        except GroupIdNotFound:
            return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        except KafkaError as error:
            return DescribedGroup(error_code=error.code, group_id=group_id)
        stable = group.state is GroupState.STABLE
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol_name or "") if stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(group.protocol_name) if stable else b"",
                    member_assignment=member.assignment if stable else b"",
                )
                for member in group.members
            ],
        )
