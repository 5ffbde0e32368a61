"""Transaction markers on their way: batches, new leaders, deleted topics, coordinators that resigned or are fenced."""

from __future__ import annotations

import pytest

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.transaction.core.states import ProducerIdAndEpoch, TransactionState
from kbroker.coordinator.transaction.marker_channel_manager import (
    FENCED_RETRY,
    LEADER_CHECK,
    MARKERS_PER_REQUEST,
    MAX_RETRY_SECONDS,
)
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.write_txn_markers import WritableTxnMarker
from tests.stepped.transactional_brokers import TransactionalBrokers

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
NONE = ErrorCode.NONE
PREPARE_COMMIT, COMPLETE_COMMIT = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT


@pytest.fixture
def cluster() -> TransactionalBrokers:
    return TransactionalBrokers()


def state(cluster: TransactionalBrokers, name: str = "x") -> TransactionState:
    stored = cluster.stored(name)
    assert stored is not None
    return stored.state


def test_the_markers_of_many_transactions_for_one_broker_share_a_request(
    cluster: TransactionalBrokers,
) -> None:
    broker = cluster.broker()
    producers = {f"x{n}": broker.init(f"x{n}") for n in range(20)}
    for name, producer in producers.items():
        assert broker.add(producer, T0, T1, name=name) is NONE
    ends = [
        broker.begin(broker.coordinator.end(name, producer, is_commit=True))
        for name, producer in producers.items()
    ]
    for each in ends:
        cluster.done(each)
    cluster.pass_time(1)
    assert {state(cluster, name) for name in producers} == {COMPLETE_COMMIT}
    (sent,) = cluster.requests
    assert len(sent[1].markers) == 20
    assert [len(log) for log in cluster.logs.values()] == [20, 20]
    assert len(broker.coordinator._markers) == 0


def test_a_transaction_of_many_partitions_takes_several_requests(
    cluster: TransactionalBrokers,
) -> None:
    count = 2 * MARKERS_PER_REQUEST + 1
    cluster.create_topic("many", count)
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, *(("many", p) for p in range(count)))
    assert broker.end(producer) is NONE
    cluster.pass_time(1)
    assert state(cluster) is COMPLETE_COMMIT
    assert [len(log) for log in cluster.logs.values()] == [1] * count
    assert len(cluster.requests) >= 3


def test_groups_of_one_partition_share_a_marker(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    groups = [f"g{n}" for n in range(9)]
    for group in groups:
        assert broker.add_group(producer, group) is NONE
    assert broker.end(producer) is NONE
    cluster.pass_time(1)
    assert state(cluster) is COMPLETE_COMMIT
    assert {key: len(log) for key, log in cluster.logs.items()} == {
        (OFFSETS_TOPIC, partition_for(group, 3)): 1 for group in groups
    }


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)  # fmt: skip
def test_a_marker_is_sent_again_after_an_error_and_the_others_are_not(
    cluster: TransactionalBrokers, error: ErrorCode
) -> None:
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0, T1)
    cluster.error_of = lambda key, _: error if key == T1 else NONE
    assert broker.end(producer) is NONE
    cluster.pass_time(20)
    assert state(cluster) is PREPARE_COMMIT
    attempts = len(cluster.requests)
    assert 20 / MAX_RETRY_SECONDS < attempts < 20
    cluster.error_of = lambda _key, _marker: NONE
    cluster.pass_time(MAX_RETRY_SECONDS + 0.1)
    assert state(cluster) is COMPLETE_COMMIT
    assert [len(cluster.logs[key]) for key in (T0, T1)] == [1, 1]


def test_markers_go_to_the_new_leader(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0)
    cluster.takes_requests = False
    assert broker.end(producer) is NONE
    cluster.pass_time(1)
    cluster.leader = -1
    cluster.update_metadata()
    cluster.pass_time(MAX_RETRY_SECONDS + 0.1)
    sent = len(cluster.requests)
    cluster.pass_time(10)
    assert len(cluster.requests) == sent, "there is no leader"
    cluster.takes_requests = True
    cluster.leader = 4
    cluster.update_metadata()
    cluster.pass_time(MAX_RETRY_SECONDS + 0.1)
    assert state(cluster) is COMPLETE_COMMIT


def test_markers_do_not_wait_for_a_former_leader_that_is_paused(
    cluster: TransactionalBrokers,
) -> None:
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0)
    cluster.held = []
    assert broker.end(producer) is NONE
    cluster.run(lambda: bool(cluster.held))
    paused, cluster.held = cluster.held, None
    cluster.pass_time(3)
    assert len(cluster.requests) == 1, "there is no other leader"
    cluster.leader = 4
    cluster.update_metadata()
    cluster.pass_time(LEADER_CHECK + 0.1)
    assert state(cluster) is COMPLETE_COMMIT
    assert len(cluster.requests) == 2
    for handle in paused:
        handle()
    cluster.pass_time(10)
    assert len(cluster.requests) == 2, "the late response changes nothing"
    assert len(cluster.logs[T0]) == 1


