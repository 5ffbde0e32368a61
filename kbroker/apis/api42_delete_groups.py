"""DeleteGroups (42), versions 0-2: remove groups without members, with their offsets (KIP-229).

v1 throttle time only; v2 flexible.
"""

from kbroker.apis.request import RequestContext
from kbroker.common.turns import for_each
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError
from kclient.wire.schema.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


class DeleteGroups:
    """Answers DeleteGroups."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def __call__(
        self, context: RequestContext, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse:
        """Answer when their znodes are gone."""

        async def delete(group_id: str) -> DeletableGroupResult:
            try:
                await self._coordinator.delete(group_id)
            except KafkaError as error:
                return DeletableGroupResult(group_id, error.code)
            return DeletableGroupResult(group_id, ErrorCode.NONE)

        names = dict.fromkeys(request.groups_names)
        results = await for_each(context.turns, names, delete)
        return DeleteGroupsResponse(results=results)
