"""kafka-console-consumer: prints the records of topics."""

from __future__ import annotations

import random
import sys
from typing import Any

from kclient.cli.kafka_tools.client_settings import from_java
from kclient.cli.kafka_tools.java_errors import message_of
from kclient.cli.kafka_tools.message_formatter import Format, FormatterError, formatter
from kclient.cli.kafka_tools.options import Given, Option, OptionError, not_honoured
from kclient.cli.kafka_tools.tool import (
    BOOTSTRAP,
    Failure,
    Tool,
    UsageError,
    pairs_of,
    print_error,
    properties_of,
    require,
    run_client,
    settings_of,
    texts_in,
)
from kclient.cli.kafka_tools.topics import NO_ZOOKEEPER
from kclient.types import TopicPartition

_FORMATTER = "org.apache.kafka.tools.consumer.DefaultMessageFormatter"
_RESET, _GROUP, _AUTO_COMMIT = "auto.offset.reset", "group.id", "enable.auto.commit"
_POLL_S = 3600.0
"""Seconds of one poll without --timeout-ms."""

OPTIONS = (
    Option("topic", "The topic to consume.", "topic"),
    Option("whitelist", "The same as --include, which wins.", "Java regex (String)"),
    Option("include", "Consume all topics that match this regular expression.", "Java regex (String)"),
    Option("partition", "Consume only this partition, from its end or --offset.", "partition", int),
    Option("offset", "Where to start in the partition: a number, earliest, latest.", "consume offset", str, "latest"),
    Option("consumer-property", "A setting of the consumer; may be repeated.", "consumer_prop"),
    Option("consumer.config", "Properties file of the consumer; --consumer-property wins.", "config file"),
    Option("formatter", "The formatter: DefaultMessageFormatter or NoOpMessageFormatter.", "class", str, _FORMATTER),
    Option("property", "A property of the formatter, such as print.key=true; may be repeated.", "prop"),
    Option("formatter-config", "Properties file of the formatter; --property wins.", "config file"),
    Option("from-beginning", "Start at the earliest record, if the group has no offset."),
    Option("max-messages", "End after this number of records.", "num_messages", int),
    Option("timeout-ms", "End if there is no record for this time.", "timeout_ms", int),
    Option("skip-message-on-error", "Skip a record that cannot be printed."),
    Option("bootstrap-server", "The brokers to connect to; required.", "server to connect to"),
    Option("key-deserializer", "The deserializer of keys.", "deserializer for key"),
    Option("value-deserializer", "The deserializer of values.", "deserializer for values"),
    Option("enable-systest-events", "Print shutdown_complete at the end."),
    Option("isolation-level", "read_committed or read_uncommitted.", "level", str, "read_uncommitted"),
    Option("group", "The group to consume in.", "consumer group id"),
    not_honoured("zookeeper", NO_ZOOKEEPER, kafka=False),
    not_honoured("new-consumer", "removed in Kafka 2.0: there is no other consumer", takes="flag", kafka=False),
    not_honoured("blacklist", "removed in Kafka 2.0; give --include", kafka=False),
)  # fmt: skip


def main(given: Given) -> int | None:
    """Check the command line and print records."""
    include = given.value("include") or given.value("whitelist")
    _check(given, include)
    try:
        settings = _settings(given)
        write = _formatter(given)
    except (Failure, OptionError) as problem:
        return print_error(problem)
    except FormatterError as problem:
        raise UsageError(problem) from None
    printer = _Printer(given, write)
    start = _start_of(given)

    def make(reactor: Any) -> Any:
        from kclient.consumer.client import Consumer

        return Consumer(config=settings, reactor=reactor)

    async def body(consumer: Any) -> int:
        if given.has("partition"):
            await _seek(
                consumer, TopicPartition(given.value("topic"), given.value("partition")), start
            )
        elif given.has("topic"):
            consumer.subscribe([given.value("topic")])
        else:
            consumer.subscribe(pattern=f"^(?:{include})$")
        try:
            return await printer.run(consumer)
        finally:
            printer.end()

    return run_client(
        TOOL.print_usage, make, body, lambda problem: print_error(f"ERROR {message_of(problem)}")
    )


def _check(given: Given, include: str | None) -> None:
    if given.has("topic") == (include is not None):
        hint = (
            "--whitelist is DEPRECATED use --include instead; ignored if --include specified."
            if given.has("whitelist")
            else ""
        )
        raise UsageError(f"Exactly one of --include/--topic is required. {hint}")
    if given.has("partition"):
        if not given.has("topic"):
            raise UsageError("The topic is required when partition is specified.")
        if given.has("from-beginning") and given.has("offset"):
            raise UsageError("Options from-beginning and offset cannot be specified together.")
    elif given.has("offset"):
        raise UsageError("The partition is required when offset is specified.")
    require(given, "bootstrap-server")


