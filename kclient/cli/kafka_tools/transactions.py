"""kafka-transactions: lists and describes transactions, finds hanging ones and aborts them (KIP-664)."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from kclient.cli.kafka_tools.arguments import ArgparseTool, Arguments
from kclient.cli.kafka_tools.java_errors import message_of
from kclient.cli.kafka_tools.tool import (
    BOOTSTRAP,
    Failure,
    print_error,
    print_message,
    properties_of,
    run_admin,
)
from kclient.errors import KafkaError
from kclient.types import TopicPartition


def build(parser: Arguments) -> None:
    """Add the options and the commands."""
    parser.add_argument("-v", "--version", action="store_true", help="Print the version.")
    parser.add_argument(
        "--command-config", metavar="FILE", help="Properties file of the admin client."
    )
    parser.add_argument(
        "--bootstrap-server", metavar="host:port", help="The brokers to connect to; required."
    )
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    listing = commands.add_parser("list", help="List transactions.")
    listing.add_argument(
        "--duration-filter", type=int, help="Only those open for more milliseconds."
    )
    describe = commands.add_parser("describe", help="Describe a transactional id.")
    describe.add_argument("--transactional-id", required=True, help="The transactional id.")
    producers = commands.add_parser(
        "describe-producers", help="Describe the producers of a partition."
    )
    producers.add_argument(
        "--broker-id", type=int, help="The replica's broker instead of the leader."
    )
    producers.add_argument("--topic", required=True, help="The topic.")
    producers.add_argument("--partition", type=int, required=True, help="The partition.")
    abort = commands.add_parser("abort", help="Abort a hanging transaction.")
    abort.add_argument("--topic", required=True, help="The topic.")
    abort.add_argument("--partition", type=int, required=True, help="The partition.")
    abort.add_argument("--start-offset", type=int, help="The start offset of the transaction.")
    abort.add_argument("--producer-id", type=int, help="The producer id.")
    abort.add_argument("--producer-epoch", type=int, help="The producer epoch.")
    abort.add_argument("--coordinator-epoch", type=int, help="The coordinator epoch.")
    hanging = commands.add_parser("find-hanging", help="Find hanging transactions.")
    hanging.add_argument("--broker-id", type=int, help="Search the replicas of this broker.")
    hanging.add_argument(
        "--max-transaction-timeout",
        type=int,
        default=15,
        help="The largest transaction timeout, in minutes (default 15).",
    )
    hanging.add_argument("--topic", help="Search this topic.")
    hanging.add_argument("--partition", type=int, help="Search this partition.")


def main(given: Namespace) -> int | None:
    """Run a command."""
    if given.bootstrap_server is None:
        return TOOL.print_usage("argument --bootstrap-server is required")
    if given.command is None:
        return TOOL.print_usage("too few arguments")
    try:
        settings = properties_of(given.command_config)
        problem = _CHECKS[given.command](given) if given.command in _CHECKS else ""
    except Failure as failure:
        return print_error(failure)
    if problem:
        return print_error(problem)

    async def body(admin: Any) -> int:
        await _BODIES[given.command](admin, given)
        return 0

    settings = {**settings, BOOTSTRAP: given.bootstrap_server}
    return run_admin(TOOL.print_usage, settings, body, print_message)


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: cells are as wide as the column, a tab is behind each."""
    lines = [list(map(str, row)) for row in [heads, *rows]]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    for line in lines:
        print("".join(cell.ljust(width) + "\t" for cell, width in zip(line, widths, strict=True)))


def _failure(text: str, problem: KafkaError) -> Failure:
    return Failure(f"{text}: {message_of(problem)}.")


async def _list(admin: Any, given: Namespace) -> None:
    limit = given.duration_filter
    try:
        found = await admin.list_transactions(
            open_for=None if limit is None or limit < 0 else limit / 1000
        )
    except KafkaError as problem:
        raise _failure("Failed to list transactions", problem) from None
    rows = [
        (each.transactional_id, each.coordinator, each.producer_id, each.state) for each in found
    ]
    _table(("TransactionalId", "Coordinator", "ProducerId", "TransactionState"), rows)


async def _describe(admin: Any, given: Namespace) -> None:
    name = given.transactional_id
    try:
        found = (await admin.describe_transactions([name]))[name]
    except KafkaError as problem:
        raise _failure(
            f"Failed to describe transaction state of transactional-id `{name}`", problem
        ) from None
    began = found.start_time_ms
    heads = (
        "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState", "TransactionTimeoutMs",
        "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions",
    )  # fmt: skip
    row = (
        found.coordinator,
        name,
        found.producer_id,
        found.producer_epoch,
        found.state,
        found.timeout_ms,
        "None" if began is None else began,
        "None" if began is None else int(time.time() * 1000) - began,
        ",".join(map(str, found.partitions)),
    )
    _table(heads, [row])


