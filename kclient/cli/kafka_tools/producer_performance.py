"""kafka-producer-perf-test: sends records and prints their rate and latencies."""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kclient.cli.kafka_tools.arguments import ArgparseTool, Arguments, finite
from kclient.cli.kafka_tools.client_settings import from_java
from kclient.cli.kafka_tools.java_errors import message_of
from kclient.cli.kafka_tools.tool import (
    Failure,
    UsageError,
    know_topic,
    print_error,
    print_message,
    properties_of,
    run_client,
    settings_of,
)
from kclient.cli.perf_figures import Latencies, due_after
from kclient.errors import KafkaError

_MB = 1024 * 1024
_REPORT_EVERY_S = 5.0
_TURN_S = 0.002
"""Seconds of sends in one turn of the reactor: acknowledgements wait for its end."""


def build(parser: Arguments) -> None:
    """Add the options."""
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="The topic.")
    parser.add_argument(
        "--num-records", required=True, type=int, metavar="NUM-RECORDS", help="Records to send."
    )
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument(
        "--record-size", type=int, metavar="RECORD-SIZE", help="Bytes of a record."
    )
    payload.add_argument(
        "--payload-file",
        metavar="PAYLOAD-FILE",
        help="File of payloads, chosen at random.",
    )
    payload.add_argument(
        "--payload-monotonic", action="store_true", help="Payloads are 0, 1, 2, ..."
    )
    parser.add_argument(
        "--payload-delimiter",
        default="\\n",
        metavar="PAYLOAD-DELIMITER",
        help="Between payloads of the file.",
    )
    parser.add_argument(
        "--throughput",
        required=True,
        type=finite,
        metavar="THROUGHPUT",
        help="Records per second; -1: no limit.",
    )
    parser.add_argument(
        "--producer-props",
        nargs="+",
        metavar="PROP-NAME=PROP-VALUE",
        help="Settings of the producer.",
    )
    parser.add_argument(
        "--producer.config",
        dest="producer_config",
        metavar="CONFIG-FILE",
        help="Properties of the producer.",
    )
    parser.add_argument(
        "--transactional-id",
        default="performance-producer-default-transactional-id",
        metavar="TRANSACTIONAL-ID",
        help="The transactional id.",
    )
    parser.add_argument(
        "--transaction-duration-ms",
        type=int,
        default=0,
        metavar="TRANSACTION-DURATION",
        help="Send in transactions that are this old when they are committed.",
    )


def main(given: Namespace) -> int | None:
    """Send records and print the figures."""
    if given.producer_props is None and given.producer_config is None:
        raise UsageError("Either --producer-props or --producer.config must be specified.")
    if given.throughput == 0:
        raise UsageError("argument --throughput: with 0 no record would be sent")
    try:
        settings = _settings(given)
        payload = _payloads(given)
    except Failure as problem:
        return print_error(problem)

    def make(reactor: Any) -> Any:
        from kclient.producer.producer import Producer

        return Producer(settings, reactor=reactor)

    async def body(producer: Any) -> int:
        await _Load(producer, given, payload).run()
        return 0

    return run_client(TOOL.print_usage, make, body, print_message)


def _settings(given: Namespace) -> dict[str, Any]:
    settings = properties_of(given.producer_config)
    for text in given.producer_props or ():
        _name, _equals, value = text.partition("=")
        if not value or "=" in value:
            raise Failure(f"Invalid property: {text}")
    settings.update(settings_of(given.producer_props or ()))
    if given.transaction_duration_ms > 0:
        settings["transactional.id"] = given.transactional_id
    settings.setdefault("client.id", "perf-producer-client")
    if "bootstrap.servers" not in settings:
        raise Failure(
            'Missing required configuration "bootstrap.servers" which has no default value.'
        )
    return from_java(settings)


def _payloads(given: Namespace) -> Callable[[int], bytes]:
    """Return the payload of the record with a number."""
    if given.payload_monotonic:
        return lambda number: b"%d" % number
    if given.record_size is not None:
        from kclient.cli.perf_run import payloads

        if given.record_size < 0:
            raise Failure(f"record size {given.record_size} is negative")
        draw = payloads(given.record_size)
        return lambda _number: draw()
    path = Path(given.payload_file)
    print(f"Reading payloads from: {path.absolute()}")
    if not path.exists() or not path.stat().st_size:
        raise Failure("File does not exist or empty file provided.")
    try:
        found = read_payloads(path.read_bytes(), given.payload_delimiter)
    except OSError as problem:
        raise Failure(f"{path} ({problem.strerror})") from None
    print(f"Number of messages read: {len(found)}")
    return lambda _number: random.choice(found)


