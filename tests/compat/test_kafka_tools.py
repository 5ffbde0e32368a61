"""`kclient kafka-topics` and the other tools print what Kafka's own print, and end with the same exit codes.

Both get the same command lines, on one cluster. A case that changes something is in a scenario: Kafka's tools go
through it with one name, ours with another one of the same length.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.local.zookeeper import free_ports
from kclient import AdminClient, Producer
from tests.kit.apache_kafka import with_kafka
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.kafka_tools import Kafka, kafka_tools, kclient
from tests.kit.replicated import Observer

pytestmark = [pytest.mark.slow, pytest.mark.compat, pytest.mark.timeout(240), with_kafka]

TOPIC, MEMBER_TOPIC = "many.parts", "one"
KAFKAS, OURS = "kafkas1", "kclient"
"""The name in a scenario."""


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    cluster = module_clusters(
        3, {"auto.leader.rebalance.enable": "false", "log.segment.bytes": "1048576"}
    )
    observer = Observer(cluster)
    observer.create(
        TOPIC,
        [[1, 2], [2, 3], [3, 1], [1, 3]],
        {"retention.ms": "86400000", "cleanup.policy": "compact,delete"},
    )
    observer.create(MEMBER_TOPIC, [[2]])
    for name in (KAFKAS, OURS):
        observer.create(f"records-{name}", [[1]])
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for n in range(20):
            producer.send(TOPIC, f"{n}", "key", partition=n % 3, timestamp_ms=1_600_000_000_000 + n)
            producer.send(f"records-{(KAFKAS, OURS)[n % 2]}", f"{n}")
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        from kclient import TopicPartition

        offsets = {TopicPartition(TOPIC, n): n + 1 for n in range(3)}
        for group in ("first", "second"):
            admin.alter_group_offsets(group, offsets)
    return cluster


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka_tools(tmp_path_factory.mktemp("tools")) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("files")

    def write(
        name: str,
        *partitions: tuple[object, ...],
        fields: str = "topic partition replicas log_dirs",
    ) -> None:
        entries = [dict(zip(fields.split(), each, strict=False)) for each in partitions]
        (home / name).write_text(json.dumps({"version": 1, "partitions": entries}))

    write("same", (TOPIC, 0, [1, 2]), (TOPIC, 2, [3, 1]))
    write("other", (TOPIC, 0, [2, 1]))
    write("unknown-broker", (TOPIC, 0, [1, 9]))
    write("unknown-topic", ("nix", 0, [1]))
    write("unknown-partition", (TOPIC, 9, [1]))
    write("no-such-dir", (TOPIC, 0, [1, 2], ["/nix", "any"]))
    write("two", (TOPIC, 0), (TOPIC, 1))
    write("twice", (TOPIC, 0, 1), (TOPIC, 0, 1), fields="topic partition offset")
    for name in (KAFKAS, OURS):
        write(
            f"records-{name}",
            (f"records-{name}", 0, 4),
            fields="topic partition offset",
        )
    (home / "plan.csv").write_text(f"{TOPIC},0,2\n{TOPIC},1,99\n")
    (home / "client.properties").write_text("client.id=me\nrequest.timeout.ms=20000\n")
    (home / "topics").write_text(json.dumps({"version": 1, "topics": [{"topic": MEMBER_TOPIC}]}))
    return home


def words_of(line: str, cluster: Cluster, files: Path, name: str = "") -> list[str]:
    """Return the words of a case: B is the bootstrap server, @ the folder of files, NAME the name in a scenario."""
    broker = "2" if name == OURS else "3"
    words = [
        word.replace("NAME", name).replace("BROKER", broker).replace("@", f"{files}/")
        for word in shlex.split(line)
    ]
    return (
        ["--bootstrap-server", cluster.bootstrap, *words]
        if "=B" not in words
        else [w for w in words if w != "=B"]
    )


def _squeezed(text: str) -> str:
    """Return *text* without the breaks of lines, which 3.9 lacks in tables (`differs` of the tool)."""
    return re.sub(r"\s+", " ", text).strip()


def _sorted_if_list(text: str) -> str:
    """Return *text* squeezed; groups of one bucket of Java's HashMap are listed in the order of the responses."""
    is_table = text.startswith(("\n", "GROUP ")) and "TOPIC" in text
    return _squeezed(text) if is_table or "Error" in text else " ".join(sorted(text.split()))


