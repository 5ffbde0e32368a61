"""The accumulator: when batches go, in which order, within which memory."""

from __future__ import annotations

import pytest

from kclient.producer.accumulator import Accumulator
from kclient.producer.batch import ProducerBatch, Row, record_size
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError, MessageTooLarge

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Held:
    """An accumulator and the time."""

    def __init__(self, **options: float) -> None:
        self.now = 0.0
        settings = {
            "batch_size": 1000,
            "linger": 5.0,
            "buffer_memory": 10_000,
            "delivery_timeout": 120.0,
        } | options
        self.accumulator = Accumulator(clock=lambda: self.now, **settings)  # type: ignore[arg-type]

    def append(self, tp: TopicPartition = A, value: bytes = b"x" * 100) -> ProducerBatch:
        row: Row = (0, 1, None, value, ())
        return self.accumulator.append(tp, row, record_size(None, value, ()))

    def ready(self) -> list[TopicPartition]:
        return self.accumulator.ready(self.now)[0]


def test_a_batch_is_ready_after_linger_ms_and_the_sender_gets_that_time() -> None:
    held = Held()
    held.append()
    assert held.accumulator.ready(0.0) == ([], 5.0)
    held.now = 5.0
    assert held.ready() == [A]


def test_a_full_batch_goes_at_once() -> None:
    held = Held()
    for _ in range(8):
        held.append()
    assert held.ready() == []
    held.append()
    assert held.ready() == [A]


def test_a_record_that_does_not_fit_begins_the_next_batch_and_closes_this() -> None:
    held = Held()
    first = held.append()
    second = held.append(value=b"y" * 900)
    assert second is not first
    assert first.closed
    assert (first.number, second.number) == (0, 1)
    assert held.ready() == [A]


def test_a_record_larger_than_a_batch_gets_one_of_its_own() -> None:
    held = Held()
    batch = held.append(value=b"z" * 5000)
    assert batch.closed
    assert batch.record_count == 1


@pytest.mark.parametrize("way", ["urgent", "flushing"])
def test_a_waiting_caller_makes_batches_ready_at_once(way: str) -> None:
    held = Held()
    batch = held.append()
    if way == "urgent":
        batch.urgent = True
    else:
        held.accumulator.flushing = True
    assert held.ready() == [A]


def test_only_so_many_batches_of_a_partition_are_in_flight() -> None:
    held = Held(in_flight_limit=1)
    held.append(value=b"z" * 5000)
    held.append(value=b"z" * 5000)
    batch = held.accumulator.take(A)
    assert held.ready() == []
    held.accumulator.finished(batch)
    assert held.ready() == [A]


def test_a_batch_waiting_for_its_retry_is_not_overtaken() -> None:
    held = Held(in_flight_limit=5)
    held.append(value=b"1" * 5000)
    first = held.accumulator.take(A)
    held.append(value=b"2" * 5000)
    held.accumulator.put_back(first, retry_at=1.0)
    assert held.accumulator.ready(0.5) == ([], 1.0)
    held.now = 1.0
    assert held.ready() == [A]
    assert held.accumulator.take(A) is first


def test_batches_put_back_in_any_order_go_in_their_own() -> None:
    held = Held(in_flight_limit=5, buffer_memory=1_000_000)
    for _ in range(4):
        held.append(value=b"1" * 5000)
    taken = [held.accumulator.take(A) for _ in range(3)]
    for batch in (taken[1], taken[2], taken[0]):
        held.accumulator.put_back(batch, 0.0)
    assert [held.accumulator.take(A).number for _ in range(4)] == [0, 1, 2, 3]


def test_a_raw_batch_goes_only_when_nothing_of_its_partition_is_in_flight() -> None:
    held = Held(in_flight_limit=5)
    held.accumulator.append_bytes(A, b"b" * 100, 3)
    held.accumulator.append_bytes(A, b"c" * 100, 4)
    first = held.accumulator.take(A)
    assert first.encode(0) == b"b" * 100
    assert held.ready() == []
    held.accumulator.finished(first)
    assert held.ready() == [A]


