"""`kclient consume`: prints records to standard output."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.decoders import HELP as DECODER_HELP
from kclient.cli.decoders import Decoder
from kclient.cli.decoders import decoders as chosen_decoders
from kclient.cli.finite_range import FiniteRange
from kclient.cli.formats import Formatter, formatter, heading, joined, value_end
from kclient.cli.help import Command
from kclient.cli.names import GROUP, TOPIC
from kclient.cli.offset_range import NO_SUCH_TOPIC_S, assign
from kclient.cli.offset_spec import Anchor, OffsetSpec, parse_offsets
from kclient.cli.progress import Progress
from kclient.cli.record_filter import Accept, record_filter
from kclient.cli.run import run
from kclient.cli.settings import Settings
from kclient.types import TopicPartition


@click.command(
    cls=Command,
    examples=(
        "kclient consume orders -o start -e",
        r"kclient consume orders -o @-1h -f '%t %p %o %k=%v\n'",
        "kclient consume orders --tail 10 -e --filter-value .status=paid",
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
@click.option(
    "--tail",
    type=click.IntRange(0),
    default=None,
    metavar="N",
    help="Print the last N records of all partitions, by time, before new ones (-e: stop then).",
)
@click.option(
    "-r",
    "--regex",
    is_flag=True,
    help="TOPIC is a regular expression that matches whole names; with -g of later topics, too.",
)
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
    "-f",
    "form",
    default=None,
    help="json (default), csv, value (a line each), raw, or a template: '%t %p %o %k{hex} %v{json}\\n'.",
)
@click.option(
    "--filter-key", metavar="PATTERN", help="Only keys that match: a GLOB, re:REGEX or .field=GLOB."
)
@click.option("--filter-value", metavar="PATTERN", help="Only values that match; .field= of JSON.")
@click.option(
    "--filter-header",
    "filter_headers",
    multiple=True,
    metavar="NAME[=PATTERN]",
    help="Only records with this header.",
)
@click.option(
    "--read-committed", is_flag=True, help="Leave out records of aborted and open transactions."
)
@click.option(
    "--print-control", is_flag=True, help="Print transaction markers, too (COMMIT and ABORT)."
)
@click.option("--meta-only", is_flag=True, help="Leave values out of the JSON.")
@click.option(
    "-s",
    "decoders",
    multiple=True,
    metavar="key=|value=DECODER",
    help=f"Decoder of keys or values: {DECODER_HELP}.",
)
@click.option(
    "--avro", "schema", type=click.Path(exists=True, dir_okay=False), help="Avro schema file."
)
@click.option(
    "--idle-timeout",
    type=FiniteRange(0),
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
    tail: int | None,
    regex: bool,
    partitions: str | None,
    group: str | None,
    count: int | None,
    at_end: bool,
    form: str | None,
    filter_key: str | None,
    filter_value: str | None,
    filter_headers: tuple[str, ...],
    read_committed: bool,
    print_control: bool,
    meta_only: bool,
    decoders: tuple[str, ...],
    schema: str | None,
    idle_timeout: float | None,
) -> None:
    """Consume TOPIC... and print every record.

    With -g consumption starts at the group's committed offsets (at -o start or end if there are none), and commits what
    was printed. With -p, -e or a range the partitions are read without group assignment.
    """
    _check_together(tail, print_control, group=group, offset=offset or from_beginning)
    spec = _offsets(offset, from_beginning=from_beginning, at_end=at_end, group=group)
    as_member = group is not None and partitions is None and not at_end and spec.last is None
    if as_member and spec.first.anchor not in _FOR_MEMBERS:
        raise click.UsageError(
            f"-o {offset}: a member of a group starts at the committed offsets; give start or end, "
            "or choose partitions with -p"
        )
    try:
        form = _form(form, settings.format)
        asked = _Asked(
            topics=topics,
            pattern=_pattern(topics) if regex else None,
            partitions=None if partitions is None else _partition_numbers(partitions),
            spec=spec,
            tail=tail,
            group=group,
            as_member=as_member,
            at_end=at_end,
            form=form,
            write=formatter(form, meta_only=meta_only),
            accept=record_filter(filter_key, filter_value, filter_headers),
            decoders=chosen_decoders(decoders, schema),
            read_committed=read_committed,
            print_control=print_control,
            count=count,
            idle_timeout=idle_timeout,
        )
    except ValueError as problem:
        raise click.UsageError(str(problem)) from None
    run(lambda reactor: _consume(settings, asked, reactor))


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What a command line asks for."""

    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None
    """Matches the names of the topics, in place of *topics*."""
    partitions: list[int] | None
    spec: OffsetSpec
    tail: int | None
    group: str | None
    as_member: bool
    """Whether partitions are assigned by the group."""
    at_end: bool
    form: str
    write: Formatter
    accept: Accept | None
    decoders: Mapping[str, Decoder]
    read_committed: bool
    print_control: bool
    count: int | None
    idle_timeout: float | None

    def settings_of_consumer(self, settings: Settings) -> dict[str, Any]:
        """Return the consumer's settings."""
        from kclient.config import ConsumerConfig

        values = settings.client(ConsumerConfig)
        begins = self.spec.first.anchor is Anchor.START
        values["auto.offset.reset"] = "earliest" if begins else "latest"
        values.setdefault("max.poll.records", 5000)
        # An unknown topic is an error and must not be created.
        values.setdefault("allow.auto.create.topics", "false")
        if self.group is not None:
            values["group.id"] = self.group
        if not self.as_member:
            values["enable.auto.commit"] = "false"
        if self.read_committed:
            values["isolation.level"] = "read_committed"
        return values


