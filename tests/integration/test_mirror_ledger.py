"""The gap ledger on two real clusters: an entry is durable before its gap is passed, whatever is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    NewTopic,
)

from kclient.blocking import Producer as BlockingProducer
from kclient.mirror_ledger import GapEntry, encode, view
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.kaudit import kaudit
from tests.kit.mirrored_clusters import (
    TOPIC_ID,
    MakeMirror,
    admin,
    alter,
    delete_records,
    make_topic,
    making_mirrors,
    recreate_topic,
    setting_of,
)
from tests.kit.mirrors import stored
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LEDGER = "east.gaps.internal"
SKIP = {"gap.policy": "skip"}


@pytest.fixture
def mirror(tmp_path: Path, east: Cluster, request: pytest.FixtureRequest) -> Iterator[MakeMirror]:
    target = request.getfixturevalue("pair" if "pair" in request.fixturenames else "west")
    with making_mirrors(tmp_path, east, target) as make:
        yield make


def produce(cluster: Cluster, topic: str, count: int, partitions: int = 1) -> None:
    """Produce *count* batches of one record to each partition."""
    with BlockingProducer(bootstrap_servers=cluster.bootstrap, linger_ms=0) as producer:
        for n in range(count):
            sent = [producer.send(topic, b"%d" % n, partition=p) for p in range(partitions)]
            for each in sent:
                each.result(10)


def records(cluster: Cluster) -> list[tuple[bytes | None, bytes | None]]:
    """Every record of the ledger, read by librdkafka; none if it does not exist."""
    if LEDGER not in admin(cluster).list_topics(timeout=10).topics:
        return []
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "ledger", "log_level": 0}
    )
    end = consumer.get_watermark_offsets(TopicPartition(LEDGER, 0), timeout=10)[1]
    consumer.assign([TopicPartition(LEDGER, 0, 0)])
    found: list[tuple[bytes | None, bytes | None]] = []
    until = time.monotonic() + 30
    while len(found) < end and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append((message.key(), message.value()))
    consumer.close()
    assert len(found) == end
    return found


def entries(cluster: Cluster) -> list[GapEntry]:
    found = view(records(cluster))
    assert found.unreadable == 0
    return found.sorted()


def ranges(cluster: Cluster) -> list[tuple[str, int, int, int, str]]:
    return [(e.topic, e.partition, e.first, e.until, e.cause) for e in entries(cluster)]


def offsets(cluster: Cluster, topic: str, partition: int = 0) -> list[int]:
    return sorted({batch.base_offset for batch in stored(cluster, topic, partition)})


@pytest.fixture
def pair(broker_clusters: MakeCluster) -> Cluster:
    """A target of two brokers: the ledger is at the first one, mirrors are at both."""
    west = broker_clusters(2)
    client = admin(west)
    both = {"min.insync.replicas": "2"}
    topics = [
        NewTopic("orders", 2, replica_assignment=[[1, 2], [1, 2]], config=both),
        NewTopic(LEDGER, 1, replica_assignment=[[1]]),
    ]
    for created in client.create_topics(topics).values():
        created.result(20)
    return west


def refuse_appends(west: Cluster) -> None:
    """Leave too few replicas for appends to the mirrors of `pair`; the ledger and settings can be written."""
    west.kill(2)

    def alone() -> bool:
        found = admin(west).list_topics(timeout=5)
        isrs = [p.isrs for p in found.topics["orders"].partitions.values()]
        return isrs == [[1], [1]] and found.controller_id == 1

    eventually("broker 1 to be alone", alone)


def accept_appends(west: Cluster) -> None:
    west.start(2)

    def in_sync() -> bool:
        found = admin(west).list_topics(timeout=5).topics["orders"].partitions.values()
        return all(len(p.isrs) == 2 for p in found)

    eventually("both replicas", in_sync)


def a_gap_of_retention(east: Cluster, mirror: MakeMirror, partitions: int = 1) -> None:
    """Copy 10 records, then lose the next 5 at the source."""
    make_topic(east, "orders", partitions)
    produce(east, "orders", 10)
    assert mirror().run_once() == 0
    produce(east, "orders", 10)
    delete_records(east, "orders", 15)


def test_a_skipped_gap_is_in_the_ledger_and_kmirror_gaps_prints_it(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    a_gap_of_retention(east, mirror)
    assert LEDGER not in admin(west).list_topics(timeout=5).topics, "no gap, no ledger"
    code, output = mirror().ask("gaps")
    assert (code, "the ledger east.gaps.internal at west is empty" in output) == (0, True), output
    before = time.time() * 1000
    assert mirror(SKIP).run_once() == 0
    (entry,) = entries(west)
    ids = [admin(c).list_topics(timeout=5).cluster_id for c in (east, west)]
    assert (entry.source_cluster_id, entry.topic, entry.partition) == (ids[0], "orders", 0)
    assert (entry.first, entry.until, entry.cause) == (10, 15, "retention")
    assert entry.records_lost is None
    assert before - 60_000 < entry.first_seen_ms < time.time() * 1000 + 60_000
    of_source = setting_of(west, "orders", TOPIC_ID)
    assert entry.source_topic_id_before == entry.source_topic_id_after == of_source
    assert len(entry.target_topic_id) == 22
    assert setting_of(west, LEDGER, "cleanup.policy") == "compact"
    code, output = mirror().ask("gaps")
    (line,) = [" ".join(each.split()) for each in output.splitlines() if " orders " in each]
    assert (code, line.startswith("orders 0 10 15 <= 5 retention 20")) == (0, True), output
    code, output = mirror().ask("gaps", "--format", "json")
    assert (code, json.loads(output)) == (0, entry.as_json())
    assert offsets(west, "orders") == [*range(10), *range(15, 20)]
    assert mirror(SKIP).run_once() == 0
    assert len(records(west)) == 1, "a run without a new gap writes nothing"


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_gap_ends_where_the_first_batch_begins_that_is_copied(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path, *, is_whole: bool
) -> None:
    """The source's log starts inside a batch, which it sends whole. Before, its first records were in the gap, too.

    *is_whole*: the batch begins where the target ends. Then nothing is missing, and gap.policy=fail copies it.
    """
    make_topic(east, "orders")
    produce(east, "orders", 10)
    assert mirror().run_once() == 0
    base = 10 if is_whole else 20
    produce(east, "orders", base - 10)
    with BlockingProducer(bootstrap_servers=east.bootstrap, linger_ms=1000) as producer:
        sent = [producer.send("orders", b"%d" % n, partition=0) for n in range(10)]
        producer.flush()
        assert [each.result(10).offset for each in sent] == [*range(base, base + 10)]
    assert offsets(east, "orders")[-1] == base, "one batch"
    delete_records(east, "orders", base + 5)
    copier = mirror({} if is_whole else SKIP)
    assert copier.run_once() == 0, copier.output
    assert offsets(west, "orders") == [*range(10), base]
    assert ranges(west) == ([] if is_whole else [("orders", 0, 10, 20, "retention")])
    clusters = ("--source", east.bootstrap, "--target", west.bootstrap, "--topics", "orders")
    spark = ("--master", "local[2]", "-q", "--no-self-test", "--settle-rounds", "0")
    done = kaudit("reconcile", *clusters, "--out", str(tmp_path / "audit"), *spark)
    report = json.loads((tmp_path / "audit" / "report.json").read_text())
    assert (report["verdict"], done.exit_code) == ("INCOMPLETE", 5), (
        done.output
    )  # what is deleted has aged out
    assert report["explained"] == ({} if is_whole else {"retention (ledger)": 10})


def test_the_ledger_is_readable_without_the_source_and_unreachable_is_3(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    a_gap_of_retention(east, mirror)
    assert mirror(SKIP).run_once() == 0
    east.kill(1)
    code, output = mirror().ask("gaps")
    assert (code, "1 gap in east.gaps.internal" in output) == (0, True), output
    west.kill(1)
    assert mirror().ask("gaps")[0] == 3


def test_no_gap_is_passed_while_the_ledger_cannot_be_written(
    east: Cluster, west: Cluster, mirror: MakeMirror
) -> None:
    make_topic(west, LEDGER)
    alter(west, LEDGER, "max.message.bytes", "10")
    a_gap_of_retention(east, mirror)
    copier = mirror(SKIP)
    copier.start()
    eventually(
        "the cause", lambda: "gap orders-0: waits, it cannot be written to the" in copier.output
    )
    assert offsets(west, "orders") == [*range(10)]
    assert "GAP" not in copier.output
    copier.kill()
    assert entries(west) == []
    alter(west, LEDGER, "max.message.bytes", None)
    copier.start()
    eventually("the rest", lambda: offsets(west, "orders") == [*range(10), *range(15, 20)])
    assert ranges(west) == [("orders", 0, 10, 15, "retention")]
    assert setting_of(west, LEDGER, "cleanup.policy") == "compact", "a topic of another client"
    assert copier.stop() == 0, copier.output


def test_killed_between_the_entry_and_the_first_append_the_entry_is_there_once(
    east: Cluster, pair: Cluster, mirror: MakeMirror
) -> None:
    """The target has too few replicas for the records behind the gap: every kill falls between the two writes."""
    a_gap_of_retention(east, mirror, 2)
    refuse_appends(pair)
    copier = mirror(SKIP)
    seen = set()
    for until in (15, 15, 17):
        delete_records(east, "orders", until)
        tried = copier.output.count("NOT_ENOUGH_REPLICAS")
        copier.start()
        eventually(
            "an append",
            lambda: copier.output.count("NOT_ENOUGH_REPLICAS") > tried,  # noqa: B023
        )
        copier.kill()
        assert ranges(pair) == [("orders", 0, 10, until, "retention")]
        seen.add(entries(pair)[0].first_seen_ms)
        assert offsets(pair, "orders") == [*range(10)]
    assert len(seen) == 1, "the time of the first run"
    assert len(records(pair)) == 2, "the repeated gap was not written again, the wider one was"
    accept_appends(pair)
    assert copier.run_once() == 0
    assert offsets(pair, "orders") == [*range(10), *range(17, 20)]
    assert ranges(pair) == [("orders", 0, 10, 17, "retention")]


def test_the_gaps_of_a_recreated_topic_are_in_the_ledger_before_its_new_topic_id_is_stated(
    east: Cluster, pair: Cluster, mirror: MakeMirror
) -> None:
    alter(pair, LEDGER, "max.message.bytes", "10")
    make_topic(east, "orders", 2)
    produce(east, "orders", 10, partitions=2)
    assert mirror().run_once() == 0
    first = setting_of(pair, "orders", TOPIC_ID)
    recreate_topic(east, "orders", 2)
    produce(east, "orders", 15, partitions=2)
    delete_records(east, "orders", 10)
    delete_records(east, "orders", 12, partition=1)
    copier = mirror(SKIP)
    copier.start()
    for partition in range(2):
        waits = f"gap orders-{partition}: waits"
        eventually("both gaps", lambda: waits in copier.output)  # noqa: B023
    copier.kill()
    assert setting_of(pair, "orders", TOPIC_ID) == first
    # The entries may be written, the topic id may be stated, and nothing can be appended: killed in between.
    alter(pair, LEDGER, "max.message.bytes", None)
    refuse_appends(pair)
    copier.start()
    eventually("an append", lambda: "NOT_ENOUGH_REPLICAS" in copier.output)
    copier.kill()
    second = setting_of(pair, "orders", TOPIC_ID)
    assert second != first
    both = [("orders", 0, 10, 10, "recreated"), ("orders", 1, 10, 12, "recreated")]
    assert ranges(pair) == both
    accept_appends(pair)
    assert copier.run_once() == 0, "the next run sees no other topic id"
    assert ranges(pair) == both
    assert {(e.source_topic_id_before, e.source_topic_id_after) for e in entries(pair)} == {
        (first, second)
    }
    assert offsets(pair, "orders") == [*range(10), *range(10, 15)]
    assert offsets(pair, "orders", 1) == [*range(10), *range(12, 15)]
    output = copier.ask("gaps")[1]
    assert f"topic id {first} became {second}" in output


def test_a_ledger_is_not_mirrored(east: Cluster, west: Cluster, mirror: MakeMirror) -> None:
    make_topic(east, "north.gaps.internal")
    make_topic(east, "orders")
    assert mirror({"topics.exclude": "nothing"}).run_once() == 0
    names = set(admin(west).list_topics(timeout=5).topics)
    assert ("orders" in names, "north.gaps.internal" in names) == (True, False)


RECORD_MANY = """
import sys
from kclient.aio import run
from kclient.config import CommonConfig
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from mirrormaker.ledger import Ledger
from mirrormaker.link_state import Cause, Gap
from twisted.internet.defer import gatherResults

