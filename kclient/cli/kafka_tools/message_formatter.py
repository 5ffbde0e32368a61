"""The lines of kafka-console-consumer: its DefaultMessageFormatter, with the deserializers of Kafka. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from kclient.cli.kafka_tools import java_numbers

_TOOLS = ("org.apache.kafka.tools.consumer.", "kafka.tools.")
_DEFAULT, _LOGGING, _NOTHING = (
    "DefaultMessageFormatter",
    "LoggingMessageFormatter",
    "NoOpMessageFormatter",
)
_SERIALIZATION = "org.apache.kafka.common.serialization."
_FLAGS = (
    "print.timestamp",
    "print.key",
    "print.offset",
    "print.partition",
    "print.headers",
    "print.value",
)
_TEXTS = {
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
_DESERIALIZERS = ("key.deserializer", "value.deserializer", "headers.deserializer")
_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")

Decode = Callable[[bytes], bytes]
Format = Callable[[Any], bytes]
"""Record -> what is printed."""


class FormatterError(ValueError):
    """A formatter, or a property of one, that is not supported."""


def _text(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode()


def _numbers(code: str, show: Callable[[Any], str]) -> Decode:
    size = struct.calcsize(code)

    def decode(data: bytes) -> bytes:
        if len(data) != size:
            raise ValueError(f"Size of data received is not {size}")
        return show(struct.unpack(code, data)[0]).encode()

    return decode


DESERIALIZERS: Mapping[str, Decode] = {
    "StringDeserializer": _text,
    "IntegerDeserializer": _numbers(">i", str),
    "LongDeserializer": _numbers(">q", str),
    "ShortDeserializer": _numbers(">h", str),
    "DoubleDeserializer": _numbers(">d", java_numbers.double),
    "BooleanDeserializer": _numbers(">?", lambda value: str(value).lower()),
    "UUIDDeserializer": lambda data: str(UUID(data.decode())).encode(),
}
"""Deserializers of Kafka that have the same text here."""


def formatter(name: str, properties: Mapping[str, str]) -> Format:
    """Return the formatter with the class *name*; raise `FormatterError`."""
    simple = next((name.removeprefix(p) for p in _TOOLS if name.startswith(p)), name)
    if simple == _NOTHING:
        return lambda _record: b""
    if simple not in (_DEFAULT, _LOGGING):
        raise FormatterError(
            f"--formatter {name} is not supported: kclient cannot load Java classes, and has {_DEFAULT}, {_LOGGING} "
            f"and {_NOTHING}"
        )
    unknown = sorted(properties.keys() - {*_FLAGS, *_TEXTS, *_DESERIALIZERS})
    if unknown:
        raise FormatterError(
            f"property {unknown[0]} is not supported: {_DEFAULT} has {', '.join((*_FLAGS, *_TEXTS, *_DESERIALIZERS))}"
        )
    return _default(properties)


def _deserializer(properties: Mapping[str, str], name: str) -> Decode | None:
    given = properties.get(name)
    if not given:
        return None
    simple = given.removeprefix(_SERIALIZATION)
    if simple not in DESERIALIZERS:
        raise FormatterError(
            f"{name}={given} is not supported: kclient cannot load Java classes, and has {', '.join(DESERIALIZERS)} of "
            f"{_SERIALIZATION.rstrip('.')}"
        )
    return DESERIALIZERS[simple]


def _default(properties: Mapping[str, str]) -> Format:
    flags = {
        name: properties.get(name, "true" if name == "print.value" else "false").strip().lower()
        == "true"
        for name in _FLAGS
    }
    column, line, between, null = (
        properties.get(name, usual).encode() for name, usual in _TEXTS.items()
    )
    decode_key, decode_value, decode_header = (
        _deserializer(properties, name) for name in _DESERIALIZERS
    )

    def shown(data: bytes | None, decode: Decode | None) -> bytes:
        data = null if data is None else data
        return data if decode is None else decode(data)

    def timestamp(record: Any) -> bytes:
        if record.timestamp_type not in (0, 1) or record.timestamp < 0:
            return b"NO_TIMESTAMP"
        return f"{_TIMESTAMP_TYPES[record.timestamp_type]}:{record.timestamp}".encode()

    def headers(record: Any) -> bytes:
        found = [name.encode() + b":" + shown(data, decode_header) for name, data in record.headers]
        return between.join(found) or b"NO_HEADERS"

    columns: list[Callable[[Any], bytes]] = [
        show
        for name, show in (
            ("print.timestamp", timestamp),
            ("print.partition", lambda record: f"Partition:{record.partition}".encode()),
            ("print.offset", lambda record: f"Offset:{record.offset}".encode()),
            ("print.headers", headers),
            ("print.key", lambda record: shown(record.key, decode_key)),
            ("print.value", lambda record: shown(record.value, decode_value)),
        )
        if flags[name]
    ]
    if not columns:
        return lambda _record: b""
    if len(columns) == 1:
        (only,) = columns
        return lambda record: only(record) + line
    return lambda record: column.join([show(record) for show in columns]) + line
