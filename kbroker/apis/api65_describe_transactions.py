"""DescribeTransactions (65): the state of transactional ids (KIP-664).

Versions served: 0. A group of the transaction is shown as its partition of ``__consumer_offsets``, as in Kafka.

Differs from Kafka: an ended transaction has no start time. Kafka's coordinator shows that of the last one, until
another broker becomes coordinator.
"""

from __future__ import annotations

from kbroker.apis.request import RequestContext
from kbroker.common.turns import for_each
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kclient.wire.errors import KafkaError, code_of
from kclient.wire.schema.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


class DescribeTransactions:
    """Answers DescribeTransactions."""

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    async def __call__(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsResponse:
        """Answer each transactional id with its state or its error."""
        states = await for_each(context.turns, request.transactional_ids, self._describe)
        return DescribeTransactionsResponse(transaction_states=states)

    async def _describe(self, name: str) -> TransactionState:
        try:
            found = await self._transactions.describe(name)
        except KafkaError as error:
            return TransactionState(int(code_of(error)), name)
        metadata = found.metadata
        topics: dict[str, TopicData] = {}
        partitions = [
            *sorted(metadata.partitions),
            *self._transactions.group_partitions(metadata.groups),
        ]
        for topic, partition in partitions:
            topics.setdefault(topic, TopicData(topic)).partitions.append(partition)
        return TransactionState(
            transactional_id=name,
            transaction_state=found.state.value,
            transaction_timeout_ms=metadata.timeout_ms,
            transaction_start_time_ms=metadata.start_ms,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            topics=list(topics.values()),
        )
