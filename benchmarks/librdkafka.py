"""librdkafka without Python in the path of a message: the library of confluent-kafka, called by ctypes.

confluent-kafka creates a Python object per message, which on two cores costs more than a broker. Here one call passes
ten thousand messages (`rd_kafka_produce_batch`), and librdkafka itself counts consumed messages: its callback is a libc
function without effect. So the figures match those of librdkafka's own performance program.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PRODUCER, _CONSUMER = 0, 1
_BEGINNING = -2
_AT_ONCE = 10_000


class _Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


class NotAvailable(Exception):
    """ctypes cannot load librdkafka; the message has the reason."""


def _library() -> ctypes.CDLL:
    import confluent_kafka

    place = Path(confluent_kafka.__file__).parent
    found = sorted(
        path
        for folder in (place.parent / "confluent_kafka.libs", place / ".dylibs")
        for path in folder.glob("librdkafka*")
    )
    if not found:
        raise NotAvailable(f"no librdkafka beside {place}")
    library = ctypes.CDLL(str(found[0]))
    for name in ("new", "conf_new", "topic_new", "queue_new"):
        getattr(library, f"rd_kafka_{name}").restype = ctypes.c_void_p
    return library


class Client:
    """A producer or consumer of librdkafka, for one topic."""

    def __init__(self, kind: int, settings: Mapping[str, str], topic: str) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(512)
        configuration = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        for name, value in {**settings, "log_level": "0"}.items():
            error_code = self._library.rd_kafka_conf_set(
                configuration, name.encode(), value.encode(), error, ctypes.c_size_t(512)
            )
            if error_code:
                raise ValueError(error.value.decode())
        handle = self._library.rd_kafka_new(kind, configuration, error, ctypes.c_size_t(512))
        if not handle:
            raise ValueError(error.value.decode())
        self._handle = ctypes.c_void_p(handle)
        self._topic = ctypes.c_void_p(
            self._library.rd_kafka_topic_new(self._handle, topic.encode(), None)
        )

    def _wait_for_metadata(self) -> None:
        """Wait for the topic's metadata, so that the first message does not wait for them."""
        metadata = ctypes.c_void_p()
        error_code = self._library.rd_kafka_metadata(
            self._handle, 0, self._topic, ctypes.byref(metadata), 10_000
        )
        if error_code:
            raise RuntimeError(f"no metadata: librdkafka's error {error_code}")
        self._library.rd_kafka_metadata_destroy(metadata)

    def close(self) -> None:
        """Destroy the handles."""
        self._library.rd_kafka_topic_destroy(self._topic)
        self._library.rd_kafka_destroy(self._handle)


class Producer(Client):
    """Produces the same value repeatedly."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        super().__init__(_PRODUCER, settings, topic)

    def produce(self, count: int, value: bytes, partitions: int = 1) -> float:
        """Produce *count* messages, round robin to all partitions; return the seconds."""
        self._wait_for_metadata()
        payload = ctypes.create_string_buffer(value, len(value))
        batch = (_Message * _AT_ONCE)()
        for message in batch:
            message.payload = ctypes.addressof(payload)
            message.len = len(value)
        library, sent, turn = self._library, 0, 0
        started = time.monotonic()
        while sent < count:
            queued = library.rd_kafka_produce_batch(
                self._topic, turn % partitions, 0, batch, min(_AT_ONCE, count - sent)
            )
            sent += queued
            turn += 1
            library.rd_kafka_poll(self._handle, 0 if queued else 5)
        failed = library.rd_kafka_flush(self._handle, 120_000)
        elapsed = time.monotonic() - started
        if failed:
            left = library.rd_kafka_outq_len(self._handle)
            raise RuntimeError(f"{left} messages were not delivered in 120 s")
        return elapsed


class Consumer(Client):
    """Consumes partitions from their start and counts messages."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        super().__init__(_CONSUMER, settings, topic)

    def consume(self, count: int, partitions: int = 1) -> tuple[float, int]:
        """Consume *count* messages; return the seconds after the first one, and the messages since then."""
        self._wait_for_metadata()
        library = self._library
        queue = ctypes.c_void_p(library.rd_kafka_queue_new(self._handle))
        # Called with every message and the last argument; the result is ignored.
        nothing: Any = ctypes.CDLL(None).labs
        got, first, started = 0, 0, 0.0
        deadline = time.monotonic() + 120
        for partition in range(partitions):
            library.rd_kafka_consume_start_queue(
                self._topic, partition, ctypes.c_int64(_BEGINNING), queue
            )
        while got < count:
            number = library.rd_kafka_consume_callback_queue(queue, 50, nothing, None)
            if number > 0 and not started:
                started, first = time.monotonic(), number
            got += max(0, number)
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {got} of {count} messages arrived within 120 s")
        elapsed = time.monotonic() - started
        for partition in range(partitions):
            library.rd_kafka_consume_stop(self._topic, partition)
        library.rd_kafka_queue_destroy(queue)
        return elapsed, got - first
