"""kafka-consumer-perf-test: reads records and prints their rate."""

from __future__ import annotations

import random
import re
import time
from typing import Any

from kclient.cli.kafka_tools.client_settings import from_java
from kclient.cli.kafka_tools.options import OPTIONAL, Given, Option, OptionError, not_honoured
from kclient.cli.kafka_tools.tool import (
    BOOTSTRAP,
    Failure,
    Tool,
    print_error,
    print_message,
    properties_of,
    require,
    run_client,
    warn_of_socket_buffer,
)

_MB = 1024 * 1024
_COLUMNS = (
    "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, "
    "fetch.MB.sec, fetch.nMsg.sec"
)
_DATE_PARTS = {
    "yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "SSS": "{ms:03d}",
}  # fmt: skip

_DATE_PART = re.compile(
    r"'(?P<quoted>[^']*)'|(?P<letters>(?P<one>[A-Za-z])(?P=one)*)|(?P<other>[^A-Za-z']+)"
)

OPTIONS = (
    Option("broker-list", "The same as --bootstrap-server, which wins.", "broker-list"),
    Option("bootstrap-server", "The brokers to connect to; required.", "server to connect to",
           required_unless="broker-list"),
    Option("topic", "The topic; required.", "topic"),
    Option("group", "The group; a new one without it.", "gid"),
    Option("fetch-size", "max.partition.fetch.bytes.", "size", int, 1_048_576),
    Option("from-latest", "Start at the end of the log, if the group has no offset."),
    Option("socket-buffer-size", "receive.buffer.bytes, which has no effect here.", "size", int, 2_097_152),
    Option("threads", "Deprecated and ignored by Kafka's tool, too, with a warning.", "count", int, 10),
    Option("num-fetch-threads", "Deprecated and ignored by Kafka's tool, too, with a warning.", "count", int, 1),
    Option("consumer.config", "Properties file of the consumer.", "config file"),
    Option("show-detailed-stats", "Print a line for each interval."),
    Option("timeout", "The longest time without a record, in ms.", "milliseconds", int, 10_000, takes=OPTIONAL),
    Option("messages", "The number of records to read; required.", "count", int),
    Option("reporting-interval", "The interval of --show-detailed-stats, in ms.", "interval_ms", int, 5000),
    Option("date-format", "The format of times.", "date format", str, "yyyy-MM-dd HH:mm:ss:SSS"),
    Option("hide-header", "Print no header."),
    not_honoured("print-metrics", "kclient's consumer does not have the metrics of the Java consumer", takes="flag"),
)  # fmt: skip


def main(given: Given) -> int | None:
    """Read records and print the figures."""
    if given.has("threads") or given.has("num-fetch-threads"):
        print(
            "WARNING: option [threads] and [num-fetch-threads] have been deprecated and will be ignored by the test"
        )
    require(given, "topic", "messages")
    try:
        settings = _settings(given)
        load = _Load(given)
    except (Failure, OptionError) as problem:
        return print_error(problem)
    if not given.has("hide-header"):
        first = "time, threadId" if given.has("show-detailed-stats") else "start.time, end.time"
        print(f"{first}, {_COLUMNS}", flush=True)

    def make(reactor: Any) -> Any:
        from kclient.consumer.client import Consumer

        return Consumer(config=settings, reactor=reactor)

    async def body(consumer: Any) -> int:
        await load.read(consumer)
        return 0

    return run_client(TOOL.print_usage, make, body, print_message)


def _settings(given: Given) -> dict[str, Any]:
    settings = properties_of(given.value("consumer.config"))
    warn_of_socket_buffer(given)
    group = (
        given.value("group") if given.has("group") else f"perf-consumer-{random.randrange(100_000)}"
    )
    settings.setdefault("client.id", "perf-consumer-client")
    return from_java(
        {
            **settings,
            BOOTSTRAP: given.value("bootstrap-server") or given.value("broker-list"),
            "group.id": group,
            "receive.buffer.bytes": given.value("socket-buffer-size"),
            "max.partition.fetch.bytes": given.value("fetch-size"),
            "auto.offset.reset": "latest" if given.has("from-latest") else "earliest",
            "check.crcs": "false",
        }
    )


def _date_format(text: str) -> str:
    """Return the format of strftime for one of SimpleDateFormat; raise `Failure` for letters that are not known."""
    found = ""
    for part in _DATE_PART.finditer(text):
        letters = part["letters"]
        if letters is None:
            plain = part["quoted"] if part["quoted"] is not None else part["other"]
            found += plain.replace("%", "%%").replace("{", "{{").replace("}", "}}")
        elif letters in _DATE_PARTS:
            found += _DATE_PARTS[letters]
        else:
            raise Failure(
                f"--date-format: {letters} is not supported; known are {', '.join(_DATE_PARTS)} and quoted text"
            )
    return found


