"""Records as columns are the records of `poll`: every kind of batch, cut anywhere, corrupt or not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.consumer import arrow
from kclient.consumer.partitions import FetchedBatch, Partitions, PartitionState
from kclient.consumer.records import take_records
from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.errors import KafkaError
from kclient.wire.records import encode_batch
from tests.kit.property_tests import examples
from tests.kit.record_batches import codecs, record_lists

TP = TopicPartition("t", 3)


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[bytes, bool]]:
    """Encoded batches in order, with holes as of compaction, and whether each is invisible to the consumer."""
    log = []
    offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(1, 4))):
        records = draw(record_lists)
        gaps = draw(st.lists(st.integers(1, 3), min_size=len(records), max_size=len(records)))
        base = offset
        kept = []
        for record, gap in zip(records, gaps, strict=True):
            kept.append(record._replace(offset=offset))
            offset += gap
        raw = encode_batch(
            kept,
            codec=draw(codecs),
            base_offset=base,
            leader_epoch=draw(st.integers(-1, 3)),
            keep_offsets=True,
            last_offset_delta=offset - base - 1,
        )
        if draw(st.booleans()):
            raw = batches.with_log_append_time(raw, batches.parse(raw), 1_700_000_000_000)
        log.append((raw, draw(st.integers(0, 4)) == 0))
        offset += draw(st.integers(0, 2))
    return log


def consuming(log: list[tuple[bytes, bool]], skipped: int) -> PartitionState:
    """A partition that has fetched *log*; its position is *skipped* offsets behind the beginning."""
    partitions = Partitions()
    partitions.assign([TP])
    state = partitions.get(TP)
    assert state is not None
    fetched = [
        FetchedBatch(batches.parse(raw), memoryview(raw), is_hidden) for raw, is_hidden in log
    ]
    state.seek(fetched[0].info.base_offset + skipped)
    state.fetched(fetched, fetched[-1].info.next_offset, sum(len(raw) for raw, _ in log))
    return state


def by_poll(state: PartitionState, most: int) -> list[tuple[Any, ...]]:
    return [
        (*record[:7], list(record.headers), record.leader_epoch)
        for record in take_records(state, most)
    ]


def by_arrow(state: PartitionState, most: int) -> list[tuple[Any, ...]]:
    taken = arrow.take_places(state, most)
    made = arrow.table({TP: taken})
    made.validate(full=True)
    millis = made["timestamp"].cast("int64")
    rows = made.set_column(3, "timestamp", millis).to_pylist()
    for row in rows:
        row["headers"] = [(header["name"], header["value"]) for header in row["headers"]]
    return [tuple(row.values()) for row in rows]


def all_of(state: PartitionState, sizes: list[int], take: Any) -> tuple[Any, ...]:
    """The records of polls of *sizes*, the error that ended them, and where the consumer is then."""
    found = []
    turn = 0
    while True:
        try:
            some = take(state, sizes[turn % len(sizes)])
        except KafkaError as problem:
            return found, type(problem), state.position
        if not some:
            return found, None, (state.position, state.leader_epoch, state.buffered_bytes)
        found += some
        turn += 1


sizes_of_polls = st.lists(st.integers(1, 30), min_size=1, max_size=4)


@given(log=logs(), skipped=st.integers(0, 70), sizes=sizes_of_polls)
@settings(max_examples=examples(60), deadline=None)
def test_columns_are_the_records_of_polls(
    log: list[tuple[bytes, bool]], skipped: int, sizes: list[int]
) -> None:
    expected = all_of(consuming(log, skipped), sizes, by_poll)
    assert all_of(consuming(log, skipped), sizes, by_arrow) == expected


@given(log=logs(), sizes=sizes_of_polls)
@settings(max_examples=examples(20), deadline=None)
def test_a_poll_for_records_goes_on_where_columns_ended(
    log: list[tuple[bytes, bool]], sizes: list[int]
) -> None:
    expected, _, _ = all_of(consuming(log, 0), [1000], by_poll)
    state = consuming(log, 0)
    first = by_arrow(state, sizes[0])
    rest, _, _ = all_of(state, [1000], by_poll)
    assert first + rest == expected


@given(log=logs(), data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_what_one_path_rejects_the_other_rejects_with_the_same_error(
    log: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    broken = [(bytearray(raw), is_hidden) for raw, is_hidden in log]
    raw, _ = data.draw(st.sampled_from(broken))
    at = data.draw(st.integers(batches.HEADER_SIZE, len(raw) - 1))
    raw[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    changed = [(bytes(raw), is_hidden) for raw, is_hidden in broken]
    expected = all_of(consuming(changed, 0), [7], by_poll)
    assert all_of(consuming(changed, 0), [7], by_arrow) == expected


def test_no_records_are_an_empty_table_with_the_same_columns() -> None:
    empty = arrow.table({})
    assert empty.num_rows == 0
    assert empty.schema == arrow.schema()


def test_the_error_without_pyarrow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"kbroker\[arrow\]"):
        arrow.require_pyarrow()
