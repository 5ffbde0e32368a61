"""S22: the ZooKeeper ensemble loses its leader, its quorum, all its servers; the brokers carry on without it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from kclient.wire.errors import for_code
from tests.integration.test_replicated_topics import check_acknowledged, until_progress
from tests.kit.brokers import MakeCluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually
from tests.kit.writers import LibrdkafkaWriter
from tests.kit.zookeeper import Ensemble

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SESSION = 4.0
ALL = [1, 2, 3]


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    ensemble = Ensemble(tmp_path / "ensemble", 3)
    ensemble.start()
    try:
        yield ensemble
    finally:
        ensemble.kill()


def _creates(observer: Observer, numbers: Iterator[int]) -> bool:
    observer.controller()  # librdkafka does not look for the controller by itself
    observer.create(f"after-{next(numbers)}", [[1, 2, 3]])
    return True


def test_s22_without_zookeeper_leaders_go_on_and_afterwards_all_is_whole(
    broker_clusters: MakeCluster, ensemble: Ensemble
) -> None:
    cluster = broker_clusters(
        3,
        {"zookeeper.session.timeout.ms": str(int(SESSION * 1000))},
        zookeeper=f"{ensemble.connect}/s22",
    )
    observer = Observer(cluster)
    writer = LibrdkafkaWriter("t", 3, "all", cluster.bootstrap, idempotence=True)
    observer.create("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], {"min.insync.replicas": "2"})
    writer.start()
    until_progress([writer], 100)
    numbers = itertools.count()

    leader = ensemble.leader()
    ensemble.kill(leader)
    until_progress([writer], 300)
    ensemble.start(leader)

    others = [server.number for server in ensemble.servers if server.number != leader]
    for dead in (others, [leader, *others]):
        ensemble.kill(*dead)
        over = time.monotonic() + SESSION + 2
        while time.monotonic() < over:  # the outage outlasts every session
            until_progress([writer], 50)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        answer = admin.create_topics([NewTopic("late", 1, 1)], request_timeout=8)
        with pytest.raises(KafkaException) as refused:
            answer["late"].result(15)
        code = refused.value.args[0].code()
        assert code == KafkaError._TIMED_OUT or for_code(code)("").retriable, refused.value
        until_progress([writer], 50)
        ensemble.start(*dead)
        for index in range(3):
            observer.in_sync("t", index, ALL, 40)
        until_progress([writer], 100)
        eventually("a controller that creates topics", partial(_creates, observer, numbers), 40)

    writer.finish()
    check_acknowledged(cluster, writer)
