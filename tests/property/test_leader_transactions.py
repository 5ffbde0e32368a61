"""The transactions of one partition, with messages that are lost, late, doubled and reordered, and other leaders.

Two replicas with real logs; one leads, and the former one may not know it yet. A producer sends up to three batches at
once over a connection that is handled in order, and copies of them arrive late. The coordinator is the machine of a
transactional id; verifications and markers are messages. At the end each record of the log is visible as the
coordinator decided about its transaction, each acknowledged record is there, and nothing is open.

A marker may be on its way while its leader loses its role and gets it back.
Invariants 1 and 2 of `kbroker.replica.core.leader_transactions`.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.coordinator.transaction.core.states import ProducerIdAndEpoch, TransactionState
from kbroker.coordinator.transaction.core.transaction import Done, Marker, Transaction, Write
from kbroker.log.log_validator import RecordValidation
from kbroker.replica.add_partitions_to_txn_manager import (
    RETRIABLE,
    AddPartitionsToTxnManager,
    Coordinator,
)
from kbroker.replica.core.leader_transactions import (
    EndTxnMarker,
    LeaderTransactions,
    VerificationStateEntry,
)
from kbroker.replica.partition_transactions import TransactionNotVerifiedError
from kclient.errors import ConnectionClosed
from kclient.wire.batches import iterate
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError, code_of
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from tests.kit.partitions import KEY, HostedPartition, fetch
from tests.kit.property_tests import examples
from tests.kit.transactional_logs import decoded, transactional

PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
REPEATED = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)
TIMEOUT_MS = 150
PATIENCE = 12


@dataclass(eq=False)
class Batch:
    """A batch of the producer, until its response."""

    producer: ProducerIdAndEpoch
    number: int
    sequence: int
    value: bytes
    is_answered: bool = False

    def encode(self) -> bytes:
        pid, epoch = self.producer
        return transactional(pid, self.value, epoch=epoch, sequence=self.sequence)


@dataclass(eq=False)
class Connection:
    """The producer's connection to a broker, which handles one request after the other."""

    broker: HostedPartition
    requests: deque[Batch] = field(default_factory=deque)
    is_busy: bool = False


@dataclass(eq=False)
class Committing:
    """An append, until the replicas have it."""

    broker: HostedPartition
    offset: int
    leader_epoch: int
    reply: Callable[[ErrorCode], None]


