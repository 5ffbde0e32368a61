"""Transactions that hang in a log: which are aborted, and when nothing is known of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.transaction.core.records import PoisonTransactionStateError
from kbroker.coordinator.transaction.core.states import TransactionState
from kbroker.coordinator.transaction.stored_transactions import stored_transactions
from kbroker.replica.core.leader_transactions import EndTxnMarker
from kbroker.replica.hanging_transactions import LOOK_SECONDS, HangingTransactions
from kbroker.zk import znodes
from kclient.wire.batches import iterate
from tests.kit.partitions import KEY, HostedPartition
from tests.kit.transactional_logs import transactional
from tests.stepped.transactional_brokers import TransactionalBrokers

P, Q = 7, 8


class LeaderWithOpenTransaction:
    """A leader with an open transaction of P, and the search for hanging transactions in it."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.reads: list[Deferred[set[tuple[int, TopicPartition]]]] = []
        self.partition = HostedPartition(directory, 1)
        self.partition._own_log.append_as_follower(transactional(P), 0)
        self.partition.take(1, 0, (1,), replicas=(1,))
        self.looks = HangingTransactions(self.clock, [self.partition], self._read)
        self.looks.start()

    async def _read(self) -> set[tuple[int, TopicPartition]]:
        self.reads.append(Deferred())
        return await self.reads[-1]

    def look(self, times: int = 1) -> int:
        """Look again; return how many reads were begun in all."""
        self.clock.pump([LOOK_SECONDS] * times)
        return len(self.reads)

    def append(self, sequence: int) -> None:
        batch = transactional(P, sequence=sequence)
        self.partition._own_log.append_as_leader(batch, next(iter(iterate(batch))), 0, 0)

    @property
    def open(self) -> list[int]:
        """The producers with open transactions."""
        return list(self.partition._own_log.producers.transactions.ongoing)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[LeaderWithOpenTransaction]:
    leader = LeaderWithOpenTransaction(tmp_path)
    yield leader
    leader.looks.stop()
    assert not leader.clock.getDelayedCalls()


def test_a_transaction_that_no_coordinator_has_is_aborted(
    leader: LeaderWithOpenTransaction,
) -> None:
    assert leader.look() == 0
    assert leader.look() == 1
    leader.reads[0].callback({(Q, KEY), (P, ("t", 1))})
    assert leader.open == []
    log = leader.partition._own_log
    assert [each.last_offset for each in log.aborted_transactions(0, log.read(0, 1000), 2)] == [1]
    assert leader.partition.high_watermark == 2
    assert leader.look(3) == 1


def test_a_transaction_that_a_coordinator_has_is_left_and_asked_about_again(
    leader: LeaderWithOpenTransaction,
) -> None:
    leader.look(2)
    leader.reads[0].callback({(P, KEY)})
    assert leader.open == [P]
    assert leader.look() == 2


def test_nothing_is_aborted_while_zookeeper_cannot_be_read(
    leader: LeaderWithOpenTransaction,
) -> None:
    leader.look(2)
    leader.reads[0].errback(PoisonTransactionStateError("a znode"))
    assert leader.open == [P]
    assert leader.look() == 2
    leader.reads[1].callback(set())
    assert leader.open == []


def test_one_read_is_under_way(leader: LeaderWithOpenTransaction) -> None:
    assert leader.look(5) == 1


def test_a_transaction_with_another_batch_during_the_reads_is_not_aborted(
    leader: LeaderWithOpenTransaction,
) -> None:
    leader.look(2)
    leader.append(1)
    leader.reads[0].callback(set())
    assert leader.open == [P]


def test_a_transaction_that_changes_between_two_looks_is_not_asked_about(
    leader: LeaderWithOpenTransaction,
) -> None:
    leader.look()
    leader.append(1)
    assert leader.look() == 0
    leader.partition.end_transaction(EndTxnMarker(P, 0, 3, is_commit=True), 0)
    assert leader.look(2) == 0


@pytest.mark.parametrize("change", ["leader", "epoch", "mirror"])
def test_a_change_of_the_role_or_the_topic_during_the_reads_aborts_nothing(
    leader: LeaderWithOpenTransaction, change: str
) -> None:
    leader.look(2)
    log = leader.partition._own_log
    if change == "mirror":
        log.config = replace(log.config, kbroker_mirror_source_cluster_id="source")
    else:
        leader.partition.take(2 if change == "leader" else 1, 2, (1,), replicas=(1, 2))
    leader.reads[0].callback(set())
    assert leader.open == [P]


def test_mirrors_and_transactions_with_a_number_are_never_asked_about(
    leader: LeaderWithOpenTransaction,
) -> None:
    leader.partition.transactions.in_epoch._numbers[P] = 5
    assert leader.look(3) == 0
    leader.partition.transactions.in_epoch._numbers.clear()
    log = leader.partition._own_log
    log.config = replace(log.config, kbroker_mirror_source_cluster_id="source")
    assert leader.look(3) == 0


# What ZooKeeper has


def stored(cluster: TransactionalBrokers, broker: Any) -> set[tuple[int, TopicPartition]]:
    reading = Deferred.fromCoroutine(stored_transactions(broker.process, broker.zk))
    return set(cluster.done(reading))


def test_transactions_are_stored_from_the_first_partition_to_the_last_marker() -> None:
    cluster = TransactionalBrokers()
    broker = cluster.broker()
    assert stored(cluster, broker) == set()
    producer, other = broker.init("x"), broker.init("a/b")
    assert stored(cluster, broker) == set()
    broker.add(producer, ("t", 0), ("t", 1))
    broker.add(other, ("u", 0), name="a/b")
    open_ones = {(producer.producer_id, ("t", 0)), (producer.producer_id, ("t", 1))}
    assert stored(cluster, broker) == open_ones | {(other.producer_id, ("u", 0))}
    cluster.takes_requests = False
    broker.end(producer)
    assert open_ones < stored(cluster, broker)
    cluster.takes_requests = True
    cluster.run(lambda: broker.state() is TransactionState.COMPLETE_COMMIT)
    assert stored(cluster, broker) == {(other.producer_id, ("u", 0))}


def test_a_znode_that_cannot_be_decoded_leaves_it_open() -> None:
    cluster = TransactionalBrokers()
    broker = cluster.broker()
    broker.init("x")
    cluster.write(znodes.transactional_id_path("x"), b"{}")
    with pytest.raises(PoisonTransactionStateError):
        stored(cluster, broker)