async def _consume(settings: Settings, asked: _Asked, reactor: Any) -> int:
    from kclient.consumer.client import Consumer

    quiet = settings.quiet or _is_in_the_way(asked.accept)
    printer = _Printer(asked, Progress(time.monotonic, quiet=quiet))
    if sys.stderr.isatty() and not settings.quiet:
        printer.note_at_end = waiting_note(asked.topics, asked.spec)
    async with Consumer(
        config=asked.settings_of_consumer(settings),
        reactor=reactor,
        key_deserializer=asked.decoders.get("key"),
        value_deserializer=asked.decoders.get("value"),
    ) as consumer:
        places = await _places(consumer, asked, settings.timeout)
        try:
            if asked.as_member and asked.pattern is not None:
                consumer.subscribe(pattern=asked.pattern.pattern)
            elif asked.as_member:
                consumer.subscribe(asked.topics)
            elif asked.tail is not None:
                await _print_tail(consumer, places, asked.tail, printer)
            else:
                firsts, stops = await assign(consumer, places, asked.spec, at_end=asked.at_end)
                printer.stop_before(stops)
                if asked.print_control:
                    printer.print_control(consumer, firsts)
            if asked.tail is None or not asked.at_end:
                await printer.run(consumer)
        finally:
            printer.progress.clear()
            # After Ctrl-C and `-n` alike: printed records count as processed.
            if asked.group is not None and not asked.as_member and not printer.broken:
                await consumer.commit(printer.positions(consumer))
    settings.note(f"Processed a total of {printer.printed} messages")
    return 0


def _check_together(
    tail: int | None, print_control: bool, *, group: str | None, offset: str | bool | None
) -> None:
    """Raise UsageError for options that exclude each other."""
    for option, given in (("--tail", tail is not None), ("--print-control", print_control)):
        if given and group is not None:
            raise click.UsageError(f"{option} reads without a group: remove -g")
    if tail is not None and (offset or print_control):
        raise click.UsageError(
            "--tail is a place to begin at: remove -o, --from-beginning and --print-control"
        )


def _is_in_the_way(accept: Accept | None) -> bool:
    """Return whether a line of progress would be among records on the terminal: not while a filter accepts few."""
    return sys.stdout.isatty() and accept is None


def _partition_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ValueError(f"-p {text}: expected numbers of partitions, such as 0 or 0,2") from None


def _form(form: str | None, row_format: str) -> str:
    """Return the form of records for -f and --format: both JSON formats of rows are a line of JSON for each record."""
    if row_format in ("wide", "yaml"):
        raise click.UsageError(f"records have no {row_format}: --format json or csv, or -f")
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


