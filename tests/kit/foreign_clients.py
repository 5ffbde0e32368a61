"""Clients of other projects behind one interface: librdkafka, kafka-python, aiokafka.

Every method makes a client, uses it as documented, and closes it. kcat is here for what it can do.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

WAIT_S = 20.0


class Sent(NamedTuple):
    """A record as it is produced and as it has to come back."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int

    def without_rare_nulls(self) -> Sent:
        """Return what a library that refuses null headers and all-null records can send of it."""
        key = b"k" if self.key is self.value is None else self.key
        return self._replace(key=key, headers=tuple((k, v or b"") for k, v in self.headers))


class ForeignClient(ABC):
    """What every library is asked to do."""

    name: str
    sends_every_null = True
    """Whether it lets a header be null, and key and value both be null."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic of one replica."""

    @abstractmethod
    def delete_topic(self, topic: str) -> None:
        """Delete it."""

    @abstractmethod
    def topics(self) -> dict[str, int]:
        """Return every topic with its number of partitions."""

    @abstractmethod
    def brokers(self) -> tuple[set[int], int]:
        """Return the ids of the brokers, and the controller's."""

    @abstractmethod
    def configs(self, kind: str, resource: str) -> dict[str, str | None]:
        """Return all settings of the topic or broker *resource*."""

    @abstractmethod
    def produce(self, topic: str, codec: str, records: Sequence[Sent]) -> list[int]:
        """Produce with *codec*; return the offsets."""

    @abstractmethod
    def read(self, topic: str, partition: int, count: int, start: int | None) -> list[Sent]:
        """Read *count* records from offset *start*, from the beginning if it is None."""

    @abstractmethod
    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """Return the offset of the first record that is not older; None if all are."""

    @abstractmethod
    def commit(self, group: str, topic: str, offset: int) -> None:
        """Commit *offset* of partition 0 without joining the group."""

    @abstractmethod
    def groups(self) -> set[str]:
        """Return the ids of all groups."""


class Librdkafka(ForeignClient):
    """confluent-kafka."""

    name = "librdkafka"

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka.admin import AdminClient

        super().__init__(bootstrap)
        # Its futures fail when the client they come from is collected.
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def _consumer(self, group: str = "none") -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "check.crcs": True,
                "log_level": 0,
            }
        )

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """By CreateTopics."""
        from confluent_kafka.admin import NewTopic

        made = self._admin.create_topics([NewTopic(topic, partitions, 1, config=dict(configs))])
        made[topic].result(WAIT_S)

    def delete_topic(self, topic: str) -> None:
        """By DeleteTopics."""
        self._admin.delete_topics([topic])[topic].result(WAIT_S)

    def topics(self) -> dict[str, int]:
        """By Metadata."""
        found = self._admin.list_topics(timeout=WAIT_S).topics
        return {name: len(topic.partitions) for name, topic in found.items()}

    def brokers(self) -> tuple[set[int], int]:
        """By DescribeCluster."""
        found = self._admin.describe_cluster(request_timeout=WAIT_S).result(WAIT_S)
        return {node.id for node in found.nodes}, found.controller.id

    def configs(self, kind: str, resource: str) -> dict[str, str | None]:
        """By DescribeConfigs."""
        from confluent_kafka.admin import ConfigResource

        asked = ConfigResource(ConfigResource.Type[kind.upper()], resource)
        found = self._admin.describe_configs([asked])[asked].result(WAIT_S)
        return {name: entry.value for name, entry in found.items()}

    def produce(self, topic: str, codec: str, records: Sequence[Sent]) -> list[int]:
        """With a delivery callback per record."""
        from confluent_kafka import Producer

        offsets: dict[int, int] = {}
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.type": codec,
                "linger.ms": 20,
                "log_level": 0,
            }
        )

        def delivered(number: int, error: object, message: Any) -> None:
            assert error is None, error
            offsets[number] = message.offset()

        for number, record in enumerate(records):
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                timestamp=record.timestamp,
                headers=list(record.headers),
                on_delivery=partial(delivered, number),
            )
        assert producer.flush(WAIT_S) == 0
        return [offsets[number] for number in range(len(records))]

    def read(self, topic: str, partition: int, count: int, start: int | None) -> list[Sent]:
        """By assignment."""
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        consumer = self._consumer()
        offset = OFFSET_BEGINNING if start is None else start
        found: list[Sent] = []
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            deadline = time.monotonic() + WAIT_S
            while len(found) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(found), 0.2):
                    assert message.error() is None, message.error()
                    found.append(
                        Sent(
                            partition,
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),
                            message.timestamp()[1],
                        )
                    )
        finally:
            consumer.close()
        return found

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """By offsets_for_times."""
        from confluent_kafka import TopicPartition

        consumer = self._consumer()
        try:
            asked = [TopicPartition(topic, partition, timestamp)]
            found: int = consumer.offsets_for_times(asked, WAIT_S)[0].offset
        finally:
            consumer.close()
        return found if found >= 0 else None

    def commit(self, group: str, topic: str, offset: int) -> None:
        """As a consumer outside the group."""
        from confluent_kafka import TopicPartition

        consumer = self._consumer(group)
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        finally:
            consumer.close()

    def groups(self) -> set[str]:
        """By ListGroups."""
        found = self._admin.list_consumer_groups(request_timeout=WAIT_S).result(WAIT_S)
        assert not found.errors
        return {group.group_id for group in found.valid}


