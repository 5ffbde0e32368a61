"""DeleteGroups (42), versions 0-2: remove groups without members, with their offsets (KIP-229).

v1 throttle time only; v2 flexible.
"""

from kbroker.apis import RequestContext
from kbroker.runtime.group_coordinator import GroupCoordinator
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
        results = []
        for group_id in dict.fromkeys(request.groups_names):
            error = await self._coordinator.delete(group_id)
            results.append(DeletableGroupResult(group_id, error))
        return DeleteGroupsResponse(results=results)
