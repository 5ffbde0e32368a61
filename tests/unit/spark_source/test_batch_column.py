"""The column `batch` has the header of each record's batch, also beside a batch that cannot be decoded."""

from __future__ import annotations

import pytest

from kclient.wire.batches import parse
from kclient.wire.crc import crc32c
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs.cut import OffsetRange
from spark_jobs.reader import Fetched, RangeUnreadable
from spark_jobs.source.rows import row_batches

RANGES = [OffsetRange("t", 0, 0, 4)]


def batch(base: int, codec: int = 0) -> Fetched:
    """Return a batch of two records; *codec* is what its attributes state."""
    data = bytearray(encode_batch([Record(n, 5, b"k", b"v") for n in range(2)], base_offset=base))
    data[22] |= codec
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return Fetched(0, base, base + 2, parse(data), memoryview(bytes(data)))


def test_each_record_has_the_header_of_its_batch() -> None:
    rows = row_batches(
        [batch(0), batch(2)], RANGES, headers=False, fail_on_data_loss=True, batches=True
    )
    found = [row["batch"] for each in rows for row in each.to_pylist()]
    assert [each["baseOffset"] for each in found] == [0, 0, 2, 2]
    assert {each["codec"] for each in found} == {"none"}


def test_a_batch_of_an_unknown_codec_behind_good_ones_is_named() -> None:
    rows = row_batches(
        [batch(0), batch(2, codec=7)], RANGES, headers=False, fail_on_data_loss=True, batches=True
    )
    with pytest.raises(RangeUnreadable, match=r"offsets 2 to 3 were not read .*offset 2"):
        list(rows)
