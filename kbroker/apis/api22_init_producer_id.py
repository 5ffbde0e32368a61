"""InitProducerId (22), versions 0-5: a producer id and epoch (KIP-98).

v2 flexible; v3 the producer may bring its old id and epoch (KIP-360): without a transactional id it simply gets a new
one; v4 PRODUCER_FENCED (KIP-588); v5 new error codes for transactions (KIP-890).

An idempotent producer gets a new producer id. A producer with a transactional id gets the next epoch of that id's
producer: the former one is fenced, and its open transaction aborted.

Differs from Kafka: a transactional id has 1024 characters at most, because it is the name of a znode.
"""

from typing import Final

from kbroker.apis.request import RequestContext
from kbroker.apis.transaction_errors import for_version
from kbroker.coordinator.transaction.core.states import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdAndEpoch,
)
from kbroker.coordinator.transaction.producer_id_manager import ProducerIdManager
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kclient.wire.errors import InvalidRequest, KafkaError, code_of
from kclient.wire.schema.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

KNOWS_FENCED: Final = 4


class InitProducerId:
    """Answers InitProducerId: *producer_ids* are for idempotent producers, *transactions* for transactional ones."""

    def __init__(
        self, producer_ids: ProducerIdManager, transactions: TransactionCoordinator
    ) -> None:
        self._producer_ids = producer_ids
        self._transactions = transactions

    async def __call__(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        """Answer with a producer id and epoch, which are stored."""
        transactional_id = request.transactional_id
        try:
            if transactional_id is None:
                return InitProducerIdResponse(
                    producer_id=await self._producer_ids.next(), producer_epoch=0
                )
            producer = await self._transactions.init_producer_id(
                transactional_id, request.transaction_timeout_ms, _expected(request)
            )
        except KafkaError as error:
            code = for_version(code_of(error), context.api_version, KNOWS_FENCED)
            return InitProducerIdResponse(
                error_code=int(code), producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
            )
        return InitProducerIdResponse(
            producer_id=producer.producer_id, producer_epoch=producer.epoch
        )


def _expected(request: InitProducerIdRequest) -> ProducerIdAndEpoch | None:
    """Return the producer that continues. InvalidRequest for half of one."""
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    if producer == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH):
        return None
    if producer.producer_id == NO_PRODUCER_ID or producer.epoch == NO_PRODUCER_EPOCH:
        raise InvalidRequest(f"producer id {producer.producer_id} with epoch {producer.epoch}")
    return producer
