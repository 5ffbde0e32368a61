"""Lost responses, late requests, failed batches: a transaction of the producer is visible whole, or not at all.

The coordinator here is dumber than any real one: it writes markers at once, and its partitions do not ask it whether a
transaction is open (KIP-890). What protects the records is what the producer sends, and when.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kclient.errors import ConnectionClosed
from kclient.producer.transaction_manager import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    Initialized,
    InitProducerId,
    Request,
    State,
    TransactionManager,
)
from kclient.types import (
    NO_PRODUCER,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from kclient.wire.errors import ErrorCode, KafkaError, for_code
from tests.kit.property_tests import examples

PARTITIONS = [TopicPartition("t", n) for n in range(3)]
GROUP = ConsumerGroupMetadata("g")
numbers = st.integers(0, 99)


@dataclass
class Coordinator:
    """One transactional id, and the records and offsets of its transactions, which become visible by a commit."""

    epoch: int = -1
    last_end: bool | None = None
    """Whether the last transaction was committed; None after InitProducerId."""
    open: bool = False
    added: set[TopicPartition | str] = field(default_factory=set)
    pending: list[tuple[str, int]] = field(default_factory=list)
    visible: list[tuple[str, int]] = field(default_factory=list)
    """(record or offset, number of the transaction of the caller that sent it)"""

    def handle(self, request: Request) -> Initialized | None:
        """Handle *request*; raise its error."""
        if isinstance(request, InitProducerId):
            return self._init(request.producer)
        if request.producer.epoch != self.epoch:
            raise refusal(ErrorCode.PRODUCER_FENCED)
        if isinstance(request, EndTransaction):
            self._end(request.committed)
        elif isinstance(request, AddPartitions):
            self.open = True
            self.added |= request.partitions
        elif isinstance(request, AddOffsets):
            self.open = True
            self.added.add(request.group_id)
        else:
            self.pending.append(("offset", request.commit.offsets[PARTITIONS[0]].offset))
        return None

    def _init(self, producer: ProducerIdAndEpoch) -> Initialized:
        if producer == NO_PRODUCER:
            self._abort()
            self.epoch += 1
        elif producer.epoch == self.epoch - 1:
            pass  # the repetition of a request without a response
        elif producer.epoch != self.epoch or self.open:
            raise refusal(ErrorCode.PRODUCER_FENCED)
        else:
            self.epoch += 1
        self.last_end = None
        return Initialized(ProducerIdAndEpoch(7, self.epoch), True)

    def _end(self, committed: bool) -> None:
        if not self.open:
            if self.last_end is committed:
                return
            raise refusal(ErrorCode.INVALID_TXN_STATE)
        if committed:
            self.visible += self.pending
        self._abort()
        self.last_end = committed

    def _abort(self) -> None:
        self.pending.clear()
        self.added.clear()
        self.open = False


def refusal(code: ErrorCode) -> KafkaError:
    return for_code(code)("refused")


class TransactionalProducer(RuleBasedStateMachine):
    """One producer, its requests, and a network that loses responses and delivers lost requests later."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = TransactionManager("tx", lambda count: 0.1)
        self.coordinator = Coordinator()
        self.now = 0.0
        self.request: Request | None = None
        self.late: list[Request] = []
        self.in_flight: list[tuple[TopicPartition, int, int]] = []
        self.transaction = 0
        self.sent: dict[int, set[tuple[str, int]]] = {}
        """Acknowledged records and offsets of each transaction."""
        self.transaction_of: dict[tuple[str, int], int] = {}
        self.committing: set[int] = set()
        self.committed: set[int] = set()
        self.records = 0
        self.ending = False
        """EndTxn was sent, so the last batch is done."""
        self.manager.init()

    # --- the caller

    @precondition(lambda self: self.manager.state is State.READY)
    @rule()
    def begin(self) -> None:
        self.transaction += 1
        self.ending = False
        self.sent[self.transaction] = set()
        self.manager.begin()

    @precondition(lambda self: self.manager.state is State.IN_TRANSACTION)
    @rule(number=numbers)
    def record_waits(self, number: int) -> None:
        self.manager.add_partitions([PARTITIONS[number % 3]])

    @precondition(lambda self: self.manager.state is State.IN_TRANSACTION)
    @rule()
    def send_offsets(self) -> None:
        self.records += 1
        self.transaction_of["offset", self.records] = self.transaction
        self.manager.send_offsets(GROUP, {PARTITIONS[0]: OffsetAndMetadata(self.records)})

    @precondition(lambda self: self.manager.state is State.IN_TRANSACTION)
    @rule()
    def commit(self) -> None:
        self.committing.add(self.transaction)
        self.manager.begin_commit()

    @precondition(lambda self: self.manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR))
    @rule()
    def abort(self) -> None:
        self.manager.begin_abort()

    @rule(number=numbers)
    def records_are_stored(self, number: int) -> None:
        """Let everything succeed, until a record of the present or the next transaction is acknowledged."""
        for _ in range(4):
            self.now = max(self.now, self.manager.retry_at)
            self.request_is_answered()
            if self.manager.state is State.READY:
                self.begin()
            if self.manager.state is State.IN_TRANSACTION:
                self.record_waits(number)
        if any(map(self.manager.may_send_to, PARTITIONS)) and not self.ending:
            self.send_batch(number)
            self.batch_is_answered(-1, True)

    # --- batches

    @precondition(lambda self: any(map(self.manager.may_send_to, PARTITIONS)) and not self.ending)
    @rule(number=numbers)
    def send_batch(self, number: int) -> None:
        allowed = [tp for tp in PARTITIONS if self.manager.may_send_to(tp)]
        self.records += 1
        tp = allowed[number % len(allowed)]
        assert tp in self.coordinator.added
        self.transaction_of["record", self.records] = self.transaction
        self.in_flight.append((tp, self.manager.producer.epoch, self.records))

    @precondition(lambda self: self.in_flight)
    @rule(number=numbers, arrives=st.booleans())
    def batch_is_answered(self, number: int, arrives: bool) -> None:
        """Acknowledge a batch, or lose its connection; then it may be late, or never arrive."""
        _, epoch, record = self.in_flight.pop(number % len(self.in_flight))
        stored = ("record", record)
        if arrives and epoch == self.coordinator.epoch:
            self.coordinator.pending.append(stored)
            self.sent[self.transaction].add(stored)
        else:
            self.manager.batch_failed(ConnectionClosed("lost"), has_sequence=True)

    # --- requests

    def _next(self) -> None:
        if self.request is None:
            before = self.manager.state, self.transaction
            self.request = self.manager.next_request(self.now, has_batches=bool(self.in_flight))
            self._note_end(*before)
        if isinstance(self.request, EndTransaction):
            assert not self.in_flight
            self.ending = True

    def _note_end(self, before: State, number: int) -> None:
        after = self.manager.state
        if after in (State.READY, State.INITIALIZING) and before is State.COMMITTING:
            self.committed.add(number)

    @rule()
    def request_is_answered(self) -> None:
        self._next()
        if self.request is None:
            return
        request, self.request = self.request, None
        before = self.manager.state, self.transaction
        try:
            outcome = self.coordinator.handle(request)
        except KafkaError as problem:
            self.manager.failed(request, problem, self.now)
        else:
            if isinstance(request, CommitOffsets) and self.manager.is_pending(request.commit):
                offset = request.commit.offsets[PARTITIONS[0]].offset
                self.sent[self.transaction].add(("offset", offset))
            self.manager.succeeded(request, outcome)
        self._note_end(*before)

    @rule(arrives=st.booleans())
    def response_is_lost(self, arrives: bool) -> None:
        self._next()
        if self.request is not None:
            if arrives:
                self._deliver(self.request)
            self._lose()

    @rule()
    def request_is_late(self) -> None:
        self._next()
        if self.request is not None:
            if not isinstance(self.request, InitProducerId):
                self.late.append(self.request)
            self._lose()

    @precondition(lambda self: self.manager.state is State.IN_TRANSACTION and not self.in_flight)
    @rule()
    def commit_is_late(self) -> None:
        self.commit()
        while self.manager.state is State.COMMITTING and not self.late:
            self.now = max(self.now, self.manager.retry_at)
            self._next()
            if isinstance(self.request, EndTransaction):
                self.request_is_late()
            else:
                self.request_is_answered()

    def _lose(self) -> None:
        assert self.request is not None
        request, self.request = self.request, None
        self.manager.failed(request, ConnectionClosed("lost"), self.now)

    @precondition(lambda self: self.late)
    @rule(number=numbers)
    def late_request_arrives(self, number: int) -> None:
        self._deliver(self.late.pop(number % len(self.late)))

    def _deliver(self, request: Request) -> None:
        with suppress(KafkaError):
            self.coordinator.handle(request)

    @precondition(lambda self: self.now < self.manager.retry_at)
    @rule()
    def time_passes(self) -> None:
        self.now = self.manager.retry_at

    @rule(code=st.sampled_from([ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR]))
    def request_is_refused_for_now(self, code: ErrorCode) -> None:
        self._next()
        if self.request is not None:
            request, self.request = self.request, None
            self.manager.failed(request, refusal(code), self.now)

    # --- what must hold

    @invariant()
    def transactions_are_visible_whole_or_not_at_all(self) -> None:
        visible = set(self.coordinator.visible)
        for number, sent in self.sent.items():
            assert sent <= visible or not sent & visible, f"transaction {number} is half visible"
            if number in self.committed:
                assert sent <= visible, f"transaction {number} is committed and not visible"
        for each in visible:
            assert self.transaction_of[each] in self.committing, f"{each} is not to be committed"


TestTransactionalProducer = TransactionalProducer.TestCase
TestTransactionalProducer.settings = settings(
    max_examples=examples(100), stateful_step_count=20, deadline=None
)
