"""Our consumer and other libraries' in one group: with any leader, every member understands every other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from kclient import AdminClient
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.compat, pytest.mark.timeout(60)]

PARTITIONS = 4
LIBRARIES = ["librdkafka", "kafka-python", "aiokafka"]
SETTINGS = (
    "partition.assignment.strategy=range,roundrobin",
    "auto.offset.reset=earliest",
    "session.timeout.ms=6000",
    "heartbeat.interval.ms=300",
)
COOPERATIVE = ("partition.assignment.strategy=cooperative-sticky", *SETTINGS[1:])
LIBRDKAFKA_COOPERATIVE = """
import json, sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
consumer = Consumer({
    "bootstrap.servers": bootstrap, "group.id": group, "log_level": 0,
    "partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 300, "auto.offset.reset": "earliest",
})
consumer.subscribe([topic])
last = []
while True:
    consumer.poll(0.05)
    now = sorted(p.partition for p in consumer.assignment())
    if now != last:
        print(json.dumps({"assigned": now}), flush=True)
        last = now
"""
_names = count(1)


@pytest.fixture(scope="module")
def cluster(module_clusters: MakeCluster) -> Cluster:
    return module_clusters()


class Member:
    """A member's process, and its last assignment."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.assigned: set[int] = set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if "assigned" in event:
                self.assigned = set(event["assigned"])


@contextmanager
def member(library: str, cluster: Cluster, group: str, topic: str) -> Iterator[Member]:
    place = (cluster.bootstrap, group, topic)
    words: tuple[Any, ...] = {
        "kclient": ("-m", "tests.kit.kclient_member", *place, *SETTINGS),
        "kclient cooperative": ("-m", "tests.kit.kclient_member", *place, *COOPERATIVE),
        "librdkafka cooperative": ("-c", LIBRDKAFKA_COOPERATIVE, *place),
    }.get(library, ("-m", "tests.kit.group_member", library, *place))
    with subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    ) as process:
        try:
            yield Member(process)
        finally:
            process.kill()


PAIRS = [("kclient", library) for library in LIBRARIES]
PAIRS += [("kclient cooperative", "librdkafka cooperative")]


@pytest.mark.parametrize(
    "order", PAIRS + [(second, first) for first, second in PAIRS], ids=" then ".join
)
def test_partitions_are_shared_with_members_of_other_make(cluster, order):
    topic, group = f"topic-{next(_names)}", f"group-{next(_names)}"
    with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics({topic: {"num_partitions": PARTITIONS}})
        admin.wait_for_topics([topic])
    everything = set(range(PARTITIONS))
    with member(order[0], cluster, group, topic) as first:
        eventually("everything for the first", lambda: first.assigned == everything)
        with member(order[1], cluster, group, topic) as second:
            eventually(
                f"half for each: {first.assigned}, {second.assigned}",
                lambda: (
                    len(first.assigned) == len(second.assigned) == PARTITIONS // 2
                    and first.assigned | second.assigned == everything
                ),
            )
            with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
                (described,) = admin.describe_groups([group]).values()
            shown = sorted(tp.partition for m in described.members for tp in m.assignment)
            assert shown == sorted(everything)
        if "cooperative" in order[0]:
            eventually("everything for the remaining member", lambda: first.assigned == everything)
