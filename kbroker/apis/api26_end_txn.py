"""EndTxn (26), versions 0-4: commit or abort the open transaction (KIP-98).

v2 PRODUCER_FENCED (KIP-588); v3 flexible; v4 new error codes (KIP-890).

The response follows the decision in ZooKeeper. The markers follow it, too: the next AddPartitionsToTxn gets
CONCURRENT_TRANSACTIONS until they are written.
"""

from __future__ import annotations

from typing import Final

from kbroker.apis.request import RequestContext
from kbroker.apis.transaction_errors import for_version
from kbroker.coordinator.transaction.core.states import ProducerIdAndEpoch
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kclient.wire.errors import KafkaError, code_of
from kclient.wire.schema.end_txn import EndTxnRequest, EndTxnResponse

KNOWS_FENCED: Final = 2


class EndTxn:
    """Answers EndTxn."""

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    async def __call__(self, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
        """Answer when the decision is stored."""
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        try:
            await self._transactions.end(
                request.transactional_id, producer, is_commit=request.committed
            )
        except KafkaError as failure:
            error = for_version(code_of(failure), context.api_version, KNOWS_FENCED)
            return EndTxnResponse(error_code=int(error))
        return EndTxnResponse()
