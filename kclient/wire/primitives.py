"""Varints and tagged-field sections (KIP-482): the parts of the wire that have no fixed size."""

from kclient.wire.errors import MalformedMessage, TooManyElements

Buffer = bytes | memoryview

MAX_ERROR_TEXT = 1024
"""Bytes of an error text in a response; a longer one is cut."""


def malformed(where: str, what: str) -> MalformedMessage:
    """Return the error about *where*, a struct's field."""
    return MalformedMessage(f"{where}: {what}")


def too_many(where: str, left: list[int]) -> TooManyElements:
    """Return the error about *where*, which holds more elements than are left of those allowed."""
    return TooManyElements(f"{where}: the message has more than {left[1]} elements", left[1])


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes; return it and the position after it."""
    value = buf[pos]
    pos += 1
    return (value, pos) if value < 0x80 else uvarint_tail(buf, pos, value)


def uvarint_tail(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Go on after a *first* byte with its high bit set."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, pos
    raise MalformedMessage("a varint of more than 32 bits")


def write_uvarint(out: bytearray, value: int) -> None:
    """Append *value* (>= 0) as an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def skip_tags(buf: Buffer, pos: int, end: int, left: list[int]) -> int:
    """Pass over a tagged-field section none of whose tags is known; return the position after.

    Each field is one of the elements of *left* (still allowed, allowed).
    """
    count, pos = read_uvarint(buf, pos)
    left[0] -= count
    if left[0] < 0:
        raise too_many("tagged fields", left)
    previous = -1
    for _ in range(count):
        tag, _start, pos = next_tag(buf, pos, end, previous)
        previous = tag
    return pos


def next_tag(buf: Buffer, pos: int, end: int, previous: int) -> tuple[int, int, int]:
    """Read one tag's head: (tag, where its value starts, where it stops). Tags must ascend."""
    tag, pos = read_uvarint(buf, pos)
    size, pos = read_uvarint(buf, pos)
    if tag <= previous:
        raise MalformedMessage(f"tag {tag} after tag {previous}")
    if size > end - pos:
        raise MalformedMessage(f"tag {tag} of {size} bytes with {end - pos} left")
    return tag, pos, pos + size


def error_text(text: str) -> bytes:
    """Encode an error text: at most `MAX_ERROR_TEXT` bytes, and whatever it quotes can be written."""
    data = text[: MAX_ERROR_TEXT + 1].encode(errors="backslashreplace")
    if len(data) <= MAX_ERROR_TEXT:
        return data
    return data[: MAX_ERROR_TEXT - 3].decode(errors="ignore").encode() + b"..."
