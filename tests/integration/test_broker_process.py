"""A broker as a process: start, refusals to start, signals, crashes, lost sessions."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from kbroker.local.cluster import broker_command, broker_environment
from kbroker.local.processes import start_bound_to_us
from kbroker.local.zookeeper import free_ports
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.versions import ApiKey
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.operators import ask_broker
from tests.kit.waiting import eventually
from tests.kit.zookeeper import Ensemble, zookeeper_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def make_topic(cluster: Cluster, name: str, partitions: int = 1) -> None:
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1)
    client = admin(cluster)  # kept: without a reference librdkafka gives the request up
    client.create_topics([topic])[name].result(10)


def send(cluster: Cluster, topic: str, values: list[bytes], partition: int = 0) -> list[bytes]:
    """Produce to one partition with idempotence off and no retries hidden; return what was acked."""
    acked: list[bytes] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(
            topic,
            value=value,
            partition=partition,
            on_delivery=lambda error, message: None if error else acked.append(message.value()),
        )
        producer.poll(0)
    assert producer.flush(20) == 0
    return acked


def read_all(cluster: Cluster, topic: str, count: int, partition: int = 0) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        found += [m.value() for m in consumer.consume(1000, 0.2) if m.error() is None]
    consumer.close()
    return found


@pytest.fixture
def zookeeper_tool(zookeeper_server: Ensemble) -> Iterator[KazooClient]:
    with zookeeper_at(zookeeper_server.connect) as client:
        yield client


def start_and_fail(directory: Path, **settings: str) -> tuple[int, str]:
    """Start a broker that must exit; return its exit code and its output."""
    directory.mkdir(exist_ok=True)
    path = directory / "server.properties"
    lines = [f"{key.replace('_', '.')}={value}\n" for key, value in settings.items()]
    path.write_text("".join(lines))
    with (directory / "output").open("wb") as output:
        process = start_bound_to_us(
            broker_command(path), output=output, environment=broker_environment()
        )
        code = process.wait(30)
    return code, (directory / "output").read_text()


# --- starting ---


def test_three_brokers_know_each_other_and_one_controller(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(3)
    eventually("three brokers", lambda: len(admin(cluster).list_topics(timeout=5).brokers) == 3)
    metadata = admin(cluster).list_topics(timeout=5)
    assert {(b.host, b.port) for b in metadata.brokers.values()} == {
        ("127.0.0.1", broker.port) for broker in cluster.brokers.values()
    }
    assert metadata.controller_id in cluster.brokers


def test_a_restarted_broker_reports_no_topic_or_coordinator_as_unknown(
    broker_clusters: MakeCluster,
) -> None:
    """A broker listens before it has the metadata. An UNKNOWN response would make clients rebalance their groups."""
    cluster = broker_clusters(1)
    port = cluster[1].port
    make_topic(cluster, "t", 300)
    topic = MetadataRequest(
        topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False
    )
    group = FindCoordinatorRequest(coordinator_keys=["g"])
    eventually(
        "it",
        lambda: not ask_broker(port, ApiKey.FIND_COORDINATOR, group).coordinators[0].error_code,
    )
    cluster.kill(1)
    cluster.start(1, wait=False)
    topics, coordinators = [], []
    deadline = time.monotonic() + 30
    while len(coordinators) < 10:
        assert time.monotonic() < deadline, "no answers"
        try:
            topics += ask_broker(port, ApiKey.METADATA, topic).topics
            coordinators += ask_broker(port, ApiKey.FIND_COORDINATOR, group).coordinators
        except OSError:  # it does not listen yet
            time.sleep(0.002)
    assert {(found.error_code, len(found.partitions)) for found in topics} == {(0, 300)}
    assert {(found.error_code, found.error_message or "") for found in coordinators} == {(0, "")}
    cluster.wait_ready()


def test_every_problem_of_the_configuration_is_listed_at_once(tmp_path: Path) -> None:
    code, output = start_and_fail(
        tmp_path / "x", broker_id="one", listeners="PLAINTEXT://:99999", log_dirs=str(tmp_path)
    )
    assert code == 1
    for name in ("broker.id", "listeners", "zookeeper.connect"):
        assert name in output
    assert "Traceback" not in output


def test_zookeeper_that_does_not_answer_is_named_within_the_timeout(tmp_path: Path) -> None:
    before = time.monotonic()
    code, output = start_and_fail(
        tmp_path / "x",
        broker_id="1",
        listeners="PLAINTEXT://127.0.0.1:0",
        zookeeper_connect="127.0.0.1:1/east",
        zookeeper_connection_timeout_ms="1500",
        log_dirs=str(tmp_path / "data"),
    )
    assert code == 1
    assert time.monotonic() - before < 10
    assert "127.0.0.1:1" in output
    assert "zookeeper.connection.timeout.ms" in output
    assert "Traceback" not in output


def test_a_port_in_use_is_named(broker_clusters: MakeCluster, tmp_path: Path) -> None:
    cluster = broker_clusters(1)
    code, output = start_and_fail(
        tmp_path / "x",
        broker_id="2",
        listeners=f"PLAINTEXT://{cluster[1].address}",
        zookeeper_connect=cluster.zookeeper_connect,
        log_dirs=str(tmp_path / "data"),
    )
    assert code == 1
    assert cluster[1].address in output
    assert "Traceback" not in output


def test_a_broker_id_in_use_is_refused(broker_clusters: MakeCluster, tmp_path: Path) -> None:
    cluster = broker_clusters(1)
    code, output = start_and_fail(
        tmp_path / "x",
        broker_id="1",
        listeners="PLAINTEXT://127.0.0.1:0",
        zookeeper_connect=cluster.zookeeper_connect,
        log_dirs=str(tmp_path / "data"),
    )
    assert code == 1
    assert "broker.id=1 is already registered" in output
    assert cluster[1].address in output


def test_a_log_directory_in_use_is_refused(broker_clusters: MakeCluster, tmp_path: Path) -> None:
    cluster = broker_clusters(1)
    code, output = start_and_fail(
        tmp_path / "x",
        broker_id="2",
        listeners="PLAINTEXT://127.0.0.1:0",
        zookeeper_connect=cluster.zookeeper_connect,
        log_dirs=str(cluster[1].data),
    )
    assert code == 1
    assert str(cluster[1].data) in output
    assert "Traceback" not in output


def test_the_log_directory_of_another_cluster_is_refused_and_kept(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    cluster = broker_clusters(1)
    make_topic(cluster, "kept")
    cluster.terminate(1)
    code, output = start_and_fail(
        tmp_path / "x",
        broker_id="1",
        listeners="PLAINTEXT://127.0.0.1:0",
        zookeeper_connect=f"{cluster.zookeeper_connect}-other",
        log_dirs=str(cluster[1].data),
    )
    assert code == 1
    ours = (cluster[1].data / "meta.properties").read_text()
    assert ours.split("cluster.id=")[1].split()[0] in output
    assert (cluster[1].data / "kept-0").is_dir()
    assert "Traceback" not in output


# --- stopping ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_shutdown(
    broker_clusters: MakeCluster, zookeeper_tool: KazooClient, number: signal.Signals
) -> None:
    cluster = broker_clusters(1)
    make_topic(cluster, "t")
    send(cluster, "t", [b"1"])
    process = cluster[1].process
    assert process is not None
    process.send_signal(number)
    assert process.wait(10) == 0
    chroot = "/" + cluster.zookeeper_connect.partition("/")[2]
    assert zookeeper_tool.get_children(f"{chroot}/brokers/ids") == []
    assert (cluster[1].data / ".kafka_cleanshutdown").exists()


def test_a_broker_stops_in_bounded_time_without_zookeeper(
    broker_clusters: MakeCluster, own_ensemble: Ensemble
) -> None:
    cluster = broker_clusters(1, zookeeper=f"{own_ensemble.connect}/k")
    own_ensemble.kill()
    cluster.terminate(1, timeout=20)


def test_a_broker_that_still_waits_for_zookeeper_can_be_stopped(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nzookeeper.connect=127.0.0.1:1\n"
        f"log.dirs={tmp_path / 'data'}\nzookeeper.connection.timeout.ms=60000\n"
    )
    with (tmp_path / "log").open("wb") as log:
        process = start_bound_to_us(
            broker_command(path), output=log, environment=broker_environment()
        )
    eventually("the lock", (tmp_path / "data" / ".lock").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


# --- crashing ---


def test_a_killed_broker_is_back_at_once_although_its_session_has_not_expired(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(1, {"zookeeper.session.timeout.ms": "18000"})
    make_topic(cluster, "t")
    acked = send(cluster, "t", [b"%d" % n for n in range(100)])
    cluster.restart(1)
    assert cluster[1].ready_after < 8
    assert read_all(cluster, "t", 100) == acked == [b"%d" % n for n in range(100)]


def test_no_acknowledged_record_is_lost_or_doubled_by_kill_9_during_produce(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(1)
    make_topic(cluster, "t")
    acked: list[bytes] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "acks": "all",
            "retries": 0,
            "linger.ms": 1,
            "message.timeout.ms": 3000,
            "log_level": 0,
        }
    )
    for number in range(200_000):
        producer.produce(
            "t",
            value=b"%d" % number,
            partition=0,
            on_delivery=lambda error, m: None if error else acked.append(m.value()),
        )
        producer.poll(0 if number % 100 else 0.001)
        if len(acked) >= 5000:
            break
    cluster.kill(1)  # with some hundred records on their way
    producer.flush(10)
    cluster.start(1)
    assert acked
    high = admin_end_offset(cluster, "t")
    found = read_all(cluster, "t", high)
    numbers = [int(value) for value in found]
    assert len(set(numbers)) == len(numbers), "nothing twice: there were no retries"
    assert numbers == sorted(numbers)
    assert set(acked) <= set(found)


def admin_end_offset(cluster: Cluster, topic: str) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "x",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + 15
    while True:
        try:
            _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)
            return int(high)
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        finally:
            if time.monotonic() > deadline:
                consumer.close()


def test_the_controller_is_replaced_when_it_is_killed(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(3)
    first = admin(cluster).list_topics(timeout=5).controller_id
    cluster.kill(first)
    survivors = [b for n, b in cluster.brokers.items() if n != first]
    client = AdminClient({"bootstrap.servers": survivors[0].address, "log_level": 0})

    def replaced() -> bool:
        metadata = client.list_topics(timeout=5)
        return metadata.controller_id not in (first, -1) and first not in metadata.brokers

    eventually("another controller", replaced, 12)
    topic = NewTopic("after", num_partitions=2, replication_factor=1)
    client.create_topics([topic])["after"].result(10)


# --- ZooKeeper sessions ---


def test_a_broker_paused_beyond_its_session_joins_again_and_serves(
    broker_clusters: MakeCluster, zookeeper_tool: KazooClient
) -> None:
    cluster = broker_clusters(2, {"zookeeper.session.timeout.ms": "2000"})
    chroot = "/" + cluster.zookeeper_connect.partition("/")[2]
    make_topic(cluster, "t", partitions=4)
    before = zookeeper_tool.exists(f"{chroot}/brokers/ids/1").czxid
    cluster.pause(1)
    eventually("it to be gone", lambda: zookeeper_tool.exists(f"{chroot}/brokers/ids/1") is None)
    cluster.resume(1)
    eventually(
        "it to be back", lambda: zookeeper_tool.exists(f"{chroot}/brokers/ids/1") is not None
    )
    assert zookeeper_tool.exists(f"{chroot}/brokers/ids/1").czxid > before
    for partition in range(4):
        values = [b"%d-%d" % (partition, n) for n in range(10)]
        assert send(cluster, "t", values, partition) == values
        assert read_all(cluster, "t", 10, partition) == values


def test_brokers_go_on_when_zookeeper_is_restarted(
    broker_clusters: MakeCluster, own_ensemble: Ensemble
) -> None:
    cluster = broker_clusters(2, zookeeper=f"{own_ensemble.connect}/k")
    make_topic(cluster, "t", partitions=2)
    own_ensemble.kill()
    # Leaders go on without ZooKeeper: it is not on the path of a record.
    assert send(cluster, "t", [b"1"], 0) == [b"1"]
    assert send(cluster, "t", [b"2"], 1) == [b"2"]
    own_ensemble.start()
    eventually("a topic after the restart", lambda: made(cluster, "after"), 20)
    assert send(cluster, "after", [b"3"]) == [b"3"]


def test_sessions_survive_the_death_of_the_zookeeper_leader(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    ensemble = Ensemble(tmp_path / "three", servers=3)
    ensemble.start()
    try:
        cluster = broker_clusters(
            2, {"zookeeper.session.timeout.ms": "10000"}, zookeeper=f"{ensemble.connect}/k"
        )
        make_topic(cluster, "before")
        leader = ensemble.leader()
        ensemble.kill(leader)
        assert send(cluster, "before", [b"1"]) == [b"1"]
        eventually("a topic on two servers", lambda: made(cluster, "after"), 20)
        ensemble.start(leader)
        for broker in cluster.brokers.values():
            assert broker.log.count("registered at") == 1, "the session went on"
            assert "expired" not in broker.log
    finally:
        ensemble.kill()


def made(cluster: Cluster, name: str) -> bool:
    try:
        make_topic(cluster, name)
    except Exception as error:
        return "already exists" in str(error)
    return True


def test_wiped_zookeeper_is_left_with_an_explanation(
    broker_clusters: MakeCluster, own_ensemble: Ensemble, tmp_path: Path
) -> None:
    cluster = broker_clusters(1, zookeeper=f"{own_ensemble.connect}/k")
    make_topic(cluster, "kept")
    own_ensemble.kill()
    for data in own_ensemble.directory.glob("zookeeper-*/data/version-2"):
        for file in data.iterdir():
            file.unlink()
        data.rmdir()
    own_ensemble.start()
    process = cluster[1].process
    assert process is not None
    assert process.wait(30) == 1
    assert "ZooKeeper now holds" in cluster[1].log
    assert (cluster[1].data / "kept-0").is_dir()


# --- the command line ---


def test_stop_ends_the_broker_of_a_file_with_a_controlled_shutdown(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(2)

    def stop(number: int, *options: str) -> subprocess.CompletedProcess[str]:
        path = cluster[number].home / "server.properties"
        command = [*broker_command(path)[:3], "stop", str(path), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    first, second = cluster[1].process, cluster[2].process
    assert first is not None
    assert second is not None
    result = stop(1)
    assert (result.returncode, first.wait(10)) == (0, 0), result.stderr
    assert f"stopped: process {first.pid}" in result.stderr
    assert "shutting down" in cluster[1].log
    assert second.poll() is None
    result = stop(1)
    assert result.returncode == 1
    assert "no broker runs with" in result.stderr
    second.send_signal(signal.SIGSTOP)
    result = stop(2, "--timeout", "0.2")
    assert result.returncode == 1
    assert f"kill -9 {second.pid}" in result.stderr
    second.send_signal(signal.SIGCONT)
    assert second.wait(30) == 0


def test_check_config_starts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nzookeeper.connect=127.0.0.1:1\n"
        f"log.dirs={tmp_path / 'data'}\nnum.partition=3\n"
        "log.retention.hours=1\nlog.retention.ms=5000\nnum.network.threads=8\n"
    )
    command = [*broker_command(path)[:3], "check-config", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 0
    assert result.stdout.splitlines() == [
        "honoured: broker.id=1",
        "honoured: listeners=PLAINTEXT://127.0.0.1:0",
        "honoured: zookeeper.connect=127.0.0.1:1",
        f"honoured: log.dirs={tmp_path / 'data'}",
        "honoured: log.retention.ms=5000",
        "warning: 'num.partition': unknown setting, ignored; did you mean num.partitions?",
        "warning: accepted, no effect (log.retention.ms overrides it): log.retention.hours",
        "warning: accepted, no effect: num.network.threads",
        f"{path}: 8 settings, no problem",
    ]
    assert not (tmp_path / "data").exists()
    result = subprocess.run(
        [*command, "--override", "broker.id=x"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert result.returncode == 1
    assert "broker.id" in result.stdout


def test_a_broker_on_port_0_prints_the_port_it_was_given(
    zookeeper_connect: str, tmp_path: Path
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        f"broker.id=7\nlisteners=PLAINTEXT://127.0.0.1:0\nzookeeper.connect={zookeeper_connect}\n"
        f"log.dirs={tmp_path / 'data'}\n"
    )
    assert free_ports(1)
    with (tmp_path / "log").open("wb") as log:
        process = start_bound_to_us(
            broker_command(path),
            output=log,
            stdout=subprocess.PIPE,
            environment=broker_environment(),
        )
    with process:
        assert process.stdout is not None
        ready = process.stdout.readline().decode()
        process.send_signal(signal.SIGTERM)
    port = int(ready.rpartition(":")[2])
    assert ready == f"READY broker.id=7 PLAINTEXT://127.0.0.1:{port}\n"
    assert port > 0
