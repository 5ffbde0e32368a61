"""Unmodified clients of other projects against three brokers: topics, every codec, reads from any offset.

What one library writes, all have to read: the same keys, values, headers and timestamps, nulls among them.
Groups have a file of their own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import count

import pytest

from kclient.wire.batches import iterate
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.foreign_clients import CLIENTS, ForeignClient, Kcat, Sent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings(
        "ignore:(read|open)_text is deprecated:DeprecationWarning"
    ),  # kafka-python
]

_numbers = count(1)
PARTITIONS = 3
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
STARTED_MS = 1_700_000_000_000
STEP_MS = 1_000

# Larger than the blocks of snappy and lz4; half of it does not compress.
LARGE = random.Random(7).randbytes(40_000) + b"abc" * 20_000
SHAPES: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
    (b"key", b"value", ()),
    (None, b"no key", ()),
    (b"no value", None, ()),
    (None, None, (("only", b"headers"),)),
    (b"", b"", (("empty", b""), ("null", None))),
    (b"twice", b"x", (("h", b"1"), ("h", b"2"), ("grüße", bytes(range(256))))),
    (bytes(range(256)), LARGE, (("large", LARGE[:5000]),)),
]


def records_of(library: str, codec: str) -> list[Sent]:
    """Every shape in every partition, a second apart within it; each codec has an hour of its own."""
    start = STARTED_MS + CODECS.index(codec) * 3_600_000
    records = (
        Sent(partition, key, value, headers, start + number * STEP_MS)
        for number, (key, value, headers) in enumerate(SHAPES)
        for partition in range(PARTITIONS)
    )
    every_null = CLIENTS[library].sends_every_null
    return [record if every_null else record.without_rare_nulls() for record in records]


def of_partition(library: str, partition: int) -> list[Sent]:
    return [
        record
        for codec in CODECS
        for record in records_of(library, codec)
        if record.partition == partition
    ]


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"waited 10 s for {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(3)


@pytest.fixture(scope="module")
def written(cluster: Cluster) -> dict[str, str]:
    """Have every library create a topic and write all records to it; return library -> topic."""
    topics = {}
    for name, make in CLIENTS.items():
        client = make(cluster.bootstrap)
        topics[name] = f"written-by-{name}"
        client.create_topic(topics[name], PARTITIONS, {})
        for number, codec in enumerate(CODECS):
            offsets = client.produce(topics[name], codec, records_of(name, codec))
            first = number * len(SHAPES)
            expected = [first + n for n in range(len(SHAPES)) for _ in range(PARTITIONS)]
            assert offsets == expected, (name, codec)
    return topics


@pytest.fixture(params=list(CLIENTS))
def client(request: pytest.FixtureRequest, cluster: Cluster) -> ForeignClient:
    return CLIENTS[request.param](cluster.bootstrap)


@pytest.mark.parametrize("producer", list(CLIENTS))
def test_what_one_client_writes_with_every_codec_another_reads_from_the_beginning(
    client: ForeignClient, written: dict[str, str], producer: str
) -> None:
    for partition in range(PARTITIONS):
        expected = of_partition(producer, partition)
        found = client.read(written[producer], partition, len(expected), None)
        assert found == expected


def test_a_client_reads_from_an_offset_within_a_batch(
    client: ForeignClient, written: dict[str, str]
) -> None:
    expected = of_partition(client.name, 1)
    for start in (1, len(SHAPES) + 3, len(expected) - 1):
        found = client.read(written[client.name], 1, len(expected) - start, start)
        assert found == expected[start:]


def test_a_client_finds_offsets_by_time(client: ForeignClient, written: dict[str, str]) -> None:
    topic = written[client.name]
    expected = of_partition(client.name, 2)
    for number in range(0, len(expected), 5):
        assert client.offset_at(topic, 2, expected[number].timestamp) == number
    assert client.offset_at(topic, 2, STARTED_MS - 1) == 0
    assert client.offset_at(topic, 2, STARTED_MS + STEP_MS + 1) == 2
    assert client.offset_at(topic, 2, expected[-1].timestamp + 1) is None


def test_the_codec_of_a_batch_reaches_the_disk_as_it_was_chosen(
    cluster: Cluster, written: dict[str, str]
) -> None:
    for topic in written.values():
        (log,) = [
            path
            for broker in cluster.brokers.values()
            for path in broker.data.glob(f"{topic}-0/*.log")
        ]
        codecs = [CODECS[info.codec] for info in iterate(log.read_bytes())]
        # Some clients leave a batch plain when compressing it does not pay.
        assert set(codecs) == set(CODECS), topic


def test_a_client_sees_the_cluster_as_it_is(client: ForeignClient, cluster: Cluster) -> None:
    brokers, controller = client.brokers()
    assert brokers == set(cluster.brokers)
    assert controller in brokers


def test_a_client_creates_describes_and_deletes_a_topic(client: ForeignClient) -> None:
    topic = f"short-lived-{next(_numbers)}"
    client.create_topic(topic, 5, {"retention.ms": "123456789", "max.message.bytes": "2000000"})
    until(lambda: client.topics().get(topic) == 5, "the topic")
    configs = client.configs("topic", topic)
    assert configs["retention.ms"] == "123456789"
    assert configs["max.message.bytes"] == "2000000"
    assert configs["cleanup.policy"] == "delete"
    client.delete_topic(topic)
    until(lambda: topic not in client.topics(), "the topic to be gone")


def test_a_client_reads_the_settings_of_a_broker(client: ForeignClient, cluster: Cluster) -> None:
    configs = client.configs("broker", "2")
    assert configs["broker.id"] == "2"
    assert configs["listeners"] == f"PLAINTEXT://{cluster[2].address}"


def test_a_client_commits_alone_and_the_group_is_listed(
    client: ForeignClient, written: dict[str, str]
) -> None:
    group = f"alone-{next(_numbers)}"
    client.commit(group, written[client.name], 4)
    for other in CLIENTS.values():
        assert group in other(client.bootstrap).groups()


@pytest.mark.skipif(not Kcat.installed, reason="kcat is not installed")
def test_kcat_lists_produces_and_reads_by_offset_and_time(
    cluster: Cluster, written: dict[str, str]
) -> None:
    kcat = Kcat(cluster.bootstrap)
    listed = kcat.run("-L")
    assert all(
        f'topic "{topic}" with {PARTITIONS} partitions' in listed for topic in written.values()
    )
    topic = written["librdkafka"]
    expected = [record.timestamp for record in of_partition("librdkafka", 0)]
    assert [line["ts"] for line in kcat.read(topic, "beginning")] == expected
    assert [line["ts"] for line in kcat.read(topic, "9")] == expected[9:]
    assert [line["ts"] for line in kcat.read(topic, f"s@{expected[20]}")] == expected[20:]
    topic = f"by-kcat-{next(_numbers)}"
    CLIENTS["librdkafka"](cluster.bootstrap).create_topic(topic, 1, {})
    kcat.run("-P", "-t", topic, "-K:", "-H", "h=1", "-z", "snappy", stdin="a:1\nb:2\n")
    found = kcat.read(topic, "beginning")
    assert [(line["key"], line["payload"]) for line in found] == [("a", "1"), ("b", "2")]
    assert found[0]["headers"] == ["h", "1"]
