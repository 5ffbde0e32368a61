"""The walk over encoded records, interpreted and (where the module is compiled) compiled."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings

from kclient.wire.batches import HEADER_SIZE, parse
from kclient.wire.errors import InvalidRecord
from kclient.wire.records import Record, encode_batch
from tests.kit.property_tests import examples
from tests.kit.record_batches import NOW_MS, record_lists
from tests.kit.record_cursors import BOTH

RECORDS = [
    Record(0, NOW_MS, b"key", b"value", ()),
    Record(1, NOW_MS - 5, None, b"v" * 100, ()),
    Record(2, NOW_MS + 100_000, b"k" * 9000, None, [("h", b"1"), ("größe", None)]),
    Record(3, NOW_MS, b"", b"", ()),
]
RAW = encode_batch(RECORDS)[HEADER_SIZE:]

both = pytest.mark.parametrize("module", BOTH, ids=["interpreted", "compiled"][: len(BOTH)])


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def record(body: bytes) -> bytes:
    return varint(len(body)) + body


def check(
    module: ModuleType, raw: bytes, count: int = 1, base: int = NOW_MS, **rules: int
) -> object:
    done = module.RecordCheck(raw, count, base, **rules)
    assert done.run(1 << 40)
    return done


@both
def test_the_cursor_reads_every_field(module: ModuleType) -> None:
    cursor = module.RecordCursor(RAW)
    for n, expected in enumerate(RECORDS):
        assert not cursor.at_end()
        cursor.next()
        assert cursor.offset_delta == n
        assert NOW_MS + cursor.timestamp_delta == expected.timestamp
        key = RAW[cursor.key_start : cursor.key_start + cursor.key_size]
        assert (None if cursor.key_size < 0 else key) == expected.key
        assert cursor.value_size == (-1 if expected.value is None else len(expected.value))
        assert RAW[cursor.behind_timestamp] == n << 1
    assert cursor.at_end()
    with pytest.raises(InvalidRecord, match="truncated"):
        cursor.next()


@both
def test_records_that_are_cut_off_anywhere_are_an_error(module: ModuleType) -> None:
    raw = encode_batch(RECORDS[:1])[HEADER_SIZE:]
    for size in range(len(raw)):
        with pytest.raises(InvalidRecord):
            module.RecordCursor(raw[:size]).next()


@both
def test_the_places_of_records_follow_from_their_lengths(module: ModuleType) -> None:
    bodies = [6, 63, 64, 8191, 8192, 1 << 20]  # lengths of one, two and three bytes
    raw = b"before" + b"".join(record(bytes(size)) for size in bodies) + b"behind"
    found: list[int] = []
    assert module.record_starts(raw, 6, len(raw), len(bodies), found) == len(raw) - len(b"behind")
    assert [raw[at:].startswith(varint(size)) for at, size in zip(found, bodies, strict=True)] == [
        True
    ] * len(bodies)
    assert found[:3] == [6, 6 + 7, 6 + 7 + 64]
    assert module.record_starts(record(bytes(6)) * 2, 0, 14, 1, []) == 7, "bytes are left"


@both
@pytest.mark.parametrize(
    ("raw", "count"),
    [
        (record(bytes(6)) * 2, 3),
        (record(bytes(6))[:-1], 1),
        (b"\xff\xff", 1),  # a length without its end
        (b"\x80\x80\x80\x80\x80\x01" + bytes(64), 1),  # of six bytes
    ],
)
def test_records_that_are_cut_off_have_no_end(module: ModuleType, raw: bytes, count: int) -> None:
    assert module.record_starts(raw, 0, len(raw), count, []) == -1


@both
@pytest.mark.parametrize("body", [b"\xff\0\0\1\1\0", b"\0\0\0\1\1\2\2\xff\1"])
def test_what_python_clients_cannot_read_is_refused_from_producers_only(
    module: ModuleType, body: bytes
) -> None:
    cursor = module.RecordCursor(record(body))
    cursor.next()
    assert cursor.at_end()
    with pytest.raises(InvalidRecord):
        check(module, record(body))


@given(records=record_lists)
@settings(max_examples=examples(30), deadline=None)
def test_the_cursor_finds_the_fields_of_any_record(records: list[Record]) -> None:
    whole = encode_batch(records)
    for module in BOTH:  # pytest-twisted does not run a test of hypothesis with parameters twice
        cursor = module.RecordCursor(whole[HEADER_SIZE:])
        for expected in records:
            cursor.next()
            key = cursor.raw[cursor.key_start : cursor.key_start + cursor.key_size]
            assert (None if cursor.key_size < 0 else key) == expected.key
            assert cursor.value_size == (-1 if expected.value is None else len(expected.value))
            assert parse(whole).base_timestamp + cursor.timestamp_delta == expected.timestamp
        assert cursor.at_end()


@both
def test_the_greatest_timestamp_is_found_in_any_steps(module: ModuleType) -> None:
    for step in (1, 2, 3, 100):
        done = module.RecordCheck(RAW, 4, NOW_MS)
        while not done.run(step):
            pass
        assert done.max_timestamp == NOW_MS + 100_000


BODY = b"\0" + varint(0) + varint(0)  # attributes, timestamp delta, offset delta
BAD = {
    "the last record of the batch is truncated": record(BODY + b"\1\x08abcd\0")[:-1],
    "a record's length is negative": varint(-3) + BODY + b"\1\1\0",
    "a key's length is below -1": record(BODY + varint(-2) + b"\1\0"),
    "a value's length is below -1": record(BODY + b"\1" + varint(-2) + b"\0"),
    "its fields end at": record(BODY + b"\1\1\0\0"),
    "its fields end at ": record(BODY + b"\1" + varint(50) + b"\0" * 10) + bytes(60),
    "headers cannot fit": record(BODY + b"\1\1" + varint(2) + b"\2h\1"),
    "-1 headers cannot fit": record(BODY + b"\1\1" + varint(-1)),
    "a header's key is null": record(BODY + b"\1\1" + varint(1) + b"\1\1"),
    "a header's key is not UTF-8": record(BODY + b"\1\1" + varint(1) + b"\2\xff\1"),
    "a header's value has a length below -1": record(BODY + b"\1\1" + varint(1) + b"\2h\3"),
    "its headers are longer": record(BODY + b"\1\1" + varint(1) + varint(50) + b"\1") + bytes(60),
    "longer than 32 bits": record(b"\0\0" + b"\x80\x80\x80\x80\x10" + b"\1\1\0"),
    "longer than 32 bits ": record(b"\0\0" + b"\x80" * 5 + b"\0\1\1\0"),
    "longer than 64 bits": record(b"\0" + b"\x80" * 9 + b"\2" + b"\0\1\1\0"),
    "bytes follow the last": record(BODY + b"\1\1\0") + b"\0",
    "record 0 has offset delta 1": record(b"\0\0\2\1\1\0"),
    "record 0 has offset delta -1": record(b"\0\0\1\1\1\0"),
    "records cannot fit": b"\0" * 6,
}


@both
@pytest.mark.parametrize("reason", BAD)
def test_records_that_do_not_add_up_are_invalid(module: ModuleType, reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason.strip()):
        check(module, BAD[reason])


@both
@pytest.mark.parametrize("count", [3, 5, 1 << 40, -1])
def test_another_count_of_records_is_invalid(module: ModuleType, count: int) -> None:
    with pytest.raises(InvalidRecord):
        check(module, RAW, count)


@both
@pytest.mark.parametrize(
    ("base", "delta", "fits"),
    [
        ((1 << 63) - 1, 0, True),
        ((1 << 63) - 1, 1, False),
        (-(1 << 63), 0, True),
        (-(1 << 63), -1, False),
        (-1, (1 << 63) - 1, True),
        (1, (1 << 63) - 1, False),
        (0, -(1 << 63), True),
        (-1, -(1 << 63), False),
    ],
)
def test_a_timestamp_beyond_64_bits_is_invalid(
    module: ModuleType, base: int, delta: int, fits: bool
) -> None:
    raw = record(b"\0" + varint(delta) + b"\0\1\1\0")
    if fits:
        assert check(module, raw, base=base).max_timestamp == max(-1, base + delta)  # type: ignore[attr-defined]
    else:
        with pytest.raises(InvalidRecord, match="does not fit 64 bits"):
            check(module, raw, base=base)


@both
def test_records_that_break_a_rule_are_reported_with_their_index(module: ModuleType) -> None:
    done = module.RecordCheck(
        RAW, 4, NOW_MS, earliest=NOW_MS - 4, latest=NOW_MS + 1, needs_key=True
    )
    done.run(10)
    assert done.errors == [(1, None), (2, NOW_MS + 100_000)]
    assert (done.error_count, done.has_invalid_timestamp) == (2, True)


@both
def test_at_most_a_thousand_records_are_reported(module: ModuleType) -> None:
    raw = encode_batch([Record(n, -1, None, None, ()) for n in range(1500)])[HEADER_SIZE:]
    done = module.RecordCheck(raw, 1500, -1, earliest=0, latest=0, needs_key=True)
    done.run(1500)
    assert (len(done.errors), done.error_count) == (1000, 1500)
    assert not done.has_invalid_timestamp


def in_pieces(module: ModuleType, raw: bytes, count: int, piece: int) -> object:
    done = module.RecordCheck(raw[:piece], count, NOW_MS, needs_key=True, size=len(raw))
    position = 0
    while not done.run(2):
        if done.wanted:
            position += done.position
            done.feed(raw[position : position + max(piece, done.wanted)])
    return done.max_timestamp, done.errors


@both
def test_any_pieces_of_the_records_give_the_same(module: ModuleType) -> None:
    whole = in_pieces(module, RAW, 4, len(RAW))
    assert whole == (NOW_MS + 100_000, [(1, None)])
    for piece in (*range(1, 200), 5000, len(RAW) - 1):
        assert in_pieces(module, RAW, 4, piece) == whole


@both
@pytest.mark.parametrize("reason", BAD)
def test_bad_records_are_as_bad_in_pieces(module: ModuleType, reason: str) -> None:
    behind_another = record(BODY + b"\1\1\0") + BAD[reason].replace(BODY, b"\0\0\2")
    for raw, count in ((BAD[reason], 1), (behind_another, 2)):
        if count == 2 and reason.startswith("record 0"):
            continue  # its offset delta is about its place
        for piece in range(1, len(raw) + 1):
            with pytest.raises(InvalidRecord):
                in_pieces(module, raw, count, piece)
