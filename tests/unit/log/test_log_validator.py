"""What a leader accepts of a producer's records, by the settings of the topic."""

from __future__ import annotations

import zlib

import pytest

from kbroker.config.log import LogConfig
from kbroker.log import log_validator
from kbroker.log.log_validator import LongValidationError, RecordValidation
from kclient.wire import batches
from kclient.wire.compression import MAX_DECOMPRESSED, compress
from kclient.wire.errors import InvalidRecord, InvalidTimestamp, KafkaError, MessageTooLarge
from kclient.wire.record_cursor import RecordCursor
from kclient.wire.records import Record, decode_batch, encode_batch
from tests.kit.record_batches import CODECS, NOW_MS, info_of, rebuilt, some_records

DAY = 24 * 3600 * 1000


def validated(batch: bytes, now_ms: int = NOW_MS, **settings: object) -> bytes:
    """Return the batch that is appended."""
    config = LogConfig(**settings)  # type: ignore[arg-type]
    validation = RecordValidation(batch, info_of(batch), config, now_ms)
    validation.run_briefly()
    appended, info = validation.result("t-0")
    assert info == info_of(appended)
    return bytes(appended)


def refused(batch: bytes, **settings: object) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        validated(batch, **settings)
    return caught.value


def of_records(raw: bytes, count: int, codec: int) -> bytes:
    """A batch of the encoded records *raw*, compressed already."""
    return batches.build(
        raw,
        record_count=count,
        last_offset_delta=count - 1,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
        attributes=codec,
    )


@pytest.mark.parametrize("codec", CODECS)
def test_ordinary_records_are_appended_as_they_came(codec: int) -> None:
    batch = encode_batch(some_records(50), codec=codec)
    assert validated(batch) == batch


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [49, 51])
def test_records_that_are_not_as_many_as_the_header_has_are_invalid(codec: int, count: int) -> None:
    batch = encode_batch(some_records(50), codec=codec)
    batch = rebuilt(batch, record_count=count, last_offset_delta=count - 1)
    assert type(refused(batch)) is InvalidRecord


@pytest.mark.parametrize("codec", CODECS[1:])
def test_records_that_do_not_decompress_are_invalid_and_not_worth_a_retry(codec: int) -> None:
    error = refused(of_records(b"\0" * 100, 3, codec))
    assert type(error) is InvalidRecord
    assert not error.retriable


@pytest.mark.long
@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_is_too_large_and_is_not_opened_in_the_reactors_thread(codec: int) -> None:
    bomb = of_records(bytes(compress(codec, bytes(MAX_DECOMPRESSED + 1))), 3, codec)
    validation = RecordValidation(bomb, info_of(bomb), LogConfig(), NOW_MS)
    with pytest.raises(LongValidationError):
        validation.run_briefly()
    validation.run()
    with pytest.raises(MessageTooLarge, match=str(MAX_DECOMPRESSED)):
        validation.result("t-0")


def test_many_records_are_checked_in_a_pool_step_by_step() -> None:
    count = log_validator.BRIEF_RECORDS + 1
    one = b"\x0c\0\0\0\1\1\0"
    batch = of_records(bytes(zlib.compress(one * count, wbits=31)), count, 1)
    validation = RecordValidation(batch, info_of(batch), LogConfig(), NOW_MS)
    with pytest.raises(LongValidationError):
        validation.run_briefly()
    validation.run()
    with pytest.raises(InvalidRecord, match="record 1 has offset delta 0"):
        validation.result("t-0")


def test_a_validation_that_did_not_run_accepts_nothing() -> None:
    batch = encode_batch(some_records())
    with pytest.raises(InvalidRecord, match="not checked"):
        RecordValidation(batch, info_of(batch), LogConfig(), NOW_MS).result("t-0")


@pytest.mark.parametrize("policy", [("compact",), ("compact", "delete")])
def test_a_compacted_topic_takes_no_record_without_a_key(policy: tuple[str, ...]) -> None:
    records = [Record(n, NOW_MS, None if n in (1, 3) else b"k", b"v", ()) for n in range(5)]
    error = refused(encode_batch(records), cleanup_policy=policy)
    assert type(error) is InvalidRecord
    assert [index for index, _ in error.record_errors] == [1, 3]
    assert "compacted" in error.record_errors[0][1]
    validated(encode_batch(records))


