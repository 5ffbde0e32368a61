"""Consumers of other projects in groups on real brokers, with killed members and coordinators.

Produce, consume, validate: what was acknowledged to the producer must be processed by some member (at
least once), no committed offset may go back, and a coordinator that is killed and comes back must
not cause a rebalance.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kit.brokers import Cluster, MakeCluster

pytestmark = [pytest.mark.slow, pytest.mark.compat, pytest.mark.timeout(120)]

LIBRARIES = ["librdkafka", "kafka-python", "aiokafka"]
PARTITIONS = 6


class Member:
    """A consumer process and its events."""

    def __init__(self, library: str, cluster: Cluster, group: str, topic: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.kit.group_member",
                library,
                cluster.bootstrap,
                group,
                topic,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    @property
    def assigned(self) -> list[list[int]]:
        """Every assignment it was given, in order."""
        return [event["assigned"] for event in self.events if "assigned" in event]

    @property
    def processed(self) -> set[str]:
        return {v for event in self.events for v in event.get("processed", ())}

    @property
    def committed(self) -> Iterator[tuple[int, int]]:
        """Every (partition, offset) with an acknowledged commit."""
        for event in list(self.events):
            for partition, offset in event.get("committed", {}).items():
                yield int(partition), offset

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Scene:
    """A cluster of three brokers, a topic, a producer and the members of one group."""

    def __init__(self, cluster: Cluster, library: str) -> None:
        self.cluster = cluster
        self.library = library
        self.group = f"group-of-{library}"
        self.members: list[Member] = []
        self.acknowledged: set[str] = set()
        self.producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "message.timeout.ms": 60_000,
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        tool = self.tool()
        tool.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(20)
        self.sent = 0

    def produce(self, count: int) -> None:
        """Send *count* records, spread over the partitions, and wait for their acknowledgements."""
        for _ in range(count):
            value = str(self.sent)
            self.producer.produce(
                "t", value, partition=self.sent % PARTITIONS, on_delivery=self._delivered
            )
            self.sent += 1
        assert self.producer.flush(60) == 0

    def _delivered(self, error: object, message: Any) -> None:
        if error is None:
            self.acknowledged.add(message.value().decode())

    def add_members(self, count: int) -> None:
        for _ in range(count):
            self.members.append(Member(self.library, self.cluster, self.group, "t"))

    @property
    def processed(self) -> set[str]:
        return set().union(*(member.processed for member in self.members))

    def all_processed(self) -> bool:
        return self.processed >= self.acknowledged

    def shared(self, members: list[Member]) -> Callable[[], bool]:
        """Return whether the last assignments of *members* are all partitions, each once."""

        def check() -> bool:
            owned = [p for member in members for p in (member.assigned or [[]])[-1]]
            return all(m.assigned for m in members) and sorted(owned) == list(range(PARTITIONS))

        return check

    def tool(self) -> AdminClient:
        """Return a client of its own for one request, as a tool has. To drop it cancels the request.

        librdkafka 2.16 removes a broker that metadata does not list while it is down. A request of the same client that
        waits for its coordinator can then wait for the removed one for ever, although that broker is up again.
        """
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})

    def coordinator(self) -> int:
        tool = self.tool()
        described = tool.describe_consumer_groups([self.group])[self.group].result(20)
        return int(described.coordinator.id)

    def committed(self) -> dict[int, int]:
        """Fetch what the group has committed."""
        wanted = [TopicPartition("t", p) for p in range(PARTITIONS)]
        request = [ConsumerGroupTopicPartitions(self.group, wanted)]
        tool = self.tool()
        result = tool.list_consumer_group_offsets(request)[self.group].result(20)
        return {tp.partition: tp.offset for tp in result.topic_partitions}

    def committed_as_acknowledged(self) -> None:
        """Check that every commit acknowledged to a member is kept, or overtaken."""
        acknowledged: dict[int, int] = {}
        for member in self.members:
            for partition, offset in member.committed:
                acknowledged[partition] = max(acknowledged.get(partition, 0), offset)
        kept = self.committed()
        assert all(kept[partition] >= offset for partition, offset in acknowledged.items()), (
            acknowledged,
            kept,
        )

    def close(self) -> None:
        for member in self.members:
            member.kill()


def until(condition: Callable[[], bool], what: str, timeout: float = 40.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}"
        time.sleep(0.05)


@pytest.fixture(params=LIBRARIES)
def scene(request: pytest.FixtureRequest, broker_clusters: MakeCluster) -> Iterator[Scene]:
    scene = Scene(broker_clusters(3), request.param)
    yield scene
    scene.close()


def test_a_group_loses_a_member_by_kill_and_no_record(scene: Scene) -> None:
    scene.produce(600)
    scene.add_members(3)
    until(scene.shared(scene.members), "three members to share the partitions")
    until(scene.all_processed, "the records")
    scene.members[0].kill()
    scene.produce(600)
    until(scene.shared(scene.members[1:]), "two members to share the partitions")
    until(scene.all_processed, "the records after the kill")
    scene.committed_as_acknowledged()


def test_a_coordinator_killed_and_restarted_causes_no_rebalance(scene: Scene) -> None:
    scene.add_members(2)
    scene.produce(300)
    until(scene.shared(scene.members), "two members to share the partitions")
    until(scene.all_processed, "the records")
    assignments = [len(member.assigned) for member in scene.members]
    before = scene.committed()
    scene.cluster.restart(scene.coordinator())
    scene.produce(600)
    until(scene.all_processed, "the records after the restart")
    scene.committed_as_acknowledged()
    after = scene.committed()
    assert all(after[partition] >= offset for partition, offset in before.items())
    assert [len(member.assigned) for member in scene.members] == assignments


def test_members_and_coordinators_die_in_turn(scene: Scene) -> None:
    scene.add_members(3)
    scene.produce(300)
    until(scene.shared(scene.members), "three members to share the partitions")
    for round_number in range(2):
        scene.cluster.restart(scene.coordinator())
        scene.members[round_number].kill()
        scene.add_members(1)
        scene.produce(300)
        until(scene.all_processed, f"the records of round {round_number}")
        scene.committed_as_acknowledged()
    alive = scene.members[2:]
    until(scene.shared(alive), "those alive to share the partitions")