def _pattern(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Return the expression that matches what one of *texts* matches."""
    try:
        for text in texts:
            re.compile(text)
        return re.compile("|".join(f"(?:{text})" for text in texts) if texts[1:] else texts[0])
    except re.error as problem:
        # Flags such as (?i) are those of a whole expression, so they do not go with a second one.
        raise ValueError(f"-r {' '.join(texts)}: {problem}") from None


async def _matching(consumer: Any, pattern: re.Pattern[str], timeout: float) -> list[str]:
    """Return the topics that a subscription would have, and keep their metadata."""
    cluster = consumer.cluster
    cluster.want_all()
    metadata = await cluster.retrying(
        cluster.refresh, timeout=timeout, what=f"topics that match {pattern.pattern}"
    )
    found = sorted(metadata.matching(pattern, internal=not consumer.config.exclude_internal_topics))
    cluster.want_only(found)
    return found


async def _places(consumer: Any, asked: _Asked, timeout: float) -> list[TopicPartition]:
    """Return the partitions to read; raise an error for a topic or a partition that does not exist."""
    topics: Sequence[str] = asked.topics
    if asked.pattern is not None:
        if asked.as_member:
            return []  # the subscription looks for the topics, for later ones, too
        topics = await _matching(consumer, asked.pattern, timeout)
        if not topics:
            raise ValueError(f"no topic matches {' or '.join(asked.topics)}")
    places = []
    chosen = asked.partitions
    for topic in topics:
        known = await consumer.partitions_for_topic(topic, min(timeout, NO_SUCH_TOPIC_S))
        missing = sorted(set(chosen or ()) - set(known))
        if missing:
            raise ValueError(
                f"topic {topic!r} has no partition {', '.join(map(str, missing))}; "
                f"its partitions are 0 to {len(known) - 1}"
            )
        places += [TopicPartition(topic, n) for n in known if chosen is None or n in chosen]
    return places


async def _print_tail(
    consumer: Any, places: list[TopicPartition], count: int, printer: _Printer
) -> None:
    """Print the last *count* records, and leave the consumer behind them."""
    from kclient.cli.consume_tail import last_records

    consumer.assign(places)
    starts = await consumer.beginning_offsets(places)
    ends = await consumer.end_offsets(places)
    found = await last_records(consumer, starts, ends, count, printer.accept, read=printer.count)
    printer.print_all(found)


class _Printer:
    """Polls and prints until its limit is reached."""

    def __init__(self, asked: _Asked, progress: Progress) -> None:
        self._asked = asked
        self._write = asked.write
        self._value_end = value_end(asked.form)
        self._head = heading(asked.form)
        self._left = asked.count
        self.accept = asked.accept
        self.progress = progress
        self._poll: Callable[..., Any] | None = None
        """In place of the consumer's poll."""
        self._read = 0
        self._stops: dict[TopicPartition, int] | None = None
        self.printed = 0
        self.note_at_end: str | None = None
        """A line for stderr when all records are printed, once."""
        self.broken = False
        """Whether writing polled records failed."""

    def print_control(self, consumer: Any, firsts: dict[TopicPartition, int]) -> None:
        """Print control records, too."""
        from kclient.cli.consume_control import ControlPoll, with_control

        self._poll = ControlPoll(consumer, firsts, self._asked.decoders).poll
        self._value_end = None
        self._write = with_control(self._write, as_json=self._asked.form == "json")

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
        self._begin(stream)
        last = time.monotonic()
        while not self._done(consumer):
            if self._poll is not None:
                found = await self._poll(timeout=0.2)
            else:
                most = self._most(consumer.config.max_poll_records)
                found = await consumer.poll(timeout=0.2, max_records=most)
            if found:
                self.broken = True
                for tp, records in found.items():
                    self._print(stream, tp, records)
                stream.flush()
                self.broken = False
                last = time.monotonic()
                continue
            if self.note_at_end is not None and self._at_end(consumer):
                self.progress.clear()
                click.echo(self.note_at_end, err=True)
                self.note_at_end = None
            if (
                self._asked.idle_timeout is not None
                and time.monotonic() - last > self._asked.idle_timeout
            ):
                return

    def _begin(self, stream: Any) -> None:
        if self._head:
            stream.write(self._head)
            stream.flush()
            self._head = b""

    def _most(self, usual: int) -> int:
        """Return how many records the next poll may return: in a group, none that is not printed or filtered."""
        if self._left is None or (self.accept is not None and self._asked.group is None):
            return usual
        return min(usual, self._left)

    def count(self, records: int) -> None:
        """Count records that were read, and show progress."""
        self._read += records
        self.progress.show(f"{self._read} records read, {self.printed} printed")

    def print_all(self, records: list[Any]) -> None:
        """Print *records*, which the filter has accepted."""
        stream = sys.stdout.buffer
        self._begin(stream)
        self._print_accepted(stream, records)
        stream.flush()

    def _at_end(self, consumer: Any) -> bool:
        """Return whether every assigned partition is consumed up to its high watermark."""
        assigned = consumer.assignment()
        return bool(assigned) and all(consumer.lag(tp) == 0 for tp in assigned)

    def _print(self, stream: Any, tp: TopicPartition, records: list[Any]) -> None:
        stop = None if self._stops is None else self._stops.get(tp)
        if stop is not None and records[-1].offset >= stop:
            records = [record for record in records if record.offset < stop]
        self.count(len(records))
        if self.accept is not None:
            records = list(filter(self.accept, records))
        if self._left is not None:
            records = records[: max(0, self._left)]
        if records:
            self._print_accepted(stream, records)

    def _print_accepted(self, stream: Any, records: list[Any]) -> None:
        self.progress.clear()
        stream.write(joined(records, self._write, self._value_end))
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
