"""`kclient perf consume`: reads a topic as a member of a group, as fast as it can."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.exit_codes import TIMED_OUT
from kclient.cli.finite_range import FiniteRange
from kclient.cli.help import Command
from kclient.cli.names import GROUP, TOPIC
from kclient.cli.output import print_error, show
from kclient.cli.perf_figures import RATE_COLUMNS, Window, rates
from kclient.cli.perf_run import Stopwatch, reports
from kclient.cli.run import run
from kclient.cli.settings import Settings
from kclient.types import TopicPartition

_COLUMNS = (*RATE_COLUMNS, "rebalance_ms", "fetch_ms", "fetch_records_per_s", "fetch_mb_per_s")


@click.command(
    "consume",
    cls=Command,
    examples=(
        "kclient perf consume orders",
        "kclient perf consume orders --records 1000000 -X fetch.min.bytes=100000",
        "kclient perf consume orders --from-latest --records 1000 --idle-timeout 60 -J",
    ),
)
@click.argument("topic", type=TOPIC)
@click.option(
    "-n", "--records", type=click.IntRange(1),
    help="Stop after this number of records; default: at the present log ends.",
)  # fmt: skip
@click.option(
    "-g", "--group", type=GROUP,
    help="Join this group, at its committed offsets; several processes share its partitions "
    "(default: a new group).",
)  # fmt: skip
@click.option(
    "--from-latest", is_flag=True, help="Read new records only (needs --records); default: all."
)
@click.option(
    "--idle-timeout", type=FiniteRange(0.1), default=10.0, show_default=True, metavar="SECONDS",
    help="Stop after this time without a record, with exit code 124.",
)  # fmt: skip
@with_settings
def consume(
    settings: Settings,
    topic: str,
    records: int | None,
    group: str | None,
    from_latest: bool,
    idle_timeout: float,
) -> None:
    """Read TOPIC as a member of a group, and show the rate.

    REBALANCE-MS is the time without partitions: from the subscription, or a revocation, to the assignment. The fetch
    rates are of the other time. No offset is committed, unless -X enable.auto.commit=true. A line on stderr shows the
    last 5 s.
    """
    if from_latest and records is None:
        raise click.UsageError("--from-latest needs --records: the log ends are where it begins")

    async def main(reactor: Any) -> int:
        from twisted.internet.defer import CancelledError

        from kclient.config import ConsumerConfig
        from kclient.consumer.client import Consumer

        values = settings.client(ConsumerConfig)
        values["auto.offset.reset"] = "latest" if from_latest else "earliest"
        values["group.id"] = group or f"kclient-perf-{secrets.token_hex(4)}"
        values.setdefault("max.poll.records", 5000)
        values.setdefault("enable.auto.commit", "false")
        values.setdefault("allow.auto.create.topics", "false")
        async with Consumer(config=values, reactor=reactor) as consumer:
            numbers = await consumer.partitions_for_topic(topic, settings.timeout)
            places = [TopicPartition(topic, number) for number in numbers]
            ends = await consumer.end_offsets(places) if records is None else None
            load = _Load(reactor, consumer, ends)
            # Ctrl-C ends the load; its figures so far are shown.
            with reports(settings, reactor, load.window), suppress(CancelledError):
                await load.read(topic, records, idle_timeout)
            _show(settings, load)
        if load.is_idle:
            print_error(
                f"no record for {idle_timeout:g} s after {load.records} records; --idle-timeout SECONDS waits longer"
            )
            return TIMED_OUT
        load.stopwatch.note_if_busy(settings)
        return 0

    run(main)


def _show(settings: Settings, load: _Load) -> None:
    fetch_s = max(0.0, load.ended_after - load.rebalances.seconds)
    fetched = rates(load.records, load.bytes, fetch_s)
    row = {
        **rates(load.records, load.bytes, load.ended_after),
        "rebalance_ms": round(load.rebalances.seconds * 1000),
        "fetch_ms": round(fetch_s * 1000),
        "fetch_records_per_s": fetched["records_per_s"],
        "fetch_mb_per_s": fetched["mb_per_s"],
    }
    show([row], _COLUMNS, settings.format)


class RebalanceTime:
    """Adds up the time without an assignment, from the subscription on; see `RebalanceListener`."""

    def __init__(self, began: float) -> None:
        self._since: float | None = began
        self.seconds = 0.0

    def assigned(self, now: float) -> None:
        """Count the time since the subscription or the revocation."""
        if self._since is not None:
            self.seconds += now - self._since
        self._since = None

    def revoked(self, now: float) -> None:
        """Begin to count, unless partitions were revoked before."""
        if self._since is None:
            self._since = now


class _Load:
    """Reads one topic; *ends* are the offsets to stop at."""

    def __init__(self, reactor: Any, consumer: Any, ends: dict[TopicPartition, int] | None) -> None:
        self._reactor = reactor
        self._consumer = consumer
        self._ends = ends
        self.stopwatch = Stopwatch(reactor)
        self.rebalances = RebalanceTime(self.stopwatch.began)
        self.window = Window("read", self.stopwatch.began)
        self.records = self.bytes = 0
        self.is_idle = False
        self.ended_after = 0.0
        """Seconds from the subscription to the last record."""

    async def read(self, topic: str, records: int | None, idle_timeout: float) -> None:
        """Read until *records*, the end offsets or the idle timeout."""
        from kclient.consumer.subscription import RebalanceListener

        consumer, rebalances, seconds = self._consumer, self.rebalances, self._reactor.seconds

        class Listener(RebalanceListener):
            """Measures the time of rebalances."""

            def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                rebalances.assigned(seconds())

            def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
                rebalances.revoked(seconds())

        consumer.subscribe([topic], listener=Listener())
        last = seconds()
        most = consumer.config.max_poll_records
        while records is None or self.records < records:
            left = most if records is None else min(most, records - self.records)
            found = await consumer.poll(timeout=0.2, max_records=left)
            now = seconds()
            if found:
                last = now
                self._count(found, now)
            if self._at_end():
                self.ended_after = now - self.stopwatch.began
                return
            if now - last > idle_timeout:
                self.is_idle = True
                return

    def _count(self, found: dict[TopicPartition, list[Any]], now: float) -> None:
        for each in found.values():
            size = sum(len(r.key or b"") + len(r.value or b"") for r in each)
            self.records += len(each)
            self.bytes += size
            self.window.add(len(each), size)
        self.ended_after = now - self.stopwatch.began

    def _at_end(self) -> bool:
        """Return whether all assigned partitions are read up to their end offsets."""
        if self._ends is None:
            return False
        positions = {tp: self._consumer.next_offset(tp) for tp in self._consumer.assignment()}
        return bool(positions) and all(
            at is not None and at >= self._ends.get(tp, 0) for tp, at in positions.items()
        )
