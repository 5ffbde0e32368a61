"""DescribeClientQuotas (48): the quotas of users, client ids and their defaults (KIP-546).

Versions served: 0 and 1 (v1 flexible). Any broker answers, with what ZooKeeper has.

Differs from Kafka: there are no connection rates by ip; a filter for them finds nothing. Settings in ZooKeeper that are
no numbers above 0 are left out.
"""

from __future__ import annotations

from kbroker.apis.request import RequestContext
from kbroker.quota.client_quota_admin import ClientQuotaAdmin
from kbroker.quota.core.entities import DEFAULT, EntityName, QuotaEntity
from kbroker.quota.core.stored_quotas import CLIENT_ID, USER, components_of
from kclient.wire.schema.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)


class DescribeClientQuotas:
    """Answers DescribeClientQuotas."""

    def __init__(self, quota_admin: ClientQuotaAdmin) -> None:
        self._quota_admin = quota_admin

    async def __call__(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse:
        """Answer the quotas of the entities that match the filter."""
        components = components_of(
            (each.entity_type, each.match_type, each.match) for each in request.components
        )
        found = await self._quota_admin.describe(components, is_strict=request.strict)
        return DescribeClientQuotasResponse(
            error_message=None,
            entries=[
                EntryData(_parts(entity), [ValueData(*each) for each in values.items()])
                for entity, values in found.items()
            ],
        )


def _parts(entity: QuotaEntity) -> list[EntityData]:
    parts = ((USER, entity.user), (CLIENT_ID, entity.client_id))
    return [EntityData(kind, _name(name)) for kind, name in parts if name is not None]


def _name(name: EntityName) -> str | None:
    return None if name is DEFAULT else name
