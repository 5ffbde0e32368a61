"""`kaudit explain` finds a record by its offset in whole batches, or names why there is none."""

from __future__ import annotations

import random

import pytest

from kclient.wire.batches import CONTROL, TRANSACTIONAL, BatchInfo, parse
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs.stored_record import Absent, Found, Stored, Undecodable, record_at

Batch = tuple[BatchInfo, memoryview]


def batch(data: bytes | bytearray) -> Batch:
    return parse(data), memoryview(bytes(data))


@pytest.mark.parametrize("seed", range(40))
def test_every_offset_of_a_log_with_holes_has_its_record_or_none(seed: int) -> None:
    rng = random.Random(seed)
    batches: list[Batch] = []
    kept: dict[int, Record] = {}
    end = 0
    for _ in range(rng.randrange(1, 6)):
        base = end + rng.choice([0, 0, 3])
        size = rng.randrange(1, 8)
        chosen = sorted(rng.sample(range(base, base + size), rng.randrange(1, size + 1)))
        records = [
            Record(offset, rng.randrange(10**13), rng.choice([None, b"", b"k"]), b"%d" % offset)
            for offset in chosen
        ]
        encoded = encode_batch(
            records,
            codec=rng.choice([0, 1, 3, 4]),
            base_offset=base,
            keep_offsets=True,
            last_offset_delta=size - 1,
        )
        batches.append(batch(encoded))
        kept |= dict(zip(chosen, records, strict=True))
        end = base + size
    for offset in range(end):
        found = record_at(offset, batches)
        if offset in kept:
            assert isinstance(found, Stored)
            assert found.crc_problem is None
            assert found.offset == offset
            assert (found.timestamp, found.key, found.value) == kept[offset][1:4]
        else:
            assert isinstance(found, Absent)
    assert record_at(end, batches) is None


def record_of(data: bytes | bytearray, offset: int) -> Found | None:
    return record_at(offset, [batch(data)])


def test_a_record_of_a_batch_with_a_wrong_crc_is_shown_with_the_problem() -> None:
    damaged = bytearray(encode_batch([Record(0, 1, b"k", b"value")], base_offset=7))
    damaged[-3] ^= 1
    found = record_of(damaged, 7)
    assert isinstance(found, Stored)
    assert found.crc_problem is not None
    assert "CRC-32C" in found.crc_problem
    assert found.value != b"value"


def test_a_batch_that_can_not_be_decoded_is_returned_as_bytes() -> None:
    damaged = bytearray(encode_batch([Record(0, 1, b"k", b"value")], base_offset=7))
    damaged[61] ^= 0x55
    found = record_of(damaged, 7)
    assert isinstance(found, Undecodable)
    assert found.data == bytes(damaged)
    assert found.crc_problem is not None


def test_a_transaction_marker_is_a_record_of_the_log() -> None:
    marker = encode_batch(
        [Record(0, 5, bytes((0, 0, 0, 1)), bytes(6))],
        base_offset=3,
        attributes=CONTROL | TRANSACTIONAL,
    )
    found = record_of(marker, 3)
    assert isinstance(found, Stored)
    assert found.batch.is_control
