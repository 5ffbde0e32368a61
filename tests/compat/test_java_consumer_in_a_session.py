"""Apache Kafka's consumer fetches in incremental sessions (KIP-227): a lost session loses no record."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.apache_kafka import java, with_kafka
from tests.kit.brokers import MakeCluster
from tests.kit.waiting import eventually

PARTITIONS = 20
ROUNDS, PER_ROUND = 4, 50
LOG4J = """log4j.rootLogger=WARN, err
log4j.logger.org.apache.kafka.clients.FetchSessionHandler=DEBUG
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%m%n
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.timeout(120),
    with_kafka,
]


def test_it_reads_on_where_it_was_when_the_broker_has_forgotten_its_session(
    broker_clusters: MakeCluster, tmp_path: Path
) -> None:
    cluster = broker_clusters(1)
    settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(20)
    producer = Producer(settings)

    def write(turn: int) -> None:
        """Write to two partitions; the others are idle, and not in the responses."""
        for number in range(turn * PER_ROUND, (turn + 1) * PER_ROUND):
            partition = (2 * turn + number % 2) % PARTITIONS
            producer.produce("t", b"%d" % number, partition=partition)
        assert producer.flush(20) == 0

    write(0)
    (tmp_path / "log4j.properties").write_text(LOG4J)
    output, errors = tmp_path / "output", tmp_path / "errors"
    with output.open("wb") as out, errors.open("wb") as err:
        consumer = subprocess.Popen(
            [
                *java("128m", f"-Dlog4j.configuration=file:{tmp_path}/log4j.properties"),
                "org.apache.kafka.tools.consumer.ConsoleConsumer",
                *("--bootstrap-server", cluster.bootstrap, "--topic", "t", "--from-beginning"),
                *("--max-messages", str(ROUNDS * PER_ROUND)),
            ],
            stdout=out,
            stderr=err,
        )
    try:
        for turn in range(1, ROUNDS):
            eventually(
                f"{turn * PER_ROUND} messages",
                lambda turn=turn: len(output.read_bytes().split()) >= turn * PER_ROUND,
                40,
            )
            if turn == 2:
                cluster.kill(1)
                cluster.start(1)
            write(turn)
        assert consumer.wait(40) == 0, errors.read_text()
    finally:
        consumer.kill()
        consumer.wait()
    read = sorted(int(word) for word in output.read_text().split())
    assert read == list(range(ROUNDS * PER_ROUND))
    log = errors.read_text()
    assert len(set(re.findall(r"created a new incremental fetch session (\d+)", log))) >= 2, log
    # Of twenty partitions a response contains those with new data.
    assert re.search(r"with [12] response partition\(s\), 1[89] implied partition\(s\)", log), log
    assert "sent an invalid" not in log, log
