"""`kclient produce`: sends records from standard input or files."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from kclient.cli.commands import with_settings
from kclient.cli.context import FAILED, Settings, print_message, run
from kclient.cli.formats import from_envelope, unescaped
from kclient.cli.line_template import Line, LineTemplate
from kclient.cli.stdin import LineBatches


class _Input(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None = None
    partition: int | None = None


@click.command()
@click.argument("topic")
@click.argument(
    "paths", nargs=-1, type=click.Path(exists=True, dir_okay=False), metavar="[FILE...]"
)
@click.option("-p", "--partition", type=int, default=None)
@click.option("-k", "--key", default=None, help="The key of every record.")
@click.option(
    "-K", "--key-delimiter", default=None, help="Delimiter between key and value of a line."
)
@click.option("-f", "template", default=None, help=r"Fields of a line: '%k\t%v', also %p, %T.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE")
@click.option("-Z", "--null", "null", is_flag=True, help="An empty value is null (a tombstone).")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default=None,
)
@click.option(
    "--input",
    "kind",
    type=click.Choice(["lines", "json", "raw"]),
    default="lines",
    help="json reads what `consume -f json` writes; raw makes each file one record.",
)
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default=None)
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
) -> None:
    """Produce records to TOPIC, one per line, and wait until all are acknowledged."""
    fixed: list[tuple[str, bytes | None]] = []
    for header in headers:
        name, given, text = header.partition("=")
        fixed.append((name, text.encode() if given else None))
    line_template = None if template is None else LineTemplate(template)
    extra = {"compression.type": compression, "acks": acks}

    async def main(reactor: Any) -> int:
        from twisted.python.failure import Failure

        from kclient.config import ProducerConfig
        from kclient.errors import KafkaError
        from kclient.producer.producer import Producer

        values = settings.client(ProducerConfig)
        values.update({name: value for name, value in extra.items() if value is not None})
        limit = int(settings.timeout * 1000)
        values.setdefault("delivery.timeout.ms", limit)
        values.setdefault("max.block.ms", limit)
        failures: list[KafkaError] = []
        sent = 0

        def note_failure(failure: Failure) -> None:
            if not isinstance(failure.value, KafkaError):
                failure.raiseException()
            failures.append(failure.value)

        delimiter = None if key_delimiter is None else unescaped(key_delimiter)

        def read(piece: bytes) -> _Input:
            if kind == "raw":
                return _Input(_encode(key), piece, fixed)
            if kind == "json":
                return _from_json(piece, sent + 1, fixed)
            if line_template is not None:
                return _from_template(line_template(piece), _encode(key), null, fixed)
            return _from_line(piece, _encode(key), delimiter, null, fixed)

        producer: Producer[Any, Any] = Producer(values, reactor=reactor)
        pieces = LineBatches(reactor, paths or ("-",), whole_files=kind == "raw")
        async with producer:
            async for each in (read(line) async for lines in pieces for line in lines):
                await producer.ready(len(each.value or b"") + len(each.key or b""))
                sending = producer.send(
                    topic,
                    each.value,
                    each.key,
                    headers=each.headers,
                    partition=partition if each.partition is None else each.partition,
                    timestamp_ms=each.timestamp_ms,
                )
                sending.addErrback(note_failure)
                sent += 1
            await producer.flush()
        for problem in failures[:3]:
            print_message(f"kclient: {problem}")
        if not settings.quiet:
            print_message(f"{sent - len(failures)} of {sent} records delivered to {topic}")
        return FAILED if failures else 0

    run(main)


def _from_json(line: bytes, number: int, headers: list[tuple[str, bytes | None]]) -> _Input:
    try:
        key, value, own, timestamp = from_envelope(line.decode())
    except ValueError as problem:
        raise ValueError(f"record {number}: {problem}") from problem
    return _Input(key, value, own + headers, timestamp)


def _from_line(
    line: bytes,
    key: bytes | None,
    delimiter: bytes | None,
    null: bool,
    headers: list[tuple[str, bytes | None]],
) -> _Input:
    value = line
    if delimiter is not None:
        before, given, after = line.partition(delimiter)
        if given:
            key, value = before, after
    return _Input(key, None if null and not value else value, headers)


def _from_template(
    line: Line,
    key: bytes | None,
    null: bool,
    headers: list[tuple[str, bytes | None]],
) -> _Input:
    return _Input(
        key if line.key is None else line.key,
        None if null and not line.value else line.value,
        headers,
        line.timestamp_ms,
        line.partition,
    )


def _encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
