"""Consumers on a real broker: by assignment and in groups, through kill -9 and rebalances."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import chain, count
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from kclient.admin.client import AdminClient
from kclient.consumer.client import Consumer, RebalanceListener
from kclient.errors import NoCommittedOffset
from kclient.producer.producer import Producer
from kclient.types import AnyRecord, TopicPartition
from kclient.wire.batches import HEADER_SIZE
from kclient.wire.error_codes import ErrorCode
from kclient.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopic,
    decode_response,
    encode_request,
)
from kclient.wire.records import Record, encode_batch
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.record_batches import rebuilt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]

_names = count(1)
QUICK = {"retry_backoff_ms": 50, "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200}
MEMBER = {
    **QUICK,
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 2000,
    "heartbeat_interval_ms": 200,
    "fetch_max_wait_ms": 100,
}


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(
        1,
        {
            "group.min.session.timeout.ms": "500",
            "auto.create.topics.enable": "false",
            "message.max.bytes": "4000000",
        },
    )


@asynccontextmanager
async def admin(cluster: Cluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(bootstrap_servers=cluster.bootstrap, **QUICK) as client:
        yield client


async def make_topic(cluster: Cluster, partitions: int = 1, **settings: Any) -> str:
    name = f"topic-{next(_names)}"
    async with admin(cluster) as client:
        await client.create_topics({name: {"num_partitions": partitions, **settings}})
        await client.wait_for_topics([name])
    return name


async def produce(cluster: Cluster, topic: str, values: list[bytes], **settings: Any) -> None:
    """Produce to the partitions in turn, or to *partition*; record n has timestamp 1000 * n."""
    partition = settings.pop("partition", None)
    async with Producer(bootstrap_servers=cluster.bootstrap, **QUICK, **settings) as producer:
        partitions = len(await producer.partitions_for(topic))
        sent = [
            producer.send(
                topic,
                value,
                partition=n % partitions if partition is None else partition,
                timestamp_ms=1_000_000 + 1000 * n,
            )
            for n, value in enumerate(values)
        ]
        for each in sent:
            await each


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, last)]


def consumer_of(cluster: Cluster, **settings: Any) -> Consumer:
    return Consumer(bootstrap_servers=cluster.bootstrap, **{**QUICK, **settings})


async def take(consumer: Consumer, wanted: int, seconds: float = 15.0) -> list[AnyRecord]:
    """Poll until there are so many records."""
    reactor = consumer.cluster.reactor
    give_up_at = reactor.seconds() + seconds
    found: list[AnyRecord] = []
    while len(found) < wanted:
        assert reactor.seconds() < give_up_at, f"{len(found)} of {wanted} records came"
        for records in (await consumer.poll(timeout=0.2)).values():
            found += records
    return found


def values(records: list[AnyRecord]) -> list[bytes]:
    return [record.value for record in records]


def produce_by_hand(cluster: Cluster, topic: str, batch: bytes) -> ProducePartitionResponse:
    """Send *batch* to partition 0 as it is; return the outcome."""
    asked = ProduceRequest(1, 5000, [ProduceTopic(topic, [ProducePartition(0, batch)])])
    frame = b"".join(encode_request(asked, 9, 7, "by hand"))
    with socket.create_connection(("127.0.0.1", cluster[1].port), timeout=20) as line:
        line.sendall(len(frame).to_bytes(4, "big") + frame)
        with line.makefile("rb") as file:
            answer = file.read(int.from_bytes(file.read(4), "big"))
    return decode_response(memoryview(answer), 9)[1].topics[0].partitions[0]


# --- by assignment


@pytest_twisted.ensureDeferred
async def test_batches_that_no_consumer_could_read_are_refused_and_block_none(cluster):
    topic = await make_topic(cluster, configs={"cleanup.policy": "compact"})
    good = encode_batch([Record(0, 1000, b"k", b"good", ())], codec=4)
    keyless = encode_batch([Record(n, 1000, None if n else b"k", b"v", ()) for n in range(3)])
    pair = encode_batch([Record(n, 1000, b"k", b"v", ()) for n in range(2)])
    # The bytes after the header begin a record that is longer than the batch, or no gzip member.
    bad = {
        "truncated": rebuilt(pair[:HEADER_SIZE] + b"\x7e" + pair[HEADER_SIZE + 1 :]),
        "gzip": rebuilt(pair, attributes=1),
        "count": rebuilt(pair, record_count=1, last_offset_delta=0),
    }
    assert produce_by_hand(cluster, topic, good).error_code == 0
    for name, batch in bad.items():
        outcome = produce_by_hand(cluster, topic, batch)
        assert (name, outcome.error_code) == (name, ErrorCode.INVALID_RECORD)
        assert topic in outcome.error_message
    refused = produce_by_hand(cluster, topic, keyless)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in refused.record_errors] == [1, 2]
    assert produce_by_hand(cluster, topic, good).base_offset == 1
    async with consumer_of(cluster, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert values(await take(consumer, 2)) == [b"good", b"good"]


@pytest_twisted.ensureDeferred
async def test_consuming_starts_at_the_requested_position(cluster):
    topic = await make_topic(cluster)
    tp = TopicPartition(topic, 0)
    await produce(cluster, topic, numbers(0, 10))
    async with consumer_of(cluster, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        assert values(await take(consumer, 10)) == numbers(0, 10)
        consumer.seek(tp, 7)
        assert values(await take(consumer, 3)) == numbers(7, 10)
        await consumer.seek_to_timestamp(1_000_000 + 4000, tp)
        assert (await consumer.position(tp)) == 4
        await consumer.seek_to_timestamp(1_000_000 + 3500, tp)
        assert values(await take(consumer, 6)) == numbers(4, 10)
        await consumer.seek_to_timestamp(9_000_000, tp)
        assert (await consumer.position(tp)) == 10
        await consumer.seek_to_beginning(tp)
        assert values(await take(consumer, 10)) == numbers(0, 10)
        await consumer.seek_to_end(tp)
        await produce(cluster, topic, [b"new"])
        assert values(await take(consumer, 1)) == [b"new"]
        assert consumer.lag(tp) == 0
        assert await consumer.beginning_offsets([tp]) == {tp: 0}
        assert await consumer.end_offsets([tp]) == {tp: 11}
        found = await consumer.offsets_for_times({tp: 1_002_000})
        assert (found[tp].offset, found[tp].timestamp) == (2, 1_002_000)
        assert await consumer.offsets_for_times({tp: 9_000_000}) == {tp: None}


@pytest_twisted.ensureDeferred
async def test_latest_hands_out_only_what_comes_after(cluster):
    topic = await make_topic(cluster)
    await produce(cluster, topic, [b"old"])
    async with consumer_of(cluster, auto_offset_reset="latest") as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        assert await consumer.position(tp) == 1
        await produce(cluster, topic, [b"new"])
        assert values(await take(consumer, 1)) == [b"new"]


@pytest_twisted.ensureDeferred
async def test_an_offset_out_of_range_is_reset_by_policy_or_raised(cluster):
    topic = await make_topic(cluster)
    tp = TopicPartition(topic, 0)
    await produce(cluster, topic, numbers(0, 10))
    async with admin(cluster) as client:
        await client.delete_records({tp: 6})
    async with consumer_of(cluster, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 2)
        assert values(await take(consumer, 4)) == numbers(6, 10)
    async with consumer_of(cluster, auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 2)
        with pytest.raises(NoCommittedOffset, match="offset 2"):
            await take(consumer, 1)


@pytest_twisted.ensureDeferred
async def test_paused_partitions_wait(cluster):
    topic = await make_topic(cluster, 2)
    zero, one = (TopicPartition(topic, n) for n in range(2))
    async with consumer_of(cluster, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer:
        consumer.assign([zero, one])
        consumer.pause(zero)
        await produce(cluster, topic, numbers(0, 6))
        assert values(await take(consumer, 3)) == [b"1", b"3", b"5"]
        assert await consumer.poll(timeout=0.2) == {}
        consumer.resume(zero)
        assert values(await take(consumer, 3)) == [b"0", b"2", b"4"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest_twisted.ensureDeferred
async def test_every_codec_is_read(cluster, codec):
    topic = await make_topic(cluster)
    sent = [b"%d " % n * 50 for n in range(300)]
    await produce(cluster, topic, sent, compression_type=codec)
    async with consumer_of(cluster, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert values(await take(consumer, 300)) == sent


@pytest_twisted.ensureDeferred
async def test_records_beyond_max_partition_fetch_bytes_come_all_the_same(cluster):
    topic = await make_topic(cluster, 3)
    sent = [bytes([n]) * 300_000 for n in range(9)]
    await produce(cluster, topic, sent, max_request_size=2_000_000)
    async with consumer_of(
        cluster, auto_offset_reset="earliest", max_partition_fetch_bytes=1000, fetch_max_wait_ms=50
    ) as consumer:
        consumer.assign([TopicPartition(topic, n) for n in range(3)])
        assert sorted(values(await take(consumer, 9))) == sent


@pytest_twisted.ensureDeferred
async def test_a_broker_that_dies_and_comes_back_costs_no_record_and_repeats_none(cluster):
    topic = await make_topic(cluster, 2)
    async with (
        consumer_of(cluster, auto_offset_reset="earliest", request_timeout_ms=2000) as consumer,
        Producer(
            bootstrap_servers=cluster.bootstrap, linger_ms=0, delivery_timeout_ms=30_000, **QUICK
        ) as producer,
    ):
        consumer.assign([TopicPartition(topic, n) for n in range(2)])
        acknowledged: list[tuple[int, int, bytes]] = []
        ended: list[object] = []

        async def write() -> None:
            for n in range(600):
                at = await producer.send(topic, b"%d" % n, partition=n % 2)
                acknowledged.append((at.partition, at.offset, b"%d" % n))

        writing = Deferred.fromCoroutine(write())
        writing.addBoth(ended.append)
        found = await take(consumer, 50)
        cluster.kill(1)
        for records in (await consumer.poll(timeout=0.3)).values():  # what came before the kill
            found += records
        cluster.start(1, wait=False)
        await deferLater(consumer.cluster.reactor, 0.2)
        while not ended or len(found) < len(acknowledged):
            found += await take(consumer, 1)
    assert ended == [None]
    assert sorted((r.partition, r.offset, r.value) for r in found) == sorted(acknowledged)
    for partition in range(2):
        offsets = [r.offset for r in found if r.partition == partition]
        assert offsets == list(range(len(offsets))), "in order, no hole, none twice"


# --- in groups


class CallbackLog(RebalanceListener):
    """Records the callbacks of a consumer in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("revoked", sorted(tp.partition for tp in partitions)))

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("assigned", sorted(tp.partition for tp in partitions)))

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self.calls.append(("lost", sorted(tp.partition for tp in partitions)))

    @property
    def holds(self) -> list[int]:
        """The partitions of this consumer, by its callbacks."""
        held: set[int] = set()
        for what, partitions in self.calls:
            held = held | set(partitions) if what == "assigned" else held - set(partitions)
        return sorted(held)


