"""`kclient perf produce`: sends records as fast as they are taken, or at a rate."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from kclient.cli.answers import print_problems
from kclient.cli.commands import with_settings
from kclient.cli.exit_codes import FAILED
from kclient.cli.finite_range import FiniteRange
from kclient.cli.help import Command
from kclient.cli.names import TOPIC
from kclient.cli.output import show
from kclient.cli.perf_figures import (
    LATENCY_COLUMNS,
    RATE_COLUMNS,
    Latencies,
    Window,
    due_after,
    rates,
)
from kclient.cli.perf_run import Stopwatch, payloads, reports
from kclient.cli.run import run
from kclient.cli.settings import Settings
from kclient.errors import ConfigError, KafkaError, KafkaTimeoutError

if TYPE_CHECKING:
    from twisted.python.failure import Failure

_TURN_S = 0.002
"""Seconds of sends in one turn of the reactor: acknowledgements wait for its end."""


@click.command(
    "produce",
    cls=Command,
    examples=(
        "kclient perf produce orders --records 1000000 --size 100",
        "kclient perf produce orders --rate 500 --acks 1 -X linger.ms=0",
        "kclient perf produce orders -z zstd -X batch.size=262144 -J",
    ),
)
@click.argument("topic", type=TOPIC)
@click.option(
    "-n", "--records", type=click.IntRange(1), default=100_000, show_default=True,
    help="Number of records.",
)  # fmt: skip
@click.option(
    "-s", "--size", type=click.IntRange(0), default=100, show_default=True, metavar="BYTES",
    help="Size of a value; there are no keys.",
)  # fmt: skip
@click.option(
    "--rate", type=FiniteRange(0, min_open=True), metavar="N",
    help="Send N records per second at most; default: as fast as possible.",
)  # fmt: skip
@click.option(
    "--warmup", type=click.IntRange(0), default=0, metavar="N",
    help="Send N records before those that are measured: connections and codecs are ready then.",
)  # fmt: skip
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    help="Replicas that acknowledge a record: none, the leader, the ISR (default all).",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Compression of batches (default none).",
)
@with_settings
def produce(
    settings: Settings,
    topic: str,
    records: int,
    size: int,
    rate: float | None,
    warmup: int,
    acks: str | None,
    compression: str | None,
) -> None:
    """Send random records to TOPIC, and show the rate and the latencies of those that were acknowledged.

    A latency is from the send to the acknowledgement (with --acks 0: until the record was sent). At full speed it is
    mostly the wait in the client's memory (-X buffer.memory=); with --rate it is that of the brokers. A line on stderr
    shows the last 5 s.
    """
    given = {"acks": acks, "compression.type": compression}

    async def main(reactor: Any) -> int:
        from twisted.internet.defer import CancelledError

        from kclient.config import ProducerConfig
        from kclient.producer.producer import Producer

        values = settings.client(ProducerConfig)
        values.update({name: value for name, value in given.items() if value is not None})
        if values.get("transactional.id"):
            raise ConfigError("perf produce sends no transactions; remove transactional.id")
        # A record may wait for memory as long as for its acknowledgement: both wait for the same brokers.
        values.setdefault("delivery.timeout.ms", 120_000)
        values.setdefault("max.block.ms", values["delivery.timeout.ms"])
        producer: Producer[Any, Any] = Producer(values, reactor=reactor)
        async with producer:
            await producer.cluster.partitions(topic, timeout=settings.timeout)
            load = _Load(reactor, producer, topic, size)
            # Ctrl-C ends the load; its figures so far are shown, before records in memory fail.
            with reports(settings, reactor, load.window), suppress(CancelledError):
                await load.send(warmup, rate)
                await producer.flush()
                load.measure()
                await load.send(records, rate)
                await producer.flush()
            _show(settings, load, size)
            if rate is None and not load.problems:
                load.stopwatch.note_if_busy(settings)
            return FAILED if load.problems else 0

    run(main)


def _show(settings: Settings, load: _Load, size: int) -> None:
    print_problems(load.problems)
    count = load.latencies.count
    row = {
        **rates(count, count * size, load.ended_after),
        **load.latencies.row(),
        "failed": load.failed,
    }
    show([row], (*RATE_COLUMNS, *LATENCY_COLUMNS), settings.format)


class _Load:
    """Sends to one topic and counts acknowledgements."""

    def __init__(self, reactor: Any, producer: Any, topic: str, size: int) -> None:
        self._reactor = reactor
        self._producer = producer
        self._topic = topic
        self._size = size
        self._payload = payloads(size)
        self.window = Window("sent", reactor.seconds())
        self.failed = 0
        self.problems: Counter[str] = Counter()
        self._timed_out = False
        self.measure()

    def measure(self) -> None:
        """Restart the figures: what was sent before was for warming up."""
        self.latencies = Latencies()
        self.stopwatch = Stopwatch(self._reactor)
        self.ended_after = 0.0
        """Seconds from the first send to the last acknowledgement."""

    async def send(self, records: int, rate: float | None) -> None:
        """Send *records*, at most *rate* per second; return before their last acknowledgements."""
        from kclient.net.waiting import sleep

        seconds = self._reactor.seconds
        began = turn = seconds()
        for number in range(records):
            if rate is not None:
                wait = began + due_after(number, rate) - seconds()
                if wait > 0:
                    await sleep(self._reactor, wait)
                    turn = seconds()
            start = seconds()
            if start - turn > _TURN_S:
                await sleep(self._reactor, 0)
                turn = start = seconds()
            room = self._producer.ready(self._size)
            if not room.called:
                try:
                    await room
                except KafkaTimeoutError as problem:
                    self._note(problem)
                turn = seconds()
            if self._timed_out:
                return
            self._producer.send(self._topic, self._payload()).addCallbacks(
                self._acknowledged, self._refused, callbackArgs=(start,)
            )

    def _acknowledged(self, _: object, start: float) -> None:
        now = self._reactor.seconds()
        self.latencies.add(now - start)
        self.window.add(1, self._size, now - start)
        self.ended_after = now - self.stopwatch.began

    def _refused(self, failure: Failure) -> None:
        problem = failure.value
        if not isinstance(problem, KafkaError):
            failure.raiseException()
        self.failed += 1
        self._note(problem)

    def _note(self, problem: KafkaError) -> None:
        """Note *problem*; after a timeout more records would wait in vain."""
        self._timed_out = self._timed_out or isinstance(problem, KafkaTimeoutError)
        self.problems[str(problem)] += 1
