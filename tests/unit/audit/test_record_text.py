"""`kaudit explain` shows two records so that unequal fields never look equal, and text cannot control a terminal."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kclient.wire.batches import parse
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs.record_text import (
    DIFFERS,
    Row,
    Style,
    differing,
    field_lines,
    printable,
    sections,
    table,
)
from spark_jobs.stored_record import Absent, Stored, Undecodable, record_at

STYLE = Style(max_bytes=40)


def stored(record: Record, base: int = 7, **batch: Any) -> Stored:
    data = encode_batch([record], base_offset=base, **batch)
    found = record_at(base, [(parse(data), memoryview(data))])
    assert isinstance(found, Stored)
    return found


def rows(left: Record, right: Record, style: Style = STYLE) -> dict[str, Row]:
    record, _ = sections(stored(left), stored(right), style)
    return {row.label: row for row in record.rows}


VALUES = [
    None,
    b"",
    b"text",
    b"text\x1b[2J",
    b"text\\x1b[2J",
    b"\xff\x00binary",
    b'{"a": 1}',
    b'{"a":1}',
    b'{"a": 1.0}',
    b'{"a": 1.00}',
    b'{"a": 1, "a": 1}',
    b'{"a": NaN}',
    b"[1, 2]",
    b"[" * 5000,
    b"x" * 100,
    b"x" * 99 + b"y",
    b"x" * 101,
    "zwölf".encode() * 20,
    b"a\nb",
    b"a b",
]


@pytest.mark.parametrize("part", ["key", "value", "headers"])
def test_fields_look_different_exactly_when_their_bytes_differ(part: str) -> None:
    for left in VALUES:
        for right in VALUES:
            if part == "headers":
                pair = [Record(0, 1, None, None, [("h", each)]) for each in (left, right)]
            else:
                pair = [Record(0, 1, None, None)._replace(**{part: each}) for each in (left, right)]
            found = rows(*pair)
            row, note = (
                found[part],
                found.get("headers differ" if part == "headers" else f"{part} differs"),
            )
            seen = list(row.left), list(note.left) if note else []
            other = list(row.right), list(note.right) if note else []
            assert row.differs is (left != right)
            if part == "headers" and note:
                assert "behind the first 40 bytes" in note.left[0]
            else:
                assert (seen != other) is (left != right), (left, right)


@pytest.mark.parametrize("seed", range(20))
def test_random_fields_look_different_exactly_when_their_bytes_differ(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        left = bytes(rng.choices(b'{}":1a \n\x1b\xff\\', k=rng.randrange(1, 90)))
        changed = bytearray(left)
        changed[rng.randrange(len(left))] ^= rng.choice([0, 1, 32])
        found = rows(Record(0, 1, None, left), Record(0, 1, None, bytes(changed)))
        note = found.get("value differs")
        seen = list(found["value"].left) + (list(note.left) if note else [])
        other = list(found["value"].right) + (list(note.right) if note else [])
        assert (seen != other) is (left != bytes(changed))


def test_each_part_that_differs_is_marked_by_a_word() -> None:
    left = Record(0, 1_700_000_000_000, b"k", b"v", [("a", b"1"), ("a", None)])
    right = Record(0, 1_700_000_000_001, b"k", b"w", [("a", None), ("a", b"1")])
    found = sections(stored(left), stored(right, base=8), STYLE)
    assert differing(found) == ["offset", "timestamp", "value", "headers"]
    lines = table(found, ("east", "west"), STYLE)
    marked = [line.split()[1] for line in lines if line.startswith(DIFFERS)]
    assert marked == ["offset", "timestamp", "value", "headers", "base", "last", "CRC-32C"]
    assert any("2023-11-14T22:13:20.001Z" in line for line in lines)


def test_no_character_of_a_record_reaches_the_terminal_unless_it_is_printable() -> None:
    nasty = "".join(map(chr, range(0x20))) + "\x7f\x9b\u202e\u2028\ud7ff"
    record = Record(0, 1, nasty.encode(), nasty.encode(), [(nasty, nasty.encode())])
    style = Style(max_bytes=1000)
    lines = table(sections(stored(record), stored(record), style), ("a", "b"), style)
    lines += table(sections(Absent(nasty), stored(record), style), ("a", "b"), style)
    assert all(line.isprintable() for line in lines)
    assert printable("\x1b") == "\\x1b"


def test_long_values_are_cut_and_the_difference_behind_the_cut_is_shown() -> None:
    left, right = b"x" * 1_000_000, b"x" * 999_999 + b"\xc3"
    found = rows(Record(0, 1, None, left), Record(0, 1, None, right))
    assert found["value"].left[-1] == "... 999,960 more bytes"
    assert found["value differs"].left[0].startswith("first at byte 999,999")
    assert found["value differs"].right[1].endswith("78 c3")
    lines = table(
        sections(stored(Record(0, 1, None, left)), Absent("gone"), STYLE), ("a", "b"), STYLE
    )
    assert len("\n".join(lines)) < 5000


def test_json_is_indented_and_avro_is_decoded_or_the_reason_is_shown() -> None:
    assert field_lines(b'{"a": [1]}', STYLE)[1:] == ["{", '  "a": [', "    1", "  ]", "}"]
    style = Style(avro=lambda data: {"name": data.decode(), "raw": b"\x01"})
    assert json.loads("".join(field_lines(b"x", style, avro=True)[1:])) == {
        "name": "x",
        "raw": "01",
    }
    first, second, *_ = field_lines(b"\xff", style, avro=True)
    assert first.startswith("not Avro by this schema: ")
    assert second == "binary, 1 bytes"


def test_a_record_stands_beside_the_reason_why_the_other_log_has_none() -> None:
    left = stored(Record(0, 1, b"k", b"v"))
    lines = table(
        sections(left, Absent("deleted: the log starts at offset 9"), STYLE), ("a", "b"), STYLE
    )
    assert any("deleted: the log starts at offset 9" in line for line in lines)
    damaged = Undecodable(left.batch, b"\x01\x02", "it is not valid", "CRC is wrong")
    lines = table(sections(left, damaged, STYLE), ("a", "b"), Style(width=200))
    assert any("cannot be decoded: it is not valid" in line for line in lines)
    assert any("CRC is wrong" in line for line in lines)
    assert not any(line.startswith(DIFFERS) and "value" in line for line in lines)
