"""`kclient consume`: prints records to standard output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.context import Settings, run
from kclient.cli.formats import formatter, heading
from kclient.cli.help import Command
from kclient.cli.names import GROUP, TOPIC
from kclient.cli.offset_spec import Anchor, Bound, OffsetSpec, parse_offsets
from kclient.types import TopicPartition

_DECODERS = ("bytes", "avro", "json", "hex")


@click.command(
    cls=Command,
    examples=(
        "kclient consume orders -o start -e",
        r"kclient consume orders -o @-1h -f '%t %p %o %k=%v\n'",
        "kclient consume orders -g billing -n 100",
    ),
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", type=TOPIC)
@click.option(
    "-o",
    "--offset",
    "offset",
    default=None,
    help="start, end, stored, 47, +2, -3, 47:99, :end, @time, @-1h, @t1:t2 "
    "(default: end; start with -e; stored with -g).",
)
@click.option("--from-beginning", is_flag=True, help="The same as -o start.")
@click.option("-p", "--partitions", default=None, metavar="N,N", help="Only these partitions.")
@click.option(
    "-g",
    "--group",
    default=None,
    type=GROUP,
    help="Consume as a member of this group, with commits.",
)
@click.option(
    "-n",
    "--max-messages",
    "-c",
    "count",
    type=click.IntRange(0),
    default=None,
    help="Stop after this number of records.",
)
@click.option("-e", "--exit", "at_end", is_flag=True, help="Stop at the present log ends.")
@click.option(
    "-f", "form", default=None, help="json (default), csv, raw, or a template: '%t %p %o %k %v\\n'."
)
@click.option(
    "-s",
    "decoders",
    multiple=True,
    metavar="key=|value=DECODER",
    help=f"Decoder of keys or values: {', '.join(_DECODERS)}.",
)
@click.option(
    "--avro", "schema", type=click.Path(exists=True, dir_okay=False), help="Avro schema file."
)
@click.option(
    "--idle-timeout",
    type=float,
    default=None,
    metavar="SECONDS",
    help="Stop after this time without a record.",
)
@with_settings
def consume(
    settings: Settings,
    topics: tuple[str, ...],
    offset: str | None,
    from_beginning: bool,
    partitions: str | None,
    group: str | None,
    count: int | None,
    at_end: bool,
    form: str | None,
    decoders: tuple[str, ...],
    schema: str | None,
    idle_timeout: float | None,
) -> None:
    """Consume TOPIC... and print every record.

    With -g consumption starts at the group's committed offsets (at -o start or end if there are none), and commits what
    was printed. With -p, -e or a range the partitions are read without group assignment.
    """
    as_member = group is not None and partitions is None and not at_end
    spec = _offsets(offset, from_beginning=from_beginning, at_end=at_end, group=group)
    as_member = as_member and spec.last is None
    if as_member and spec.first.anchor not in _FOR_MEMBERS:
        raise click.UsageError(
            f"-o {offset}: a member of a group starts at the committed offsets; give start or end, "
            "or choose partitions with -p"
        )
    try:
        form = _form(form, settings.format)
        write = formatter(form)
        chosen = None if partitions is None else [int(number) for number in partitions.split(",")]
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    deserializers = _deserializers(decoders, schema)

    async def main(reactor: Any) -> int:
        from kclient.config import ConsumerConfig
        from kclient.consumer.client import Consumer

        values = settings.client(ConsumerConfig)
        values["auto.offset.reset"] = "earliest" if spec.first.anchor is Anchor.START else "latest"
        values.setdefault("max.poll.records", 5000)
        # An unknown topic is an error and must not be created.
        values.setdefault("allow.auto.create.topics", "false")
        if group is not None:
            values["group.id"] = group
        if not as_member:
            values["enable.auto.commit"] = "false"
        printer = _Printer(write, heading(form), count, idle_timeout)
        if sys.stderr.isatty() and not settings.quiet:
            printer.note_at_end = waiting_note(topics, spec)
        async with Consumer(config=values, reactor=reactor, **deserializers) as consumer:
            places = await _places(
                consumer, topics, chosen, min(settings.timeout, _NO_SUCH_TOPIC_S)
            )
            if as_member:
                consumer.subscribe(topics)
            else:
                await _assign(consumer, places, spec, at_end, printer)
            try:
                await printer.run(consumer)
            finally:
                # After Ctrl-C and `-n` alike: printed records count as processed.
                if group is not None and not as_member and not printer.broken:
                    await consumer.commit(printer.positions(consumer))
        settings.note(f"Processed a total of {printer.printed} messages")
        return 0

    run(main)


def _form(form: str | None, row_format: str) -> str:
    """Return the form of records for -f and --format: both JSON formats of rows are a line of JSON for each record."""
    of_rows = {"csv": "csv", "json": "json", "jsonl": "json"}.get(row_format)
    if form and of_rows and form != of_rows:
        raise click.UsageError(f"give one of -f {form} and --format {row_format}")
    return form or of_rows or "json"


def waiting_note(topics: tuple[str, ...], spec: OffsetSpec) -> str:
    """Return what a person at a terminal is shown when all records are printed and the command waits."""
    skipped = spec.first.anchor is Anchor.END and not spec.first.number
    older = "; -o start prints those that are there already" if skipped else ""
    return f"waiting for new records of {', '.join(topics)} (Ctrl-C ends{older}; -e stops at the log ends)"


_FOR_MEMBERS = (Anchor.START, Anchor.END, Anchor.STORED)
_NO_SUCH_TOPIC_S = 3.0
"""Seconds to wait for a topic's metadata: enough for one that was created just before."""


