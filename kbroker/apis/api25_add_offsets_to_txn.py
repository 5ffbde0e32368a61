"""AddOffsetsToTxn (25), versions 0-4: a group with offsets that are committed in the open transaction (KIP-98).

v2 PRODUCER_FENCED (KIP-588); v3 flexible; v4 new error codes (KIP-890).

Differs from Kafka: the transaction has the group itself, and not its partition of ``__consumer_offsets``. An empty
group id has INVALID_GROUP_ID.
"""

from __future__ import annotations

from typing import Final

from kbroker.apis.request import RequestContext
from kbroker.apis.transaction_errors import for_version
from kbroker.coordinator.transaction.core.states import ProducerIdAndEpoch
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kclient.wire.errors import KafkaError, code_of
from kclient.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

KNOWS_FENCED: Final = 2


class AddOffsetsToTxn:
    """Answers AddOffsetsToTxn."""

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    async def __call__(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> AddOffsetsToTxnResponse:
        """Answer when the group is stored."""
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        try:
            await self._transactions.add_offsets(
                request.transactional_id, producer, request.group_id
            )
        except KafkaError as failure:
            error = for_version(code_of(failure), context.api_version, KNOWS_FENCED)
            return AddOffsetsToTxnResponse(error_code=int(error))
        return AddOffsetsToTxnResponse()