def _exactly(text: str) -> str:
    return text


def _without_usable(text: str) -> str:
    """Return the lines about APIs by broker; what is usable depends on the client."""
    blocks = re.sub(r" \[usable: \d+\]", "", text).split("\n)")
    return "\n".join(sorted(block.strip() for block in blocks))


READING: dict[str, tuple[Callable[[str], str], str]] = {
    "kafka-topics": (
        _exactly,
        f"""
        --list
        --list --exclude-internal --topic "one|nix"
        --list --command-config @client.properties
        --describe --topic {TOPIC}
        --describe --topic "{MEMBER_TOPIC},{TOPIC}"
        -describe -topic={TOPIC}
        --describe --topic {TOPIC} --under-replicated-partitions
        --describe --topic {TOPIC} --at-min-isr-partitions --under-min-isr-partitions
        --describe --topic {TOPIC} --topics-with-overrides
        --describe --unavailable-partitions
        --describe --topic nix
        --describe --topic nix --if-exists
        --describe --if-exists
        --describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ
        --delete --topic nix
        --delete --topic nix --if-exists
        --alter --topic {TOPIC} --partitions 1
        --alter --topic {TOPIC} --config a=b --partitions 9
        --alter --topic nix --partitions 2
        --create --topic {TOPIC}
        --create --topic {TOPIC} --partitions x
        --create --topic u --partitions 0
        --create --topic u --partitions 2 --topic v
        --create --topic u --replication-factor 9
        --create --topic u --replica-assignment 1:1
        --create --topic u --replica-assignment 1:2,3
        --create --topic u --replica-assignment 1 --partitions 3
        --create --topic u --config retention.ms
        --create --topic u!
        --list --topic (
        --list --if-exists
        --list --describe
        --list --partitions 3
        --topic
        --describe --topics-with-overrides --under-replicated-partitions
        """,
    ),
    "kafka-consumer-groups": (
        _sorted_if_list,
        """
        --list
        --list --state
        --list --state stable,empty --type
        --list --state Bogus
        --list --type x
        --list --members
        --describe --group first
        --describe --all-groups --offsets
        --describe --group first --state
        --describe --group first --members --verbose
        --describe --group nix
        --describe
        --describe --group first --state x
        --describe --group first --all-groups
        --reset-offsets --dry-run --group first --topic many.parts --to-earliest
        --reset-offsets --dry-run --group first --topic many.parts:0,2 --to-latest
        --reset-offsets --dry-run --group first --group second --all-topics --to-current --export
        --reset-offsets --dry-run --group first --all-topics --to-current --export
        --reset-offsets --dry-run --group first --topic many.parts --to-offset 99
        --reset-offsets --dry-run --group first --all-topics --shift-by -1
        --reset-offsets --dry-run --group third --topic many.parts --shift-by 1
        --reset-offsets --dry-run --group first --topic many.parts --to-datetime 2020-09-13T12:26:40.009
        --reset-offsets --dry-run --group first --topic many.parts --to-datetime 2020
        --reset-offsets --dry-run --group first --topic many.parts --by-duration PT1H
        --reset-offsets --dry-run --group first --from-file @plan.csv
        --reset-offsets --dry-run --group first --from-file /nix
        --reset-offsets --dry-run --group first --topic many.parts:x --to-latest
        --reset-offsets --dry-run --group first --topic many.parts --to-offset x
        --reset-offsets --dry-run --group first --topic nix --to-latest
        --reset-offsets --dry-run --group first --topic many.parts --to-latest --to-earliest
        --reset-offsets --dry-run --group first --to-latest
        --reset-offsets --dry-run --group first --all-topics
        --reset-offsets --dry-run --execute --group first
        --delete --group nix
        --delete
        --delete-offsets --group first --topic nix
        --delete-offsets --group first
        --timeout x --list
        """,
    ),
    "kafka-configs": (
        _exactly,
        f"""
        --describe --topic {TOPIC}
        --describe --topic {TOPIC} --all
        --describe --entity-type topics --entity-name nix
        --describe --entity-type brokers
        --describe --broker 1 --all
        --describe --broker-defaults
        --describe --entity-type broker-loggers --entity-name 2
        --describe --entity-type broker-loggers
        --describe --entity-type clients
        --describe --entity-type x
        --describe --entity-type users --topic x
        --describe
        --describe --topic {TOPIC} --add-config x=y
        --alter --topic {TOPIC} --delete-config foo
        --alter --topic {TOPIC} --add-config retention.ms
        --alter --topic {TOPIC} --add-config retention.ms=x
        --alter --topic {TOPIC} --add-config a!=b
        --alter --topic {TOPIC}
        --alter --topic nix --add-config retention.ms=1
        --alter --broker x --add-config foo=1
        --alter --user u --add-config foo=1
        --alter --client c --add-config producer_byte_rate=x
        --alter --entity-type topics --add-config a=b
        """,
    ),
    "kafka-get-offsets": (
        _exactly,
        f"""
        --time -2
        --topic {TOPIC} --partitions 0,1 --time max-timestamp
        --topic {TOPIC} --time 1600000000009
        --topic-partitions {TOPIC}:1-,one:0
        --topic-partitions {TOPIC} --topic one
        --topic nix
        --time x
        --partitions x
        =B --broker-list x
        =B --topic one
        """,
    ),
    "kafka-delete-records": (
        _exactly,
        """
        --offset-json-file @twice
        --offset-json-file /nix
        """,
    ),
    "kafka-leader-election": (
        _exactly,
        f"""
        --election-type preferred --topic {TOPIC} --partition 0
        --election-type PREFERRED --path-to-json-file @two
        --election-type preferred --all-topic-partitions
        --election-type unclean --topic nix --partition 0
        --election-type unclean --topic {TOPIC}
        --election-type x --all-topic-partitions
        --all-topic-partitions
        """,
    ),
    "kafka-log-dirs": (
        _exactly,
        f"""
        --describe
        --describe --topic-list {TOPIC},one --broker-list 3,1
        --describe --broker-list 9,1
        --describe --broker-list x
        --topic-list one
        """,
    ),
    "kafka-reassign-partitions": (
        _exactly,
        """
        --list
        --verify --reassignment-json-file @same
        --verify --preserve-throttles --reassignment-json-file @other
        --verify --preserve-throttles --reassignment-json-file @unknown-topic
        --verify --preserve-throttles --reassignment-json-file @no-such-dir
        --execute --reassignment-json-file @same
        --execute --reassignment-json-file @same --throttle 1000000 --replica-alter-log-dirs-throttle 5
        --verify --reassignment-json-file @same
        --execute --reassignment-json-file @unknown-broker
        --execute --reassignment-json-file @unknown-topic
        --execute --reassignment-json-file @unknown-partition
        --execute --reassignment-json-file /nix
        --execute --reassignment-json-file @same --throttle x
        --cancel --reassignment-json-file @same
        --generate --topics-to-move-json-file @topics --broker-list 3
        --generate --topics-to-move-json-file @topics --broker-list 1,1
        --generate --topics-to-move-json-file @topics --broker-list 1,x
        --generate --topics-to-move-json-file @topics
        --list --throttle 4
        --execute --list
        =B --list
        """,
    ),
    "kafka-broker-api-versions": (_without_usable, "--command-config @client.properties"),
    "kafka-transactions": (
        _exactly,
        f"""
        list
        describe-producers --topic {TOPIC} --partition 0
        find-hanging
        find-hanging --topic {TOPIC}
        find-hanging --partition 1
        abort --topic {TOPIC} --partition 0
        abort --topic {TOPIC} --partition 0 --start-offset 3
        """,
    ),
}
"""By tool: how standard output is compared, and the command lines that change nothing."""


