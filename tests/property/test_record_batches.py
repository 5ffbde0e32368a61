"""Batches and the records in them: round trips, any cut, any mutation."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.wire import batches
from kclient.wire.compression import compress, decompress
from kclient.wire.errors import CorruptMessage, KafkaError
from kclient.wire.records import decode_batch, decode_columns, encode_batch
from tests.kit.property_tests import examples
from tests.kit.record_batches import (
    codecs,
    info_of,
    plain,
    rebuilt,
    record_lists,
    timestamps,
    whole_batches,
)

SMALL = 1 << 20
bytes_that_matter = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)


def rows(batch, **settings):
    return [plain(record) for record in decode_batch(batch, batches.parse(batch), **settings)]


@given(records=record_lists, codec=codecs)
@settings(max_examples=examples(100), deadline=None)
def test_records_come_back(records, codec):
    batch = encode_batch(records, codec=codec)
    assert batches.check_crc(batch, batches.parse(batch)) is None
    assert rows(batch, contiguous=True) == records
    assert list(zip(*decode_columns(batch, info_of(batch)), strict=True)) == [
        (*record[:4], record.headers or ()) for record in records
    ]


@given(records=record_lists, gaps=st.data(), base_offset=st.integers(0, 1 << 50))
@settings(max_examples=examples(50), deadline=None)
def test_compacted_records_keep_their_offsets(records, gaps, base_offset):
    deltas = gaps.draw(
        st.sets(st.integers(0, 30_000), min_size=len(records), max_size=len(records))
    )
    kept = [
        record._replace(offset=base_offset + delta)
        for record, delta in zip(records, sorted(deltas), strict=True)
    ]
    batch = encode_batch(
        kept, base_offset=base_offset, keep_offsets=True, last_offset_delta=max(deltas) + 3
    )
    assert rows(batch) == kept
    assert info_of(batch).next_offset == base_offset + max(deltas) + 4


@given(
    made=whole_batches(),
    offset=st.integers(0, 1 << 60),
    epoch=st.integers(-1, 1 << 30),
    now=timestamps,
)
@settings(max_examples=examples(50), deadline=None)
def test_stamping_never_breaks_a_batch(made, offset, epoch, now):
    batch, records = made
    info = info_of(batch)
    stored = batches.stamp(info, offset, epoch) + batch[16:]
    again = info_of(stored)
    assert again == info._replace(base_offset=offset, leader_epoch=epoch)
    assert [row[1:] for row in rows(stored)] == [record[1:] for record in records]
    appended = batches.with_log_append_time(stored, again, now)
    assert info_of(appended).max_timestamp == now
    assert {row.timestamp for row in rows(appended)} == {now}


@given(made=st.lists(whole_batches(), min_size=1, max_size=4), data=st.data())
@settings(max_examples=examples(50), deadline=None)
def test_any_cut_gives_the_whole_batches_before_it(made, data):
    buffer = b"".join(batch for batch, _ in made)
    ends = [0]
    for batch, _ in made:
        ends.append(ends[-1] + len(batch))
    near = st.builds(lambda end, less: max(0, end - less), st.sampled_from(ends), st.integers(0, 3))
    cut = data.draw(st.integers(0, len(buffer)) | near)
    found = list(batches.iterate(memoryview(buffer)[:cut]))
    assert [info.end for info in found] == [end for end in ends[1:] if end <= cut]
    assert [info.position for info in found] == ends[: len(found)]
    for info in found:
        batches.check_crc(buffer, info)


@given(made=whole_batches(), data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_any_change_under_the_crc_is_found(made, data):
    batch = bytearray(made[0])
    at = data.draw(st.integers(16, len(batch) - 1))
    batch[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(KafkaError):
        batches.check_produced(batch, max_batch_bytes=SMALL)


@given(made=whole_batches(), data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_mutated_records_behind_a_right_crc_raise_only_kafkas_errors(made, data):
    batch = bytearray(made[0])
    for at in data.draw(st.lists(st.integers(21, len(batch) - 1), min_size=1, max_size=6)):
        batch[at] = data.draw(bytes_that_matter)
        again = rebuilt(bytes(batch))
        with suppress(KafkaError):
            batches.check_produced(again, max_batch_bytes=SMALL)
        with suppress(KafkaError):
            decode_batch(again, batches.parse(again), max_size=SMALL)


@given(noise=st.binary(max_size=200), count=st.integers(-1, 30), codec=st.integers(0, 7))
@settings(max_examples=examples(150), deadline=None)
def test_noise_as_records_raises_only_kafkas_errors(noise, count, codec):
    batch = batches.build(
        noise,
        record_count=count,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        attributes=codec,
    )
    with suppress(KafkaError):
        decode_batch(batch, info_of(batch), max_size=SMALL)


@given(noise=st.binary(max_size=200))
@settings(max_examples=examples(100), deadline=None)
def test_noise_as_batches_raises_only_kafkas_errors(noise):
    with suppress(KafkaError):
        batches.check_produced(noise, max_batch_bytes=SMALL)
    with suppress(KafkaError):
        for info in batches.iterate(noise):
            batches.check_crc(noise, info)


@given(data=st.data(), codec=codecs, text=st.binary(max_size=300) | st.just(b"ab" * 5000))
@settings(max_examples=examples(150), deadline=None)
def test_mutated_compression_raises_only_kafkas_errors(data, codec, text):
    whole = bytearray(compress(codec, text))
    for at in data.draw(st.lists(st.integers(0, max(0, len(whole) - 1)), max_size=5)):
        if whole:
            whole[at] = data.draw(bytes_that_matter)
    cut = data.draw(st.integers(0, len(whole)))
    for broken in (whole, whole[:cut]):
        with suppress(KafkaError):
            assert len(decompress(codec, broken, max_size=SMALL)) <= SMALL


def test_a_partial_header_is_a_tail_not_an_error():
    assert list(batches.iterate(b"\0" * 60)) == []
    with pytest.raises(CorruptMessage):
        list(batches.iterate(b"\0" * 61))
