"""kafka-verifiable-producer: sends increasing numbers and prints an event for each acknowledgement."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from kclient.cli.kafka_tools.arguments import ArgparseTool, Arguments
from kclient.cli.kafka_tools.client_settings import from_java
from kclient.cli.kafka_tools.java_errors import class_of, message_of
from kclient.cli.kafka_tools.tool import (
    BOOTSTRAP,
    Failure,
    know_topic,
    print_error,
    print_message,
    properties_of,
    run_client,
)
from kclient.cli.kafka_tools.verifiable import add_connection, print_event, servers_of
from kclient.cli.perf_figures import due_after
from kclient.errors import KafkaError


def build(parser: Arguments) -> None:
    """Add the options."""
    parser.add_argument("--topic", required=True, help="The topic.")
    add_connection(parser)
    parser.add_argument(
        "--max-messages", type=int, default=-1, help="Records to send; -1 has no end."
    )
    parser.add_argument(
        "--throughput", type=int, default=-1, help="Records per second; -1 has no limit."
    )
    parser.add_argument("--acks", type=int, default=-1, choices=(0, 1, -1), help="acks.")
    parser.add_argument(
        "--producer.config", dest="producer_config", help="Properties file of the producer."
    )
    parser.add_argument(
        "--message-create-time", type=int, default=-1, help="The first timestamp, in ms."
    )
    parser.add_argument(
        "--value-prefix", type=int, help="A prefix of values, with a dot behind it."
    )
    parser.add_argument(
        "--repeating-keys", type=int, help="Keys are 0 up to this number, in turns."
    )


def main(given: Namespace) -> int | None:
    """Send records and print events."""
    servers = servers_of(given)
    try:
        of_file = properties_of(given.producer_config)
    except Failure as problem:
        return print_error(problem)
    settings = from_java({BOOTSTRAP: servers, "acks": given.acks, "retries": 0, **of_file})

    def make(reactor: Any) -> Any:
        from kclient.producer.producer import Producer

        return Producer(settings, reactor=reactor)

    async def body(producer: Any) -> int:
        await _Load(producer, given).run()
        return 0

    return run_client(TOOL.print_usage, make, body, print_message)


class _Load:
    """Sends the records of one command."""

    def __init__(self, producer: Any, given: Namespace) -> None:
        self._producer, self._given = producer, given
        self._began_ms = time.time_ns() // 1_000_000
        self._create_time = given.message_create_time
        self._sent = self._acked = 0

    async def run(self) -> None:
        """Send until --max-messages or Ctrl-C; print the totals at the end."""
        print_event("startup_complete")
        await know_topic(self._producer, self._given.topic)
        try:
            await self._send()
        finally:
            await self._producer.flush()
            print_event("shutdown_complete")
            elapsed = max(1, time.time_ns() // 1_000_000 - self._began_ms)
            print_event(
                "tool_data",
                sent=self._sent,
                acked=self._acked,
                target_throughput=self._given.throughput,
                avg_throughput=1000.0 * self._acked / elapsed,
            )

    async def _send(self) -> None:
        from kclient.net.waiting import sleep

        given, reactor = self._given, self._producer.cluster.reactor
        began = reactor.seconds()
        while given.max_messages < 0 or self._sent < given.max_messages:
            number = self._sent
            key = None if not given.repeating_keys else str(number % given.repeating_keys)
            value = str(number) if given.value_prefix is None else f"{given.value_prefix}.{number}"
            room = self._producer.ready(len(value))
            if not room.called:
                await room
            self._sent += 1
            self._producer.send(
                given.topic,
                value.encode(),
                None if key is None else key.encode(),
                timestamp_ms=self._timestamp(),
            ).addCallbacks(self._acknowledged, self._refused, (key, value), {}, (key, value))
            wait = (
                began + due_after(self._sent, given.throughput) - reactor.seconds()
                if given.throughput > 0
                else 0.0
            )
            await sleep(reactor, max(0.0, wait))

    def _timestamp(self) -> int | None:
        if self._create_time == -1:
            return None
        found: int = self._create_time
        self._create_time += time.time_ns() // 1_000_000 - self._began_ms
        return found

    def _acknowledged(self, metadata: Any, key: str | None, value: str) -> None:
        self._acked += 1
        print_event(
            "producer_send_success", key=key, value=value, topic=metadata.topic, partition=metadata.partition,
            offset=metadata.offset,
        )  # fmt: skip

    def _refused(self, failure: Any, key: str | None, value: str) -> None:
        problem = failure.value
        if not isinstance(problem, KafkaError):
            failure.raiseException()
        print_event(
            "producer_send_error", key=key, value=value, topic=self._given.topic,
            exception=f"class {class_of(problem)}", message=message_of(problem),
        )  # fmt: skip


TOOL = ArgparseTool(
    "kafka-verifiable-producer",
    "verifiable-producer",
    'This tool produces increasing integers to the specified topic and prints JSON metadata to stdout on each "send" '
    "request, making externally visible which messages have been acked and which have not.",
    build,
    main,
    help_without_words=True,
)
