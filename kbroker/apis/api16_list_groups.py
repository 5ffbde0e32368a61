"""ListGroups (16), versions 0-5: the groups that this broker coordinates.

v1 throttle time; v3 flexible; v4 states, and a filter by them (KIP-518); v5 types, and a filter by them (KIP-848):
every group here is a classic one.
"""

from kbroker.apis.request import RequestContext
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kclient.wire.errors import KafkaError
from kclient.wire.schema.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

TYPE = "classic"


class ListGroups:
    """Answers ListGroups."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(
        self, context: RequestContext, request: ListGroupsRequest
    ) -> ListGroupsResponse:
        """Answer from memory, confirmed."""
        try:
            groups, error = await self._coordinator.list_groups()
        except KafkaError as failure:
            return ListGroupsResponse(error_code=failure.code)
        states = {state.lower() for state in request.states_filter}
        types = {group_type.lower() for group_type in request.types_filter}
        return ListGroupsResponse(
            error_code=error,
            groups=[
                ListedGroup(group.group_id, group.protocol_type, group.state.value, TYPE)
                for group in groups
                if (not states or group.state.value.lower() in states)
                and (not types or TYPE in types)
            ],
        )
