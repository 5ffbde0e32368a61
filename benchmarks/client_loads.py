"""The loads that compare Python clients: one partition, at full speed, in the way that each documentation recommends.

Every producer uses acks=1, linger 5 ms and no idempotence. Every consumer reads partition 0 from its start without a
group. The rate of a consumer counts from the first records, so it excludes the connection set-up; so do the CPU
seconds, of all threads of the process. The loads with `loop` in their names are the usual Python loop: one call for
each message.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Mapping, Sized
from typing import Any

_BATCH = 5000
_PATIENCE_S = 120.0


def _cpu() -> float:
    """Return the CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def confluent_loop_produce(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Produce with confluent-kafka's usual loop: produce() and poll(0) for each message."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "linger.ms": 5,
            "batch.size": 200_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    value = b"x" * size
    producer.list_topics(topic, 10)
    started, cpu = time.monotonic(), _cpu()
    for _ in range(count):
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    left = producer.flush(_PATIENCE_S)
    figures = {"seconds": time.monotonic() - started, "cpu": _cpu() - cpu}
    if left:
        raise RuntimeError(f"{left} messages were not delivered")
    return {**figures, "messages": count, "bytes": count * size}


def confluent_loop_consume(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Consume with confluent-kafka's usual loop: poll() for each message, its error and its value."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8_000_000,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    if consumer.poll(_PATIENCE_S) is None:
        raise RuntimeError("no message arrived within 120 s")
    started, cpu, got = time.monotonic(), _cpu(), 1
    while got < count:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise RuntimeError(str(message.error()))
        got += len(message.value()) == size
    figures = {"seconds": time.monotonic() - started, "cpu": _cpu() - cpu}
    consumer.close()
    return {**figures, "messages": got - 1, "bytes": (got - 1) * size}


def _count(poll: Callable[[], Mapping[Any, Sized]], count: int, size: int) -> dict[str, float]:
    """Poll until *count* messages have arrived; return the rate after the first poll."""
    got, first, started, cpu = 0, 0, 0.0, 0.0
    while got < count:
        number = sum(map(len, poll().values()))
        if number and not started:
            started, first, cpu = time.monotonic(), number, _cpu()
        got += number
    figures = {"seconds": time.monotonic() - started, "cpu": _cpu() - cpu}
    return {**figures, "messages": got - first, "bytes": (got - first) * size}


def confluent_produce(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Produce *count* messages of *size* bytes, acks=1, linger 5 ms, at full speed."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "linger.ms": 5,
            "batch.size": 1_000_000 if size >= 1000 else 200_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
            "partitioner": "consistent_random",
        }
    )
    value = bytes(range(256)) * (size // 256 + 1)
    messages = [{"value": value[:size]}] * _BATCH
    producer.list_topics(topic, 10)
    started = time.monotonic()
    sent = 0
    while sent < count:
        queued = producer.produce_batch(topic, messages[: count - sent], partition=0)
        sent += queued
        producer.poll(0 if queued else 0.01)
    left = producer.flush(_PATIENCE_S)
    elapsed = time.monotonic() - started
    if left:
        raise RuntimeError(f"{left} messages were not delivered")
    return {"seconds": elapsed, "messages": count, "bytes": count * size}


def confluent_consume(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Consume *count* messages from the start of partition 0."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.max.messages.kbytes": 1_000_000,
            "queued.min.messages": 1_000_000,
            "fetch.message.max.bytes": 8_000_000,
            "fetch.max.bytes": 50_000_000,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    got = 0
    started = 0.0
    deadline = time.monotonic() + _PATIENCE_S
    while got < count:
        messages = consumer.consume(100_000, 0.05)
        if messages and not started:
            started = time.monotonic()
            first = len(messages)
        got += len(messages)
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {got} of {count} messages arrived within 120 s")
    elapsed = time.monotonic() - started
    consumer.close()
    return {"seconds": elapsed, "messages": got - first, "bytes": (got - first) * size}


def aiokafka_produce(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Produce with aiokafka: futures are collected, as its documentation recommends for speed."""
    from aiokafka import AIOKafkaProducer

    async def run() -> float:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks=1, linger_ms=5, max_batch_size=200_000
        )
        await producer.start()
        value = b"x" * size
        started = time.monotonic()
        last = None
        for _ in range(count):
            last = await producer.send(topic, value, partition=0)
        if last is not None:
            await last
        await producer.flush()
        elapsed = time.monotonic() - started
        await producer.stop()
        return elapsed

    return {"seconds": asyncio.run(run()), "messages": count, "bytes": count * size}


def aiokafka_consume(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Consume with aiokafka's getmany."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> tuple[float, int]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            max_partition_fetch_bytes=8_000_000,
            enable_auto_commit=False,
        )
        await consumer.start()
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        got, first, started = 0, 0, 0.0
        while got < count:
            batches = await consumer.getmany(timeout_ms=1000)
            number = sum(map(len, batches.values()))
            if number and not started:
                started, first = time.monotonic(), number
            got += number
        elapsed = time.monotonic() - started
        await consumer.stop()
        return elapsed, got - first

    elapsed, got = asyncio.run(run())
    return {"seconds": elapsed, "messages": got, "bytes": got * size}


def kafka_python_produce(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Produce with kafka-python."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks=1,
        linger_ms=5,
        batch_size=200_000,
        enable_idempotence=False,
    )
    value = b"x" * size
    started = time.monotonic()
    for _ in range(count):
        producer.send(topic, value, partition=0)
    producer.flush(_PATIENCE_S)
    elapsed = time.monotonic() - started
    producer.close(5)
    return {"seconds": elapsed, "messages": count, "bytes": count * size}


def kafka_python_consume(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Consume with kafka-python's poll."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, max_partition_fetch_bytes=8_000_000, enable_auto_commit=False
    )
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    got = _count(lambda: consumer.poll(timeout_ms=1000, max_records=10_000), count, size)
    consumer.close()
    return got


def kclient_produce(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Produce with kclient's blocking API."""
    from kclient import Producer

    producer = Producer(
        bootstrap_servers=bootstrap,
        acks="1",
        linger_ms=5,
        batch_size=200_000,
        enable_idempotence=False,
    ).start()
    value = b"x" * size
    producer.partitions_for(topic)
    send = producer.send
    started, cpu = time.monotonic(), _cpu()
    for _ in range(count):
        send(topic, value, partition=0)
    left = producer.flush(_PATIENCE_S)
    figures = {"seconds": time.monotonic() - started, "cpu": _cpu() - cpu}
    producer.close(5)
    if left:
        raise RuntimeError(f"{left} messages were not delivered")
    return {**figures, "messages": count, "bytes": count * size}


def kclient_columns_produce(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Produce tables of Arrow with kclient's blocking API."""
    import pyarrow as pa

    from kclient import Producer

    producer = Producer(
        bootstrap_servers=bootstrap,
        acks="1",
        linger_ms=5,
        batch_size=200_000,
        enable_idempotence=False,
    ).start()
    rows = min(count, 100_000)
    values = pa.array([b"x" * size] * rows, pa.binary())
    producer.partitions_for(topic)
    started, cpu = time.monotonic(), _cpu()
    sent = [
        producer.send_columns(topic, values.slice(0, count - first), partition=0)
        for first in range(0, count, rows)
    ]
    delivered = sum(each.result(_PATIENCE_S).row_count for each in sent)
    figures = {"seconds": time.monotonic() - started, "cpu": _cpu() - cpu}
    producer.close(5)
    if delivered < count:
        raise RuntimeError(f"{count - delivered} messages were not delivered")
    return {**figures, "messages": count, "bytes": count * size}


def kclient_consume(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Consume with kclient's blocking API."""
    from kclient import Consumer, TopicPartition

    consumer = Consumer(
        bootstrap_servers=bootstrap, max_partition_fetch_bytes=8_000_000, enable_auto_commit=False
    ).start()
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    got = _count(lambda: consumer.poll(timeout=1, max_records=10_000), count, size)
    consumer.close()
    return got


def kclient_loop_consume(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Consume with kclient's blocking API, and look at the value of each record."""
    from kclient import Consumer, TopicPartition

    consumer = Consumer(
        bootstrap_servers=bootstrap, max_partition_fetch_bytes=8_000_000, enable_auto_commit=False
    ).start()
    consumer.assign(TopicPartition(topic, 0), {TopicPartition(topic, 0): 0})
    while not consumer.poll(timeout=1, max_records=1):
        pass
    started, cpu, got = time.monotonic(), _cpu(), 1
    while got < count:
        for records in consumer.poll(timeout=1, max_records=10_000).values():
            for record in records:
                got += len(record.value or b"") == size
    figures = {"seconds": time.monotonic() - started, "cpu": _cpu() - cpu}
    consumer.close()
    return {**figures, "messages": got - 1, "bytes": (got - 1) * size}


def kclient_arrow_consume(bootstrap: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Consume tables of Arrow with kclient's blocking API."""
    from kclient import Consumer, TopicPartition

    consumer = Consumer(
        bootstrap_servers=bootstrap, max_partition_fetch_bytes=8_000_000, enable_auto_commit=False
    ).start()
    consumer.assign(TopicPartition(topic, 0), {TopicPartition(topic, 0): 0})
    while not (first := consumer.poll_arrow(timeout=1, max_records=1).num_rows):
        pass
    started, cpu, got = time.monotonic(), _cpu(), first
    while got < count:
        got += consumer.poll_arrow(timeout=1).num_rows
    figures = {"seconds": time.monotonic() - started, "cpu": _cpu() - cpu}
    consumer.close()
    return {**figures, "messages": got - first, "bytes": (got - first) * size}