def cases(tool: str) -> list[str]:
    """Return the command lines of READING."""
    return [line.strip() for line in READING[tool][1].strip().splitlines()]


@pytest.mark.parametrize("tool", READING)
def test_the_same_command_line_has_the_same_outcome(
    tool: str, cluster: Cluster, kafka: Kafka, files: Path
) -> None:
    same = READING[tool][0]
    differences = []
    for line in cases(tool):
        words = words_of(line, cluster, files)
        theirs, ours = kafka(tool, words), kclient(tool, words)
        pairs = [(theirs.code, ours.code), (same(theirs.lines()[1]), same(ours.lines()[1]))]
        if not theirs.out and theirs.code:
            pairs.append((theirs.refusal(), ours.refusal()))
        differences += [f"{tool} {line}\n  {a!r}\n  {b!r}" for a, b in pairs if a != b]
    assert not differences, "\n".join(differences)


SCENARIO = """
kafka-topics --create --topic NAME --partitions 2 --replication-factor 2 --config segment.bytes=1000000
kafka-topics --create --topic NAME
kafka-topics --create --topic NAME --if-not-exists
kafka-topics --alter --topic NAME --partitions 3
kafka-topics --alter --topic NAME --partitions 5 --replica-assignment 1:2,1:2,1:2,2:1,3:1
kafka-topics --list --topic NAME
kafka-topics --describe --topic NAME
kafka-configs --alter --topic NAME --add-config retention.ms=99000000,cleanup.policy=[compact,delete]
kafka-configs --describe --entity-type topics --entity-name NAME
kafka-configs --alter --topic NAME --delete-config retention.ms,segment.bytes
kafka-configs --describe --topic NAME
kafka-configs --alter --user NAME --client c --add-config producer_byte_rate=102400000,request_percentage=50.5
kafka-configs --describe --entity-type users --entity-name NAME --entity-type clients
kafka-configs --alter --user NAME --client c --delete-config nix
kafka-configs --alter --user NAME --client c --delete-config producer_byte_rate,request_percentage
kafka-configs --describe --user NAME --client c
kafka-configs --alter --broker BROKER --add-config log.cleaner.threads=2
kafka-configs --describe --broker BROKER
kafka-configs --alter --broker BROKER --delete-config log.cleaner.threads
kafka-configs --alter --broker-logger 3 --add-config kbroker.replica=INFO
kafka-delete-records --offset-json-file @records-NAME
kafka-get-offsets --topic records-NAME --time earliest
kafka-consumer-groups --reset-offsets --group NAME --topic records-NAME --to-offset 6 --execute
kafka-consumer-groups --reset-offsets --group NAME --all-topics --shift-by 2 --execute
kafka-consumer-groups --describe --group NAME
kafka-consumer-groups --delete-offsets --group NAME --topic records-NAME:0
kafka-consumer-groups --reset-offsets --group NAME --topic records-NAME --to-latest --execute
kafka-consumer-groups --delete --group NAME
kafka-consumer-groups --delete --group NAME --group nix
kafka-consumer-groups --describe --group NAME
kafka-topics --delete --topic NAME
kafka-topics --delete --topic NAME
"""