def test_an_empty_key_is_a_key() -> None:
    validated(encode_batch([Record(0, NOW_MS, b"", b"v", ())]), cleanup_policy=("compact",))


@pytest.mark.parametrize(
    ("settings", "offsets"),
    [
        ({"message_timestamp_before_max_ms": DAY}, [0]),
        ({"message_timestamp_after_max_ms": DAY}, [4]),
        ({"message_timestamp_difference_max_ms": DAY}, [0, 4]),
        (
            {"message_timestamp_difference_max_ms": DAY, "message_timestamp_after_max_ms": 5 * DAY},
            [0],
        ),
        ({"message_timestamp_before_max_ms": 0, "message_timestamp_after_max_ms": 0}, [0, 1, 3, 4]),
        ({"message_timestamp_before_max_ms": (1 << 63) - 2}, []),
        ({}, []),
    ],
    ids=str,
)
def test_timestamps_out_of_bounds_are_invalid_record_by_record(
    settings: dict[str, int], offsets: list[int]
) -> None:
    at = [NOW_MS - DAY - 1, NOW_MS - DAY, NOW_MS, NOW_MS + DAY, NOW_MS + DAY + 1, -1]
    batch = encode_batch([Record(n, time, b"k", b"v", ()) for n, time in enumerate(at)])
    if not offsets:
        validated(batch, **settings)
        return
    error = refused(batch, **settings)
    assert type(error) is InvalidTimestamp
    assert [index for index, _ in error.record_errors] == offsets
    validated(batch, message_timestamp_type="LogAppendTime", **settings)


def test_one_invalid_timestamp_among_missing_keys_makes_the_error_one_of_timestamps() -> None:
    records = [Record(0, NOW_MS, None, b"v", ()), Record(1, NOW_MS - DAY, b"k", b"v", ())]
    error = refused(
        encode_batch(records), cleanup_policy=("compact",), message_timestamp_before_max_ms=1000
    )
    assert type(error) is InvalidTimestamp
    assert [index for index, _ in error.record_errors] == [0, 1]


@pytest.mark.parametrize("claimed", [-1, 0, NOW_MS, NOW_MS + 10, (1 << 62)])
@pytest.mark.parametrize("codec", [0, 4])
def test_a_max_timestamp_that_is_not_that_of_the_records_is_corrected(
    claimed: int, codec: int
) -> None:
    batch = encode_batch(some_records(5), codec=codec)
    appended = validated(rebuilt(batch, max_timestamp=claimed))
    assert appended == batch
    assert info_of(appended).max_timestamp == NOW_MS + 4


@pytest.mark.parametrize("codec", CODECS)
def test_every_damaged_byte_of_the_records_is_refused_exactly_if_no_reader_could_read_it(
    codec: int,
) -> None:
    records = [
        Record(0, NOW_MS, b"k", b"v" * 70, ()),
        Record(1, NOW_MS + 300, None, b"", [("h", b"1"), ("none", None)]),
        Record(2, NOW_MS - 7, b"", None, ()),
    ]
    raw = encode_batch(records)[batches.HEADER_SIZE :]
    attributes = _attributes(raw)
    for at in range(len(raw)):
        for byte in {0, 1, 2, 127, 128, 255, raw[at] ^ 1, raw[at] ^ 64} - {raw[at]}:
            damaged = bytes((*raw[:at], byte, *raw[at + 1 :]))
            batch = of_records(bytes(compress(codec, damaged)), 3, codec)
            try:
                read = decode_batch(batch, info_of(batch), contiguous=True)
            except KafkaError:
                assert type(refused(batch)) is InvalidRecord
                continue
            if at in attributes and byte > 127:
                assert "attributes" in str(refused(batch))
            else:
                appended = validated(batch)
                assert decode_batch(appended, info_of(appended)) == read
                assert info_of(appended).max_timestamp == max(-1, *(r.timestamp for r in read))


