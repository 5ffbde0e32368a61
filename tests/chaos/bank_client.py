"""A client of the bank, as a process: reads orders, writes postings and commits offsets in one transaction.

    python -m tests.chaos.bank_client LIBRARY BOOTSTRAP TRANSACTIONAL_ID SEED TIMEOUT_MS

LIBRARY is kclient or librdkafka. It runs until it is killed. It aborts some transactions on purpose, sometimes waits
within one. After an error that ends a producer or a consumer it begins with new ones. It prints a line for each
transaction and each error. A call that hangs ends the process: librdkafka 2.16 was seen not to return from a second
send_offsets_to_transaction after the first one had timed out, and to send no request meanwhile.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import Producer as LibrdkafkaProducer

import kclient
from kclient.wire.errors import ProducerFenced
from tests.chaos.bank import GROUP, ORDERS, POSTINGS, Order, Posting, transfer
from tests.chaos.bank_history import Journal

PATIENCE = 15.0
"""Seconds of retries for one call."""
HANGS = 45
"""Seconds after which a transaction ends the process."""
ABORTED = 0.1
"""Share of the transactions that are aborted on purpose."""
SLOW = 0.1
"""Share of the transactions with a wait in their midst."""
SLOWEST = 2.5
"""Seconds."""
COMMON: dict[str, Any] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 1000,
    "max.poll.interval.ms": 30000,
    "group.id": GROUP,
}


class Read(NamedTuple):
    """An order and its place."""

    partition: int
    offset: int
    order: Order


Delivered = Callable[[Posting, int], None]


class Rebuild(Exception):
    """Only a new producer or consumer can continue."""


class Bank(Protocol):
    """A consumer of orders and a transactional producer of postings."""

    def read(self, most: int) -> list[Read]:
        """Return the next orders."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def post(self, posting: Posting, delivered: Delivered) -> None:
        """Send a posting; call *delivered* with it and its offset."""
        ...

    def send_offsets(self, after: dict[int, int]) -> None:
        """Commit the offsets of the next orders by partition, if the transaction is committed."""
        ...

    def commit(self) -> None:
        """Commit. Raise KafkaError or KafkaException."""
        ...

    def abort(self) -> None:
        """Abort, and read from the committed offsets again."""
        ...

    def close(self) -> None:
        """End both."""
        ...