def _offsets(offset: str | None, *, from_beginning: bool, at_end: bool, group: str | None) -> Any:
    """Parse -o; its default is the group's position, else start with -e, else end."""
    if offset is None:
        offset = "stored" if group is not None and at_end else "start" if at_end else "end"
    if from_beginning:
        offset = "start"
    try:
        spec = parse_offsets(offset, now_ms=int(time.time() * 1000))
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    anchors = {spec.first.anchor, spec.last.anchor if spec.last else None}
    if Anchor.STORED in anchors and group is None:
        raise click.UsageError("-o stored: name the group with -g")
    return spec


async def _places(
    consumer: Any, topics: tuple[str, ...], chosen: list[int] | None, timeout: float
) -> list[TopicPartition]:
    """Return the partitions to read; raise an error for a topic or a partition that does not exist."""
    places = []
    for topic in topics:
        known = await consumer.partitions_for_topic(topic, timeout)
        missing = sorted(set(chosen or ()) - set(known))
        if missing:
            raise ValueError(
                f"topic {topic!r} has no partition {', '.join(map(str, missing))}; "
                f"its partitions are 0 to {len(known) - 1}"
            )
        places += [TopicPartition(topic, n) for n in known if chosen is None or n in chosen]
    return places


async def _assign(
    consumer: Any, places: list[TopicPartition], spec: OffsetSpec, at_end: bool, printer: _Printer
) -> None:
    """Assign and seek; set the end offset of each partition in *printer*, if there is one."""
    consumer.assign(places)
    starts = await consumer.beginning_offsets(places)
    ends = await consumer.end_offsets(places)
    for tp, offset in (await resolve(consumer, spec.first, places, starts, ends)).items():
        consumer.seek(tp, max(starts[tp], min(offset, ends[tp])))
    stops: dict[TopicPartition, int] = dict(ends) if at_end else {}
    if spec.last is not None:
        for tp, stop in (await resolve(consumer, spec.last, places, starts, ends)).items():
            stops[tp] = min(stop, stops.get(tp, stop))
    printer.stop_before(stops)


