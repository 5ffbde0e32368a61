"""kclient works with Apache Kafka as with our own broker: admin, every codec, groups, a broker killed."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from kbroker.local.processes import start_bound_to_us
from kbroker.local.zookeeper import free_ports
from kclient import AdminClient, Consumer, KafkaError, NewTopic, Producer, TopicPartition
from kclient.testing import Acknowledged, Observer
from tests.kit.apache_kafka import QUIET, java, with_kafka
from tests.kit.cli import environment_for
from tests.kit.fork_server import run
from tests.kit.waiting import eventually
from tests.kit.zookeeper import Ensemble

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(150),
    with_kafka,
]

_numbers = count(1)
SETTINGS = """\
broker.id={id}
listeners=PLAINTEXT://127.0.0.1:{port}
zookeeper.connect={zookeeper}
zookeeper.session.timeout.ms=6000
log.dirs={home}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""


class JavaBroker:
    def __init__(self, number: int, port: int, home: Path, zookeeper: str) -> None:
        self.port = port
        home.mkdir()
        path = home / "server.properties"
        path.write_text(SETTINGS.format(id=number, port=port, home=home, zookeeper=zookeeper))
        self._command = java("256m", QUIET, "kafka.Kafka", str(path))
        self._log = home / "broker.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = start_bound_to_us(self._command, output=log)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert self.process is not None
                assert self.process.poll() is None, self._log.read_text()[-2000:]
                assert time.monotonic() < deadline, self._log.read_text()[-2000:]
                time.sleep(0.2)
            else:
                return

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)
            self.process = None


@pytest.fixture(scope="module")
def brokers(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_server: Ensemble
) -> Iterator[list[JavaBroker]]:
    home = tmp_path_factory.mktemp("apache-kafka")
    ports = free_ports(2)
    made = [
        JavaBroker(n, port, home / str(n), f"{zookeeper_server.connect}/apache-kafka-{ports[0]}")
        for n, port in enumerate(ports, 1)
    ]
    try:
        for broker in made:
            broker.start()
        for broker in made:
            broker.wait_ready()
        yield made
    finally:
        for broker in made:
            broker.stop()


@pytest.fixture(scope="module")
def bootstrap(brokers: list[JavaBroker]) -> str:
    addresses = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
    with AdminClient(bootstrap_servers=addresses) as admin:
        deadline = time.monotonic() + 30
        while len(admin.describe_cluster().brokers) < len(brokers):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    return addresses


def make_topic(bootstrap: str, partitions: int = 1) -> str:
    """Create a topic with a new name; return the name."""
    name = f"topic-{next(_numbers)}"
    with AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topics({name: {"num_partitions": partitions}})
        admin.wait_for_topics([name])
    return name


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_were_sent(bootstrap: str, codec: str) -> None:
    topic = make_topic(bootstrap)
    headers = [("a", b"1"), ("a", None)]
    with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
        sent = [producer.send(topic, b"v%d" % i * 9, b"k", headers=headers) for i in range(500)]
        assert [future.result(20).offset for future in sent] == list(range(500))
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        for i, record in zip(range(500), consumer, strict=False):
            assert (record.offset, record.value) == (i, b"v%d" % i * 9)
            assert list(record.headers) == headers


def test_topics_groups_and_offsets_are_administered(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), f"group-{next(_numbers)}"
    tp = TopicPartition(topic, 0)
    with AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_partitions({topic: 3})
        admin.alter_group_offsets(group, {tp: 0})
        assert admin.list_group_offsets(group)[tp].offset == 0
        assert group in {each.group_id for each in admin.list_groups()}
        assert admin.delete_groups([group]) == {group: None}
        assert admin.list_offsets({tp: "latest"})[tp] == (0, -1, 0)
        assert admin.delete_topics([topic]) == {topic: None}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_of_a_group_share_its_partitions_and_take_over(
    bootstrap: str, strategy: str
) -> None:
    topic = make_topic(bootstrap, 4)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"group-{next(_numbers)}",
        "partition.assignment.strategy": strategy,
        "auto.offset.reset": "earliest",
    }
    seen: list[bytes] = []
    first, second = Consumer(topic, config=settings), Consumer(topic, config=settings)

    def poll(*consumers: Consumer) -> None:
        for consumer in consumers:
            for records in consumer.poll(timeout=0.1).values():
                seen.extend(record.value for record in records)

    try:
        deadline = time.monotonic() + 40
        while len(first.assignment()) != 2 or len(second.assignment()) != 2:
            assert time.monotonic() < deadline
            poll(first, second)
        assert not first.assignment() & second.assignment()
        with Producer(bootstrap_servers=bootstrap) as producer:
            for i in range(400):
                producer.send(topic, b"%d" % i, partition=i % 4)
        while len(seen) < 400:
            assert time.monotonic() < deadline
            poll(first, second)
        second.close()
        while len(first.assignment()) != 4:
            assert time.monotonic() < deadline
            poll(first)
        assert sorted(seen, key=int) == [b"%d" % i for i in range(400)]
    finally:
        first.close()
        second.close()


