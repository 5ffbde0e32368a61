"""A consumer in a group as a process of its own, with a foreign client: made to be killed.

    python -m tests.kit.group_member LIBRARY BOOTSTRAP GROUP TOPIC

Writes one JSON line per event to stdout: {"assigned": [...]} for the partitions of each new
assignment, {"processed": [values]} after records were worked on, {"committed": {partition: offset}}
after their offsets were committed. It commits by hand, after processing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

SESSION_MS = 6000


def report(**event: Any) -> None:
    """Write one event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def run_librdkafka(bootstrap: str, group: str, topic: str) -> None:
    """Consume with librdkafka."""
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
    )
    consumer.subscribe(
        [topic], on_assign=lambda _, partitions: report(assigned=[p.partition for p in partitions])
    )
    while True:
        messages = [m for m in consumer.consume(100, 0.1) if m.error() is None]
        if not messages:
            continue
        report(processed=[(m.value() or b"").decode() for m in messages])
        try:
            done = consumer.commit(asynchronous=False)
        except KafkaException as error:
            report(error=str(error))
            continue
        report(committed={p.partition: p.offset for p in done if p.error is None and p.offset >= 0})


def run_kafka_python(bootstrap: str, group: str, topic: str) -> None:
    """Consume with kafka-python."""
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            report(assigned=[tp.partition for tp in assigned])

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=500,
        metadata_max_age_ms=1000,
        reconnect_backoff_max_ms=500,
    )
    consumer.subscribe([topic], listener=Listener())
    while True:
        polled = consumer.poll(timeout_ms=100)
        if not polled:
            continue
        report(processed=[r.value.decode() for records in polled.values() for r in records])
        offsets = {
            tp: OffsetAndMetadata(records[-1].offset + 1, "", records[-1].leader_epoch)
            for tp, records in polled.items()
        }
        try:
            consumer.commit(offsets)
        except KafkaError as error:
            report(error=repr(error))
            continue
        report(committed={tp.partition: o.offset for tp, o in offsets.items()})


async def run_aiokafka(bootstrap: str, group: str, topic: str) -> None:
    """Consume with aiokafka."""
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        async def on_partitions_assigned(self, assigned: Any) -> None:
            report(assigned=[tp.partition for tp in assigned])

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=500,
        metadata_max_age_ms=1000,
    )
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while True:
        polled = await consumer.getmany(timeout_ms=100)
        if not polled:
            continue
        report(processed=[r.value.decode() for records in polled.values() for r in records])
        offsets = {tp: records[-1].offset + 1 for tp, records in polled.items()}
        try:
            await consumer.commit(offsets)
        except KafkaError as error:
            report(error=repr(error))
            continue
        report(committed={tp.partition: offset for tp, offset in offsets.items()})


def main() -> None:
    """Run with the arguments of the command line."""
    library, bootstrap, group, topic = sys.argv[1:]
    if library == "librdkafka":
        run_librdkafka(bootstrap, group, topic)
    elif library == "kafka-python":
        run_kafka_python(bootstrap, group, topic)
    else:
        asyncio.run(run_aiokafka(bootstrap, group, topic))


if __name__ == "__main__":
    main()
