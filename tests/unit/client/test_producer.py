"""The producer: waiting sends, rejections, results, closing."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.errors import BufferExhausted, ClientClosed, KafkaTimeoutError, SerializationError
from kclient.producer.partitioner import partition_for_key
from kclient.producer.producer import Producer
from kclient.wire import batches
from kclient.wire.errors import (
    ErrorCode,
    MessageTooLarge,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
)
from kclient.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from kclient.wire.schema.init_producer_id import InitProducerIdResponse
from kclient.wire.versions import ApiKey
from tests.kit.scripted_broker import Outcome
from tests.kit.scripted_cluster import PendingRequest, ScriptedCluster


class ProducerFixture:
    """A producer on scripted brokers, its metadata known."""

    def __init__(self, topics: dict[str, int] | None = None, **settings: Any) -> None:
        self.scripted = ScriptedCluster({"t": 2} if topics is None else topics)
        self.scripted.answers[ApiKey.INIT_PRODUCER_ID] = lambda _: InitProducerIdResponse(
            producer_id=5, producer_epoch=0
        )
        self.producer: Producer[Any, Any] = Producer(reactor=self.scripted.clock, **settings)
        self.scripted.attach(self.producer.cluster)
        self.offsets: dict[tuple[str, int], int] = {}

    def send(self, value: Any = b"v", **options: Any) -> Outcome:
        return Outcome(self.producer.send(options.pop("topic", "t"), value, **options))

    def pass_time(self, seconds: float) -> None:
        self.scripted.pass_time(seconds)

    def acknowledge(self, asked: PendingRequest | None = None, code: int = 0) -> None:
        """Answer the oldest Produce, with offsets that go on from the last."""
        one = asked or self.scripted.waiting(ApiKey.PRODUCE)[0]
        request: ProduceRequest = one.message
        topics = []
        for topic in request.topics:
            partitions = []
            for p in topic.partitions:
                base = self.offsets.get((topic.name, p.index), 0)
                self.offsets[topic.name, p.index] = base + 1
                partitions.append(
                    ProducePartitionResponse(p.index, error_code=code, base_offset=base)
                )
            topics.append(ProduceTopicResponse(topic.name, partitions))
        one.answer(ProduceResponse(topics))


def test_a_send_fires_with_the_records_position() -> None:
    made = ProducerFixture()
    outcome = made.send(partition=1, timestamp_ms=77)
    made.pass_time(0.2)
    made.acknowledge()
    assert outcome.value == ("t", 1, 0, 77, 0)


def test_records_sent_before_the_metadata_are_there_keep_their_order() -> None:
    made = ProducerFixture(linger_ms=0, max_in_flight_requests_per_connection=1)
    outcomes = [made.send(b"%d" % i, partition=0) for i in range(3)]
    made.pass_time(0.2)
    made.acknowledge()
    assert [outcome.value.offset for outcome in outcomes] == [0, 1, 2]


def test_an_unknown_topic_fails_its_records_only_after_max_block() -> None:
    made = ProducerFixture(max_block_ms=2000)
    lost, fine = made.send(topic="nope"), made.send()
    made.pass_time(1.0)
    assert not lost.fired
    made.pass_time(1.5)
    assert isinstance(lost.error, UnknownTopicOrPartition)
    made.acknowledge()
    assert fine.value.offset == 0


def test_full_memory_makes_records_wait_and_acknowledgements_let_them_go_in_order() -> None:
    made = ProducerFixture(buffer_memory=1000, batch_size=500, linger_ms=0)
    outcomes = [made.send(b"x" * 300, partition=0) for _ in range(6)]
    made.pass_time(0.2)
    while not outcomes[-1].fired:
        made.acknowledge()
        made.pass_time(0.2)
    assert [outcome.value.offset for outcome in outcomes] == sorted(
        outcome.value.offset for outcome in outcomes
    )


def test_a_small_record_does_not_overtake_a_large_one_that_waits_for_memory() -> None:
    made = ProducerFixture(buffer_memory=1000, batch_size=500, linger_ms=0)
    made.send(partition=0)
    made.pass_time(0.2)
    made.acknowledge()
    outcomes = [made.send(b"x" * size, partition=0) for size in (700, 700, 10)]
    made.pass_time(0.2)
    while made.scripted.waiting(ApiKey.PRODUCE):
        made.acknowledge()
        made.pass_time(0.2)
    assert [outcome.value.offset for outcome in outcomes] == [1, 2, 3]


def test_memory_full_for_max_block_refuses_and_names_the_setting() -> None:
    made = ProducerFixture(buffer_memory=400, max_block_ms=1000)
    made.send(b"x" * 300)
    refused = made.send(b"x" * 300)
    made.pass_time(1.5)
    assert isinstance(refused.error, BufferExhausted)
    assert "buffer.memory (400 bytes)" in str(refused.error)


def test_ready_fires_when_there_is_memory_again() -> None:
    made = ProducerFixture(buffer_memory=400, linger_ms=0)
    made.send(b"x" * 300)
    made.pass_time(0.2)
    room = Outcome(made.producer.ready(300))
    assert not room.fired
    made.acknowledge()
    assert room.value is None


def test_a_leader_that_moved_is_found_and_the_record_sent_again() -> None:
    made = ProducerFixture()
    outcome = made.send(partition=0)
    made.pass_time(0.2)
    before = made.scripted.count(ApiKey.METADATA)
    made.acknowledge(code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    made.pass_time(0.5)
    assert made.scripted.count(ApiKey.METADATA) > before
    made.acknowledge()
    assert outcome.value.offset == 1


def test_a_record_never_acknowledged_fails_in_time_with_the_last_problem() -> None:
    made = ProducerFixture(delivery_timeout_ms=3000)
    outcome = made.send(partition=0)
    made.pass_time(0.2)
    for _ in range(30):
        if made.scripted.waiting(ApiKey.PRODUCE):
            made.acknowledge(code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        made.pass_time(0.2)
    assert isinstance(outcome.error, KafkaTimeoutError | NotLeaderOrFollower)
    assert "NOT_LEADER_OR_FOLLOWER" in str(outcome.error)


def test_flush_does_not_wait_for_linger_and_counts_what_is_left() -> None:
    made = ProducerFixture(linger_ms=60_000)
    made.send()
    made.pass_time(0.2)
    made.send()
    done = Outcome(made.producer.flush(5))
    made.pass_time(0.2)
    made.acknowledge()
    assert done.value == 0
    made.send()
    left = Outcome(made.producer.flush(1))
    made.pass_time(1.5)
    assert left.value == 1


@pytest.mark.parametrize("call", ["flush", "close"])
def test_a_flush_does_not_wait_for_records_that_are_sent_after_it(call: str) -> None:
    made = ProducerFixture(buffer_memory=1000, batch_size=500, linger_ms=0)
    sent = [made.send(b"x" * 300, partition=0) for _ in range(6)]
    made.pass_time(0.2)
    ended = Outcome(getattr(made.producer, call)(5.0))
    end = made.scripted.clock.seconds() + 6
    while not ended.fired and made.scripted.clock.seconds() < end:
        made.send(b"x" * 300, partition=0)
        made.pass_time(0.1)
        if made.scripted.waiting(ApiKey.PRODUCE):
            made.acknowledge()
    assert ended.fired
    assert call == "close" or all(outcome.fired for outcome in sent)


def test_closing_delivers_within_its_time_then_gives_up_what_is_left() -> None:
    made = ProducerFixture()
    delivered = made.send()
    made.pass_time(0.2)
    made.acknowledge()
    lost = made.send()
    closed = Outcome(made.producer.close(1.0))
    made.pass_time(1.5)
    assert closed.value == (1, 1)
    assert delivered.value.offset == 0
    assert isinstance(lost.error, ClientClosed)
    assert isinstance(made.send().error, ClientClosed)
    assert Outcome(made.producer.close()).value == (1, 1)


def test_a_closed_producer_leaves_no_timer_behind() -> None:
    made = ProducerFixture()
    made.send()
    made.pass_time(0.2)
    made.acknowledge()
    Outcome(made.producer.close(1.0))
    made.pass_time(0.1)
    left = [call for call in made.scripted.clock.getDelayedCalls() if call.getTime() < 100]
    assert left == []


@pytest.mark.parametrize(
    ("value", "options", "error"),
    [
        (3, {}, SerializationError),
        (b"v", {"key": 1.5}, SerializationError),
        (b"v", {"headers": [(b"name", b"")]}, SerializationError),
        (b"x" * 2_000_000, {}, MessageTooLarge),
        (b"v", {"partition": 9}, UnknownTopicOrPartition),
    ],
)
def test_what_cannot_be_sent_fails_at_once(
    value: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    made = ProducerFixture()
    first = made.send()
    made.pass_time(0.2)
    assert isinstance(made.send(value, **options).error, error)
    made.acknowledge()
    assert first.value


def test_serializers_are_used_and_their_failures_named() -> None:
    made = ProducerFixture(value_serializer=lambda value: str(value).encode(), key_serializer=int)
    assert "key for topic 't' cannot be serialized" in str(made.send(1, key="x").error)


def test_a_partitioner_may_choose_or_leave_it_to_the_default() -> None:
    chosen = {b"a": 1, b"b": None}
    made = ProducerFixture(partitioner=lambda topic, key, partitions: chosen[key])
    by_choice, by_key = made.send(key=b"a"), made.send(key=b"b")
    made.pass_time(0.3)
    while made.scripted.waiting(ApiKey.PRODUCE):
        made.acknowledge()
    assert by_choice.value.partition == 1
    assert by_key.value.partition == partition_for_key(b"b", 2)


def test_without_an_answer_to_wait_for_a_record_is_done_when_it_is_on_its_way() -> None:
    made = ProducerFixture(acks="0")
    sent: list[Any] = []
    connection = made.scripted._connection(1, "")
    sending: Deferred[None] = Deferred()
    connection.send = lambda *request: sent.append(request) or sending  # type: ignore[attr-defined,func-returns-value]
    outcome = made.send(partition=0)
    made.pass_time(0.2)
    assert len(sent) == 1
    assert not outcome.fired
    assert made.producer.undelivered == 1
    sending.callback(None)
    assert outcome.value.offset == -1
    assert made.producer.undelivered == 0


def test_batches_too_large_one_after_the_other_are_split_in_their_order() -> None:
    made = ProducerFixture(linger_ms=0, batch_size=300)
    made.send(partition=0)
    made.pass_time(0.2)
    made.acknowledge()
    outcomes = [made.send(b"%d" % n * 100, partition=0) for n in range(4)]
    made.pass_time(0.2)
    pairs = made.scripted.waiting(ApiKey.PRODUCE)
    assert len(pairs) == 2
    for pair in pairs:
        made.acknowledge(pair, ErrorCode.MESSAGE_TOO_LARGE)
    sequences = []
    for _ in range(4):
        made.pass_time(0.2)
        half = made.scripted.one(ApiKey.PRODUCE)
        info = batches.parse(half.message.topics[0].partitions[0].records)
        sequences += [info.base_sequence] * info.record_count
        made.acknowledge(half)
    assert sequences == [1, 2, 3, 4]
    offsets = [outcome.value.offset for outcome in outcomes]
    assert offsets == sorted(offsets)


def test_the_first_batches_of_a_producer_are_split_in_their_order() -> None:
    """A broker without state of the producer would accept the second batch, and reject the halves of the first."""
    made = ProducerFixture(linger_ms=0, batch_size=300)
    for n in range(3):
        made.send(b"%d" % n * 100, partition=0)
    made.pass_time(0.2)
    made.acknowledge(made.scripted.one(ApiKey.PRODUCE), ErrorCode.MESSAGE_TOO_LARGE)
    made.pass_time(0.2)
    half = made.scripted.one(ApiKey.PRODUCE)
    info = batches.parse(half.message.topics[0].partitions[0].records)
    assert (info.base_sequence, info.record_count) == (0, 1)


def test_produce_reports_by_callback_like_confluent_kafka() -> None:
    made = ProducerFixture()
    results: list[Any] = []
    made.producer.produce(
        "t", b"v", on_delivery=lambda error, where: results.append((error, where))
    )
    made.pass_time(0.2)
    made.acknowledge(code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert results[0][0].code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert results[0][1] is None
