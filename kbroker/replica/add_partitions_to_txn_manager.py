"""AddPartitionsToTxnManager: verifies at its coordinator that a transaction is open and has a partition (KIP-890).

Theory of operation
===================
A leader verifies a transaction before its first batch in the partition, a group coordinator before pending offsets. The
request is AddPartitionsToTxn with *verify only*: the coordinator changes nothing. A group is named by its partition of
`__consumer_offsets`, as in Kafka.

One request to each coordinator is in flight. Verifications that begin meanwhile, or in the same turn of the reactor,
are sent together in the next one. Those of one producer are one transaction in it. A request has one transaction of a
transactional id: of two producers of the same id, the second one waits for the next request.

A request is not sent again: the producer sends its batch again, which begins another verification. Each verification
has a result after the response to its request, or its failure; `SendToBroker` limits the time until then.

| the coordinator | the result |
|---|---|
| has the transaction open, with this partition | NONE, and the number of the transaction |
| answers with an error for the partition | that error; INVALID_PRODUCER_EPOCH in place of PRODUCER_FENCED |
| does not accept this broker | INVALID_TXN_STATE: clients must not get CLUSTER_AUTHORIZATION_FAILED |
| is not known, or not alive | COORDINATOR_NOT_AVAILABLE |
| does not respond in time, or without this partition | NETWORK_EXCEPTION |

In: verifications   Out: AddPartitionsToTxn requests, results   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.internal_topics import TRANSACTIONS_TOPIC
from kbroker.common.reactor import Clock
from kbroker.common.topic_partition import TopicPartition
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.replica.core.leader_transactions import UNKNOWN_NUMBER
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kclient.wire.versions import ApiKey

log = Logger()

VERSION: Final = 5
"""Of AddPartitionsToTxn: the first one with TRANSACTION_ABORTABLE."""

MOST_PARTITIONS: Final = 1000
"""Of one request; more verifications are sent with the next one."""

RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors of a verification that may pass. In a Produce response they become NOT_ENOUGH_REPLICAS: older clients expect
no other."""


class Verified(NamedTuple):
    """The result of a verification."""

    error: ErrorCode
    number: int = UNKNOWN_NUMBER
    """Of the open transaction; -1 if the coordinator does not send it."""


class Coordinator(NamedTuple):
    """A broker that coordinates transactions, and the address of its inter-broker listener."""

    broker_id: int
    host: str
    port: int


def coordinator_lookup(
    metadata: MetadataCache, listener: str, partition_for: Callable[[str, int], int]
) -> Callable[[str], Coordinator | None]:
    """Return the function that finds the coordinator of a transactional id: the leader of its partition, if alive.

    *listener*: that of the brokers. *partition_for* (transactional id, number of partitions) -> partition.
    """

    def find(transactional_id: str) -> Coordinator | None:
        topic = metadata.topic(TRANSACTIONS_TOPIC)
        if topic is None or not topic.partitions:
            return None
        index = partition_for(transactional_id, len(topic.partitions))
        partition = topic.partitions.get(index)
        address = metadata.address(partition.leader, listener) if partition is not None else None
        if partition is None or address is None:
            return None
        return Coordinator(partition.leader, *address)

    return find


class SendToBroker(Protocol):
    """Sends a request to a broker; fails if the response does not arrive in time (`BrokerConnections`)."""

    def __call__(
        self, broker_id: int, host: str, port: int, api: ApiKey, version: int, request: Any, /
    ) -> Deferred[Any]:
        """Fire with the response."""