class Group:
    """Some consumers of one group in this process, polled all the time."""

    def __init__(self, cluster: Cluster, topic: str, **settings: Any) -> None:
        self.cluster, self.topic = cluster, topic
        self.settings = {**MEMBER, "group_id": f"group-{next(_names)}", **settings}
        self.logs: dict[Consumer, CallbackLog] = {}
        self.found: dict[Consumer, list[AnyRecord]] = defaultdict(list)
        self._members: set[Consumer] = set()
        self._polls: dict[Consumer, Deferred[None]] = {}

    def join(self) -> Consumer:
        consumer = consumer_of(self.cluster, **self.settings)
        self.logs[consumer] = CallbackLog()
        consumer.subscribe([self.topic], listener=self.logs[consumer])
        self._members.add(consumer)
        self._polls[consumer] = Deferred.fromCoroutine(self._poll(consumer))
        return consumer

    async def _poll(self, consumer: Consumer) -> None:
        while consumer in self._members:
            for records in (await consumer.poll(timeout=0.05)).values():
                self.found[consumer] += records

    async def leave(self, consumer: Consumer) -> None:
        self._members.discard(consumer)
        await self._polls.pop(consumer)
        await consumer.close()

    async def end(self) -> None:
        for consumer in list(self._polls):
            await self.leave(consumer)

    def shares(self) -> list[list[int]]:
        return [sorted(tp.partition for tp in c.assignment()) for c in self._polls]

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        reactor = next(iter(self.logs)).cluster.reactor
        give_up_at = reactor.seconds() + seconds
        while not condition():
            for polling in self._polls.values():
                assert not polling.called, polling
            assert reactor.seconds() < give_up_at, f"no {what}: {self.shares()}"
            await deferLater(reactor, 0.02)

    async def until_shared(self, *sizes: int, partitions: int = 6) -> None:
        """Wait for shares of these sizes, and until all callbacks have run, which they do in the next poll."""
        await self.until(
            lambda: (
                sorted(map(len, self.shares())) == sorted(sizes)
                and sorted(chain(*self.shares())) == list(range(partitions))
                and all(
                    self.logs[c].holds == sorted(tp.partition for tp in c.assignment())
                    for c in self._polls
                )
            ),
            f"shares of {sizes}",
        )


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest_twisted.ensureDeferred
async def test_partitions_move_as_members_come_go_and_die(cluster, strategy):
    topic = await make_topic(cluster, 6)
    group = Group(cluster, topic, partition_assignment_strategy=strategy)
    first = group.join()
    await group.until_shared(6)
    second = group.join()
    await group.until_shared(3, 3)
    settings = {**MEMBER, "partition_assignment_strategy": strategy}
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.kit.kclient_member"),
            *(cluster.bootstrap, group.settings["group_id"], topic),
            *(f"{name.replace('_', '.')}={value}" for name, value in settings.items()),
        ],
        stdout=subprocess.PIPE,
    ) as process:
        try:
            await group.until(lambda: sum(map(len, group.shares())) == 4, "third member")
            await produce(cluster, topic, numbers(0, 60))
        finally:
            process.kill()
    await group.until_shared(3, 3)
    await group.until(
        lambda: {r.value for found in group.found.values() for r in found} >= set(numbers(0, 60)),
        "all records, those of the dead member again",
    )
    before = {tp.partition for tp in second.assignment()}
    await group.leave(first)
    await group.until_shared(6)
    if strategy == "cooperative-sticky":
        assert before <= set(
            chain(*(p for what, p in group.logs[second].calls if what == "assigned"))
        )
        assert all(len(p) < 6 for what, p in group.logs[second].calls if what == "revoked")
        late = group.logs[second].calls[-1]
        assert late == ("assigned", sorted(set(range(6)) - before)), "only what came"
    await group.end()


