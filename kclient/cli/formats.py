r"""Records as text: %-escapes (as in kcat and rpk), a lossless JSON envelope, and CSV.

    %t topic   %p partition   %o offset   %k key   %K key size   %v or %s value   %V or %S value size
    %d or %T timestamp (ms)   %h headers as k=v   %H header count   %e leader epoch   %%   and \n \t \xHH
    %R value size as four bytes, big-endian (-1 for null), as in kcat

Modifiers: {hex}, {base64}, {json} (a JSON value) and {unpack[>I]} (numbers, as of Python's struct, ? and hexadecimal if
the bytes do not fit) of each field; %d{strftime[%Y-%m-%d]} or %d{%Y-%m-%d}, in UTC, and so for %T; %h{%k=%v{hex} } with
%k and %v of each header.

Headers are a list in the envelope, not a map, because Kafka keeps their order and repeated names. CSV has the fields of
the envelope without the sizes, and headers as of %h; the encoding of an absent key or value is null.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kclient.cli.output import csv_lines
from kclient.types import AnyRecord

Formatter = Callable[[Any], bytes]
_Get = Callable[[Any], Any]

NO_TEMPLATE = ("json", "csv", "raw", "value")
"""Forms of records that are no template."""


def formatter(template: str, *, meta_only: bool = False) -> Formatter:
    """Return a function that formats a record by *template*; raise ValueError for an unknown escape.

    With *meta_only* the value is left out, which only the JSON envelope can do.
    """
    if meta_only and template != "json":
        raise ValueError(
            "--meta-only leaves values out of JSON; another format names what it prints"
        )
    if template == "json":
        return lambda record: (
            json.dumps(envelope(record, meta_only=meta_only), ensure_ascii=False, default=str)
            + "\n"
        ).encode()
    if template == "csv":
        return lambda record: csv_lines([_csv_cells(record)]).encode()
    if template == "raw":
        return lambda record: _raw(record.value)
    if template == "value":
        return lambda record: _raw(record.value) + b"\n"
    return _template(template, _FIELDS)


def value_end(template: str) -> bytes | None:
    """Return what follows each value if *template* prints values alone, None if it prints anything else."""
    if template in NO_TEMPLATE:
        return {"raw": b"", "value": b"\n"}.get(template)
    only_value = re.fullmatch(r"%[vs]([^%{]*)", template)
    return None if only_value is None else unescaped(only_value[1])


def joined(records: Sequence[Any], write: Formatter, end: bytes | None) -> bytes:
    """Return *records* as *write* formats them; *end* is `value_end` of its template, and saves the calls."""
    if end is not None and records:
        try:
            return b"".join([end.join([record.value for record in records]), end])
        except TypeError:  # a null or an object is among them
            pass
    return b"".join([write(record) for record in records])


def place_formatter(template: str) -> Formatter:
    """Return a function that formats the place of a delivered record: %t, %p, %o, %d and %T."""
    return _template(template, {letter: _FIELDS[letter] for letter in "tpodT"})


def _template(template: str, fields: Mapping[str, _Get]) -> Formatter:
    pieces = [
        _field(*piece, fields) if isinstance(piece, tuple) else _literal(piece)
        for piece in _pieces(template)
    ]
    return lambda record: b"".join([piece(record) for piece in pieces])


def _pieces(template: str) -> Iterator[str | tuple[str, str]]:
    """Yield literals, and fields as (letter, modifier)."""
    last = at = 0
    while (at := template.find("%", at)) >= 0:
        letter = template[at + 1 : at + 2]
        if letter != "%" and not (letter.isascii() and letter.isalpha()):
            at += 1
            continue
        yield template[last:at]
        at += 2
        modifier = ""
        if letter != "%" and template[at : at + 1] == "{":
            end = _closing(template, at)
            modifier = template[at + 1 : end]
            at = end + 1
        yield "%" if letter == "%" else (letter, modifier)
        last = at
    yield template[last:]


def _closing(template: str, start: int) -> int:
    """Return the position of the brace that closes the one at *start*."""
    depth = 0
    for at in range(start, len(template)):
        depth += {"{": 1, "}": -1}.get(template[at], 0)
        if not depth:
            return at
    raise ValueError(f"%{template[start - 1 :]}: the brace is not closed")


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
    if isinstance(field, bytes):
        return field
    if field is None:
        return b""
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
    "R": lambda r: struct.pack(">i", r.serialized_value_size),
    "d": lambda r: r.timestamp,
    "T": lambda r: r.timestamp,
    "h": lambda r: ",".join(f"{name}={_text(value)}" for name, value in r.headers),
    "H": lambda r: len(r.headers),
    "e": lambda r: "" if r.leader_epoch is None else r.leader_epoch,
}


def _text(value: bytes | None) -> str:
    return "NULL" if value is None else value.decode(errors="backslashreplace")


class _Header(NamedTuple):
    """A header, for the template in %h{...}."""

    key: str
    value: bytes | None


_HEADER_FIELDS: dict[str, _Get] = {"k": lambda h: h.key, "v": lambda h: h.value}
_OPTION = re.compile(r"(unpack|strftime)\[(.*)\]", re.DOTALL)


def _field(letter: str, modifier: str, fields: Mapping[str, _Get]) -> Formatter:
    get = fields.get(letter)
    if get is None:
        raise ValueError(
            f"%{letter} is not a field; the fields are {', '.join('%' + f for f in fields)}"
        )
    option = _OPTION.fullmatch(modifier)
    if not modifier:
        if letter in "kvsR":
            return lambda record: _raw(get(record))
        return lambda record: str(get(record)).encode()
    if modifier == "hex":
        return lambda record: binascii.hexlify(_raw(get(record)))
    if modifier == "base64":
        return lambda record: base64.b64encode(_raw(get(record)))
    if modifier == "json":
        if letter == "h":
            return lambda record: _json([[name, content] for name, content in record.headers])
        return lambda record: _json(get(record))
    if option is not None and option[1] == "unpack":
        return _unpacked(get, option[2])
    if letter in "dT":
        form = option[2] if option is not None else modifier
        return lambda record: (
            datetime.fromtimestamp(record.timestamp / 1000, tz=UTC).strftime(form).encode()
        )
    if letter == "h" and "%" in modifier:
        each = _template(modifier, _HEADER_FIELDS)
        return lambda record: b"".join([each(_Header(*header)) for header in record.headers])
    raise ValueError(
        f"%{letter}{{{modifier}}}: expected hex, base64, json or unpack[>I],"
        " or a time format after %d, or a template after %h"
    )


def _json(content: Any) -> bytes:
    r"""Return *content* as JSON; of bytes that are no UTF-8, each is \xHH in the text."""

    def text(value: Any) -> Any:
        return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)

    return json.dumps(content, default=text, ensure_ascii=False).encode()


def _unpacked(get: _Get, form: str) -> Formatter:
    try:
        size = struct.calcsize(form)
    except struct.error as problem:
        raise ValueError(f"%...{{unpack[{form}]}}: {problem}; expected such as >I or >hq") from None

    def written(record: Any) -> bytes:
        content = _raw(get(record))
        if len(content) != size:
            return b"?" + binascii.hexlify(content)
        return " ".join(map(str, struct.unpack(form, content))).encode()

    return written


def envelope(record: AnyRecord, *, meta_only: bool = False) -> dict[str, Any]:
    """Return a record as JSON-ready values; `from_envelope` is its inverse. With *meta_only* there is no value."""
    key, key_encoding = encoded(record.key)
    value, value_encoding = encoded(record.value)
    fields = {
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
    if meta_only:
        del fields["value"], fields["value_encoding"]
    return fields


_ENVELOPE = frozenset(
    [
        *("topic", "partition", "offset", "timestamp", "timestamp_type", "leader_epoch"),
        *("key", "key_encoding", "value", "value_encoding", "headers", "key_size", "value_size"),
        *("control", "coordinator_epoch"),
    ]
)
"""The names of an envelope; the last two are of `kclient consume --print-control`."""
_CONTENT = frozenset(["key", "value", "headers"])
_OTHER_INPUT = (
    "a record has its content in key and value;"
    " --input lines takes each line, JSON too, as a value as it is"
)


def from_envelope(
    line: str,
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int | None]:
    """Return (key, value, headers, timestamp) of one line of `envelope`; raise ValueError if it is invalid.

    Objects of others are invalid: without the names of an envelope, they would be records without a value.
    """
    try:
        read = json.loads(line)
        if not isinstance(read, dict):
            raise ValueError(f"no JSON object: {_OTHER_INPUT}")
        if unknown := [name for name in read if name not in _ENVELOPE]:
            raise ValueError(f"unknown name {unknown[0]!r}: {_OTHER_INPUT}")
        if read and not _CONTENT.intersection(read):
            raise ValueError(f"neither key nor value: {_OTHER_INPUT}")
        if read.get("control"):
            raise ValueError(f"a control record ({read['control']}), which only brokers write")
        if "value" not in read and read.get("value_size", -1) >= 0:
            raise ValueError("it has no value (--meta-only)")
        headers = [
            (name, _decoded(text, how, "headers")) for name, text, how in read.get("headers", [])
        ]
        return (
            _decoded(read.get("key"), read.get("key_encoding", "utf8"), "key_encoding"),
            _decoded(read.get("value"), read.get("value_encoding", "utf8"), "value_encoding"),
            headers,
            read.get("timestamp"),
        )
    except (ValueError, TypeError) as problem:
        raise ValueError(f"not a record in JSON: {problem}: {line[:80]!r}") from problem


_ENCODINGS = ("utf8", "base64", "deserialized", "null")


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


def _decoded(text: Any, how: Any, name: str) -> bytes | None:
    if how not in _ENCODINGS:
        raise ValueError(f"{name}: {how!r} is none of {', '.join(_ENCODINGS)}")
    if text is None or how == "null":
        return None
    if how == "base64":
        return base64.b64decode(text, validate=True)
    return text.encode() if isinstance(text, str) else json.dumps(text).encode()
