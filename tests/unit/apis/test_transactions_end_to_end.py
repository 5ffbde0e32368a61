"""Transactions from InitProducerId to a read_committed fetch: the real coordinator, leader, verifier and codecs.

The coordinator is over the simulated ZooKeeper; the partitions are led by one broker with real logs. What is between
them is encoded and decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kbroker.apis.api24_add_partitions_to_txn import AddPartitionsToTxn
from kbroker.apis.api27_write_txn_markers import WriteTxnMarkers
from kbroker.apis.budgets import RequestBudget
from kbroker.apis.request import RequestContext
from kbroker.common.turns import WithoutTurns
from kbroker.coordinator.transaction.core.states import TransactionState
from kbroker.network.service import Peer
from kbroker.replica.add_partitions_to_txn_manager import AddPartitionsToTxnManager, Coordinator
from kclient.wire import messages
from kclient.wire.error_codes import ErrorCode
from kclient.wire.fetch import FetchPartition
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kclient.wire.versions import ApiKey
from tests.kit.inter_broker import authorizer_of
from tests.kit.transactional_logs import transactional, visible
from tests.stepped.transactional_brokers import (
    LISTENER,
    TIMEOUT_MS,
    CoordinatingBroker,
    TransactionalBrokers,
)
from tests.unit.apis.kit import ApiBroker, broker_in

BROKER = Peer("10.0.0.2", 1, LISTENER, broker_id=2)
T0, T1 = ("t", 0), ("t", 1)
COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


def call(handler: Any, api: ApiKey, version: int, request: Any) -> Deferred[Any]:
    """Send *request* of another broker to *handler*, by the codecs; fire with the decoded response."""
    frame = messages.encode_request(RequestHeader(api, version, 7, "broker-2"), request)
    header, start = messages.decode_request_header(frame)
    context = RequestContext(header, BROKER, RequestBudget(1 << 20, 1000), WithoutTurns())
    decoded = messages.decode_request(header, frame, start)

    def received(response: Any) -> Any:
        data = messages.encode_response(api, version, 7, response)
        return messages.decode_response(api, version, data)[1]

    return Deferred.fromCoroutine(handler(context, decoded)).addCallback(received)


class Cluster(TransactionalBrokers):
    """Coordinators, and the broker that leads the partitions of topic t."""

    def __init__(self) -> None:
        super().__init__()
        self.leading: ApiBroker | None = None
        self.coordinator = self.broker()
        self.verifier = AddPartitionsToTxnManager(
            self.coordinator.process,
            self.verify,
            lambda _name: Coordinator(1, "c", 1),
            is_enabled=lambda: True,
        )

    def verify(self, *request: Any) -> Deferred[Any]:
        """Pass a verification to the coordinator."""
        _, _, _, api, version, asked = request
        handler = AddPartitionsToTxn(
            self.coordinator.coordinator, self.metadata, authorizer_of(1, LISTENER)
        )
        return call(handler, api, version, asked)

    def handle(self, _broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Pass markers to the leader."""
        assert self.leading is not None
        handler = WriteTxnMarkers(
            self.leading.replica_manager,
            self.leading.authorizer,
            may_alter_cluster=lambda _principal: False,
            end_group_transaction=lambda *_named, **_how: Deferred(),
            request_timeout=30.0,
        )
        responses: list[WriteTxnMarkersResponse] = []
        call(handler, ApiKey.WRITE_TXN_MARKERS, 1, request).addCallback(responses.append)
        return responses[0]

    def produce(
        self, producer: Any, *sequences: int, version: int = 11, value: bytes = b"v"
    ) -> list[int]:
        """Produce a batch of each sequence to partitions 0, 1...; return the error codes."""
        leading = self.leading
        assert leading is not None
        pid, epoch = producer
        batches = [transactional(pid, value, epoch=epoch, sequence=n) for n in sequences]
        answer = leading.produce(*batches, acks=-1, transactional_id="x", version=version)
        outcomes: list[Any] = [] if isinstance(answer, Deferred) else answer
        if isinstance(answer, Deferred):
            answer.addCallback(outcomes.extend)

        def is_answered() -> bool:
            leading.clock.advance(0)
            return bool(outcomes)

        self.run(is_answered)
        return [each.error_code for each in outcomes]

    def read(self, index: int = 0) -> list[bytes | None]:
        """Return what a consumer with read_committed finds in a partition of topic t."""
        assert self.leading is not None
        values: list[bytes | None] = []
        offset = 0
        while True:
            asked = FetchPartition(index, offset, 1 << 20)
            found = self.leading.fetch(asked, isolation_level=1).topics[0].partitions[0]
            if not found.records_size:
                return values
            data, aborted = bytes(found.record_set), found.aborted_transactions
            records, offset = visible(data, aborted, offset)
            values += [value for _, value in records]

    def complete(self) -> None:
        """Run until the transaction is complete."""

        def is_complete() -> bool:
            stored = self.stored()
            return stored is not None and stored.state in COMPLETE

        self.run(is_complete)
        self.pass_time(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster()
    with broker_in(tmp_path, add_partitions_to_txn_manager=cluster.verifier) as leading:
        leading.lead("t", 2)
        cluster.leading = leading
        yield cluster


def begun(cluster: Cluster, *, value: bytes = b"v") -> Any:
    """Begin a transaction with a batch in both partitions; return the producer."""
    producer = cluster.coordinator.init()
    assert cluster.coordinator.add(producer, T0, T1) is ErrorCode.NONE
    assert cluster.produce(producer, 0, 0, value=value) == [0, 0]
    return producer


def test_commit_and_abort_are_visible_in_all_partitions(cluster: Cluster) -> None:
    coordinator = cluster.coordinator
    producer = begun(cluster, value=b"first")
    assert cluster.produce(producer, 1) == [0]
    assert cluster.read() == cluster.read(1) == []
    assert coordinator.end(producer) is ErrorCode.NONE
    cluster.complete()
    assert (cluster.read(), cluster.read(1)) == ([b"first", b"v"], [b"first"])
    assert coordinator.add(producer, T0) is ErrorCode.NONE
    assert cluster.produce(producer, 2, value=b"second") == [0]
    assert coordinator.end(producer, commit=False) is ErrorCode.NONE
    cluster.complete()
    assert (cluster.read(), cluster.read(1)) == ([b"first", b"v"], [b"first"])


def test_a_partition_that_was_not_added_is_refused(cluster: Cluster) -> None:
    producer = cluster.coordinator.init()
    cluster.coordinator.add(producer, T0)
    assert cluster.produce(producer, 0, 0) == [0, ErrorCode.TRANSACTION_ABORTABLE]
    assert cluster.produce(producer, 0, 0, version=10) == [0, ErrorCode.INVALID_TXN_STATE]
    other = (producer.producer_id + 1, 0)
    assert cluster.produce(other, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_a_late_batch_of_an_ended_transaction_is_refused(cluster: Cluster) -> None:
    producer = begun(cluster)
    cluster.coordinator.end(producer)
    cluster.complete()
    assert cluster.produce(producer, 1) == [ErrorCode.TRANSACTION_ABORTABLE]
    assert cluster.produce(producer, 0) == [0], "a duplicate has its first response"


def test_an_abort_by_timeout_fences_the_producer(cluster: Cluster) -> None:
    producer = begun(cluster)
    cluster.pass_time(TIMEOUT_MS / 1000 + 20)
    cluster.complete()
    assert cluster.produce(producer, 1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert cluster.read() == []
    again = cluster.coordinator.init()
    assert again.epoch == producer.epoch + 2
    cluster.coordinator.add(again, T0)
    assert cluster.produce(again, 0, value=b"again") == [0]
    cluster.coordinator.end(again)
    cluster.complete()
    assert cluster.read() == [b"again"]


def test_a_late_copy_of_a_marker_does_not_end_the_next_transaction(cluster: Cluster) -> None:
    producer = begun(cluster)
    cluster.coordinator.end(producer)
    cluster.complete()
    (_, late) = cluster.requests[0]
    cluster.coordinator.add(producer, T0)
    assert cluster.produce(producer, 1, value=b"open") == [0]
    response = cluster.handle(1, late)
    assert {each.error_code for each in response.markers[0].topics[0].partitions} == {0}
    assert cluster.read() == [b"v"]
    cluster.coordinator.end(producer, commit=False)
    cluster.complete()
    assert cluster.read() == [b"v"]


def test_the_next_coordinator_completes_what_was_decided(cluster: Cluster) -> None:
    """The markers of the former one arrive late, and are refused."""
    producer = begun(cluster)
    former = cluster.coordinator
    cluster.held = []
    assert former.end(producer) is ErrorCode.NONE
    cluster.run(lambda: bool(cluster.held))
    late, cluster.held = cluster.held, None
    cluster.coordinator = CoordinatingBroker(cluster, 2)
    cluster.lead(cluster.coordinator, 0)
    cluster.complete()
    assert cluster.read() == cluster.read(1) == [b"v"]
    cluster.coordinator.add(producer, T0, T1)
    assert cluster.produce(producer, 1, 1, value=b"next") == [0, 0]
    assert late is not None
    for request in late:
        request()
    cluster.pass_time(1)
    assert cluster.read() == cluster.read(1) == [b"v"]
    cluster.coordinator.end(producer)
    cluster.complete()
    assert cluster.read() == cluster.read(1) == [b"v", b"next"]
