"""AlterReplicaLogDirs (KIP-113): a replica moves under load, and its broker is killed in the midst of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kclient import AdminClient, Consumer, NewTopic, Producer, TopicPartition
from kclient.wire.errors import LogDirNotFound
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.cli import Cli
from tests.kit.replicated import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

TP = TopicPartition("t", 0)
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


def produce(producer: Producer, sent: list[bytes], count: int) -> None:
    for _ in range(count):
        sent.append(b"%08d" % len(sent) + b"x" * 50_000)
        producer.send("t", sent[-1], partition=0)
    producer.flush()


def place(admin: AdminClient) -> dict[str, bool]:
    """Each directory with a replica, and whether it is a copy."""
    found = admin.describe_log_dirs([1], [TP])[1]
    assert isinstance(found, dict)
    return {
        Path(path).name: directory.replicas[TP].is_future
        for path, directory in found.items()
        if TP in directory.replicas
    }


def move_by_command(cluster: Cluster, path: str, plan: Path) -> None:
    """Move the replica to the directory at *path* with `kclient reassign`."""
    entry = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": [path]}
    plan.write_text(json.dumps({"partitions": [entry]}))
    command, file = Cli(cluster), ("-f", str(plan))
    limit = ("--replica-alter-log-dirs-throttle", "500000000")
    started = command.out("reassign", "execute", *file, *limit)
    assert f"Successfully started moving log directory to {path} for replica t-0" in started
    eventually(
        "the move", lambda: command.run("reassign", "verify", *file, code=None).returncode == 0
    )
    done = command.out("reassign", "verify", *file)
    assert "Reassignment of replica t-0-1 completed successfully." in done
    assert "Clearing" not in done, "an earlier look has removed the throttle"


def test_a_replica_moves_under_load_and_its_broker_is_killed(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    cluster = broker_clusters(1)
    home = cluster[1].home
    cluster.terminate(1)
    paths = f"{home / 'one'},{home / 'two'}"
    # The copy takes some seconds: one chunk of 1 MiB for each.
    cluster.start(1, log_dirs=paths, **{RATE.replace(".", "_"): "1000000"})
    sent: list[bytes] = []

    with (
        AdminClient(bootstrap_servers=cluster.bootstrap, default_api_timeout_ms=20_000) as admin,
        Producer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=0) as producer,
    ):
        admin.create_topics([NewTopic("t", 1, 1)])
        admin.wait_for_topics(["t"])
        produce(producer, sent, 100)
        (source,) = place(admin)
        (target,) = {"one", "two"} - {source}
        asked = admin.alter_replica_log_dirs({1: {TP: str(home / "three")}})
        assert isinstance(asked[1], dict)
        assert isinstance(asked[1][TP], LogDirNotFound)
        asked = admin.alter_replica_log_dirs({1: {TP: str(home / target)}})
        assert asked == {1: {TP: None}}
        produce(producer, sent, 10)
        assert place(admin) == {source: False, target: True}
        cluster.kill(1)
        cluster.start(1, log_dirs=paths)
        eventually("the broker to be back", lambda: place(admin))
        produce(producer, sent, 10)
        eventually(
            "the move", lambda: place(admin) == {target: False} or produce(producer, sent, 1)
        )
        produce(producer, sent, 10)
        cluster.kill(1)
        cluster.start(1, log_dirs=paths)
        eventually("the log where it was moved", lambda: place(admin) == {target: False})
        move_by_command(cluster, str(home / source), tmp_path / "plan.json")
        assert place(admin) == {source: False}
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TP])
        received: list[bytes] = []
        while len(received) < len(sent):
            found = consumer.poll(timeout=10).get(TP, [])
            received += [each.value for each in found if isinstance(each.value, bytes)]
    assert received == sent
    assert not list(home.glob("*/t-0*-future"))
