"""Producers that count, through the death of brokers: each writes 0, 1, 2, ... and remembers what was acknowledged.

A writer runs in a thread of its own and owns the partitions of its topic. What it learned about number n is one of:
acknowledged at an offset, or nothing (the connection died, the client gave up). A record's value is its number.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import Producer as LibrdkafkaProducer

from kclient import KafkaError, Producer, RecordMetadata
from kclient.wire import produce
from kclient.wire.framing import framed
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.records import Record, encode_batch

_VERSION = 9
_LENGTH = struct.Struct(">i")

AT_ONCE = 10
PAUSE_SECONDS = 0.01
"""What a client is given at once, and how long after that: a thousand numbers a second at most."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The client got *offset* as the place of *number*; None: it took a later acknowledgement for this one, too."""

    number: int
    offset: int | None


class Writer(threading.Thread):
    """Writes numbers to the partitions of *topic*, in turn, until it is stopped."""

    retries = True
    """Whether a number may be sent again, and so be there more often than it was acknowledged."""
    keeps_order = True
    """Whether acknowledged numbers are in the log in the order in which they were sent."""

    def __init__(self, topic: str, partitions: int, acks: str) -> None:
        super().__init__(name=topic, daemon=True)
        self.topic = topic
        self.partitions = partitions
        self.acks = acks
        self.acknowledged: dict[int, list[Acknowledgement]] = defaultdict(list)
        """Per partition, in the order of the acknowledgements."""
        self.failed: Counter[str] = Counter()
        """Why numbers were given up, by client."""
        self.problem: BaseException | None = None
        self.sent = 0
        self._ending = threading.Event()

    @property
    def count(self) -> int:
        """Numbers acknowledged so far."""
        return sum(map(len, list(self.acknowledged.values())))  # its thread adds partitions

    def finish(self) -> None:
        """Stop, having waited for what is still under way."""
        self._ending.set()
        self.join(60)
        assert not self.is_alive(), f"{self.topic} does not end"
        if self.problem is not None:
            raise self.problem

    def run(self) -> None:
        """Write until it is stopped."""
        try:
            self.write(self._ending.is_set)
        except BaseException as problem:
            self.problem = problem

    def write(self, ending: Callable[[], bool]) -> None:
        """Write until *ending*; wait for the last acknowledgements."""
        raise NotImplementedError

    def _next(self) -> tuple[int, int]:
        number, self.sent = self.sent, self.sent + 1
        return number, number % self.partitions


class RawWriter(Writer):
    """Has its own protocol code: three requests in flight, and no request is sent twice."""

    retries = False

    def __init__(self, topic: str, partitions: int, acks: str, address: str) -> None:
        super().__init__(topic, partitions, acks)
        host, _, port = address.partition(":")
        self._address = (host, int(port))
        self._correlation = itertools.count(1)

    def write(self, ending: Callable[[], bool]) -> None:
        """Connect, write until the connection dies, connect again."""
        while not ending():
            try:
                with socket.create_connection(self._address, 5) as connection:
                    self._converse(connection, ending)
            except OSError:
                time.sleep(0.02)

    def _converse(self, connection: socket.socket, ending: Callable[[], bool]) -> None:
        stream = connection.makefile("rb")
        waiting: deque[tuple[int, dict[int, list[int]]]] = deque()
        while waiting or not ending():
            while len(waiting) < 3 and not ending():
                waiting.append(self._send(connection))
            correlation, numbers = waiting.popleft()
            prefix = stream.read(4)
            if len(prefix) < 4:
                raise ConnectionError("closed")
            frame = stream.read(_LENGTH.unpack(prefix)[0])
            if len(frame) < _LENGTH.unpack(prefix)[0]:
                raise ConnectionError("closed within an answer")
            answered, response = produce.decode_response(memoryview(frame), _VERSION)
            assert answered == correlation
            for outcome in response.topics[0].partitions:
                if outcome.error_code == 0:
                    self.acknowledged[outcome.index] += (
                        Acknowledgement(number, outcome.base_offset + n)
                        for n, number in enumerate(numbers[outcome.index])
                    )

    def _send(self, connection: socket.socket) -> tuple[int, dict[int, list[int]]]:
        numbers: dict[int, list[int]] = defaultdict(list)
        for _ in range(10 * self.partitions):
            number, index = self._next()
            numbers[index].append(number)
        batches = [
            ProducePartition(
                index,
                encode_batch(
                    [Record(n, 1, None, b"%d" % number, []) for n, number in enumerate(of_one)]
                ),
            )
            for index, of_one in numbers.items()
        ]
        correlation = next(self._correlation)
        request = ProduceRequest(
            -1 if self.acks == "all" else 1, 5000, [ProduceTopic(self.topic, batches)]
        )
        pieces = produce.encode_request(request, _VERSION, correlation, "raw")
        connection.sendall(framed(b"".join(pieces)))
        time.sleep(0.002)
        return correlation, numbers


