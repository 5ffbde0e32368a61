"""Converts the arguments of `send` to a row for the accumulator: serialized, checked, with a timestamp."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import time_ns
from typing import Any, Final

from kclient.errors import SerializationError
from kclient.producer.batch import Row
from kclient.types import Headers
from kclient.wire.errors import KafkaError

Serialized = bytes | str | None
Serializer = Callable[[Any], Serialized]
HeadersGiven = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None] | None

_NO_HEADERS: Final[Headers] = ()
_now: Final = time_ns


class RecordSerializer:
    """Serializes the records of one producer."""

    def __init__(self, key_serializer: Serializer | None, value_serializer: Serializer | None):
        for name, given in (("key", key_serializer), ("value", value_serializer)):
            if given is not None and not callable(given):
                raise TypeError(f"{name}_serializer={given!r} is no function that returns bytes")
        self.has_serializer = key_serializer is not None or value_serializer is not None
        self._key = key_serializer
        self._value = value_serializer

    def row(
        self, topic: Any, value: Any, key: Any, headers: HeadersGiven, timestamp_ms: Any
    ) -> Row:
        """Return a serialized record; raise `SerializationError` for what a batch cannot have.

        One invalid record in a batch would fail the others.
        """
        if self._key is not None:
            key = _serialized(self._key, key, topic, "key")
        elif key is not None and not isinstance(key, bytes):
            key = as_bytes(key, topic, "key")
        if self._value is not None:
            value = _serialized(self._value, value, topic, "value")
        elif value is not None and not isinstance(value, bytes):
            value = as_bytes(value, topic, "value")
        own = checked_headers(headers, topic) if headers else _NO_HEADERS
        timestamp = _now() // 1_000_000 if timestamp_ms is None else _checked(timestamp_ms, topic)
        return 0, timestamp, key, value, own


def _serialized(serializer: Serializer, data: Any, topic: str, what: str) -> bytes | None:
    if data is None:
        return None  # A record without a key, or a tombstone: json.dumps would make it the text "null".
    try:
        made = serializer(data)
    except KafkaError:
        raise
    except Exception as problem:
        raise SerializationError(
            f"{what} for topic {topic!r} cannot be serialized: {problem}"
        ) from problem
    return made if made is None or type(made) is bytes else as_bytes(made, topic, what)


def as_bytes(data: Any, topic: str, what: str) -> bytes:
    """Return *data*, text as UTF-8; raise `SerializationError` for another type."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise SerializationError(
        f"{what} for topic {topic!r} is of type {type(data).__name__}: give bytes, str or None"
        + ("" if what == "header" else f", or a {what}_serializer")
    )


def _checked(timestamp_ms: object, topic: str) -> int:
    if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms < 1 << 63:
        raise SerializationError(
            f"timestamp_ms={timestamp_ms!r} for topic {topic!r} is no time: "
            "it must be an int, in milliseconds since the epoch"
        )
    return timestamp_ms


def checked_headers(headers: HeadersGiven, topic: str) -> Headers:
    """Return *headers* as pairs of a name and bytes."""
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers or ()
    checked: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        try:
            name, content = pair
        except (TypeError, ValueError):
            raise SerializationError(
                f"header {pair!r} for topic {topic!r} is no pair of a name and bytes"
            ) from None
        if not isinstance(name, str):
            raise SerializationError(f"header names are str, not {type(name).__name__} ({topic})")
        if content is not None and not isinstance(content, bytes):
            content = as_bytes(content, topic, "header")
        checked.append((name, content))
    return checked
