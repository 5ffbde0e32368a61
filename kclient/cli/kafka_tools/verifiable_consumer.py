"""kafka-verifiable-consumer: consumes in a group and prints events: assignments, records, commits."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from kclient.cli.kafka_tools.arguments import ArgparseTool, Arguments
from kclient.cli.kafka_tools.client_settings import from_java
from kclient.cli.kafka_tools.java_errors import message_of
from kclient.cli.kafka_tools.tool import (
    BOOTSTRAP,
    Failure,
    UsageError,
    print_error,
    print_message,
    properties_of,
    run_client,
)
from kclient.cli.kafka_tools.verifiable import add_connection, print_event, servers_of
from kclient.errors import KafkaError
from kclient.types import TopicPartition

_RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"
_POLL_S = 3600.0


def build(parser: Arguments) -> None:
    """Add the options."""
    add_connection(parser)
    parser.add_argument("--topic", required=True, help="The topic.")
    parser.add_argument(
        "--group-protocol", default="classic", help="classic; consumer (KIP-848) is refused."
    )
    parser.add_argument("--group-id", required=True, help="The group.")
    parser.add_argument("--group-instance-id", help="group.instance.id.")
    parser.add_argument(
        "--max-messages", type=int, default=-1, help="Records to consume; -1 has no end."
    )
    parser.add_argument("--session-timeout", type=int, default=30_000, help="session.timeout.ms.")
    parser.add_argument("--verbose", action="store_true", help="Print an event for each record.")
    parser.add_argument(
        "--enable-autocommit", action="store_true", help="Commit by enable.auto.commit."
    )
    parser.add_argument("--reset-policy", default="earliest", help="auto.offset.reset.")
    parser.add_argument(
        "--assignment-strategy", default=_RANGE, help="partition.assignment.strategy."
    )
    parser.add_argument(
        "--consumer.config", dest="consumer_config", help="Properties file of the consumer."
    )


def main(given: Namespace) -> int | None:
    """Consume records and print events."""
    servers = servers_of(given)
    if given.group_protocol.lower() != "classic":
        raise UsageError(
            f"argument --group-protocol {given.group_protocol} is not supported: {_NO_KIP_848}"
        )
    try:
        of_file = properties_of(given.consumer_config)
    except Failure as problem:
        return print_error(problem)
    instance = {"group.instance.id": given.group_instance_id} if given.group_instance_id else {}
    settings = {
        **of_file,
        **instance,
        "partition.assignment.strategy": given.assignment_strategy,
        "group.id": given.group_id,
        BOOTSTRAP: servers,
        "enable.auto.commit": given.enable_autocommit,
        "auto.offset.reset": given.reset_policy,
        "session.timeout.ms": given.session_timeout,
    }

    def make(reactor: Any) -> Any:
        from kclient.consumer.client import Consumer

        return Consumer(config=from_java(settings), reactor=reactor)

    async def body(consumer: Any) -> int:
        print_event("startup_complete")
        try:
            await _consume(consumer, given)
        finally:
            await consumer.close()
            print_event("shutdown_complete")
        return 0

    return run_client(TOOL.print_usage, make, body, print_message)


def _listed(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(partitions)]


async def _consume(consumer: Any, given: Namespace) -> None:
    consumer.subscribe(
        [given.topic],
        on_assign=lambda _, tps: print_event("partitions_assigned", partitions=_listed(tps)),
        on_revoke=lambda _, tps: print_event("partitions_revoked", partitions=_listed(tps)),
    )
    left = given.max_messages
    most = consumer.config.max_poll_records
    while left:
        wanted = most if left < 0 else min(most, left)
        found = await consumer.poll(timeout=_POLL_S, max_records=wanted)
        summaries, offsets = [], {}
        for tp, records in found.items():
            last = records[-1].offset
            offsets[tp] = last + 1
            summaries.append(
                {"topic": tp.topic, "partition": tp.partition, "count": len(records),
                 "minOffset": records[0].offset, "maxOffset": last}
            )  # fmt: skip
            for record in records if given.verbose else ():
                print_event(
                    "record_data", key=_text(record.key), value=_text(record.value), topic=record.topic,
                    partition=record.partition, offset=record.offset,
                )  # fmt: skip
        count = sum(map(len, found.values()))
        left = left if left < 0 else left - count
        print_event("records_consumed", count=count, partitions=summaries)
        if not given.enable_autocommit:
            await _commit(consumer, offsets)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


async def _commit(consumer: Any, offsets: dict[TopicPartition, int]) -> None:
    error: dict[str, str] = {}
    try:
        await consumer.commit(offsets)
    except KafkaError as problem:
        error = {"error": message_of(problem)}
    listed = [
        {"topic": tp.topic, "partition": tp.partition, "offset": at} for tp, at in offsets.items()
    ]
    print_event("offsets_committed", offsets=listed, **error, success=not error)


_NO_KIP_848 = "kbroker has the classic group protocol only (no KIP-848)"

TOOL = ArgparseTool(
    "kafka-verifiable-consumer",
    "verifiable-consumer",
    "This tool consumes messages from a specific topic and emits consumer events (e.g. group rebalances, received "
    "messages, and offsets committed) as JSON objects to STDOUT.",
    build,
    main,
    refused={"--group-remote-assignor": _NO_KIP_848},
    differs=(
        f"--group-protocol consumer and --group-remote-assignor are refused: {_NO_KIP_848}.",
        "A poll returns at most the records that --max-messages leaves, so records_consumed counts no others.",
    ),
    help_without_words=True,
)
