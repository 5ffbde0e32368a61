"""Every record of two clusters, read with librdkafka and compared with each other and with what was acknowledged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.audits.problem import Problem
from tests.chaos.mirror_writers import Ledger, Place

PATIENCE = 120.0


class ReadRecord(NamedTuple):
    """What a consumer sees of a record."""

    offset: int
    timestamp: tuple[int, int]
    """Type and milliseconds."""
    key: bytes | None
    value: bytes | None
    headers: Any


Logs = Mapping[Place, list[ReadRecord]]


def read_all(bootstrap: str, places: Iterable[Place]) -> dict[Place, list[ReadRecord]]:
    """Read every record of *places*, from the beginning up to the high watermark of now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "comparison",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    found: dict[Place, list[ReadRecord]] = {place: [] for place in places}
    consumer.assign([TopicPartition(*place, 0) for place in found])
    left = set(found)
    deadline = time.monotonic() + PATIENCE
    while left:
        assert time.monotonic() < deadline, f"{sorted(left)} cannot be read"
        for message in consumer.consume(500, 1.0):
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            place = topic, partition
            error = message.error()
            if error is None:
                assert offset is not None
                found[place].append(
                    ReadRecord(
                        offset,
                        message.timestamp(),
                        message.key(),
                        message.value(),
                        message.headers(),
                    )
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(place)
    consumer.close()
    return found


def differences(source: Logs, target: Logs) -> Iterator[Problem]:
    """Yield the first difference of every partition."""
    for place in sorted(source.keys() | target.keys()):
        one, other = source.get(place, []), target.get(place, [])
        if one == other:
            continue
        n = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)  # fmt: skip
        text = f"{len(one)} and {len(other)} records"
        if n is not None:
            text += f"; {str(one[n])[:300]} and {str(other[n])[:300]}"
        yield Problem("records-differ", f"{place[0]}-{place[1]}", text)


def lost(ledger: Ledger, logs: Logs, cluster: str) -> Iterator[Problem]:
    """Yield the first acknowledged record of every partition that *logs* of *cluster* do not have at its offset."""
    for place, placeless in ledger.placeless.items():
        there = {record.value for record in logs.get(place, [])}
        gone = [one for one in placeless if one.value not in there]
        if gone:
            text = f"{len(gone)} acknowledged records are not there, first {gone[0]!s:.200}"
            yield Problem("record-lost", f"{cluster} {place[0]}-{place[1]}", text)
    for place, written in ledger.written.items():
        values = {record.offset: record.value for record in logs.get(place, [])}
        wrong = [at for at, one in sorted(written.items()) if values.get(at) != one.value]
        if wrong:
            at = wrong[0]
            text = (
                f"{len(wrong)} acknowledged records are not there, first {at}: {written[at]!s:.200}"
            )
            yield Problem("record-lost", f"{cluster} {place[0]}-{place[1]}", text)