@pytest_twisted.ensureDeferred
async def test_a_rebalance_calls_back_for_revoked_partitions_before_any_consumer_is_assigned_them(
    cluster,
):
    topic = await make_topic(cluster, 4)
    group = Group(cluster, topic, partition_assignment_strategy="range")
    order: list[tuple[str, str]] = []
    first = group.join()
    await group.until_shared(4, partitions=4)
    second = group.join()
    for name, consumer in (("first", first), ("second", second)):
        log = group.logs[consumer]
        calls = log.calls
        log.calls = _SharedLog(order, name, calls)  # type: ignore[assignment]
    await group.until_shared(2, 2, partitions=4)
    await group.end()
    assert group.logs[first].calls[0] == ("assigned", [0, 1, 2, 3])
    assert order[0] == ("first", "revoked")
    assert set(order[1:3]) == {("first", "assigned"), ("second", "assigned")}
    assert group.logs[first].calls[1] == ("revoked", [0, 1, 2, 3])
    assert order[-2:] == [("first", "revoked"), ("second", "revoked")] or order[-1] == (
        "second",
        "revoked",
    )


class _SharedLog(list):  # type: ignore[type-arg]
    """A log that also adds each call to the log of all consumers."""

    def __init__(self, order: list[tuple[str, str]], name: str, calls: list[Any]) -> None:
        super().__init__(calls)
        self._order, self._name = order, name

    def append(self, entry: tuple[str, list[int]]) -> None:
        self._order.append((self._name, entry[0]))
        super().append(entry)


