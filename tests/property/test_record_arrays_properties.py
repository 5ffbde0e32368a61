"""The array decoder returns what the record decoder returns, for any batch and any damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.wire import batches
from kclient.wire.batches import HEADER_SIZE, LOG_APPEND_TIME
from kclient.wire.errors import KafkaError
from kclient.wire.record_reader import Columns, decode_columns
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs.record_arrays import Piece, RecordArrays, decode_arrays
from tests.kit.property_tests import examples

fields = st.one_of(st.none(), st.binary(max_size=200), st.binary(max_size=3))
headers = st.lists(st.tuples(st.text(max_size=5), fields), max_size=3)
times = st.one_of(
    st.integers(-5, 100_000),
    st.integers(1_700_000_000_000, 1_800_000_000_000),
    st.integers(-(1 << 63), (1 << 63) - 1),
)


@st.composite
def encoded_batches(draw: st.DrawFn, most: int = 4) -> list[bytes]:
    """Up to *most* batches with gaps between offsets, as after compaction."""
    found = []
    base = draw(st.integers(0, 1 << 40))
    near = draw(st.booleans())
    for _ in range(draw(st.integers(1, most))):
        records = []
        offset = base
        for _ in range(draw(st.integers(1, 6))):
            offset += draw(st.sampled_from([1, 1, 1, 2, 70, 20_000]))
            when = draw(st.integers(0, 3000) if near else times)
            records.append(Record(offset, when, draw(fields), draw(fields), draw(headers)))
        # The difference of two extreme timestamps does not fit a batch.
        span = [record.timestamp for record in records]
        if max(span) - min(span) >= 1 << 63:
            records = [record._replace(timestamp=span[0]) for record in records]
        found.append(
            encode_batch(
                records,
                base_offset=base,
                keep_offsets=True,
                attributes=draw(st.sampled_from([0, 0, LOG_APPEND_TIME])),
                last_offset_delta=offset - base + draw(st.integers(0, 3)),
            )
        )
        base = offset + 10
    return found


def expected(encoded: list[bytes]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for number, batch in enumerate(encoded):
        info = batches.parse(batch)
        columns: Columns = decode_columns(batch, info)
        rows += [(number, int(info.log_append_time), *row) for row in zip(*columns, strict=True)]
    return rows


def pieces(encoded: list[bytes]) -> list[Piece]:
    return [
        Piece(number, batches.parse(batch), memoryview(batch)[HEADER_SIZE:])
        for number, batch in enumerate(encoded)
    ]


def rows_of(arrays: RecordArrays) -> list[tuple[object, ...]]:
    """The records again as rows; headers stay encoded behind their number."""
    return [
        (
            group,
            kind,
            offset,
            timestamp,
            None if key_size < 0 else arrays.raw[key_at : key_at + key_size],
            None if value_size < 0 else arrays.raw[value_at : value_at + value_size],
            header_count,
        )
        for group, kind, offset, timestamp, key_at, key_size, value_at, value_size, header_count in zip(
            *(
                column.tolist()
                for column in (
                    arrays.groups,
                    arrays.timestamp_types,
                    arrays.offsets,
                    arrays.timestamps,
                    arrays.key_at,
                    arrays.key_size,
                    arrays.value_at,
                    arrays.value_size,
                    arrays.header_counts,
                )
            ),
            strict=True,
        )
    ]


@given(encoded_batches())
@settings(max_examples=examples(400), deadline=None)
def test_the_arrays_hold_what_the_decoder_returns_and_equal_bodies_are_equal_records(
    encoded: list[bytes],
) -> None:
    """Invariants 1 and 2."""
    arrays = decode_arrays(pieces(encoded))
    records = expected(encoded)
    assert rows_of(arrays) == [(*row[:-1], len(row[-1])) for row in records]  # type: ignore[arg-type]

    bodies = [
        arrays.raw[low:high]
        for low, high in zip(arrays.body_at.tolist(), arrays.ends.tolist(), strict=True)
    ]
    contents = [(row[4], row[5], list(row[6])) for row in records]  # type: ignore[call-overload]
    for body, content in zip(bodies, contents, strict=True):
        for other_body, other in zip(bodies, contents, strict=True):
            assert (body == other_body) == (content == other)


@given(encoded_batches(most=1), st.data())
@settings(max_examples=examples(250), deadline=None)
def test_damaged_records_are_judged_as_the_decoder_judges_them(
    encoded: list[bytes], data: st.DataObject
) -> None:
    """Invariant 3: the same records or the same error, for changed, removed and added bytes."""
    for _ in range(4):  # a damage costs less than a batch
        check_damaged(damaged(encoded[0], data))


def damaged(encoded: bytes, data: st.DataObject) -> bytes:
    batch = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
        batch[place] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 129, 255, batch[place] ^ 1]))
    if data.draw(st.booleans()):
        del batch[data.draw(st.integers(HEADER_SIZE, len(batch))) :]
        batch += data.draw(st.binary(max_size=4))
    return bytes(batch)


def check_damaged(batch: bytes) -> None:
    info = batches.parse(batch)._replace(length=len(batch) - 12)
    piece = Piece(0, info, batch[HEADER_SIZE:])
    try:
        columns = decode_columns(batch, info)
    except KafkaError as problem:
        if "UTF-8" in problem.message:
            return
        with pytest.raises(type(problem)):
            decode_arrays([piece])
        return
    found = decode_arrays([piece])
    assert found.offsets.tolist() == columns.offsets
    assert found.timestamps.tolist() == columns.timestamps
    assert found.header_counts.tolist() == [len(each) for each in columns.headers]
    assert np.array_equal(found.key_size, [-1 if key is None else len(key) for key in columns.keys])


def padded(number: int, zeros: int) -> bytes:
    """A varint of one byte in a longer form, which decoders accept."""
    return bytes([number << 1 | (0x80 if zeros else 0), *[0x80] * (zeros - 1), *[0] * (zeros > 0)])


@given(st.lists(st.integers(0, 3), min_size=7, max_size=7))
@settings(max_examples=examples(100), deadline=None)
def test_bodies_do_not_depend_on_the_form_of_varints(zeros: list[int]) -> None:
    """Invariant 2: equal records have equal bodies, also with numbers in a longer form."""
    numbers = [
        padded(number, count) for number, count in zip((0, 0, 3, 5, 1, 2, 4), zeros, strict=True)
    ]
    since, delta, key, value, count, name, content = numbers
    record = b"".join(
        (b"\0", since, delta, key, b"key", value, b"value", count, name, b"na", content, b"more")
    )
    encoded = padded(len(record), 1 if len(record) > 63 else 0) + record
    plain = encode_batch([Record(0, 0, b"key", b"value", (("na", b"more"),))])
    info = batches.parse(plain)._replace(length=len(encoded) + HEADER_SIZE - 12)
    expected_body, body = (
        arrays.raw[arrays.body_at[0] : arrays.ends[0]]
        for arrays in (decode_arrays(pieces([plain])), decode_arrays([Piece(0, info, encoded)]))
    )
    assert body == expected_body