def test_a_broker_killed_and_back_loses_and_repeats_nothing(
    brokers: list[JavaBroker], bootstrap: str
) -> None:
    """With `kclient.testing`, which is for any Kafka."""
    topic, acked = make_topic(bootstrap, 2), Acknowledged()
    with (
        Observer(bootstrap) as observer,
        Producer(bootstrap_servers=bootstrap, request_timeout_ms=5000) as producer,
    ):
        replicated = observer.create_topic(f"{topic}-replicated", assignment={0: [2, 1]})
        assert observer.leader(replicated) == 2
        for i in range(4000):
            acked.track(producer.send(topic, b"%06d" % i, partition=i % 2), b"%06d" % i)
            if i == 2000:
                producer.flush(5)
                brokers[1].stop()
            if i % 100 == 0:
                time.sleep(0.01)
        assert observer.wait_leader(replicated, not_on=2) == 1
        observer.wait_isr(replicated, [1])
        observer.wait_live([1])  # its previous session has to expire before it may start
        brokers[1].start()
        brokers[1].wait_ready()
        assert producer.flush(60) == 0
        assert len(acked) == 4000
        observer.wait_isr(replicated)
        observer.assert_acked_equals_consumed(acked)
    found: dict[int, list[bytes]] = {0: [], 1: []}
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, p) for p in (0, 1)])
        consumer.seek_to_beginning()
        for _, record in zip(range(4000), consumer, strict=False):
            found[record.partition].append(record.value)
    for partition, values in found.items():
        assert values == [b"%06d" % i for i in range(partition, 4000, 2)]


# --- the operators' commands


Commands = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def kclient(bootstrap: str) -> Commands:
    """Runs a command; its exit code must be *code*, if that is not None."""

    def run_on_kafka(*words: str, code: int | None = 0) -> subprocess.CompletedProcess[bytes]:
        done = run("kclient", *words, environment=environment_for(bootstrap))
        assert code in (None, done.returncode), (done.returncode, done.stdout, done.stderr)
        return done

    return run_on_kafka


def test_partitions_are_moved_and_the_throttle_is_taken_away(
    kclient: Commands, bootstrap: str, tmp_path: Path
) -> None:
    topic, path, back = f"moved-{time.time_ns()}", tmp_path / "plan.json", tmp_path / "back.json"
    with AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, replica_assignment={0: [1], 1: [1]})])
        admin.wait_for_topics([topic])
    generate = ("reassign", "generate", "-t", topic, "--broker-list", "2", "-J")
    # The other broker may not have the topic in its metadata yet.
    eventually("a plan", lambda: kclient(*generate, code=None).returncode == 0)
    (plan,) = json.loads(kclient(*generate).stdout)
    assert [p["replicas"] for p in plan["current"]["partitions"]] == [[1], [1]]
    assert [p["replicas"] for p in plan["proposed"]["partitions"]] == [[2], [2]]
    path.write_text(json.dumps(plan["proposed"]))
    dry = kclient("reassign", "execute", "-f", str(path), "-d").stdout.decode()
    assert dry.startswith("Current partition replica assignment\n\n{")
    kclient("reassign", "verify", "-f", str(path), code=4)
    done = kclient("reassign", "execute", "-f", str(path), "--throttle", "100000000")
    lines = done.stdout.decode().splitlines()
    back.write_text(lines[2])
    assert "The inter-broker throttle limit was set to 100000000 B/s" in lines
    assert lines[-1] == f"Successfully started partition reassignments for {topic}-0,{topic}-1"

    outputs: list[str] = []

    def verified() -> bool:
        found = kclient("reassign", "verify", "-f", str(path), code=None)
        outputs.append(found.stdout.decode())
        return found.returncode == 0

    eventually("the partitions to be moved", verified, 60)
    # The throttle goes when nothing is under way, which may be visible before the new replicas are.
    text = "".join(outputs[-2:])
    assert f"Reassignment of partition {topic}-1 is completed." in text
    assert "Clearing broker-level throttles on brokers 1,2" in text
    assert f"Clearing topic-level throttles on topic {topic}" in text
    assert "Clearing" not in kclient("reassign", "verify", "-f", str(path)).stdout.decode()
    assert kclient("reassign", "list").stdout == b"No partition reassignments found.\n"
    kclient("reassign", "execute", "-f", str(back))
    eventually(
        "the way back",
        lambda: not kclient("reassign", "verify", "-f", str(back), code=None).returncode,
        60,
    )
    assert b"None of the specified" in kclient("reassign", "cancel", "-f", str(back)).stdout


