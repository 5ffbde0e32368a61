"""Two records as text, side by side. Each field that differs is marked by the word DIFFERS.

Equality is decided on the bytes of the logs, never on the text. If two fields differ and their texts are equal (JSON
with other spaces, a cut value), the bytes around the first difference are shown too. Text from a record cannot control
the terminal: characters that are not printable are shown as escapes.

In: `Found` of both sides.  Out: lines.  Pure.
"""

from __future__ import annotations

import difflib
import itertools
import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kclient.wire.batches import BatchInfo
from kclient.wire.compression import Codec
from spark_jobs.stored_record import Absent, Found, Stored, Undecodable

DIFFERS = "DIFFERS"
EQUAL = "equal"
_AROUND = 8
"""Bytes shown before the first byte that differs; three times as many behind it."""
_LABEL = 15
_MOST_LINES = 1000
"""Lines above which equal lines are not searched for: that costs their square."""

Decoder = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Style:
    """How fields are shown: *max_bytes* of each, values decoded by *avro*, lines of *width* columns."""

    max_bytes: int = 1000
    avro: Decoder | None = None
    width: int = 120


@dataclass(frozen=True, slots=True)
class Row:
    """One field: its lines on both sides, and whether the logs differ in it (None: not comparable)."""

    label: str
    left: Sequence[str]
    right: Sequence[str]
    differs: bool | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under a heading."""

    heading: str
    rows: list[Row] = field(default_factory=list)


def printable(text: str) -> str:
    """Return *text* with every character that is not printable, except line ends, as an escape."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def _lines(text: str) -> list[str]:
    return printable(text).split("\n")


