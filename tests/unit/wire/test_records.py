import pytest

from kclient.wire import batches, records
from kclient.wire.errors import CorruptMessage, InvalidRecord, MessageTooLarge
from kclient.wire.record_writer import varint
from kclient.wire.records import (
    Record,
    RecordEncoder,
    decode_batch,
    decode_columns,
    encode_batch,
)
from tests.kit.record_batches import NOW_MS, info_of, plain, rebuilt, some_records

INT64_MAX = (1 << 63) - 1


def decoded(batch, **settings):
    return [plain(record) for record in decode_batch(batch, info_of(batch), **settings)]


def batch_of(payload, count=1, **changes):
    """A batch around hand-written bytes of records, its header and CRC right."""
    fields = {"last_offset_delta": count - 1, "base_timestamp": NOW_MS, "max_timestamp": NOW_MS}
    return batches.build(payload, record_count=count, **{**fields, **changes})


def framed(body):
    """A record's body behind its length."""
    return varint(len(body)) + body


PLAIN = b"\0" + varint(0) + varint(0) + varint(1) + b"k" + varint(1) + b"v"  # without headers


@pytest.mark.parametrize("bits", range(1, 63))
def test_a_varint_has_seven_bits_a_byte_from_the_lowest_on(bits):
    """Short ones come from tables: those at their ends are as the others."""
    for number in (1 << bits, (1 << bits) - 1, -(1 << bits)):
        zigzag = number << 1 if number >= 0 else (-number << 1) - 1
        groups = [zigzag >> at & 0x7F for at in range(0, max(1, zigzag.bit_length()), 7)]
        assert varint(number) == bytes([*(each | 0x80 for each in groups[:-1]), groups[-1]])


def test_rows_come_back_with_their_offsets():
    batch = encode_batch(some_records(3), base_offset=100)
    assert decoded(batch) == [plain(r._replace(offset=100 + r.offset)) for r in some_records(3)]


def test_columns_are_the_same_records():
    sent = some_records(3)
    columns = decode_columns(batch := encode_batch(sent), info_of(batch))
    assert columns.offsets == [0, 1, 2]
    assert columns.timestamps == [record.timestamp for record in sent]
    assert columns.keys == [record.key for record in sent]
    assert columns.values == [record.value for record in sent]
    assert [list(headers) for headers in columns.headers] == [[], [], []]


@pytest.mark.parametrize("codec", range(5))
def test_nulls_and_empties_are_not_the_same(codec):
    sent = [
        Record(0, NOW_MS, None, None, []),
        Record(1, NOW_MS, b"", b"", []),
        Record(2, NOW_MS, None, b"v", [("h", None)]),
        Record(3, NOW_MS, b"k", None, [("h", b""), ("", b"x")]),
    ]
    assert decoded(encode_batch(sent, codec=codec)) == sent


def test_header_order_and_repeated_keys_survive():
    headers = [("b", b"1"), ("a", b"2"), ("b", b"3"), ("größe", None)]
    assert decoded(encode_batch([Record(0, 0, None, None, headers)])) == [
        Record(0, 0, None, None, headers)
    ]


@pytest.mark.parametrize("size", [63, 64, 8191, 8192, 1 << 20])
def test_sizes_around_the_varint_steps_survive(size):
    sent = [Record(n, NOW_MS, b"k" * size, b"v" * size, []) for n in range(2)]
    assert decoded(encode_batch(sent)) == sent


def test_timestamps_may_go_back_and_far_forward():
    times = [NOW_MS, NOW_MS - 86_400_000, NOW_MS + (1 << 40), 0, -1]
    sent = [Record(n, time, b"k", b"v", []) for n, time in enumerate(times)]
    batch = encode_batch(sent)
    assert decoded(batch) == sent
    assert info_of(batch).max_timestamp == NOW_MS + (1 << 40)


def test_more_records_than_the_table_of_varints_survive():
    sent = [Record(n, NOW_MS + n, None, b"", []) for n in range(10_000)]
    assert decoded(encode_batch(sent), contiguous=True) == sent


def test_log_append_time_stands_for_every_record():
    batch = encode_batch(some_records(3))
    stamped = batches.with_log_append_time(batch, info_of(batch), NOW_MS + 500)
    assert {record.timestamp for record in decoded(stamped)} == {NOW_MS + 500}


