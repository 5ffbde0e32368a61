"""A whole transactional producer on scripted brokers: what it sends when, and what becomes of its records.

Requests are answered, refused or lost with their connection, records are sent at any time, transactions are committed
and aborted. A committed transaction has each record once and in order, an aborted one has none; no batch is sent to a
partition that is not in the transaction, or behind its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kclient.producer.producer import Producer
from kclient.producer.transaction_manager import State
from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.errors import ErrorCode
from kclient.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from kclient.wire.records import decode_columns
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kclient.wire.schema.end_txn import EndTxnResponse
from kclient.wire.schema.init_producer_id import InitProducerIdResponse
from kclient.wire.versions import ApiKey
from tests.kit.property_tests import examples
from tests.kit.scripted_broker import Outcome
from tests.kit.scripted_cluster import PendingRequest, ScriptedCluster

PARTITIONS = 2
APIS = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.PRODUCE,
    ApiKey.END_TXN,
)
RETRIABLE = {
    ApiKey.INIT_PRODUCER_ID: ErrorCode.CONCURRENT_TRANSACTIONS,
    ApiKey.ADD_PARTITIONS_TO_TXN: ErrorCode.CONCURRENT_TRANSACTIONS,
    ApiKey.PRODUCE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ApiKey.END_TXN: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
numbers = st.integers(0, 99)


@dataclass
class Brokers:
    """The coordinator, and the leaders; a leader has a batch once, by its sequence."""

    epoch: int = -1
    open: bool = False
    last_end: bool | None = None
    added: set[TopicPartition] = field(default_factory=set)
    sequences: dict[tuple[int, TopicPartition], int] = field(default_factory=dict)
    pending: list[tuple[TopicPartition, bytes]] = field(default_factory=list)
    visible: list[tuple[TopicPartition, bytes]] = field(default_factory=list)

    def handle(self, asked: PendingRequest, refused: bool = False) -> Any:
        """Handle a request, or refuse it; return the response."""
        message, code = asked.message, int(RETRIABLE[asked.api]) if refused else 0
        if asked.api is ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(0, code or self._init(message), 7, self.epoch)
        if asked.api is ApiKey.END_TXN:
            return EndTxnResponse(0, code or self._end(message))
        if asked.api is ApiKey.ADD_PARTITIONS_TO_TXN:
            code = code or self._add(message)
            return AddPartitionsToTxnResponse(
                0,
                [
                    AddPartitionsToTxnTopicResult(
                        t.name, [AddPartitionsToTxnPartitionResult(p, code) for p in t.partitions]
                    )
                    for t in message.v3_and_below_topics
                ],
            )
        return self.produced(message, code)

    def produced(self, message: ProduceRequest, code: int = 0) -> ProduceResponse:
        """Append the batches unless *code* refuses them."""
        return ProduceResponse(
            [
                ProduceTopicResponse(
                    topic.name,
                    [
                        ProducePartitionResponse(
                            p.index,
                            error_code=code or self._append(topic.name, p),
                            base_offset=0,
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in message.topics
            ]
        )

    def _init(self, message: Any) -> int:
        if message.producer_epoch >= 0 and message.producer_epoch == self.epoch - 1:
            return 0
        if message.producer_epoch >= 0 and self.open:
            return int(ErrorCode.PRODUCER_FENCED)
        self._forget()
        self.epoch += 1
        return 0

    def _add(self, message: Any) -> int:
        if message.v3_and_below_producer_epoch != self.epoch:
            return int(ErrorCode.PRODUCER_FENCED)
        self.open = True
        self.added |= {
            TopicPartition(t.name, p) for t in message.v3_and_below_topics for p in t.partitions
        }
        return 0

    def _end(self, message: Any) -> int:
        if message.producer_epoch != self.epoch:
            return int(ErrorCode.PRODUCER_FENCED)
        if not self.open:
            return 0 if self.last_end is message.committed else int(ErrorCode.INVALID_TXN_STATE)
        if message.committed:
            self.visible += self.pending
        self._forget()
        self.last_end = message.committed
        return 0

    def _forget(self) -> None:
        self.pending.clear()
        self.added.clear()
        self.open = False
        self.last_end = None

    def _append(self, topic: str, partition: Any) -> int:
        tp = TopicPartition(topic, partition.index)
        info = batches.parse(partition.records)
        if info.producer_epoch != self.epoch:
            return int(ErrorCode.INVALID_PRODUCER_EPOCH)
        following = self.sequences.get((self.epoch, tp), 0)
        if info.base_sequence < following:
            return 0
        if info.base_sequence > following:
            return int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        if not self.open or tp not in self.added:
            return int(ErrorCode.INVALID_TXN_STATE)
        self.sequences[self.epoch, tp] = following + info.record_count
        self.pending += [(tp, value) for value in decode_columns(partition.records, info).values]
        return 0


class TransactionalSends(RuleBasedStateMachine):
    """One producer and its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.scripted = ScriptedCluster({"t": PARTITIONS}, brokers=2)
        self.brokers = Brokers()
        self.producer: Producer[Any, Any] = Producer(
            reactor=self.scripted.clock,
            transactional_id="tx",
            linger_ms=1,
            batch_size=150,
            max_block_ms=10_000_000,
            delivery_timeout_ms=10_000_000,
            retry_backoff_ms=10,
            retry_backoff_max_ms=10,
        )
        self.scripted.attach(self.producer.cluster)
        self.seen = 0
        self.transaction = 0
        self.records: dict[int, list[tuple[TopicPartition, bytes, Outcome]]] = {}
        self.ending: dict[int, tuple[bool, Outcome]] = {}
        """(is it a commit, its result) of each transaction after the request to end it."""
        self.ends_asked: set[int] = set()
        self.initialized = Outcome(self.producer.init_transactions())
        self.turn()

    @property
    def state(self) -> State:
        assert self.producer._transactions is not None
        return self.producer._transactions.manager.state

    def turn(self, seconds: float = 0.02) -> None:
        self.scripted.pass_time(seconds, step=0.005)
        self.check_requests()

    # --- the caller

    @precondition(lambda self: self.state is State.READY)
    @rule()
    def begin(self) -> None:
        self.transaction += 1
        self.records[self.transaction] = []
        assert Outcome(self.producer.begin_transaction()).value is None

    @precondition(lambda self: self.state is State.IN_TRANSACTION)
    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 4))
    def send(self, partition: int, count: int) -> None:
        for _ in range(count):
            mine = self.records[self.transaction]
            value = b"%03d-%03d" % (self.transaction, len(mine))
            outcome = Outcome(self.producer.send("t", value, partition=partition))
            mine.append((TopicPartition("t", partition), value, outcome))
        self.turn()

    @precondition(lambda self: self.state is State.IN_TRANSACTION)
    @rule()
    def commit(self) -> None:
        self.ending[self.transaction] = (True, Outcome(self.producer.commit_transaction()))
        self.turn()

    @precondition(lambda self: self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR))
    @rule()
    def abort(self) -> None:
        self.ending[self.transaction] = (False, Outcome(self.producer.abort_transaction()))
        self.turn()

    # --- the brokers

    def waiting(self) -> list[list[PendingRequest]]:
        """Return the unanswered requests of each connection that has some, in order."""
        found: dict[tuple[int, str], list[PendingRequest]] = {}
        for asked in self.scripted.requests:
            if asked.api in APIS and asked.waits:
                found.setdefault((asked.node, asked.channel), []).append(asked)
        return list(found.values())

    @precondition(lambda self: self.waiting())
    @rule(number=numbers, turns=st.integers(1, 6))
    def answer(self, number: int, turns: int) -> None:
        for _ in range(turns):
            if connections := self.waiting():
                asked = connections[number % len(connections)][0]
                asked.answer(self.brokers.handle(asked))
                self.turn()

    @precondition(lambda self: self.waiting())
    @rule(number=numbers)
    def refuse(self, number: int) -> None:
        connections = self.waiting()
        asked = connections[number % len(connections)][0]
        asked.answer(self.brokers.handle(asked, refused=True))
        self.turn()

    @precondition(lambda self: any(c[0].api is ApiKey.PRODUCE for c in self.waiting()))
    @rule()
    def refuse_a_batch_for_good(self) -> None:
        asked = next(c[0] for c in self.waiting() if c[0].api is ApiKey.PRODUCE)
        asked.answer(self.brokers.produced(asked.message, int(ErrorCode.INVALID_RECORD)))
        self.turn()

    @precondition(lambda self: self.waiting())
    @rule(number=numbers, arrived=st.integers(0, 5))
    def lose_a_connection(self, number: int, arrived: int) -> None:
        """Its first *arrived* requests are handled; no response arrives."""
        connections = self.waiting()
        lost = connections[number % len(connections)]
        for asked in lost[:arrived]:
            self.brokers.handle(asked)
        for asked in lost:
            asked.fail()
        self.turn()

    @rule(seconds=st.sampled_from([0.02, 0.2]))
    def time_passes(self, seconds: float) -> None:
        self.turn(seconds)

    @rule(count=st.integers(0, 3))
    def all_goes_well(self, count: int) -> None:
        """Let the brokers answer everything, and begin a transaction with *count* records in each partition."""
        self.everything_is_answered()
        if self.state is State.READY:
            self.begin()
        if self.state is State.IN_TRANSACTION:
            for partition in range(PARTITIONS if count else 0):
                self.send(partition, count)

    def everything_is_answered(self) -> None:
        for _ in range(50):
            if connections := self.waiting():
                connections[0][0].answer(self.brokers.handle(connections[0][0]))
            self.turn(0.1)
            if self.state is not State.INITIALIZING and not self.waiting():
                break

    # --- what must hold

    def check_requests(self) -> None:
        """Batches are sent to partitions of the transaction, before its end only."""
        for asked in self.scripted.requests[self.seen :]:
            if asked.api is ApiKey.END_TXN:
                self.ends_asked.add(self.transaction)
            if asked.api is ApiKey.PRODUCE and asked.waits:
                assert self.transaction not in self.ends_asked, "a batch behind EndTxn"
                is_abort = self.ending.get(self.transaction, (True, None))[0] is False
                assert not is_abort, "a batch behind the abort"
                for topic in asked.message.topics:
                    for p in topic.partitions:
                        assert TopicPartition(topic.name, p.index) in self.brokers.added
                        assert batches.parse(p.records).is_transactional
        self.seen = len(self.scripted.requests)

    @invariant()
    def transactions_are_visible_whole_and_once_or_not_at_all(self) -> None:
        for number, mine in self.records.items():
            seen = [each for each in self.brokers.visible if each[1].startswith(b"%03d" % number)]
            is_commit, end = self.ending.get(number, (False, None))
            if not is_commit:
                assert not seen, f"transaction {number} was not to be committed"
            if seen:
                for partition in range(PARTITIONS):
                    tp = TopicPartition("t", partition)
                    sent = [value for at, value, _ in mine if at == tp]
                    assert [value for at, value in seen if at == tp] == sent
            if is_commit and end is not None and end.fired and end.results[0] is None:
                assert len(seen) == len(mine), f"transaction {number} is committed and not visible"
                assert all(outcome.value for _, _, outcome in mine)

    @invariant()
    def no_error_is_fatal(self) -> None:
        assert self.state is not State.FATAL_ERROR

    def teardown(self) -> None:
        """Whatever happened: when brokers answer, the producer comes to rest and goes on."""
        for _ in range(200):
            if self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                self.abort()
            if self.state is State.READY and not self.waiting():
                break
            self.turn(0.1)
            if connections := self.waiting():
                asked = connections[0][0]
                asked.answer(self.brokers.handle(asked))
            self.turn(0.1)
        assert self.state is State.READY
        assert self.producer.undelivered == 0
        assert all(outcome.fired for mine in self.records.values() for *_, outcome in mine)
        assert all(end.fired for _, end in self.ending.values())
        self.transactions_are_visible_whole_and_once_or_not_at_all()


TestTransactionalSends = TransactionalSends.TestCase
TestTransactionalSends.settings = settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None
)
