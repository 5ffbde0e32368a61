"""Clients of other projects with their defaults: librdkafka and kafka-python, both idempotent.

They retry by themselves: whatever they report in the end, an earlier attempt may have succeeded. So a send is certain
only if it was acknowledged, or never left the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.chaos.client import Client, ClientLost, Ended, Positions, split_key
from tests.checker.outcomes import Outcome

DELIVERY_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 3_000


class LibrdkafkaClient:
    """librdkafka's producer: five requests on the way, retried for ten seconds. *reader* reads.

    Its own consumer is for quiet times (`LibrdkafkaReader`): librdkafka 2.16 deadlocks when an answer to
    OffsetForLeaderEpoch is an error (it queries for the leader with its lock held), and Consumer.assign of
    confluent-kafka waits for it with the interpreter's lock held, so that the whole process stands still.
    """

    most_values = 1

    def __init__(self, bootstrap: str, reader: Client) -> None:
        self.send_meta: dict[str, Any] = {
            "retries": True,
            "idempotent": True,
            "client": "librdkafka",
        }
        self._reader = reader
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 5000,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "retry.backoff.max.ms": 500,
                "linger.ms": 1,
            }
        )
        self._fatal: str | None = None

    def send(self, key: str, values: Sequence[int], done: Callable[[Ended], None]) -> None:
        """Hand one value to the producer."""
        topic, partition = split_key(key)

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                done(Ended(Outcome.OK, message.offset()))
            else:
                done(Ended(Outcome.INFO, err=error.name()))

        try:
            self._producer.produce(
                topic, b"%d" % values[0], partition=partition, on_delivery=delivered
            )
        except (BufferError, KafkaException) as error:
            done(Ended(Outcome.FAIL, err=str(error)))
            self._fatal = str(error)

    def assign(self, positions: Positions) -> None:
        """Read these keys from there on."""
        self._reader.assign(positions)

    def poll(self, timeout: float) -> dict[str, list[tuple[int, int]]]:
        """Take what was fetched, and what was answered."""
        try:
            self._producer.poll(0)
        except KafkaException as error:  # a fatal one: idempotence cannot be kept
            self._fatal = str(error)
        if self._fatal is not None:
            raise ClientLost(self._fatal)
        return self._reader.poll(timeout)

    def flush(self, timeout: float) -> None:
        """Wait for answers."""
        self._producer.flush(timeout)

    def close(self) -> None:
        """Forget what is under way."""
        self._producer.purge(blocking=False)
        self._producer.flush(0.5)
        self._reader.close()


class LibrdkafkaReader:
    """librdkafka's consumer, for the end, when nothing moves any more."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "chaos-assigned",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "log_level": 0,
            }
        )

    def assign(self, positions: Positions) -> None:
        """Read these keys from there on."""
        # Plain offsets: an answer about "the beginning" may come after the next assign, and win.
        self._consumer.assign(
            [TopicPartition(*split_key(key), offset) for key, offset in positions.items()]
        )

    def poll(self, timeout: float) -> dict[str, list[tuple[int, int]]]:
        """Take what was fetched."""
        found: dict[str, list[tuple[int, int]]] = {}
        for message in self._consumer.consume(500, timeout):
            error = message.error()
            if error is None:
                key = f"{message.topic()}-{message.partition()}"
                offset = message.offset()
                assert offset is not None
                found.setdefault(key, []).append((offset, int(message.value() or b"-1")))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise ClientLost(f"position lost: {error}")
        return found

    def close(self) -> None:
        """Let go of it."""
        self._consumer.close()


class KafkaPythonClient:
    """kafka-python: idempotent as it comes."""

    most_values = 1
    send_meta: dict[str, Any] = {"retries": True, "idempotent": True, "client": "kafka-python"}  # noqa: RUF012

    def __init__(self, bootstrap: str) -> None:
        from kafka import KafkaConsumer, KafkaProducer

        common = {
            "bootstrap_servers": bootstrap.split(","),
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "reconnect_backoff_max_ms": 500,
        }
        self._producer = KafkaProducer(
            **common,
            acks="all",
            enable_idempotence=True,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=3000,
        )
        self._consumer = KafkaConsumer(
            **common,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
        )
        self._fatal: str | None = None

    def send(self, key: str, values: Sequence[int], done: Callable[[Ended], None]) -> None:
        """Hand one value to the producer."""
        topic, partition = split_key(key)
        try:
            future = self._producer.send(topic, b"%d" % values[0], partition=partition)
        except Exception as error:  # whatever it raises, nothing has left
            done(Ended(Outcome.FAIL, err=repr(error)))
            self._fatal = repr(error)
            return
        future.add_callback(lambda where: done(Ended(Outcome.OK, where.offset)))
        future.add_errback(lambda error: done(Ended(Outcome.INFO, err=repr(error))))

    def assign(self, positions: Positions) -> None:
        """Read these keys from there on."""
        from kafka import TopicPartition as Named

        named = {Named(*split_key(key)): offset for key, offset in positions.items()}
        self._consumer.assign(list(named))
        for partition, offset in named.items():
            self._consumer.seek(partition, offset)

    def poll(self, timeout: float) -> dict[str, list[tuple[int, int]]]:
        """Take what was fetched."""
        if self._fatal is not None:
            raise ClientLost(self._fatal)
        if not self._consumer.assignment():
            time.sleep(timeout)
            return {}
        try:
            batches = self._consumer.poll(timeout_ms=int(timeout * 1000), max_records=500)
        except Exception as error:
            raise ClientLost(repr(error)) from error
        return {
            f"{partition.topic}-{partition.partition}": [(r.offset, int(r.value)) for r in records]
            for partition, records in batches.items()
        }

    def flush(self, timeout: float) -> None:
        """Wait for answers, or not."""
        from kafka.errors import KafkaTimeoutError

        try:
            self._producer.flush(timeout)
        except KafkaTimeoutError:
            return

    def close(self) -> None:
        """Forget what is under way."""
        from kafka.errors import KafkaTimeoutError

        try:
            self._producer.close(0.5)
        except KafkaTimeoutError:
            # It waited for what is under way, and leaves its thread running.
            self._producer._sender.force_close()
        self._consumer.close()