def test_compaction_keeps_offsets_and_the_last_delta():
    kept = [record for record in some_records(10) if record.offset in (2, 5)]
    kept = [record._replace(offset=100 + record.offset) for record in kept]
    batch = encode_batch(kept, base_offset=100, keep_offsets=True, last_offset_delta=9)
    assert decoded(batch) == [plain(record) for record in kept]
    assert info_of(batch).next_offset == 110


def test_compaction_refuses_offsets_that_do_not_increase():
    kept = [record._replace(offset=7) for record in some_records(2)]
    with pytest.raises(InvalidRecord, match="does not follow"):
        encode_batch(kept, keep_offsets=True)


def test_a_gap_is_fine_in_a_stored_batch_and_not_in_a_produced_one():
    batch = encode_batch([some_records(4)[3]], keep_offsets=True)
    assert [record.offset for record in decoded(batch)] == [3]
    with pytest.raises(InvalidRecord):
        decoded(batch, contiguous=True)


def test_an_empty_batch_cannot_be_made_but_can_be_read():
    with pytest.raises(InvalidRecord):
        encode_batch([])
    assert decoded(batch_of(b"", 0, last_offset_delta=5)) == []  # what compaction may leave


def test_text_is_refused_as_a_value():
    with pytest.raises(TypeError, match="bytes"):
        encode_batch([Record(0, 0, None, "text")])
    with pytest.raises(TypeError, match="bytes"):
        encode_batch([Record(0, 0, "key", b"value")])


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "cannot fit in"),
        (varint(-1) + b"\0" * 10, "length is negative"),
        (varint(1 << 20) + PLAIN + b"\0", "ends at"),
        (b"\x80\x80\x80\x80\x80\x80\x80\x01" + PLAIN, "longer than 32 bits"),
        (b"\xff\xff\xff\xff\x7f" + PLAIN, "longer than 32 bits"),
        (framed(PLAIN), "truncated"),
        (framed(PLAIN + b"\0")[:-2], "truncated"),
        (framed(PLAIN + b"\0\0"), "its fields end at"),
        (framed(PLAIN + b"\0") + b"\0", "the records end at"),
        (framed(b"\0" + varint(0) + varint(-1) + PLAIN[3:] + b"\0"), "offset delta -1"),
        (framed(b"\0" + varint(0) + varint(1) + PLAIN[3:] + b"\0"), "offset delta is 1"),
        (framed(b"\0\0\0" + varint(-2) + varint(-1) + b"\0\0"), "key's length is below -1"),
        (framed(b"\0\0\0" + varint(-1) + varint(-2) + b"\0\0"), "value's length is below -1"),
        (framed(b"\0\0\0" + varint(1000) + PLAIN[4:] + b"\0"), "truncated"),
        (framed(b"\0\0\0\1" + varint(1000) + b"v\0\0"), "truncated"),
        (framed(PLAIN + varint(-1)), "-1 headers"),
        (framed(PLAIN + varint(1_000_000) + b"\0\0"), "1000000 headers"),
        (framed(PLAIN + varint(1) + varint(-1) + varint(-1)), "header's key is null"),
        (framed(PLAIN + varint(1) + varint(0) + varint(-2)), "header's value"),
        (framed(PLAIN + varint(1) + varint(1) + b"\xff" + varint(-1)), "not UTF-8"),
        (framed(PLAIN + varint(1) + varint(90) + b"a" + varint(-1)), "truncated"),
        (framed(PLAIN + varint(1) + varint(1) + b"a" + varint(90) + b"b"), "its fields end at"),
        (framed(b"\0" + varint(INT64_MAX) + PLAIN[2:] + b"\0"), "does not fit 64 bits"),
        (framed(b"\0" + b"\xff" * 9 + b"\x7f" + PLAIN[2:] + b"\0"), "longer than 64 bits"),
    ],
    ids=str,
)
def test_a_record_that_contradicts_itself_is_refused(payload, why):
    with pytest.raises(InvalidRecord, match=why):
        decoded(batch_of(payload))


def test_another_record_count_than_the_headers_is_rejected():
    batch = encode_batch(some_records(3))
    for count in (2, 4, -1, 0x7FFFFFFF):
        with pytest.raises(InvalidRecord):
            decoded(rebuilt(batch, record_count=count, last_offset_delta=10))