@pytest_twisted.ensureDeferred
async def test_a_group_goes_on_where_it_committed(cluster):
    topic = await make_topic(cluster)
    tp = TopicPartition(topic, 0)
    settings = {**MEMBER, "group_id": f"group-{next(_names)}", "enable_auto_commit": False}
    await produce(cluster, topic, numbers(0, 10))
    async with consumer_of(cluster, **settings, max_poll_records=4) as consumer:
        consumer.subscribe([topic])
        assert values(await take(consumer, 4)) == numbers(0, 4)
        await consumer.commit()
        await take(consumer, 4)
    async with consumer_of(cluster, **settings) as consumer:
        consumer.subscribe([topic])
        assert values(await take(consumer, 6)) == numbers(4, 10)
        await consumer.commit({tp: 9})
        assert (await consumer.committed([tp]))[tp].offset == 9
    async with consumer_of(cluster, **settings) as consumer:
        consumer.subscribe([topic])
        assert values(await take(consumer, 1)) == [b"9"]


@pytest_twisted.ensureDeferred
async def test_closing_commits_what_was_handed_out_and_an_error_what_was_done_with(cluster):
    topic = await make_topic(cluster)
    settings = {**MEMBER, "group_id": f"group-{next(_names)}", "max_poll_records": 3}
    await produce(cluster, topic, numbers(0, 10))
    async with consumer_of(cluster, **settings) as consumer:
        consumer.subscribe([topic])
        assert values(await take(consumer, 3)) == numbers(0, 3)

    async def fail() -> None:
        async with consumer_of(cluster, **settings) as consumer:
            consumer.subscribe([topic])
            assert values(await take(consumer, 3)) == numbers(3, 6)
            assert values(await take(consumer, 3)) == numbers(6, 9)
            raise RuntimeError("in the middle of 6, 7, 8")

    with pytest.raises(RuntimeError):
        await fail()
    async with consumer_of(cluster, **settings) as consumer:
        consumer.subscribe([topic])
        assert values(await take(consumer, 4)) == numbers(6, 10)


