"""Apache Kafka's admin tools, and its consumer with a rack, on three of our brokers."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import count
from pathlib import Path

import pytest

from kclient import AdminClient, ConfigResource, Producer, ResourceType
from kclient.admin.configs import ConfigSource
from kclient.admin.offset_csv import read_offsets
from kclient.admin.quotas import DEFAULT_NAME, QuotaEntity
from tests.kit.apache_kafka import QUIET, java, with_kafka
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.cli import Cli
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(180),
    with_kafka,
]

RACKS = {1: "east", 2: "west", 3: "west"}
_names = count(1)


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    """Three brokers; broker 3 has two log directories."""
    cluster = module_clusters(
        3,
        {
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "auto.leader.rebalance.enable": "false",
            "zookeeper.session.timeout.ms": "30000",
            "replica.lag.time.max.ms": "60000",
        },
        start=False,
    )
    home = cluster[3].home
    for broker_id, rack in RACKS.items():
        two = {"log_dirs": f"{home / 'one'},{home / 'two'}"} if broker_id == 3 else {}
        cluster.start(broker_id, wait=False, broker_rack=rack, **two)
    cluster.wait_ready()
    return cluster


def tool_command(tool: str, *words: str) -> list[str]:
    """Return the command that runs one of Kafka's tools."""
    return java("128m", QUIET, f"org.apache.kafka.tools.{tool}", *words)


def run(cluster: Cluster, tool: str, *words: str) -> str:
    """Run a tool and return what it printed; it must succeed."""
    command = tool_command(tool, "--bootstrap-server", cluster.bootstrap, *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def topic_on(cluster: Cluster, *replicas: list[int], records: int = 0) -> str:
    name = f"tools-{next(_names)}"
    Observer(cluster).create(name, list(replicas))
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for n in range(records):
            producer.send(name, b"%06d" % n * 100)
    return name


def test_log_dirs_and_elections(cluster: Cluster) -> None:
    name = topic_on(cluster, [1, 2], records=10)
    output = run(cluster, "LogDirsCommand", "--describe", "--topic-list", name)
    brokers = json.loads(output.splitlines()[-1])["brokers"]
    found = {
        broker["broker"]: [p for d in broker["logDirs"] for p in d["partitions"]]
        for broker in brokers
    }
    assert [len(found[n]) for n in (1, 2, 3)] == [1, 1, 0]
    assert found[1][0]["partition"] == f"{name}-0"
    assert found[1][0]["size"] > 6000
    assert (found[1][0]["offsetLag"], found[1][0]["isFuture"]) == (0, False)
    output = run(
        cluster, "LeaderElectionCommand", "--election-type", "preferred",
        "--topic", name, "--partition", "0",
    )  # fmt: skip
    assert f"Valid replica already elected for partitions {name}-0" in output


def configs(cluster: Cluster, *words: str) -> str:
    """Run kafka-configs and return what it printed; it must succeed."""
    command = java(
        "128m", QUIET, "kafka.admin.ConfigCommand", "--bootstrap-server", cluster.bootstrap
    )
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_client_quotas_are_set_and_described(cluster: Cluster) -> None:
    client = ("--entity-type", "clients", "--entity-name", "app one")
    both = ("--entity-type", "users", "--entity-default", *client)
    configs(
        cluster,
        "--alter",
        *client,
        "--add-config",
        "producer_byte_rate=1024,request_percentage=50.5",
    )
    configs(cluster, "--alter", *both, "--add-config", "consumer_byte_rate=2048")
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.describe_client_quotas() == {
            QuotaEntity(None, "app one"): {"producer_byte_rate": 1024, "request_percentage": 50.5},
            QuotaEntity(DEFAULT_NAME, "app one"): {"consumer_byte_rate": 2048},
        }
    shown = configs(cluster, "--describe", *client)
    assert "Quota configs for client-id 'app one' are" in shown
    assert "producer_byte_rate=1024.0" in shown
    assert "request_percentage=50.5" in shown
    configs(cluster, "--alter", *client, "--delete-config", "producer_byte_rate,request_percentage")
    shown = configs(cluster, "--describe", *both)
    assert "Quota configs for the default user-principal, client-id 'app one' are" in shown
    configs(cluster, "--alter", *both, "--delete-config", "consumer_byte_rate")
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.describe_client_quotas() == {}


def test_levels_of_loggers_are_set_and_described(cluster: Cluster) -> None:
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "2")
    configs(cluster, "--alter", *loggers, "--add-config", "kbroker.replica=DEBUG")
    shown = configs(cluster, "--describe", *loggers)
    assert "kbroker.replica=DEBUG sensitive=false" in shown
    assert "kbroker.replica.replica_manager=DEBUG sensitive=false" in shown
    assert "root=INFO sensitive=false" in shown
    mine = ConfigResource(ResourceType.BROKER_LOGGER, "2")
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_configs({mine: {"kbroker.replica": None}})
        entry = admin.describe_configs([mine])[mine]["kbroker.replica"]
        assert (entry.value, entry.source) == ("INFO", ConfigSource.BROKER_LOGGER)