class _Verification(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partition: TopicPartition
    result: Deferred[Verified]


class AddPartitionsToTxnManager:
    """Sends verifications to coordinators.

    *coordinator_of* returns the coordinator of a transactional id: the live leader of its partition of
    `__transaction_state`, None if it has none. *is_enabled*: transaction.partition.verification.enable. The requests
    must not share a connection with others that may wait at the receiver, as WriteTxnMarkers does.
    """

    def __init__(
        self,
        clock: Clock,
        send: SendToBroker,
        coordinator_of: Callable[[str], Coordinator | None],
        *,
        is_enabled: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._send = send
        self._coordinator_of = coordinator_of
        self.is_enabled = is_enabled
        self._waiting: dict[int, list[_Verification]] = {}
        """By coordinator: the verifications of the next request."""
        self._busy: set[int] = set()
        """Coordinators with a request in flight or scheduled."""

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
    ) -> Deferred[Verified]:
        """Verify that *partition* is in the open transaction of the producer. Never fails."""
        verification = _Verification(
            transactional_id, producer_id, producer_epoch, partition, Deferred()
        )
        coordinator = self._coordinator_of(transactional_id)
        if coordinator is None:
            verification.result.callback(Verified(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return verification.result
        broker_id = coordinator.broker_id
        self._waiting.setdefault(broker_id, []).append(verification)
        if broker_id not in self._busy:
            self._busy.add(broker_id)
            self._clock.callLater(0, self._send_next, broker_id)
        return verification.result

    def _send_next(self, broker_id: int) -> None:
        verifications, left = _next_request(self._waiting.pop(broker_id, []))
        if left:
            self._waiting[broker_id] = left
        if not verifications:
            self._busy.discard(broker_id)
            return
        # The verifications may be older than the address. A broker that is no longer the coordinator rejects them.
        coordinator = self._coordinator_of(verifications[0].transactional_id)
        if coordinator is None or coordinator.broker_id != broker_id:
            self._complete(verifications, Verified(ErrorCode.NOT_COORDINATOR))
            self._clock.callLater(0, self._send_next, broker_id)
            return
        sent = self._send(
            *coordinator, ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, _request(verifications)
        )
        sent.addCallbacks(
            self._responded,
            self._failed,
            callbackArgs=(verifications,),
            errbackArgs=(verifications, broker_id),
        )
        sent.addErrback(self._response_failed, verifications)
        sent.addBoth(lambda _: self._send_next(broker_id))

    def _responded(
        self, response: AddPartitionsToTxnResponse, verifications: list[_Verification]
    ) -> None:
        if response.error_code:
            error = _known(response.error_code)
            if error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                log.error(
                    "the transaction coordinator does not accept verifications of this broker"
                )
                error = ErrorCode.INVALID_TXN_STATE
            self._complete(verifications, Verified(error))
            return
        found = {
            (result.transactional_id, topic.name, each.partition_index): Verified(
                _for_producers(each.partition_error_code), result.transaction_number
            )
            for result in response.results_by_transaction
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        missing = Verified(ErrorCode.NETWORK_EXCEPTION)
        for each in verifications:
            each.result.callback(found.get((each.transactional_id, *each.partition), missing))

    def _failed(self, failure: Failure, verifications: list[_Verification], broker_id: int) -> None:
        if not failure.check(CancelledError):
            log.warn(
                "transaction coordinator {broker_id} did not respond to {count} verifications: {error}",
                broker_id=broker_id, count=len(verifications), error=failure.value,
            )  # fmt: skip
        self._complete(verifications, Verified(ErrorCode.NETWORK_EXCEPTION))

    def _response_failed(self, failure: Failure, verifications: list[_Verification]) -> None:
        log.failure("the response of a transaction coordinator failed", failure)
        self._complete(verifications, Verified(ErrorCode.NETWORK_EXCEPTION))

    @staticmethod
    def _complete(verifications: Iterable[_Verification], result: Verified) -> None:
        for each in verifications:
            if not each.result.called:
                each.result.callback(result)


def _next_request(waiting: list[_Verification]) -> tuple[list[_Verification], list[_Verification]]:
    """Return the verifications of one request, and those that are left for later ones."""
    producers: dict[str, tuple[int, int]] = {}
    now: list[_Verification] = []
    left: list[_Verification] = []
    for each in waiting:
        producer = (each.producer_id, each.producer_epoch)
        fits = len(now) < MOST_PARTITIONS
        if fits and producers.setdefault(each.transactional_id, producer) == producer:
            now.append(each)
        else:
            left.append(each)
    return now, left


def _request(verifications: list[_Verification]) -> AddPartitionsToTxnRequest:
    transactions: dict[str, AddPartitionsToTxnTransaction] = {}
    topics: dict[tuple[str, str], AddPartitionsToTxnTopic] = {}
    for each in verifications:
        transaction = transactions.get(each.transactional_id)
        if transaction is None:
            transaction = transactions[each.transactional_id] = AddPartitionsToTxnTransaction(
                each.transactional_id, each.producer_id, each.producer_epoch, verify_only=True
            )
        name, index = each.partition
        topic = topics.get((each.transactional_id, name))
        if topic is None:
            topic = topics[each.transactional_id, name] = AddPartitionsToTxnTopic(name)
            transaction.topics.append(topic)
        if index not in topic.partitions:
            topic.partitions.append(index)
    return AddPartitionsToTxnRequest(transactions=list(transactions.values()))


def _for_producers(code: int) -> ErrorCode:
    error = _known(code)
    return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
