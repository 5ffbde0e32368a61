"""ListTransactions (66), versions 0-1: the transactional ids of this coordinator (KIP-664).

v1 a filter by the duration of the open transaction, in ms (KIP-994).

Differs from Kafka: the filter by duration leaves out transactional ids without an open transaction.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.apis.request import RequestContext
from kbroker.coordinator.transaction.core.states import TransactionState as State
from kbroker.coordinator.transaction.transaction_coordinator import (
    TransactionCoordinator,
    TransactionDescription,
)
from kclient.wire.errors import KafkaError, code_of
from kclient.wire.schema.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


class ListTransactions:
    """Answers ListTransactions; *now_ms* is the wall clock."""

    def __init__(self, transactions: TransactionCoordinator, now_ms: Callable[[], int]) -> None:
        self._transactions = transactions
        self._now_ms = now_ms

    async def __call__(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> ListTransactionsResponse:
        """Answer with the transactional ids that pass all filters."""
        known = {state.value for state in State}
        states = set(request.state_filters)
        try:
            found = await self._transactions.list_transactions()
        except KafkaError as error:
            return ListTransactionsResponse(error_code=int(code_of(error)))
        passes = _filter(request, states & known, self._now_ms())
        share = context.turns.slice()
        shown = []
        for each in found:
            if share.is_over():
                await share.next()
            if passes(each):
                shown.append(
                    TransactionState(each.name, each.metadata.producer_id, each.state.value)
                )
        return ListTransactionsResponse(
            unknown_state_filters=sorted(states - known), transaction_states=shown
        )


def _filter(
    request: ListTransactionsRequest, states: set[str], now_ms: int
) -> Callable[[TransactionDescription], bool]:
    producer_ids = set(request.producer_id_filters)
    duration = request.duration_filter

    def passes(found: TransactionDescription) -> bool:
        if producer_ids and found.metadata.producer_id not in producer_ids:
            return False
        if request.state_filters and found.state.value not in states:
            return False
        start = found.metadata.start_ms
        return duration < 0 or (start >= 0 and now_ms - start > duration)

    return passes
