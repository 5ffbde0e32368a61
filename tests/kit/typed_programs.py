"""Programs of users, for mypy only: what it knows of the three APIs. The project's mypy run checks them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, assert_type

from twisted.internet.defer import Deferred

import kclient
from kclient import OffsetAndMetadata, Record, RecordMetadata, TopicPartition, aio, tx
from kclient.admin.topics import CreatedTopic
from kclient.errors import KafkaError

SETTINGS = {"bootstrap.servers": "localhost:9092", "group.id": "g"}


def number(data: bytes) -> int:
    return int(data)


def packed(value: dict[str, int]) -> bytes:
    return json.dumps(value).encode()


def blocking() -> None:
    with kclient.Producer(SETTINGS, value_serializer=packed) as producer:
        sent = producer.send("t", {"a": 1}, "key")
        assert_type(sent, Future[RecordMetadata])
        assert_type(producer.flush(), int)
        assert_type(producer.metrics(), dict[str, float])
        producer.send("t", "no dict")  # type: ignore[arg-type]
    with kclient.Consumer(SETTINGS, ["t"]) as plain:
        assert_type(plain, kclient.Consumer[bytes, bytes])
        assert_type(plain.getone().value, bytes | None)
    with kclient.Consumer(
        SETTINGS, ["t"], key_deserializer=bytes.decode, value_deserializer=number
    ) as consumer:
        assert_type(consumer, kclient.Consumer[str, int])
        for record in consumer:
            assert_type(record, Record[str, int])
        assert_type(consumer.poll(timeout=1), dict[TopicPartition, list[Record[str, int]]])
        assert_type(consumer.consume(5, 1.0), list[Record[str, int]])
        consumer.seek("t", 5)  # type: ignore[arg-type]
    explicit = kclient.Consumer[str, dict[str, Any]](
        SETTINGS, key_deserializer=bytes.decode, value_deserializer=json.loads
    )
    assert_type(explicit.getone().value, dict[str, Any] | None)


def on_assign(consumer: kclient.Consumer[str, int], partitions: list[TopicPartition]) -> None:
    consumer.seek_to_beginning(*partitions)


def committed(
    problem: KafkaError | None, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    if problem is not None:
        raise SystemExit(f"{problem.name} {problem.retriable} {problem.hint}")


def callbacks(consumer: kclient.Consumer[str, int]) -> None:
    consumer.subscribe(["t"], on_assign=on_assign)
    consumer.commit_async(callback=committed)


async def on_asyncio() -> None:
    async with aio.Producer(SETTINGS, value_serializer=packed) as producer:
        sent = producer.send("t", {"a": 1})
        assert_type(sent, asyncio.Future[RecordMetadata])
        assert_type(await sent, RecordMetadata)
        assert_type(await producer.send_and_wait("t", {"a": 1}), RecordMetadata)
        assert_type(await producer.partitions_for("t"), list[int])
        async with producer.transaction():
            await asyncio.gather(*[producer.send("t", {"n": n}) for n in range(3)])
    async with aio.Consumer(
        SETTINGS, ["t"], key_deserializer=bytes.decode, value_deserializer=number
    ) as consumer:
        assert_type(consumer, aio.Consumer[str, int])
        async for record in consumer:
            assert_type(record, Record[str, int])
        assert_type(await consumer.getone(), Record[str, int])
        assert_type(
            await consumer.getmany(timeout_ms=10), dict[TopicPartition, list[Record[str, int]]]
        )
        assert_type(await consumer.position(TopicPartition("t", 0)), int)
        consumer.commit_async(callback=committed)
        await consumer.no_such_method()  # type: ignore[attr-defined]
    async with aio.AdminClient(SETTINGS) as admin:
        assert_type(await admin.list_topics(), list[str])
        assert_type(await admin.create_topics(["t"]), dict[str, CreatedTopic | KafkaError])
        await admin.list_topics(interna=True)  # type: ignore[call-arg]


async def on_twisted() -> None:
    consumer = tx.Consumer(SETTINGS, ["t"], value_deserializer=number)
    assert_type(consumer.getone(), Deferred[Record[bytes, int]])
    async for record in consumer:
        assert_type(record.value, int | None)
