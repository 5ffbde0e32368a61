"""The operators' commands against three real brokers; one of them stops and starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count

import pytest

from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.cli import Cli
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

_names = count(1000)
"""Four digits, so that topics sort by name in the order of their creation, in any order of the tests."""


RACKS = {1: "east", 2: "east", 3: "west"}


def start(cluster: Cluster, *broker_ids: int) -> None:
    """Start brokers, each in its rack, and wait until they are ready."""
    for broker_id in broker_ids:
        cluster.start(broker_id, wait=False, broker_rack=RACKS[broker_id])
    cluster.wait_ready(*broker_ids)


@pytest.fixture(scope="module")
def cli(module_clusters: MakeCluster) -> Cli:
    cluster = module_clusters(
        3,
        {
            "auto.create.topics.enable": "false",
            "auto.leader.rebalance.enable": "false",
            "replica.lag.time.max.ms": "2000",
            # A paused broker stays registered, however long the commands take; a broker that stops closes its session.
            "zookeeper.session.timeout.ms": "40000",
        },
        racks=RACKS,
    )
    return Cli(cluster)


@pytest.fixture(autouse=True)
def every_broker_is_back(cli: Cli) -> Iterator[None]:
    """Start the brokers that a test stopped."""
    yield
    if cli.cluster.down:
        start(cli.cluster, *cli.cluster.down)
    cli.run("cluster", "health", "-e", "-m", "40")


def replicated(cli: Cli, *replicas: list[int], **configs: str) -> str:
    """Make a topic on the brokers given, partition by partition, and wait until its ISR is full."""
    name = f"topic-{next(_names)}"
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    Observer(cli.cluster).create(name, list(replicas), settings)
    return name


def partitions_of(lines: str) -> list[tuple[str, int]]:
    """Read topic and partition out of the lines of `topic describe`."""
    found = re.findall(r"^\tTopic: (\S+)\tPartition: (\d+)\t", lines, re.MULTILINE)
    return [(topic, int(number)) for topic, number in found]


def test_health_reports_what_is_wrong_and_waits_until_it_is_repaired(cli):
    name, lone = (
        replicated(cli, [1, 2, 3], [2, 3, 1], min_insync_replicas="3"),
        replicated(cli, [3]),
    )
    text = cli.out("cluster", "health")
    assert text.splitlines()[0].split() == ["Healthy:", "yes"]
    assert "Brokers expected:" in text
    cli.cluster.terminate(3)

    def row():
        (found,) = json.loads(cli.run("cluster", "health", "-J", code=None).stdout)
        return found if found["brokers_down"] and found["leaderless_partitions"] else None

    found = eventually("broker 3 to be missed", row)
    assert (found["healthy"], found["brokers_expected"], found["brokers_down"]) == (
        False, [1, 2, 3], [3],
    )  # fmt: skip
    assert found["controller"] in (1, 2)
    output = cli.run("cluster", "health", code=4).stdout.decode()
    assert f"{lone}-0 (waits for broker 3)" in output
    assert f"{lone}-0" in found["leaderless_partitions"]
    assert found["leaderless_isr"][f"{lone}-0"] == [3]
    assert {f"{name}-0", f"{name}-1"} <= set(found["under_min_isr_partitions"])
    assert {f"{name}-0", f"{name}-1"} <= set(found["under_replicated_partitions"])
    assert "1 broker down: 3" in found["reasons"]
    checked = {each["check"]: each for each in cli.json("doctor", code=4)}
    assert checked["brokers"]["message"] == "down, with replicas: broker 3"
    assert f"{lone}-0 waits for broker 3" in checked["partitions"]["items"]
    assert {each: checked[each]["status"] for each in ("listeners", "controller", "min-isr")} == {
        "listeners": "ok", "controller": "ok", "min-isr": "failed",
    }  # fmt: skip
    assert cli.run("cluster", "health", "-e", "-m", "3", code=4).stderr == (
        b"kclient: not healthy after 3 s\n"
    )
    start(cli.cluster, 3)
    watched = cli.out("cluster", "health", "-w", "-e", "-m", "30")
    output = [line.split()[-1] for line in watched.splitlines() if line.startswith("Healthy:")]
    assert output[-1] == "yes"


def test_describe_filters_what_an_operator_looks_for(cli):
    whole = replicated(cli, [1, 2], [2, 1])
    two = replicated(cli, [1, 3], [3, 1], min_insync_replicas="2", retention_ms="60000")
    three = replicated(cli, [1, 2, 3], min_insync_replicas="2")
    lone = replicated(cli, [3])
    mine = (whole, two, three, lone)
    cli.cluster.terminate(3)

    def describe(*words):
        return partitions_of(cli.out("topic", "describe", *mine, *words))

    eventually("the leader of the lost partition to be gone",
               lambda: describe("--unavailable-partitions") == [(lone, 0)])  # fmt: skip
    eventually("broker 3 to leave every ISR",
               lambda: set(describe("--at-min-isr-partitions")) == {(three, 0), (lone, 0)})  # fmt: skip
    hurt = sorted([(two, 0), (two, 1), (three, 0)])
    assert sorted(describe("--under-replicated-partitions")) == hurt
    assert sorted(describe("--under-min-isr-partitions")) == sorted([(two, 0), (two, 1), (lone, 0)])
    assert len(describe()) == 6
    alone = cli.out("topic", "describe", *mine, "--topics-with-overrides").splitlines()
    assert [line.split("\t")[0] for line in alone] == [f"Topic: {two}", f"Topic: {three}"]
    assert alone[0].endswith("Configs: min.insync.replicas=2,retention.ms=60000")
    (row,) = cli.json("topic", "describe", three, "--at-min-isr-partitions")
    assert (row["partition"], row["isr"], row["min_isr"]) == (0, [1, 2], 2)


def test_internal_topics_are_left_out_or_not(cli):
    cli.run("group", "list")
    name = replicated(cli, [1])
    with cli.start("consume", name, "-g", "g", "-o", "start", "-e") as consumer:
        assert consumer.wait(20) == 0
    assert "__consumer_offsets" not in cli.out("topic", "describe")
    assert "__consumer_offsets" in cli.out("topic", "describe", "--internal")
    assert "__consumer_offsets" not in cli.out(
        "topic", "describe", "__consumer_offsets", "--exclude-internal"
    )


def test_brokers_are_listed_with_what_they_carry(cli):
    before = {row["id"]: row for row in cli.json("cluster", "brokers")}
    replicated(cli, [1, 2], [2, 3], [1, 3])
    after = {row["id"]: row for row in cli.json("cluster", "brokers")}
    gained = {
        n: [
            after[n][key] - before[n][key]
            for key in ("replicas", "in_sync", "leaders", "preferred")
        ]
        for n in after
    }
    assert gained == {1: [2, 2, 2, 2], 2: [2, 2, 1, 1], 3: [2, 2, 0, 0]}
    assert [row["port"] for row in after.values()] == [b.port for b in cli.cluster.brokers.values()]
    assert sum(row["controller"] for row in after.values()) == 1
    assert cli.out("cluster", "brokers").count("*") == 1


def test_log_directories_are_listed_with_their_replicas(cli):
    name = replicated(cli, [1, 2], [2, 3])
    cli.run("produce", name, "-p", "0", stdin=b"0123456789" * 50)
    rows = cli.json("cluster", "log-dirs", "-t", name, "-r")
    assert [(row["broker"], row["partition"], row["is_future"]) for row in rows] == [
        (1, 0, False), (2, 0, False), (2, 1, False), (3, 1, False),
    ]  # fmt: skip
    leader = rows[0]
    assert leader["size"] > 500
    assert leader["log_dir"] == str(cli.cluster[1].data)
    by_broker = {row["broker"]: row for row in cli.json("cluster", "log-dirs")}
    assert sorted(by_broker) == [1, 2, 3]
    assert by_broker[1]["size"] >= leader["size"]
    assert 0 < by_broker[1]["usable_bytes"] < by_broker[1]["total_bytes"]
    assert by_broker[1]["error"] is None
    (only,) = cli.json("cluster", "log-dirs", "--broker", "3")
    assert only["broker"] == 3
    assert b"no live broker 9" in cli.run("cluster", "log-dirs", "--broker", "9", code=1).stderr
    assert cli.out("cluster", "log-dirs").startswith("BROKER  LOG-DIR ")


def test_replicas_are_spread_over_racks(cli):
    name = f"spread-{next(_names)}"
    cli.run("topic", "create", name, "-p", "6", "-r", "2")
    cli.run("topic", "add-partitions", name, "-n", "9")
    rows = eventually(
        "all partitions to be there",
        lambda: len(found := cli.json("topic", "describe", name)) == 9 and found,
    )
    for row in rows:
        assert {RACKS[broker] for broker in row["replicas"]} == {"east", "west"}, row
    leaders = [row["replicas"][0] for row in rows]
    assert sorted(leaders.count(broker) for broker in RACKS) == [3, 3, 3]
    assert {row["rack"] for row in cli.json("cluster", "brokers")} == {"east", "west"}


def leaders_of(cli: Cli, topic: str) -> list[int]:
    return [row["leader"] for row in cli.json("topic", "describe", topic)]


def isr_of(cli: Cli, topic: str) -> list[set[int]]:
    return [set(row["isr"]) for row in cli.json("topic", "describe", topic)]


def test_leaders_go_back_to_the_preferred_replica(cli):
    name = replicated(cli, [1, 2], [2, 1])
    cli.cluster.terminate(1)
    eventually("broker 2 to lead", lambda: leaders_of(cli, name) == [2, 2])
    start(cli.cluster, 1)
    eventually("broker 1 to be in sync", lambda: isr_of(cli, name) == [{1, 2}] * 2)
    done = cli.out("cluster", "elect-leaders", "-t", name)
    assert done == (
        f"Successfully completed leader election (PREFERRED) for partitions {name}-0\n"
        f"Valid replica already elected for partitions {name}-1\n"
    )
    eventually("broker 1 to lead", lambda: leaders_of(cli, name) == [1, 2])
    refused = cli.run("cluster", "elect-leaders", "-t", f"{name}:5,6", code=1).stderr.decode()
    assert f"for partitions: {name}-5, {name}-6: UNKNOWN_TOPIC_OR_PARTITION: there is no" in refused


def test_partitions_are_moved_to_other_brokers(cli, tmp_path):
    name, path = replicated(cli, [1], [1]), tmp_path / "plan.json"
    cli.run("produce", name, stdin=b"a\nb\nc\nd\n")
    (plan,) = cli.json("reassign", "generate", "-t", name, "--broker-list", "2,3", "-r", "2")
    for each in plan["proposed"]["partitions"]:
        assert sorted(each["replicas"]) == [2, 3]
    path.write_text(json.dumps(plan["proposed"]))
    cli.run("reassign", "execute", "-f", str(path), "-d")
    cli.run("reassign", "verify", "-f", str(path), code=4)
    lines = cli.out("reassign", "execute", "-f", str(path), "--throttle", "50000000").splitlines()
    assert json.loads(lines[2]) == plan["current"], "for the way back"
    assert lines[-1] == f"Successfully started partition reassignments for {name}-0,{name}-1"
    output = []

    def verified():
        done = cli.run("reassign", "verify", "-f", str(path), code=None)
        output.append(done.stdout.decode())
        return done.returncode == 0

    eventually("the partitions to be moved", verified)
    assert "The inter-broker throttle limit was set to 50000000 B/s" in lines
    assert "Clearing broker-level throttles on brokers 1,2,3" in "".join(output)
    assert f"Clearing topic-level throttles on topic {name}" in "".join(output)
    assert cli.json("topic", "describe", name)[0]["configs"] == {}
    rows = cli.json("reassign", "verify", "-f", str(path))
    assert [row["bytes_to_copy"] for row in rows] == [None, None], "nothing is under way"
    assert [row["state"] for row in rows] == ["completed", "completed"]
    assert sorted(cli.out("consume", name, "-e", "-f", "%v")) == list("abcd")
    assert cli.out("reassign", "list") == "No partition reassignments found.\n"


def test_a_reassignment_that_does_not_end_is_cancelled(cli, tmp_path):
    name, path = replicated(cli, [1]), tmp_path / "plan.json"
    # The controller handles the reassignment, so another broker is paused.
    paused = 2 if Observer(cli.cluster).controller() == 3 else 3
    partition = {"topic": name, "partition": 0, "replicas": [paused]}
    path.write_text(json.dumps({"partitions": [partition]}))
    cli.cluster.pause(paused)
    try:
        cli.run("reassign", "execute", "-f", str(path))
        (row,) = cli.json("reassign", "list")
        assert (row["adding_replicas"], row["removing_replicas"]) == ([paused], [1])
        assert (
            b"existing partition" in cli.run("reassign", "execute", "-f", str(path), code=1).stderr
        )
        assert cli.out("reassign", "cancel", "-f", str(path)) == (
            f"Successfully cancelled partition reassignment for: {name}-0\n"
        )
        assert cli.json("reassign", "list") == []
    finally:
        cli.cluster.resume(paused)
    eventually("what was", lambda: isr_of(cli, name) == [{1}])
    assert cli.out("reassign", "cancel", "-f", str(path)).startswith("None of the specified")


@pytest.mark.parametrize(
    ("plan", "words", "code"),
    [
        ([("nosuch", 0, [1])], "there is no partition nosuch-0", 1),
        ([(None, 7, [1])], "there is no partition", 1),
        ([(None, 0, [1, 8, 9])], "there is no live broker 8, 9; the live brokers are 1, 2, 3", 1),
        ([(None, 0, [])], "the replica list of", 2),
        ([(None, 0, [1, 1])], "1 more than once", 2),
        ([(None, 0, ["1"])], "expected a number", 2),
    ],
)
def test_a_plan_that_makes_no_sense_changes_nothing(cli, tmp_path, plan, words, code):
    name, path = replicated(cli, [1]), tmp_path / "plan.json"
    partitions = [
        {"topic": topic or name, "partition": partition, "replicas": replicas}
        for topic, partition, replicas in plan
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    refused = cli.run("reassign", "execute", "-f", str(path), code=code)
    assert words.encode() in refused.stderr, refused.stderr
    assert cli.json("reassign", "list") == []


def test_a_failover_can_be_read_back_from_the_logs(cli):
    name = replicated(cli, [3, 1, 2])
    cli.cluster.terminate(3)
    eventually("another leader", lambda: leaders_of(cli, name) == [1])
    output = [
        line
        for broker in cli.cluster.brokers.values()
        for line in broker.log.splitlines()
        if f"{name}-0: leader 3 -> 1 in leader epoch 1, ISR 3,1,2 -> 1,2: broker 3 is" in line
    ]
    assert len(output) == 1
    assert re.search(r"controller epoch \d+: ", output[0])
    assert output[0].endswith("broker 3 is shutting down")
    # The controller of that moment sees it leave, or starts without it.
    gone = re.compile(
        r"controller epoch \d+: (live brokers are 1,2: gone 3$|begins with live brokers 1,2,)", re.M
    )
    eventually(
        "its end in the log",
        lambda: any(gone.search(broker.log) for broker in cli.cluster.brokers.values()),
    )


def test_an_unclean_leader_is_elected_only_when_it_is_wanted(cli):
    name = replicated(cli, [1, 2])
    cli.cluster.terminate(2)
    eventually("broker 1 alone in the ISR", lambda: isr_of(cli, name) == [{1}])
    cli.run("produce", name, stdin=b"only at broker 1")
    cli.cluster.terminate(1)
    start(cli.cluster, 2)
    eventually("no leader", lambda: leaders_of(cli, name) == [-1])
    failed = cli.run("cluster", "elect-leaders", "-t", name, code=1)
    assert f"Error completing leader election (PREFERRED) for partition: {name}-0".encode() in (
        failed.stderr
    )
    refused = cli.run("cluster", "elect-leaders", "--election-type", "unclean", "-t", name, code=2)
    assert b"may lack acknowledged records" in refused.stderr
    assert leaders_of(cli, name) == [-1]
    done = cli.out("cluster", "elect-leaders", "--election-type", "unclean", "-t", name, "-y")
    assert done == f"Successfully completed leader election (UNCLEAN) for partitions {name}-0\n"
    assert leaders_of(cli, name) == [2]
    output = "".join(broker.log for broker in cli.cluster.brokers.values())
    assert f"{name}-0: leader none -> 2 in leader epoch" in output
    assert "UNCLEAN, broker 2 may lack committed records: they are lost" in output
