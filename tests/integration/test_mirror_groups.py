"""Consumer groups in the mirror, on two real clusters: committed offsets are copied, never too far, never back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient as ForeignAdmin
from confluent_kafka.admin import NewTopic

from kclient.blocking import AdminClient
from kclient.blocking import Consumer as OurConsumer
from kclient.types import OffsetAndMetadata, TopicPartition
from tests.kit.brokers import Cluster
from tests.kit.mirrored_clusters import MakeMirror, making_mirrors, record_of
from tests.kit.mirrors import stored, until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150), pytest.mark.shared_clusters]

SYNC = {"sync.group.offsets.enabled": "true", "sync.group.offsets.interval.seconds": "1"}
COORDINATOR_LOADS = {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def mirror(tmp_path: Path, east: Cluster, west: Cluster) -> Iterator[MakeMirror]:
    with making_mirrors(tmp_path, east, west, SYNC) as make:
        yield make


def make_topic(
    cluster: Cluster, name: str, partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    client = ForeignAdmin({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    client.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(10)


def topics(cluster: Cluster) -> set[str]:
    client = ForeignAdmin({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    return {name for name in client.list_topics(timeout=10).topics if not name.startswith("__")}


def produce(cluster: Cluster, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for n in range(count):
        producer.produce(topic, b"%d" % n, partition=partition)
    assert producer.flush(30) == 0


def commit(cluster: Cluster, group: str, *places: Position) -> None:
    """Commit as an operator does, for a group without members.

    librdkafka's admin client does not retry a commit: the first one of a cluster may find its coordinator loading.
    """
    client = ForeignAdmin({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    wanted = ConsumerGroupTopicPartitions(group, list(places))

    def accepted() -> bool:
        answers = client.alter_consumer_group_offsets([wanted])[group].result(10).topic_partitions
        errors = [each.error for each in answers if each.error is not None]
        assert all(each.retriable() or each.code() in COORDINATOR_LOADS for each in errors), errors
        return not errors

    eventually(f"a commit of {group}", accepted)


def committed(cluster: Cluster, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as client:
        return client.list_group_offsets(group)


def offsets(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    return {tp: each.offset for tp, each in committed(cluster, group).items()}


def consumer(cluster: Cluster, group: str, *, reset: str = "error") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def read(reader: Consumer, count: int) -> list[int]:
    """Return the offsets of *count* records."""
    found: list[int] = []

    def enough() -> bool:
        message = reader.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            offset = message.offset()
            assert offset is not None
            found.append(offset)
        return len(found) >= count

    eventually(f"{count} records", enough, 40)
    return found


def test_committed_offsets_are_copied_as_they_are_with_their_metadata(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t", 2)
    make_topic(east, "elsewhere.internal")
    produce(east, "t", 100)
    produce(east, "t", 50, partition=1)
    produce(east, "elsewhere.internal", 5)
    with AdminClient({"bootstrap.servers": east.bootstrap}) as client:
        given = {
            T0: OffsetAndMetadata(70, "a note", 0),
            T1: OffsetAndMetadata(50),
            TopicPartition("elsewhere.internal", 0): OffsetAndMetadata(3),
        }
        client.alter_group_offsets("billing", given)
        client.alter_group_offsets("console-consumer-1", given)
        client.alter_group_offsets("idle", {TopicPartition("elsewhere.internal", 0): 1})
    copier = mirror()
    assert copier.run_once() == 0, copier.output
    assert committed(west, "billing") == {
        T0: OffsetAndMetadata(70, "a note", None),
        T1: OffsetAndMetadata(50),
    }
    assert not committed(west, "console-consumer-1")
    assert not committed(west, "idle"), "its topic is not mirrored"
    assert "group " not in copier.output, "there is nothing to report"
    assert "groups 1" in copier.output
    code, output = copier.ask("translate", "--groups", "billing", "--format", "json")
    assert code == 0, output
    rows = [json.loads(line) for line in output.splitlines()]
    assert [(row["partition"], row["source_offset"], row["target_offset"]) for row in rows] == [
        *((0, 70, 70), (1, 50, 50))
    ]
    make_topic(east, "not.copied.yet")
    code, output = copier.ask("translate", "--groups", "billing")
    assert (code, "not.copied.yet-0 is not at the target yet" in output) == (5, True), output


def test_no_offset_is_copied_unless_it_is_enabled(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t")
    produce(east, "t", 10)
    commit(east, "billing", Position("t", 0, 7))
    assert mirror({}).run_once() == 0
    assert not committed(west, "billing")


def test_offsets_follow_under_the_prefix_of_the_policy_and_never_go_back(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t")
    produce(east, "t", 100)
    copy = TopicPartition("east.t", 0)
    copier = mirror(
        {
            **SYNC,
            "replication.policy.class": "DefaultReplicationPolicy",
            "refresh.groups.interval.seconds": "1",
        }
    )
    copier.start()
    commit(east, "billing", Position("t", 0, 20))
    eventually("the offset", lambda: offsets(west, "billing") == {copy: 20})
    commit(east, "billing", Position("t", 0, 60))
    eventually("the next offset", lambda: offsets(west, "billing") == {copy: 60})
    commit(east, "billing", Position("t", 0, 10))
    commit(east, "other", Position("t", 0, 5))
    eventually("a later synchronization", lambda: offsets(west, "other") == {copy: 5})
    assert offsets(west, "billing") == {copy: 60}, "as with MirrorMaker 2"
    commit(west, "billing", Position("east.t", 0, 90))
    commit(east, "billing", Position("t", 0, 80))
    commit(east, "other", Position("t", 0, 6))
    eventually("a later synchronization", lambda: offsets(west, "other") == {copy: 6})
    assert offsets(west, "billing") == {copy: 90}, "a consumer at the target went further"
    assert copier.stop() == 0
    assert "billing" not in copier.output


def test_a_group_with_members_at_the_target_is_not_moved_until_they_have_left(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t")
    produce(east, "t", 100)
    commit(east, "billing", Position("t", 0, 10))
    copier = mirror()
    copier.start()
    eventually("the offset", lambda: offsets(west, "billing") == {T0: 10})
    member = consumer(west, "billing")
    member.subscribe(["t"])
    assert read(member, 1) == [10]
    member.commit(offsets=[Position("t", 0, 11)], asynchronous=False)
    commit(east, "billing", Position("t", 0, 50))
    eventually(
        "a report",
        lambda: (
            "group billing: has members at the target (Stable): its offsets there are not changed"
            in copier.output
        ),
    )
    assert offsets(west, "billing") == {T0: 11}
    eventually("status", lambda: "groups 1, 1 with members at the target" in copier.output)
    member.close()
    eventually("the offset after the member left", lambda: offsets(west, "billing") == {T0: 50})
    assert copier.stop() == 0
    assert copier.output.count("has members at the target") == 1
    assert "group billing: every offset is copied as it is now" in copier.output


def test_a_consumer_moves_to_the_target_and_reads_on_with_the_next_record(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    """The leader epochs of the source are higher than the target's: a committed epoch would count as truncation."""
    make_topic(east, "t")
    produce(east, "t", 60)
    for _ in range(3):
        east.kill(1)
        east.start(1)
    produce(east, "t", 60)
    moving = consumer(east, "billing", reset="earliest")
    moving.subscribe(["t"])
    assert read(moving, 80) == list(range(80))
    moving.commit(asynchronous=False)
    moving.close()
    assert (committed(east, "billing")[T0].leader_epoch or 0) >= 3
    assert mirror().run_once() == 0
    east.kill(1)
    moved = consumer(west, "billing")
    moved.subscribe(["t"])
    assert read(moved, 40) == list(range(80, 120))
    moved.close()
    settings = {
        "bootstrap.servers": west.bootstrap,
        "group.id": "billing",
        "auto.offset.reset": "latest",
        "enable.auto.commit": False,
    }
    with OurConsumer("t", config=settings) as reader:
        found: list[int] = []
        while len(found) < 40:
            records = reader.consume(100, 20.0)
            assert records, "it compares the committed leader epoch (KIP-320)"
            found += [record.offset for record in records]
    assert found == list(range(80, 120))