async def _describe_producers(admin: Any, given: Namespace) -> None:
    tp = TopicPartition(given.topic, given.partition)
    try:
        found = (await admin.describe_producers([tp], broker=given.broker_id))[tp]
    except KafkaError as problem:
        where = "leader" if given.broker_id is None else f"broker {given.broker_id}"
        raise _failure(
            f"Failed to describe producers for partition {tp} on {where}", problem
        ) from None
    heads = (
        "ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp",
        "CurrentTransactionStartOffset",
    )  # fmt: skip
    rows = [
        (
            each.producer_id,
            each.producer_epoch,
            -1 if each.coordinator_epoch is None else each.coordinator_epoch,
            each.last_sequence,
            each.last_timestamp,
            "None" if each.transaction_start_offset is None else each.transaction_start_offset,
        )
        for each in found
    ]
    _table(heads, rows)


def _check_abort(given: Namespace) -> str:
    if given.start_offset is not None:
        return ""
    if given.producer_id is None:
        return (
            "The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or above) or "
            "with --producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
        )
    for name in ("producer_epoch", "coordinator_epoch"):
        if getattr(given, name) is None:
            return f"Missing required argument --{name.replace('_', '-')}"
    return ""


async def _abort(admin: Any, given: Namespace) -> None:
    tp = TopicPartition(given.topic, given.partition)
    producer = (given.producer_id, given.producer_epoch, given.coordinator_epoch)
    if given.start_offset is not None:
        try:
            found = (await admin.describe_producers([tp]))[tp]
        except KafkaError as problem:
            raise _failure(
                f"Failed to validate producer state for partition {tp}", problem
            ) from None
        at = [each for each in found if each.transaction_start_offset == given.start_offset]
        if not at:
            raise Failure(
                f"Could not find any open transactions starting at offset {given.start_offset} on partition {tp}"
            )
        producer = (at[0].producer_id, at[0].producer_epoch, at[0].coordinator_epoch or 0)
    producer_id, producer_epoch, coordinator_epoch = producer
    try:
        await admin.abort_transaction(
            tp, producer_id, producer_epoch, coordinator_epoch=max(0, coordinator_epoch)
        )
    except KafkaError as problem:
        raise _failure(
            f"Failed to abort the transaction of producer id {producer_id} in {tp}", problem
        ) from None


def _check_find_hanging(given: Namespace) -> str:
    if given.topic is None and given.broker_id is None:
        return "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
    if given.partition is not None and given.topic is None:
        return "The --partition argument requires --topic to be provided"
    return ""


async def _find_hanging(admin: Any, given: Namespace) -> None:
    if given.partition is not None:
        tps = [TopicPartition(given.topic, given.partition)]
    else:
        topics = await admin.describe_topics(
            None if given.topic is None else [given.topic], internal=True
        )
        tps = [
            TopicPartition(name, n)
            for name, topic in topics.items()
            for n, p in topic.partitions.items()
            if given.broker_id is None or given.broker_id in p.replicas
        ]
    found = await admin.find_hanging_transactions(
        tps, older_than=60 * given.max_transaction_timeout, broker=given.broker_id
    )
    now_ms = int(time.time() * 1000)
    heads = (
        "Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp",
        "Duration(min)",
    )  # fmt: skip
    rows = [
        (
            *each.tp,
            each.producer.producer_id,
            each.producer.producer_epoch,
            -1 if each.producer.coordinator_epoch is None else each.producer.coordinator_epoch,
            each.producer.transaction_start_offset,
            each.producer.last_timestamp,
            (now_ms - each.producer.last_timestamp) // 60_000,
        )
        for each in found
    ]
    _table(heads, rows)


_CHECKS = {"abort": _check_abort, "find-hanging": _check_find_hanging}
_BODIES = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "abort": _abort,
    "find-hanging": _find_hanging,
}

TOOL = ArgparseTool(
    "kafka-transactions",
    "kafka-transactions.sh",
    "This tool is used to analyze the transactional state of producers in the cluster. It can be used to detect and "
    "recover from hanging transactions.",
    build,
    main,
    differs=("list is sorted by transactional id.",),
)
