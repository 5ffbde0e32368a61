"""A topic that is deleted takes its committed offsets with it: a new topic of its name is read from its start."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Operator:
    """A client that creates and deletes topics, and sees the offsets of groups."""

    def __init__(self, cluster: Cluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def create(self, topic: str) -> None:
        """Create *topic*, as soon as a deleted one of that name is gone."""

        def created() -> bool:
            try:
                self.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
            except KafkaException:
                return False
            return True

        eventually(f"creation of {topic}", created, 20)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(20)

    def commit(self, group: str, **offsets: int) -> None:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
        }
        consumer = Consumer(settings)
        places = [Place(topic, 0, offset) for topic, offset in offsets.items()]

        def committed() -> bool:
            """The coordinator may not know a new topic yet."""
            try:
                consumer.commit(offsets=places, asynchronous=False)
            except KafkaException:
                return False
            return True

        eventually(f"commit of {offsets}", committed, 20)
        consumer.close()

    def offsets(self, group: str) -> dict[str, int]:
        """Return all offsets of *group*, by topic."""
        asked = ConsumerGroupTopicPartitions(group)
        found = self.admin.list_consumer_group_offsets([asked])[group].result(20)
        return {place.topic: place.offset for place in found.topic_partitions}

    def groups(self) -> set[str]:
        return {each.group_id for each in self.admin.list_consumer_groups().result(20).valid}


def test_a_topic_that_is_created_again_at_once_has_no_committed_offsets(
    broker_clusters: MakeCluster,
) -> None:
    operator = Operator(broker_clusters(3))
    operator.create("stays")
    for turn in range(5):
        operator.create("t")
        operator.commit("both", t=5, stays=turn)
        operator.commit("only", t=5)
        operator.delete("t")
        operator.create("t")
        eventually("no offsets of t", lambda turn=turn: operator.offsets("both") == {"stays": turn})
        eventually("deletion of the group without offsets", lambda: operator.groups() == {"both"})
        operator.commit("both", t=1)
        operator.commit("only", t=2)
        assert operator.offsets("both") == {"t": 1, "stays": turn}
        assert operator.offsets("only") == {"t": 2}
        operator.delete("t")


def test_offsets_that_were_not_read_since_a_restart_go_with_their_topic(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(1)
    operator = Operator(cluster)
    for topic in ("t", "u"):
        operator.create(topic)
    operator.commit("g", t=5, u=6)
    cluster.restart(1)
    eventually("groups of before", lambda: operator.groups() == {"g"}, 20)
    operator.delete("t")
    operator.create("t")
    eventually("no offsets of t", lambda: operator.offsets("g") == {"u": 6})
