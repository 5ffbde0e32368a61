"""The APIs of the transaction coordinator, by their real codecs: versions, errors, what brokers may send."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.apis.api10_find_coordinator import TRANSACTION, FindCoordinator
from kbroker.apis.api22_init_producer_id import InitProducerId
from kbroker.apis.api24_add_partitions_to_txn import AddPartitionsToTxn
from kbroker.apis.api25_add_offsets_to_txn import AddOffsetsToTxn
from kbroker.apis.api26_end_txn import EndTxn
from kbroker.apis.api65_describe_transactions import DescribeTransactions
from kbroker.apis.api66_list_transactions import ListTransactions
from kbroker.apis.budgets import RequestBudget
from kbroker.apis.request import RequestContext
from kbroker.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.common.turns import WithoutTurns
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.transaction.producer_id_manager import ProducerIdManager
from kbroker.network.service import Peer
from kclient.wire import messages
from kclient.wire.error_codes import ErrorCode
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kclient.wire.schema.describe_transactions import DescribeTransactionsRequest
from kclient.wire.schema.end_txn import EndTxnRequest
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.init_producer_id import InitProducerIdRequest
from kclient.wire.schema.list_transactions import ListTransactionsRequest
from kclient.wire.versions import SUPPORTED, ApiKey
from tests.kit.inter_broker import authorizer_of
from tests.stepped.transactional_brokers import LISTENER, TIMEOUT_MS, TransactionalBrokers

CLIENT = Peer("10.0.0.1", 1234, LISTENER)
BROKER = Peer("10.0.0.2", 1234, LISTENER, broker_id=2)
NO_TOPIC = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
FENCED, OLD_FENCED = int(ErrorCode.PRODUCER_FENCED), int(ErrorCode.INVALID_PRODUCER_EPOCH)


class Topics:
    """Creates __transaction_state in memory."""

    def __init__(self, cluster: TransactionalBrokers) -> None:
        self.cluster = cluster
        self.created: list[str] = []

    async def create_offsets_topic(self) -> None:
        self.created.append(OFFSETS_TOPIC)

    async def create_transactions_topic(self) -> None:
        self.created.append(TRANSACTIONS_TOPIC)


class Client:
    """Sends requests of any version to the handlers of broker 1."""

    def __init__(self, cluster: TransactionalBrokers) -> None:
        self.cluster = cluster
        self.broker = cluster.broker()
        self.topics: Any = Topics(cluster)
        coordinator, metadata = self.broker.coordinator, cluster.metadata
        self.handlers: dict[ApiKey, Any] = {
            ApiKey.FIND_COORDINATOR: FindCoordinator(metadata, self.topics),
            ApiKey.INIT_PRODUCER_ID: InitProducerId(
                ProducerIdManager(self.broker.zk, 1), coordinator
            ),
            ApiKey.ADD_PARTITIONS_TO_TXN: AddPartitionsToTxn(
                coordinator, metadata, authorizer_of(1, LISTENER)
            ),
            ApiKey.ADD_OFFSETS_TO_TXN: AddOffsetsToTxn(coordinator),
            ApiKey.END_TXN: EndTxn(coordinator),
            ApiKey.DESCRIBE_TRANSACTIONS: DescribeTransactions(coordinator),
            ApiKey.LIST_TRANSACTIONS: ListTransactions(coordinator, lambda: cluster.now_ms),
        }

    def ask(self, api: ApiKey, version: int, request: Any, peer: Peer = CLIENT) -> Any:
        """Send *request*; return the decoded response."""
        frame = messages.encode_request(RequestHeader(api, version, 7, "me"), request)
        header, start = messages.decode_request_header(frame)
        context = RequestContext(header, peer, RequestBudget(1 << 20, 1000), WithoutTurns())
        decoded = messages.decode_request(header, frame, start)
        begun = self.broker.begin(self.handlers[api](context, decoded))
        response = self.cluster.done(begun)
        if isinstance(response, ErrorCode):  # as the pipeline answers a KafkaError
            (data,) = context.encode_error(response, None) or ()
        else:
            data = messages.encode_response(api, version, 7, response)
        return messages.decode_response(api, version, bytes(data))[1]

    def init(self, name: str | None = "x", version: int = 5, **named: Any) -> Any:
        request = InitProducerIdRequest(name, TIMEOUT_MS, **named)
        return self.ask(ApiKey.INIT_PRODUCER_ID, version, request)

    def add(self, epoch: int, *partitions: int, version: int = 3, topic: str = "t") -> list[int]:
        """Send AddPartitionsToTxn as a client; return the error codes."""
        request = AddPartitionsToTxnRequest(
            "x", 0, epoch, [AddPartitionsToTxnTopic(topic, list(partitions))]
        )
        response = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
        return [
            each.partition_error_code
            for topic_result in response.results_by_topic_v3_and_below
            for each in topic_result.results_by_partition
        ]

    def end(self, epoch: int = 0, version: int = 4, *, commit: bool = True) -> int:
        request = EndTxnRequest("x", 0, epoch, commit)
        error: int = self.ask(ApiKey.END_TXN, version, request).error_code
        return error


@pytest.fixture
def cluster() -> TransactionalBrokers:
    return TransactionalBrokers()


@pytest.fixture
def client(cluster: TransactionalBrokers) -> Client:
    return Client(cluster)


# --- every version


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.ADD_PARTITIONS_TO_TXN].max - 1))
def test_a_transaction_in_each_version_of_clients(client: Client, version: int) -> None:
    found = client.init(version=version)
    assert (found.error_code, found.producer_id, found.producer_epoch) == (0, 0, 0)
    assert client.add(0, 0, 1, version=version) == [0, 0]
    group = AddOffsetsToTxnRequest("x", 0, 0, "g")
    assert client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, group).error_code == 0
    assert client.end(version=version) == 0
    client.cluster.pass_time(1)
    assert len(client.cluster.logs) == 3


@pytest.mark.parametrize("version", range(4))
def test_old_clients_get_the_error_for_a_fenced_producer_that_they_know(
    client: Client, version: int
) -> None:
    client.init()
    client.init()
    expected = FENCED if version >= 2 else OLD_FENCED
    assert client.add(0, 0, version=version) == [expected]
    assert client.end(version=version) == expected
    group = AddOffsetsToTxnRequest("x", 0, 0, "g")
    assert client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, group).error_code == expected


def test_init_producer_id_continues_a_producer(client: Client) -> None:
    client.init()
    found = client.init(producer_id=0, producer_epoch=0)
    assert (found.error_code, found.producer_id, found.producer_epoch) == (0, 0, 1)
    client.init()
    for version, expected in ((3, OLD_FENCED), (4, FENCED), (5, FENCED)):
        found = client.init(version=version, producer_id=0, producer_epoch=0)
        assert found.error_code == expected
    half = client.init(producer_id=0)
    assert half.error_code == int(ErrorCode.INVALID_REQUEST)
    assert (half.producer_id, half.producer_epoch) == (-1, -1)


def test_an_idempotent_producer_gets_an_id_of_its_own(client: Client) -> None:
    client.init()
    found = client.init(None)
    assert (found.error_code, found.producer_epoch) == (0, 0)
    assert found.producer_id != 0
    assert client.init("").error_code == int(ErrorCode.INVALID_REQUEST)


# --- partitions


def test_an_unknown_partition_fails_the_whole_request(client: Client) -> None:
    client.init()
    assert client.add(0, 0, 7) == [int(ErrorCode.OPERATION_NOT_ATTEMPTED), NO_TOPIC]
    stored = client.cluster.stored()
    assert stored is not None
    assert not stored.partitions


def transaction(
    name: str, *partitions: int, verify: bool = True, topic: str = "t"
) -> AddPartitionsToTxnTransaction:
    topics = [AddPartitionsToTxnTopic(topic, list(partitions))]
    return AddPartitionsToTxnTransaction(name, 0, 0, verify, topics)


def results(response: Any) -> list[tuple[str, int, list[int]]]:
    return [
        (
            each.transactional_id,
            each.transaction_number,
            [p.partition_error_code for t in each.topic_results for p in t.results_by_partition],
        )
        for each in response.results_by_transaction
    ]


@pytest.mark.parametrize(
    ("version", "not_added"),
    [(4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_brokers_verify_several_transactions(
    client: Client, version: int, not_added: ErrorCode
) -> None:
    client.init()
    client.add(0, 0)
    request = AddPartitionsToTxnRequest(
        transactions=[
            transaction("x", 0, 1),
            transaction("unknown", 0),
            transaction("x", 0),
            transaction("new", 0, topic="missing"),
        ]
    )
    response = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request, BROKER)
    unknown = int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert response.error_code == 0
    assert results(response) == [
        ("x", 1, [0, int(not_added)]),
        ("unknown", -1, [unknown]),
        ("x", -1, [int(ErrorCode.INVALID_REQUEST)]),
        ("new", -1, [unknown]),
    ]


def test_brokers_add_partitions_in_batches(client: Client) -> None:
    client.init()
    request = AddPartitionsToTxnRequest(transactions=[transaction("x", 0, verify=False)])
    response = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 4, request, BROKER)
    assert results(response) == [("x", -1, [0])]
    stored = client.cluster.stored()
    assert stored is not None
    assert stored.partitions == {("t", 0)}


def test_batches_are_refused_to_clients(client: Client) -> None:
    client.init()
    request = AddPartitionsToTxnRequest(transactions=[transaction("x", 0, verify=False)])
    response = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 4, request)
    assert response.error_code == int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert results(response) == []


# --- administration


def test_describe_shows_the_open_transaction(client: Client) -> None:
    client.init()
    client.add(0, 1, 0)
    client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 4, AddOffsetsToTxnRequest("x", 0, 0, "g"))
    request = DescribeTransactionsRequest(["x", "unknown", ""])
    response = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
    found, unknown, empty = response.transaction_states
    assert (found.transactional_id, found.transaction_state) == ("x", "Ongoing")
    assert (found.producer_id, found.producer_epoch) == (0, 0)
    assert found.transaction_timeout_ms == TIMEOUT_MS
    assert found.transaction_start_time_ms == client.cluster.now_ms
    assert [(t.topic, t.partitions) for t in found.topics] == [
        ("t", [0, 1]),
        (OFFSETS_TOPIC, [partition_for("g", 3)]),
    ]
    assert unknown.error_code == int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    assert empty.error_code == int(ErrorCode.INVALID_REQUEST)


def test_list_filters_by_state_producer_and_duration(client: Client) -> None:
    client.init()
    client.add(0, 0)
    client.init("idle")

    def listed(version: int = 1, **filters: Any) -> list[tuple[str, int, str]]:
        response = client.ask(ApiKey.LIST_TRANSACTIONS, version, ListTransactionsRequest(**filters))
        assert response.error_code == 0
        return sorted(
            (each.transactional_id, each.producer_id, each.transaction_state)
            for each in response.transaction_states
        )

    idle, ongoing = ("idle", 1, "Empty"), ("x", 0, "Ongoing")
    assert listed() == listed(0) == [idle, ongoing]
    assert listed(state_filters=["Ongoing", "NoSuchState"]) == [ongoing]
    assert listed(state_filters=["NoSuchState"]) == []
    assert listed(producer_id_filters=[1]) == [idle]
    assert listed(duration_filter=0) == []
    client.cluster.pass_time(5)
    assert listed(duration_filter=4000) == [ongoing]
    assert listed(duration_filter=6000) == []
    request = ListTransactionsRequest(state_filters=["NoSuchState"])
    response = client.ask(ApiKey.LIST_TRANSACTIONS, 1, request)
    assert response.unknown_state_filters == ["NoSuchState"]
    client.broker.coordinator.on_resignation(0)
    client.broker.coordinator.on_election(0, 0)
    loading = client.ask(ApiKey.LIST_TRANSACTIONS, 1, ListTransactionsRequest())
    assert loading.error_code == int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


# --- the coordinator of a transactional id


def test_the_leader_of_its_partition_coordinates_a_transactional_id(client: Client) -> None:
    request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=["x", ""])
    found, empty = client.ask(ApiKey.FIND_COORDINATOR, 4, request).coordinators
    assert (found.error_code, found.node_id, found.port) == (0, 3, 9003)
    assert empty.error_code == int(ErrorCode.INVALID_REQUEST)
    old = client.ask(ApiKey.FIND_COORDINATOR, 1, FindCoordinatorRequest("x", TRANSACTION))
    assert old.node_id == 3


def test_the_topic_is_created_when_it_is_first_needed(client: Client) -> None:
    client.cluster.forget_topic(TRANSACTIONS_TOPIC)
    request = FindCoordinatorRequest("x", TRANSACTION)
    response = client.ask(ApiKey.FIND_COORDINATOR, 3, request)
    assert response.error_code == int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert client.topics.created == [TRANSACTIONS_TOPIC]
