"""`kclient perf latency`: sends one record at a time and waits until a consumer has it."""

from __future__ import annotations

import secrets
import struct
from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.finite_range import FiniteRange
from kclient.cli.help import Command
from kclient.cli.names import TOPIC
from kclient.cli.output import show
from kclient.cli.perf_figures import LATENCY_COLUMNS, Latencies, Window, due_after
from kclient.cli.perf_run import Stopwatch, payloads, reports
from kclient.cli.run import run
from kclient.cli.settings import Settings, milliseconds
from kclient.errors import KafkaTimeoutError
from kclient.types import TopicPartition

_MARK = struct.Struct(">8sq")
"""Begins each value: the run, and the number of the record."""


@click.command(
    "latency",
    cls=Command,
    examples=(
        "kclient perf latency orders",
        "kclient perf latency orders --records 10000 --size 1000 --acks 1 -J",
    ),
)
@click.argument("topic", type=TOPIC)
@click.option(
    "-n", "--records", type=click.IntRange(1), default=1000, show_default=True,
    help="Number of records.",
)  # fmt: skip
@click.option(
    "-s", "--size", type=click.IntRange(_MARK.size), default=100, show_default=True, metavar="BYTES",
    help="Size of a value.",
)  # fmt: skip
@click.option(
    "--rate", type=FiniteRange(0, min_open=True), metavar="N",
    help="Send N records per second at most; default: each as soon as the one before was read.",
)  # fmt: skip
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    help="Replicas that acknowledge a record: none, the leader, the ISR (default all).",
)
@with_settings
def latency(
    settings: Settings, topic: str, records: int, size: int, rate: float | None, acks: str | None
) -> None:
    """Send records one by one, wait until a consumer has each, and show the latencies.

    PRODUCE is from the send to the acknowledgement, END-TO-END from the send until the record is read. Partitions take
    turns. Records that others produce are ignored. The producer has linger.ms=0 unless -X sets it.
    """

    async def main(reactor: Any) -> int:
        from kclient.config import ConsumerConfig, ProducerConfig
        from kclient.consumer.client import Consumer
        from kclient.producer.producer import Producer

        produced = settings.client(ProducerConfig)
        produced.setdefault("linger.ms", 0)
        if acks is not None:
            produced["acks"] = acks
        # One record is under way: its acknowledgement takes no longer than -m.
        produced.setdefault("delivery.timeout.ms", milliseconds(settings.timeout))
        consumed = settings.client(ConsumerConfig)
        consumed["enable.auto.commit"] = "false"
        consumed.setdefault("allow.auto.create.topics", "false")
        async with (
            Consumer(config=consumed, reactor=reactor) as consumer,
            Producer(produced, reactor=reactor) as producer,
        ):
            numbers = await consumer.partitions_for_topic(topic, settings.timeout)
            places = [TopicPartition(topic, number) for number in numbers]
            consumer.assign(places, await consumer.end_offsets(places))
            load = _Load(reactor, producer, consumer, places, settings.timeout)
            window = load.window
            with reports(settings, reactor, window):
                await load.run(records, size, rate)
        rows = [
            {"latency": name, "records": each.count, **each.row()}
            for name, each in (("produce", load.produce), ("end-to-end", load.end_to_end))
        ]
        show(rows, ("latency", "records", *LATENCY_COLUMNS), settings.format)
        return 0

    run(main)


class _Load:
    """Sends and reads one record at a time."""

    def __init__(
        self,
        reactor: Any,
        producer: Any,
        consumer: Any,
        places: list[TopicPartition],
        timeout: float,
    ) -> None:
        self._reactor = reactor
        self._producer = producer
        self._consumer = consumer
        self._places = places
        self._timeout = timeout
        self._run = secrets.token_bytes(8)
        self.produce = Latencies()
        self.end_to_end = Latencies()
        self.window = Window("sent and read", Stopwatch(reactor).began)

    async def run(self, records: int, size: int, rate: float | None) -> None:
        """Send and read *records*; Ctrl-C ends it early."""
        from twisted.internet.defer import CancelledError

        from kclient.net.waiting import sleep

        payload = payloads(size - _MARK.size)
        seconds = self._reactor.seconds
        began = seconds()
        try:
            for number in range(records):
                if rate is not None:
                    wait = began + due_after(number, rate) - seconds()
                    if wait > 0:
                        await sleep(self._reactor, wait)
                await self._one(number, _MARK.pack(self._run, number) + payload())
        except CancelledError:
            pass  # Ctrl-C: the latencies so far are shown.

    async def _one(self, number: int, value: bytes) -> None:
        seconds = self._reactor.seconds
        tp = self._places[number % len(self._places)]
        start = seconds()
        await self._producer.send(tp.topic, value, partition=tp.partition)
        acknowledged = seconds()
        mark = value[: _MARK.size]
        while True:
            found = await self._consumer.poll(timeout=max(0.0, start + self._timeout - seconds()))
            if any((r.value or b"").startswith(mark) for r in found.get(tp, ())):
                break
            if seconds() - start >= self._timeout:
                raise KafkaTimeoutError(
                    f"record {number + 1} was sent to {tp} and not read within {self._timeout:g} s"
                )
        end = seconds()
        self.produce.add(acknowledged - start)
        self.end_to_end.add(end - start)
        self.window.add(1, len(value), end - start)
