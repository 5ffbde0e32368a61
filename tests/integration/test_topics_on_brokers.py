"""Topics, settings and elections on real brokers, with admin clients of other projects."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.kit.brokers import Cluster, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
T = TypeVar("T")


def admin(cluster: Cluster, **settings: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, **settings})


def done(futures: dict[Any, Future[T]]) -> list[T]:
    return [future.result(20) for future in futures.values()]


def code(futures: dict[Any, Future[Any]]) -> str:
    """The name of the error that the one future ends with."""
    (future,) = futures.values()
    with pytest.raises(KafkaException) as caught:
        future.result(20)
    return caught.value.args[0].name()


def leaders(client: AdminClient, topic: str) -> dict[int, int]:
    found = client.list_topics(topic, timeout=10).topics[topic]
    assert found.error is None, found.error
    return {p.id: p.leader for p in found.partitions.values()}


def eventually(what: str, condition: Any, timeout: float = 20.0) -> Any:
    deadline = time.monotonic() + timeout
    while True:
        try:
            if result := condition():
                return result
        except (AssertionError, KafkaException, KeyError):
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}"
        time.sleep(0.05)


def configs(client: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    return client.describe_configs([ConfigResource(kind, name)])[ConfigResource(kind, name)].result(
        10
    )


def test_topics_are_made_grown_and_deleted_on_three_brokers(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(3)
    client = admin(cluster)
    done(client.create_topics([NewTopic("one", 6, 1), NewTopic("two", 3, -1)]))
    led = leaders(client, "one")
    assert sorted(led.values()) == [1, 1, 2, 2, 3, 3]
    assert set(client.list_topics(timeout=10).brokers) == {1, 2, 3}
    assert code(client.create_topics([NewTopic("one", 1, 1)])) == "TOPIC_ALREADY_EXISTS"
    assert code(client.create_topics([NewTopic("rf", 1, 4)])) == "INVALID_REPLICATION_FACTOR"
    assert code(client.create_topics([NewTopic("none", 0, 1)])) == "INVALID_PARTITIONS"
    assert code(client.create_topics([NewTopic("a b", 1, 1)])) == "TOPIC_EXCEPTION"
    bad = NewTopic("bad", 1, 1, config={"retention.ms": "soon"})
    assert code(client.create_topics([bad])) == "INVALID_CONFIG"
    done(client.create_partitions([NewPartitions("two", 5)]))
    assert len(leaders(client, "two")) == 5
    assert code(client.create_partitions([NewPartitions("two", 4)])) == "INVALID_PARTITIONS"
    done(client.delete_topics(["one"]))
    assert "one" not in client.list_topics(timeout=10).topics
    eventually(
        "the directories to go",
        lambda: not [p for b in cluster.brokers.values() for p in b.data.glob("one-?")],
    )
    done(client.create_topics([NewTopic("one", 2, 1)]))
    assert len(leaders(client, "one")) == 2


def test_settings_change_on_all_brokers_within_a_second(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(2)
    client = admin(cluster)
    done(client.create_topics([NewTopic("t", 2, 1, config={"retention.ms": "60000"})]))
    before = configs(client, ResourceType.TOPIC, "t")
    assert (before["retention.ms"].value, before["retention.ms"].source) == ("60000", 1)
    assert before["segment.bytes"].is_default
    resource = ConfigResource(
        ResourceType.TOPIC,
        "t",
        incremental_configs=[
            ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry(
                "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND
            ),
        ],
    )
    done(client.incremental_alter_configs([resource]))
    after = configs(client, ResourceType.TOPIC, "t")
    assert after["max.message.bytes"].value == "2000"
    assert after["retention.ms"].source == 5
    assert after["cleanup.policy"].value == "delete,compact"
    wrong = ConfigResource(
        ResourceType.TOPIC,
        "t",
        incremental_configs=[
            ConfigEntry("segment.bytes", "1", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    assert code(client.incremental_alter_configs([wrong])) == "INVALID_CONFIG"
    unknown = ConfigResource(
        ResourceType.TOPIC,
        "nothing",
        incremental_configs=[
            ConfigEntry("segment.bytes", "9999", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    assert code(client.incremental_alter_configs([unknown])) == "UNKNOWN_TOPIC_OR_PART"
    own = configs(client, ResourceType.BROKER, "1")
    assert own["broker.id"].value == "1"
    assert own["broker.id"].is_read_only
    assert own["broker.id"].source == 4


def test_a_killed_controller_is_replaced_and_the_cluster_goes_on(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(3)
    client = admin(cluster)
    done(client.create_topics([NewTopic("t", 3, 1)]))
    controller = client.list_topics(timeout=10).controller_id
    cluster.kill(controller)
    others = {1, 2, 3} - {controller}
    client = AdminClient(
        {"bootstrap.servers": ",".join(cluster[n].address for n in sorted(others))}
    )
    eventually(
        "another controller",
        lambda: client.list_topics(timeout=5).controller_id in others,
    )
    eventually(
        "the dead broker's partition to be without a leader",
        lambda: sorted(leaders(client, "t").values()) == sorted([-1, *others]),
    )
    eventually(
        "a topic under the new controller",
        lambda: done(client.create_topics([NewTopic("after", 2, 1)])) == [None],
    )
    assert set(leaders(client, "after").values()) == others
    cluster.start(controller)
    eventually("everything to be led", lambda: set(leaders(client, "t").values()) == {1, 2, 3})


def test_a_topic_deleted_while_a_broker_is_down_does_not_come_back_with_it(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(2)
    client = admin(cluster)
    done(client.create_topics([NewTopic("t", 2, 1), NewTopic("stays", 2, 1)]))
    victim = next(n for n in (1, 2) if n != client.list_topics(timeout=10).controller_id)
    cluster.kill(victim)
    eventually("the death to be noticed", lambda: -1 in leaders(client, "t").values())
    done(client.delete_topics(["t"]))
    assert code(client.create_topics([NewTopic("t", 1, 1)])) == "TOPIC_ALREADY_EXISTS"
    cluster.start(victim)
    eventually("its directory to go", lambda: not list(cluster[victim].data.glob("t-?")))

    def recreated() -> bool:
        (future,) = client.create_topics([NewTopic("t", 1, 1)]).values()
        future.exception(20)  # until the name is free it exists already
        return set(leaders(client, "t")) == {0}

    eventually("the name to be free", recreated)
    assert set(leaders(client, "stays").values()) == {1, 2}


def test_a_restarted_broker_leads_again_at_once(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(2)
    client = admin(cluster)
    done(client.create_topics([NewTopic("t", 2, 1)]))
    for broker_id in (1, 2):
        cluster.restart(broker_id)
        eventually("both to lead", lambda: set(leaders(client, "t").values()) == {1, 2}, timeout=10)


def test_a_topics_settings_hold_after_a_restart(broker_clusters: MakeCluster) -> None:
    """Those of logs that were there before: by the defaults, retention would delete what it must not."""
    cluster = broker_clusters(1)
    client = admin(cluster, log_level=0)
    done(client.create_topics([NewTopic("t", 1, 1, config={"max.message.bytes": "300"})]))
    cluster.restart(1)
    sent: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, "linger.ms": 0})
    for size in (10, 1000):
        producer.produce("t", bytes(size), on_delivery=lambda error, _message: sent.append(error))
        assert producer.flush(20) == 0
    assert sent[0] is None
    assert sent[1] is not None
    assert sent[1].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_terminated_broker_leaves_in_good_order(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(2)
    client = admin(cluster)
    done(client.create_topics([NewTopic("t", 4, 1)]))
    began = time.monotonic()
    cluster.terminate(1)
    assert time.monotonic() - began < 5
    client = AdminClient({"bootstrap.servers": cluster[2].address})
    eventually(
        "its partitions to have no leader",
        lambda: sorted(leaders(client, "t").values()) == [-1, -1, 2, 2],
        timeout=5,
    )
    cluster.terminate(2)


def test_a_controller_paused_until_it_was_replaced_does_no_harm_and_rejoins(
    broker_clusters: MakeCluster,
) -> None:
    """S3: SIGSTOP until another governs, work under it, SIGCONT."""
    cluster = broker_clusters(3)
    client = admin(cluster)
    done(client.create_topics([NewTopic("t", 3, 1), NewTopic("old", 3, 1)]))
    zombie = client.list_topics(timeout=10).controller_id
    others = sorted({1, 2, 3} - {zombie})
    client = AdminClient({"bootstrap.servers": ",".join(cluster[n].address for n in others)})
    cluster.pause(zombie)
    successor = eventually(
        "another controller",
        lambda: (found := client.list_topics(timeout=5).controller_id) in others and found,
    )
    done(client.create_topics([NewTopic("new", 2, 1)]))
    eventually("the sleeper to count as dead", lambda: -1 in leaders(client, "t").values())
    client.delete_topics(["old"], operation_timeout=0.2)
    cluster.resume(zombie)
    began = time.monotonic()
    eventually("the sleeper to lead again", lambda: set(leaders(client, "t").values()) == {1, 2, 3})
    assert time.monotonic() - began < 5
    assert client.list_topics(timeout=5).controller_id == successor
    eventually("old to go", lambda: "old" not in client.list_topics(timeout=5).topics)
    eventually(
        "old to be free again",
        lambda: done(client.create_topics([NewTopic("old", 1, 1)])) == [None],
    )
    own = AdminClient({"bootstrap.servers": cluster[zombie].address})
    assert own.list_topics(timeout=5).controller_id == successor
    assert "resigned as controller of epoch 1" in cluster[zombie].log
    assert set(leaders(own, "new").values()) == set(others)
