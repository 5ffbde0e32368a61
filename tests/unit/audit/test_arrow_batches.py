"""What a Spark task returns: bounded Arrow batches, and sums that do not depend on batches, chunks, codecs or tasks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from kclient.wire.batches import LOG_APPEND_TIME, build, parse
from kclient.wire.record_writer import Record, encode_batch, encode_record
from spark_jobs import arrow_batches
from spark_jobs.arrow_batches import (
    chunks,
    digest_batches,
    hash_batches,
)
from spark_jobs.cut import OffsetRange
from spark_jobs.digest import WindowShape
from spark_jobs.reader import Fetched
from spark_jobs.record_arrays import RecordArrays

WHOLE = [OffsetRange("t", 3, 0, 1 << 40)]


def fetched(
    batches: Iterable[bytes], ranges: Sequence[OffsetRange] = WHOLE, number: int = 0
) -> list[Fetched]:
    _, _, low, high = ranges[number]
    return [Fetched(number, low, high, parse(each), memoryview(each)) for each in batches]


def log(count: int, size: int = 5, seed: int = 1) -> list[Record]:
    rng = random.Random(seed)
    return [
        Record(
            n,
            1_000_000 + rng.randrange(100_000),
            rng.choice([None, b"", b"key"]),
            rng.choice([None, b"", rng.randbytes(size)]),
            rng.choice([(), (("a", b"1"), ("a", None), ("b", b""))]),
        )
        for n in range(count)
    ]


def encoded(records: Sequence[Record], sizes: Sequence[int], codec: int = 0) -> list[bytes]:
    """Batches of the given sizes in turn."""
    found: list[bytes] = []
    at = 0
    while at < len(records):
        part = records[at : at + sizes[len(found) % len(sizes)]]
        found.append(encode_batch(part, base_offset=at, keep_offsets=True, codec=codec))
        at += len(part)
    return found


def digests(batches: Iterable[bytes], ranges: Sequence[OffsetRange] = WHOLE) -> list[object]:
    shape = WindowShape(100, 1_000_000, 10_000, 7)
    found = [
        row
        for each in digest_batches(fetched(batches, ranges), ranges, shape)
        for row in each.to_pylist()
    ]
    return sorted(found, key=str)


def test_digests_do_not_depend_on_batches_codecs_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    records = log(1000)
    expected = digests(encoded(records, [1000]))
    for codec in range(5):
        assert digests(encoded(records, [1, 7, 100, 33], codec)) == expected
    monkeypatch.setattr(arrow_batches, "CHUNK_RECORDS", 10)
    assert digests(encoded(records, [3, 50])) == expected
    monkeypatch.setattr(arrow_batches, "CHUNK_BYTES", 100)
    assert digests(encoded(records, [3, 50])) == expected


@pytest.mark.parametrize("first_ms", [0, -1, -60_000, 1_764_500_000_000, -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("buckets", [1, 60, 1 << 62])
def test_no_timestamp_is_in_the_bucket_of_another_one(first_ms: int, buckets: int) -> None:
    shape = WindowShape(100, first_ms, 60_000, buckets)
    near = (0, -1, 59_999, 60_000, 1_764_500_000_000)
    least, most = -(1 << 63), (1 << 63) - 1
    timestamps = sorted({*near, least, least + 1, most, most - 60_000, most - 60_001, first_ms})
    found = shape.buckets_of(np.array(timestamps, np.int64)).tolist()
    expected = [min(max(0, (each - first_ms) // 60_000), buckets - 1) for each in timestamps]
    assert found == expected


def test_the_digests_of_tasks_add_up_to_the_digest_of_the_whole() -> None:
    batches = encoded(log(1000), [17])
    parts = [
        row
        for low, high in ((0, 333), (333, 334), (334, 1000))
        for row in digests(batches, [OffsetRange("t", 3, low, high)])
    ]
    group = ("topic", "partition", "window", "bucket")
    sums: dict[object, dict[str, int]] = {}
    for row in parts:
        assert isinstance(row, dict)
        of_group = sums.setdefault(tuple(row[name] for name in group), dict.fromkeys(row, 0))
        for name in row.keys() - {*group, "unread"}:
            of_group[name] += row[name]
    whole = {}
    for row in digests(batches):
        assert isinstance(row, dict)
        whole[tuple(row[name] for name in group)] = row

    def folded(row: dict[str, int], name: str) -> int:
        return (row[f"{name}_low"] + (row[f"{name}_high"] << 32)) % (1 << 64)

    assert sums.keys() == whole.keys()
    for place, row in whole.items():
        for name in ("records", "bytes"):
            assert sums[place][name] == row[name]
        for name in ("content", "placed"):
            assert folded(sums[place], name) == folded(row, name)


@pytest.mark.parametrize(
    "changed",
    [
        Record(5, 1_000_005, b"", b"value"),
        Record(5, 1_000_005, None, None),
        Record(5, 1_000_005, None, b""),
        Record(5, 1_000_005, b"value", None),
        Record(5, 1_000_006, None, b"value"),
        Record(5, 1_000_005, None, b"value", (("a", b""),)),
        Record(5, 1_000_005, None, b"valu", (("", b""),)),
        Record(6, 1_000_005, None, b"value"),
    ],
)
def test_every_change_of_a_record_changes_its_digest(changed: Record) -> None:
    record = Record(5, 1_000_005, None, b"value")

    def digest(of: Record) -> list[object]:
        return digests([encode_batch([of], base_offset=of.offset, keep_offsets=True)])

    assert digest(record) == digest(record)
    assert digest(record) != digest(changed)
    assert digests([encode_batch([record], base_offset=5, attributes=LOG_APPEND_TIME)]) != digest(
        record
    )


def test_hashes_show_which_part_of_a_record_differs() -> None:
    records = [
        Record(0, 9, b"k", b"v", (("h", b"1"), ("i", b"2"))),
        Record(1, 9, b"", b"v", (("h", b"1"), ("i", b"2"))),
        Record(2, 9, None, b"v", (("i", b"2"), ("h", b"1"))),
        Record(3, 9, None, None),
        Record(4, 9, None, b""),
    ]
    (found,) = hash_batches(fetched([encode_batch(records)]), WHOLE)
    rows = found.to_pylist()
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert {(row["topic"], row["partition"], row["timestamp"]) for row in rows} == {("t", 3, 9)}
    assert [row["size"] for row in rows] == [2, 1, 1, 0, 0]
    assert len({row["content"] for row in rows}) == 5
    assert len({row["key"] for row in rows[:3]}) == 3
    assert len({row["value"] for row in rows}) == 3
    assert rows[0]["headers"] == rows[1]["headers"] != rows[2]["headers"]


def test_only_records_inside_the_range_are_returned() -> None:
    batches = encoded(log(30), [10])
    ranges = [OffsetRange("t", 0, 5, 12), OffsetRange("t", 0, 20, 21)]
    both = fetched(batches[:2], ranges, 0) + fetched(batches[2:], ranges, 1)
    found = [
        records.offsets.tolist()
        for records in chunks(both, ranges)
        if isinstance(records, RecordArrays)
    ]
    assert found == [[5, 6, 7, 8, 9, 10, 11, 20]]


def test_ten_thousand_random_contents_have_as_many_hashes() -> None:
    records = [Record(n, n % 3, b"%d" % (n % 7), b"%d" % n) for n in range(10_000)]
    (found,) = hash_batches(fetched(encoded(records, [500])), WHOLE)
    contents = np.array(found.column("content"))
    assert np.unique(contents).size == 10_000
    assert np.unique(contents & 0xFFFFFF).size > 9_980


@pytest.mark.parametrize("codec", range(5))
def test_what_is_decoded_at_once_is_bounded_by_bytes_also_if_they_compress_well(codec: int) -> None:
    large = [Record(n, 0, None, bytes(1 << 20), ()) for n in range(24)]
    # Seven small batches, then one above the limit, then seven small ones.
    batches = encoded(large, [1, 1, 1, 1, 1, 1, 1, 10, 1, 1, 1, 1, 1, 1, 1])
    found = list(chunks(fetched(batches), WHOLE))
    assert all(isinstance(each, RecordArrays) for each in found)
    counts = [each.offsets.size for each in found if isinstance(each, RecordArrays)]
    assert counts == [3, 3, 1, 10, 3, 3, 1]
    assert arrow_batches.CHUNK_BYTES == 4 << 20
    rows = [each.num_rows for each in hash_batches(fetched(batches), WHOLE)]
    assert rows == counts


def test_what_is_decoded_at_once_is_bounded_by_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batches, "CHUNK_RECORDS", 10)
    rows = [each.num_rows for each in hash_batches(fetched(encoded(log(40), [4])), WHOLE)]
    assert rows == [12, 12, 12, 4]


def test_a_batch_of_very_many_records_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six million empty records are a batch of 5 MB; decoded at once they took 1.6 GB."""
    records = log(1000)
    expected = digests(encoded(records, [1000]))
    monkeypatch.setattr(arrow_batches, "BATCH_RECORDS", 64)
    assert digests(encoded(records, [1000, 10])) == expected
    assert digests(encoded(records, [700, 300], codec=4)) == expected
    found = list(chunks(fetched(encoded(records, [1000])), WHOLE))
    assert [each.offsets.size for each in found if isinstance(each, RecordArrays)] == [64] * 15 + [
        40
    ]


@pytest.mark.parametrize("place", [0, 20_000, -1])
def test_a_batch_of_very_many_records_is_undecodable_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr(arrow_batches, "BATCH_RECORDS", 64)
    batch = bytearray(encode_batch([Record(n, 0, None, b"%030d" % n) for n in range(1000)]))
    header, rest = batch[:61], batch[61:]
    rest[place] ^= 0x81
    (found,) = chunks(fetched([bytes(header + rest)]), WHOLE)
    assert not isinstance(found, RecordArrays)
    assert (found.low, found.high) == (0, 1 << 40)


def test_parts_out_of_order_are_undecodable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batches, "BATCH_RECORDS", 2)
    whole = [encode_record(delta, 0, None, b"v") for delta in (0, 1, 1, 2)]
    batch = build(
        b"".join(whole), record_count=4, last_offset_delta=3, base_timestamp=0, max_timestamp=0
    )
    (found,) = chunks(fetched([batch]), WHOLE)
    assert not isinstance(found, RecordArrays)
    assert "does not follow" in found.cause