def _named(text: str, name: str) -> str:
    """Return *text* without what differs between two topics: names, ids, brokers that the controller chose."""
    text = re.sub(r"(TopicId: )\S+", r"\1id", text.replace(name, "NAME"))
    text = re.sub(r"broker \d", "broker n", text)
    return re.sub(r"((?:Leader|Replicas|Isr): )[\d,]+", r"\1n", text)


def test_what_changes_something_has_the_same_outcome(
    cluster: Cluster, kafka: Kafka, files: Path
) -> None:
    differences = []
    for line in SCENARIO.strip().splitlines():
        tool, _space, rest = line.partition(" ")
        same = _squeezed if tool == "kafka-consumer-groups" else _exactly
        seen = []
        for run, name in ((kafka, KAFKAS), (kclient, OURS)):
            done = run(tool, words_of(rest, cluster, files, name))
            code, out = done.lines()
            seen.append(
                (code, same(_named(out, name)), "" if out else _named(done.refusal(), name))
            )
        if seen[0] != seen[1]:
            differences.append(f"{line}\n  {seen[0]!r}\n  {seen[1]!r}")
    assert not differences, "\n".join(differences)


PRODUCING = (
    ("--topic NAME --property parse.key=true --property parse.headers=true --property null.marker=NULL",
     "h1:v1,h2:NULL\tk1\tv1\nh1:v\tNULL\tNULL\nNULL\tk2\tv 2\n"),
    ("--topic NAME --timeout 5", "plain\n\nü\nlast"),
    ("--topic NAME --property parse.key=true", "a\tb\nno key\n"),
    ("--topic NAME --property parse.key=true --property ignore.error=true --sync", "a\tb\nno key\n"),
    ("--topic NAME --compression-codec --request-required-acks 1 --property parse.key=true --property key.separator=:",
     "k:v:w\n"),
    ("--topic NAME --property parse.headers=true", "a,b\tx\n"),
    ("--topic NAME --property headers.separator=:", ""),
    ("--topic NAME --batch-size x", ""),
    ("--topic NAME --producer-property linger.ms=1 --producer.config @client.properties", "x\n"),
    ("--bogus", ""),
    ("=B --topic NAME", ""),
)  # fmt: skip
"""Command lines of kafka-console-producer, with standard input."""