async def main():
    from twisted.internet import reactor
    cluster = Cluster(reactor, CommonConfig.load({"bootstrap.servers": sys.argv[1]}))
    await cluster.start()
    ledger = Ledger(cluster, "east.gaps.internal", lambda: "east-id", replication_factor=-1)
    gap = Gap(10, 10 + int(sys.argv[2]), Cause.RECREATED, "before", "after")
    tps = [TopicPartition("orders", n) for n in range(3000)]
    await gatherResults([ledger.record(tp, tp, gap, "after") for tp in tps])
    await cluster.close()

run(main)
"""


def test_the_gaps_of_thousands_of_partitions_share_a_few_writes(
    west: Cluster, mirror: MakeMirror
) -> None:
    for until in (1, 1, 2):
        command = [sys.executable, "-c", RECORD_MANY, west.bootstrap, str(until)]
        subprocess.run(command, timeout=120, check=True)
    assert len(stored(west, LEDGER)) == 12, "3000 entries in 6 batches, nothing, and 6 batches"
    assert len(records(west)) == 6000
    code, output = mirror().ask("gaps", "--format", "json")
    lines = [json.loads(line) for line in output.splitlines()]
    assert (code, [each["partition"] for each in lines]) == (0, list(range(3000)))
    assert {each["until"] for each in lines} == {12}


def audit(east: Cluster, west: Cluster, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Audit all topics; return the exit code and the report."""
    words = ("--source", east.bootstrap, "--target", west.bootstrap, "--names", "east,west")
    spark = ("--master", "local[1]", "--no-self-test", "--quiet")
    done = kaudit("reconcile", "--topics", ".*", *words, "--out", str(out), *spark, *options)
    assert done.output.startswith("VERDICT"), done.output
    return done.exit_code, json.loads((out / "report.json").read_text())


