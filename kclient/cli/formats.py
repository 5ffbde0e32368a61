r"""Records as text: %-escapes (as in kcat and rpk), a lossless JSON envelope, and CSV.

    %t topic   %p partition   %o offset   %k key   %K key size   %v or %s value   %V or %S value size
    %d timestamp (ms)   %h headers as k=v   %H header count   %e leader epoch   %%   and \n \t \xHH
    modifiers: %k{hex} %v{base64} %d{%Y-%m-%d}

Headers are a list in the envelope, not a map, because Kafka keeps their order and repeated names. CSV has the fields of
the envelope without the sizes, and headers as of %h; the encoding of an absent key or value is null.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kclient.cli.output import csv_lines
from kclient.types import AnyRecord

Formatter = Callable[[AnyRecord], bytes]
_ESCAPE = re.compile(r"%(?:(%)|([a-zA-Z])(?:\{([^}]*)\})?)")


def formatter(template: str) -> Formatter:
    """Return a function that formats a record by *template*; raise ValueError for an unknown escape."""
    if template == "json":
        return lambda record: (
            json.dumps(envelope(record), ensure_ascii=False, default=str) + "\n"
        ).encode()
    if template == "csv":
        return lambda record: csv_lines([_csv_cells(record)]).encode()
    if template == "raw":
        return lambda record: _raw(record.value)
    pieces: list[Callable[[AnyRecord], bytes]] = []
    last = 0
    for match in _ESCAPE.finditer(template):
        pieces.append(_literal(template[last : match.start()]))
        pieces.append(_literal("%") if match[1] else _field(match[2], match[3]))
        last = match.end()
    pieces.append(_literal(template[last:]))
    return lambda record: b"".join([piece(record) for piece in pieces])


_CSV_COLUMNS = (
    *("topic", "partition", "offset", "timestamp", "key", "key_encoding"),
    *("value", "value_encoding", "headers"),
)


def heading(template: str) -> bytes:
    """Return what goes before the first record."""
    return csv_lines([_CSV_COLUMNS]).encode() if template == "csv" else b""


def _csv_cells(record: AnyRecord) -> list[str | int | None]:
    fields = {**envelope(record), "headers": _FIELDS["h"](record)}
    cells = [fields[name] for name in _CSV_COLUMNS]
    return [c if isinstance(c, str | int | None) else json.dumps(c, default=str) for c in cells]


def unescaped(text: str) -> bytes:
    r"""Return *text* as UTF-8 with \n, \t, \r, \0, \\ and \xHH replaced by their bytes."""
    return re.sub(
        rb"\\(n|t|r|0|\\|x[0-9a-fA-F]{2})",
        lambda m: _BACKSLASHED.get(m[1]) or bytes([int(m[1][1:], 16)]),
        text.encode(),
    )


def _literal(text: str) -> Formatter:
    encoded = unescaped(text)
    return lambda _: encoded


_BACKSLASHED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


def _raw(field: Any) -> bytes:
    if field is None:
        return b""
    if isinstance(field, bytes):
        return field
    return (field if isinstance(field, str) else json.dumps(field, default=str)).encode()


_FIELDS: dict[str, Callable[[AnyRecord], Any]] = {
    "t": lambda r: r.topic,
    "p": lambda r: r.partition,
    "o": lambda r: r.offset,
    "k": lambda r: r.key,
    "K": lambda r: r.serialized_key_size,
    "v": lambda r: r.value,
    "s": lambda r: r.value,
    "V": lambda r: r.serialized_value_size,
    "S": lambda r: r.serialized_value_size,
    "d": lambda r: r.timestamp,
    "h": lambda r: ",".join(f"{name}={_text(value)}" for name, value in r.headers),
    "H": lambda r: len(r.headers),
    "e": lambda r: "" if r.leader_epoch is None else r.leader_epoch,
}


def _text(value: bytes | None) -> str:
    return "NULL" if value is None else value.decode(errors="backslashreplace")


def _field(letter: str, modifier: str | None) -> Formatter:
    get = _FIELDS.get(letter)
    if get is None:
        raise ValueError(
            f"%{letter} is not a field; the fields are {', '.join('%' + f for f in _FIELDS)}"
        )
    if not modifier:
        return lambda record: _raw(get(record)) if letter in "kvs" else str(get(record)).encode()
    if modifier == "hex":
        return lambda record: binascii.hexlify(_raw(get(record)))
    if modifier == "base64":
        return lambda record: base64.b64encode(_raw(get(record)))
    if letter == "d":
        return lambda record: (
            datetime.fromtimestamp(record.timestamp / 1000, tz=UTC).strftime(modifier).encode()
        )
    raise ValueError(f"%{letter}{{{modifier}}}: expected hex or base64, or a time format after %d")


def envelope(record: AnyRecord) -> dict[str, Any]:
    """Return a record as JSON-ready values; `from_envelope` is its inverse."""
    key, key_encoding = encoded(record.key)
    value, value_encoding = encoded(record.value)
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
        "leader_epoch": record.leader_epoch,
        "key": key,
        "key_encoding": key_encoding,
        "value": value,
        "value_encoding": value_encoding,
        "headers": [[name, *encoded(content)] for name, content in record.headers],
        "key_size": record.serialized_key_size,
        "value_size": record.serialized_value_size,
    }


def from_envelope(
    line: str,
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int | None]:
    """Return (key, value, headers, timestamp) of one line of `envelope`; raise ValueError if it is invalid."""
    try:
        read = json.loads(line)
        headers = [(name, _decoded(text, how)) for name, text, how in read.get("headers", [])]
        return (
            _decoded(read.get("key"), read.get("key_encoding", "utf8")),
            _decoded(read.get("value"), read.get("value_encoding", "utf8")),
            headers,
            read.get("timestamp"),
        )
    except (ValueError, TypeError, AttributeError) as problem:
        raise ValueError(f"not a record in JSON: {problem}: {line[:80]!r}") from problem


def encoded(field: Any) -> tuple[Any, str]:
    """Return key, value or header content as JSON-ready value, and its encoding."""
    if field is None:
        return None, "null"
    if not isinstance(field, bytes):
        return field, "deserialized"
    try:
        return field.decode(), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(field).decode(), "base64"


def _decoded(text: Any, how: str) -> bytes | None:
    if text is None or how == "null":
        return None
    if how == "base64":
        return base64.b64decode(text, validate=True)
    return text.encode() if isinstance(text, str) else json.dumps(text).encode()
