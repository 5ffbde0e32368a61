"""Topics with three replicas on three real brokers, through kill -9, SIGSTOP and restarts."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from kbroker.testing.brokers import Brokers
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer, log_bytes, read_all, until_replicas_agree
from tests.kit.waiting import eventually
from tests.kit.writers import KclientWriter, LibrdkafkaWriter, Writer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SESSION = 3.0
SETTINGS = {
    "zookeeper.session.timeout.ms": str(int(SESSION * 1000)),
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.backoff.ms": "200",
}
SAFE = {"min.insync.replicas": "2"}
ALL = [1, 2, 3]


def until_progress(writers: list[Writer], numbers: int, timeout: float = 20.0) -> float:
    """Wait until every writer has so many more acknowledgements; return the seconds it took."""
    began = time.monotonic()
    for writer in writers:
        goal = writer.count + numbers
        while writer.count < goal:
            assert writer.is_alive(), f"{writer.topic} ended: {writer.problem!r}"
            assert time.monotonic() < began + timeout, f"{writer.topic}: no acknowledgements"
            time.sleep(0.01)
    return time.monotonic() - began


def check_acknowledged(cluster: Brokers, writer: Writer) -> None:
    """Demand every acknowledged number at its offset, for readers and on every replica."""
    found = read_all(cluster.bootstrap, writer.topic, writer.partitions)
    for index in range(writer.partitions):
        lost = [
            sent for sent in writer.acknowledged[index]
            if found[index].get(sent.offset) != b"%d" % sent.number
        ]  # fmt: skip
        assert not lost, f"{writer.topic}-{index}: acknowledged, not there: {lost[:5]}"
        assert writer.acknowledged[index], f"{writer.topic}-{index}: nothing was acknowledged"
        until_replicas_agree(cluster, writer.topic, index, ALL)


def send(cluster: Cluster, topic: str, values: list[bytes], acks: str = "all", timeout: int = 10_000
         ) -> list[KafkaError | None]:  # fmt: skip
    """Produce *values* to partition 0; return what was reported for each."""
    reports: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": acks,
            "message.timeout.ms": timeout,
            "log_level": 0,
        }
    )
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda e, _m: reports.append(e))
    assert producer.flush(timeout / 1000 + 5) == 0
    return reports


def test_replicas_are_equal_and_acks_all_means_all(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], SAFE)
    values = [b"%d" % n for n in range(2000)]
    assert send(cluster, "t", values) == [None] * 2000
    # Acknowledged: all in-sync replicas have it, now.
    logs = {log_bytes(cluster, broker_id, "t", 0) for broker_id in ALL}
    assert len(logs) == 1
    assert list(read_all(cluster.bootstrap, "t", 3)[0].values()) == values
    observer.delete("t")
    eventually(
        "the replicas are gone",
        lambda: not any((cluster[b].data / "t-0").exists() for b in ALL),
    )


def test_a_killed_leader_loses_nothing_and_comes_back_into_the_isr(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer = Observer(cluster)
    writers: list[Writer] = [
        LibrdkafkaWriter("librdkafka", 2, "all", cluster.bootstrap, idempotence=False),
        KclientWriter("kclient", 2, "all", cluster.bootstrap, idempotence=False),
    ]
    for writer in writers:
        observer.create(writer.topic, [[1, 2, 3], [2, 3, 1]], SAFE)
        writer.start()
    until_progress(writers, 200)
    for _ in range(2):
        victim = observer.placement("librdkafka").leader
        cluster.kill(victim)
        _, seconds = observer.led_by_another("librdkafka", 0, victim)
        assert seconds <= SESSION + 1
        until_progress(writers, 200)
        cluster.start(victim)
        for writer in writers:
            for index in range(2):
                assert observer.in_sync(writer.topic, index, ALL, 10) <= 5
        until_progress(writers, 100)
    for writer in writers:
        writer.finish()
    for writer in writers:
        check_acknowledged(cluster, writer)


def test_s9_a_leader_that_is_back_within_its_session_loses_nothing(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]], SAFE)
    writer = LibrdkafkaWriter("t", 1, "all", cluster.bootstrap, idempotence=False)
    writer.start()
    for _ in range(2):
        until_progress([writer], 200)
        cluster.restart(observer.placement("t").leader)
        assert observer.in_sync("t", 0, ALL, 10) <= 5
    until_progress([writer], 200)
    writer.finish()
    check_acknowledged(cluster, writer)


def test_controller_and_leader_die_together(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer = Observer(cluster)
    controller = observer.controller()
    others = [b for b in ALL if b != controller]
    observer.create("t", [[controller, *others]], SAFE)
    writer = LibrdkafkaWriter("t", 1, "all", cluster.bootstrap, idempotence=False)
    writer.start()
    until_progress([writer], 200)
    cluster.kill(controller)
    _, seconds = observer.led_by_another("t", 0, controller)
    assert seconds <= SESSION + 1
    until_progress([writer], 200)
    cluster.start(controller)
    assert observer.in_sync("t", 0, ALL, 10) <= 5
    writer.finish()
    check_acknowledged(cluster, writer)


def test_s2_a_leader_paused_beyond_its_session_loses_no_acknowledged_write(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer = Observer(cluster)
    controller = observer.controller()
    leader, *others = [b for b in ALL if b != controller] + [controller]
    observer.create("t", [[leader, *others]], SAFE)
    bootstrap = cluster.bootstrap
    writer = LibrdkafkaWriter("t", 1, "all", bootstrap, idempotence=False, socket_timeout_ms=2000)
    control = KclientWriter("t", 1, "1", cluster[leader].address, idempotence=False)
    writer.start()
    control.start()  # acks=1: what the sleeper takes alone has to vanish when it wakes
    until_progress([writer, control], 200)
    cluster.pause(leader)
    observer.led_by_another("t", 0, leader)
    until_progress([writer], 300)
    cluster.resume(leader)
    assert observer.in_sync("t", 0, ALL, 15) <= 10
    until_progress([writer], 100)
    control.finish()
    writer.finish()
    check_acknowledged(cluster, writer)


def test_acks_all_is_refused_under_min_insync_replicas(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]], SAFE)
    assert send(cluster, "t", [b"a"]) == [None]
    cluster.kill(2, 3)
    observer.in_sync("t", 0, [1])
    (refused,) = send(cluster, "t", [b"b"], timeout=1500)
    assert refused is not None
    assert send(cluster, "t", [b"c"], acks="1") == [None]
    assert list(read_all(cluster.bootstrap, "t", 1)[0].values()) == [b"a"]  # c is not committed
    cluster.start(2)
    observer.in_sync("t", 0, [1, 2])
    assert send(cluster, "t", [b"d"]) == [None]
    assert list(read_all(cluster.bootstrap, "t", 1)[0].values()) == [b"a", b"c", b"d"]
    cluster.start(3)
    observer.in_sync("t", 0, ALL)
    until_replicas_agree(cluster, "t", 0, ALL)


def test_a_follower_that_was_away_catches_up_and_a_clean_shutdown_moves_leadership(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, {**SETTINGS, "leader.imbalance.check.interval.seconds": "1"})
    observer = Observer(cluster)
    observer.create("t", [[1, 2, 3]], SAFE)
    cluster.kill(3)
    assert send(cluster, "t", [b"%d" % n * 100 for n in range(3000)]) == [None] * 3000
    cluster.start(3)
    assert observer.in_sync("t", 0, ALL, 10) <= 5
    cluster.terminate(1)
    assert observer.placement("t").leader in (2, 3)
    assert send(cluster, "t", [b"more"]) == [None]
    cluster.start(1)
    assert observer.in_sync("t", 0, ALL, 10) <= 5
    eventually("the preferred leader leads", lambda: observer.placement("t").leader == 1)
    until_replicas_agree(cluster, "t", 0, ALL)


def test_a_replica_that_was_away_beyond_retention_begins_where_its_leaders_log_begins(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, {**SETTINGS, "log.retention.check.interval.ms": "200"})
    observer = Observer(cluster)
    observer.create("t", [[1, 2]], {"segment.bytes": "20000", "retention.bytes": "40000"})
    cluster.kill(2)
    observer.in_sync("t", 0, [1])
    for _ in range(20):
        assert send(cluster, "t", [b"x" * 1000] * 10) == [None] * 10
    eventually(
        "retention",
        lambda: len(list((cluster[1].data / "t-0").glob("*.log"))) <= 5,
    )
    cluster.start(2)
    observer.in_sync("t", 0, [1, 2])
    assert send(cluster, "t", [b"y"]) == [None]
    cluster.terminate(1)
    found = read_all(cluster.bootstrap, "t", 1)[0]
    assert max(found) == 200
    assert min(found) > 0


def test_more_replicas_than_brokers_are_refused(broker_clusters: MakeCluster) -> None:
    observer = Observer(broker_clusters(1))
    with pytest.raises(KafkaException, match="INVALID_REPLICA"):
        observer.create("t", [[1, 2]])


def test_s18_without_its_isr_a_partition_waits_until_an_unclean_election_is_allowed(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3, SETTINGS)
    observer = Observer(cluster)
    controller = observer.controller()
    leader, stale = [b for b in ALL if b != controller]
    observer.create("t", [[leader, stale]])
    assert send(cluster, "t", [b"both"]) == [None]
    cluster.kill(stale)
    observer.in_sync("t", 0, [leader])
    assert send(cluster, "t", [b"lost"]) == [None]
    cluster.kill(leader)
    cluster.start(stale)
    eventually("no leader", lambda: observer.placement("t").leader == -1)
    assert observer.placement("t").isr == {leader}
    observer.configure("t", {"unclean.leader.election.enable": "true"})
    eventually("an unclean election", lambda: observer.placement("t").leader == stale)
    assert send(cluster, "t", [b"new"]) == [None]
    cluster.start(leader)
    observer.in_sync("t", 0, [leader, stale])
    until_replicas_agree(cluster, "t", 0, [leader, stale])
    assert list(read_all(cluster.bootstrap, "t", 1)[0].values()) == [b"both", b"new"]
