"""Client quotas on two brokers: set by kclient on one, applied by both, and kept over a restart."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from kclient import AdminClient, Producer
from kclient.admin.quotas import DEFAULT_NAME, QuotaEntity
from kclient.testing.raw_connection import RawConnection
from kclient.wire.errors import ErrorCode, InvalidRequest
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.schema.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kclient.wire.schema.create_topics import CreatableTopic, CreateTopicsRequest
from kclient.wire.schema.delete_topics import DeleteTopicsRequest
from kclient.wire.versions import ApiKey
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.cli import Cli
from tests.kit.logs import batch_of
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

RAW = QuotaEntity(client_id="raw")
"""The client id of `RawConnection`."""


@pytest.fixture(scope="module")
def cli(module_clusters: MakeCluster) -> Cli:
    cluster = module_clusters(2, {"quota.window.num": "2", "controller.quota.window.num": "2"})
    return Cli(cluster)


@pytest.fixture
def topic(cli: Cli) -> Iterator[str]:
    """A topic led by broker 1; without quotas at the end."""
    name = f"quotas-{time.monotonic_ns()}"
    Observer(cli.cluster).create(name, [[1]])
    yield name
    with AdminClient(bootstrap_servers=cli.cluster.bootstrap) as admin:
        found = admin.describe_client_quotas()
        admin.alter_client_quotas({each: dict.fromkeys(names) for each, names in found.items()})


def connection(cluster: Cluster, broker_id: int = 1) -> RawConnection:
    host, _, port = cluster[broker_id].address.rpartition(":")
    return RawConnection(host, int(port))


def produce(to: RawConnection, topic: str) -> int:
    """Produce a batch; return the throttle time in ms."""
    request = ProduceRequest(1, 1000, [ProduceTopic(topic, [ProducePartition(0, batch_of(1000))])])
    response = to.ask(ApiKey.PRODUCE, 9, request)
    assert response.topics[0].partitions[0].error_code == 0
    return int(response.throttle_time_ms)


def test_a_throttled_producer_is_informed_and_muted_and_others_are_not(
    cli: Cli, topic: str
) -> None:
    cluster = cli.cluster
    shown = cli.out("quota", "set", "--client-id", "raw", "--producer-byte-rate", "60")
    assert shown == "Set producer_byte_rate=60 of client-id 'raw'.\n"
    with connection(cluster) as raw:
        eventually("the quota", lambda: produce(raw, topic) > 0)
        throttle_ms = produce(raw, topic)
        assert throttle_ms > 500
        begun = time.monotonic()
        raw.send(ApiKey.PRODUCE, 9, ProduceRequest(1, 1000, []))
        with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as other:
            for n in range(20):
                other.send(topic, b"%d" % n * 100).result(10)
        assert time.monotonic() - begun < throttle_ms / 1000
        raw.receive(ApiKey.PRODUCE, 9)
        assert time.monotonic() - begun >= throttle_ms / 1000 - 0.05


def test_a_throttled_consumer_receives_all_records_in_time(cli: Cli, topic: str) -> None:
    with connection(cli.cluster) as raw:
        size = 0
        for _ in range(4):
            produce(raw, topic)
        cli.out("quota", "set", "--user", "ANONYMOUS", "--consumer-byte-rate", "70")
        offset, throttled, begun = 0, 0, time.monotonic()
        while offset < 4:
            asked = FetchTopic(topic, [FetchPartition(0, offset, 1 << 20, 0)])
            request = FetchRequest(max_wait_ms=100, min_bytes=1, topics=[asked])
            response = raw.ask(ApiKey.FETCH, 12, request)
            throttled += response.throttle_time_ms > 0
            for each in response.topics:
                size += each.partitions[0].records_size
                offset += each.partitions[0].records_size // 69
            if not throttled and offset == 4:
                offset = size = 0  # the broker has not read the quota yet
                begun = time.monotonic()
        assert throttled
        assert time.monotonic() - begun > (size - 2 * 70) / 70 - 1


def test_quotas_apply_on_every_broker_and_after_a_restart(cli: Cli, topic: str) -> None:
    cluster = cli.cluster
    limits = {"controller_mutation_rate": 0.5, "request_percentage": 1e6}
    with AdminClient(bootstrap_servers=cluster[1].address) as admin:
        both = QuotaEntity(DEFAULT_NAME, "raw")
        assert admin.alter_client_quotas({RAW: limits, both: {"consumer_byte_rate": 7}}) == {
            RAW: None,
            both: None,
        }
        with pytest.raises(InvalidRequest):
            admin.alter_client_quotas({RAW: {"producer_byte_rate": 0}})
    cluster.restart(2)
    with AdminClient(bootstrap_servers=cluster[2].address) as admin:
        assert admin.describe_client_quotas(RAW, strict=True) == {RAW: limits}
        assert admin.describe_client_quotas(QuotaEntity(DEFAULT_NAME)) == {
            both: {"consumer_byte_rate": 7}
        }
    rows = cli.json("quota", "list", "--client-id", "raw")
    assert [(row["user"], row["client_id"]) for row in rows] == [
        (None, "raw"),
        ("<default>", "raw"),
    ]

    def create(name: str, version: int = 7) -> tuple[int, int]:
        request = CreateTopicsRequest([CreatableTopic(name, 3, 1)], 20_000)
        with connection(cluster, Observer(cluster).controller()) as raw:
            response = raw.ask(ApiKey.CREATE_TOPICS, version, request)
        return response.topics[0].error_code, response.throttle_time_ms

    assert create(f"{topic}-a") == (0, 0)  # a burst of one token, and two more
    code, throttle_ms = create(f"{topic}-b")
    assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert throttle_ms > 0
    code, throttle_ms = create(f"{topic}-c", version=5)
    assert code == 0
    assert throttle_ms > 0
    assert "Deleted controller_mutation_rate" in cli.out(
        "quota", "delete", "--client-id", "raw", "controller_mutation_rate"
    )
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.describe_client_quotas(RAW, strict=True) == {RAW: {"request_percentage": 1e6}}


def test_deletions_and_new_partitions_are_mutations(cli: Cli, topic: str) -> None:
    """KIP-599: DeleteTopics from v5 and CreatePartitions from v3 on are refused, older versions are throttled."""
    cluster, observer = cli.cluster, Observer(cli.cluster)
    names = [f"{topic}-{letter}" for letter in "abc"]
    for name in names:
        observer.create(name, [[1], [2], [1]])
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_client_quotas({RAW: {"controller_mutation_rate": 0.1}})

    def ask(api: ApiKey, version: int, request: object) -> tuple[int, int]:
        with connection(cluster, observer.controller()) as raw:
            response = raw.ask(api, version, request)
        results = response.responses if api is ApiKey.DELETE_TOPICS else response.results
        return results[0].error_code, response.throttle_time_ms

    def delete(name: str, version: int) -> tuple[int, int]:
        return ask(ApiKey.DELETE_TOPICS, version, DeleteTopicsRequest([name], [], 20_000))

    def grow(name: str, version: int, count: int = 5) -> tuple[int, int]:
        request = CreatePartitionsRequest([CreatePartitionsTopic(name, count, None)], 20_000)
        return ask(ApiKey.CREATE_PARTITIONS, version, request)

    # The controller reads the quota at some time; then a burst takes what it needs once: 20 partitions of 200 seconds.
    sizes = itertools.count(23, 20)
    eventually(
        "the quota at the controller",
        lambda: grow(names[0], 3, next(sizes))[0] == ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    )
    for code, throttle_ms in (delete(names[1], 5), grow(names[2], 3)):
        assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert throttle_ms > 0
    assert names[1] in cli.out("topic", "list")
    assert len(cli.json("topic", "describe", names[2])) == 3
    for code, throttle_ms in (delete(names[1], 4), grow(names[2], 2)):
        assert code == 0
        assert throttle_ms > 0
    eventually("partitions", lambda: len(cli.json("topic", "describe", names[2])) == 5)
