"""Rows that are sent as columns are the records that were given: each once, in order, where `send` would put them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.consumer.partitions import FetchedBatch, Partitions
from kclient.consumer.records import take_records
from kclient.producer.partitioner import partition_for_key
from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.compression import Codec
from tests.kit.producer_fixture import ProducerFixture
from tests.kit.property_tests import examples
from tests.kit.record_batches import NOW_MS, maybe_bytes

PARTITIONS = 3
HEADERS = [("trace", b"1"), ("none", None)]


def polled(made: ProducerFixture) -> dict[int, list[tuple[Any, ...]]]:
    """What a poll of each partition returns of what was produced: offset, timestamp, key, value, headers."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for (topic, partition), log in made.logs.items():
        tp = TopicPartition(topic, partition)
        partitions = Partitions()
        partitions.assign([tp])
        state = partitions.get(tp)
        assert state is not None
        state.seek(0)
        fetched = [FetchedBatch(batches.parse(raw), memoryview(raw), False) for raw in log]
        state.fetched(fetched, fetched[-1].info.next_offset, sum(map(len, log)))
        found[partition] = [
            (r.offset, r.timestamp, r.key, r.value, list(r.headers))
            for r in take_records(state, 1 << 20)
        ]
    return found


def as_array(fields: Sequence[bytes | None], kind: Any, cuts: list[int]) -> Any:
    """The fields as an array of Arrow: in pieces, each a slice of a longer array."""
    ends = sorted({min(cut, len(fields)) for cut in cuts} | {len(fields)})
    chunks = []
    begin = 0
    for end in ends:
        longer = pa.array([b"before", None, *fields[begin:end], b"after"], pa.binary()).cast(kind)
        chunks.append(longer.slice(2, end - begin))
        begin = end
    return chunks[0] if len(chunks) == 1 else pa.chunked_array(chunks, kind)


rows = st.lists(
    st.tuples(maybe_bytes, maybe_bytes, st.integers(0, 1 << 45) | st.just(NOW_MS)),
    min_size=1,
    max_size=40,
)
forms = st.sampled_from(["list", pa.binary(), pa.large_binary(), "table", "batch"])
settings_of_producers = st.fixed_dictionaries(
    {
        "batch_size": st.sampled_from([100, 400, 16_384]),
        "columns_batch_size": st.sampled_from([0, 400, 1_000_000]),
        "buffer_memory": st.sampled_from([600, 1 << 20]),
        "compression_type": st.sampled_from([Codec(n).name.lower() for n in range(5)]),
        "enable_idempotence": st.booleans(),
        "partitioner_ignore_keys": st.booleans(),
    }
)


@given(
    given_rows=rows,
    form=forms,
    cuts=st.lists(st.integers(0, 40), max_size=3),
    has_keys=st.booleans(),
    partition=st.none() | st.integers(0, PARTITIONS - 1),
    has_headers=st.booleans(),
    options=settings_of_producers,
)
@settings(max_examples=examples(120), deadline=None)
def test_rows_are_polled_as_they_were_given(
    given_rows: list[tuple[bytes | None, bytes | None, int]],
    form: Any,
    cuts: list[int],
    has_keys: bool,
    partition: int | None,
    has_headers: bool,
    options: dict[str, Any],
) -> None:
    keys = [key if has_keys else None for key, _, _ in given_rows]
    values = [value for _, value, _ in given_rows]
    times = [time for _, _, time in given_rows]
    made = ProducerFixture({"t": PARTITIONS}, **options)
    data: Any = values
    also: dict[str, Any] = {"keys": keys if has_keys else None, "timestamps_ms": times}
    if form in ("table", "batch"):
        columns = {"value": as_array(values, pa.binary(), [] if form == "batch" else cuts)}
        if has_keys:
            columns["key"] = as_array(keys, pa.binary(), [] if form == "batch" else cuts[1:])
        columns["timestamp"] = pa.array(times, pa.timestamp("ms", tz="UTC"))
        data = (pa.table if form == "table" else pa.record_batch)(columns)
        also = {}
    elif form != "list":
        data = as_array(values, form, cuts)
        also["keys"] = as_array(keys, form, cuts[1:]) if has_keys else None
        also["timestamps_ms"] = pa.array(times, pa.int64())
    headers = HEADERS if has_headers else []
    outcome = made.send_columns(data, partition=partition, headers=headers, **also)
    made.deliver()
    assert outcome.value.row_count == len(given_rows)
    found = polled(made)
    stored = {each.partition: (each.base_offset, each.row_count) for each in outcome.value.ranges}
    assert stored == {p: (0, len(records)) for p, records in found.items()}
    expected = [
        (time, key, value, headers) for key, value, time in zip(keys, values, times, strict=True)
    ]
    for place, records in found.items():
        assert [offset for offset, *_ in records] == list(range(len(records)))
        rest = iter(expected)
        assert all(tuple(record[1:]) in rest for record in records), "not the order of the rows"
        for record in records:
            if partition is not None:
                assert place == partition
            elif record[2] is not None and not options["partitioner_ignore_keys"]:
                assert place == partition_for_key(record[2], PARTITIONS)
    sent = [tuple(record[1:]) for records in found.values() for record in records]
    assert sorted(map(repr, sent)) == sorted(map(repr, expected))
    for log in made.logs.values():
        for raw in log:
            info = batches.parse(raw)
            decompressed = len(raw) if not info.codec else 0
            most = max(options["batch_size"], options["columns_batch_size"])
            assert info.record_count == 1 or decompressed <= most
