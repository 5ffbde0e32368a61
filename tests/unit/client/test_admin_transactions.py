"""Transactions for operators: where each request goes, retries, and which transactions hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kclient.admin.client import AdminClient
from kclient.admin.transactions import (
    OpenTransaction,
    ProducerState,
    TransactionDescription,
    hanging,
)
from kclient.types import ProducerIdAndEpoch, TopicPartition
from kclient.wire.errors import (
    ErrorCode,
    KafkaError,
    TransactionalIdNotFound,
    TransactionCoordinatorFenced,
    UnsupportedVersion,
)
from kclient.wire.schema import describe_producers as producers_wire
from kclient.wire.schema import describe_transactions as describe_wire
from kclient.wire.schema import list_transactions as list_wire
from kclient.wire.schema import write_txn_markers as markers_wire
from kclient.wire.schema.init_producer_id import InitProducerIdResponse
from kclient.wire.versions import ApiKey
from tests.kit.scripted_broker import Outcome
from tests.kit.scripted_cluster import ScriptedCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Admin:
    """An admin client on two scripted brokers; broker 2 coordinates."""

    def __init__(self) -> None:
        self.scripted = ScriptedCluster({"t": 2}, brokers=2)
        self.scripted.coordinator = 2
        self.admin = AdminClient(reactor=self.scripted.clock)
        self.scripted.attach(self.admin.cluster)

    def call(self, method: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
        outcome = Outcome(method(*args, **options))
        self.scripted.pass_time(1.0)
        return outcome

    def serve_producers(self, *producers: producers_wire.ProducerState) -> None:
        def answer(request: producers_wire.DescribeProducersRequest) -> Any:
            return producers_wire.DescribeProducersResponse(
                0,
                [
                    producers_wire.TopicResponse(
                        topic.name,
                        [
                            producers_wire.PartitionResponse(p, active_producers=list(producers))
                            for p in topic.partition_indexes
                        ],
                    )
                    for topic in request.topics
                ],
            )

        self.scripted.answers[ApiKey.DESCRIBE_PRODUCERS] = answer

    def serve_transactions(self, *found: describe_wire.TransactionState) -> None:
        """Answer DescribeTransactions and ListTransactions from the same table."""
        by_name = {each.transactional_id: each for each in found}

        def describe(request: describe_wire.DescribeTransactionsRequest) -> Any:
            (name,) = request.transactional_ids
            unknown = describe_wire.TransactionState(
                int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), name
            )
            return describe_wire.DescribeTransactionsResponse(0, [by_name.get(name, unknown)])

        def list_(request: list_wire.ListTransactionsRequest) -> Any:
            return list_wire.ListTransactionsResponse(
                transaction_states=[
                    list_wire.TransactionState(
                        each.transactional_id, each.producer_id, each.transaction_state
                    )
                    for each in found
                    if not request.producer_id_filters
                    or each.producer_id in request.producer_id_filters
                ]
            )

        self.scripted.answers[ApiKey.DESCRIBE_TRANSACTIONS] = describe
        self.scripted.answers[ApiKey.LIST_TRANSACTIONS] = list_


def producer(producer_id: int, start: int, timestamp: int = 0) -> producers_wire.ProducerState:
    return producers_wire.ProducerState(producer_id, 3, 9, timestamp, -1, start)


def ongoing(name: str, producer_id: int, *partitions: int) -> describe_wire.TransactionState:
    topics = [describe_wire.TopicData("t", list(partitions))] if partitions else []
    return describe_wire.TransactionState(0, name, "Ongoing", 60_000, 1_000, producer_id, 3, topics)


def test_producers_are_described_by_the_leaders() -> None:
    it = Admin()
    it.serve_producers(producer(7, 5), producer(8, -1))
    found = it.call(it.admin.describe_producers, [T0, T1]).value
    expected = (ProducerState(7, 3, 9, 0, None, 5), ProducerState(8, 3, 9, 0, None, None))
    assert found == {T0: expected, T1: expected}
    asked = [a for a in it.scripted.requests if a.api is ApiKey.DESCRIBE_PRODUCERS]
    assert sorted(a.node for a in asked) == [1, 2]


def test_transactions_are_described_by_their_coordinator() -> None:
    it = Admin()
    it.serve_transactions(ongoing("x", 7, 0, 1))
    found = it.call(it.admin.describe_transactions, ["x"]).value
    assert found == {"x": TransactionDescription("x", 2, "Ongoing", 7, 3, 60_000, 1_000, (T0, T1))}
    assert it.scripted.requests[-1].node == 2
    unknown = it.call(it.admin.describe_transactions, ["y"])
    assert isinstance(unknown.error, TransactionalIdNotFound)


def test_a_coordinator_that_moved_is_asked_again() -> None:
    it = Admin()
    it.serve_transactions(ongoing("x", 7))
    usual = it.scripted.answers[ApiKey.DESCRIBE_TRANSACTIONS]

    def moved(request: Any) -> Any:
        it.scripted.coordinator = 1
        it.scripted.answers[ApiKey.DESCRIBE_TRANSACTIONS] = usual
        state = describe_wire.TransactionState(int(ErrorCode.NOT_COORDINATOR), "x")
        return describe_wire.DescribeTransactionsResponse(0, [state])

    it.scripted.answers[ApiKey.DESCRIBE_TRANSACTIONS] = moved
    assert it.call(it.admin.describe_transactions, ["x"]).value["x"].coordinator == 1


def test_transactions_are_listed_at_every_broker() -> None:
    it = Admin()
    it.serve_transactions(ongoing("x", 7))
    found = it.call(it.admin.list_transactions, states=["Ongoing"], open_for=0.005).value
    assert [(each.transactional_id, each.coordinator) for each in found] == [("x", 1), ("x", 2)]
    request = it.scripted.requests[-1].message
    assert (request.state_filters, request.duration_filter) == (["Ongoing"], 5)


def test_a_broker_that_cannot_list_by_duration_is_an_error() -> None:
    it = Admin()
    it.serve_transactions()
    it.scripted.versions[ApiKey.LIST_TRANSACTIONS] = 0
    assert it.call(it.admin.list_transactions).value == []
    refused = it.call(it.admin.list_transactions, open_for=0.005)
    assert isinstance(refused.error, UnsupportedVersion)


def test_an_unknown_state_is_an_error() -> None:
    it = Admin()
    it.scripted.answers[ApiKey.LIST_TRANSACTIONS] = lambda _: list_wire.ListTransactionsResponse(
        unknown_state_filters=["Wrong"]
    )
    assert "Wrong" in str(it.call(it.admin.list_transactions, states=["Wrong"]).error)


def serve_markers(it: Admin, code: int) -> None:
    def answer(request: markers_wire.WriteTxnMarkersRequest) -> Any:
        (marker,) = request.markers
        return markers_wire.WriteTxnMarkersResponse(
            [
                markers_wire.WritableTxnMarkerResult(
                    marker.producer_id,
                    [
                        markers_wire.WritableTxnMarkerTopicResult(
                            topic.name,
                            [
                                markers_wire.WritableTxnMarkerPartitionResult(p, code)
                                for p in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
            ]
        )

    it.scripted.answers[ApiKey.WRITE_TXN_MARKERS] = answer


def test_an_abort_is_a_marker_at_the_leader() -> None:
    it = Admin()
    serve_markers(it, 0)
    assert it.call(it.admin.abort_transaction, T1, 7, 3, coordinator_epoch=4).value is None
    asked = it.scripted.requests[-1]
    (marker,) = asked.message.markers
    assert asked.node == 2
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, 4)
    assert not marker.transaction_result


def test_a_refused_abort_is_raised() -> None:
    it = Admin()
    serve_markers(it, int(ErrorCode.TRANSACTION_COORDINATOR_FENCED))
    refused = it.call(it.admin.abort_transaction, T0, 7, 3)
    assert isinstance(refused.error, TransactionCoordinatorFenced)


def test_producers_are_fenced_by_a_new_epoch() -> None:
    it = Admin()
    codes = [int(ErrorCode.CONCURRENT_TRANSACTIONS), 0]
    it.scripted.answers[ApiKey.INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(
        0, codes.pop(0), 7, 4
    )
    found = it.call(it.admin.fence_producers, ["x"]).value
    assert found == {"x": ProducerIdAndEpoch(7, 4)}
    request = it.scripted.requests[-1].message
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("x", -1, -1)


# --- hanging transactions


def described(producer_id: int, *partitions: TopicPartition) -> TransactionDescription:
    return TransactionDescription("x", 1, "Ongoing", producer_id, 3, 60_000, 1_000, partitions)


@pytest.mark.parametrize(
    ("names", "descriptions", "hangs"),
    [
        ({}, {}, True),
        ({7: "x"}, {"x": described(7, T0)}, False),
        ({7: "x"}, {"x": described(7, T1)}, True),
        ({7: "x"}, {"x": described(7)}, True),
        ({7: "x"}, {"x": described(8, T0)}, True),
        ({7: "x"}, {"x": TransactionalIdNotFound("x")}, True),
    ],
)
def test_a_transaction_hangs_unless_its_coordinator_has_the_partition_in_it(
    names: dict[int, str], descriptions: dict[str, TransactionDescription | KafkaError], hangs: bool
) -> None:
    candidate = OpenTransaction(T0, ProducerState(7, 3, 9, 0, None, 5))
    found = hanging([candidate], names, descriptions)
    assert [each.tp for each in found] == ([T0] if hangs else [])


def test_only_old_transactions_without_a_coordinator_are_found() -> None:
    it = Admin()
    now = 2**62
    it.serve_producers(producer(7, 5), producer(8, 6), producer(9, 7, now), producer(10, -1))
    it.serve_transactions(ongoing("x", 8, 0, 1))
    found = it.call(it.admin.find_hanging_transactions, [T0]).value
    assert [(each.tp, each.producer.producer_id) for each in found] == [(T0, 7)]