async def resolve(
    consumer: Any,
    bound: Bound,
    places: list[TopicPartition],
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offset of *bound* in each partition; it can be outside of the log."""
    if bound.anchor is Anchor.TIME:
        found = await consumer.offsets_for_times(dict.fromkeys(places, bound.number))
        return {tp: ends[tp] if at is None else at.offset for tp, at in found.items()}
    if bound.anchor is Anchor.STORED:
        committed = await consumer.committed(places)
        return {tp: starts[tp] if at is None else at.offset for tp, at in committed.items()}
    return {
        tp: {
            Anchor.START: starts[tp] + bound.number,
            Anchor.END: ends[tp] + bound.number,
            Anchor.OFFSET: bound.number,
        }[bound.anchor]
        for tp in places
    }


class _Printer:
    """Polls and prints until its limit is reached."""

    def __init__(
        self,
        write: Callable[[Any], bytes],
        head: bytes,
        count: int | None,
        idle_timeout: float | None,
    ) -> None:
        self._write = write
        self._head = head
        self._left = count
        self._idle_timeout = idle_timeout
        self._stops: dict[TopicPartition, int] | None = None
        self.printed = 0
        self.note_at_end: str | None = None
        """A line for stderr when all records are printed, once."""
        self.broken = False
        """Whether writing polled records failed."""

    def stop_before(self, stops: dict[TopicPartition, int]) -> None:
        """Print no records at or above these offsets, and end when all are reached."""
        self._stops = stops or None

    def positions(self, consumer: Any) -> dict[TopicPartition, int]:
        """Return the offsets to commit: the positions, but at most the end offsets."""
        stops = self._stops or {}
        positions = {tp: consumer.next_offset(tp) for tp in consumer.assignment()}
        return {tp: min(at, stops.get(tp, at)) for tp, at in positions.items() if at is not None}

    async def run(self, consumer: Any) -> None:
        """Poll and print; return at the limit, the end offsets or the idle timeout."""
        stream = sys.stdout.buffer
        if self._head:
            stream.write(self._head)
            stream.flush()
        last = time.monotonic()
        most = consumer.config.max_poll_records
        while not self._done(consumer):
            found = await consumer.poll(
                timeout=0.2, max_records=most if self._left is None else min(most, self._left)
            )
            if found:
                self.broken = True
                for tp, records in found.items():
                    self._print(stream, tp, records)
                stream.flush()
                self.broken = False
                last = time.monotonic()
                continue
            if self.note_at_end is not None and self._at_end(consumer):
                click.echo(self.note_at_end, err=True)
                self.note_at_end = None
            if self._idle_timeout is not None and time.monotonic() - last > self._idle_timeout:
                return

    def _at_end(self, consumer: Any) -> bool:
        """Return whether every assigned partition is consumed up to its high watermark."""
        assigned = consumer.assignment()
        return bool(assigned) and all(consumer.lag(tp) == 0 for tp in assigned)

    def _print(self, stream: Any, tp: TopicPartition, records: list[Any]) -> None:
        stop = None if self._stops is None else self._stops.get(tp)
        if stop is not None and records[-1].offset >= stop:
            records = [record for record in records if record.offset < stop]
        write = self._write
        stream.write(b"".join([write(record) for record in records]))
        self.printed += len(records)
        if self._left is not None:
            self._left -= len(records)

    def _done(self, consumer: Any) -> bool:
        if self._left is not None and self._left <= 0:
            return True
        if self._stops is None:
            return False
        reached = 0
        for tp, stop in self._stops.items():
            position = consumer.next_offset(tp)
            if position is not None and position >= stop:
                consumer.pause(tp)
                reached += 1
        return reached == len(self._stops)


def _deserializers(decoders: tuple[str, ...], schema: str | None) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for text in decoders or (("value=avro",) if schema else ()):
        which, _, name = text.partition("=")
        if which not in ("key", "value") or name not in _DECODERS:
            raise click.UsageError(
                f"-s {text}: expected key= or value= and one of {', '.join(_DECODERS)}"
            )
        decoder = _decoder(name, schema)
        if decoder is not None:
            chosen[f"{which}_deserializer"] = decoder
    return chosen


def _decoder(name: str, schema: str | None) -> Callable[[bytes], Any] | None:
    if name == "json":
        return json.loads
    if name == "hex":
        return lambda data: data.hex()
    if name == "avro":
        if schema is None:
            raise click.UsageError("-s ...=avro needs --avro FILE.avsc, the schema to read with")
        from kclient.avro import AvroDeserializer

        decoder: Callable[[bytes], Any] = AvroDeserializer(
            json.loads(Path(schema).read_text(encoding="utf-8"))
        )
        return decoder
    return None
