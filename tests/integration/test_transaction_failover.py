"""Brokers are killed and paused while producers commit: each transaction is in all partitions or in none (S38)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from tests.integration.test_transactions import create, values
from tests.kit.brokers import Cluster, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "t"

PACE_S = 0.05
"""Seconds between transactions: without them three threads and three brokers only compute, and no fault hits more."""


class Committer(threading.Thread):
    """Commits transactions of one record in each of two partitions; every fourth one is aborted."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._cluster = cluster
        self._done = threading.Event()
        self.committed: set[str] = set()
        self.aborted: set[str] = set()
        self.producers = 0

    def stop(self) -> None:
        self._done.set()
        self.join(120)
        assert not self.is_alive()

    def run(self) -> None:
        number = 0
        while not self._done.is_set():
            producer = self._producer()
            try:
                while not self._done.wait(PACE_S):
                    number += 1
                    self._transaction(producer, f"{self.name}-{number}", abort=not number % 4)
            except KafkaException:
                continue  # the next producer fences this one, and aborts what it left open

    def _producer(self) -> Any:
        self.producers += 1
        while True:
            producer = Producer(
                {
                    "bootstrap.servers": self._cluster.bootstrap,
                    "transactional.id": self.name,
                    "transaction.timeout.ms": 30_000,
                    "linger.ms": 0,
                    "log_level": 0,
                }
            )
            try:
                producer.init_transactions(60)
            except KafkaException:
                continue
            return producer

    def _transaction(self, producer: Any, value: str, *, abort: bool) -> None:
        """Commit or abort one transaction; KafkaException: its outcome is unknown."""
        producer.begin_transaction()
        try:
            for partition in (0, 1):
                producer.produce(TOPIC, value, partition=partition)
            producer.flush(60)
            if not abort:
                self._retried(producer.commit_transaction)
                self.committed.add(value)
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        self._retried(producer.abort_transaction)
        self.aborted.add(value)

    @staticmethod
    def _retried(end: Any) -> None:
        while True:
            try:
                end(60)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


def test_transactions_are_whole_while_brokers_are_killed_and_paused(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(
        3, {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}
    )
    create(cluster, TOPIC)
    committers = [Committer(cluster, f"id{n}") for n in range(3)]
    for each in committers:
        each.start()
    for broker_id in (1, 2, 3):
        time.sleep(3)
        cluster.kill(broker_id)
        time.sleep(8)
        cluster.start(broker_id)
        time.sleep(5)
        cluster.pause(broker_id)
        time.sleep(8)
        cluster.resume(broker_id)
        time.sleep(5)
    for each in committers:
        each.stop()
    committed = set().union(*(each.committed for each in committers))
    aborted = set().union(*(each.aborted for each in committers))
    time.sleep(1)
    found = Counter(value.decode() for value in values(cluster, TOPIC))
    assert {value for value, count in found.items() if count != 2} == set(), "half, or twice"
    assert committed <= found.keys()
    assert not aborted & found.keys()
    assert len(committed) > 100
    assert len(aborted) > 20
