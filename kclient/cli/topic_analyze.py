"""`kclient topic analyze`: reads a topic once and prints what its records are like."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.exit_codes import TIMED_OUT
from kclient.cli.help import Command
from kclient.cli.names import TOPIC
from kclient.cli.offset_range import assign, read_range
from kclient.cli.offset_spec import Anchor, parse_offsets
from kclient.cli.output import print_error, show
from kclient.cli.progress import Progress
from kclient.cli.run import run
from kclient.cli.settings import Settings, admin_client
from kclient.cli.time_spec import time_text
from kclient.cli.topic_analysis import Analysis
from kclient.types import TopicPartition

_PARTITION_COLUMNS = (
    *("topic", "partition", "records", "batches", "bytes", "null_keys", "distinct_keys"),
    *("null_values", "value_size_mean", "value_size_max", "holes"),
)


@click.command(
    "analyze",
    cls=Command,
    examples=(
        "kclient topic analyze orders",
        "kclient topic analyze orders:0 -o @-1h --format json",
    ),
)
@click.argument("texts", nargs=-1, required=True, metavar="TOPIC[:P,P]...", type=TOPIC)
@click.option(
    "-o",
    "--offset",
    "offset",
    default="start",
    show_default=True,
    help="Which records: start, 47, -1000, 47:99, @-1h, @t1:t2; up to the present end.",
)
@with_settings
def analyze(settings: Settings, texts: tuple[str, ...], offset: str) -> None:
    """Read records, and show sizes, codecs, keys, timestamps and holes of each partition and in total.

    Memory does not grow with the topic: DISTINCT-KEYS is an estimate (1.6 % standard error), and counts of frequent
    keys are up to 1 % of the records too low. Records of aborted transactions count. HOLES are offsets without a
    record between two records: compaction, and markers of transactions.
    """
    try:
        spec = parse_offsets(offset, now_ms=int(time.time() * 1000))
    except ValueError as problem:
        raise click.UsageError(f"-o: {problem}") from None
    if Anchor.STORED in (spec.first.anchor, spec.last.anchor if spec.last else None):
        raise click.UsageError("-o stored: offsets of a group; give start, 47, -1000 or @time")

    async def main(reactor: Any) -> int:
        from kclient.cli.topic_offsets import places_of
        from kclient.config import ConsumerConfig
        from kclient.consumer.client import Consumer

        async with admin_client(settings, reactor) as admin:
            places = await places_of(admin, texts)
        values = settings.client(ConsumerConfig)
        values.update({"enable.auto.commit": "false", "isolation.level": "read_uncommitted"})
        async with Consumer(config=values, reactor=reactor) as consumer:
            firsts, stops = await assign(consumer, places, spec, at_end=True)
            found, missing = await _read(settings, reactor, consumer, firsts, stops)
        _print(settings, found)
        for tp, at in missing.items():
            print_error(
                f"{tp}: no record for {settings.timeout:g} s; offsets {at} to {stops[tp] - 1} are not analyzed"
            )
        return TIMED_OUT if missing else 0

    run(main)


async def _read(
    settings: Settings,
    reactor: Any,
    consumer: Any,
    firsts: Mapping[TopicPartition, int],
    stops: Mapping[TopicPartition, int],
) -> tuple[dict[TopicPartition, Analysis], dict[TopicPartition, int]]:
    """Read every partition up to its stop; return the analyses, and the positions of those that did not get there."""
    from kclient.wire.compression import codec_name
    from kclient.wire.records import decode_columns

    found = {tp: Analysis() for tp in firsts}

    async def add_next() -> bool:
        polled = await consumer.poll_batches(timeout=0.2)
        for tp, batches in polled.items():
            for info, data in batches:
                if info.base_offset >= stops[tp]:
                    break
                found[tp].add_batch(codec_name(info.codec), info.size, is_control=info.is_control)
                if not info.is_control:
                    columns = decode_columns(data, info)
                    found[tp].add_records(*_within(columns, firsts[tp], stops[tp]))
        return bool(polled)

    left = await read_range(
        consumer,
        firsts,
        stops,
        add_next,
        verb="reading",
        progress=Progress(reactor.seconds, quiet=settings.quiet),
        seconds=reactor.seconds,
        timeout=settings.timeout,
    )
    return found, left


def _within(columns: Any, first: int, stop: int) -> Any:
    """Return the columns of the records from *first* to before *stop*."""
    offsets = columns[0]
    if not offsets or (offsets[0] >= first and offsets[-1] < stop):
        return columns
    kept = [n for n, offset in enumerate(offsets) if first <= offset < stop]
    begin, end = (kept[0], kept[-1] + 1) if kept else (0, 0)
    return tuple(column[begin:end] for column in columns)


def _print(settings: Settings, found: Mapping[TopicPartition, Analysis]) -> None:
    total = Analysis()
    for each in found.values():
        total.merge(each)
    rows = [
        {"topic": tp.topic, "partition": tp.partition, **each.row()}
        for tp, each in sorted(found.items())
    ]
    summary = total.row()
    if settings.format == "csv":
        show(rows, _PARTITION_COLUMNS, "csv")
    elif not settings.is_text:
        show([*rows, {"topic": None, "partition": None, **summary}], (), settings.format)
    else:
        show(rows, _PARTITION_COLUMNS, settings.format)
        click.echo()
        for name, text in summary_lines(summary):
            click.echo(f"{name + ':':<13}{text}")


def summary_lines(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the total of all partitions for people: pairs of a name and a text."""
    records = row["records"]
    if not records:
        return [("Records", "none")]

    def share(number: int) -> str:
        return f"{number * 100 / records:.1f} %"

    codecs = ", ".join(f"{name} {number}" for name, number in row["codecs"].items())
    lines = [
        ("Records", f"{records} in {row['batches']} batches ({row['records_per_batch']} a batch)"),
        ("Bytes", f"{row['bytes']} stored ({row['bytes'] / records:.1f} a record)"),
        ("Codecs", f"{codecs} (batches)"),
        ("Keys", f"about {row['distinct_keys']} distinct; {share(row['null_keys'])} of the records have none"),
        ("Values", f"mean {row['value_size_mean'] or 0} bytes, largest {row['value_size_max']}; "
         f"{share(row['null_values'])} of the records have none"),
        ("Timestamps", f"{time_text(row['first_timestamp'])} to {time_text(row['last_timestamp'])}; "
         f"{row['late_timestamps']} earlier than that of the record before"),
        ("Holes", f"{row['holes']}, of {row['missing_offsets']} offsets"),
    ]  # fmt: skip
    for each in row["frequent_keys"]:
        if each["records"] * 100 >= records:
            lines.append(("Frequent key", f" {each['key']} ({share(each['records'])})"))
    return lines