def write_entry(west: Cluster, entry: GapEntry) -> None:
    """Write to the ledger as any client may."""
    key, value = encode(entry)
    with BlockingProducer(bootstrap_servers=west.bootstrap) as producer:
        producer.send(LEDGER, value, key=key, partition=0).result(10)


@pytest.mark.timeout(900)
def test_an_audit_explains_a_recorded_gap_and_refuses_a_lying_entry(
    east: Cluster, west: Cluster, mirror: MakeMirror, tmp_path: Path
) -> None:
    a_gap_of_retention(east, mirror)
    assert mirror(SKIP).run_once() == 0
    out = tmp_path / "report"
    code, report = audit(east, west, out)
    assert (code, report["verdict"]) == (5, "INCOMPLETE"), "offsets 0-9 have aged out"
    assert report["explained"] == {"retention (ledger)": 5}
    assert (report["ledger"]["topics"], report["ledger"]["used"]) == ([LEDGER], 1)
    assert [each["topic"] for each in report["topics"]] == ["orders"], "the ledger is not audited"
    code, report = audit(east, west, out, "--no-ledger")
    assert (code, report["verdict"], report["ledger"]) == (1, "DIVERGED", None)
    assert report["totals"]["findings"]["gap"] == 5
    (entry,) = entries(west)
    write_entry(west, replace(entry, until=16))
    code, report = audit(east, west, out)
    assert (code, report["explained"], report["ledger"]["used"]) == (1, {}, 0)
    (refused,) = report["ledger"]["refused_entries"]
    assert refused["reason"] == "the source still has offsets from 15 on"