class KafkaPython(ForeignClient):
    """kafka-python 3."""

    name = "kafka-python"
    sends_every_null = False

    @property
    def _servers(self) -> list[str]:
        return self.bootstrap.split(",")

    def _admin(self) -> Any:
        from kafka.admin import KafkaAdminClient

        return KafkaAdminClient(bootstrap_servers=self._servers)

    def _consumer(self, group: str | None = None) -> Any:
        from kafka import KafkaConsumer

        return KafkaConsumer(
            bootstrap_servers=self._servers, group_id=group, enable_auto_commit=False
        )

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """By CreateTopics."""
        with self._admin() as admin:
            admin.create_topics(
                {
                    topic: {
                        "num_partitions": partitions,
                        "replication_factor": 1,
                        "configs": dict(configs),
                    }
                },
                wait_for_metadata=True,
            )

    def delete_topic(self, topic: str) -> None:
        """By DeleteTopics."""
        with self._admin() as admin:
            admin.delete_topics([topic])

    def topics(self) -> dict[str, int]:
        """By Metadata."""
        with self._admin() as admin:
            return {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics()}

    def brokers(self) -> tuple[set[int], int]:
        """By DescribeCluster."""
        with self._admin() as admin:
            found = admin.describe_cluster()
        return {node["broker_id"] for node in found["brokers"]}, found["controller_id"]

    def configs(self, kind: str, resource: str) -> dict[str, str | None]:
        """By DescribeConfigs."""
        from kafka.admin import ConfigResource

        with self._admin() as admin:
            found = admin.describe_configs(
                [ConfigResource(kind.upper(), resource)], config_filter="all"
            )
        (settings,) = next(iter(found.values())).values()
        return {name: entry["value"] for name, entry in settings.items()}

    def produce(self, topic: str, codec: str, records: Sequence[Sent]) -> list[int]:
        """With a future per record."""
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self._servers,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            return [future.get(WAIT_S).offset for future in futures]
        finally:
            producer.close(5)

    def read(self, topic: str, partition: int, count: int, start: int | None) -> list[Sent]:
        """By assignment."""
        from kafka import TopicPartition

        consumer = self._consumer()
        place = TopicPartition(topic, partition)
        found: list[Sent] = []
        try:
            consumer.assign([place])
            if start is None:
                consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, start)
            deadline = time.monotonic() + WAIT_S
            while len(found) < count and time.monotonic() < deadline:
                for record in consumer.poll(200, max_records=count - len(found)).get(place, ()):
                    headers = tuple(record.headers)
                    found.append(
                        Sent(partition, record.key, record.value, headers, record.timestamp)
                    )
        finally:
            consumer.close(autocommit=False)
        return found

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """By offsets_for_times."""
        from kafka import TopicPartition

        consumer = self._consumer()
        place = TopicPartition(topic, partition)
        try:
            found = consumer.offsets_for_times({place: timestamp})[place]
        finally:
            consumer.close(autocommit=False)
        return None if found is None else found.offset

    def commit(self, group: str, topic: str, offset: int) -> None:
        """As a consumer outside the group."""
        from kafka import TopicPartition
        from kafka.structs import OffsetAndMetadata

        consumer = self._consumer(group)
        place = TopicPartition(topic, 0)
        try:
            consumer.assign([place])
            consumer.commit({place: OffsetAndMetadata(offset, "", -1)})
        finally:
            consumer.close(autocommit=False)

    def groups(self) -> set[str]:
        """By ListGroups."""
        with self._admin() as admin:
            return {group["group_id"] for group in admin.list_groups()}