def _ratio(count: float, seconds: float) -> str:
    if seconds:
        return f"{count / seconds:.4f}"
    return "Infinity" if count else "NaN"


class _Load:
    """What one command reads; times are in ms since the epoch."""

    def __init__(self, given: Given) -> None:
        self._topic, self._most = given.value("topic"), given.value("messages")
        self._timeout_ms, self._interval_ms = (
            given.value("timeout"),
            given.value("reporting-interval"),
        )
        if self._interval_ms <= 0:
            raise Failure("Reporting interval must be greater than 0.")
        self._has_details = given.has("show-detailed-stats")
        self._format = _date_format(given.value("date-format"))
        self._records = self._bytes = self._last_records = self._last_bytes = 0
        self._join_ms = self._join_ms_of_interval = 0

    async def read(self, consumer: Any) -> None:
        """Read the records and print the figures."""
        began = joining_since = _now()

        def assigned(_consumer: object, _partitions: object) -> None:
            elapsed = _now() - joining_since
            self._join_ms += elapsed
            self._join_ms_of_interval += elapsed

        def revoked(_consumer: object, _partitions: object) -> None:
            nonlocal joining_since
            joining_since = _now()

        consumer.subscribe([self._topic], on_assign=assigned, on_revoke=revoked)
        now = reported = consumed = began
        most = consumer.config.max_poll_records
        while self._records < self._most and now - consumed <= self._timeout_ms:
            found = await consumer.poll(
                timeout=0.1, max_records=min(most, self._most - self._records)
            )
            now = _now()
            if found:
                consumed = now
            for records in found.values():
                self._records += len(records)
                self._bytes += sum(len(r.key or b"") + len(r.value or b"") for r in records)
            if found and now - reported >= self._interval_ms:
                if self._has_details:
                    self._print_interval(reported, now)
                self._join_ms_of_interval = 0
                reported, self._last_records, self._last_bytes = now, self._records, self._bytes
        if self._records < self._most:
            print(
                "WARNING: Exiting before consuming the expected number of messages: timeout "
                f"({self._timeout_ms} ms) exceeded. You can use the --timeout option to increase the timeout."
            )
        if not self._has_details:
            self._print_total(began, _now())

    def _print_total(self, began: int, ended: int) -> None:
        seconds, fetch_ms = (ended - began) / 1000, ended - began - self._join_ms
        mb = self._bytes / _MB
        figures = (
            self._time(began), self._time(ended), f"{mb:.4f}", _ratio(mb, seconds), f"{self._records}",
            _ratio(self._records, seconds), f"{self._join_ms}", f"{fetch_ms}", _ratio(mb, fetch_ms / 1000),
            _ratio(self._records, fetch_ms / 1000),
        )  # fmt: skip
        print(", ".join(figures))

    def _print_interval(self, since: int, now: int) -> None:
        fetch_ms = now - since - self._join_ms_of_interval
        mb, records = (self._bytes - self._last_bytes) / _MB, self._records - self._last_records
        figures = (
            self._time(now), "0", f"{self._bytes / _MB:.4f}", _ratio(mb, (now - since) / 1000), f"{self._records}",
            _ratio(records, (now - since) / 1000), f"{self._join_ms_of_interval}", f"{fetch_ms}",
            _ratio(mb, fetch_ms / 1000) if fetch_ms > 0 else "0.0000",
            _ratio(records, fetch_ms / 1000) if fetch_ms > 0 else "0.0000",
        )  # fmt: skip
        print(", ".join(figures), flush=True)

    def _time(self, ms: int) -> str:
        return time.strftime(self._format, time.localtime(ms // 1000)).format(ms=ms % 1000)


def _now() -> int:
    return time.time_ns() // 1_000_000


TOOL = Tool(
    "kafka-consumer-perf-test",
    "This tool is used to verify the consumer performance.",
    OPTIONS,
    main,
    has_usage_in_option_errors=True,
    differs=(
        "The figures are those of kclient's consumer. An interval ends behind the records of a poll.",
        "--date-format knows yyyy, yy, MM, dd, HH, mm, ss, SSS and quoted text; other letters are refused.",
        "--threads and --num-fetch-threads have no effect, as in Kafka, which warns with the same line.",
    ),
)