def field_lines(data: bytes | None, style: Style, *, avro: bool = False) -> list[str]:
    """Return the kind and size of a key or value, then its content."""
    if data is None:
        return ["null"]
    if not data:
        return ["empty, 0 bytes"]
    size = f"{len(data):,} bytes"
    if avro and style.avro is not None:
        try:
            text = json.dumps(style.avro(data), indent=2, ensure_ascii=False, default=_plain)
        except Exception as problem:  # a decoder of a user's schema may raise anything
            return [*_lines(f"not Avro by this schema: {problem}"), *_raw(data, style)]
        return [f"Avro, {size}", *_cut(text, style)]
    if len(data) <= style.max_bytes and (pretty := _pretty_json(data)) is not None:
        return [f"JSON, {size}", *_lines(pretty)]
    return _raw(data, style)


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _raw(data: bytes, style: Style) -> list[str]:
    """Return *data* as text if it is UTF-8, else as hex."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        part = data[: style.max_bytes]
        return [f"binary, {len(data):,} bytes", part.hex(" "), *_more(len(data) - len(part))]
    if len(data) <= style.max_bytes:
        return [f"text, {len(data):,} bytes", *_lines(text)]
    part = data[: style.max_bytes]
    shown = part.decode(errors="ignore")
    left = len(data) - len(shown.encode())
    return [f"text, {len(data):,} bytes", *_lines(shown), *_more(left)]


def _cut(text: str, style: Style) -> list[str]:
    lines = _lines(text[: style.max_bytes])
    left = len(text) - style.max_bytes
    return [*lines, f"... {left:,} more characters"] if left > 0 else lines


def _more(count: int) -> list[str]:
    return [f"... {count:,} more bytes"] if count > 0 else []


class _NotFaithful(ValueError):
    """The text would not show everything that the JSON has."""


def _pretty_json(data: bytes) -> str | None:
    """Return a JSON object or list indented; None if it is none, or if the text would hide a part of it."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        read = json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_float=_exact_float,
            parse_constant=_refuse,
        )
        return json.dumps(read, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise _NotFaithful("a name occurs twice")
    return dict(pairs)


def _exact_float(text: str) -> float:
    value = float(text)
    if repr(value) != text:
        raise _NotFaithful(f"{text} is not the shortest form of a number")
    return value


def _refuse(text: str) -> float:
    raise _NotFaithful(text)


def header_lines(headers: Sequence[tuple[str, bytes | None]], style: Style) -> list[str]:
    """Return the number of headers, then each in the order of the record."""
    if not headers:
        return ["none"]
    lines = [f"{len(headers)} header{'s' if len(headers) > 1 else ''}"]
    return lines + [f"{_quoted(name)} = {_header_value(value, style)}" for name, value in headers]


def _header_value(value: bytes | None, style: Style) -> str:
    if value is None:
        return "null"
    part = value[: style.max_bytes]
    more = "".join(f" {each}" for each in _more(len(value) - len(part)))
    try:
        value.decode()
    except UnicodeDecodeError:
        return f"hex {part.hex(' ')}{more}"
    return f"{_quoted(part.decode(errors='ignore'))}{more}"


def _quoted(text: str) -> str:
    return printable(json.dumps(text, ensure_ascii=False))


def time_text(ms: int) -> str:
    """Return a timestamp in ms as a number and as UTC."""
    if ms < 0:
        return f"{ms} (none)" if ms == -1 else str(ms)
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    return f"{ms}  {moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def moment_text(ms: int) -> str:
    """Return a timestamp in ms as UTC; as a number if it is no date."""
    return time_text(ms).partition("  ")[2] or str(ms)


def sections(left: Found, right: Found, style: Style) -> list[Section]:
    """Return what both sides hold, field by field."""
    record = Section("record")
    if isinstance(left, Stored) and isinstance(right, Stored):
        record.rows.extend(_record_rows(left, right, style))
    else:
        record.rows.extend(_rows_of_different_kinds(left, right, style))
    batch = Section("batch (not compared by the audit)")
    sides = [None if isinstance(each, Absent) else each for each in (left, right)]
    if any(sides):
        batch.rows.extend(_batch_rows(sides[0], sides[1]))
    return [each for each in (record, batch) if each.rows]


def differing(found: Sequence[Section]) -> list[str]:
    """Return the labels of the compared fields that differ."""
    return [row.label for each in found[:1] for row in each.rows if row.differs]


def _record_rows(left: Stored, right: Stored, style: Style) -> Iterator[Row]:
    yield _row("offset", left.offset, right.offset)
    yield _row(
        "timestamp",
        left.timestamp,
        right.timestamp,
        [time_text(each.timestamp) for each in (left, right)],
    )
    yield _row("timestamp type", *(_timestamp_type(each.batch) for each in (left, right)))
    yield _row("kind", *(_kind(each.batch) for each in (left, right)))
    for label, ours, theirs in (("key", left.key, right.key), ("value", left.value, right.value)):
        here, there = (field_lines(each, style, avro=label == "value") for each in (ours, theirs))
        yield Row(label, here, there, ours != theirs)
        if ours is not None and theirs is not None and ours != theirs:
            yield _first_difference(label, ours, theirs, style, shown=here != there)
    here, there = (header_lines(each.headers, style) for each in (left, right))
    differ = list(left.headers) != list(right.headers)
    yield Row("headers", here, there, differ)
    if differ and here == there:
        note = f"behind the first {style.max_bytes:,} bytes of a value"
        yield Row("headers differ", [note], [note])


def _first_difference(label: str, left: bytes, right: bytes, style: Style, *, shown: bool) -> Row:
    """Return where the bytes differ first, and these bytes if the texts do not show them."""
    pairs = enumerate(zip(left, right, strict=False))
    at = next((n for n, (a, b) in pairs if a != b), min(len(left), len(right)))
    note = f"first at byte {at:,}"
    if shown and at < style.max_bytes:
        return Row(f"{label} differs", [note], [note])
    low, high = max(0, at - _AROUND), at + 3 * _AROUND
    note += f"; bytes {low:,} to {high - 1:,}:"
    return Row(
        f"{label} differs",
        [note, left[low:high].hex(" ") or "(behind the end)"],
        [note, right[low:high].hex(" ") or "(behind the end)"],
    )


def _rows_of_different_kinds(left: Found, right: Found, style: Style) -> Iterator[Row]:
    """Yield the rows of two sides of which at least one holds no record."""
    if not isinstance(left, Stored) and not isinstance(right, Stored):
        yield Row("", _reason(left, style), _reason(right, style))
        return
    stored, other = (left, right) if isinstance(left, Stored) else (right, left)
    assert isinstance(stored, Stored)
    fields = [
        ("offset", [str(stored.offset)]),
        ("timestamp", [time_text(stored.timestamp)]),
        ("timestamp type", [_timestamp_type(stored.batch)]),
        ("kind", [_kind(stored.batch)]),
        ("key", field_lines(stored.key, style)),
        ("value", field_lines(stored.value, style, avro=True)),
        ("headers", header_lines(stored.headers, style)),
    ]
    reason: list[str] = _reason(other, style)
    for label, lines in fields:
        yield Row(label, lines, reason) if stored is left else Row(label, reason, lines)
        reason = []


def _reason(found: Found, style: Style) -> list[str]:
    if isinstance(found, Absent):
        return _lines(found.reason)
    assert isinstance(found, Undecodable)
    part = found.data[: style.max_bytes]
    return [
        *_lines(f"a batch that cannot be decoded: {found.problem}"),
        part.hex(" "),
        *_more(len(found.data) - len(part)),
    ]


def _timestamp_type(batch: BatchInfo) -> str:
    return "LogAppendTime" if batch.log_append_time else "CreateTime"


def _kind(batch: BatchInfo) -> str:
    return "transaction marker" if batch.is_control else "record"


def _row(label: str, left: object, right: object, texts: Sequence[str] | None = None) -> Row:
    ours, theirs = texts or (str(left), str(right))
    return Row(label, [ours], [theirs], left != right)


_BATCH: tuple[tuple[str, Callable[[BatchInfo], object]], ...] = (
    ("base offset", lambda b: b.base_offset),
    ("last offset", lambda b: b.last_offset),
    ("records", lambda b: b.record_count),
    ("bytes", lambda b: b.size),
    ("codec", lambda b: Codec(b.codec).name.lower() if b.codec in set(Codec) else b.codec),
    ("transactional", lambda b: "yes" if b.is_transactional else "no"),
    ("producer id", lambda b: b.producer_id),
    ("producer epoch", lambda b: b.producer_epoch),
    ("base sequence", lambda b: b.base_sequence),
    ("leader epoch", lambda b: b.leader_epoch),
    ("CRC-32C", lambda b: f"{b.crc:#010x}"),
)


def _batch_rows(
    left: Stored | Undecodable | None, right: Stored | Undecodable | None
) -> Iterator[Row]:
    for label, get in _BATCH:
        here, there = ([] if each is None else [str(get(each.batch))] for each in (left, right))
        yield Row(label, here, there, here != there if here and there else None)
    here, there = (
        [] if each is None else _lines(each.crc_problem or "right") for each in (left, right)
    )
    yield Row("CRC check", here, there)


def table(found: Sequence[Section], titles: tuple[str, str], style: Style) -> list[str]:
    """Return *found* as lines: the mark, the field, the left side, the right side."""
    column = max(20, (style.width - len(DIFFERS) - _LABEL - 7) // 2)
    lines = _table_row(Row("", [titles[0]], [titles[1]]), column)
    for section in found:
        lines += ["", section.heading]
        for row in section.rows:
            lines += _table_row(row, column)
    return lines


def _table_row(row: Row, column: int) -> list[str]:
    word = {None: "", True: DIFFERS, False: EQUAL}[row.differs]
    lines: list[str] = []
    for left, right in _paired(row):
        ours, theirs = _wrapped([left], column), _wrapped([right], column)
        mark = "!" if row.differs and left != right else "|"
        for n in range(max(len(ours), len(theirs), 1)):
            texts = [each[n] if n < len(each) else "" for each in (ours, theirs)]
            label = row.label if not lines else ""
            lines.append(
                f"{word if not lines else '':<{len(DIFFERS)}} {label:<{_LABEL}} "
                f"{_padded(texts[0], column)} {mark} {texts[1]}".rstrip()
            )
    return lines


def _paired(row: Row) -> list[tuple[str, str]]:
    """Return the lines of both sides in pairs: equal lines stand beside each other."""
    left, right = list(row.left), list(row.right)
    if max(len(left), len(right)) > _MOST_LINES:
        return list(itertools.zip_longest(left, right, fillvalue=""))
    pairs = []
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for _, i, j, k, m in matcher.get_opcodes():
        for n in range(max(j - i, m - k)):
            pairs.append((left[i + n] if i + n < j else "", right[k + n] if k + n < m else ""))
    return pairs or [("", "")]


def _wrapped(lines: Sequence[str], column: int) -> list[str]:
    """Break *lines* at *column*: after a space in the second half of the part, if it has one."""
    wrapped = []
    for line in lines:
        rest = line
        while (end := _fitting(rest, column)) < len(rest):
            space = rest.rfind(" ", end // 2, end)
            end = space + 1 if space >= 0 else end
            wrapped.append(rest[:end])
            rest = rest[end:]
        wrapped.append(rest)
    return wrapped


def _fitting(text: str, column: int) -> int:
    """Return how many characters of *text* fit in *column* columns."""
    used = 0
    for n, c in enumerate(text):
        used += _columns(c)
        if used > column:
            return n
    return len(text)


def _columns(c: str) -> int:
    if unicodedata.combining(c):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def _padded(text: str, column: int) -> str:
    return text + " " * (column - sum(map(_columns, text)))
