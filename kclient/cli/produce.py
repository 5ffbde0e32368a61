"""`kclient produce`: sends records from standard input or files."""

from __future__ import annotations

from typing import Any

import click

from kclient.cli.commands import with_settings
from kclient.cli.context import FAILED, Settings, print_error, run
from kclient.cli.delivery import Deliveries, Given
from kclient.cli.formats import from_envelope, unescaped
from kclient.cli.help import Command
from kclient.cli.line_template import Line, LineTemplate
from kclient.cli.names import TOPIC

_DELIVERY_TIMEOUT_S = 120.0


@click.command(
    cls=Command,
    examples=(
        r"printf 'ann:1\nbob:2\n' | kclient produce orders -K :",
        "kclient consume orders -o start -e | kclient produce copy --input json",
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
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    help="Replicas that acknowledge a record: none, the leader, the ISR (default all).",
)
@click.option(
    "--delivery-timeout",
    type=click.FloatRange(min=0.001),
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
    acks: str | None,
    delivery_timeout: float | None,
) -> None:
    """Produce records to TOPIC, one per line, and wait until all are acknowledged.

    Input is read as fast as records are delivered. When a record is not acknowledged in time no more input is read.
    """
    fixed: list[tuple[str, bytes | None]] = []
    for header in headers:
        name, given, text = header.partition("=")
        fixed.append((name, text.encode() if given else None))
    line_template = None if template is None else LineTemplate(template)
    extra = {"compression.type": compression, "acks": acks}

    async def main(reactor: Any) -> int:
        from twisted.internet.defer import CancelledError

        from kclient.cli.stdin import LineBatches
        from kclient.config import ProducerConfig
        from kclient.producer.producer import Producer

        values = settings.client(ProducerConfig)
        values.update({name: value for name, value in extra.items() if value is not None})
        if delivery_timeout is not None:
            values["delivery.timeout.ms"] = int(delivery_timeout * 1000)
        values.setdefault("delivery.timeout.ms", int(_DELIVERY_TIMEOUT_S * 1000))
        # A record may wait for memory as long as for its acknowledgement: both wait for the same brokers.
        values.setdefault("max.block.ms", values["delivery.timeout.ms"])
        producer: Producer[Any, Any] = Producer(values, reactor=reactor)
        deliveries = Deliveries(producer, topic, partition)
        delimiter = None if key_delimiter is None else unescaped(key_delimiter)

        def read(piece: bytes) -> Given:
            if kind == "raw":
                return Given(_encode(key), piece, fixed)
            if kind == "json":
                return _from_json(piece, deliveries.sent + 1, fixed)
            if line_template is not None:
                return _from_template(line_template(piece), _encode(key), null, fixed)
            return _from_line(piece, _encode(key), delimiter, null, fixed)

        async with producer:
            await producer.cluster.partitions(topic, timeout=settings.timeout)
            try:
                async for lines in LineBatches(reactor, paths or ("-",), whole_files=kind == "raw"):
                    await deliveries.send(map(read, lines))
                    if deliveries.timed_out:
                        break
            except CancelledError:
                pass  # Ctrl-C ends the input; what was read is delivered.
            await producer.flush()
        return _report(deliveries, topic, producer.config.delivery_timeout_ms / 1000, settings)

    run(main)


def _report(deliveries: Deliveries, topic: str, seconds: float, settings: Settings) -> int:
    for problem, count in deliveries.problems.most_common(3):
        print_error(f"{problem}" + (f" ({count} records)" if count > 1 else ""))
    if deliveries.timed_out:
        print_error(
            f"the input was read no further; --delivery-timeout SECONDS (now {seconds:g}) waits longer"
        )
    settings.note(f"{deliveries.delivered} of {deliveries.sent} records delivered to {topic}")
    return FAILED if deliveries.problems else 0


def _from_json(line: bytes, number: int, headers: list[tuple[str, bytes | None]]) -> Given:
    try:
        key, value, own, timestamp = from_envelope(line.decode())
    except ValueError as problem:
        raise ValueError(f"record {number}: {problem}") from problem
    return Given(key, value, own + headers, timestamp)


def _from_line(
    line: bytes,
    key: bytes | None,
    delimiter: bytes | None,
    null: bool,
    headers: list[tuple[str, bytes | None]],
) -> Given:
    value = line
    if delimiter is not None:
        before, given, after = line.partition(delimiter)
        if given:
            key, value = before, after
    return Given(key, None if null and not value else value, headers)


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


def _encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