def test_a_reassignment_that_cannot_end_is_listed_and_cancelled(
    kclient: Commands, bootstrap: str, brokers: list[JavaBroker], tmp_path: Path
) -> None:
    topic, path = f"stuck-{time.time_ns()}", tmp_path / "plan.json"
    with AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, replica_assignment={0: [1]})])
        admin.wait_for_topics([topic])
        with Producer(bootstrap_servers=bootstrap) as producer:
            for _ in range(200):
                producer.send(topic, b"x" * 10_000)
        path.write_text(
            json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [2]}]})
        )
        # One byte a second: it will not be there while we look.
        kclient("reassign", "execute", "-f", str(path), "--throttle", "1")
        (moving,) = json.loads(kclient("reassign", "list", "-J").stdout)
        assert (moving["topic"], moving["adding_replicas"], moving["removing_replicas"]) == (
            topic, [2], [1],
        )  # fmt: skip
        assert (
            f"{topic}-0: replicas: 2,1. adding: 2. removing: 1."
            in kclient("reassign", "list").stdout.decode()
        )
        assert (
            "Adding Replicas: 2\tRemoving Replicas: 1"
            in kclient("topic", "describe", topic).stdout.decode()
        )
        assert (
            b"existing partition assignment"
            in kclient("reassign", "execute", "-f", str(path), code=1).stderr
        )
        cancelled = kclient("reassign", "cancel", "-f", str(path)).stdout.decode()
        assert cancelled.startswith(
            f"Successfully cancelled partition reassignment for: {topic}-0\n"
        )
        assert "Clearing broker-level throttles" in cancelled
        assert json.loads(kclient("reassign", "list", "-J").stdout) == []
        found = admin.describe_topics([topic])[topic]
        assert not isinstance(found, KafkaError)
        assert found.partitions[0].replicas == (1,)


def test_leaders_are_elected_where_they_are_needed(kclient: Commands, bootstrap: str) -> None:
    topic = f"led-{time.time_ns()}"
    with AdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, replica_assignment={0: [1, 2], 1: [2, 1]})])
        admin.wait_for_topics([topic])
    done = kclient("cluster", "elect-leaders", "-t", topic)
    assert done.stdout.decode() == (
        f"Valid replica already elected for partitions {topic}-0, {topic}-1\n"
    )
    (row,) = json.loads(kclient("cluster", "elect-leaders", "-t", f"{topic}:1", "-J").stdout)
    assert (row["partition"], row["result"], row["error"]) == (1, "not_needed", None)
    refused = kclient("cluster", "elect-leaders", "-t", f"{topic}:7", code=1)
    assert f"partition: {topic}-7: UNKNOWN_TOPIC_OR_PARTITION" in refused.stderr.decode()
    kclient("cluster", "elect-leaders", "--election-type", "unclean", code=2)


def test_health_and_log_directories_are_read(kclient: Commands, bootstrap: str) -> None:
    (row,) = json.loads(kclient("cluster", "health", "-e", "-m", "30", "-J").stdout)
    assert (row["healthy"], row["brokers_expected"]) == (True, [1, 2])
    dirs = json.loads(kclient("cluster", "log-dirs", "-J").stdout)
    assert [(d["broker"], d["error"]) for d in dirs] == [(1, None), (2, None)]
    assert all(0 < d["usable_bytes"] <= d["total_bytes"] for d in dirs)
