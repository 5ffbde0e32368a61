"""The rows of the data source `kbroker` are the records, whatever they hold and however they are batched."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.wire.batches import CONTROL, TRANSACTIONAL, parse
from kclient.wire.compression import Codec
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs import arrow_batches
from spark_jobs.cut import OffsetRange
from spark_jobs.engine import FailureKind
from spark_jobs.reader import Fetched, RangeUnreadable, Unread
from spark_jobs.source.rows import arrow_schema, row_batches, spark_schema

fields = st.one_of(st.none(), st.binary(max_size=200), st.binary(max_size=3))
records = st.builds(
    Record,
    st.just(0),
    st.integers(-1, 1 << 50),
    fields,
    fields,
    st.lists(st.tuples(st.text(max_size=5), fields), max_size=3),
)
batches = st.lists(
    st.tuples(st.lists(records, min_size=1, max_size=6), st.booleans(), st.integers(0, 300)),
    max_size=5,
)


@settings(deadline=None)
@given(batches, st.booleans(), st.booleans(), st.integers(0, 40), st.sampled_from(Codec))
def test_rows_hold_the_records_of_their_range(
    drawn: list[tuple[list[Record], bool, int]],
    headers: bool,
    with_batch: bool,
    low: int,
    codec: Codec,
) -> None:
    ranges = [OffsetRange("other", 1, 0, 0), OffsetRange("t", 3, low, low + 2000)]
    fetched, expected, base = [], [], 0
    for content, control, gap in drawn:
        data = encode_batch(
            [record._replace(offset=n) for n, record in enumerate(content)],
            base_offset=base,
            attributes=(CONTROL | TRANSACTIONAL) if control else TRANSACTIONAL * (base % 2),
            codec=Codec.NONE if control else codec,
            leader_epoch=base % 7,
            producer_id=1000 + base,
            producer_epoch=base % 5,
            base_sequence=base,
        )
        info = parse(data)
        fetched.append(Fetched(1, low, low + 2000, info, memoryview(data)))
        for n, record in enumerate(content):
            if not control and low <= base + n < low + 2000:
                row = {
                    "key": record.key,
                    "value": record.value,
                    "topic": "t",
                    "partition": 3,
                    "offset": base + n,
                    "timestamp": record.timestamp * 1000,
                    "timestampType": 0,
                }
                if headers:
                    named = [{"key": name, "value": value} for name, value in record.headers]
                    row["headers"] = named or None
                if with_batch:
                    row["batch"] = {
                        "baseOffset": base,
                        "lastOffset": base + len(content) - 1,
                        "leaderEpoch": base % 7,
                        "crc": info.crc,
                        "codec": codec.name.lower(),
                        "producerId": 1000 + base,
                        "producerEpoch": base % 5,
                        "baseSequence": base,
                        "isTransactional": base % 2 == 1,
                        "records": len(content),
                        "size": len(data),
                    }
                expected.append(row)
        base += len(content) + gap
    found = []
    for batch in row_batches(
        fetched, ranges, headers=headers, fail_on_data_loss=True, batches=with_batch
    ):
        assert batch.schema == arrow_schema(headers=headers, batches=with_batch)
        batch.validate(full=True)
        times = batch.column("timestamp").cast("int64").to_pylist()
        rows = batch.drop_columns("timestamp").to_pylist()
        found += [{**row, "timestamp": time} for row, time in zip(rows, times, strict=True)]
    assert found == expected


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("batches", [False, True])
def test_spark_expects_these_arrow_batches(headers: bool, batches: bool) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = spark_schema(headers=headers, batches=batches)
    arrow = arrow_schema(headers=headers, batches=batches)
    assert to_arrow_schema(schema, timezone="UTC") == arrow
    assert all(field.nullable for field in schema.fields)


def test_a_header_key_that_is_not_utf8_is_read_as_by_kafkas_client() -> None:
    data = encode_batch([Record(0, 0, None, None, [("ab", b"1"), ("c", None)])])
    raw = bytearray(data)
    raw[raw.index(b"ab")] = 0xFF
    fetched = [Fetched(0, 0, 1, parse(bytes(raw)), memoryview(bytes(raw)))]
    (batch,) = row_batches(
        fetched, [OffsetRange("t", 0, 0, 1)], headers=True, fail_on_data_loss=True
    )
    assert batch.column("headers").to_pylist() == [
        [{"key": "\N{REPLACEMENT CHARACTER}b", "value": b"1"}, {"key": "c", "value": None}]
    ]


def test_a_timestamp_that_spark_cannot_hold_is_an_error() -> None:
    data = encode_batch([Record(0, 1 << 60, None, b"v")])
    fetched = [Fetched(0, 0, 1, parse(data), memoryview(data))]
    with pytest.raises(RangeUnreadable, match="outside of Spark's timestamps"):
        list(
            row_batches(fetched, [OffsetRange("t", 0, 0, 1)], headers=False, fail_on_data_loss=True)
        )


@pytest.mark.parametrize("kind", FailureKind)
def test_only_deleted_records_are_skipped_and_only_on_request(kind: FailureKind) -> None:
    ranges = [OffsetRange("t", 0, 0, 9)]
    unread = [Unread(0, 2, 9, kind, "t-0: because")]
    with pytest.raises(RangeUnreadable, match=r"offsets 2 to 8 were not read \(t-0: because\)"):
        list(row_batches(unread, ranges, headers=False, fail_on_data_loss=True))
    if kind is FailureKind.DELETED:
        assert list(row_batches(unread, ranges, headers=False, fail_on_data_loss=False)) == []
    else:
        with pytest.raises(RangeUnreadable):
            list(row_batches(unread, ranges, headers=False, fail_on_data_loss=False))


def test_each_record_has_the_header_of_its_batch_across_ranges_and_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow_batches, "CHUNK_RECORDS", 6)
    ranges = [OffsetRange("t", 0, 1, 10), OffsetRange("t", 0, 10, 20), OffsetRange("u", 0, 0, 20)]
    fetched = []
    for base in range(0, 20, 4):
        for number, of_topic in enumerate([(0, 1), (2,)]):
            content = [Record(n, 0, None, b"v") for n in range(4)]
            data = encode_batch(content, base_offset=base, producer_id=100 * number + base)
            info = parse(data)
            for each in of_topic:
                low, high = max(base, ranges[each].low), min(base + 4, ranges[each].high)
                if low < high:
                    fetched.append(Fetched(each, low, high, info, memoryview(data)))
    found = [
        (row["topic"], row["offset"], row["batch"]["producerId"])
        for batch in row_batches(
            fetched, ranges, headers=False, fail_on_data_loss=True, batches=True
        )
        for row in batch.drop_columns("timestamp").to_pylist()
    ]
    assert sorted(found) == [
        *(("t", at, at // 4 * 4) for at in range(1, 20)),
        *(("u", at, 100 + at // 4 * 4) for at in range(20)),
    ]
