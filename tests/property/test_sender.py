"""The sender with its accumulator and sequencer, against a leader that loses answers.

Whatever is refused, cut off or late: every record has exactly one result; an acknowledged record
is in the log exactly once, at the reported offset; the log has the order of the sends; a record
that failed is there at most once. Without idempotence a lost answer may repeat a batch, which is
then next to nothing else: order of first appearance still holds. Partition 1 takes small batches only,
so others are split.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twisted.internet.task import Clock

from kclient.config import ProducerConfig
from kclient.producer.accumulator import Accumulator
from kclient.producer.batch import record_size
from kclient.producer.sender import Sender
from kclient.producer.sequencer import Sequencer
from kclient.types import RecordMetadata, TopicPartition
from kclient.wire.errors import (
    ErrorCode,
    OutOfOrderSequenceNumber,
    TopicAuthorizationFailed,
)
from tests.kit.model_leader import OneLeaderCluster
from tests.kit.property_tests import examples

RETRIABLE = st.sampled_from(
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS]
)


class Sent:
    """One record and its results."""

    def __init__(self, tp: TopicPartition, value: bytes) -> None:
        self.tp = tp
        self.value = value
        self.results: list[Any] = []

    def callback(self, result: Any) -> None:
        self.results.append(result)

    errback = callback


class SenderMachine(RuleBasedStateMachine):
    idempotent = True

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.cluster = OneLeaderCluster(self.clock)
        config = ProducerConfig.load(
            acks="all", linger_ms=1, delivery_timeout_ms=20_000, enable_idempotence=self.idempotent
        )
        self.accumulator = Accumulator(
            batch_size=140,
            linger=0.001,
            buffer_memory=1 << 20,
            delivery_timeout=20.0,
            in_flight_limit=5 if self.idempotent else 1,
            clock=self.clock.seconds,
        )
        self.sender = Sender(
            self.clock,
            self.cluster,  # type: ignore[arg-type]
            config,
            self.accumulator,
            Sequencer() if self.idempotent else None,
            nullcontext(),
            transactions=None,
            on_progress=lambda: None,
        )
        self.sent: list[Sent] = []

    @property
    def wire(self) -> Any:
        return self.cluster.wire

    @rule(partition=st.integers(0, 1), count=st.integers(1, 6))
    def send(self, partition: int, count: int) -> None:
        tp = TopicPartition("t", partition)
        for _ in range(count):
            record = Sent(tp, b"%06d" % len(self.sent))
            self.sent.append(record)
            batch = self.accumulator.append(
                tp, (0, 1, None, record.value, ()), record_size(None, record.value, ())
            )
            batch.notify(batch.record_count - 1, 1, record)
        self.sender.wake()

    @rule(seconds=st.sampled_from([0.0, 0.002, 0.2, 1.5]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.clock.advance(0)

    @precondition(lambda self: self.wire.waiting)
    @rule()
    def answered(self) -> None:
        self.wire.answer()

    @precondition(lambda self: self.wire.waiting)
    @rule(code=RETRIABLE, stored=st.booleans())
    def refused(self, code: int, stored: bool) -> None:
        self.wire.answer(refuse=int(code), stored=stored)

    @precondition(lambda self: self.wire.waiting)
    @rule()
    def refused_for_good(self) -> None:
        self.wire.answer(refuse=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))

    @precondition(lambda self: self.wire.waiting)
    @rule(data=st.data())
    def connection_lost(self, data: Any) -> None:
        processed = data.draw(st.integers(0, len(self.wire.waiting)))
        self.cluster.connected = False
        self.wire.lose(processed)

    @rule()
    def a_long_silence(self) -> None:
        self.clock.advance(21.0)

    @invariant()
    def no_record_has_two_results(self) -> None:
        assert all(len(record.results) <= 1 for record in self.sent)

    @invariant()
    def acknowledged_records_are_at_the_reported_offset(self) -> None:
        for record in self.sent:
            if record.results and isinstance(record.results[0], RecordMetadata):
                offset = record.results[0].offset
                assert offset < 0 or self.wire.leader.logs[record.tp][offset] == record.value

    @invariant()
    def records_fail_for_reasons_of_the_cluster_only(self) -> None:
        for record in self.sent:
            if record.results and not isinstance(record.results[0], RecordMetadata):
                problem = record.results[0]
                late = self.clock.seconds() >= 20.0
                assert isinstance(problem, TopicAuthorizationFailed) or late, repr(problem)
                assert not isinstance(problem, OutOfOrderSequenceNumber), repr(problem)

    @invariant()
    def memory_is_counted(self) -> None:
        unfinished = list(self.accumulator.unfinished())
        assert self.accumulator.used == sum(batch.size for batch in unfinished)
        assert self.accumulator.records == sum(batch.record_count for batch in unfinished)

    @invariant()
    def so_many_are_in_flight_at_most(self) -> None:
        for queue in self.accumulator.queues.values():
            assert len(queue.in_flight) <= self.accumulator.in_flight_limit

    def teardown(self) -> None:
        for _ in range(400):
            self.clock.advance(0.05)
            while self.wire.waiting:
                self.wire.answer()
            if not self.accumulator.records:
                break
        assert not self.accumulator.records, "something is stuck"
        assert all(len(record.results) == 1 for record in self.sent)
        for partition in (0, 1):
            tp = TopicPartition("t", partition)
            self.check_log(tp, [record for record in self.sent if record.tp == tp])
        for call in self.clock.getDelayedCalls():
            call.cancel()

    def check_log(self, tp: TopicPartition, sent: list[Sent]) -> None:
        log = self.wire.leader.logs.get(tp, [])
        acknowledged = [r.value for r in sent if isinstance(r.results[0], RecordMetadata)]
        assert len(set(log)) == len(log), f"stored twice: {log}"
        assert log == sorted(log), f"out of order: {log}"
        assert set(acknowledged) <= set(log)


class SenderWithoutSequencesMachine(SenderMachine):
    idempotent = False

    def check_log(self, tp: TopicPartition, sent: list[Sent]) -> None:
        log = self.wire.leader.logs.get(tp, [])
        acknowledged = [r.value for r in sent if isinstance(r.results[0], RecordMetadata)]
        first_seen = list(dict.fromkeys(log))
        assert first_seen == sorted(first_seen), f"out of order: {log}"
        assert set(acknowledged) <= set(log)


TestSender = SenderMachine.TestCase
TestSenderWithoutSequences = SenderWithoutSequencesMachine.TestCase
TestSender.settings = TestSenderWithoutSequences.settings = settings(
    max_examples=examples(120), stateful_step_count=40, deadline=None
)