CONSUMING = """
-p 0 --from-beginning --max-messages 12
-p 0 --offset earliest --max-messages 12 --property print.key=true --property print.headers=true
-p 0 --offset 2 --max-messages 2 --property print.offset=true --property print.partition=true
-p 0 --from-beginning --max-messages 3 --property print.value=false --property print.key=true --property null.literal=-
-p 0 --from-beginning --max-messages 2 --property print.headers=true --property headers.separator=;
-p 0 --from-beginning --max-messages 2 --property line.separator=@ --property key.separator=| --property print.key=true
-p 0 --from-beginning --max-messages 2 --formatter kafka.tools.NoOpMessageFormatter
-p 0 --timeout-ms 200
--topic NAME --group NAME --from-beginning --max-messages 4 --consumer.config @client.properties
--topic NAME --group NAME --max-messages 2 --isolation-level read_committed
--include NAME|nix --group include-NAME --from-beginning --max-messages 4
-p 0 --offset x
-p 0 --offset 3 --from-beginning
--topic x --include y
--include x --partition 3
--topic x --offset 3
--topic x --partition 0 --group g
--topic x --group a --consumer-property group.id=b
--topic x --from-beginning --consumer-property auto.offset.reset=latest
--topic x --max-messages
=B --topic x
"""
"""Command lines of kafka-console-consumer, after PRODUCING; -p is the partition of the topic."""


def test_lines_are_produced_and_consumed_the_same_way(
    cluster: Cluster, kafka: Kafka, files: Path
) -> None:
    lines = [("kafka-console-producer", *each) for each in PRODUCING]
    for each in CONSUMING.strip().splitlines():
        line = each.replace("-p ", "--topic NAME --partition ")
        # Records that are missing are a failure, not a wait.
        limit = " --timeout-ms 9000" if "--max-messages " in line else ""
        lines.append(("kafka-console-consumer", line + limit, ""))
    lines += [("kafka-consumer-groups", "--describe --group NAME", "")]
    for name in (KAFKAS, OURS):
        Observer(cluster).create(f"lines-{name}", [[1]])
    differences = []
    for tool, line, stdin in lines:
        seen = []
        for run, name in ((kafka, KAFKAS), (kclient, OURS)):
            words = words_of(line, cluster, files, f"lines-{name}")
            done = run(tool, words, stdin)
            out = _squeezed(done.out) if tool == "kafka-consumer-groups" else done.out
            # Kafka warns of a name of a class; the records are counted behind that.
            refusal = (
                "" if out else _named(done.refusal(), name).partition("WARNING: kafka.tools")[0]
            )
            if "NoOp" in line:
                refusal = done.err.splitlines()[-1]
            seen.append((done.code, _named(out, name), refusal))
        if seen[0] != seen[1]:
            differences.append(f"{tool} {line}\n  {seen[0]!r}\n  {seen[1]!r}")
    assert not differences, "\n".join(differences)


