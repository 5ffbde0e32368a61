"""`kclient produce`: sends records from standard input or files."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import click

from kclient.cli.answers import code_for, print_problems
from kclient.cli.commands import with_settings
from kclient.cli.delivery import Deliveries, Given
from kclient.cli.exit_codes import FAILED
from kclient.cli.finite_range import FiniteRange
from kclient.cli.formats import from_envelope, place_formatter, unescaped
from kclient.cli.help import Command
from kclient.cli.line_template import Line, LineTemplate
from kclient.cli.names import TOPIC
from kclient.cli.output import print_error
from kclient.cli.progress import Progress
from kclient.cli.run import run
from kclient.cli.settings import Settings, milliseconds

if TYPE_CHECKING:
    from kclient.producer.producer import Producer
    from kclient.types import RecordMetadata

_DELIVERY_TIMEOUT_S = 120.0
_BATCH_SIZE = 512 << 10
"""batch.size without a setting: half of what a broker accepts by default."""

Column: TypeAlias = "list[bytes | None]"
"""The keys, or the values, of some lines."""


@click.command(
    cls=Command,
    examples=(
        r"printf 'ann:1\nbob:2\n' | kclient produce orders -K :",
        "kclient consume orders -o start -e | kclient produce copy --input json",
        r"kclient produce orders -H source=shell -o 'to %p at %o\n'",
    ),
)
@click.argument("topic", type=TOPIC)
@click.argument(
    "paths", nargs=-1, type=click.Path(exists=True, dir_okay=False), metavar="[FILE...]"
)
@click.option("-p", "--partition", type=int, help="The partition of every record; default: by key.")
@click.option("-k", "--key", default=None, help="The key of every record.")
@click.option(
    "-K", "--key-delimiter", default=None, help="Delimiter between key and value of a line."
)
@click.option("-f", "template", default=None, help=r"Fields of a line: '%k\t%v', also %p, %T.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record; NAME alone is null.",
)
@click.option("-Z", "--null", "null", is_flag=True, help="An empty value is null (a tombstone).")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default=None,
    help="Compression of batches (default none).",
)
@click.option(
    "--input",
    "kind",
    type=click.Choice(["lines", "json", "raw"]),
    default="lines",
    help="json reads what `consume -f json` writes; raw makes each file one record.",
)
@click.option("-T", "--tee", is_flag=True, help="Copy the input to standard output.")
@click.option(
    "-o",
    "--output",
    "delivered",
    default=None,
    metavar="FORMAT",
    help=r"Print a line for each delivered record: 'to %t-%p at %o\n', also %d (ms).",
)
@click.option(
    "--rate",
    type=FiniteRange(0, min_open=True),
    metavar="N",
    help="Send at most N records per second.",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    help="Replicas that acknowledge a record: none, the leader, the ISR (default all).",
)
@click.option(
    "--delivery-timeout",
    type=FiniteRange(min=0.001),
    default=None,
    metavar="SECONDS",
    help=f"Time for the acknowledgement of a record (default {_DELIVERY_TIMEOUT_S:g}); -m is for the contact.",
)
@with_settings
def produce(
    settings: Settings,
    topic: str,
    paths: tuple[str, ...],
    partition: int | None,
    key: str | None,
    key_delimiter: str | None,
    template: str | None,
    headers: tuple[str, ...],
    null: bool,
    compression: str | None,
    kind: str,
    tee: bool,
    delivered: str | None,
    rate: float | None,
    acks: str | None,
    delivery_timeout: float | None,
) -> None:
    """Produce records to TOPIC, one per line, and wait until all are acknowledged.

    Input is read as fast as records are delivered. When a record is not acknowledged in time no more input is read.
    With -X transactional.id=ID all records are one transaction, which an error or Ctrl-C aborts.
    """
    if tee and delivered is not None:
        raise click.UsageError("give one of -T and -o: both print to standard output")
    try:
        place_line = None if delivered is None else place_formatter(delivered)
    except ValueError as problem:
        raise click.UsageError(f"-o {delivered}: {problem}") from None
    fixed = _headers(headers)
    give = _giver(kind, key, key_delimiter, template, null, fixed)

    async def main(reactor: Any) -> int:
        from kclient.cli.pace import Pace
        from kclient.cli.stdin import LineBatches
        from kclient.config import ProducerConfig
        from kclient.producer.producer import Producer

        values = _producer_settings(
            settings.client(ProducerConfig), compression, acks, delivery_timeout
        )
        producer: Producer[Any, Any] = Producer(values, reactor=reactor)
        pace = None if rate is None else Pace(reactor, rate)
        acknowledged = None if place_line is None else _printer(place_line)
        progress = Progress(time.monotonic, quiet=settings.quiet or sys.stdin.isatty())

        async with producer:
            await producer.cluster.partitions(topic, timeout=settings.timeout)
            batches = LineBatches(reactor, paths or ("-",), whole_files=kind == "raw")
            deliveries = Deliveries(
                producer,
                topic,
                partition,
                pace=pace,
                acknowledged=acknowledged,
                when_timed_out=batches.end,  # not only at the next line: it may never come
            )

            async def send(lines: list[bytes]) -> None:
                for some in [lines] if rate is None else _per_second(lines, rate):
                    if deliveries.timed_out:
                        return
                    await give(deliveries, some)
                    if tee:
                        end = b"" if kind == "raw" else b"\n"
                        sys.stdout.buffer.write(b"".join([line + end for line in some]))
                    sys.stdout.buffer.flush()
                    progress.show(f"{deliveries.delivered} records delivered")

            if values.get("transactional.id"):
                aborted = await _in_transaction(producer, deliveries, batches, send)
            else:
                await _send_all(deliveries, batches, send)
                await producer.flush()
                aborted = False
        sys.stdout.buffer.flush()
        progress.clear()
        code = _report(deliveries, topic, producer.config.delivery_timeout_ms / 1000, settings)
        if aborted:
            print_error("the transaction was aborted: none of the records is committed")
        return FAILED if aborted else code

    run(main, reads_stdin=not paths)


def _printer(
    place_line: Callable[[RecordMetadata], bytes],
) -> Callable[[RecordMetadata], object]:
    """Return a function that prints the line of a delivered record."""
    return lambda place: sys.stdout.buffer.write(place_line(place))


def _per_second(lines: list[bytes], rate: float) -> Iterator[list[bytes]]:
    """Yield what a second takes: then output and progress do not wait for the end of a large piece."""
    most = max(1, round(rate))
    for at in range(0, len(lines), most):
        yield lines[at : at + most]


def _producer_settings(
    values: dict[str, Any],
    compression: str | None,
    acks: str | None,
    delivery_timeout: float | None,
) -> dict[str, Any]:
    """Return *values* with those of options, and the defaults of this command."""
    given: dict[str, Any] = {"compression.type": compression, "acks": acks}
    if delivery_timeout is not None:
        given["delivery.timeout.ms"] = milliseconds(delivery_timeout)
    timeout = int(_DELIVERY_TIMEOUT_S * 1000)
    # Lines are there in large pieces: with kclient's default a piece of 1 MiB would be eight requests.
    defaults = {"delivery.timeout.ms": timeout, "batch.size": _BATCH_SIZE}
    merged = {**defaults, **values, **{n: v for n, v in given.items() if v is not None}}
    if "batch.size" in values:
        merged.setdefault("columns.batch.size", values["batch.size"])
    # A record may wait for memory as long as for its acknowledgement: both wait for the same brokers.
    merged.setdefault("max.block.ms", merged["delivery.timeout.ms"])
    return merged


async def _send_all(
    deliveries: Deliveries,
    batches: AsyncIterable[list[bytes]],
    send: Callable[[list[bytes]], Awaitable[None]],
) -> bool:
    """Send the input, until its end, Ctrl-C, or a record that is not acknowledged in time; return whether it ended."""
    from twisted.internet.defer import CancelledError

    try:
        async for lines in batches:
            await send(lines)
    except CancelledError:
        return False  # Ctrl-C ends the input; what was read is delivered.
    return not deliveries.timed_out


async def _in_transaction(
    producer: Producer[Any, Any],
    deliveries: Deliveries,
    batches: AsyncIterable[list[bytes]],
    send: Callable[[list[bytes]], Awaitable[None]],
) -> bool:
    """Send the input in one transaction; return whether it was aborted: after Ctrl-C, or an error."""
    await producer.init_transactions()
    await producer.begin_transaction()
    try:
        is_complete = await _send_all(deliveries, batches, send)
        await producer.flush()
    except BaseException:
        await producer.abort_transaction()
        raise
    if is_complete and not deliveries.problems:
        await producer.commit_transaction()
        return False
    await producer.abort_transaction()
    return True


def _headers(texts: tuple[str, ...]) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for text in texts:
        name, given, content = text.partition("=")
        headers.append((name, content.encode() if given else None))
    return headers


def _giver(
    kind: str,
    key: str | None,
    key_delimiter: str | None,
    template: str | None,
    null: bool,
    headers: list[tuple[str, bytes | None]],
) -> Callable[[Deliveries, list[bytes]], Awaitable[None]]:
    """Return the function that makes records of lines, or of files, and gives them to the deliveries."""
    if key_delimiter == "":
        raise click.UsageError("-K: the delimiter is empty; give the text between key and value")
    if kind != "lines":
        unused = {"-f": template, "-K": key_delimiter, "-Z": null or None}
        if kind == "json":
            unused["-k"] = key
        for option, value in unused.items():
            if value is not None:
                raise click.UsageError(
                    f"{option} does not apply to --input {kind}: remove one of them"
                )
    line_template = None if template is None else LineTemplate(template)
    delimiter = None if key_delimiter is None else unescaped(key_delimiter)
    fixed_key = None if key is None else key.encode()

    def read(piece: bytes, number: int) -> Given:
        if kind == "json":
            return _from_json(piece, number, headers)
        if line_template is not None:
            return _from_template(line_template(piece), fixed_key, null, headers)
        return Given(fixed_key, piece, headers)

    async def give(deliveries: Deliveries, lines: list[bytes]) -> None:
        if kind == "lines" and line_template is None:
            keys, values = _columns(lines, fixed_key, delimiter, null)
            await deliveries.send_rows(values, keys, headers)
        else:
            await deliveries.send(read(line, deliveries.sent + 1) for line in lines)

    return give


def _columns(
    lines: list[bytes], key: bytes | None, delimiter: bytes | None, null: bool
) -> tuple[Column | None, Column]:
    """Return keys and values; without a delimiter in a line its key is *key*."""
    keys: Column | None = None if key is None else [key] * len(lines)
    values = cast(Column, lines)  # not changed: a copy of a million lines takes its time
    if delimiter is not None:
        parts = [line.partition(delimiter) for line in lines]
        keys = [before if given else key for before, given, _ in parts]
        values = [after if given else before for before, given, after in parts]
    if null:
        values = [value or None for value in values]
    return keys, values


def _report(deliveries: Deliveries, topic: str, seconds: float, settings: Settings) -> int:
    print_problems(deliveries.problems)
    if deliveries.timed_out:
        print_error(
            f"the input was read no further; --delivery-timeout SECONDS (now {seconds:g}) waits longer"
        )
    settings.note(f"{deliveries.delivered} of {deliveries.sent} records delivered to {topic}")
    return code_for(deliveries.delivered, deliveries.delivered + deliveries.problems.total())


def _from_json(line: bytes, number: int, headers: list[tuple[str, bytes | None]]) -> Given:
    try:
        key, value, own, timestamp = from_envelope(line.decode())
    except ValueError as problem:
        raise ValueError(f"record {number}: {problem}") from problem
    return Given(key, value, own + headers, timestamp)


def _from_template(
    line: Line,
    key: bytes | None,
    null: bool,
    headers: list[tuple[str, bytes | None]],
) -> Given:
    return Given(
        key if line.key is None else line.key,
        None if null and not line.value else line.value,
        headers,
        line.timestamp_ms,
        line.partition,
    )
