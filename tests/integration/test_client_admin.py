"""The admin client against real brokers: every method once, and one answer per name."""

from __future__ import annotations

import time

import pytest

from kclient import (
    AdminClient,
    ConfigResource,
    Consumer,
    ElectionType,
    KafkaError,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    ResourceType,
    TopicPartition,
)
from kclient.admin.groups import GroupMember
from kclient.wire.errors import (
    ElectionNotNeeded,
    GroupIdNotFound,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    NonEmptyGroup,
    NoReassignmentInProgress,
    TopicAlreadyExists,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from tests.kit.brokers import MakeCluster
from tests.kit.waiting import eventually

pytestmark = pytest.mark.slow


def test_topics_are_made_described_grown_and_deleted(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(2)
    with AdminClient(bootstrap_servers=cluster.bootstrap, default_api_timeout_ms=15_000) as admin:
        assert set(admin.describe_cluster().brokers) == {1, 2}
        assert admin.create_topics(["dry"], validate_only=True).keys() == {"dry"}
        admin.create_topics(
            [
                NewTopic("a", 3, 1, {"retention.ms": "1000"}),
                NewTopic("b", replica_assignment={0: [2]}),
            ]
        )
        described = admin.wait_for_topics(["a", "b"])
        assert sorted(described["a"].partitions) == [0, 1, 2]
        assert described["b"].partitions[0].replicas == (2,)
        assert admin.list_topics() == ["a", "b"]
        answers = admin.create_topics(["a", "c"], raise_errors=False)
        assert isinstance(answers["a"], TopicAlreadyExists)
        assert not isinstance(answers["c"], KafkaError)
        with pytest.raises(TopicAlreadyExists, match="topic a already exists"):
            admin.create_topics(["a"])
        admin.create_partitions({"a": 5})
        assert isinstance(
            admin.create_partitions({"a": 2}, raise_errors=False)["a"], InvalidPartitions
        )
        assert len(admin.wait_for_topics(["a"])["a"].partitions) == 5
        deleted = admin.delete_topics(["a", "nope"], raise_errors=False)
        assert deleted["a"] is None
        assert isinstance(deleted["nope"], UnknownTopicOrPartition)
        assert admin.list_topics() == ["b", "c"]


def test_configs_are_changed_one_by_one_and_put_back(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters()
    topic = ConfigResource(ResourceType.TOPIC, "t")
    broker = ConfigResource(ResourceType.BROKER, "1")
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics({"t": {"configs": {"retention.ms": "5000"}}})
        admin.wait_for_topics(["t"])
        admin.alter_configs({topic: {"max.message.bytes": "2000"}})
        found = admin.describe_configs([topic, broker])
        described = found[topic]
        assert not isinstance(described, KafkaError)
        assert described["retention.ms"].value == "5000"
        assert described["max.message.bytes"].value == "2000"
        assert not described["max.message.bytes"].is_default
        admin.alter_configs({topic: {"retention.ms": None}})
        described = admin.describe_configs([topic], names=["retention.ms"])[topic]
        assert not isinstance(described, KafkaError)
        assert list(described) == ["retention.ms"]
        assert described["retention.ms"].value != "5000"
        answers = admin.alter_configs({topic: {"no.such.config": "1"}}, raise_errors=False)
        assert isinstance(answers[topic], KafkaError)
        assert isinstance(answers[topic], InvalidConfig) or "no.such.config" in str(answers[topic])


def test_offsets_and_records(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters()
    tp, gone = TopicPartition("t", 0), TopicPartition("t", 9)
    with AdminClient(bootstrap_servers=cluster.bootstrap, default_api_timeout_ms=5000) as admin:
        admin.create_topics(["t"])
        admin.wait_for_topics(["t"])
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for i in range(10):
                producer.send("t", b"v", timestamp_ms=1000 + 10 * i)
        times: dict[TopicPartition, int | str] = {tp: 1045}
        assert admin.list_offsets(times)[tp] == (5, 1050, 0)
        assert admin.list_offsets({tp: "latest"})[tp][0] == 10  # type: ignore[index]
        assert admin.delete_records({tp: 4})[tp] == 4
        assert admin.list_offsets({tp: "earliest"})[tp][0] == 4  # type: ignore[index]
        answers = admin.list_offsets(
            {tp: "latest", gone: "latest"}, timeout=1.5, raise_errors=False
        )
        assert isinstance(answers[gone], UnknownTopicOrPartition)
        assert not isinstance(answers[tp], KafkaError)


def test_groups_their_offsets_and_members(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(2)
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    with AdminClient(bootstrap_servers=cluster.bootstrap, default_api_timeout_ms=15_000) as admin:
        admin.create_topics({"t": {"num_partitions": 2}})
        admin.wait_for_topics(["t"])
        admin.alter_group_offsets("idle", {a: 0, b: OffsetAndMetadata(0, "note")})
        assert admin.list_group_offsets("idle")[b].metadata == "note"
        assert list(admin.list_group_offsets("idle", [a])) == [a]
        admin.delete_group_offsets("idle", [a])
        assert list(admin.list_group_offsets("idle")) == [b]
        with Consumer("t", bootstrap_servers=cluster.bootstrap, group_id="busy") as consumer:
            while consumer.assignment() != {a, b}:
                consumer.poll(timeout=0.2)
            listed = {group.group_id: group for group in admin.list_groups()}
            assert listed["busy"].state == "Stable"
            assert listed["idle"].state == "Empty"
            described = admin.describe_groups(["busy"])["busy"]
            assert not isinstance(described, KafkaError)
            assert described.members[0].assignment == (a, b)
            answers = admin.delete_groups(["busy", "idle", "nope"], raise_errors=False)
            assert isinstance(answers["busy"], NonEmptyGroup)
            assert answers["idle"] is None
            assert isinstance(answers["nope"], GroupIdNotFound)


def test_operators_ask_for_health_log_directories_elections_and_moves(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(2)
    with AdminClient(bootstrap_servers=cluster.bootstrap, default_api_timeout_ms=15_000) as admin:
        admin.create_topics([NewTopic("a", replica_assignment={0: [1], 1: [2]})])
        admin.wait_for_topics(["a"])
        health = admin.describe_health()
        assert (health.is_healthy, health.expected, health.reasons) == (True, (1, 2), [])
        first, second = TopicPartition("a", 0), TopicPartition("a", 1)
        found = admin.describe_log_dirs([1], [first])
        (directory,) = found[1].values()
        assert (directory.path, list(directory.replicas)) == (str(cluster[1].data), [first])
        assert admin.describe_log_dirs().keys() == {1, 2}
        unreachable = admin.describe_log_dirs([9], timeout=0.5, raise_errors=False)
        assert isinstance(unreachable[9], KafkaError)
        answers = admin.elect_leaders(ElectionType.PREFERRED, [first], raise_errors=False)
        assert isinstance(answers[first], ElectionNotNeeded)
        refused = admin.alter_partition_reassignments(
            {first: [1, 1], second: None}, raise_errors=False
        )
        assert isinstance(refused[first], InvalidReplicaAssignment)
        assert isinstance(refused[second], NoReassignmentInProgress)
        assert admin.alter_partition_reassignments({first: [2]}) == {first: None}
        deadline = time.monotonic() + 20
        while admin.list_partition_reassignments([first]):
            assert time.monotonic() < deadline
        assert admin.list_partition_reassignments() == {}


def test_members_of_a_group_are_removed(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(1)
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g"}
    with AdminClient(bootstrap_servers=cluster.bootstrap, default_api_timeout_ms=15_000) as admin:
        admin.create_topics({"t": {"num_partitions": 4}})
        admin.wait_for_topics(["t"])

        def members() -> dict[str | None, GroupMember]:
            described = admin.describe_groups(["g"])["g"]
            assert not isinstance(described, KafkaError)
            return {member.group_instance_id: member for member in described.members}

        assert admin.remove_group_members("g") == {}
        static = [Consumer({**settings, "group.instance.id": name}, ["t"]) for name in ("a", "b")]
        with Consumer(settings, ["t"]) as dynamic:
            three = [*static, dynamic]
            eventually(
                "three members",
                lambda: (
                    [each.poll(timeout=0.1) for each in three]
                    and sum(bool(each.assignment()) for each in three) == 3
                    and len(members()) == 3
                ),
            )
            static[1].close()
            assert "b" in members(), "static members do not leave when they close (KIP-345)"
            answers = admin.remove_group_members("g", ["b", "x"], reason="gone", raise_errors=False)
            assert answers["b"] is None
            assert isinstance(answers["x"], UnknownMemberId)
            with pytest.raises(UnknownMemberId):
                admin.remove_group_members("g", "b")
            eventually(
                "the others to have all partitions",
                lambda: (
                    [each.poll(timeout=0.1) for each in (static[0], dynamic)]
                    and set(members()) == {"a", None}
                    and len(static[0].assignment()) + len(dynamic.assignment()) == 4
                ),
            )
            named = members()
            answers = admin.remove_group_members("g")
            assert answers == {"a": None, named[None].member_id: None}
            eventually(
                "both to be back, because they are alive",
                lambda: (
                    [each.poll(timeout=0.1) for each in (static[0], dynamic)]
                    and members().keys() == named.keys()
                    and all(m.member_id != named[name].member_id for name, m in members().items())
                ),
            )
        static[0].close()
