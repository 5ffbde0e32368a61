"""`kclient txn`: list, describe, describe-producers, find-hanging, abort, fence (kafka-transactions.sh)."""

from __future__ import annotations

import time
from typing import Any

import click

from kclient.cli.answers import code_for, good_answers, print_answers
from kclient.cli.commands import with_settings
from kclient.cli.finite_range import FiniteRange
from kclient.cli.help import Group
from kclient.cli.names import TOPIC
from kclient.cli.output import show
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.types import TopicPartition

_LONGEST_TRANSACTION_MIN = 15
"""Kafka's transaction.max.timeout.ms, in minutes."""

_STATES = (
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
    *("Dead", "PrepareEpochFence"),
)


@click.group(cls=Group)
def txn() -> None:
    """Inspect transactions and producers; end transactions that hang."""


@txn.command(
    "list",
    examples=(
        "kclient txn list",
        "kclient txn list --state Ongoing --running-longer-than-ms 60000",
    ),
)
@click.option(
    "-s",
    "--state",
    "states",
    type=click.Choice(_STATES),
    multiple=True,
    help="Only these.",
)
@click.option("--producer-id", "producer_ids", type=int, multiple=True, help="Only these.")
@click.option(
    "--running-longer-than-ms",
    "open_for_ms",
    type=int,
    metavar="MS",
    help="Only those open for longer (KIP-994).",
)
@with_settings
def list_(
    settings: Settings,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    open_for_ms: int | None,
) -> None:
    """List the transactional ids of all coordinators."""

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            found = await admin.list_transactions(
                states=states,
                producer_ids=producer_ids,
                open_for=None if open_for_ms is None else open_for_ms / 1000,
            )
        rows = [
            {
                "transactional_id": each.transactional_id,
                "coordinator": each.coordinator,
                "producer_id": each.producer_id,
                "state": each.state,
            }
            for each in found
        ]
        columns = ("transactional_id", "coordinator", "producer_id", "state")
        show(rows, columns, settings.format)

    run(main)


@txn.command(
    "describe",
    examples=("kclient txn describe billing-1",),
)
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@with_settings
def describe(settings: Settings, names: tuple[str, ...]) -> None:
    """Show state, producer and partitions of transactional ids."""

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            answers = await admin.describe_transactions(names, raise_errors=False)
        now = int(time.time() * 1000)
        rows = []
        good = good_answers(answers)
        for each in good.values():
            started = each.start_time_ms
            rows.append(
                {
                    "transactional_id": each.transactional_id,
                    "coordinator": each.coordinator,
                    "state": each.state,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "timeout_ms": each.timeout_ms,
                    "open_for_ms": None if started is None else max(0, now - started),
                    "partitions": [str(tp) for tp in each.partitions],
                }
            )
        columns = (
            *("transactional_id", "coordinator", "state", "producer_id", "producer_epoch"),
            *("timeout_ms", "open_for_ms", "partitions"),
        )
        show(rows, columns, settings.format)
        return code_for(len(rows), len(answers))

    run(main)


@txn.command(
    "describe-producers",
    examples=("kclient txn describe-producers -t orders -p 0",),
)
@click.option("-t", "--topic", required=True, type=TOPIC, help="The topic of the partition.")
@click.option(
    "-p", "--partition", type=int, required=True, metavar="N", help="The number of the partition."
)
@with_settings
def describe_producers(settings: Settings, topic: str, partition: int) -> None:
    """Show the producers in the log of a partition."""
    tp = TopicPartition(topic, partition)

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            found = (await admin.describe_producers([tp]))[tp]
        rows = [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "coordinator_epoch": each.coordinator_epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.last_timestamp,
                "transaction_start_offset": each.transaction_start_offset,
            }
            for each in found
        ]
        columns = (
            *("producer_id", "producer_epoch", "coordinator_epoch", "last_sequence"),
            *("last_timestamp", "transaction_start_offset"),
        )
        show(rows, columns, settings.format)

    run(main)


