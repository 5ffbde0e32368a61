"""The fields of Produce and Fetch, read and written by hand: strings, arrays, records, tags, headers.

Readers take (buffer, position) and return (value, next position). They compare lengths and counts with the remaining
bytes before they allocate. They raise MalformedMessage; past the end of the buffer also IndexError and struct.error,
which `decodes` converts to MalformedMessage. KIP-482 describes the compact (flexible) forms and tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Final, ParamSpec, TypeVar
from uuid import UUID

from kclient.wire.errors import MalformedMessage, TooManyElements
from kclient.wire.primitives import error_text, next_tag, read_uvarint

P = ParamSpec("P")
T = TypeVar("T")

I16 = struct.Struct(">h")
I32 = struct.Struct(">i")

NO_TAGS: Final = b"\x00"
MAX_STRING: Final = 0x7FFF
"""Bytes of a string, also in compact form: the limit of Kafka's readers."""
MAX_ENTRIES: Final = 200_000
"""Topics and partitions that a reader accepts without a limit of its caller."""
MAX_TAGS: Final = 16
"""Tagged fields of one section: Kafka defines up to three."""

_SMALL_UVARINTS = tuple(
    bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(1 << 9)
)
_ZERO_UUID = bytes(16)


def decodes(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a decoder raise MalformedMessage naming *what* for any error of reading past the end."""

    def decorate(decode: Callable[P, T]) -> Callable[P, T]:
        @wraps(decode)
        def decode_or_refuse(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return decode(*args, **kwargs)
            except TooManyElements:
                raise
            except MalformedMessage as problem:
                raise MalformedMessage(f"{what}: {problem.message}") from None
            except (IndexError, struct.error, UnicodeDecodeError) as problem:
                raise MalformedMessage(f"{what} is truncated or malformed: {problem}") from problem

        return decode_or_refuse

    return decorate


def read_string(buf: memoryview, pos: int, flexible: bool) -> tuple[str, int]:
    """Read a STRING or COMPACT_STRING, which must not be null."""
    text, pos = read_nullable_string(buf, pos, flexible)
    if text is None:
        raise MalformedMessage("a non-nullable string is null")
    return text, pos


def read_nullable_string(buf: memoryview, pos: int, flexible: bool) -> tuple[str | None, int]:
    """Read a NULLABLE_STRING or COMPACT_NULLABLE_STRING."""
    if flexible:
        length, pos = read_uvarint(buf, pos)
        length -= 1
        if length > MAX_STRING:
            raise MalformedMessage(f"string of {length} bytes, the limit is {MAX_STRING}")
    else:
        (length,) = I16.unpack_from(buf, pos)
        pos += 2
    if length < 0:
        if length != -1:
            raise MalformedMessage(f"string length {length} is negative")
        return None, pos
    end = pos + length
    if end > len(buf):
        raise MalformedMessage(f"string of {length} bytes with {len(buf) - pos} bytes left")
    return str(buf[pos:end], "utf-8"), end


def read_count(
    buf: memoryview, pos: int, flexible: bool, smallest: int, nullable: bool = False
) -> tuple[int, int]:
    """Read an array's length, of elements of at least *smallest* bytes. A null array is -1."""
    if flexible:
        count, pos = read_uvarint(buf, pos)
        count -= 1
    else:
        (count,) = I32.unpack_from(buf, pos)
        pos += 4
    if count * smallest > len(buf) - pos or count > MAX_ENTRIES or count < -nullable:
        raise MalformedMessage(f"array of {count} elements with {len(buf) - pos} bytes left")
    return count, pos


def spend(left: list[int], elements: int) -> None:
    """Subtract *elements* from the message's allowance: *left* is [remaining, allowed]."""
    left[0] -= elements
    if left[0] < 0:
        raise TooManyElements(f"more than {left[1]} topics and partitions", left[1])


def read_records(buf: memoryview, pos: int, flexible: bool) -> tuple[memoryview | None, int]:
    """Read RECORDS or COMPACT_RECORDS as a view into *buf*, without a copy."""
    if flexible:
        length, pos = read_uvarint(buf, pos)
        length -= 1
    else:
        (length,) = I32.unpack_from(buf, pos)
        pos += 4
    if length < 0:
        if length != -1:
            raise MalformedMessage(f"records length {length} is negative")
        return None, pos
    end = pos + length
    if end > len(buf):
        raise MalformedMessage(f"records of {length} bytes with {len(buf) - pos} bytes left")
    return buf[pos:end], end


def read_tags(buf: memoryview, pos: int) -> tuple[list[tuple[int, memoryview]], int]:
    """Read a tagged field section as (tag, bytes); the caller skips unknown tags."""
    number, pos = read_uvarint(buf, pos)
    if number > MAX_TAGS:
        raise TooManyElements(f"{number} tagged fields in one section", MAX_TAGS)
    found: list[tuple[int, memoryview]] = []
    previous = -1
    for _ in range(number):
        previous, start, pos = next_tag(buf, pos, len(buf), previous)
        found.append((previous, buf[start:pos]))
    return found, pos


def skip_tags(buf: memoryview, pos: int) -> int:
    """Return the position after a tagged field section without known tags."""
    if buf[pos] == 0:
        return pos + 1
    return read_tags(buf, pos)[1]


def read_uuid(buf: memoryview, pos: int) -> tuple[UUID | None, int]:
    """Read a UUID; the zero UUID means none."""
    raw = bytes(buf[pos : pos + 16])
    if len(raw) != 16:
        raise MalformedMessage("UUID is truncated")
    return _uuid(raw), pos + 16


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> UUID | None:
    return None if raw == _ZERO_UUID else UUID(bytes=raw)


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 1 << 9:
        return _SMALL_UVARINTS[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str | None, flexible: bool) -> bytes:
    """Encode a string in either form; None is null."""
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    raw = text.encode()
    return (uvarint(len(raw) + 1) if flexible else I16.pack(len(raw))) + raw


def nullable_error_text(text: str | None, flexible: bool) -> bytes:
    """Encode an error text in either form, truncated if it is too long; None is null."""
    if text is None:
        return string(None, flexible)
    raw = error_text(text)
    return (uvarint(len(raw) + 1) if flexible else I16.pack(len(raw))) + raw


def count(length: int, flexible: bool) -> bytes:
    """Encode an array's length; -1 is a null array."""
    return uvarint(length + 1) if flexible else I32.pack(length)


def uuid(value: UUID | None) -> bytes:
    """Encode a UUID; None is the zero UUID."""
    return _ZERO_UUID if value is None else value.bytes


def tags(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode a tagged field section; *fields* are in ascending order of tag."""
    if not fields:
        return NO_TAGS
    parts = [uvarint(len(fields))]
    for tag, data in fields:
        parts += (uvarint(tag), uvarint(len(data)), data)
    return b"".join(parts)


def request_header(
    api_key: int, version: int, flexible: bool, correlation_id: int, client_id: str | None
) -> bytes:
    """Encode request header v1, or v2 for flexible versions (with the old string form)."""
    head = struct.pack(">hhi", api_key, version, correlation_id) + string(client_id, False)
    return head + NO_TAGS if flexible else head


def read_response_header(buf: memoryview, flexible: bool) -> tuple[int, int]:
    """Read response header v0, or v1 for flexible versions; return (correlation id, body position)."""
    (correlation_id,) = I32.unpack_from(buf, 0)
    return correlation_id, skip_tags(buf, 4) if flexible else 4