class Aiokafka(ForeignClient):
    """aiokafka; each call runs in an event loop of its own."""

    name = "aiokafka"
    sends_every_null = False

    def _with_admin(self, use: Callable[[Any], Awaitable[T]]) -> T:
        async def run() -> T:
            from aiokafka.admin import AIOKafkaAdminClient

            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                return await use(admin)
            finally:
                await admin.close()

        return asyncio.run(run())

    def _with_consumer(self, group: str | None, use: Callable[[Any], Awaitable[T]]) -> T:
        async def run() -> T:
            from aiokafka import AIOKafkaConsumer

            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False
            )
            await consumer.start()
            try:
                return await use(consumer)
            finally:
                await consumer.stop()

        return asyncio.run(run())

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """By CreateTopics."""
        from aiokafka.admin import NewTopic

        async def create(admin: Any) -> None:
            made = NewTopic(topic, partitions, 1, topic_configs=dict(configs))
            response = await admin.create_topics([made])
            assert [error[1] for error in response.topic_errors] == [0]

        self._with_admin(create)

    def delete_topic(self, topic: str) -> None:
        """By DeleteTopics."""

        async def delete(admin: Any) -> None:
            response = await admin.delete_topics([topic])
            assert [error[1] for error in response.topic_error_codes] == [0]

        self._with_admin(delete)

    def topics(self) -> dict[str, int]:
        """By Metadata."""
        found = self._with_admin(lambda admin: admin.describe_topics())
        return {topic["topic"]: len(topic["partitions"]) for topic in found}

    def brokers(self) -> tuple[set[int], int]:
        """By Metadata, which is what its describe_cluster asks."""
        found = self._with_admin(lambda admin: admin.describe_cluster())
        return {node["node_id"] for node in found["brokers"]}, found["controller_id"]

    def configs(self, kind: str, resource: str) -> dict[str, str | None]:
        """By DescribeConfigs."""
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        asked = ConfigResource(ConfigResourceType[kind.upper()], resource)
        (response,) = self._with_admin(lambda admin: admin.describe_configs([asked]))
        ((code, message, _, _, entries),) = response.resources
        assert code == 0, message
        return {entry[0]: entry[1] for entry in entries}

    def produce(self, topic: str, codec: str, records: Sequence[Sent]) -> list[int]:
        """With a future per record."""

        async def run() -> list[int]:
            from aiokafka import AIOKafkaProducer

            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                linger_ms=20,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp,
                    )
                    for record in records
                ]
                return [done.offset for done in await asyncio.gather(*futures)]
            finally:
                await producer.stop()

        return asyncio.run(run())

    def read(self, topic: str, partition: int, count: int, start: int | None) -> list[Sent]:
        """By assignment."""
        from aiokafka import TopicPartition

        place = TopicPartition(topic, partition)

        async def use(consumer: Any) -> list[Sent]:
            consumer.assign([place])
            if start is None:
                await consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, start)
            found: list[Sent] = []
            deadline = time.monotonic() + WAIT_S
            while len(found) < count and time.monotonic() < deadline:
                polled = await consumer.getmany(timeout_ms=200, max_records=count - len(found))
                for record in polled.get(place, ()):
                    headers = tuple(record.headers)
                    found.append(
                        Sent(partition, record.key, record.value, headers, record.timestamp)
                    )
            return found

        return self._with_consumer(None, use)

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        """By offsets_for_times."""
        from aiokafka import TopicPartition

        place = TopicPartition(topic, partition)
        found = self._with_consumer(
            None, lambda consumer: consumer.offsets_for_times({place: timestamp})
        )[place]
        return None if found is None else found.offset

    def commit(self, group: str, topic: str, offset: int) -> None:
        """As a consumer outside the group."""
        from aiokafka import TopicPartition

        place = TopicPartition(topic, 0)

        async def use(consumer: Any) -> None:
            consumer.assign([place])
            await consumer.commit({place: offset})

        self._with_consumer(group, use)

    def groups(self) -> set[str]:
        """By ListGroups."""
        return {found[0] for found in self._with_admin(lambda admin: admin.list_consumer_groups())}


CLIENTS: dict[str, type[ForeignClient]] = {
    client.name: client for client in (Librdkafka, KafkaPython, Aiokafka)
}


class Kcat:
    """The kcat program, where it is installed."""

    installed = shutil.which("kcat") is not None

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def run(self, *arguments: str, stdin: str = "") -> str:
        """Run it and return its output."""
        done = subprocess.run(
            ["kcat", "-b", self.bootstrap, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, topic: str, offset: str) -> list[dict[str, Any]]:
        """Return the records of partition 0 from *offset* (as its -o) to the end."""
        output = self.run("-C", "-t", topic, "-p", "0", "-o", offset, "-e", "-q", "-J")
        return [json.loads(line) for line in output.split("\n") if line]
