"""`kclient consume`: patterns of records, decoders, and the last records of several partitions."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kclient.cli.commands import kclient
from kclient.cli.consume_tail import last_records
from kclient.cli.decoders import decoders
from kclient.cli.record_filter import record_filter
from kclient.types import Record, TopicPartition

JSON = b'{"status": "paid", "n": 12, "items": [{"id": "a-1"}], "none": null}'
RECORD = Record("t", 0, 1, 0, 0, b"order-7", JSON, [("a", b"1"), ("a", b"two"), ("b", None)])


@pytest.mark.parametrize(
    ("key", "value", "headers", "accepted"),
    [
        ("order-*", None, (), True),
        ("order", None, (), False),
        ("ORDER-7", None, (), False),
        ("order-?", None, (), True),
        ("re:^order", None, (), True),
        ("re:^rder", None, (), False),
        ("re:r-\\d$", None, (), True),
        (None, "*paid*", (), True),
        (None, ".status=paid", (), True),
        (None, ".status=pai", (), False),
        (None, ".n=12", (), True),
        (None, ".n=re:^1", (), True),
        (None, ".items.0.id=a-*", (), True),
        (None, ".items.1.id=a-*", (), False),
        (None, ".none=null", (), True),
        (None, ".missing=*", (), False),
        (None, None, ("a",), True),
        (None, None, ("c",), False),
        (None, None, ("a=two",), True),
        (None, None, ("a=three",), False),
        (None, None, ("b",), True),
        (None, None, ("b=*",), False),
        ("order-*", ".n=12", ("a=1", "b"), True),
        ("order-*", ".n=13", ("a=1", "b"), False),
    ],
)
def test_a_record_matches_all_patterns(
    key: str | None, value: str | None, headers: tuple[str, ...], accepted: bool
) -> None:
    accept = record_filter(key, value, headers)
    assert accept is not None
    assert accept(RECORD) is accepted


def test_null_matches_no_pattern_and_bytes_match_as_escapes() -> None:
    everything = record_filter("*", "*", ())
    assert everything is not None
    assert not everything(RECORD._replace(value=None))
    assert not everything(RECORD._replace(key=None))
    assert everything(RECORD._replace(value=b"two\nlines"))
    escaped = record_filter(r"*\xff", None, ())
    assert escaped is not None
    assert escaped(RECORD._replace(key=b"k\xff"))
    decoded = record_filter(None, ".status=paid", ())
    assert decoded is not None
    assert decoded(RECORD._replace(value={"status": "paid"}))
    assert not decoded(RECORD._replace(value=b"no json"))


def test_no_pattern_is_no_filter() -> None:
    assert record_filter(None, None, ()) is None


@pytest.mark.parametrize("words", [("--filter-key", "re:("), ("--filter-header", "=x")])
def test_a_wrong_pattern_is_a_usage_error(words: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(kclient, ["consume", "t", *words])
    assert ended.exit_code == 2


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_decoded_as_kafkas_serializers_write_them(first: int, second: int) -> None:
    found = decoders(("key=int32", "value=int64"), None)
    assert found["key"](struct.pack(">i", first)) == first
    assert found["value"](second.to_bytes(8, "big", signed=True)) == second


def test_numbers_of_another_size_are_refused() -> None:
    decode = decoders(("value=<hB",), None)["value"]
    assert decode(b"\1\0\2") == [1, 2]
    with pytest.raises(ValueError, match="2 bytes; <hB has 3"):
        decode(b"\1\0")


@pytest.mark.parametrize(
    "text", ["value=i", "value=>", "value=>Z", "other=int32", "value", "value=avro"]
)
def test_what_is_no_decoder_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"-s|decoder"):
        decoders((text,), None)


# --- the last records


class InMemoryLogs:
    """A consumer of logs in memory: offsets without a record are markers, or compacted records."""

    def __init__(self, logs: dict[TopicPartition, list[Record[Any, Any] | None]]) -> None:
        self._logs = logs
        self._position: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self.polled = 0

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self._position[tp] = offset

    def pause(self, *tps: TopicPartition) -> None:
        self._paused.update(tps)

    def resume(self, *tps: TopicPartition) -> None:
        self._paused.difference_update(tps)

    def next_offset(self, tp: TopicPartition) -> int:
        return self._position[tp]

    async def poll(self, *, timeout: float) -> dict[TopicPartition, list[Record[Any, Any]]]:
        found = {}
        for tp, log in self._logs.items():
            if tp in self._paused or self._position[tp] >= len(log):
                continue
            start = self._position[tp]
            self._position[tp] = min(len(log), start + 3)
            records = [each for each in log[start : start + 3] if each is not None]
            self.polled += len(records)
            if records:
                found[tp] = records
        return found


@given(
    st.lists(st.lists(st.none() | st.integers(0, 50), max_size=40), min_size=1, max_size=3),
    st.integers(0, 12),
    st.booleans(),
)
def test_the_last_records_are_those_of_a_whole_read(
    timestamps: list[list[int | None]], count: int, filtered: bool
) -> None:
    """Timestamps grow in each partition, as with one producer; offsets may be empty."""
    logs: dict[TopicPartition, list[Record[Any, Any] | None]] = {}
    for partition, times in enumerate(timestamps):
        latest = 0
        rows: list[Record[Any, Any] | None] = []
        for offset, delta in enumerate(times):
            latest += delta or 0
            row = Record("t", partition, offset, latest, 0, None, b"%d" % (offset % 3))
            rows.append(None if delta is None else row)
        logs[TopicPartition("t", partition)] = rows
    consumer = InMemoryLogs(logs)
    starts = dict.fromkeys(logs, 0)
    ends = {tp: len(rows) for tp, rows in logs.items()}
    accept = record_filter(None, "1", ()) if filtered else None
    coroutine = last_records(consumer, starts, ends, count, accept)
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    every = [
        each for rows in logs.values() for each in rows if each and (accept is None or accept(each))
    ]
    every.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
    assert stopped.value.value == (every[-count:] if count else [])
    assert all(consumer.next_offset(tp) == end for tp, end in ends.items())