def test_producers_are_described(cluster: Cluster) -> None:
    name = topic_on(cluster, [1, 2], records=10)
    asked = ("describe-producers", "--topic", name, "--partition", "0")
    rows = [line.split() for line in run(cluster, "TransactionsCommand", *asked).splitlines()]
    assert rows[0][:2] == ["ProducerId", "ProducerEpoch"]
    (row,) = rows[1:]
    # Epoch, the epoch of the last coordinator, the last sequence; no transaction is open.
    assert (row[1], row[2], row[3], row[5]) == ("0", "-1", "9", "None")
    of_follower = run(cluster, "TransactionsCommand", *asked, "--broker-id", "2")
    assert row[0] in of_follower


def directory_of(cluster: Cluster, topic: str) -> str:
    """Return the log directory of broker 3 that has the replica of partition 0, as kafka-log-dirs prints it."""
    output = run(
        cluster, "LogDirsCommand", "--describe", "--broker-list", "3", "--topic-list", topic
    )
    (broker,) = json.loads(output.splitlines()[-1])["brokers"]
    (found,) = [each for each in broker["logDirs"] if each["partitions"]]
    assert [each["isFuture"] for each in found["partitions"]] == [False]
    return Path(found["logDir"]).name


def test_partitions_are_moved(cluster: Cluster, tmp_path: Path) -> None:
    name, topics, plan = topic_on(cluster, [1], records=10), tmp_path / "topics", tmp_path / "plan"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": name}]}))
    tool = "reassign.ReassignPartitionsCommand"
    output = run(
        cluster, tool, "--generate", "--topics-to-move-json-file", str(topics),
        "--broker-list", "3",
    )  # fmt: skip
    plan.write_text(output.strip().splitlines()[-1])
    file = ("--reassignment-json-file", str(plan))
    output = run(cluster, tool, "--execute", *file, "--throttle", "50000000")
    assert f"Successfully started partition reassignment for {name}-0" in output
    eventually(
        "the move to end",
        lambda: (
            f"Reassignment of partition {name}-0 is completed."
            in run(cluster, tool, "--verify", *file)
        ),
        60,
    )
    assert Observer(cluster).placement(name).leader == 3
    other = cluster[3].home / ("two" if directory_of(cluster, name) == "one" else "one")
    moved = json.loads(plan.read_text())
    moved["partitions"][0]["log_dirs"] = [str(other)]
    plan.write_text(json.dumps(moved))
    limit = ("--replica-alter-log-dirs-throttle", "50000000")
    output = run(cluster, tool, "--execute", *file, *limit)
    assert f"Successfully started moving log directory to {other} for replica {name}-0" in output
    eventually(
        "the move within broker 3 to end",
        lambda: (
            f"Reassignment of replica {name}-0-3 completed successfully."
            in run(cluster, tool, "--verify", *file)
        ),
        60,
    )
    assert directory_of(cluster, name) == other.name


