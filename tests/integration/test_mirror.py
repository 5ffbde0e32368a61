"""Two real clusters and a mirror between them: every batch once, in order, at its own offset."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    ConfigResource,
    NewPartitions,
)

from kclient.blocking import Producer as BlockingProducer
from kclient.wire.errors import PolicyViolation
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.mirrored_clusters import (
    MARK,
    MakeMirror,
    admin,
    alter,
    delete_records,
    delivery_error,
    make_topic,
    mark_of,
    produce,
    set_mark,
    setting_of,
    write_to_mirror,
)
from tests.kit.mirrors import Mirror, stored, until_same
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

WITHOUT_GZIP_LEVEL = """
from kbroker.__main__ import main
from kbroker.config import TOPIC_SETTINGS
del TOPIC_SETTINGS["compression.gzip.level"]
main()
"""
"""What runs a broker that does not know the name of this setting of topics."""


def test_once_copies_what_is_there_and_ends(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(east, "orders", 3, max_message_bytes="2000000", retention_ms="86400000000")
    make_topic(east, "empty")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(east, "orders", 2000, partitions=3, **{"compression.type": codec})
    copier = mirror()
    copier.forked = False
    assert copier.run_once() == 0, copier.output
    copier.forked = True
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


def test_a_setting_with_a_name_that_the_target_does_not_know_is_drift_and_blocks_no_data(
    east: Cluster, broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    """The target is a real broker without the setting, as one of an earlier release."""
    west = broker_clusters(1, start=False, forked=False)
    west[1].program = ("-c", WITHOUT_GZIP_LEVEL)
    west.start()
    make_topic(east, "created", **{"compression.gzip.level": "7", "retention.ms": "77000000"})
    make_topic(east, "there")
    for topic in ("created", "there"):
        produce(east, topic, 10)
    copier = Mirror(tmp_path / "mirror", east, west, None)
    try:
        code, output = copier.ask("plan")
        assert code == 0, output
        assert "drift created: compression.gzip.level is refused by the target" in output
        assert copier.run_once() == 0, copier.output
        assert "topic created: DRIFT compression.gzip.level=7 is not set" in copier.output
        alter(east, "there", "compression.gzip.level", "7")
        alter(east, "there", "retention.ms", "77000000")
        produce(east, "there", 10)
        assert copier.run_once() == 0, copier.output
    finally:
        copier.kill()
    assert "topic there: DRIFT compression.gzip.level=7 is not set" in copier.output
    assert "unknown topic setting" in copier.output
    for topic in ("created", "there"):
        assert stored(west, topic) == stored(east, topic)
        assert setting_of(west, topic, "retention.ms") == "77000000", "the others are set"


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


def produce_large(cluster: Cluster, topic: str, size: int) -> None:
    """Produce one record of *size* bytes, as soon as the topic accepts it."""
    settings = {"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 2 * size}

    def delivered() -> bool:
        is_delivered: list[bool] = []
        producer = Producer({**settings, "log_level": 0})
        producer.produce(
            topic,
            bytes(size),
            partition=0,
            # Not `==`: to compare a KafkaError of librdkafka with None leaves a TypeError that the next call raises.
            on_delivery=lambda error, _: is_delivered.append(error is None),
        )
        producer.flush(20)
        return is_delivered == [True]

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

    def has_stopped() -> bool:
        # The leader may have taken the records before: it knows of the change a little later.
        produce(east, "orders", 10)
        return "STOPPED orders-0" in copier.output

    eventually("the link to stop", has_stopped)
    assert "retried until its cause is removed" in copier.output
    set_mark(west, "orders", mark)
    until_same(east, west, "orders")
    eventually("the report", lambda: "orders-0: continues; it was stopped" in copier.output)
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
