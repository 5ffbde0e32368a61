"""The hash of one record in pure Python is that of the Spark tasks."""

from __future__ import annotations

import random

import pytest

from kclient.wire.batches import CONTROL, HEADER_SIZE, LOG_APPEND_TIME, TRANSACTIONAL, parse
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs.content_hash import MOST_BYTES, content_hash, siphash
from spark_jobs.hashes import content_hashes
from spark_jobs.record_arrays import Piece, decode_arrays
from spark_jobs.stored_record import Stored, record_at


def test_siphash_is_that_of_its_authors_test_vectors() -> None:
    key = bytes(range(16))
    assert siphash(b"", key) == 0x726FDB47DD0E0E31
    assert siphash(bytes(range(15)), key) == 0xA129CA6149BE45E5


@pytest.mark.parametrize("seed", range(30))
def test_the_hash_of_a_record_is_that_of_the_spark_task(seed: int) -> None:
    rng = random.Random(seed)
    records = [
        Record(
            n,
            rng.choice([-1, 0, 1_700_000_000_000, rng.randrange(1 << 60)]),
            rng.choice([None, b"", rng.randbytes(rng.randrange(300))]),
            rng.choice([None, b"", rng.randbytes(rng.randrange(20_000))]),
            rng.choice([(), [("a", b"1"), ("a", None), ("\u00e4" * rng.randrange(90), b"")]]),
        )
        for n in range(8)
    ]
    attributes = rng.choice([0, LOG_APPEND_TIME, CONTROL | TRANSACTIONAL])
    data = encode_batch(records, base_offset=50, attributes=attributes)
    info = parse(data)
    expected = content_hashes(decode_arrays([Piece(0, info, data[HEADER_SIZE:])])).tolist()
    found = []
    for offset in range(50, 58):
        record = record_at(offset, [(info, memoryview(data))])
        assert isinstance(record, Stored)
        found.append(content_hash(record))
    assert found == expected


def test_a_record_that_would_take_seconds_has_no_hash() -> None:
    data = encode_batch([Record(0, 1, None, bytes(MOST_BYTES))])
    record = record_at(0, [(parse(data), memoryview(data))])
    assert isinstance(record, Stored)
    assert content_hash(record) is None