def test_files_of_a_log_are_dumped_the_same_way(cluster: Cluster, kafka: Kafka) -> None:
    (folder,) = cluster[1].home.rglob(f"{TOPIC}-0")
    log = folder / "00000000000000000000.log"
    lines = (
        f"--files {log},{log.with_suffix('.index')},{log.with_suffix('.timeindex')} --print-data-log",
        f"--files {log} --deep-iteration --max-bytes 90",
        f"--files {log} --print-data-log --skip-record-metadata",
        f"--files {log} --value-decoder-class kafka.serializer.StringDecoder",
        f"--files {log.with_suffix('.index')} --index-sanity-check",
        f"--files {folder / 'partition.metadata'}",
        f"--files {folder / '00000000000000000099.log'}",
        "--deep-iteration",
    )
    for line in lines:
        both = [run("kafka-dump-log", shlex.split(line)) for run in (kafka, kclient)]
        assert both[0].lines() == both[1].lines(), line


def test_the_lines_of_loads_have_the_same_form(cluster: Cluster, kafka: Kafka) -> None:
    """The figures differ; between them are the same words."""
    servers = ("--bootstrap-server", cluster.bootstrap)
    loads = (
        ("kafka-producer-perf-test", ("--topic", "one", "--num-records", "30", "--record-size", "10", "--throughput",
                                      "-1", "--producer-props", f"bootstrap.servers={cluster.bootstrap}")),
        ("kafka-consumer-perf-test", (*servers, "--topic", "one", "--messages", "30")),
        ("kafka-consumer-perf-test", (*servers, "--topic", "one", "--messages", "30", "--threads", "1",
                                      "--show-detailed-stats", "--reporting-interval", "1")),
        ("kafka-consumer-perf-test", (*servers, "--topic", "one")),
        ("kafka-verifiable-consumer", (*servers, "--topic", "one", "--max-messages", "30", "--group-id", "NAME")),
    )  # fmt: skip
    for tool, words in loads:
        forms = []
        for run, name in ((kafka, KAFKAS), (kclient, OURS)):
            done = run(tool, [name if word == "NAME" else word for word in words])
            text = re.sub(r"\d+(\.\d+)?|Infinity|NaN", "N", done.out)
            forms.append((done.code, list(dict.fromkeys(text.splitlines()))))
        assert forms[0] == forms[1]


def test_without_a_broker_the_exit_codes_are_the_same(kafka: Kafka, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("default.api.timeout.ms=400\nrequest.timeout.ms=300\n")
    words = ["--bootstrap-server", f"127.0.0.1:{free_ports(1)[0]}", "--list"]
    theirs, ours = (
        run("kafka-topics", [*words, "--command-config", str(file)]) for run in (kafka, kclient)
    )
    before = "Error while executing topic command : "
    assert (theirs.code, ours.code) == (1, 1)
    assert theirs.out.startswith(before)
    assert ours.out.startswith(f"{before}no broker could be reached:")
    assert "connection refused" in ours.out
    assert "trying for 0.4 s" in ours.err
    # Groups: the error is printed, and the exit code is 0.
    words += ["--timeout", "400"]
    both = [run("kafka-consumer-groups", words) for run in (kafka, kclient)]
    assert [each.code for each in both] == [0, 0]
    assert all("Error: Executing consumer group command failed due to" in each.out for each in both)


def test_the_id_of_the_cluster(cluster: Cluster, kafka: Kafka) -> None:
    for words in (["cluster-id"], ["unregister", "--id", "9"]):
        both = [run("kafka-cluster", [*words, "-b", cluster.bootstrap]) for run in (kafka, kclient)]
        assert both[0].lines() == both[1].lines()