def test_memory_is_counted_until_a_batch_ends() -> None:
    held = Held()
    batch = held.append()
    held.append(B)
    assert held.accumulator.used == held.accumulator.queues[B].waiting[0].size + batch.size
    held.accumulator.take(A)
    held.accumulator.finished(batch)
    assert (held.accumulator.used, held.accumulator.records) == (
        held.accumulator.queues[B].waiting[0].size,
        1,
    )


def test_a_record_larger_than_all_memory_is_taken_when_nothing_else_is_held() -> None:
    held = Held(buffer_memory=200)
    assert held.accumulator.has_room(5000)
    held.append()
    assert not held.accumulator.has_room(100)


def test_batches_too_old_are_taken_out_those_in_flight_are_not() -> None:
    held = Held(in_flight_limit=5)
    held.append(value=b"1" * 5000)
    flying = held.accumulator.take(A)
    late = held.append(value=b"2" * 5000)
    held.now = 60.0
    held.append(B)
    held.now = 120.0
    assert held.accumulator.next_expiry() == 120.0
    assert held.accumulator.expired(held.now) == [late]
    assert next(held.accumulator.unfinished()) is flying
    assert held.accumulator.records == 2


def test_halves_take_the_place_of_a_batch_too_large_and_the_rest_moves_behind() -> None:
    held = Held(in_flight_limit=5)
    for i in range(6):
        held.append(value=b"%d" % i * 100)
    whole = held.accumulator.take(A)
    after = held.append(value=b"z" * 2000)
    results: list[object] = []

    class Sink:
        def callback(self, result: object) -> None:
            results.append(result)

        errback = callback

    whole.notify(4, 11, Sink())
    held.accumulator.replace_by_halves(whole)
    numbers = [batch.number for batch in held.accumulator.queues[A].waiting]
    assert numbers == [0, 1, 2]
    assert held.accumulator.queues[A].waiting[-1] is after
    first, second = held.accumulator.take(A), held.accumulator.take(A)
    assert (first.record_count, second.record_count) == (3, 3)
    second.acknowledged(40)
    assert results == [("t", 0, 41, 11, 0)]
    assert whole.outcome(4, 11) == ("t", 0, 41, 11, 0)
    assert whole.outcome(0, 11) is None
    first.failed(MessageTooLarge("still"))
    assert isinstance(whole.outcome(0, 11), KafkaError)


def test_halves_stay_between_an_earlier_batch_that_waits_again_and_a_later_one_in_flight() -> None:
    held = Held(in_flight_limit=5, batch_size=300, buffer_memory=1_000_000)
    for i in range(6):
        held.append(value=b"%d" % i * 100)
    first, second, third = (held.accumulator.take(A) for _ in range(3))
    held.accumulator.put_back(first, 0.0)
    held.accumulator.replace_by_halves(second)
    held.accumulator.put_back(third, 0.0)
    queued = list(held.accumulator.queues[A].waiting)
    assert (queued[0], queued[-1]) == (first, third)
    assert queued[1:3] == list(second.parts or ())
    assert [batch.number for batch in queued] == [0, 1, 2, 3]


def test_the_result_of_a_batch_has_log_append_time_and_may_lack_an_offset() -> None:
    held = Held()
    batch = held.append()
    batch.acknowledged(7, 99)
    assert batch.outcome(0, 5) == ("t", 0, 7, 99, 1)
    other = held.append(B)
    other.acknowledged(-1)
    assert other.outcome(0, 5) == ("t", 1, -1, 5, 0)


def test_abort_hands_out_everything_and_late_answers_change_nothing() -> None:
    held = Held(in_flight_limit=5)
    held.append(value=b"1" * 5000)
    flying = held.accumulator.take(A)
    held.append(B)
    assert len(held.accumulator.abort()) == 2
    held.accumulator.finished(flying)
    assert (held.accumulator.used, held.accumulator.records) == (0, 0)