def test_partitions_of_a_deleted_topic_count_as_acknowledged(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0, U0)
    cluster.delete_topic("u")
    assert broker.end(producer) is NONE
    cluster.pass_time(1)
    assert state(cluster) is COMPLETE_COMMIT
    assert list(cluster.logs) == [T0]


def test_a_topic_that_the_metadata_cache_does_not_have_yet_gets_its_markers(
    cluster: TransactionalBrokers,
) -> None:
    """A new coordinator has decided transactions before it has the metadata."""
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0, U0)
    partitions = cluster.topics["u"]
    cluster.forget_topic("u")
    assert broker.end(producer) is NONE
    cluster.pass_time(10)
    assert state(cluster) is PREPARE_COMMIT
    cluster.topics["u"] = partitions
    cluster.update_metadata()
    cluster.pass_time(MAX_RETRY_SECONDS + 0.1)
    assert state(cluster) is COMPLETE_COMMIT
    assert len(cluster.logs[U0]) == 1


def test_a_group_waits_until_the_offsets_topic_is_known(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    broker.add_group(producer, "g")
    cluster.delete_topic(OFFSETS_TOPIC)
    assert broker.end(producer) is NONE
    cluster.pass_time(10)
    assert state(cluster) is PREPARE_COMMIT
    cluster.create_topic(OFFSETS_TOPIC, 5)
    cluster.pass_time(MAX_RETRY_SECONDS + 0.1)
    assert state(cluster) is COMPLETE_COMMIT
    assert list(cluster.logs) == [(OFFSETS_TOPIC, partition_for("g", 5))]


def test_a_coordinator_that_resigned_sends_no_more_markers(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0)
    cluster.takes_requests = False
    assert broker.end(producer) is NONE
    cluster.pass_time(1)
    broker.coordinator.on_resignation(0)
    sent = len(cluster.requests)
    cluster.takes_requests = True
    cluster.pass_time(30)
    assert len(cluster.requests) == sent
    assert len(broker.coordinator._markers) == 0


@pytest.mark.parametrize(
    "error", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]
)
def test_a_fenced_coordinator_stops(cluster: TransactionalBrokers, error: ErrorCode) -> None:
    old = cluster.broker(1)
    producer = old.init()
    old.add(producer, T0)
    cluster.takes_requests = False
    assert old.end(producer) is NONE
    cluster.elect(2)
    cluster.takes_requests = True
    cluster.error_of = lambda _key, _marker: error
    cluster.pass_time(1)
    sent = len(cluster.requests)
    cluster.error_of = lambda _key, _marker: NONE
    cluster.pass_time(2 * FENCED_RETRY)
    assert len(cluster.requests) == sent
    assert old.coordinator._shards.partitions == {}, "it found out that it was replaced"


def test_a_coordinator_that_is_fenced_although_it_leads_tries_again_later(
    cluster: TransactionalBrokers,
) -> None:
    """For example after __transaction_state was deleted, and created again: its epochs begin again."""
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0, U0)
    refused: list[WritableTxnMarker] = []

    def fence(_key: object, marker: WritableTxnMarker) -> ErrorCode:
        refused.append(marker)
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED

    cluster.error_of = fence
    assert broker.end(producer) is NONE
    cluster.pass_time(FENCED_RETRY - 1)
    assert len(cluster.requests) == 1
    cluster.error_of = lambda _key, _marker: NONE
    cluster.pass_time(2)
    assert state(cluster) is COMPLETE_COMMIT


def test_a_request_that_was_delayed_for_long_changes_nothing(cluster: TransactionalBrokers) -> None:
    """Its markers have the number of the former transaction, and the former coordinator epoch."""
    old = cluster.broker(1)
    producer = old.init()
    old.add(producer, T0)
    cluster.held = []
    assert old.end(producer) is NONE
    cluster.run(lambda: bool(cluster.held))
    delayed, cluster.held = cluster.held, None
    new = cluster.broker(2)
    cluster.pass_time(1)
    assert state(cluster) is COMPLETE_COMMIT
    assert new.add(producer, T0) is NONE
    for handle in delayed:
        handle()
    cluster.pass_time(1)
    assert [(m.number, m.coordinator_epoch) for m in cluster.logs[T0]] == [(1, 1)]
    assert new.end(producer, commit=False) is NONE
    cluster.pass_time(1)
    last = cluster.logs[T0][-1]
    assert (last.producer, last.number, last.is_commit) == (ProducerIdAndEpoch(0, 0), 2, False)
