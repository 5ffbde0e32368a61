"""A walk over encoded records finds what a decoder finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from kclient.wire.batches import HEADER_SIZE, parse
from kclient.wire.errors import InvalidRecord
from kclient.wire.record_cursor import RecordCursor
from kclient.wire.records import Record, encode_batch
from tests.kit.record_batches import record_lists, some_records


@given(records=record_lists)
@settings(max_examples=60, deadline=None)
def test_the_cursor_finds_the_fields_of_every_record(records: list[Record]) -> None:
    whole = encode_batch(records)
    raw, base = whole[HEADER_SIZE:], parse(whole).base_timestamp
    cursor = RecordCursor(raw)
    for record in records:
        assert not cursor.at_end()
        cursor.next()
        key = raw[cursor.key_start : cursor.key_start + cursor.key_size]
        assert (None if cursor.key_size < 0 else key) == record.key
        assert cursor.value_size == (-1 if record.value is None else len(record.value))
        assert cursor.offset_delta == record.offset
        assert base + cursor.timestamp_delta == record.timestamp
    assert cursor.at_end()


def test_records_that_are_cut_off_anywhere_are_an_error() -> None:
    raw = encode_batch(some_records(1))[HEADER_SIZE:]
    for size in range(len(raw)):
        with pytest.raises(InvalidRecord):
            RecordCursor(raw[:size]).next()
