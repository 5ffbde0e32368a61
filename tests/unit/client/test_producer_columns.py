"""send_columns: back-pressure, refusals, which rows were not acknowledged, arguments that are refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kclient.errors import (
    BufferExhausted,
    ClientClosed,
    KafkaTimeoutError,
    RowsNotAcknowledged,
    SerializationError,
    TransactionStateError,
)
from kclient.producer.batch import RECORD_OVERHEAD
from kclient.producer.columns import CHUNK
from kclient.producer.waiters import WaitingColumns
from kclient.wire.batches import parse
from kclient.wire.errors import (
    ErrorCode,
    KafkaError,
    MessageTooLarge,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kclient.wire.records import decode_batch
from kclient.wire.versions import ApiKey
from tests.kit.producer_fixture import ProducerFixture
from tests.kit.scripted_broker import Outcome

ROW = b"x" * 100
IN_A_BATCH = 4
MANY = [None if n % 7 == 3 else b"%d" % n for n in range(2 * CHUNK + 100)]
SMALL = {
    "batch_size": 61 + IN_A_BATCH * (len(ROW) + RECORD_OVERHEAD),
    "columns_batch_size": 0,
    "linger_ms": 0,
}


def make(**settings: Any) -> ProducerFixture:
    """A producer that knows topic t, of one partition."""
    made = ProducerFixture({"t": 1}, **settings)
    made.send_columns([b"first"])
    made.deliver()
    made.logs.clear()
    return made


def values_of(made: ProducerFixture, partition: int = 0) -> list[bytes | None]:
    return [
        record.value
        for raw in made.logs.get(("t", partition), [])
        for record in decode_batch(raw, parse(raw))
    ]


def numbered(count: int) -> list[bytes | None]:
    return [b"%0100d" % n for n in range(count)]


def test_rows_wait_for_memory_and_a_later_send_waits_behind_them() -> None:
    made = make(buffer_memory=1200, **SMALL)
    rows = numbered(40)
    outcome = made.send_columns(rows)
    later = Outcome(made.producer.send("t", b"later"))
    assert made.producer.accumulator.used <= 1200
    assert made.producer.undelivered == 41
    assert not outcome.fired
    made.deliver()
    assert outcome.value.row_count == 40
    assert later.value.offset == 41
    assert values_of(made) == [*rows, b"later"]


def test_rows_without_room_for_max_block_fail_and_the_others_are_acknowledged() -> None:
    made = make(buffer_memory=1200, max_block_ms=1000, **SMALL)
    outcome = made.send_columns(numbered(40))
    made.scripted.pass_time(1.5)
    assert not outcome.fired, "two batches are in flight"
    assert made.producer.undelivered == 2 * IN_A_BATCH
    made.deliver()
    problem = outcome.error
    assert isinstance(problem, RowsNotAcknowledged)
    assert isinstance(problem.cause, BufferExhausted)
    assert problem.retriable == BufferExhausted.retriable
    assert list(problem.rows) == list(range(2 * IN_A_BATCH, 40))
    assert problem.acknowledged.ranges == ((0, 1, 2 * IN_A_BATCH),)
    assert "32 of 40 rows for topic 't' were not acknowledged: buffer.memory" in str(problem)


def test_max_block_begins_again_with_each_batch() -> None:
    made = make(buffer_memory=1200, max_block_ms=1000, **SMALL)
    outcome = made.send_columns(numbered(40))
    for _ in range(30):
        made.scripted.pass_time(0.6)
        made.answer()
    assert outcome.value.row_count == 40


def test_a_refused_batch_names_its_rows() -> None:
    made = make(enable_idempotence=False, **SMALL)
    outcome = made.send_columns(numbered(3 * IN_A_BATCH))
    made.scripted.pass_time(0.1)
    made.answer(int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    made.deliver()
    problem = outcome.error
    assert isinstance(problem, RowsNotAcknowledged)
    assert isinstance(problem.cause, TopicAuthorizationFailed)
    assert not problem.retriable
    assert list(problem.rows) == list(range(IN_A_BATCH))
    assert values_of(made) == numbered(3 * IN_A_BATCH)[IN_A_BATCH:]


def test_rows_in_order_have_a_batch_size_of_their_own() -> None:
    made = make(**{**SMALL, "columns_batch_size": 61 + 10 * (len(ROW) + RECORD_OVERHEAD)})
    made.send_columns(numbered(20))
    for row in numbered(20):
        made.producer.send("t", row)
    made.deliver()
    counts = [parse(raw).record_count for raw in made.logs["t", 0]]
    assert counts == [10, 10, *[IN_A_BATCH] * 5]


def test_batches_of_rows_are_smaller_after_one_was_too_large() -> None:
    made = make(enable_idempotence=False, **{**SMALL, "columns_batch_size": 1 << 20})
    made.send_columns(numbered(100))
    made.scripted.pass_time(0.1)
    made.answer(int(ErrorCode.MESSAGE_TOO_LARGE))
    made.deliver()
    made.send_columns(numbered(100))
    made.deliver()
    counts = [parse(raw).record_count for raw in made.logs["t", 0]]
    assert counts[:2] == [50, 50]
    assert len(counts) > 3
    assert max(counts[2:]) <= 50


def test_batches_of_rows_leave_room_for_others_in_memory() -> None:
    made = make(buffer_memory=80_000, columns_batch_size=1 << 20, batch_size=1000)
    made.send_columns(numbered(1000))
    made.deliver()
    assert max(len(raw) for raw in made.logs["t", 0]) <= 10_000


def test_a_batch_that_the_broker_finds_too_large_is_split() -> None:
    made = make(enable_idempotence=False, **SMALL)
    rows = numbered(2 * IN_A_BATCH)
    outcome = made.send_columns(rows)
    made.scripted.pass_time(0.1)
    made.answer(int(ErrorCode.MESSAGE_TOO_LARGE))
    made.scripted.pass_time(0.1)
    made.answer()
    made.scripted.pass_time(0.1)
    made.answer(int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    made.deliver()
    problem = outcome.error
    assert isinstance(problem, RowsNotAcknowledged)
    assert list(problem.rows) == [2, 3]
    assert values_of(made) == rows[:2] + rows[4:]


def test_a_broker_that_is_gone_fails_the_rows_after_the_delivery_timeout() -> None:
    made = make(delivery_timeout_ms=3000, request_timeout_ms=1000, **SMALL)
    outcome = made.send_columns(numbered(10), keys=[b"k"] * 10)
    for _ in range(40):
        made.scripted.pass_time(0.1)
        for asked in made.scripted.waiting(ApiKey.PRODUCE):
            asked.fail()
    problem = outcome.error
    assert isinstance(problem, RowsNotAcknowledged)
    assert isinstance(problem.cause, KafkaTimeoutError)
    assert list(problem.rows) == list(range(10))


def test_a_connection_that_breaks_is_no_error_and_the_sequences_go_on() -> None:
    made = make(**SMALL)
    rows = numbered(10)
    outcome = made.send_columns(rows)
    made.scripted.pass_time(0.1)
    for each in made.scripted.waiting(ApiKey.PRODUCE):
        each.fail()
    made.deliver()
    assert outcome.value.row_count == 10
    assert values_of(made) == rows
    assert made.sequences["t", 0] == 11


def test_batches_that_are_ready_are_sent_up_to_the_limit_without_waiting_for_answers() -> None:
    """One request was sent for each answer, if no record was appended meanwhile: a round trip for each batch."""
    made = make(**SMALL)
    outcome = made.send_columns(numbered(6 * IN_A_BATCH))
    made.scripted.pass_time(0.1)
    assert len(made.scripted.waiting(ApiKey.PRODUCE)) == 5, "max.in.flight.requests.per.connection"
    made.answer()
    made.scripted.pass_time(0.1)
    assert len(made.scripted.waiting(ApiKey.PRODUCE)) == 5
    made.deliver()
    assert outcome.value.row_count == 6 * IN_A_BATCH
    assert values_of(made) == numbered(6 * IN_A_BATCH)


def test_rows_outside_a_transaction_are_refused() -> None:
    made = ProducerFixture({"t": 1}, transactional_id="x")
    assert isinstance(made.send_columns([b"a"]).error, TransactionStateError)


def test_closing_fails_the_rows_that_wait_and_counts_them() -> None:
    made = make(buffer_memory=1200, **SMALL)
    outcome = made.send_columns(numbered(40))
    closed = Outcome(made.producer.close(0.0))
    problem = outcome.error
    assert isinstance(problem, RowsNotAcknowledged)
    assert isinstance(problem.cause, ClientClosed)
    assert len(problem.rows) == closed.value.undelivered == 40
    assert isinstance(made.send_columns([b"x"]).error, ClientClosed)


def test_an_unknown_topic_fails_all_rows_after_max_block() -> None:
    made = make(max_block_ms=1000)
    outcome = made.send_columns([b"a", b"b"], topic="nope")
    made.scripted.pass_time(1.5)
    problem = outcome.error
    assert isinstance(problem, RowsNotAcknowledged)
    assert isinstance(problem.cause, UnknownTopicOrPartition)
    assert list(problem.rows) == [0, 1]


def test_many_rows_take_more_than_one_turn_of_the_reactor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitingColumns, "bytes_in_a_turn", 900)
    made = make(**SMALL)
    outcome = made.send_columns(numbered(40))
    assert made.producer.accumulator.records == 2 * IN_A_BATCH
    made.deliver()
    assert values_of(made) == numbered(40)
    assert outcome.value.row_count == 40


def test_a_custom_partitioner_is_asked_for_each_row() -> None:
    asked: list[Any] = []

    def second(topic: str, key: bytes | None, partitions: Any) -> int | None:
        asked.append(key)
        return None if key == b"default" else 1

    made = ProducerFixture({"t": 2}, partitioner=second)
    outcome = made.send_columns([b"a", b"b", b"c"], keys=[b"x", None, b"default"])
    made.deliver()
    assert asked == [b"x", None, b"default"]
    assert values_of(made, 1)[:2] == [b"a", b"b"]
    assert outcome.value.row_count == 3


def test_an_error_of_the_partitioner_is_the_error_of_the_rows() -> None:
    def broken(topic: str, key: bytes | None, partitions: Any) -> int:
        raise ValueError("no idea")

    made = ProducerFixture({"t": 1}, partitioner=broken)
    outcome = made.send_columns([b"a"])
    made.deliver()
    assert isinstance(outcome.error, RowsNotAcknowledged)
    assert "no idea" in str(outcome.error)


def test_no_rows_are_acknowledged_at_once() -> None:
    made = make()
    assert made.send_columns([]).value == ("t", 0, ())
    assert made.send_columns(pa.array([], pa.binary())).value == ("t", 0, ())
    assert made.send_columns(pa.table({"value": pa.array([], pa.binary())})).value.row_count == 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["text", b"bytes", bytearray(b"more"), None], [b"text", b"bytes", b"more", None]),
        ((each for each in (b"a", b"b")), [b"a", b"b"]),
        (pa.array(["text", None, ""]), [b"text", None, b""]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), [b"a", b"b", b"a"]),
        (pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
        (pa.array([b"a", None], pa.binary_view()), [b"a", None]),
        (pa.nulls(2), [None, None]),
        (pa.array(MANY), MANY),
        (
            pa.chunked_array([MANY[:700], pa.array([], pa.binary()), MANY[700:800], MANY[800:]]),
            MANY,
        ),
    ],
    ids=[
        "objects",
        "generator",
        "strings",
        "dictionary",
        "fixed",
        "view",
        "nulls",
        "many",
        "pieces",
    ],
)
def test_a_column_may_be(values: Any, expected: list[bytes | None]) -> None:
    made = make()
    assert made.send_columns(values) is not None
    made.deliver()
    assert values_of(made) == expected


@pytest.mark.parametrize(
    ("values", "options", "error", "text"),
    [
        (b"abc", {}, TypeError, "values are a column, not bytes"),
        ({"value": [b"a"]}, {}, TypeError, "values are a column, not dict"),
        ({b"a", b"b"}, {}, TypeError, "values are a column, not set"),
        ([b"a"], {"timestamps_ms": "now"}, SerializationError, "timestamp 'now'"),
        ([b"a"], {"timestamps_ms": 1.5}, SerializationError, "timestamp 1.5"),
        (7, {}, TypeError, "values are a column, not int"),
        ([1], {}, SerializationError, "row 0 for topic 't' is of type int"),
        (pa.array([1]), {}, SerializationError, "of type int64: give an array of binary"),
        ([b"a"], {"keys": [b"k", b"k"]}, ValueError, "1 values have 2 keys"),
        ([b"a"], {"timestamps_ms": [1, 2]}, ValueError, "1 values have 2 timestamps"),
        ([b"a"], {"timestamps_ms": -1}, SerializationError, "timestamp -1"),
        ([b"a"], {"timestamps_ms": pa.array([None], pa.int64())}, SerializationError, "1 nulls"),
        ([b"a", b"b"], {"timestamps_ms": [1, 1.5]}, SerializationError, "row 1"),
        ([b"a"], {"partition": 9}, RowsNotAcknowledged, "t has partitions 0 to 0, not 9"),
        (pa.table({"value": [b"a"], "price": [1]}), {}, SerializationError, "a column 'price'"),
        (pa.table({"key": [b"a"]}), {}, SerializationError, "needs one column 'value'"),
        (pa.table({"value": [b"a"]}), {"keys": [b"k"]}, TypeError, "columns key and timestamp"),
        ([b"a", b"x" * 2000], {}, MessageTooLarge, "row 1: a record of about 2012 bytes"),
        (
            pa.table({"value": [b"a"], "headers": [[{"name": "h", "value": b"1"}]]}),
            {},
            SerializationError,
            "has headers",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_before_the_first_row(
    values: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    made = make(max_request_size=1000)
    with pytest.raises(error) as caught:
        assert made.send_columns(values, **options).value
    assert text in str(caught.value)
    made.deliver()
    assert values_of(made) == []


class Exported:
    """What another library exports to Arrow: a series, or with *columns* a frame."""

    def __init__(self, given: Any, **attributes: Any) -> None:
        self.given = given
        self.__dict__.update(attributes)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.given.__arrow_c_stream__(requested_schema)


def test_series_and_frames_of_other_libraries_are_columns() -> None:
    made = make()
    series = Exported(pa.chunked_array([["a", None]]))
    frame = Exported(pa.table({"value": ["b"], "key": ["k"]}), columns=["value", "key"])
    made.send_columns(series, keys=series, timestamps_ms=Exported(pa.chunked_array([[1, 2]])))
    made.send_columns(frame)
    made.deliver()
    assert values_of(made) == [b"a", None, b"b"]


def test_timestamps_of_any_unit_are_milliseconds_from_any_place_in_their_array() -> None:
    made = make()
    for unit, factor in (("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)):
        times = pa.array([9 * factor, 2 * factor, 3 * factor], pa.timestamp(unit))
        made.send_columns([b"a", b"b"], timestamps_ms=times.slice(1))
    made.deliver()
    stored = [
        record.timestamp for raw in made.logs["t", 0] for record in decode_batch(raw, parse(raw))
    ]
    assert stored == [2000, 3000] * 4


def test_a_producer_with_a_serializer_refuses_columns() -> None:
    made = ProducerFixture({"t": 1}, value_serializer=str.encode)
    error = made.send_columns([b"a"]).error
    assert isinstance(error, KafkaError)
    assert "this producer has a serializer" in str(error)