def _settings(given: Given) -> dict[str, Any]:
    from_file = properties_of(given.value("consumer.config"))
    extra = settings_of(given.values("consumer-property"))
    groups = {found[_GROUP] for found in (from_file, extra) if _GROUP in found}
    groups |= {given.value("group")} if given.has("group") else set()
    if len(groups) > 1:
        listed = ", ".join(f"'{group}'" for group in sorted(groups))
        raise UsageError(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: {listed}"
        )
    if groups and given.has("partition"):
        raise UsageError("Options group and partition cannot be specified together.")
    settings = {"client.id": "console-consumer", **from_file, **extra}
    reset = settings.setdefault(_RESET, "earliest" if given.has("from-beginning") else "latest")
    if given.has("from-beginning") and reset != "earliest":
        raise Failure(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', please remove one option"
        )
    settings[BOOTSTRAP] = given.value("bootstrap-server")
    if given.has("isolation-level") or "isolation.level" not in settings:
        settings["isolation.level"] = given.value("isolation-level")
    if groups:
        settings[_GROUP] = groups.pop()
    else:
        settings[_GROUP] = f"console-consumer-{random.randrange(100_000)}"
        settings.setdefault(_AUTO_COMMIT, "false")
    return from_java(settings)


def _formatter(given: Given) -> Format:
    properties = texts_in(given.value("formatter-config"))
    for name in ("key", "value"):
        if given.value(f"{name}-deserializer"):
            properties[f"{name}.deserializer"] = given.value(f"{name}-deserializer")
    properties.update(pairs_of(given.values("property")))
    return formatter(given.value("formatter"), properties)


def _start_of(given: Given) -> int | str:
    """Return where to start in the partition: an offset, earliest or latest."""
    if not given.has("offset"):
        return "earliest" if given.has("from-beginning") else "latest"
    text = given.value("offset")
    if text.lower() in ("earliest", "latest"):
        return str(text.lower())
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', or a "
            "non-negative long."
        )
    return int(text)


async def _seek(consumer: Any, tp: TopicPartition, start: int | str) -> None:
    consumer.assign([tp])
    if start == "earliest":
        await consumer.seek_to_beginning(tp)
    elif start == "latest":
        await consumer.seek_to_end(tp)
    else:
        consumer.seek(tp, start)


class _Printer:
    """Polls and prints until a limit is reached."""

    def __init__(self, given: Given, write: Format) -> None:
        self._write = write
        self._most = given.value("max-messages") if given.has("max-messages") else -1
        timeout = given.value("timeout-ms") if given.has("timeout-ms") else -1
        self._timeout = timeout / 1000 if timeout >= 0 else None
        self._skips = given.has("skip-message-on-error")
        self._has_events = given.has("enable-systest-events")
        self._printed = 0

    async def run(self, consumer: Any) -> int:
        """Print records; return the exit code."""
        stream = sys.stdout.buffer
        seconds = consumer.cluster.reactor.seconds
        while self._most < 0 or self._printed < self._most:
            began = seconds()
            found: Any = {}
            most = consumer.config.max_poll_records
            left = most if self._most < 0 else min(most, self._most - self._printed)
            while not found:
                wait = _POLL_S if self._timeout is None else self._timeout
                found = await consumer.poll(timeout=wait, max_records=left)
                if not found and self._timeout is not None and seconds() - began > self._timeout:
                    return 0
            for records in found.values():
                self._print(stream, records)
            stream.flush()
        return 0

    def _print(self, stream: Any, records: list[Any]) -> None:
        try:
            stream.write(b"".join(map(self._write, records)))
            self._printed += len(records)
        except ValueError:
            # One at a time, to find the record that cannot be printed.
            for record in records:
                self._printed += 1
                try:
                    stream.write(self._write(record))
                except ValueError as problem:
                    where = f"{record.topic}-{record.partition} at offset {record.offset}"
                    if not self._skips:
                        raise Failure(
                            f"the record of {where} cannot be printed: {problem}"
                        ) from None
                    print_error(f"ERROR skipped the record of {where}: {problem}")

    def end(self) -> None:
        """Print what Kafka's tool prints at its end."""
        sys.stdout.flush()
        print(f"Processed a total of {self._printed} messages", file=sys.stderr)
        if self._has_events:
            print("shutdown_complete")


TOOL = Tool(
    "kafka-console-consumer",
    "This tool helps to read data from Kafka topics and outputs it to standard output.",
    OPTIONS,
    main,
    has_usage_in_option_errors=True,
    differs=(
        "Java classes cannot be loaded: --formatter takes Kafka's Default-, Logging- and NoOpMessageFormatter, "
        "deserializers are those of String, Integer, Long, Short, Double, Boolean and UUID. Others are refused, as are "
        "properties that the formatter does not have.",
        "Without a broker for 60 s it ends with exit code 1; Kafka's tool goes on trying.",
    ),
)
