"""InitProducerId (22), versions 0-5: a producer id for an idempotent producer (KIP-98).

v2 flexible; v3 the producer may bring its old id and epoch (KIP-360): without a transactional id it simply gets a new
one; v4 and v5 new error codes for transactions (KIP-588, KIP-890).

Differs from Kafka: transactional ids are refused with INVALID_REQUEST, because there are no transactions yet.
"""

from kbroker.apis.request import RequestContext
from kbroker.coordinator.transaction.producer_id_manager import ProducerIdManager
from kclient.wire.errors import InvalidRequest
from kclient.wire.schema.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


class InitProducerId:
    """Answers InitProducerId."""

    def __init__(self, producer_ids: ProducerIdManager) -> None:
        self._producer_ids = producer_ids

    async def __call__(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        """Answer with a fresh id in epoch 0."""
        if request.transactional_id is not None:
            raise InvalidRequest("transactions are not served by this broker")
        return InitProducerIdResponse(producer_id=await self._producer_ids.next(), producer_epoch=0)
