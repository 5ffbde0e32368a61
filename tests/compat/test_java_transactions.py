"""Kafka's own producer, consumer, admin client and kafka-transactions.sh: answers are those of Apache Kafka."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.apache_kafka import QUIET, ApacheKafka, java, running_kafka, with_jdk, with_kafka
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually
from tests.kit.zookeeper import Ensemble, zookeeper_at

PROGRAM = Path(__file__).parent / "java" / "Transactions.java"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(300),
    with_kafka,
    with_jdk,
]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
}

_numbers = count(1)


class Java:
    """The Java program: one command a line, one line in return.

    Commands have numbers. A test that is repeated after its deadline skips answers that the first run did not wait for.
    """

    def __init__(self, bootstrap: str, home: Path) -> None:
        self._sent = 0
        self._errors = home / "java.log"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    *java("256m", QUIET, str(PROGRAM), bootstrap),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __call__(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._sent += 1
        self.process.stdin.write(f"{self._sent} {command}\n")
        self.process.stdin.flush()
        number = 0
        while number != self._sent:
            line = self.process.stdout.readline()
            assert line, self._errors.read_text()[-3000:]
            first, _, answer = line.strip().partition(" ")
            number = int(first)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters(3, {**SETTINGS, "offsets.topic.replication.factor": "3"})


@pytest.fixture(scope="module")
def apache(
    tmp_path_factory: pytest.TempPathFactory, zookeeper_server: Ensemble
) -> Iterator[ApacheKafka]:
    home = tmp_path_factory.mktemp("apache")
    with running_kafka(home / "1", f"{zookeeper_server.connect}/{home.name}", SETTINGS) as kafka:
        yield kafka


@contextmanager
def running_program(bootstrap: str, home: Path) -> Iterator[Java]:
    home.mkdir(exist_ok=True)
    program = Java(bootstrap, home)
    try:
        yield program
    finally:
        program.close()


@pytest.fixture(scope="module")
def ours(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    with running_program(cluster.bootstrap, tmp_path_factory.mktemp("ours")) as program:
        yield program


@pytest.fixture(scope="module")
def theirs(apache: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    with running_program(apache.bootstrap, tmp_path_factory.mktemp("theirs")) as program:
        yield program


def create(bootstrap: str, topic: str, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 2, replicas)])[topic].result(30)


SCHEDULES = {
    "commit-and-abort": """
        open a ID
        begin a
        init a
        begin a
        begin a
        send a T 0 v1
        describe ID
        list ID
        list ID Ongoing
        list ID CompleteCommit
        list ID older=0
        list ID older=100000
        producers T 0
        ends read_committed T
        ends read_uncommitted T
        read read_committed T
        commit a
        describe ID
        list ID
        producers T 0
        read read_committed T
        begin a
        send a T 1 v2
        send a T 0 v3
        abort a
        describe ID
        begin a
        commit a
        begin a
        send a T 1 v4
        commit a
        describe ID
        ends read_committed T
        read read_committed T
        read read_uncommitted T
        describe none
        commit a
    """,
    "offsets": """
        open a ID
        init a
        begin a
        send a T 0 v1
        offsets a T 1 ID-g
        abort a
        stored ID-g
        begin a
        offsets a T 1 ID-g
        commit a
        stored ID-g
        describe ID
        join m ID-h T
        begin a
        offsets a T 2 m
        send a T 1 v2
        commit a
        stored ID-h
        begin a
        offsets a T 3 ID-h 0 unknown
        commit a
        abort a
        begin a
        offsets a T 3 ID-h 77 unknown
        abort a
        leave m
        begin a
        offsets a T 4 ID-h 1 gone
        abort a
        begin a
        offsets a T 4 ID-h
        commit a
        stored ID-h
        read read_committed T
    """,
    "fencing": """
        open a ID
        init a
        begin a
        send a T 0 of-the-first
        open b ID transaction.timeout.ms=7000
        init b
        send a T 0 late
        commit a
        abort a
        begin b
        send b T 0 of-the-second
        commit b
        describe ID
        open c ID
        init c
        begin b
        offsets b T 1 ID-g
        abort b
        begin c
        commit c
        open d ID
        init d
        begin c
        send c T 0 late
        abort c
        begin d
        send d T 0 of-the-fourth
        fence ID
        commit d
        read read_committed T
        fence ID-new
        describe ID-new
        open e ID-e transaction.timeout.ms=999999999
        init e
    """,
    "several-at-once": """
        open a ID-a
        open b ID-b
        init a
        init b
        begin a
        begin b
        send a T 0 a1
        send b T 0 b1
        send a T 0 a2
        send b T 1 b2
        list ID
        producers T 0
        offsets a T 1 ID-g
        offsets b T 2 ID-g
        commit b
        describe ID-b
        ends read_committed T
        read read_committed T
        abort a
        describe ID-a
        stored ID-g
        ends read_committed T
        read read_committed T
        begin a
        queue a T 0 a3
        queue a T 1 a4
        close a
        describe ID-a
        open c ID-a
        init c
        describe ID-a
        read read_committed T
        begin b
        offsets b T 5 ID-g
        close b
        open d ID-b
        init d
        stored ID-g
        producers T 1
        begin d
        send d none-such 0 v
        abort d
    """,
    "a-timeout": """
        open a ID transaction.timeout.ms=1000
        init a
        begin a
        send a T 0 v1
        offsets a T 1 ID-g
        expired ID
        describe ID
        producers T 0
        stored ID-g
        send a T 0 late
        commit a
        abort a
        read read_committed T
        open b ID transaction.timeout.ms=1000
        init b
        begin b
        send b T 0 v2
        expired ID
        offsets b T 3 ID-g
        commit b
        abort b
        begin b
        send b T 1 v3
        commit b
        describe ID
        read read_committed T
        open c ID transaction.timeout.ms=1000
        init c
        begin c
        send c T 0 v4
        expired ID
        abort c
        begin c
        send c T 0 v5
        expired ID
        commit c
        close c
    """,
    "operators-end-a-transaction": """
        open a ID
        init a
        begin a
        send a T 0 ended
        cut T 0
        producers T 0
        describe ID
        send a T 0 visible
        commit a
        describe ID
        read read_committed T
        begin a
        send a T 0 v3
        cut T 0 -1
        producers T 0
        abort a
        read read_committed T
    """,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_answer_is_that_of_apache_kafka(
    name: str, cluster: Cluster, apache: ApacheKafka, ours: Java, theirs: Java
) -> None:
    topic = f"{name}-{next(_numbers)}"
    create(cluster.bootstrap, topic, 3)
    create(apache.bootstrap, topic, 1)
    for line in SCHEDULES[name].strip().splitlines():
        words = line.split()
        command = " ".join(
            topic if word == "T" else word.replace("ID", f"id-{topic}") for word in words
        )
        answer, expected = ours(command), theirs(command)
        if words[0] == "stored":
            # Apache Kafka answers EndTxn before its group coordinator has the offsets.
            deadline = time.monotonic() + 5
            while answer != expected and time.monotonic() < deadline:
                expected = theirs(command)
        assert answer == expected, command


OF_THE_CLUSTER = re.compile(
    r"Coordinator|CoordinatorId|ProducerId|.*Time.*|.*Duration.*|LatestCoord.*"
)


def shown(printed: str) -> list[list[str]]:
    """Return the table that the tool printed; ids and times become "N", "None" and "-1" remain."""
    rows = [[cell.strip() for cell in line.split("\t")] for line in printed.split("|")]
    header = rows[0]
    return [header] + [
        [
            "N" if OF_THE_CLUSTER.fullmatch(name) and cell not in ("None", "-1") else cell
            for name, cell in zip(header, row, strict=False)
        ]
        for row in rows[1:]
    ]


def test_the_tool_prints_what_it_prints_of_apache_kafka(
    cluster: Cluster, apache: ApacheKafka, ours: Java, theirs: Java
) -> None:
    topic = f"tool-{next(_numbers)}"
    create(cluster.bootstrap, topic, 3)
    create(apache.bootstrap, topic, 1)
    for command in (
        f"open a {topic}",
        "init a",
        "begin a",
        f"send a {topic} 0 v",
        f"tool describe --transactional-id {topic}",
        "tool describe --transactional-id none",
        f"tool describe-producers --topic {topic} --partition 0",
        f"tool find-hanging --topic {topic} --max-transaction-timeout 0",
        f"tool abort --topic {topic} --partition 0 --start-offset 1",
        f"tool abort --topic {topic} --partition 0 --start-offset 0",
        f"tool describe-producers --topic {topic} --partition 0",
        f"tool describe-producers --topic {topic} --partition 1",
        f"read read_committed {topic}",
    ):
        assert shown(ours(command)) == shown(theirs(command)), command
    for program in (ours, theirs):
        rows = shown(program("tool list"))
        assert rows[0] == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState", ""]
        assert [topic, "N", "N", "Ongoing"] in [row[:4] for row in rows]


def test_a_hanging_transaction_is_found_and_aborted_by_the_tool(
    cluster: Cluster, ours: Java
) -> None:
    topic = f"hanging-{next(_numbers)}"
    for command in (f"open h {topic}", "init h"):
        ours(command)
    coordinator = int(ours(f"coordinator {topic}"))
    leader = coordinator % 3 + 1
    # Its leadership remains: this leader does not look for hanging transactions of its own.
    Observer(cluster).create(topic, [[leader]])
    for command in ("begin h", f"send h {topic} 0 v"):
        ours(command)
    with zookeeper_at(cluster.zookeeper_connect) as zookeeper:
        zookeeper.delete(f"/transactions/ids/{topic}")
    cluster.restart(coordinator)

    def found() -> list[list[str]]:
        asked = f"tool find-hanging --topic {topic} --max-transaction-timeout 0"
        return [row[:6] for row in shown(ours(asked)) if row[0] == topic]

    eventually("the hanging transaction", found)
    assert found() == [[topic, "0", "N", "0", "-1", "0"]]
    aborted = ours(f"tool abort --topic {topic} --partition 0 --start-offset 0")
    assert aborted == "|exit 0"
    assert found() == []
    assert ours(f"ends read_committed {topic}") == "[2]"
    assert ours(f"read read_committed {topic}") == ""


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_goes_on_when_its_coordinator_is_killed(
    end: str, cluster: Cluster, ours: Java
) -> None:
    topic = f"killed-{end}-{next(_numbers)}"
    create(cluster.bootstrap, topic, 3)
    name = f"{topic}-id"
    for command in (f"open k {name}", "init k", "begin k", f"send k {topic} 0 before"):
        ours(command)
    coordinator = int(ours(f"coordinator {name}"))
    cluster.kill(coordinator)
    try:
        assert ours(f"send k {topic} 1 across") == "at 0"
        assert ours(f"offsets k {topic} 1 {topic}-group") == "sent"
        assert ours(f"{end} k") == {"commit": "committed", "abort": "aborted"}[end]
        assert ours("begin k") == "begun"
        assert ours(f"send k {topic} 1 behind") == "at 2"
        assert ours("commit k") == "committed"
    finally:
        cluster.start(coordinator)
    before = {"commit": ["0:0:before", "1:0:across"], "abort": []}[end]
    assert ours(f"read read_committed {topic}").split() == [*before, "1:2:behind"]
    assert ("offset=1," in ours(f"stored {topic}-group")) == (end == "commit")