def test_an_offset_outside_of_the_targets_log_is_reported_and_never_raised(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t", 2)
    for partition in (0, 1):
        produce(east, "t", 100, partition)
    copier = mirror()
    assert copier.run_once() == 0
    client = ForeignAdmin({"bootstrap.servers": west.bootstrap, "log_level": 0})
    cut = Position("t", 1, 40)
    client.delete_records([cut])[cut].result(10)
    commit(east, "billing", Position("t", 0, 500), Position("t", 1, 30))
    assert copier.run_once() == 0, copier.output
    assert offsets(west, "billing") == {T0: 100, T1: 30}
    assert (
        "group billing: clamped to the target's log end: t-0 (committed 500 at the source, the target's "
        "log ends at 100); not in the target's log, auto.offset.reset will decide: t-1 (committed 30 at "
        "the source, the target's log starts at 40)" in copier.output
    )


def test_no_offset_is_copied_to_a_topic_that_is_no_copy(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    for cluster, value in ((east, 30), (west, 20)):
        make_topic(cluster, "t")
        produce(cluster, "t", value)
    make_topic(east, "copied")
    produce(east, "copied", 10)
    commit(east, "billing", Position("t", 0, 15), Position("copied", 0, 9))
    copier = mirror()
    assert copier.run_once() == 5, copier.output
    assert offsets(west, "billing") == {TopicPartition("copied", 0): 9}


def test_an_offset_that_was_deleted_at_the_target_is_copied_again(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t")
    produce(east, "t", 10)
    commit(east, "billing", Position("t", 0, 7))
    copier = mirror()
    copier.start()
    until_same(east, west, "t")
    eventually("the offset", lambda: offsets(west, "billing") == {T0: 7})
    with AdminClient({"bootstrap.servers": west.bootstrap}) as client:
        client.delete_groups(["billing"])
    eventually("the offset again", lambda: offsets(west, "billing") == {T0: 7})
    with AdminClient({"bootstrap.servers": east.bootstrap}) as client:
        client.delete_groups(["billing"])
        client.alter_group_offsets("other", {T0: 3})
    copier.stop()
    assert copier.run_once() == 0
    assert offsets(west, "billing") == {T0: 7}, "a group that was deleted at the source stays"
    assert offsets(west, "other") == {T0: 3}


def test_heartbeats_of_both_directions_reach_the_other_cluster_and_do_not_loop(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    copier = mirror({"west->east.enabled": "true", "emit.heartbeats.enabled": "true"})
    copier.start()

    def heartbeats(cluster: Cluster, source: str) -> bool:
        return bool(stored(cluster, "heartbeats")) and bool(stored(cluster, f"{source}.heartbeats"))

    eventually("heartbeats", lambda: heartbeats(west, "east") and heartbeats(east, "west"))
    make_topic(east, "later")
    eventually("a later comparison of topics", lambda: "later" in topics(west))
    assert topics(west) == {"heartbeats", "east.heartbeats", "later"}
    assert topics(east) == {"heartbeats", "west.heartbeats", "later"}
    assert copier.stop() == 0, copier.output
    assert "cannot be written" not in copier.output
    code, output = copier.ask("verify")
    assert (code, "heartbeats: heartbeats, not compared" in output) == (0, True), output


def test_heartbeats_that_cannot_be_written_are_reported_once_and_keep_no_record_back(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(west, "heartbeats", config={"kbroker.mirror.source.cluster.id": "elsewhere"})
    make_topic(east, "t")
    copier = mirror({"emit.heartbeats.enabled": "true"})
    copier.start()
    eventually("heartbeats at the source", lambda: len(stored(east, "heartbeats")) > 3)
    produce(east, "t", 10)
    until_same(east, west, "t")
    assert copier.stop() == 0
    assert copier.output.count("heartbeats at west: cannot be written: POLICY_VIOLATION") == 1


def test_a_promotion_copies_the_offsets_before_it_opens_the_target(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t")
    make_topic(east, "stays")
    for topic in ("t", "stays"):
        produce(east, topic, 100)
    copier = mirror()
    assert copier.run_once() == 0
    produce(east, "t", 20)
    commit(east, "billing", Position("t", 0, 110), Position("stays", 0, 7))
    member = consumer(west, "reports", reset="earliest")
    member.subscribe(["t"])
    assert read(member, 1) == [0]
    commit(east, "reports", Position("t", 0, 30))
    code, output = copier.ask("promote", "--flow", "east->west", "--topics", "t")
    assert code == 0, output
    assert "1 groups were copied to west; 1 were not, with members there: reports" in output
    assert "group reports: has members at the target" in output
    record = record_of(output)
    assert (record["groups"], record["groups_with_members"]) == (1, ["reports"])
    again = record_of(copier.ask("promote", "--flow", "east->west", "--topics", "t")[1])
    assert (again["groups"], again["groups_with_members"]) == (1, ["reports"])
    assert offsets(west, "billing") == {T0: 110}, "only those of the promoted topic"
    assert not offsets(west, "reports")
    member.close()
    produce(west, "t", 5)
    moved = consumer(west, "billing")
    moved.subscribe(["t"])
    assert read(moved, 15) == list(range(110, 125))
    moved.close()