def read_payloads(content: bytes, delimiter: str) -> list[bytes]:
    r"""Return the payloads of a file; \n in *delimiter* is a line end."""
    if not delimiter:
        raise Failure("--payload-delimiter is empty")
    found = content.split(delimiter.replace("\\n", "\n").encode())
    while len(found) > 1 and not found[-1]:
        found.pop()  # as Java's split
    return found


class _Load:
    """Sends the records of one command."""

    def __init__(self, producer: Any, given: Namespace, payload: Callable[[int], bytes]) -> None:
        self._producer, self._given, self._payload = producer, given, payload
        self._seconds = producer.cluster.reactor.seconds
        self._began = self._window_began = self._seconds()
        self._latencies, self._window = Latencies(), Latencies()
        self._bytes = self._window_bytes = 0

    async def run(self) -> None:
        """Send all records, wait for their acknowledgements, print the figures."""
        is_transactional = self._given.transaction_duration_ms > 0
        await know_topic(self._producer, self._given.topic)
        if is_transactional:
            await self._producer.init_transactions()
        self._began = self._window_began = self._seconds()
        await self._send(is_transactional)
        await self._producer.flush()
        self._print_total()

    async def _send(self, is_transactional: bool) -> None:
        from kclient.net.waiting import sleep

        reactor, rate = self._producer.cluster.reactor, self._given.throughput
        began = turn = self._seconds()
        transaction_began: float | None = None
        for number in range(self._given.num_records):
            payload = self._payload(number)
            if is_transactional and transaction_began is None:
                await self._producer.begin_transaction()
                transaction_began = self._seconds()
            room = self._producer.ready(len(payload))
            if not room.called:
                await room
                turn = self._seconds()
            start = self._seconds()
            self._producer.send(self._given.topic, payload).addCallbacks(
                self._acknowledged, self._refused, callbackArgs=(start, len(payload))
            )
            if (
                transaction_began is not None
                and start - transaction_began >= self._given.transaction_duration_ms / 1000
            ):
                await self._producer.commit_transaction()
                transaction_began = None
            wait = began + due_after(number + 1, rate) - self._seconds() if rate > 0 else 0.0
            if wait > 0 or self._seconds() - turn > _TURN_S:
                await sleep(reactor, max(0.0, wait))
                turn = self._seconds()
        if transaction_began is not None:
            await self._producer.commit_transaction()

    def _acknowledged(self, _: object, start: float, size: int) -> None:
        now = self._seconds()
        latency = int((now - start) * 1000) / 1000
        self._latencies.add(latency)
        self._window.add(latency)
        self._bytes += size
        self._window_bytes += size
        if now - self._window_began >= _REPORT_EVERY_S:
            self._print_window(now)

    def _refused(self, failure: Any) -> None:
        if not isinstance(failure.value, KafkaError):
            failure.raiseException()
        print_error(message_of(failure.value))

    def _print_window(self, now: float) -> None:
        count, seconds = self._window.count, now - self._window_began
        mb, mean = self._window_bytes / seconds / _MB, 1000 * self._window.total_s / count
        print(
            f"{count} records sent, {count / seconds:.1f} records/sec ({mb:.2f} MB/sec), "
            f"{mean:.1f} ms avg latency, {1000 * self._window.max_s:.1f} ms max latency.",
            flush=True,
        )
        self._window, self._window_bytes, self._window_began = Latencies(), 0, now

    def _print_total(self) -> None:
        count = self._latencies.count
        seconds = max(0.001, self._seconds() - self._began)
        mean = f"{1000 * self._latencies.total_s / count:.2f}" if count else "NaN"
        ranks = ", ".join(
            f"{round(1000 * self._latencies.percentile_s(percent))} ms {name}"
            for name, percent in (("50th", 50), ("95th", 95), ("99th", 99), ("99.9th", 99.9))
        )
        print(
            f"{count} records sent, {count / seconds:f} records/sec ({self._bytes / seconds / _MB:.2f} MB/sec), "
            f"{mean} ms avg latency, {1000 * self._latencies.max_s:.2f} ms max latency, {ranks}."
        )


TOOL = ArgparseTool(
    "kafka-producer-perf-test",
    "producer-performance",
    "This tool is used to verify the producer performance.",
    build,
    main,
    refused={
        "--print-metrics": "kclient's producer does not have the metrics of the Java producer"
    },
    differs=(
        "The figures are those of kclient's producer. A percentile is of all records, in Kafka of 500,000 at most.",
        "Payloads of a file are sent as they are, also if they are not UTF-8. The delimiter is no regular expression.",
    ),
    help_without_words=True,
)
