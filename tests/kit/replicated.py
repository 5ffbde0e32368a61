"""Looking at replicated topics from outside: metadata, what readers see, and the replicas' files side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kbroker.testing.brokers import Brokers
from tests.kit.brokers import Cluster
from tests.kit.waiting import eventually

T = TypeVar("T")


@dataclass(frozen=True)
class Placement:
    """Where a partition is, in the metadata."""

    leader: int
    isr: frozenset[int]


class Observer:
    """An admin client on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = AdminClient(
            {
                "bootstrap.servers": cluster.bootstrap,
                "log_level": 0,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 3000,
            }
        )

    def create(
        self, topic: str, assignment: list[list[int]], configs: dict[str, str] | None = None
    ) -> None:
        """Create a topic on the brokers given, preferred leader first, and wait until its ISR is full."""
        new = NewTopic(topic, len(assignment), replica_assignment=assignment, config=configs or {})
        for future in self._admin.create_topics([new]).values():
            future.result(20)
        for index, replicas in enumerate(assignment):
            self.in_sync(topic, index, replicas)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        for future in self._admin.delete_topics([topic]).values():
            future.result(20)

    def configure(self, topic: str, configs: dict[str, str]) -> None:
        """Set settings of a topic."""
        self._set(self._admin, ResourceType.TOPIC, topic, configs)

    def configure_broker(self, broker_id: int, configs: dict[str, str]) -> None:
        """Set a broker's dynamic settings, and wait until that broker goes by them."""
        # Asked of the broker itself, by a client that knows nothing of its death a moment ago.
        admin = AdminClient({"bootstrap.servers": self._cluster[broker_id].address, "log_level": 0})
        self._set(admin, ResourceType.BROKER, str(broker_id), configs)
        resource = ConfigResource(ResourceType.BROKER, str(broker_id))

        def applied() -> bool:
            (found,) = admin.describe_configs([resource]).values()
            entries = found.result(10)
            return all(entries[name].value == value for name, value in configs.items())

        eventually(f"broker {broker_id} to go by {configs}", applied)

    def _set(
        self, admin: AdminClient, kind: ResourceType, name: str, configs: dict[str, str]
    ) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(10)

    def placement(self, topic: str, partition: int = 0) -> Placement:
        """Ask for a partition's leader (-1: none) and ISR."""
        found = self._admin.list_topics(topic, timeout=3).topics[topic].partitions.get(partition)
        return Placement(-1, frozenset()) if found is None else Placement(
            found.leader, frozenset(found.isrs)
        )  # fmt: skip

    def controller(self) -> int:
        """Ask for the controller."""
        return self._admin.list_topics(timeout=3).controller_id

    def in_sync(
        self, topic: str, partition: int, replicas: Iterable[int], timeout: float = 20.0
    ) -> float:
        """Wait until the ISR is exactly *replicas*; return the seconds it took."""
        wanted, began = frozenset(replicas), time.monotonic()
        eventually(
            f"{topic}-{partition} in sync on {sorted(wanted)}",
            lambda: self.placement(topic, partition).isr == wanted,
            timeout,
        )
        return time.monotonic() - began

    def led_by_another(
        self, topic: str, partition: int, than: int, timeout: float = 20.0
    ) -> tuple[int, float]:
        """Wait until another broker leads; return which, and the seconds it took."""
        began = time.monotonic()

        def leader() -> int | None:
            found = self.placement(topic, partition).leader
            return found if found not in (-1, than) else None

        found = eventually(f"another leader of {topic}-{partition}", leader, timeout)
        assert found is not None
        return found, time.monotonic() - began


_ASK_AGAIN = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION}


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, dict[int, bytes]]:
    """Return what each partition holds up to its high watermark, values by offset."""
    # Without commits: for the last one, close() would wait for a coordinator, which may be down.
    settings = {"bootstrap.servers": bootstrap, "group.id": "audit", "enable.auto.commit": False}
    consumer = Consumer({**settings, "log_level": 0})
    found: dict[int, dict[int, bytes]] = {index: {} for index in range(partitions)}

    def high_watermarks() -> dict[int, int]:
        try:
            return {
                index: consumer.get_watermark_offsets(TopicPartition(topic, index), 10)[1]
                for index in found
            }
        except KafkaException as problem:
            if problem.args[0].code() not in _ASK_AGAIN:
                raise
            # librdkafka asked a former leader, or an answer named none; by itself it does not ask again.
            with suppress(KafkaException):
                consumer.list_topics(topic, 5)
            return {}

    try:
        ends = eventually(f"the ends of {topic}", high_watermarks, 10)
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in found])
        deadline = time.monotonic() + 20
        while any(max(found[index], default=-1) + 1 < end for index, end in ends.items()):
            assert time.monotonic() < deadline, f"{topic}: not all of {ends} can be read"
            message: Any  # its type has no offset and value, which these have
            for message in consumer.consume(10_000, 0.1):
                assert message.error() is None, message.error()
                found[message.partition()][message.offset()] = message.value()
    finally:
        consumer.close()
    return found


def log_bytes(cluster: Brokers, broker_id: int, topic: str, partition: int) -> bytes:
    """Return a replica's segments, one after another."""
    directory = cluster[broker_id].data / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def until_replicas_agree(
    cluster: Brokers, topic: str, partition: int, replicas: Iterable[int], timeout: float = 5.0
) -> bytes:
    """Wait until the files of all *replicas* are equal, byte by byte; return them."""
    replicas = list(replicas)

    def equal() -> list[bytes] | None:
        logs = [log_bytes(cluster, broker_id, topic, partition) for broker_id in replicas]
        return logs if len(set(logs)) == 1 else None

    logs = eventually(f"{topic}-{partition} equal on {replicas}", equal, timeout)
    assert logs is not None
    return logs[0]
