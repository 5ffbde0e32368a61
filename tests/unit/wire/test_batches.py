import pytest

from kclient.wire import batches
from kclient.wire.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from kclient.wire.records import Record, encode_batch
from tests.kit.record_batches import NOW_MS, rebuilt, some_records

BATCH = encode_batch(some_records(3))
LIMIT = 1 << 20


def check(batch, **settings):
    return batches.check_produced(memoryview(batch), **{"max_batch_bytes": LIMIT, **settings})


def test_a_batch_as_producers_send_it_passes():
    info = check(BATCH)
    assert (info.position, info.size, info.magic) == (0, len(BATCH), 2)
    assert (info.record_count, info.last_offset_delta) == (3, 2)
    assert (info.base_timestamp, info.max_timestamp) == (NOW_MS, NOW_MS + 2)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (-1, -1, -1)
    assert (info.codec, info.is_transactional, info.is_control) == (0, False, False)
    assert info.last_sequence == -1


def test_the_header_lies_where_kafka_puts_it():
    batch = batches.build(
        b"records",
        record_count=0x11,
        last_offset_delta=0x22,
        base_timestamp=0x33,
        max_timestamp=0x44,
        attributes=0x13,
        base_offset=0x55,
        leader_epoch=0x66,
        producer_id=0x77,
        producer_epoch=0x88,
        base_sequence=0x99,
    )
    assert batch[:17].hex() == "0000000000000055" + "00000038" + "00000066" + "02"
    assert batch[21:].hex() == (
        "0013" + "00000022" + "0000000000000033" + "0000000000000044"
        "0000000000000077" + "0088" + "00000099" + "00000011" + b"records".hex()
    )


def test_a_batch_written_by_kafka_python_is_ours_byte_for_byte():
    theirs = bytes.fromhex(
        "0000000000000000" + "00000044" + "00000000" + "02" + "b2baabb6" + "0000" + "00000000"
        "0000018bcfe56800"
        + "0000018bcfe56800"
        + "ffffffffffffffff"
        + "ffff"
        + "ffffffff"
        + "00000001"
        "24" + "00" + "00" + "00" + "066b6579" + "0a68656c6c6f" + "02" + "0268" + "0231"
    )
    assert check(theirs).record_count == 1
    record = Record(0, NOW_MS, b"key", b"hello", [("h", b"1")])
    assert encode_batch([record], leader_epoch=0) == theirs


@pytest.mark.parametrize("flip", [21, 22, 27, 60, 61, len(BATCH) - 1])
def test_a_flipped_bit_anywhere_the_crc_covers_is_corrupt(flip):
    broken = bytearray(BATCH)
    broken[flip] ^= 0x10
    with pytest.raises(CorruptMessage):
        check(broken)


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_format_is_refused_with_what_to_do(magic):
    with pytest.raises(UnsupportedForMessageFormat, match="upgrade the client"):
        check(rebuilt(BATCH, magic=magic))
    with pytest.raises(UnsupportedForMessageFormat):
        check(rebuilt(BATCH, magic=magic)[:30])  # such messages can be shorter than our header


@pytest.mark.parametrize("magic", [3, 127, -1])
def test_an_unknown_magic_is_corrupt(magic):
    with pytest.raises(CorruptMessage, match="magic"):
        check(rebuilt(BATCH, magic=magic))


@pytest.mark.parametrize("length", [-1, 0, 48, -(1 << 31)])
def test_a_length_shorter_than_the_header_is_corrupt(length):
    with pytest.raises(CorruptMessage, match="shorter than its own header"):
        check(rebuilt(BATCH, length=length))


@pytest.mark.parametrize("kept", [1, 16, 17, 60, 61, len(BATCH) - 1])
def test_a_batch_that_is_cut_off_is_corrupt(kept):
    with pytest.raises(CorruptMessage, match="truncated"):
        check(BATCH[:kept])


def test_two_batches_in_one_partition_are_refused():
    with pytest.raises(InvalidRecord, match="exactly one batch"):
        check(BATCH + BATCH)


def test_no_batch_at_all_is_refused():
    with pytest.raises(InvalidRecord, match="the records are empty"):
        check(b"")


def test_a_batch_above_the_topics_limit_is_too_large():
    check(BATCH, max_batch_bytes=len(BATCH))
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
        check(BATCH, max_batch_bytes=len(BATCH) - 1)


def test_a_wrong_length_is_too_large_before_anything_else():
    with pytest.raises(MessageTooLarge):
        check(rebuilt(BATCH, length=0x7FFFFFFF))


