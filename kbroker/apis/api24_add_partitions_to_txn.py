"""AddPartitionsToTxn (24), versions 0-5: partitions of an open transaction (KIP-98), and their verification (KIP-890).

v2 PRODUCER_FENCED (KIP-588); v3 flexible; v4 several transactions in a request, for brokers only, with `verify_only`;
v5 TRANSACTION_ABORTABLE.

A partition that the metadata cache does not have fails the whole transaction: the others get OPERATION_NOT_ATTEMPTED. A
leader that verifies the first batch of a transaction receives the number of the transaction in a tagged field of ours
(10000). Its coordinator sends the same number with the marker (docs/design/transactions.md).

Differs from Kafka: verification does not ask whether the partition exists; the transaction has it or has it not. A
transaction that is named twice in a request has INVALID_REQUEST the second time. A client that begins a transaction
while the last one is being completed waits for up to 100 ms before it gets CONCURRENT_TRANSACTIONS. A transaction has
at most as many partitions as fit in 800,000 bytes of state; more are UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.apis.request import RequestContext
from kbroker.apis.transaction_errors import for_version
from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import for_each
from kbroker.coordinator.transaction.core.states import ProducerIdAndEpoch
from kbroker.coordinator.transaction.core.transaction import Verified
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.metadata.metadata_cache import MetadataCache
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError, code_of
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from kclient.wire.versions import ApiKey

FOR_BROKERS: Final = 4
"""The first version that only brokers send."""
KNOWS_FENCED: Final = 2
KNOWS_ABORTABLE: Final = 5

NO_NUMBER: Final = -1


class AddPartitionsToTxn:
    """Answers AddPartitionsToTxn."""

    def __init__(
        self,
        transactions: TransactionCoordinator,
        metadata: MetadataCache,
        authorizer: InterBrokerAuthorizer,
    ) -> None:
        self._transactions = transactions
        self._metadata = metadata
        self._authorizer = authorizer

    async def __call__(
        self, context: RequestContext, request: AddPartitionsToTxnRequest
    ) -> AddPartitionsToTxnResponse:
        """Answer when the partitions are stored, or verified."""
        if context.api_version < FOR_BROKERS:
            one = await self._answer(
                context,
                AddPartitionsToTxnTransaction(
                    request.v3_and_below_transactional_id,
                    request.v3_and_below_producer_id,
                    request.v3_and_below_producer_epoch,
                    False,
                    request.v3_and_below_topics,
                ),
            )
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=one.topic_results)
        if not self._authorizer.authorize(context.peer, ApiKey.ADD_PARTITIONS_TO_TXN):
            return AddPartitionsToTxnResponse(
                error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            )
        seen: set[str] = set()

        async def answer(asked: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
            if asked.transactional_id in seen:
                return _result(asked, lambda _: ErrorCode.INVALID_REQUEST)
            seen.add(asked.transactional_id)
            return await self._answer(context, asked)

        results = await for_each(context.turns, request.transactions, answer)
        return AddPartitionsToTxnResponse(results_by_transaction=results)

    async def _answer(
        self, context: RequestContext, asked: AddPartitionsToTxnTransaction
    ) -> AddPartitionsToTxnResult:
        """Return the result for one transaction."""
        partitions = [(t.name, p) for t in asked.topics for p in t.partitions]
        producer = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch)
        try:
            if asked.verify_only:
                return _verified(
                    context,
                    asked,
                    partitions,
                    await self._transactions.verify(asked.transactional_id, producer, partitions),
                )
            unknown = {each for each in partitions if self._metadata.partition(*each) is None}
            if unknown:
                return _result(
                    asked,
                    lambda each: (
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        if each in unknown
                        else ErrorCode.OPERATION_NOT_ATTEMPTED
                    ),
                )
            await self._transactions.add_partitions(asked.transactional_id, producer, partitions)
            error = ErrorCode.NONE
        except KafkaError as failure:
            error = for_version(code_of(failure), context.api_version, KNOWS_FENCED)
        return _result(asked, lambda _: error)


def _verified(
    context: RequestContext,
    asked: AddPartitionsToTxnTransaction,
    partitions: Sequence[TopicPartition],
    answers: Sequence[Verified],
) -> AddPartitionsToTxnResult:
    errors = {}
    number = NO_NUMBER
    for partition, answer in zip(partitions, answers, strict=True):
        error = answer.error
        if error is ErrorCode.TRANSACTION_ABORTABLE and context.api_version < KNOWS_ABORTABLE:
            error = ErrorCode.INVALID_TXN_STATE
        elif error is ErrorCode.NONE:
            number = answer.number
        errors[partition] = error
    result = _result(asked, errors.__getitem__)
    result.transaction_number = number
    return result


def _result(
    asked: AddPartitionsToTxnTransaction, error_of: Callable[[TopicPartition], ErrorCode]
) -> AddPartitionsToTxnResult:
    """Return the result with the error of each partition."""

    def of(topic: AddPartitionsToTxnTopic) -> AddPartitionsToTxnTopicResult:
        return AddPartitionsToTxnTopicResult(
            topic.name,
            [
                AddPartitionsToTxnPartitionResult(index, int(error_of((topic.name, index))))
                for index in topic.partitions
            ],
        )

    return AddPartitionsToTxnResult(asked.transactional_id, [of(topic) for topic in asked.topics])
