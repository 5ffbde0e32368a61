"""The first record of a batch at or after a time, found without decoding the others."""

from __future__ import annotations

import random
import zlib

import pytest

from kclient.wire import batches
from kclient.wire.errors import InvalidRecord, MessageTooLarge
from kclient.wire.record_search import first_at_or_after
from kclient.wire.records import Record, decode_batch, encode_batch

LATEST_POSSIBLE = (1 << 63) - 1


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_is_what_decoding_all_records_finds(seed: int) -> None:
    rng = random.Random(seed)
    times = [
        rng.choice([rng.randrange(100), rng.randrange(1 << 40)])
        for _ in range(rng.randrange(1, 40))
    ]
    if seed % 4 == 0:
        times[rng.randrange(len(times))] = LATEST_POSSIBLE
    records = [
        Record(n, at, None, bytes(rng.randrange(200)), [("h", b"x")] * rng.randrange(3))
        for n, at in enumerate(times)
    ]
    batch = encode_batch(records, codec=seed % 5)
    info = batches.parse(batch)
    decoded = decode_batch(batch, info)
    for timestamp in {0, 50, 1 << 39, LATEST_POSSIBLE, *times}:
        for start in (0, len(times) // 2):
            expected = next(
                (
                    (each.timestamp, each.offset)
                    for each in decoded
                    if each.timestamp >= timestamp and each.offset >= start
                ),
                None,
            )
            assert first_at_or_after(batch, info, timestamp, start) == expected


def of_records(records: bytes, count: int, codec: int) -> bytes:
    """A batch with these bytes in place of its records."""
    batch = encode_batch([Record(0, 0, None, b"", ())])
    info = batches.parse(batch)
    fields = {
        name: getattr(info, name)
        for name in (
            "base_timestamp",
            "max_timestamp",
            "producer_id",
            "producer_epoch",
            "base_sequence",
        )
    }
    return bytes(
        batches.build(
            records,
            base_offset=0,
            attributes=codec,
            last_offset_delta=count - 1,
            record_count=count,
            **fields,
        )
    )


def test_a_decompression_bomb_is_message_too_large() -> None:
    bomb = zlib.compress(bytes(64 << 20), 9, wbits=31)
    batch = of_records(bomb, 1, codec=1)
    with pytest.raises(MessageTooLarge, match="decompress to more than 1048576 bytes"):
        first_at_or_after(batch, batches.parse(batch), 1, 0, max_size=1 << 20)


@pytest.mark.parametrize(
    "records", [b"", b"\x02", b"\x80", b"\xff" * 6, b"\x0e" + bytes(3), b"\x01"]
)
def test_records_that_are_none_are_an_error(records: bytes) -> None:
    batch = of_records(records, 3, codec=0)
    with pytest.raises(InvalidRecord):
        first_at_or_after(batch, batches.parse(batch), 1, 0)


def test_others_may_have_the_interpreter_every_thousand_records() -> None:
    batch = encode_batch([Record(n, 0, None, b"", ()) for n in range(10_000)])
    pauses: list[None] = []
    info = batches.parse(batch)
    assert first_at_or_after(batch, info, 1, 0, pause=lambda: pauses.append(None)) is None
    assert len(pauses) == 11


@pytest.mark.parametrize(
    "record",
    [
        b"\x0e\0\2\0\1\1\0\0",  # a timestamp one above the largest
        b"\x0e\0\0\6\1\1\0\0",  # an offset above the batch's last
        b"\x0e\0\0\1\1\1\0\0",  # an offset before its first
    ],
)
def test_a_timestamp_or_an_offset_that_cannot_be_is_an_error(record: bytes) -> None:
    batch = of_records(record, 1, codec=0)
    info = batches.parse(batch)._replace(base_timestamp=LATEST_POSSIBLE)
    with pytest.raises(InvalidRecord, match="a record has timestamp"):
        first_at_or_after(batch, info, 1, 0)