class KclientBank:
    """`kclient`, blocking."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int) -> None:
        self._producer: kclient.Producer[Any, Any] = kclient.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "max.block.ms": int(PATIENCE * 1000),
                "delivery.timeout.ms": 20000,
                "request.timeout.ms": 5000,
            }
        )
        self._consumer = kclient.Consumer(ORDERS, config={**COMMON, "bootstrap.servers": bootstrap})
        self._producer.start()
        self._producer.init_transactions()
        self._consumer.start()

    def read(self, most: int) -> list[Read]:
        """Return the next orders."""
        return [
            Read(one.partition, one.offset, Order.decode(one.value or b""))
            for one in self._consumer.consume(most, 1.0)
        ]

    def begin(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def post(self, posting: Posting, delivered: Delivered) -> None:
        """Send a posting."""

        def ended(future: Future[kclient.RecordMetadata]) -> None:
            if not future.cancelled() and future.exception() is None:
                delivered(posting, future.result().offset)

        sent = self._producer.send(POSTINGS, posting.encode(), partition=posting.partition)
        sent.add_done_callback(ended)

    def send_offsets(self, after: dict[int, int]) -> None:
        """Send the offsets."""
        self._producer.send_offsets_to_transaction(
            {kclient.TopicPartition(ORDERS, p): offset for p, offset in after.items()},
            self._consumer.group_metadata(),
        )

    def commit(self) -> None:
        """Commit."""
        self._producer.commit_transaction()

    def abort(self) -> None:
        """Abort, and read from the committed offsets again."""
        self._producer.abort_transaction()
        assigned = self._consumer.assignment()
        for partition, found in self._consumer.committed(assigned, PATIENCE).items():
            self._consumer.seek(partition, 0 if found is None else found.offset)

    def close(self) -> None:
        """End both."""
        self._producer.close(1.0, flush=False)
        self._consumer.close(5.0)


class LibrdkafkaBank:
    """librdkafka."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int) -> None:
        common: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "socket.timeout.ms": min(timeout_ms, 5000),
            "reconnect.backoff.max.ms": 500,
        }
        self._producer: Any = LibrdkafkaProducer(
            {
                **common,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, 20000),
                "linger.ms": 1,
                "retry.backoff.max.ms": 500,
            }
        )
        self._consumer: Any = LibrdkafkaConsumer({**common, **COMMON})
        self._retry(lambda: self._producer.init_transactions(5))
        self._consumer.subscribe([ORDERS])

    def read(self, most: int) -> list[Read]:
        """Return the next orders."""
        found = []
        for message in self._consumer.consume(most, 1.0):
            if message.error() is None:
                order = Order.decode(message.value())
                found.append(Read(message.partition(), message.offset(), order))
            elif message.error().fatal():
                raise Rebuild(str(message.error()))
        return found

    def begin(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def post(self, posting: Posting, delivered: Delivered) -> None:
        """Send a posting."""

        def ended(error: Any, message: Any) -> None:
            if error is None:
                delivered(posting, message.offset())

        self._producer.produce(
            POSTINGS, posting.encode(), partition=posting.partition, on_delivery=ended
        )

    def send_offsets(self, after: dict[int, int]) -> None:
        """Send the offsets."""
        at = [TopicPartition(ORDERS, p, offset) for p, offset in after.items()]
        group = self._consumer.consumer_group_metadata()
        self._retry(lambda: self._producer.send_offsets_to_transaction(at, group, 5))

    def commit(self) -> None:
        """Commit."""
        self._retry(lambda: self._producer.commit_transaction(5))

    def abort(self) -> None:
        """Abort, and read from the committed offsets again."""
        self._retry(lambda: self._producer.abort_transaction(5))
        assigned = self._consumer.assignment()
        for one in self._consumer.committed(assigned, PATIENCE) if assigned else ():
            if one.error is not None:
                raise Rebuild(str(one.error))
            self._consumer.seek(TopicPartition(one.topic, one.partition, max(0, one.offset)))

    def close(self) -> None:
        """End the consumer; the producer has no end."""
        self._producer.purge()
        self._consumer.close()

    @staticmethod
    def _retry(call: Callable[[], None]) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return call()
            except KafkaException as problem:
                if not problem.args[0].retriable() or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


LIBRARIES: dict[str, Callable[[str, str, int], Bank]] = {
    "kclient": KclientBank,
    "librdkafka": LibrdkafkaBank,
}


def serve(bank: Bank, chance: random.Random, names: Callable[[], str], journal: Journal) -> None:
    """Apply orders until an error that only new clients survive."""
    while True:
        signal.alarm(HANGS)
        orders = bank.read(chance.randint(1, 8))
        if not orders:
            continue
        name = names()
        journal.begins(name)
        try:
            bank.begin()
            _apply(bank, chance, orders, name, journal)
        except (kclient.KafkaError, KafkaException) as problem:
            note("refused", f"{name} {type(problem).__name__} {problem}")
            journal.failed(problem, is_fenced=is_fenced(problem))
            _abort(bank, name, journal)


def _apply(
    bank: Bank, chance: random.Random, orders: list[Read], name: str, journal: Journal
) -> None:
    """Write the postings of *orders* in the transaction that was begun, and end it."""
    postings = [
        posting
        for one in orders
        for posting in transfer(f"{one.partition}@{one.offset}", one.order, name, 2 * len(orders))
    ]
    journal.sends(postings)
    for posting in postings:
        bank.post(posting, journal.delivered)
    if chance.random() < SLOW:
        time.sleep(chance.uniform(0, SLOWEST))
    if chance.random() < ABORTED:
        _abort(bank, name, journal)
        return
    after = {one.partition: one.offset + 1 for one in orders}
    journal.sends_offsets(after)
    bank.send_offsets(after)
    journal.commits()
    bank.commit()
    journal.committed()
    note("committed", name)


def _abort(bank: Bank, name: str, journal: Journal) -> None:
    journal.aborts()
    bank.abort()
    journal.aborted()
    note("aborted", name)


def is_fenced(problem: Exception) -> bool:
    """Return whether the coordinator refused the epoch of the producer."""
    if isinstance(problem, KafkaException):
        return bool(problem.args[0].name() == "_FENCED")
    return isinstance(problem, ProducerFenced)


def note(what: str, detail: str) -> None:
    """Print a line."""
    print(f"{time.time():.3f} {what} {detail}", flush=True)  # noqa: T201


def main() -> None:
    """Serve with one pair of clients after the other."""
    library, bootstrap, name, seed, timeout_ms = sys.argv[1:]
    chance = random.Random(int(seed))
    numbers = itertools.count()
    while True:
        bank: Bank | None = None
        signal.alarm(2 * HANGS)
        try:
            journal = Journal(f"{name}-{os.getpid()}-{next(numbers)}", name, note)
            journal.initializes()
            bank = LIBRARIES[library](bootstrap, name, int(timeout_ms))
            journal.initialized()
            note("ready", name)
            serve(bank, chance, lambda: f"{name}-{os.getpid()}-{next(numbers)}", journal)
        except (kclient.KafkaError, KafkaException, Rebuild) as problem:
            note("rebuild", f"{type(problem).__name__} {problem}")
        try:
            if bank is not None:
                bank.close()
        except (kclient.KafkaError, KafkaException) as problem:
            note("close", str(problem))
        time.sleep(0.2)


if __name__ == "__main__":
    main()
