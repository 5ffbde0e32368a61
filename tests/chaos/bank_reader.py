"""A reader of the bank, as a process: reads all postings again and again with read_committed, a view a line.

    python -m tests.chaos.bank_reader LIBRARY BOOTSTRAP [TIMES]

LIBRARY is kclient or librdkafka. A view that an error interrupts is not printed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as Place

import kclient
from tests.chaos.bank import (
    GROUP,
    ORDER_PARTITIONS,
    ORDERS,
    POSTING_PARTITIONS,
    POSTINGS,
    Posting,
    View,
)

PATIENCE = 40.0
"""Seconds for a view."""


def by_kclient(bootstrap: str, isolation: str = "read_committed") -> View:
    """Read each partition, one after the other, up to where it stands when its turn comes."""
    view = View("kclient")
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "isolation.level": isolation,
        "auto.offset.reset": "none",
    }
    deadline = time.monotonic() + PATIENCE
    with kclient.Consumer(config=config) as consumer:
        for number in range(POSTING_PARTITIONS):
            partition = kclient.TopicPartition(POSTINGS, number)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            end = consumer.end_offsets([partition], PATIENCE)[partition]
            view.polled(number)
            while (position := consumer.position(partition, PATIENCE)) < end:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{partition} at {position} of {end}")
                for records in consumer.poll(timeout=1).values():
                    for one in records:
                        view.postings[number][one.offset] = Posting.decode(one.value or b"")
                view.polled(number)
            view.positions[number] = position
    if isolation == "read_committed":
        _ask(config, view)
    return view


def _ask(config: dict[str, Any], view: View) -> None:
    """Ask for the committed offsets of the orders, with require_stable."""
    places = [kclient.TopicPartition(ORDERS, number) for number in range(ORDER_PARTITIONS)]
    with kclient.Consumer(
        config={**config, "group.id": GROUP, "enable.auto.commit": False}
    ) as consumer:
        began = time.monotonic_ns()
        found = consumer.committed(places, PATIENCE)
    offsets = {one.partition: held.offset for one, held in found.items() if held is not None}
    view.asked = (began, time.monotonic_ns(), offsets)


def by_librdkafka(bootstrap: str, isolation: str = "read_committed") -> View:
    """The same."""
    view = View("librdkafka")
    consumer: Any = LibrdkafkaConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + PATIENCE
    try:
        for number in range(POSTING_PARTITIONS):
            consumer.assign([Place(POSTINGS, number, 0)])
            view.polled(number)
            while number not in view.positions:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"partition {number}")
                for message in consumer.consume(500, 0.05):
                    if message.partition() != number or number in view.positions:
                        continue  # the partition has grown behind its end
                    problem = message.error()
                    if problem is None:
                        posting = Posting.decode(message.value())
                        view.postings[number][message.offset()] = posting
                    elif problem.name() == "_PARTITION_EOF":
                        view.positions[number] = message.offset()
                    else:
                        raise KafkaException(problem)
                view.polled(number)
        return view
    finally:
        consumer.close()


READERS = {"kclient": by_kclient, "librdkafka": by_librdkafka}


def main() -> None:
    """Read until it is killed, or so many times."""
    library, bootstrap, *rest = sys.argv[1:]
    left = int(rest[0]) if rest else -1
    while left:
        try:
            view = READERS[library](bootstrap)
        except (kclient.KafkaError, KafkaException, TimeoutError) as problem:
            print(f"{type(problem).__name__} {problem}", file=sys.stderr, flush=True)  # noqa: T201
            time.sleep(0.2)
            continue
        print(view.to_json(), flush=True)  # noqa: T201
        left -= 1
        time.sleep(0.2)


if __name__ == "__main__":
    main()
