"""kafka-console-producer: sends the lines of standard input."""

from __future__ import annotations

import sys
from typing import Any

from kclient.cli.delivery import Deliveries
from kclient.cli.kafka_tools.client_settings import from_java
from kclient.cli.kafka_tools.line_reader import CLASSES, LineError, LineReader
from kclient.cli.kafka_tools.options import OPTIONAL, Given, Option, OptionError
from kclient.cli.kafka_tools.tool import (
    BOOTSTRAP,
    Failure,
    Tool,
    check_bootstrap,
    know_topic,
    pairs_of,
    print_error,
    print_message,
    properties_of,
    require,
    run_client,
    settings_of,
    texts_in,
    warn_of_socket_buffer,
)

OPTIONS = (
    Option("topic", "The topic; required.", "topic"),
    Option("broker-list", "The same as --bootstrap-server, which wins.", "broker-list"),
    Option("bootstrap-server", "The brokers to connect to; required.", "server to connect to",
           required_unless="broker-list"),
    Option("sync", "Wait for the acknowledgement of each record before the next one."),
    Option("compression-codec", "none, gzip, snappy, lz4 or zstd; gzip without a value.", "compression-codec",
           takes=OPTIONAL),
    Option("batch-size", "batch.size; --max-partition-memory-bytes wins.", "size", int, 16_384),
    Option("message-send-max-retries", "retries.", "retries", int, 3),
    Option("retry-backoff-ms", "retry.backoff.ms.", "ms", int, 100),
    Option("timeout", "linger.ms.", "timeout_ms", int, 1000),
    Option("request-required-acks", "acks.", "request required acks", str, "-1"),
    Option("request-timeout-ms", "request.timeout.ms.", "request timeout ms", int, 1500),
    Option("metadata-expiry-ms", "metadata.max.age.ms.", "metadata expiration interval", int, 300_000),
    Option("max-block-ms", "max.block.ms.", "max block on send", int, 60_000),
    Option("max-memory-bytes", "buffer.memory.", "total memory in bytes", int, 33_554_432),
    Option("max-partition-memory-bytes", "batch.size.", "memory in bytes per partition", int, 16_384),
    Option("line-reader", "The reader: Kafka's LineMessageReader.", "reader_class", str, CLASSES[0]),
    Option("socket-buffer-size", "send.buffer.bytes, which has no effect here.", "size", int, 102_400),
    Option("property", "A property of the reader, such as parse.key=true; may be repeated.", "prop"),
    Option("reader-config", "Properties file of the reader; --property wins.", "config file"),
    Option("producer-property", "A setting of the producer; may be repeated.", "producer_prop"),
    Option("producer.config", "Properties file of the producer; --producer-property wins.", "config file"),
)  # fmt: skip

_SETTINGS = {
    "timeout": "linger.ms",
    "request-required-acks": "acks",
    "request-timeout-ms": "request.timeout.ms",
    "message-send-max-retries": "retries",
    "retry-backoff-ms": "retry.backoff.ms",
    "socket-buffer-size": "send.buffer.bytes",
    "max-memory-bytes": "buffer.memory",
    "batch-size": "batch.size",
    "max-partition-memory-bytes": "batch.size",
    "metadata-expiry-ms": "metadata.max.age.ms",
    "max-block-ms": "max.block.ms",
}
"""The setting of each option: the option wins if it is given, its default only counts without another value."""

_SHOWN_ERRORS = 3


def main(given: Given) -> int | None:
    """Check the command line and send lines."""
    require(given, "topic")
    servers = given.value("bootstrap-server") or given.value("broker-list")
    check_bootstrap(servers)
    try:
        settings = _settings(given, servers)
        read = _reader(given)
    except (Failure, OptionError, LineError) as problem:
        return print_error(problem)

    def make(reactor: Any) -> Any:
        from kclient.producer.producer import Producer

        return Producer(settings, reactor=reactor)

    async def body(producer: Any) -> int:
        return await _send(producer, given.value("topic"), read, is_sync=given.has("sync"))

    return run_client(TOOL.print_usage, make, body, print_message)


def _settings(given: Given, servers: str) -> dict[str, Any]:
    settings = properties_of(given.value("producer.config"))
    settings.update(settings_of(given.values("producer-property")))
    warn_of_socket_buffer(given)
    settings[BOOTSTRAP] = servers
    codec = given.value("compression-codec") or "gzip" if given.has("compression-codec") else "none"
    settings["compression.type"] = codec
    settings.setdefault("client.id", "console-producer")
    for option, name in _SETTINGS.items():
        value = given.value(option)
        if given.has(option) or name not in settings:
            settings[name] = value
    return from_java(settings)


def _reader(given: Given) -> LineReader:
    name = given.value("line-reader")
    if name not in CLASSES:
        raise Failure(
            f"--line-reader {name} is not supported: kclient cannot load Java classes, and has {' and '.join(CLASSES)}"
        )
    properties = texts_in(given.value("reader-config"))
    properties.update(pairs_of(given.values("property")))
    properties.pop("topic", None)
    return LineReader(properties)


async def _send(producer: Any, topic: str, read: LineReader, *, is_sync: bool) -> int:
    from kclient.cli.stdin import LineBatches

    await know_topic(producer, topic)
    # Lines that come after an outage are delivered: they would be lost without a word, and with exit code 0.
    deliveries = Deliveries(producer, topic, goes_on=True)
    has_prompt = sys.stdin.isatty() and sys.stdout.isatty()
    _prompt(has_prompt)
    try:
        async for lines in LineBatches(producer.cluster.reactor, ("-",)):
            for line in lines if is_sync else ():
                given = read(line)
                await producer.send(topic, given.value, given.key, headers=given.headers)
            if not is_sync:
                await deliveries.send(map(read, lines))
            _prompt(has_prompt)
    finally:
        # What was read before a line that is refused is delivered.
        await producer.flush()
        # Kafka logs the records that are lost; its exit code is 0.
        for problem, count in deliveries.problems.most_common(_SHOWN_ERRORS):
            print_error(f"ERROR Error when sending {count} messages to topic {topic}: {problem}")
    return 0


def _prompt(is_shown: bool) -> None:
    if is_shown:
        print(">", end="", flush=True)


TOOL = Tool(
    "kafka-console-producer",
    "This tool helps to read data from standard input and publish it to Kafka.",
    OPTIONS,
    main,
    has_usage_in_option_errors=True,
    differs=(
        "Bytes that are not UTF-8 are sent as they are; Java replaces them.",
        "--line-reader takes Kafka's LineMessageReader only: Java classes cannot be loaded. A property that it does "
        "not have is refused.",
        "Without metadata of the topic for --max-block-ms it ends with exit code 1; Kafka's tool waits for each line.",
        "Records that were not acknowledged are named on stderr, by kind of error and count; the exit code is 0, as in "
        "Kafka.",
    ),
)