def test_replicas_are_compared(cluster: Cluster) -> None:
    name = topic_on(cluster, [1, 2], [2, 3], records=10)
    command = tool_command(
        "ReplicaVerificationTool", "--broker-list", cluster.bootstrap, "--topics-include", name,
        "--time", "-2", "--report-interval-ms", "100",
    )  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tool:
        assert tool.stdout is not None
        try:
            output = iter(tool.stdout.readline, "")
            while ": max lag is 0 for partition" not in (line := next(output)):
                assert "unmatched" not in line
        finally:
            tool.kill()
    assert line.endswith("among 2 partitions\n")


def test_the_consumer_reads_from_its_rack_while_the_leader_stands_still(cluster: Cluster) -> None:
    records = 5000
    name = topic_on(cluster, [1, 2], records=records)
    command = tool_command(
        "consumer.ConsoleConsumer", "--bootstrap-server", cluster.bootstrap,
        "--topic", name, "--partition", "0", "--offset", "earliest",
        "--consumer-property", "client.rack=west",
        "--consumer-property", "max.partition.fetch.bytes=1000",
        "--consumer-property", "max.poll.records=1",
    )  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer:
        assert consumer.stdout is not None
        try:
            found = [consumer.stdout.readline()]
            cluster.pause(1)
            while len(found) < records:
                found.append(consumer.stdout.readline())
        finally:
            cluster.resume(1)
            consumer.kill()
    assert [line[:6] for line in found] == [f"{n:06}" for n in range(records)]


def test_a_topic_is_described_by_its_id(cluster: Cluster) -> None:
    topic = topic_on(cluster, [1, 2], [2, 3])
    by_name = run(cluster, "TopicCommand", "--describe", "--topic", topic)
    (topic_id,) = set(re.findall(r"TopicId: (\S+)", by_name))
    assert run(cluster, "TopicCommand", "--describe", "--topic-id", topic_id) == by_name


def test_offsets_are_reset_to_the_same_ones_and_files_are_read_by_both(
    cluster: Cluster, tmp_path: Path
) -> None:
    name, file = topic_on(cluster, [1], [2]), tmp_path / "offsets.csv"
    lines = [{"value": f"{n}", "timestamp": 1_600_000_000_000 + 1000 * n} for n in range(10)]
    given = "".join(json.dumps(line) + "\n" for line in lines).encode()
    tool, both = "consumer.group.ConsumerGroupCommand", ("--group", "one", "--group", "a,b")
    at = ("--to-datetime", "2020-09-13T13:26:45.001+01:00")
    cli = Cli(cluster)
    cli.run("produce", name, "-p", "0", "--input", "json", stdin=given)

    def planned(*words: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for row in cli.json("group", *words):
            found.setdefault(row["group"], []).append(row["new_offset"])
        return found

    # By time, in a dry run: what Kafka's tool exports is imported.
    exported = run(
        cluster, tool, "--reset-offsets", *both, "--topic", name, *at, "--export", "--dry-run"
    )
    ours = planned("reset-offsets", "one", "a,b", "-t", name, *at)
    assert ours == {"one": [6, 0], "a,b": [6, 0]}
    # Warnings of the tool are before its CSV.
    file.write_text("".join(x for x in exported.splitlines(True) if f",{name}," in x))
    assert planned("import", str(file), "--execute") == ours
    # From a file of ours, with an offset behind the end.
    text = cli.out("group", "export", "one", "a,b").replace(f"one,{name},0,6", f"one,{name},0,99")
    file.write_text(text)
    clipped = planned("reset-offsets", "one", "a,b", "--from-file", str(file))
    assert clipped == {"one": [10, 0], "a,b": [6, 0]}
    run(cluster, tool, "--reset-offsets", *both, "--from-file", str(file), "--execute")
    found = read_offsets(cli.out("group", "export", "one", "a,b"), group=None)
    assert {group: list(offsets.values()) for group, offsets in found.items()} == clipped
