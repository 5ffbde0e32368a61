"""S28: SIGTERM stops a broker cleanly and in bounded time, even if the controller or ZooKeeper does not answer."""

from __future__ import annotations

import json
import time

import pytest

from tests.kit.brokers import MakeCluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually
from tests.kit.zookeeper import Ensemble

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SETTINGS = {"zookeeper.session.timeout.ms": "4000", "replica.lag.time.max.ms": "2000"}
BOUND = 30.0


def test_s28_sigterm_ends_a_broker_without_controller_and_without_zookeeper(
    broker_clusters: MakeCluster, own_ensemble: Ensemble
) -> None:
    cluster = broker_clusters(3, SETTINGS, zookeeper=f"{own_ensemble.connect}/s28")
    observer = Observer(cluster)
    controller = eventually("a controller", lambda: max(observer.controller(), 0))
    first, second = (b for b in cluster.brokers if b != controller)
    observer.create("t", [[first, second, controller], [second, first, controller]])

    cluster.pause(controller)  # it is alive and sends nothing
    began = time.monotonic()
    cluster.terminate(first, timeout=BOUND)
    assert time.monotonic() - began < BOUND
    cluster.resume(controller)
    observer.in_sync("t", 0, [second, controller])

    own_ensemble.pause()
    began = time.monotonic()
    cluster.terminate(second, timeout=BOUND)
    assert time.monotonic() - began < BOUND
    own_ensemble.resume()
    for broker_id in (first, second):  # all was closed cleanly: the next start recovers nothing
        marker = cluster[broker_id].data / ".kafka_cleanshutdown"
        assert json.loads(marker.read_text())["brokerEpoch"] > 0
    cluster.start(first, second)
    observer.in_sync("t", 0, cluster.brokers, 40)