def test_offsets_that_repeat_or_go_back_are_refused():
    one = framed(b"\0" + varint(0) + varint(1) + PLAIN[3:] + b"\0")
    zero = framed(PLAIN + b"\0")
    for payload in (one + one, one + zero):
        with pytest.raises(InvalidRecord, match="does not follow 1"):
            decoded(batch_of(payload, 2))


@pytest.mark.parametrize("base_offset", [-1, INT64_MAX])
def test_offsets_that_are_no_offsets_are_refused(base_offset):
    with pytest.raises(InvalidRecord, match="not valid offsets"):
        decoded(encode_batch(some_records(2), base_offset=base_offset))


def test_a_base_timestamp_at_the_end_of_time_does_not_overflow():
    payload = framed(b"\0" + varint(1) + PLAIN[2:] + b"\0")
    with pytest.raises(InvalidRecord, match="64 bits"):
        decoded(batch_of(payload, base_timestamp=INT64_MAX))


def test_a_batch_that_is_not_all_there_is_corrupt():
    batch = encode_batch(some_records(3))
    with pytest.raises(CorruptMessage, match="truncated"):
        decode_batch(batch[:-1], batches.parse(batch))


def test_the_decompressed_size_is_bounded():
    batch = encode_batch([Record(0, 0, None, bytes(1 << 20))], codec=4)
    with pytest.raises(MessageTooLarge):
        decoded(batch, max_size=1 << 20)


def test_transaction_markers_are_control_batches():
    batch = records.encode_transaction_marker(
        records.COMMIT, producer_id=7, producer_epoch=1, coordinator_epoch=3, timestamp=NOW_MS
    )
    info = info_of(batch)
    assert (info.is_control, info.is_transactional, info.producer_id) == (True, True, 7)
    (marker,) = decode_batch(batch, info)
    assert marker.key == b"\0\0\0\1"
    assert marker.value == b"\0\0\0\0\0\3"
    assert records.control_type(marker.key) == records.COMMIT


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_a_control_record_without_a_type_is_refused(key):
    with pytest.raises(InvalidRecord, match="control record"):
        records.control_type(key)


@pytest.mark.parametrize("kind", [records.ABORT, records.COMMIT])
def test_a_marker_is_read_wherever_it_lies(kind):
    batch = records.encode_transaction_marker(
        kind, producer_id=7, producer_epoch=1, coordinator_epoch=3, timestamp=NOW_MS
    )
    data = b"xyz" + batch
    found = records.transaction_marker(data, batches.parse(data, 3))
    assert found == (kind == records.ABORT, 3, -1)


def test_a_marker_has_the_number_of_its_transaction_behind_what_kafka_reads():
    batch = records.encode_transaction_marker(
        records.COMMIT,
        producer_id=7,
        producer_epoch=1,
        coordinator_epoch=3,
        timestamp=NOW_MS,
        number=9,
    )
    (marker,) = decode_batch(batch, info_of(batch))
    assert marker.value == b"\0\0\0\0\0\3" + (9).to_bytes(8, "big")
    assert records.transaction_marker(batch, info_of(batch)) == (False, 3, 9)


@pytest.mark.parametrize("key", [None, b"", b"\xff\xff\0\0", b"\0\0\0\2"])
def test_a_control_batch_of_another_kind_is_no_marker(key):
    batch = encode_batch([Record(0, NOW_MS, key, b"", ())], attributes=batches.CONTROL)
    assert records.transaction_marker(batch, info_of(batch)) is None


def test_a_control_batch_without_records_is_no_marker():
    batch = batches.build(
        b"", record_count=0, last_offset_delta=0, base_timestamp=-1, max_timestamp=-1,
        attributes=batches.CONTROL,
    )  # fmt: skip
    assert records.transaction_marker(batch, info_of(batch)) is None


def test_a_cleared_encoder_begins_another_batch():
    """Its first record has no headers, so the encoder still has its end to write."""
    used, fresh = RecordEncoder(), RecordEncoder()
    used.append(5, b"k", b"v")
    used.clear()
    for encoder in (used, fresh):
        encoder.append(7, None, b"value")
        encoder.append(9, b"k", None, [("h", b"1")])
    assert used.encoded() == fresh.encoded()
