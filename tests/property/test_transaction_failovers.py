"""Transactions at coordinators that fail over, over a ZooKeeper that loses connections, and leaders that lose markers.

Producers of several transactional ids add partitions and groups, and commit or abort, as clients do: they find the
coordinator, and send a request again after an error that is retriable. Brokers are paused, killed, deposed without
their knowledge, and lose sessions. At the end each transaction is decided once, has the same marker in all of its
partitions, and the outcome that its producer knows.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.transaction.core.records import decode_metadata
from kbroker.coordinator.transaction.core.states import (
    PREPARED,
    ProducerIdAndEpoch,
    TransactionState,
)
from kbroker.coordinator.transaction.core.transaction import Verified
from kbroker.zk.znodes import TRANSACTIONAL_IDS, unescape
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.write_txn_markers import WritableTxnMarker
from tests.kit.property_tests import examples
from tests.simulation.clock import Process
from tests.stepped.transactional_brokers import (
    CoordinatingBroker,
    TransactionalBrokers,
    with_limits,
)
from tests.stepped.zookeeper import outcome_of

COORDINATORS = 2
PARTITIONS = (("t", 0), ("t", 1), ("u", 0))
GROUPS = ("g1", "g2", "g3")
NAMES = ("x", "y", "z")
TIMEOUT_MS = 20_000
RETRIABLE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT,
    }
)  # fmt: skip
REQUEST_SECONDS = 5.0
"""After that a client sends a request again: the broker may be paused or dead."""


@dataclass(frozen=True)
class Decision:
    """A transaction that ZooKeeper has as decided."""

    producer: ProducerIdAndEpoch
    is_commit: bool
    destinations: frozenset[TopicPartition]


class Fenced(Exception):
    """The producer cannot continue its transaction."""


class Over(Exception):
    """The schedule has ended."""


class Schedule:
    """A cluster with faults, and its producers."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        limits = with_limits(abort_interval=3.0, expire_interval=1000.0)
        self.cluster = TransactionalBrokers(coordinators=COORDINATORS, limits=limits)
        self.decisions: dict[tuple[str, int], Decision] = {}
        self.verified: dict[tuple[str, int], set[TopicPartition]] = {}
        """By transaction, the destinations that leaders were allowed to write to."""
        self.commits = self.aborts = self.fenced = 0
        self.failures: list[Failure] = []
        """Of producers; their assertions are in coroutines."""
        self.over = False
        self.cluster.ensemble.on_commit.append(self._committed)
        self.clients = Process(self.cluster.scheduler, "clients", Random(seed))
        self.brokers = {n: self.cluster.broker(n, n - 1) for n in (1, 2)}
        self.leaders: dict[int, CoordinatingBroker] = {n - 1: b for n, b in self.brokers.items()}
        """The coordinator of each partition, as the metadata has it."""
        self.refused: set[TopicPartition] = set()
        self.cluster.error_of = self._error_of
        for name in NAMES:
            for _ in range(2 if name == "x" else 1):
                self._start(self._produce(name))

    def _start(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            with suppress(Over):
                await work

        def begin() -> None:
            Deferred.fromCoroutine(run()).addErrback(self.failures.append)

        self.clients.callLater(self.rng.random(), begin)

    # --- what ZooKeeper has

    def _committed(self, change: Any) -> None:
        kind, path, data = change[:3]
        if kind == "delete" or not path.startswith(f"{TRANSACTIONAL_IDS}/"):
            return
        stored = decode_metadata(path, data)
        if stored.state not in PREPARED:
            return
        groups = {(OFFSETS_TOPIC, partition_for(group, 3)) for group in stored.groups}
        decision = Decision(
            stored.producer,
            stored.state is TransactionState.PREPARE_COMMIT,
            frozenset(stored.partitions | groups),
        )
        key = (unescape(path.rpartition("/")[2]), stored.number)
        assert self.decisions.setdefault(key, decision) == decision, "it was decided twice"

    # --- the leaders of partitions

    def _error_of(self, key: TopicPartition, _marker: WritableTxnMarker) -> ErrorCode:
        return ErrorCode.NOT_ENOUGH_REPLICAS if key in self.refused else ErrorCode.NONE

    # --- producers

    async def _pause(self, seconds: float) -> None:
        await deferLater(self.clients, seconds)
        if self.over:
            raise Over

    async def _ask(self, name: str, request: Callable[[CoordinatingBroker], Awaitable[Any]]) -> Any:
        """Send a request until it has an answer that is not retriable; `Fenced` for other errors."""
        while True:
            broker = self.leaders[partition_for(name, COORDINATORS)]
            answer = await self._answer(broker, request)
            if isinstance(answer, ErrorCode) and answer in RETRIABLE:
                await self._pause(self.rng.uniform(0.05, 0.5))
                continue
            if isinstance(answer, ErrorCode):
                raise Fenced(answer)
            return answer

    async def _answer(
        self, broker: CoordinatingBroker, request: Callable[[CoordinatingBroker], Awaitable[Any]]
    ) -> Any:
        """Return the answer of *broker*, the code of its error, or a time-out."""
        waiting: Deferred[Any] = Deferred()

        def arrive() -> None:
            answered = Deferred.fromCoroutine(outcome_of(request(broker)))
            answered.addCallback(lambda answer: self.clients.callLater(0.001, have, answer))

        def have(answer: Any) -> None:
            if not waiting.called:
                waiting.callback(answer)

        broker.process.arrives(self.cluster.scheduler.now + self.rng.uniform(0, 0.02), arrive)
        self.clients.callLater(REQUEST_SECONDS, have, ErrorCode.REQUEST_TIMED_OUT)
        return await waiting

    async def _produce(self, name: str) -> None:
        while True:
            try:
                producer = await self._ask(
                    name, lambda b: b.coordinator.init_producer_id(name, TIMEOUT_MS)
                )
                for _ in range(self.rng.randint(1, 10)):
                    await self._transaction(name, producer)
            except Fenced:
                self.fenced += 1
            await self._pause(self.rng.choice((0.01, 1.0, 5.0)))

    async def _transaction(self, name: str, producer: ProducerIdAndEpoch) -> None:
        rng = self.rng
        destinations: set[TopicPartition] = set()
        number = -1
        for _ in range(rng.randint(1, 3)):
            some = rng.sample(PARTITIONS, rng.randint(1, 3))
            await self._ask(name, lambda b, s=some: b.coordinator.add_partitions(name, producer, s))
            destinations.update(some)
            if rng.random() < 0.5:
                group = rng.choice(GROUPS)
                await self._ask(
                    name, lambda b, g=group: b.coordinator.add_offsets(name, producer, g)
                )
                destinations.add((OFFSETS_TOPIC, partition_for(group, 3)))
            asked = sorted(destinations)
            answers = await self._ask(
                name, lambda b, a=asked: b.coordinator.verify(name, producer, a)
            )
            for key, answer in zip(asked, answers, strict=True):
                if answer.error is ErrorCode.NONE:
                    self.verified.setdefault((name, answer.number), set()).add(key)
                    number = answer.number
                else:
                    assert answer.error in (
                        ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS,
                    ), answer  # fmt: skip
            if answers != [Verified(ErrorCode.NONE, number)] * len(asked):
                raise Fenced  # another producer is fencing this one
            await self._pause(rng.choice((0.01, 0.2, 1.0)))
        if rng.random() < 0.05:
            await self._pause(TIMEOUT_MS / 500)  # it is too late
        is_commit = rng.random() < 0.7
        await self._ask(name, lambda b: b.coordinator.end(name, producer, is_commit=is_commit))
        decision = self.decisions[name, number]
        assert decision.producer == producer
        assert decision.is_commit is is_commit
        assert destinations <= decision.destinations
        self.commits += is_commit
        self.aborts += not is_commit

    # --- faults

    def fault(self) -> None:
        """Have something fail."""
        alive = [broker for broker in self.brokers.values() if broker.process.alive]
        if self.rng.random() < 0.6:
            self._broker_fault(self.rng.choice(alive), alive)
        else:
            self._leader_fault()

    def _broker_fault(self, broker: CoordinatingBroker, alive: list[CoordinatingBroker]) -> None:
        rng, cluster = self.rng, self.cluster
        match rng.randrange(10):
            case 0 | 1:
                self._fail_over(rng.randrange(COORDINATORS), rng.choice(alive))
            case 2 if not broker.process.paused:
                broker.process.pause()
                for connection in broker.connections:
                    connection.process_paused()
                self._later(rng.uniform(1, 12), lambda: _resume(broker))
            case 3 if len(alive) > 1:
                self._kill(broker)
            case 4:
                broker.connections[-1].broken()
            case 5 | 6:
                broker.lose_next_reply()
            case 7:
                connection = broker.connections[-1]
                if connection.session is not None:
                    cluster.ensemble.end(connection.session)
            case 8:
                cluster.change_isr(rng.randrange(COORDINATORS))
            case _:
                cluster.ensemble.trail(rng.choice((0.0, 0.0, 0.5)))

    def _leader_fault(self) -> None:
        rng, cluster = self.rng, self.cluster
        match rng.randrange(4):
            case 0:
                cluster.takes_requests = False
                self._later(rng.uniform(0.1, 3), lambda: setattr(cluster, "takes_requests", True))
            case 1:
                cluster.loses_responses = True
                self._later(rng.uniform(0.1, 3), lambda: setattr(cluster, "loses_responses", False))
            case 2:
                key = rng.choice([*PARTITIONS, (OFFSETS_TOPIC, rng.randrange(3))])
                self.refused.add(key)
                self._later(rng.uniform(0.1, 5), lambda: self.refused.discard(key))
            case _ if cluster.held is None:
                cluster.held = []
                self._later(rng.uniform(0.1, 4), self._release)

    def _later(self, seconds: float, heal: Callable[[], None]) -> None:
        self.cluster.scheduler.after(seconds, heal)

    def _release(self) -> None:
        """Deliver what was delayed, in another order, and some of it twice."""
        held, self.cluster.held = self.cluster.held or [], None
        self.rng.shuffle(held)
        for handle in held:
            handle()

    def _fail_over(self, partition: int, broker: CoordinatingBroker) -> None:
        """Elect *broker*; it learns of that a moment later, the former coordinator perhaps never."""
        former = self.leaders[partition]
        self.cluster.elect(broker.broker_id, partition)
        epoch = self.cluster.epochs[partition]
        self.leaders[partition] = broker
        now = self.cluster.scheduler.now
        coordinator = broker.coordinator

        def elected() -> None:
            if self.cluster.epochs[partition] == epoch:
                coordinator.on_election(partition, epoch)

        def resigned() -> None:
            if self.leaders[partition] is not former:
                former.coordinator.on_resignation(partition)

        broker.process.arrives(now + self.rng.uniform(0, 0.5), elected)
        if former is not broker and self.rng.random() < 0.5:
            former.process.arrives(now + self.rng.uniform(0, 1), resigned)

    def _kill(self, broker: CoordinatingBroker) -> None:
        broker.kill()
        other = next(b for b in self.brokers.values() if b.process.alive)
        for partition, leader in self.leaders.items():
            if leader is broker:
                self._fail_over(partition, other)
        self._later(self.rng.uniform(1, 5), lambda: self._restart(broker.broker_id))

    def _restart(self, broker_id: int) -> None:
        self.brokers[broker_id] = CoordinatingBroker(self.cluster, broker_id, wait=False)

    # --- the schedule

    def pass_time(self, seconds: float) -> None:
        """Let time pass; the wall clock goes with it."""
        while seconds > 0:
            step = min(seconds, 0.25)
            self.cluster.pass_time(step)
            seconds -= step

    def play(self) -> None:
        for _ in range(self.rng.randint(5, 25)):
            self.pass_time(self.rng.choice((0.1, 0.5, 2.0)))
            self.fault()
        self.pass_time(15)
        for broker in self.brokers.values():
            _resume(broker)
        self.cluster.ensemble.trail(0.0)
        self.over = True
        # The last transactions are beyond their timeout, and aborted.
        self.pass_time(TIMEOUT_MS / 1000 + 40)

    def check(self) -> None:
        for failure in self.failures:
            failure.raiseException()
        tree = self.cluster.ensemble.tree
        for name in tree[TRANSACTIONAL_IDS].children:
            stored = self.cluster.stored(unescape(name))
            assert stored is not None
            assert stored.state not in (*PREPARED, TransactionState.ONGOING), (name, stored)
        ids = {
            decision.producer.producer_id: name for (name, _), decision in self.decisions.items()
        }
        written: dict[tuple[str, int], dict[TopicPartition, set[bool]]] = {}
        for key, log in self.cluster.logs.items():
            for marker in log:
                outcome = written.setdefault((ids[marker.producer.producer_id], marker.number), {})
                outcome.setdefault(key, set()).add(marker.is_commit)
        for transaction, decision in self.decisions.items():
            wanted = {key: {decision.is_commit} for key in decision.destinations}
            assert written.pop(transaction) == wanted, transaction
        assert written == {}, "markers of transactions that were not decided"
        for transaction, keys in self.verified.items():
            assert keys <= self.decisions[transaction].destinations, transaction


def _resume(broker: CoordinatingBroker) -> None:
    if broker.process.alive and broker.process.paused:
        broker.process.resume()
        for connection in broker.connections:
            connection.process_resumed()


def play(seed: int) -> Schedule:
    logged: list[Any] = []

    def observe(event: Any) -> None:
        if event.get("log_failure") is not None:
            logged.append(event["log_failure"])

    # Coroutines of an earlier schedule that never ended are closed by the collector, in any order, and log how.
    gc.disable()
    globalLogPublisher.addObserver(observe)
    try:
        schedule = Schedule(seed)
        schedule.play()
    finally:
        globalLogPublisher.removeObserver(observe)
        gc.enable()
    schedule.check()
    assert logged == []
    return schedule


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(50), deadline=None)
def test_a_transaction_has_one_outcome_whatever_fails(seed: int) -> None:
    play(seed)


@pytest.mark.long
def test_stories_have_commits_aborts_and_fences() -> None:
    """The test above would be of no use if nothing came to an end."""
    schedules = [play(seed) for seed in range(10)]
    assert sum(schedule.commits for schedule in schedules) > 50
    assert sum(schedule.aborts for schedule in schedules) > 20
    assert sum(schedule.fenced for schedule in schedules) > 10
    assert sum(sum(schedule.cluster.epochs.values()) for schedule in schedules) > 15