@pytest.mark.parametrize(
    "changes",
    [
        {"record_count": 0},
        {"record_count": -1},
        {"record_count": 0x7FFFFFFF},
        {"record_count": 4},
        {"last_offset_delta": 3},
        {"last_offset_delta": -1},
        {"record_count": 0x7FFFFFFF, "last_offset_delta": 0x7FFFFFFE},
        {"attributes": batches.CONTROL},
        {"attributes": batches.DELETE_HORIZON},
        {"attributes": 0x80},
        {"attributes": -0x8000},
        {"attributes": batches.TRANSACTIONAL},
        {"producer_id": 5},
        {"producer_id": 5, "producer_epoch": 0},
        {"producer_id": 5, "base_sequence": 0},
        {"producer_id": -2, "producer_epoch": 0, "base_sequence": 0},
    ],
    ids=str,
)
def test_a_header_that_contradicts_itself_is_an_invalid_record(changes):
    with pytest.raises(InvalidRecord):
        check(rebuilt(BATCH, **changes))


def test_two_billion_records_in_a_compressed_handful_of_bytes_are_refused():
    batch = encode_batch(some_records(3), codec=1)
    with pytest.raises(InvalidRecord, match="cannot fit"):
        check(rebuilt(batch, record_count=1 << 30, last_offset_delta=(1 << 30) - 1))


def test_a_very_compressible_batch_passes():
    for codec in range(5):
        records = [record._replace(key=None, value=None) for record in some_records(5000)]
        records = [record._replace(timestamp=NOW_MS) for record in records]
        assert check(encode_batch(records, codec=codec)).record_count == 5000


def test_a_timestamp_type_that_is_not_the_clients_to_give_is_refused():
    with pytest.raises(InvalidTimestamp):
        check(rebuilt(BATCH, attributes=batches.LOG_APPEND_TIME))


def test_a_batch_with_a_base_offset_is_refused():
    with pytest.raises(InvalidRecord, match="base offset 7"):
        check(encode_batch(some_records(), base_offset=7, keep_offsets=False))


def test_a_max_timestamp_is_replaced_and_nothing_else():
    padded = b"pad" + BATCH
    changed = batches.with_max_timestamp(padded, batches.parse(padded, 3), NOW_MS + 99)
    again = batches.parse(changed)
    batches.check_crc(changed, again)
    assert again == batches.parse(BATCH)._replace(crc=again.crc, max_timestamp=NOW_MS + 99)
    assert changed[61:] == BATCH[61:]


def test_clients_that_leave_max_timestamp_or_the_sequence_unset_pass():
    check(rebuilt(BATCH, max_timestamp=-1))
    check(rebuilt(BATCH, base_sequence=0))  # sarama without idempotence


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unassigned_codec_is_refused(codec):
    with pytest.raises(UnsupportedCompressionType, match=str(codec)):
        check(rebuilt(BATCH, attributes=codec))


def test_zstd_needs_produce_v7():
    batch = encode_batch(some_records(), codec=4)
    check(batch)
    with pytest.raises(UnsupportedCompressionType, match="KIP-110"):
        check(batch, zstd_allowed=False)


def test_an_idempotent_transactional_batch_passes():
    batch = encode_batch(
        some_records(3),
        producer_id=9,
        producer_epoch=2,
        base_sequence=0x7FFFFFFF,
        attributes=batches.TRANSACTIONAL,
    )
    info = check(batch)
    assert info.is_transactional
    assert info.last_sequence == 1  # 2147483647, 0, 1: sequences wrap (KAFKA-7692)


def test_the_stamp_is_outside_the_crc():
    info = check(BATCH)
    stored = batches.stamp(info, 1000, 7) + BATCH[16:]
    again = batches.parse(stored)
    batches.check_crc(stored, again)
    assert (again.base_offset, again.leader_epoch, again.next_offset) == (1000, 7, 1003)
    assert stored[16:] == BATCH[16:]


def test_log_append_time_changes_the_clock_and_nothing_else():
    padded = b"pad" + BATCH
    info = batches.parse(padded, 3)
    stamped = batches.with_log_append_time(padded, info, NOW_MS + 99)
    again = batches.parse(stamped)
    batches.check_crc(stamped, again)
    assert again == info._replace(
        position=0,
        crc=again.crc,
        attributes=batches.LOG_APPEND_TIME,
        max_timestamp=NOW_MS + 99,
    )
    assert stamped[61:] == BATCH[61:]


def test_a_broken_header_between_batches_is_not_taken_for_the_end():
    with pytest.raises(CorruptMessage):
        list(batches.iterate(BATCH + b"\xff" * 100))


def test_a_batch_read_from_a_view_is_not_copied():
    buffer = bytearray(BATCH)
    view = memoryview(buffer)
    info = batches.check_produced(view, max_batch_bytes=LIMIT)
    assert info.end == len(BATCH)
    view.release()
    buffer.clear()  # raises BufferError if anything still looked at it