def _attributes(raw: bytes) -> list[int]:
    """Return where the attributes of the records are: after their lengths."""
    cursor = RecordCursor(raw)
    found = []
    while not cursor.at_end():
        cursor.next()
        found.append(cursor.start + (2 if raw[cursor.start] > 127 else 1))
    return found


# -- compression.type ------------------------------------------------------------------------------

NAMES = {0: "uncompressed", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
def test_a_batch_is_stored_with_the_codec_of_the_topic(source: int, target: int) -> None:
    batch = encode_batch(
        some_records(50), codec=source, producer_id=7, producer_epoch=2, base_sequence=11
    )
    stored = validated(batch, compression_type=NAMES[target])
    assert validated(batch, compression_type="producer") == batch
    if source == target:
        assert stored == batch
        return
    before, after = info_of(batch), info_of(stored)
    batches.check_crc(stored, after)
    assert after.codec == target
    assert decode_batch(stored, after) == decode_batch(batch, before)
    kept = ("base_timestamp", "max_timestamp", "last_offset_delta", "record_count")
    kept += ("producer_id", "producer_epoch", "base_sequence", "base_offset", "leader_epoch")
    assert [getattr(after, each) for each in kept] == [getattr(before, each) for each in kept]


@pytest.mark.parametrize(
    ("codec", "setting", "low", "high"),
    [
        (1, "compression_gzip_level", 1, 9),
        (3, "compression_lz4_level", 9, 17),
        (4, "compression_zstd_level", -50, 19),
    ],
)
def test_the_level_of_the_codec_is_the_topics(
    codec: int, setting: str, low: int, high: int
) -> None:
    text = b" ".join(b"%d" % (n * n * 7919 % 100_003) for n in range(20_000))
    batch = encode_batch([Record(0, NOW_MS, None, text, ())])
    sizes = {
        level: len(validated(batch, compression_type=NAMES[codec], **{setting: level}))
        for level in (low, high)
    }
    assert sizes[high] < sizes[low]


def test_a_max_timestamp_that_is_wrong_is_corrected_in_a_batch_that_is_compressed_again() -> None:
    batch = encode_batch(some_records(5))
    right = info_of(batch).max_timestamp
    wrong = rebuilt(batch, max_timestamp=right + 5)
    stored = validated(wrong, compression_type="zstd")
    assert info_of(stored).max_timestamp == right
    stored = validated(wrong, compression_type="zstd", message_timestamp_type="LogAppendTime")
    assert info_of(stored).max_timestamp == right + 5  # the log stamps it


def test_invalid_records_are_not_compressed_again() -> None:
    batch = encode_batch([Record(0, NOW_MS, None, b"v", ())])
    error = refused(batch, compression_type="gzip", cleanup_policy=("compact",))
    assert [index for index, _ in error.record_errors] == [0]


@pytest.mark.parametrize("codec", [0, 1])
def test_much_is_compressed_again_in_a_pool(codec: int) -> None:
    size = log_validator.BRIEF_BYTES_TO_COMPRESS
    batch = encode_batch([Record(0, NOW_MS, None, bytes(size), ())], codec=codec)
    config = LogConfig(compression_type="zstd", max_message_bytes=1 << 20)
    validation = RecordValidation(batch, info_of(batch), config, NOW_MS)
    with pytest.raises(LongValidationError):
        validation.run_briefly()
    validation.run()
    stored, info = validation.result("t-0")
    assert info.codec == 4
    assert decode_batch(stored, info)[0].value == bytes(size)


def test_a_batch_that_exceeds_the_limit_when_it_is_compressed_again_is_too_large() -> None:
    batch = encode_batch([Record(0, NOW_MS, None, bytes(5000), ())], codec=4)
    validation = RecordValidation(
        batch,
        info_of(batch),
        LogConfig(compression_type="uncompressed", max_message_bytes=5000),
        NOW_MS,
    )
    with pytest.raises(LongValidationError):
        validation.run_briefly()
    validation.run()
    with pytest.raises(
        MessageTooLarge, match=r"compression\.type=uncompressed.* the limit is 5000"
    ):
        validation.result("t-0")
