"""AlterClientQuotas (49): set and remove quotas of users, client ids and their defaults (KIP-546).

Versions served: 0 and 1 (v1 flexible). Any broker answers. A change is in ZooKeeper when it is answered, and applies
on every broker when that has read the notification.

Differs from Kafka: a quota must be above 0, as in KRaft mode (Kafka stores 0 and then does not throttle). There are no
connection rates by ip. An entity that is in a request twice is refused.
"""

from __future__ import annotations

from collections import Counter

from kbroker.apis.request import RequestContext
from kbroker.common.turns import for_each
from kbroker.quota.client_quota_admin import ClientQuotaAdmin
from kbroker.quota.core.stored_quotas import QuotaOperation, entity_of
from kclient.wire.errors import InvalidRequest, KafkaError
from kclient.wire.schema.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
)

Parts = tuple[tuple[str, str | None], ...]


class AlterClientQuotas:
    """Answers AlterClientQuotas."""

    def __init__(self, quota_admin: ClientQuotaAdmin) -> None:
        self._quota_admin = quota_admin

    async def __call__(
        self, context: RequestContext, request: AlterClientQuotasRequest
    ) -> AlterClientQuotasResponse:
        """Answer one result per entity."""
        times = Counter(_parts(entry) for entry in request.entries)
        unique = {_parts(entry): entry for entry in request.entries}

        async def alter(parts: Parts) -> AlterClientQuotasResponseEntryData:
            entry = unique[parts]
            response = AlterClientQuotasResponseEntryData(0, None, list(entry.entity))
            try:
                await self._alter(entry, times[parts], request.validate_only)
            except KafkaError as error:
                response.error_code, response.error_message = int(error.code), error.message
            return response

        return AlterClientQuotasResponse(entries=await for_each(context.turns, unique, alter))

    async def _alter(
        self, entry: AlterClientQuotasRequestEntryData, times: int, validate_only: bool
    ) -> None:
        if times > 1:
            raise InvalidRequest("each entity must appear at most once")
        entity = entity_of((each.entity_type, each.entity_name) for each in entry.entity)
        operations = [QuotaOperation(op.key, None if op.remove else op.value) for op in entry.ops]
        await self._quota_admin.alter(entity, operations, validate_only=validate_only)


def _parts(entry: AlterClientQuotasRequestEntryData) -> Parts:
    return tuple(
        sorted(
            ((each.entity_type, each.entity_name) for each in entry.entity),
            key=lambda part: (part[0], part[1] or ""),
        )
    )