class KclientWriter(Writer):
    """Writes with our own client."""

    def __init__(
        self, topic: str, partitions: int, acks: str, bootstrap: str, *, idempotence: bool
    ) -> None:
        super().__init__(topic, partitions, acks)
        self._settings = {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "enable.idempotence": idempotence,
        }

    def write(self, ending: Callable[[], bool]) -> None:
        """Send numbers, each with a callback."""
        with Producer(self._settings) as producer:
            while not ending():
                for _ in range(AT_ONCE):
                    number, index = self._next()
                    producer.send(self.topic, b"%d" % number, partition=index).add_done_callback(
                        partial(self._ended, number)
                    )
                time.sleep(PAUSE_SECONDS)
            left = producer.flush(45)
            assert left == 0, f"{left} records are not acknowledged"

    def _ended(self, number: int, future: Future[RecordMetadata]) -> None:
        problem = future.exception()
        if problem is None:
            where = future.result()
            self.acknowledged[where.partition].append(Acknowledgement(number, where.offset))
        elif not isinstance(problem, KafkaError):
            self.problem = problem


class LibrdkafkaWriter(Writer):
    """Writes with librdkafka."""

    def __init__(
        self,
        topic: str,
        partitions: int,
        acks: str,
        bootstrap: str,
        *,
        idempotence: bool,
        socket_timeout_ms: int = 60_000,
    ) -> None:
        super().__init__(topic, partitions, acks)
        # A request that is refused (by a broker that does not know yet that it leads) is sent again
        # after a while; librdkafka 2.16 has made the next one by then and sends it before, although
        # only one is in flight at a time. Idempotent batches are refused in that order, so it waits.
        self.keeps_order = idempotence
        self._settings = {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "enable.idempotence": idempotence,
            "max.in.flight.requests.per.connection": 5 if idempotence else 1,
            "message.timeout.ms": 60_000,
            "socket.timeout.ms": socket_timeout_ms,
            # As other clients have it, not 1 MB: what has waited for a broker of some seconds would be one batch larger
            # than the segments of these topics, which a broker refuses for good (RECORD_LIST_TOO_LARGE).
            "batch.size": 16_384,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.max.ms": 500,
            "log_level": 0,
        }

    def write(self, ending: Callable[[], bool]) -> None:
        """Produce numbers, each with a callback."""
        producer = LibrdkafkaProducer(self._settings)
        while not ending():
            for _ in range(AT_ONCE):
                number, index = self._next()
                producer.produce(
                    self.topic, b"%d" % number, partition=index, on_delivery=self._delivered
                )
            time.sleep(PAUSE_SECONDS)  # not `poll`, which ends with the first delivery report
            producer.poll(0)
        left = producer.flush(45)
        assert left == 0, f"{left} records are not acknowledged"

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed[str(error)] += 1
        else:
            self.acknowledged[message.partition()].append(
                Acknowledgement(int(message.value()), message.offset())
            )


class KafkaPythonWriter(Writer):
    """Writes with kafka-python, which is idempotent by default."""

    def __init__(self, topic: str, partitions: int, acks: str, bootstrap: str) -> None:
        super().__init__(topic, partitions, acks)
        self._settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "acks": acks,
            "enable_idempotence": True,
            "reconnect_backoff_max_ms": 500,
        }

    def write(self, ending: Callable[[], bool]) -> None:
        """Send numbers, each with a future."""
        from kafka import KafkaProducer

        producer = KafkaProducer(**self._settings)
        futures: list[tuple[int, int, Any]] = []
        try:
            while not ending():
                for _ in range(AT_ONCE):
                    number, index = self._next()
                    value = b"%d" % number
                    futures.append(
                        (number, index, producer.send(self.topic, value, partition=index))
                    )
                time.sleep(PAUSE_SECONDS)
            producer.flush(45)
            for number, index, future in futures:
                offset = future.get(10).offset
                self.acknowledged[index].append(Acknowledgement(number, offset))
        finally:
            producer.close(5)