class World:
    """The cluster and what is on its way."""

    def __init__(self, rng: random.Random, directory: Path) -> None:
        self.rng = rng
        self.now = 0
        self.calm = False
        self.failovers = rng.choice([0.0, 0.005, 0.02])
        self.seen: Counter[str] = Counter()
        self.clock = Clock()
        self.wire: list[Callable[[], None]] = []
        self.late: list[Callable[[], None]] = []
        self.brokers = {
            n: HostedPartition(directory, n, add_partitions_to_txn_manager=self.verifier())
            for n in (1, 2)
        }
        self.leader, self.epoch = 1, 0
        self.behind: dict[int, tuple[int, int]] = {}
        """Brokers that do not know the newest leader and epoch."""
        for broker in self.brokers.values():
            broker.take(1, 0, (1, 2), replicas=(1, 2))
        self.committing: list[Committing] = []
        self.transaction = Transaction(None)
        self.coordinator_epoch = 0
        self.decisions: dict[int, bool] = {}
        self.next_producer_id = 7
        # The producer
        self.producer: ProducerIdAndEpoch | None = None
        self.number: int | None = None
        self.is_abandoned = False
        self.sequence = self.errors = self.count = 0
        self.in_flight: list[Batch] = []
        self.acknowledged: list[Batch] = []
        self.connection = Connection(self.brokers[1])

    # Messages

    def later(self, call: Callable[[], None], *, twice: bool = False) -> None:
        chance = 1.0 if self.calm else self.rng.random()
        if chance < 0.03:
            return
        (self.late if chance < 0.1 else self.wire).append(call)
        if twice and not self.calm and self.rng.random() < 0.25:
            self.late.append(call)

    def verifier(self) -> AddPartitionsToTxnManager:
        def send(*request: Any) -> Deferred[Any]:
            answer: Deferred[Any] = Deferred()
            if not self.calm and self.rng.random() < 0.1:
                self.later(lambda: answer.errback(ConnectionClosed("lost")))
            else:
                where = self.late if not self.calm and self.rng.random() < 0.1 else self.wire
                where.append(lambda: self.verified(request[-1], answer))
            return answer

        return AddPartitionsToTxnManager(
            self.clock, send, lambda _name: Coordinator(3, "c", 1), is_enabled=lambda: True
        )

    def verified(self, request: AddPartitionsToTxnRequest, answer: Deferred[Any]) -> None:
        """Handle the request at the coordinator; the answer may be late."""
        (asked,) = request.transactions
        found = self.transaction.verify(
            ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch), KEY
        )
        result = AddPartitionsToTxnPartitionResult(KEY[1], found.error)
        response = AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    "x", [AddPartitionsToTxnTopicResult(KEY[0], [result])], found.number or -1
                )
            ]
        )
        is_late = not self.calm and self.rng.random() < 0.2
        (self.late if is_late else self.wire).append(lambda: answer.callback(response))

    # The coordinator

    def written(self, decision: object) -> bool:
        """Carry out a decision; return whether the request is done."""
        if isinstance(decision, Write):
            stored = decision.metadata
            if stored.state in PREPARED:
                assert stored.number not in self.decisions
                self.decisions[stored.number] = stored.state is TransactionState.PREPARE_COMMIT
            self.send(self.transaction.written())
            return decision.error is ErrorCode.NONE
        return isinstance(decision, Done)

    def send(self, markers: Any) -> None:
        for marker in markers:
            self.send_marker(marker, self.coordinator_epoch)

    def send_marker(self, marker: Marker, coordinator_epoch: int) -> None:
        broker = self.brokers[self.leader]
        pid, producer_epoch = marker.producer
        end = EndTxnMarker(pid, producer_epoch, coordinator_epoch, marker.is_commit, marker.number)
        self.later(lambda: self.mark(broker, marker, end), twice=True)

    def mark(self, broker: HostedPartition, marker: Marker, end: EndTxnMarker) -> None:
        try:
            offset = broker.end_transaction(end, 1000)
        except KafkaError as error:
            self.seen[f"marker {code_of(error).name}"] += 1
            return
        if marker.number != self.transaction_number():
            self.seen["late marker"] += 1

        def reply(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self.later(lambda: self.acknowledge(marker))

        self.committing.append(Committing(broker, offset, broker.role.leader_epoch, reply))

    def transaction_number(self) -> int:
        stored = self.transaction.stored
        return -1 if stored is None else stored.number

    def acknowledge(self, marker: Marker) -> None:
        write = self.transaction.acknowledged(marker, self.now)
        if write is not None:
            self.written(write)

    def time_passes(self) -> None:
        write = self.transaction.expire(self.now, 10**9)
        if write is not None:
            self.seen["timeout"] += 1
            self.written(write)

    # Leaders and followers

    def fail_over(self) -> None:
        self.bring_up_to_date()
        self.epoch += self.rng.choice([1, 1, 2])
        self.leader = self.rng.choice([1, 2])
        self.seen["failover"] += 1
        self.behind = dict.fromkeys(self.brokers, (self.leader, self.epoch))
        self.take_role(self.leader)

    def take_role(self, broker_id: int) -> None:
        leader, epoch = self.behind.pop(broker_id)
        self.brokers[broker_id].take(leader, epoch, (1, 2), replicas=(1, 2))

    def bring_up_to_date(self) -> None:
        for broker_id in list(self.behind):
            self.take_role(broker_id)

    def replicate(self) -> None:
        follower, leader = self.brokers[3 - self.leader], self.brokers[self.leader]
        if not self.behind:
            fetch(follower, leader)
        for each in list(self.committing):
            try:
                is_done = each.broker.is_committed(each.offset, each.leader_epoch)
            except KafkaError as error:
                self.committing.remove(each)
                each.reply(code_of(error))
            else:
                if is_done:
                    self.committing.remove(each)
                    each.reply(ErrorCode.NONE)

    def produce(
        self, broker: HostedPartition, batch: Batch, reply: Callable[[ErrorCode], None]
    ) -> None:
        """Append as the handler of Produce does."""
        data = batch.encode()

        def append(
            validation: RecordValidation | None = None,
            verification: VerificationStateEntry | None = None,
        ) -> None:
            try:
                result = broker.append(
                    data, -1, 1000, transactional_id="x",
                    validation=validation, verification=verification,
                )  # fmt: skip
            except TransactionNotVerifiedError as error:
                error.completed().addCallback(lambda _, waits=error: answered(waits))
            except KafkaError as error:
                reply(code_of(error))
            else:
                end, epoch = result.last_offset + 1, broker.role.leader_epoch
                self.committing.append(Committing(broker, end, epoch, reply))

        def answered(waits: TransactionNotVerifiedError) -> None:
            error = waits.verification.error
            if error is ErrorCode.NONE:
                append(waits.validation, waits.verification)
            else:
                reply(ErrorCode.NOT_ENOUGH_REPLICAS if error in RETRIABLE else error)

        append()

    # The producer

    def serve(self, connection: Connection) -> None:
        """Handle the next request of a connection."""
        if connection.is_busy or not connection.requests:
            return
        batch = connection.requests.popleft()
        connection.is_busy = True

        def reply(error: ErrorCode) -> None:
            connection.is_busy = False
            if connection is self.connection:
                self.wire.append(lambda: self.answered(batch, error))

        if not self.calm and self.rng.random() < 0.2:
            broker = connection.broker
            self.late.append(lambda: self.produce(broker, batch, lambda _error: None))
        self.produce(connection.broker, batch, reply)

    def answered(self, batch: Batch, error: ErrorCode) -> None:
        if batch not in self.in_flight:
            return
        self.seen[error.name] += 1
        if error is ErrorCode.NONE:
            self.in_flight.remove(batch)
            self.acknowledged.append(batch)
        elif error in REPEATED and self.errors < PATIENCE:
            self.errors += 1
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self.reconnect()
            elif batch not in self.connection.requests:
                self.connection.requests.append(batch)
                self.in_order()
        else:
            self.abandon()

    def in_order(self) -> None:
        """A producer repeats its batches in the order of their sequences."""
        waiting = sorted(self.connection.requests, key=lambda each: each.sequence)
        self.connection.requests = deque(waiting)

    def reconnect(self) -> None:
        """Repeat all that has no response at the leader."""
        self.connection = Connection(self.brokers[self.leader], deque(self.in_flight))
        self.in_order()

    def abandon(self) -> None:
        """Give up the transaction; the next one has another epoch (KIP-360)."""
        self.is_abandoned = True
        self.in_flight = []
        self.connection = Connection(self.brokers[self.leader])

    def step_of_producer(self) -> None:
        if self.producer is None or (self.is_abandoned and self.number is None):
            self.next_producer_id += 1
            done = self.written(
                self.transaction.init_producer_id(
                    TIMEOUT_MS, self.now, self.next_producer_id, self.producer
                )
            )
            if done and self.transaction.stored is not None:
                self.producer = self.transaction.stored.producer
                self.is_abandoned = False
                self.sequence = 0
                self.connection = Connection(self.brokers[self.leader])
            elif self.rng.random() < 0.3:
                self.producer = None  # it was fenced
            return
        if self.number is None:
            if self.written(self.transaction.add(self.producer, self.now, [KEY])):
                self.number = self.transaction_number()
                self.errors = 0
            elif (
                self.transaction.stored is not None
                and self.transaction.stored.producer != self.producer
            ):
                self.is_abandoned = True
            return
        if self.is_abandoned or (not self.in_flight and self.rng.random() < 0.3):
            commits = self.rng.random() < (0.3 if self.is_abandoned else 0.7)
            end = self.transaction.end(self.producer, self.now, is_commit=commits)
            if not self.written(end):
                self.is_abandoned = True
            self.number = None
        elif len(self.in_flight) < 3 and self.rng.random() < 0.6:
            self.count += 1
            batch = Batch(
                self.producer, self.number, self.sequence, b"%d/%d" % (self.number, self.count)
            )
            self.sequence += 1
            self.in_flight.append(batch)
            self.connection.requests.append(batch)
        elif self.rng.random() < 0.05:
            self.abandon()

    # The schedule

    def step(self) -> None:
        self.now += 1
        kind = self.rng.random()
        if kind < 0.3:
            self.deliver()
        elif kind < 0.5:
            self.serve(self.connection)
            self.clock.advance(0)
        elif kind < 0.7:
            self.replicate()
        elif kind < 0.7 + self.failovers:
            self.fail_over()
        elif kind < 0.74 and self.behind:
            self.take_role(self.rng.choice(list(self.behind)))
        elif kind < 0.76:
            self.time_passes()
        elif kind < 0.78:
            self.coordinator_epoch += self.rng.random() < 0.3
            self.send(self.transaction.markers())
        else:
            self.step_of_producer()

    def deliver(self) -> None:
        rng = self.rng
        if self.late and rng.random() < 0.15:
            self.late.pop(rng.randrange(len(self.late)))()
        elif self.wire:
            self.wire.pop(rng.randrange(len(self.wire)) if rng.random() < 0.3 else 0)()

    def come_to_rest(self) -> None:
        """No more faults and no more requests of the producer; the coordinator ends what is open."""
        self.calm = True
        self.bring_up_to_date()
        for _ in range(12):
            self.clock.advance(0)
            while self.wire or self.late:
                (self.wire or self.late).pop(0)()
                self.clock.advance(0)
            self.replicate()
            self.replicate()
            self.now += TIMEOUT_MS
            self.time_passes()
            self.send(self.transaction.markers())

    def check(self) -> None:
        leader, follower = self.brokers[self.leader], self.brokers[3 - self.leader]
        assert leader.content() == follower.content()
        data = leader.content()
        truth = decoded(
            {each.base_offset: data[each.position : each.end] for each in iterate(data)}
        )
        assert truth.ongoing == {}
        hidden = {(each.producer_id, each.first_offset) for each in truth.ended if each.is_aborted}
        values = []
        for _, value, transaction in truth.records:
            assert value is not None
            values.append(value)
            number = int(value.split(b"/")[0])
            assert (transaction not in hidden) == self.decisions[number], (value, self.decisions)
        assert len(values) == len(set(values)), "no record is stored twice"
        counts = [int(value.split(b"/")[1]) for value in values]
        assert counts == sorted(counts), "records are in the order in which they were sent"
        for batch in self.acknowledged:
            assert batch.value in values, batch
        first = {
            info.producer_epoch: info.base_sequence
            for info in reversed(list(iterate(data)))
            if not info.is_control
        }
        if not self.seen["failover"]:
            assert set(first.values()) <= {0}, "an epoch begins with the first sequence"


def play(seed: int, directory: Path) -> World:
    rng = random.Random(seed)
    world = World(rng, directory)
    for _ in range(rng.randint(50, 700)):
        world.step()
    world.come_to_rest()
    world.check()
    for broker in world.brokers.values():
        assert broker.log is not None
        broker.log.close(clean=False)
    return world


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(100), deadline=None)
def test_each_record_is_visible_as_its_transaction_was_decided(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        play(seed, Path(directory))


def seen_in(schedules: range) -> Counter[str]:
    """What happened in these schedules."""
    seen: Counter[str] = Counter()
    for seed in schedules:
        with tempfile.TemporaryDirectory() as directory:
            world = play(seed, Path(directory))
        seen += world.seen
        seen["committed"] += sum(world.decisions.values())
        seen["acknowledged"] += len(world.acknowledged)
    return seen


@pytest.mark.long
def test_stories_have_failovers_fences_and_late_messages() -> None:
    """The test above would be of no use if nothing happened in it."""
    seen = seen_in(range(120))
    wanted = {
        "acknowledged": 200, "committed": 50, "failover": 100, "late marker": 20, "timeout": 20,
        "NOT_ENOUGH_REPLICAS": 20, "OUT_OF_ORDER_SEQUENCE_NUMBER": 3, "marker INVALID_PRODUCER_EPOCH": 1,
        "marker TRANSACTION_COORDINATOR_FENCED": 1,
    }  # fmt: skip
    assert {name: seen[name] for name in wanted if seen[name] < wanted[name]} == {}


@pytest.mark.long
@pytest.mark.parametrize("fault", ["late markers", "old answers"])
def test_faults_are_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Without the numbers, or with answers that count after a marker, a half-visible transaction is found."""
    if fault == "late markers":
        takes = LeaderTransactions.takes

        def without_number(self: LeaderTransactions, *args: Any, is_open: bool, ended: int) -> bool:
            return takes(self, *args, is_open=is_open)

        monkeypatch.setattr(LeaderTransactions, "takes", without_number)
        monkeypatch.setattr(LeaderTransactions, "number_of", lambda _self, _producer_id: -1)
    else:
        monkeypatch.setattr(LeaderTransactions, "_end_verification", lambda _self, _marker: None)
    with pytest.raises(AssertionError):
        seen_in(range(300))
