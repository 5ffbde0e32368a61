"""Varints and tagged-field sections (KIP-482): the encodings of variable size."""

from kclient.wire.errors import MalformedMessage, TooManyElements

Buffer = bytes | memoryview

MAX_ERROR_TEXT = 1024
"""Bytes of an error text in a response; a longer one is truncated."""


def malformed(where: str, what: str) -> MalformedMessage:
    """Return the MalformedMessage for *where*, a struct's field."""
    return MalformedMessage(f"{where}: {what}")


def too_many(where: str, left: list[int]) -> TooManyElements:
    """Return the TooManyElements for *where*, which exceeds the message's remaining allowance."""
    return TooManyElements(f"{where}: the message has more than {left[1]} elements", left[1])


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes; return it and the position after it."""
    value = buf[pos]
    pos += 1
    return (value, pos) if value < 0x80 else uvarint_tail(buf, pos, value)


def uvarint_tail(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Continue after a *first* byte with its high bit set."""
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
    """Skip a tagged-field section without known tags; return the position after it.

    Each field counts as one of the elements of *left*, [remaining, allowed].
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
    """Read one tag's header: (tag, start of its value, end of its value). Tags must ascend."""
    tag, pos = read_uvarint(buf, pos)
    size, pos = read_uvarint(buf, pos)
    if tag <= previous:
        raise MalformedMessage(f"tag {tag} after tag {previous}")
    if size > end - pos:
        raise MalformedMessage(f"tag {tag} of {size} bytes with {end - pos} left")
    return tag, pos, pos + size


def error_text(text: str) -> bytes:
    """Encode an error text: at most `MAX_ERROR_TEXT` bytes, with unencodable characters replaced."""
    data = text[: MAX_ERROR_TEXT + 1].encode(errors="backslashreplace")
    if len(data) <= MAX_ERROR_TEXT:
        return data
    return data[: MAX_ERROR_TEXT - 3].decode(errors="ignore").encode() + b"..."