@pytest_twisted.ensureDeferred
async def test_partitions_that_are_added_are_noticed(cluster):
    topic = await make_topic(cluster, 1)
    group = Group(cluster, topic, metadata_max_age_ms=300)
    group.join()
    await group.until_shared(1, partitions=1)
    async with admin(cluster) as client:
        await client.create_partitions({topic: 3})
    await group.until_shared(3, partitions=3)
    await produce(cluster, topic, numbers(0, 3))
    await group.until(
        lambda: {r.value for found in group.found.values() for r in found} == set(numbers(0, 3)),
        "records of the new partitions",
    )
    await group.end()


@pytest_twisted.ensureDeferred
async def test_a_pattern_finds_topics_that_are_made_later(cluster):
    number = next(_names)
    topic = f"later-{number}-1"
    async with consumer_of(
        cluster, **MEMBER, group_id=f"group-{number}", metadata_max_age_ms=300
    ) as consumer:
        consumer.subscribe(pattern=f"later-{number}-.*")
        assert await consumer.poll(timeout=0.3) == {}
        async with admin(cluster) as client:
            await client.create_topics({topic: {"num_partitions": 1}})
            await client.wait_for_topics([topic])
        await produce(cluster, topic, [b"there"])
        assert values(await take(consumer, 1)) == [b"there"]
        assert consumer.subscription() == {topic}


@pytest_twisted.ensureDeferred
async def test_a_coordinator_that_is_killed_and_comes_back_keeps_the_generation(cluster):
    topic = await make_topic(cluster, 2)
    group = Group(cluster, topic, session_timeout_ms=15_000, request_timeout_ms=3000)
    consumer = group.join()
    await group.until_shared(2, partitions=2)
    cluster.restart(1)
    await produce(cluster, topic, numbers(0, 4))
    await group.until(lambda: len(group.found[consumer]) == 4, "records after the restart")
    await group.until(
        lambda: bool(consumer._subscription.member and consumer._subscription.member.generation_id),
        "generation",
    )
    assert group.logs[consumer].calls == [("assigned", [0, 1])]
    await group.end()


# --- the other faces

BLOCKING = """
import sys
from kclient import Consumer
bootstrap, topic, group, stop = sys.argv[1:]
with Consumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
    for record in consumer:
        print(record.value.decode(), flush=True)
        if record.value.decode() == stop:
            break
        if record.value.decode() == "7":
            raise SystemExit("in the middle of 7")
"""
ASYNCIO = """
import asyncio, sys
from kclient.aio import Consumer
bootstrap, topic, group, stop = sys.argv[1:]
async def main():
    async with Consumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        async for record in consumer:
            print(record.value.decode(), flush=True)
            if record.value.decode() == stop:
                break
            if record.value.decode() == "7":
                raise SystemExit("in the middle of 7")
asyncio.run(main())
"""


@pytest.mark.parametrize("script", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
@pytest_twisted.ensureDeferred
async def test_iterations_commit_what_was_done_with_and_nothing_else(cluster, script):
    topic = await make_topic(cluster)
    await produce(cluster, topic, numbers(0, 10))
    group = f"group-{next(_names)}"

    def run(stop: str) -> tuple[int, list[str]]:
        words = [sys.executable, "-c", script, cluster.bootstrap, topic, group, stop]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout.split()

    assert run("3") == (0, ["0", "1", "2", "3"])
    assert run("9") == (1, ["4", "5", "6", "7"])
    async with admin(cluster) as client:
        committed = await client.list_group_offsets(group)
    assert committed[TopicPartition(topic, 0)].offset == 7
