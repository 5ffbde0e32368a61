"""Two real clusters and a mirror between them: every batch once, in order, at its own offset."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from kclient.blocking import Producer as BlockingProducer
from kclient.wire.errors import PolicyViolation
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.mirrored_clusters import MakeMirror, admin, delete_records, make_topic
from tests.kit.mirrors import Mirror, stored, until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

MARK = "kbroker.mirror.source.cluster.id"


def set_mark(cluster: Cluster, topic: str, value: str) -> None:
    """Set the topic's mark: the cluster id of the source, or "" to promote a mirror."""
    entry = ConfigEntry(MARK, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    client = admin(cluster)
    client.incremental_alter_configs([resource])[resource].result(10)


def delivery_error(cluster: Cluster, topic: str, **settings: Any) -> KafkaError | None:
    """Return why a producer of librdkafka could not deliver one record; None if it was delivered."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, **settings})
    producer.produce(topic, b"ours", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    return errors[0]


def write_to_mirror(cluster: Cluster, topic: str, count: int) -> None:
    """Write to a mirror topic with an ordinary producer: promoted before, marked again after."""
    mark = mark_of(cluster, topic)
    assert mark
    set_mark(cluster, topic, "")
    eventually("a promoted topic", lambda: delivery_error(cluster, topic) is None)
    if count > 1:
        produce(cluster, topic, count - 1)
    set_mark(cluster, topic, mark)


def produce(
    cluster: Cluster,
    topic: str,
    count: int,
    *,
    partitions: int = 1,
    size: int = 100,
    **settings: Any,
) -> None:
    """Produce records that differ from each other, some with headers, null keys and null values."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "linger.ms": 1, "log_level": 0, **settings}
    )
    for n in range(count):
        producer.produce(
            topic,
            key=None if n % 3 == 0 else b"key-%d" % n,
            value=None if n % 7 == 0 else (b"%d " % n) * (size // 4),
            headers=[("h", b"1"), ("h", None), ("trace", b"%d" % n)] if n % 2 else None,
            partition=n % partitions,
        )
        if n % 1000 == 999:
            producer.poll(0)
    assert producer.flush(30) == 0


def test_once_copies_what_is_there_and_ends(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 3, max_message_bytes="2000000", retention_ms="86400000000")
    make_topic(east, "empty")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(east, "orders", 2000, partitions=3, **{"compression.type": codec})
    copier = mirror()
    assert copier.run_once() == 0, copier.output
    for partition in range(3):
        there = stored(east, "orders", partition)
        assert len(there) >= 5
        assert stored(west, "orders", partition) == there
    assert stored(west, "empty") == []
    assert copier.run_once() == 0, "a second run finds nothing to do"
    assert stored(west, "orders", 0) == stored(east, "orders", 0)


def test_topics_are_made_as_they_are_at_the_source(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(
        east,
        "orders",
        4,
        cleanup_policy="compact,delete",
        max_message_bytes="3000000",
        message_timestamp_type="LogAppendTime",
    )
    produce(east, "orders", 100, partitions=4, size=4, **{"message.max.bytes": 2_500_000})
    copier = mirror()
    assert copier.run_once() == 0, copier.output
    client = admin(west)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    entries = client.describe_configs([resource])[resource].result(10)
    assert entries["cleanup.policy"].value == "compact,delete"
    assert entries["max.message.bytes"].value == "3000000"
    assert entries["message.timestamp.type"].value == "CreateTime"
    assert len(client.list_topics(timeout=10).topics["orders"].partitions) == 4
    assert [stored(west, "orders", p) for p in range(4)] == [
        stored(east, "orders", p) for p in range(4)
    ]


def test_new_topics_and_partitions_are_noticed(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "first")
    copier = mirror({"east->west.topics": "first|second.*"})
    copier.start()
    produce(east, "first", 500)
    until_same(east, west, "first")
    make_topic(east, "second-one", 2)
    make_topic(east, "third")
    produce(east, "second-one", 500, partitions=2)
    produce(east, "third", 10)
    until_same(east, west, "second-one", 2)
    client = admin(east)
    client.create_partitions([NewPartitions("second-one", 3)])["second-one"].result(10)
    eventually("the third partition", lambda: (east[1].data / "second-one-2").exists())
    produce(east, "second-one", 500, partitions=3)
    until_same(east, west, "second-one", 3)
    assert copier.stop() == 0, copier.output
    assert stored(west, "third") == []


def test_a_mirror_killed_again_and_again_copies_everything_once(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2)
    produce(east, "orders", 60_000, partitions=2, size=400, **{"batch.size": 20_000})
    expected = [stored(east, "orders", p) for p in range(2)]
    small = {"fetch.max.bytes": "20000", "max.partition.fetch.bytes": "20000"}
    copier = mirror(small)
    ends = [0, 0]
    kills = 0
    for _ in range(8):
        copier.start()
        before = sum(ends)

        def moved() -> bool:
            ends[:] = [len(stored(west, "orders", p)) for p in range(2)]
            return sum(ends) > before  # noqa: B023

        eventually("batches at the target", moved)
        copier.kill()
        if ends == [len(batches) for batches in expected]:
            break
        kills += 1
    assert copier.run_once() == 0
    assert kills > 1, "the data was copied too fast for this test"
    assert [stored(west, "orders", p) for p in range(2)] == expected
    assert copier.run_once() == 0


def test_a_target_broker_killed_in_the_middle_loses_and_doubles_nothing(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2)
    produce(east, "orders", 40_000, partitions=2, size=400, **{"batch.size": 20_000})
    copier = mirror({"max.partition.fetch.bytes": "100000", "fetch.max.bytes": "200000"})
    copier.start()
    for _ in range(3):
        had = len(stored(west, "orders"))
        eventually("batches", lambda: len(stored(west, "orders")) > had)  # noqa: B023
        west.restart(1)
    until_same(east, west, "orders", 2)
    assert copier.stop() == 0, copier.output


def test_a_source_broker_killed_in_the_middle_is_waited_for(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 30_000, size=400, **{"batch.size": 20_000})
    copier = mirror({"max.partition.fetch.bytes": "100000", "fetch.max.bytes": "100000"})
    copier.start()
    eventually("batches", lambda: stored(west, "orders"))
    east.kill(1)
    eventually("the mirror to name the broker", lambda: "broker 1" in copier.output)
    east.start(1)
    produce(east, "orders", 1000)
    until_same(east, west, "orders")
    assert copier.stop(signal.SIGINT) == 130, copier.output


def test_a_record_of_another_producer_at_the_target_stops_the_partition(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2)
    produce(east, "orders", 10, partitions=2, **{"batch.num.messages": 1})
    copier = mirror()
    copier.start()
    until_same(east, west, "orders", 2)
    write_to_mirror(west, "orders", 1)
    produce(east, "orders", 10, partitions=2, **{"batch.num.messages": 1})
    eventually("the link to stop", lambda: "STOPPED orders-0" in copier.output)
    eventually(
        "the other partition", lambda: stored(east, "orders", 1) == stored(west, "orders", 1)
    )
    assert copier.stop() == 5, copier.output
    assert "source and target hold different records at the same offset" in copier.output
    assert len(stored(west, "orders")) == 6, "nothing was written over it or behind it"


def test_a_mirror_is_read_only_until_it_is_promoted(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 10)
    assert mirror().run_once() == 0
    copied = stored(west, "orders")
    for settings in ({}, {"enable.idempotence": True}, {"acks": "1"}):
        error = delivery_error(west, "orders", **{"message.timeout.ms": 15_000, **settings})
        assert error is not None
        assert (error.name(), error.retriable(), error.fatal()) == (
            "POLICY_VIOLATION",
            False,
            False,
        )
    with (
        BlockingProducer(bootstrap_servers=west.bootstrap) as producer,
        pytest.raises(PolicyViolation, match="orders-0 is a mirror of cluster"),
    ):
        producer.send("orders", b"ours", partition=0).result(10)
    assert stored(west, "orders") == copied
    for _ in range(3):
        west.restart(1)
        error = delivery_error(west, "orders")
        assert error is not None
        assert error.name() == "POLICY_VIOLATION", "also while the broker has just started"
    assert stored(west, "orders") == copied
    produce(east, "orders", 10)
    assert mirror().run_once() == 0, "the mirror itself still appends"
    assert stored(west, "orders") == stored(east, "orders")
    set_mark(west, "orders", "")
    eventually("a promoted topic", lambda: delivery_error(west, "orders") is None)
    assert stored(west, "orders")[:-1] == stored(east, "orders")


def mark_of(cluster: Cluster, topic: str) -> str | None:
    """Return the topic's mark, None if it is not set for the topic."""
    return setting_of(cluster, topic, MARK)


def setting_of(cluster: Cluster, topic: str, name: str) -> str | None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = admin(cluster)
    (found,) = client.describe_configs([resource]).values()
    entry = found.result(10).get(name)
    return None if entry is None or entry.is_default else entry.value


def test_a_topic_that_the_mirror_makes_has_the_mark_of_its_source(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    assert mirror().run_once() == 0
    assert mark_of(west, "orders") == admin(east).list_topics(timeout=5).cluster_id
    assert mark_of(east, "orders") is None


def test_a_topic_with_a_mark_that_an_operator_emptied_is_left_alone(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    make_topic(west, "orders", **{MARK: ""})
    produce(east, "orders", 1)
    copier = mirror()
    copier.run_once()
    assert "kbroker.mirror.source.cluster.id=: it is not a mirror of" in copier.output
    assert (mark_of(west, "orders"), stored(west, "orders")) == ("", [])


def test_a_topic_that_an_operator_made_is_marked_before_the_first_append(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    for cluster in (east, west):
        make_topic(cluster, "orders", 2)
    produce(east, "orders", 10, partitions=2)
    copier = mirror()
    assert copier.run_once() == 0, copier.output
    assert [stored(west, "orders", n) for n in (0, 1)] == [
        stored(east, "orders", n) for n in (0, 1)
    ]
    assert mark_of(west, "orders") == admin(east).list_topics(timeout=5).cluster_id


def test_an_ordinary_topic_with_the_name_of_a_mirror_is_neither_marked_nor_written_to(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    for cluster in (east, west):
        make_topic(cluster, "orders", 2)
    produce(east, "orders", 10, partitions=2, **{"batch.num.messages": 1})
    produce(west, "orders", 1)  # one record in partition 0, none in partition 1
    copier = mirror()
    assert copier.run_once() == 1, copier.output
    assert "source and target hold different records at the same offset" in copier.output
    assert "the target's topic is not marked as a mirror" in copier.output
    assert mark_of(west, "orders") is None
    assert stored(west, "orders", 1) == []
    assert [batch.next_offset for batch in stored(west, "orders", 0)] == [1]


def test_records_deleted_at_the_source_before_they_were_copied_are_reported(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 100, **{"batch.num.messages": 1})
    assert mirror().run_once() == 0
    produce(east, "orders", 100, **{"batch.num.messages": 1})
    delete_records(east, "orders", 150)
    copier = mirror()
    assert copier.run_once() == 1, copier.output
    assert "offsets 100-149 are deleted" in copier.output
    skipping = mirror({"gap.policy": "skip"})
    assert skipping.run_once() == 0, skipping.output
    assert "gap orders-0 offsets 100-149 are skipped" in skipping.output
    assert [batch.base_offset for batch in stored(west, "orders")] == [
        *range(100),
        *range(150, 200),
    ]


def test_a_fresh_copy_begins_where_the_source_does(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 100, **{"batch.num.messages": 1})
    delete_records(east, "orders", 60)
    assert mirror().run_once() == 0
    assert [batch.base_offset for batch in stored(west, "orders")] == list(range(60, 100))


def recreate(cluster: Cluster, topic: str, count: int) -> None:
    """Delete a topic and make one of the same name, with *count* other records."""
    client = admin(cluster)  # it has to outlive its answer
    client.delete_topics([topic])[topic].result(10)
    eventually("the deletion", lambda: not (cluster[1].data / f"{topic}-0").exists())
    make_topic(cluster, topic)
    produce(cluster, topic, count, **{"batch.num.messages": 1})


def test_a_topic_recreated_at_the_source_is_not_mixed_with_its_copy(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 100, **{"batch.num.messages": 1})
    copier = mirror()
    copier.start()
    until_same(east, west, "orders")
    before = stored(west, "orders")
    recreate(east, "orders", 200)
    eventually(
        "the link to stop",
        lambda: "STOPPED orders-0" in copier.output or "is gone" in copier.output,
    )
    copier.stop()
    again = mirror()
    assert again.run_once() == 1, again.output
    assert "created again at the source" in again.output
    assert stored(west, "orders") == before


def recreate_behind_the_copy(east: Cluster, west: Cluster, mirror: MakeMirror) -> None:
    """Copy 100 records, then create the topic again so that its log starts at offset 100."""
    make_topic(east, "orders")
    produce(east, "orders", 100, **{"batch.num.messages": 1})
    assert mirror().run_once() == 0
    recreate(east, "orders", 150)
    delete_records(east, "orders", 100)


def test_a_recreated_topic_that_starts_where_the_copy_ends_is_not_spliced(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    recreate_behind_the_copy(east, west, mirror)
    before = stored(west, "orders")
    for _ in range(2):  # a stop is no acceptance
        copier = mirror()
        assert copier.run_once() == 1, copier.output
        assert "the topic was deleted and created again at the source" in copier.output
        assert stored(west, "orders") == before


def test_a_recreated_topic_is_continued_behind_a_gap_with_the_policy_skip(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    recreate_behind_the_copy(east, west, mirror)
    first, before = source_topic_id_of(west, "orders"), stored(west, "orders")
    copier = mirror({"gap.policy": "skip"})
    assert copier.run_once() == 0, copier.output
    assert stored(west, "orders") == before + stored(east, "orders")[100:]
    second = source_topic_id_of(west, "orders")
    assert None not in (first, second)
    assert first != second
    assert f"GAP orders-0: topic id {first} became {second} at offset 100" in copier.output
    assert mirror().run_once() == 0, "the new topic is the source now"


def test_a_running_mirror_does_not_splice_a_recreated_topic(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 100, **{"batch.num.messages": 1})
    copier = mirror()
    copier.start()
    until_same(east, west, "orders")
    before = stored(west, "orders")
    recreate(east, "orders", 150)
    delete_records(east, "orders", 100)
    eventually("the link to stop", lambda: "STOPPED orders-0" in copier.output)
    assert copier.stop() == 1
    assert stored(west, "orders") == before


def test_a_topic_of_others_that_ends_where_the_source_starts_does_not_become_a_mirror(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    for cluster in (east, west):
        make_topic(cluster, "orders")
        produce(cluster, "orders", 100, **{"batch.num.messages": 1})
    delete_records(east, "orders", 100)
    produce(east, "orders", 10)
    before = stored(west, "orders")
    copier = mirror()
    assert copier.run_once() == 1, copier.output
    assert "nothing proves that the target is a copy" in copier.output
    assert (mark_of(west, "orders"), stored(west, "orders")) == (None, before)


def source_topic_id_of(cluster: Cluster, topic: str) -> str | None:
    return setting_of(cluster, topic, "kbroker.mirror.source.topic.id")


def test_the_records_of_a_recreated_topic_never_follow_the_old_ones(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    """Epochs begin again at zero, so only the topic id distinguishes the new log from the old one (KIP-516)."""
    make_topic(east, "orders")
    produce(east, "orders", 100, **{"batch.num.messages": 1})
    unaware = mirror({"refresh.topics.interval.seconds": "3600"})
    unaware.start()
    until_same(east, west, "orders")
    before = stored(west, "orders")
    recreate(east, "orders", 200)
    rejection = "UNKNOWN_TOPIC_ID"
    eventually(
        "the rejection", lambda: rejection in unaware.output or stored(west, "orders") != before
    )
    assert stored(west, "orders") == before
    unaware.stop()


def test_two_mirrors_at_once_copy_everything_once(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    """As when a mirror that was thought dead comes back: both are refused in turn, none doubles."""
    make_topic(east, "orders", 2)
    produce(east, "orders", 20_000, partitions=2, size=400, **{"batch.size": 20_000})
    small = {"max.partition.fetch.bytes": "60000", "fetch.max.bytes": "120000"}
    first, second = mirror(small), mirror(small)
    first.start("--once")
    second.start("--once")
    assert (first.wait(), second.wait()) == (0, 0), first.output + second.output
    assert [stored(west, "orders", p) for p in range(2)] == [
        stored(east, "orders", p) for p in range(2)
    ]


def test_plan_and_status_print_what_is_to_be_done(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2, retention_ms="77000000")
    produce(east, "orders", 10)
    copier = mirror()
    code, output = copier.ask("plan")
    assert code == 0
    assert "create orders with 2 partitions" in output
    assert "retention.ms=77000000" in output
    assert rows(copier.ask("status")) == (
        4,
        ["orders-0 ? ? ? not at the target", "orders-1 ? ? ? not at the target"],
    )
    assert copier.run_once() == 0
    assert rows(copier.ask("status")) == (0, ["orders-0 10 10 0 in sync", "orders-1 0 0 0 in sync"])
    produce(east, "orders", 5)
    behind = (4, ["orders-0 15 10 5 no progress", "orders-1 0 0 0 in sync"])
    assert rows(copier.ask("status", "--settle", "0.5")) == behind
    code, output = copier.ask("status", "--settle", "0.1", "--max-lag", "4")
    assert (code, "lag over the limit: at most 4 allowed" in output) == (4, True)
    west.kill(1)
    assert copier.ask("status")[0] == 3


def rows(answer: tuple[int, str]) -> tuple[int, list[str]]:
    """Return the exit code of `kmirror status`, and its lines of partitions without their padding."""
    code, output = answer
    return code, [" ".join(line.split()) for line in output.splitlines() if "orders-" in line]


def test_status_names_partitions_that_are_no_copy_and_ends_with_5(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2)
    produce(east, "orders", 20, partitions=2, **{"batch.num.messages": 1})
    copier = mirror()
    assert copier.run_once() == 0
    write_to_mirror(west, "orders", 1)
    code, found = rows(copier.ask("status", "--settle", "0.2"))
    ahead = "orders-0 10 11 0 STOPPED: the target has offsets that the source does not have"
    assert (code, found[0].partition(":")[0], found[1]) == (
        5,
        ahead.partition(":")[0],
        "orders-1 10 10 0 in sync",
    )
    produce(east, "orders", 20, partitions=2, **{"batch.num.messages": 1})
    code, found = rows(copier.ask("status", "--settle", "0.2"))
    assert code == 5
    assert "STOPPED: source and target hold different records at the same offset" in found[0]
    assert found[1] == "orders-1 20 10 10 no progress"
    copier.start()
    eventually("the link to stop", lambda: "STOPPED orders-0" in copier.output)
    produce(east, "orders", 200, partitions=2)
    eventually("the lag of the stopped link", lambda: "lag 109 rec" in copier.output)
    assert rows(copier.ask("status", "--settle", "0.2"))[0] == 5
    assert copier.stop() == 5


def test_status_names_what_the_source_deleted_before_it_was_copied(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    produce(east, "orders", 10, **{"batch.num.messages": 1})
    assert mirror().run_once() == 0
    produce(east, "orders", 10, **{"batch.num.messages": 1})
    delete_records(east, "orders", 15)
    code, found = rows(mirror().ask("status", "--settle", "0.2"))
    assert code == 5
    assert "offsets 10-14 are deleted, the source starts at" in found[0]
    skipping = mirror({"gap.policy": "skip"})
    assert rows(skipping.ask("status", "--settle", "0.2"))[0] == 4
    assert skipping.run_once() == 0
    assert rows(skipping.ask("status")) == (0, ["orders-0 20 20 0 in sync"])


def alter(cluster: Cluster, topic: str, name: str, value: str | None) -> None:
    """Set a setting of a topic; None deletes it."""
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value or "", incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    client = admin(cluster)
    client.incremental_alter_configs([resource])[resource].result(10)


def produce_large(cluster: Cluster, topic: str, size: int) -> None:
    """Produce one record of *size* bytes, as soon as the topic accepts it."""
    settings = {"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 2 * size}

    def delivered() -> bool:
        errors: list[KafkaError | None] = []
        producer = Producer({**settings, "log_level": 0})
        producer.produce(
            topic, bytes(size), partition=0, on_delivery=lambda error, _: errors.append(error)
        )
        producer.flush(20)
        return errors == [None]

    eventually("a topic that takes large batches", delivered)


def test_a_larger_limit_at_the_source_reaches_the_target_when_a_batch_needs_it(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    copier = mirror()
    copier.start()
    produce(east, "orders", 10)
    until_same(east, west, "orders")
    alter(east, "orders", "max.message.bytes", "4000000")
    produce_large(east, "orders", 2_000_000)
    produce(east, "orders", 10)
    until_same(east, west, "orders")
    assert setting_of(west, "orders", "max.message.bytes") == "4000000"
    assert "STOPPED" not in copier.output
    assert copier.stop() == 0, copier.output


@pytest.mark.parametrize("sync", ["true", "false"])
def test_a_batch_above_the_present_limit_of_the_source_is_copied(
    east: Cluster, west: Cluster, mirror: MakeMirror, sync: str
) -> None:
    """The limit was lowered after the batch was written."""
    make_topic(east, "orders", max_message_bytes="4000000")
    produce_large(east, "orders", 2_000_000)
    alter(east, "orders", "max.message.bytes", "1000")
    copier = mirror({"sync.topic.configs.enabled": sync})
    assert copier.run_once() == 0, copier.output
    assert stored(west, "orders") == stored(east, "orders") != []
    assert "the source has a batch of 20000" in copier.output


def test_a_stopped_link_continues_when_its_cause_was_mended(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    copier = mirror()
    copier.start()
    produce(east, "orders", 10)
    until_same(east, west, "orders")
    mark = mark_of(west, "orders")
    assert mark
    set_mark(west, "orders", "")
    produce(east, "orders", 10)
    eventually("the link to stop", lambda: "STOPPED orders-0" in copier.output)
    assert "retried until it is mended" in copier.output
    set_mark(west, "orders", mark)
    until_same(east, west, "orders")
    eventually("the report", lambda: "orders-0: continues; it was stopped" in copier.output)
    assert copier.stop() == 0, copier.output


def test_a_diverged_topic_is_copied_again_after_an_operator_deleted_it(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 2)
    produce(east, "orders", 10, partitions=2, **{"batch.num.messages": 1})
    copier = mirror()
    copier.start()
    until_same(east, west, "orders", 2)
    write_to_mirror(west, "orders", 1)
    produce(east, "orders", 10, partitions=2, **{"batch.num.messages": 1})
    eventually("the link to stop", lambda: "STOPPED orders-0" in copier.output)
    client = admin(west)
    client.delete_topics(["orders"])["orders"].result(10)
    until_same(east, west, "orders", 2)
    assert copier.stop() == 0, copier.output


def test_a_dead_cluster_is_named(east: Cluster, west: Cluster, mirror: MakeMirror) -> None:
    west.kill(1)
    copier = mirror()
    copier.start()
    named = re.compile(rf"cluster west: .*{re.escape(west[1].address)}.*refused", re.DOTALL)
    eventually("the address and why it does not answer", lambda: named.search(copier.output))
    west.start(1)
    make_topic(east, "orders")
    produce(east, "orders", 10)
    until_same(east, west, "orders")
    assert copier.stop() == 0


def test_a_source_that_is_its_own_target_is_refused(east: Cluster, mirror: MakeMirror) -> None:
    copier = mirror({"west.bootstrap.servers": east.bootstrap})
    assert copier.run_once() == 1
    assert "are the same cluster" in copier.output
    for command in ("plan", "status"):
        code, output = copier.ask(command)
        assert code == 1
        assert "are the same cluster" in output


def test_a_plan_shows_what_the_target_would_refuse_and_what_stays_different(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders")
    make_topic(east, "other")
    assert mirror({"east->west.topics": "orders"}).run_once() == 0
    copier = mirror({"replication.factor": "3"})
    code, output = copier.ask("plan")
    assert code == 5, output
    assert (
        "leave other: cannot be created or changed at the target: INVALID_REPLICATION_FACTOR"
        in output
    )
    assert "drift orders: replication factor 1 at the target, replication.factor=3" in output
    assert "mirror 1 topics: orders" in output
    assert "drift orders: replication factor 1 at the target" in copier.ask("status")[1]
    assert copier.run_once() == 5, copier.output
    assert mirror().ask("plan")[0] == 0
    assert "other" not in admin(west).list_topics(timeout=5).topics, "a plan changes nothing"


@pytest.fixture
def three(broker_clusters: MakeCluster, tmp_path: Path) -> Callable[..., Three]:
    def make(*flows: str, policy: str) -> Three:
        clusters = {name: broker_clusters(1) for name in ("east", "west", "north")}
        settings = {"clusters": "east, west, north", "east->west.enabled": "false"}
        settings["north.bootstrap.servers"] = clusters["north"].bootstrap
        settings["replication.policy.class"] = policy
        settings |= {f"{flow}.enabled": "true" for flow in flows}
        return Three(
            clusters, Mirror(tmp_path / "ring", clusters["east"], clusters["west"], settings)
        )

    return make


class Three(NamedTuple):
    """Three clusters, and the mirrors between them."""

    clusters: dict[str, Cluster]
    mirror: Mirror

    def topics(self) -> dict[str, set[str]]:
        """Return the names of the topics of each cluster."""
        return {
            name: {t for t in admin(cluster).list_topics(timeout=5).topics if t[0] != "_"}
            for name, cluster in self.clusters.items()
        }

    def mirror_until_at_rest(self, at_most: int = 6) -> dict[str, set[str]]:
        """Copy again and again until a run creates no topic; return the topics."""
        found = self.topics()
        for _ in range(at_most):
            assert self.mirror.run_once() == 0, self.mirror.output
            before, found = found, self.topics()
            if before == found:
                return found
        raise AssertionError(f"the mirrors do not come to rest: {found}")


RING = ("east->west", "west->north", "north->east")
MESH = (*RING, "west->east", "north->west", "east->north")


def test_a_ring_of_three_clusters_comes_to_rest(three: Callable[..., Three]) -> None:
    ring = three(*RING, policy="DefaultReplicationPolicy")
    for cluster in ring.clusters.values():
        make_topic(cluster, "orders")
        produce(cluster, "orders", 10)
    assert ring.mirror_until_at_rest() == {
        "east": {"orders", "north.orders", "north.west.orders"},
        "west": {"orders", "east.orders", "east.north.orders"},
        "north": {"orders", "west.orders", "west.east.orders"},
    }
    copy = stored(ring.clusters["north"], "west.east.orders")
    assert copy == stored(ring.clusters["east"], "orders") != []
    assert "topic west.east.orders: is not copied: its records come from east" in ring.mirror.output


def test_a_full_mesh_comes_to_rest(three: Callable[..., Three]) -> None:
    mesh = three(*MESH, policy="DefaultReplicationPolicy")
    for cluster in mesh.clusters.values():
        make_topic(cluster, "orders")
        produce(cluster, "orders", 10)
    found = mesh.mirror_until_at_rest()
    assert found["east"] == {
        "orders",
        "west.orders",
        "north.orders",
        "north.west.orders",
        "west.north.orders",
    }


@pytest.mark.parametrize("flows", [RING, MESH, ("east->west", "west->east")])
def test_a_topic_of_one_name_everywhere_is_never_copied_back_to_its_origin(
    three: Callable[..., Three], flows: tuple[str, ...]
) -> None:
    """Else its origin would become a mirror, and read-only."""
    clusters = three(*flows, policy="IdentityReplicationPolicy")
    east = clusters.clusters["east"]
    make_topic(east, "orders")
    produce(east, "orders", 10)
    clusters.mirror_until_at_rest()
    produce(east, "orders", 10)
    for _ in range(3):
        assert clusters.mirror.run_once() == 0, clusters.mirror.output
    assert mark_of(east, "orders") is None
    assert delivery_error(east, "orders") is None
    assert stored(clusters.clusters["west"], "orders") == stored(east, "orders")[:-1]


def test_two_topics_that_are_mirrors_of_each_other_are_a_conflict(
    three: Callable[..., Three],
) -> None:
    both = three("east->west", "west->east", policy="IdentityReplicationPolicy")
    east, west = both.clusters["east"], both.clusters["west"]
    ids = {name: admin(c).list_topics(timeout=5).cluster_id for name, c in both.clusters.items()}
    make_topic(east, "orders", **{MARK: ids["west"]})
    make_topic(west, "orders", **{MARK: ids["east"]})
    assert both.mirror.run_once() == 1
    assert "orders is marked as a mirror at both clusters" in both.mirror.output


def test_partitions_of_several_brokers_are_copied(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    east, west = broker_clusters(3), broker_clusters(2)
    make_topic(east, "orders", 6)
    produce(east, "orders", 6000, partitions=6, **{"compression.type": "lz4"})
    copier = Mirror(tmp_path / "mirror", east, west, None)
    copier.start()
    until_same(east, west, "orders", 6)
    produce(east, "orders", 600, partitions=6)
    east.restart(2)
    west.restart(1)
    produce(east, "orders", 600, partitions=6)
    until_same(east, west, "orders", 6)
    assert copier.stop() == 0, copier.output
    assert "Traceback" not in copier.output


def test_an_alarm_begins_once_when_the_target_stands_still_and_ends_once(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t")
    produce(east, "t", 10)
    copier = mirror({"alarm.no.progress.seconds": "2", "alarm.lag.records": "5"})
    copier.start()
    until_same(east, west, "t")
    west.pause(1)
    try:
        produce(east, "t", 10)
        eventually("an alarm", lambda: "ALARM no progress for 2 s: t-0 (" in copier.output)
        eventually(
            "an alarm of lag", lambda: "ALARM lag over 5 records: t-0 (lag 1" in copier.output
        )
    finally:
        west.resume(1)
    until_same(east, west, "t")
    eventually(
        "its end", lambda: "alarm of no progress ended: t-0 (progress again)" in copier.output
    )
    eventually("its end", lambda: "alarm of lag ended: t-0 (lag " in copier.output)
    assert copier.stop() == 0
    assert copier.output.count("ALARM no progress for") == 1


def test_status_takes_the_limit_of_lag_from_the_configuration(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "t")
    copier = mirror({"alarm.lag.records": "5"})
    assert copier.run_once() == 0
    produce(east, "t", 10)
    code, output = copier.ask("status", "--settle", "0.2")
    assert (code, "lag over the limit: at most 5 allowed" in output) == (4, True), output
    code, output = copier.ask("status", "--settle", "0.2", "--max-lag", "50")
    assert (code, "no progress" in output) == (4, True), output