@txn.command(
    "find-hanging",
    examples=(
        "kclient txn find-hanging",
        "kclient txn find-hanging -t orders --max-transaction-timeout 60",
    ),
)
@click.option(
    "-t", "--topic", "topics", multiple=True, type=TOPIC, help="Only these topics; default: all."
)
@click.option("-p", "--partition", type=int, help="Only this partition of the topics.")
@click.option(
    "--max-transaction-timeout",
    "minutes",
    type=FiniteRange(0),
    default=_LONGEST_TRANSACTION_MIN,
    show_default=True,
    metavar="MINUTES",
    help="transaction.max.timeout.ms of the brokers: younger transactions are ignored.",
)
@with_settings
def find_hanging(
    settings: Settings, topics: tuple[str, ...], partition: int | None, minutes: float
) -> None:
    """Show transactions that are open in a log, and that no coordinator will end."""

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            described = await admin.describe_topics(topics or None, internal=True)
            tps = [
                TopicPartition(name, number)
                for name, topic in described.items()
                for number in topic.partitions
                if partition in (None, number)
            ]
            found = await admin.find_hanging_transactions(tps, older_than=minutes * 60)
        now = int(time.time() * 1000)
        rows = [
            {
                "topic": each.tp.topic,
                "partition": each.tp.partition,
                "producer_id": each.producer.producer_id,
                "producer_epoch": each.producer.producer_epoch,
                "coordinator_epoch": each.producer.coordinator_epoch,
                "start_offset": each.producer.transaction_start_offset,
                "last_timestamp": each.producer.last_timestamp,
                "open_for_ms": now - each.producer.last_timestamp,
                "transactional_id": each.transactional_id,
            }
            for each in found
        ]
        columns = (
            *("topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch"),
            *("start_offset", "last_timestamp", "open_for_ms", "transactional_id"),
        )
        show(rows, columns, settings.format)

    run(main)


@txn.command(
    "abort",
    examples=("kclient txn abort -t orders -p 0 --start-offset 4711",),
)
@click.option("-t", "--topic", required=True, type=TOPIC, help="The topic of the partition.")
@click.option(
    "-p", "--partition", type=int, required=True, metavar="N", help="The number of the partition."
)
@click.option("--start-offset", type=int, required=True, help="As in find-hanging.")
@with_settings
def abort(settings: Settings, topic: str, partition: int, start_offset: int) -> None:
    """End a hanging transaction in one partition by an ABORT marker."""
    tp = TopicPartition(topic, partition)
    settings.confirm(f"Abort the transaction of {tp} that begins at offset {start_offset}?")

    async def main(reactor: Any) -> None:
        async with admin_client(settings, reactor) as admin:
            producers = (await admin.describe_producers([tp]))[tp]
            begun = [p for p in producers if p.transaction_start_offset == start_offset]
            if not begun:
                raise ValueError(f"no open transaction of {tp} begins at offset {start_offset}")
            (producer,) = begun
            await admin.abort_transaction(
                tp,
                producer.producer_id,
                producer.producer_epoch,
                coordinator_epoch=producer.coordinator_epoch or 0,
            )
        print_answers(
            settings,
            {str(tp): producer.producer_id},
            lambda place, number: f"Aborted the transaction of producer id {number} in {place}.",
        )

    run(main)


@txn.command(
    "fence",
    examples=("kclient txn fence billing-1",),
)
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@with_settings
def fence(settings: Settings, names: tuple[str, ...]) -> None:
    """Fence the producers of transactional ids, and abort their open transactions."""
    settings.confirm(f"Fence the producers of {', '.join(names)}?")

    async def main(reactor: Any) -> int:
        async with admin_client(settings, reactor) as admin:
            answers = await admin.fence_producers(names, raise_errors=False)
        return print_answers(
            settings,
            answers,
            lambda name, new: (
                f"Fenced {name}: producer id {new.producer_id} has epoch {new.epoch}."
            ),
        )

    run(main)
