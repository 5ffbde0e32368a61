"""The machine of a transactional id, in a cluster that loses, delays, reorders and doubles what is sent.

Two producers use one transactional id. Coordinators come and go while former ones still run. The znode takes writes of
the newest coordinator only; the outcome of a write may stay unknown. Partitions ask before the first record of a
transaction and take markers, as docs/design/transactions.md has it. At the end each transaction is visible in all
partitions or in none, as its producer knows it. Invariants 1-4 of `kbroker.coordinator.transaction.core.transaction`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.coordinator.transaction.core.states import (
    LAST_EPOCH_OF_A_PRODUCER,
    VALID_FROM,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from kbroker.coordinator.transaction.core.transaction import (
    Done,
    Marker,
    Refuse,
    Transaction,
    Write,
)
from kclient.wire.error_codes import ErrorCode
from tests.kit.property_tests import examples

PARTITIONS = (("t", 0), ("t", 1), ("u", 0))
IDLE_MS = 10**9
TIMEOUT_MS = 200


@dataclass(eq=False)
class Attempt:
    """One transaction of a producer, and what the producer knows of it."""

    name: str
    acknowledged: list[tuple[int, str]] = field(default_factory=list)
    """Partition and value of each record with a response."""
    asked_commit: bool = False
    is_committed: bool = False


@dataclass
class Stored:
    """A record in a partition."""

    attempt: Attempt
    value: str
    outcome: str = "open"


class Partition:
    """A leader: it verifies the first record of a transaction, and takes markers."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.log: list[Stored] = []
        self.epochs: dict[int, int] = {}
        self.sequences: dict[tuple[int, int], int] = {}
        self.open: dict[int, tuple[int, list[Stored]]] = {}
        """By producer id: the number of the open transaction, and its records."""
        self.coordinator_epochs: dict[int, int] = {}
        self.guards: dict[int, int] = {}
        """How many markers of each producer id were taken: an older answer of the coordinator does not count."""

    def produce(
        self, producer: ProducerIdAndEpoch, sequence: int, record: Stored, reply: Reply
    ) -> None:
        pid = producer.producer_id
        if producer.epoch < self.epochs.get(pid, -1):
            return reply(ErrorCode.INVALID_PRODUCER_EPOCH)
        expected = self.sequences.get(producer, 0)
        if sequence != expected:
            known = [each for each in self.log if each.value == record.value]
            return reply(ErrorCode.NONE if known else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        if pid in self.open and self.epochs[pid] == producer.epoch:
            self.append(producer, record)
            return reply(ErrorCode.NONE)
        guard = self.guards.get(pid, 0)

        def verified(error: ErrorCode, number: int) -> None:
            stale = (
                guard != self.guards.get(pid, 0)
                or self.sequences.get(producer, 0) != sequence
                or producer.epoch < self.epochs.get(pid, -1)
            )
            if error is ErrorCode.NONE and not stale:
                self.open.setdefault(pid, (number, []))
                self.append(producer, record)
                reply(ErrorCode.NONE)
            else:
                reply(error or ErrorCode.INVALID_TXN_STATE)

        self.world.ask_to_verify(producer, PARTITIONS[self.number], verified)
        return None

    def append(self, producer: ProducerIdAndEpoch, record: Stored) -> None:
        self.epochs[producer.producer_id] = producer.epoch
        self.sequences[producer] = self.sequences.get(producer, 0) + 1
        self.open[producer.producer_id][1].append(record)
        self.log.append(record)

    def mark(self, marker: Marker, coordinator_epoch: int, reply: Callable[[], None]) -> None:
        pid = marker.producer.producer_id
        if coordinator_epoch < self.coordinator_epochs.get(pid, -1):
            return None
        if marker.producer.epoch < self.epochs.get(pid, -1):
            return None
        number, records = self.open.get(pid, (marker.number, []))
        if number == marker.number:
            self.coordinator_epochs[pid] = coordinator_epoch
            self.epochs[pid] = marker.producer.epoch
            self.guards[pid] = self.guards.get(pid, 0) + 1
            for record in records:
                record.outcome = "visible" if marker.is_commit else "hidden"
            self.open.pop(pid, None)
        return reply()


Reply = Callable[[ErrorCode], None]


class Coordinator:
    """A broker that acts as coordinator, deposed or not, with the znode as it read it."""

    def __init__(self, world: World, epoch: int) -> None:
        self.world = world
        self.epoch = epoch
        self.transaction = Transaction(None)
        self.version = world.version
        self.send(self.transaction.found(world.znode))

    @property
    def is_current(self) -> bool:
        return self.epoch == self.world.coordinator_epoch

    def decided(self, decision: Done | Refuse | Write | None, reply: Replied) -> None:
        """Write and then respond, or respond from memory if no other broker coordinates."""
        if isinstance(decision, Write):
            self.write(decision, reply)
        elif decision is not None and self.is_current:
            if isinstance(decision, Refuse):
                reply(decision.error, None)
            else:
                reply(ErrorCode.NONE, decision.metadata)

    def write(self, write: Write, reply: Replied) -> None:
        version = self.version

        def apply() -> None:
            world = self.world
            succeeds = self.is_current and version == world.version
            if succeeds:
                world.store(write.metadata)
            if not self.is_current:
                return  # it learns that it does not coordinate any more
            if succeeds and world.rng.random() < 0.8:
                self.version = world.version
                self.send(self.transaction.written())
                world.later(lambda: reply(write.error, write.metadata))
            else:  # ConnectionLoss: the znode is read, the client gets no answer
                self.version = world.version
                self.send(self.transaction.found(world.znode))

        self.world.later(apply, may_be_lost=False)

    def send(self, markers: list[Marker] | tuple[Marker, ...]) -> None:
        for marker in markers:
            self.send_one(marker)

    def send_one(self, marker: Marker) -> None:
        world = self.world
        assert not isinstance(marker.destination, str)
        partition = world.partitions[PARTITIONS.index(marker.destination)]

        def acknowledged() -> None:
            write = self.transaction.acknowledged(marker, world.now)
            if write is not None:
                self.write(write, lambda _error, _metadata: None)

        world.later(
            lambda: partition.mark(marker, self.epoch, lambda: world.later(acknowledged)),
            twice=True,
        )


Replied = Callable[[ErrorCode, TransactionMetadata | None], None]


class Producer:
    """A client: one request at a time; without an answer, or after an error, it begins again."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.turn = 0
        """A late answer to an earlier turn is dropped."""
        self.count = 0
        self.sequences: dict[int, int] = {}
        self.restart()

    def restart(self) -> None:
        self.turn += 1
        self.producer: ProducerIdAndEpoch | None = None
        self.attempt: Attempt | None = None
        self.waits = self.produces = self.is_done = False
        self.sequences = {}

    def abandon(self) -> None:
        """Wait no longer for a produce: end the transaction without it, and then raise the epoch (KIP-360)."""
        self.turn += 1
        self.waits = self.produces = False
        self.is_done = True
        assert self.attempt is not None
        self.attempt.asked_commit = self.world.rng.random() < 0.5

    def request(
        self, send: Callable[[Coordinator, Replied], None], done: Callable[..., None]
    ) -> None:
        self.waits = True
        turn = self.turn

        def reply(error: ErrorCode, metadata: TransactionMetadata | None) -> None:
            if turn != self.turn:
                return
            self.turn += 1
            self.waits = False
            if error is ErrorCode.NONE:
                done(metadata)
            elif error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                self.restart()

        coordinator = self.world.any_coordinator()
        self.world.later(lambda: send(coordinator, reply))

    def step(self) -> None:
        rng = self.world.rng
        if self.waits:
            if rng.random() < 0.02:
                if self.produces and rng.random() < 0.7:
                    self.abandon()
                else:
                    self.restart()  # a timeout
            return
        if self.producer is None:
            self.request(self.send_init, self.initialised)
        elif self.is_done:
            if self.attempt is not None:
                self.finish(self.attempt.asked_commit)
            else:
                self.request(self.send_init, self.initialised)
        elif self.attempt is None:
            chosen = rng.sample(PARTITIONS, rng.randint(1, 3))
            self.request(
                lambda c, reply: c.decided(
                    c.transaction.add(self.sent_as, self.world.now, chosen), reply
                ),
                lambda _metadata: self.added(chosen),
            )
        elif rng.random() < 0.15 and len(self.chosen) < len(PARTITIONS):
            self.add_another()
        elif self.attempt.asked_commit or rng.random() < 0.25:
            self.finish(rng.random() < 0.7 or self.attempt.asked_commit)
        else:
            self.produce(rng.choice(self.chosen))

    def add_another(self) -> None:
        """Add a partition to the open transaction."""
        index = self.world.rng.choice([n for n in range(len(PARTITIONS)) if n not in self.chosen])
        self.request(
            lambda c, reply: c.decided(
                c.transaction.add(self.sent_as, self.world.now, [PARTITIONS[index]]), reply
            ),
            lambda _metadata: self.chosen.append(index),
        )

    def send_init(self, coordinator: Coordinator, reply: Replied) -> None:
        world = self.world
        world.next_producer_id += 1
        coordinator.decided(
            coordinator.transaction.init_producer_id(
                TIMEOUT_MS, world.now, world.next_producer_id, self.producer
            ),
            reply,
        )

    def initialised(self, metadata: TransactionMetadata) -> None:
        self.is_done = False
        self.sequences = {}
        self.producer = self.sent_as = metadata.producer
        assert self.producer.epoch <= LAST_EPOCH_OF_A_PRODUCER
        holder = self.world.given.setdefault(self.producer, self)
        assert holder is self, "no two producers have the same epoch"

    def added(self, chosen: list[tuple[str, int]]) -> None:
        self.count += 1
        self.chosen = [PARTITIONS.index(each) for each in chosen]
        self.attempt = Attempt(f"{self.name}{self.count}")
        self.world.attempts.append(self.attempt)

    def produce(self, index: int) -> None:
        attempt, producer = self.attempt, self.sent_as
        assert attempt is not None
        self.world.values += 1
        record = Stored(attempt, f"{attempt.name}/{self.world.values}")
        sequence = self.sequences.get(index, 0)
        self.waits = self.produces = True
        turn = self.turn

        def reply(error: ErrorCode) -> None:
            if turn != self.turn:
                return
            self.turn += 1
            self.waits = self.produces = False
            if error is ErrorCode.NONE:
                self.sequences[index] = sequence + 1
                attempt.acknowledged.append((index, record.value))
            else:
                self.restart()

        partition = self.world.partitions[index]
        self.world.later(
            lambda: partition.produce(
                producer, sequence, record, lambda error: self.world.later(lambda: reply(error))
            ),
            twice=True,
        )

    def finish(self, is_commit: bool) -> None:
        attempt, producer = self.attempt, self.sent_as
        assert attempt is not None
        attempt.asked_commit |= is_commit

        def ended(_metadata: TransactionMetadata) -> None:
            attempt.is_committed = is_commit
            self.attempt = None

        self.request(
            lambda c, reply: c.decided(
                c.transaction.end(producer, self.world.now, is_commit=is_commit), reply
            ),
            ended,
        )


class World:
    """The cluster: a znode, coordinators, partitions, producers, and what is under way between them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0
        self.znode: TransactionMetadata | None = None
        self.version = 0
        self.coordinator_epoch = 0
        self.next_producer_id = 100
        self.values = 0
        self.calm = False
        self.given: dict[ProducerIdAndEpoch, Producer] = {}
        self.attempts: list[Attempt] = []
        self.under_way: list[Callable[[], None]] = []
        self.late: list[Callable[[], None]] = []
        """What arrives some day."""
        self.lateness = rng.choice([0.0, 0.02, 0.1])
        self.contention = rng.choice([0.0, 0.02, 0.3])
        self.partitions = [Partition(self, n) for n in range(len(PARTITIONS))]
        self.coordinators = [Coordinator(self, 0)]
        self.producers = [Producer(self, "a"), Producer(self, "b")]

    def later(
        self, call: Callable[[], None], *, twice: bool = False, may_be_lost: bool = True
    ) -> None:
        if may_be_lost and not self.calm and self.rng.random() < 0.02:
            return
        is_late = not self.calm and self.rng.random() < self.lateness
        (self.late if is_late else self.under_way).append(call)
        if twice and not self.calm and self.rng.random() < 0.2:
            self.late.append(call)

    def any_coordinator(self) -> Coordinator:
        if self.calm or self.rng.random() < 0.85:
            return self.coordinators[-1]
        return self.rng.choice(self.coordinators[-2:])

    def ask_to_verify(
        self,
        producer: ProducerIdAndEpoch,
        partition: tuple[str, int],
        reply: Callable[[ErrorCode, int], None],
    ) -> None:
        coordinator = self.any_coordinator()

        def answer() -> None:
            found = coordinator.transaction.verify(producer, partition)
            if coordinator.is_current:
                self.later(lambda: reply(found.error, found.number))

        self.later(answer)

    def store(self, metadata: TransactionMetadata) -> None:
        before = self.znode
        if metadata.state is TransactionState.DEAD:
            self.znode = None
        else:
            self.znode = metadata
        self.version += 1
        if before is None:
            return
        allowed = VALID_FROM[metadata.state]
        assert before.state in allowed, (before, metadata)
        if before.producer_id == metadata.producer_id:
            assert metadata.producer_epoch >= before.producer_epoch
        if metadata.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            for index, partition in enumerate(PARTITIONS):
                if partition in before.partitions:
                    opened = self.partitions[index].open.get(before.producer_id)
                    assert opened is None, "complete, and a partition without the marker"

    def step(self) -> None:
        kind = self.rng.random()
        self.now += 1
        if kind < 0.62:
            if self.late and self.rng.random() < 0.08:
                self.late.pop(self.rng.randrange(len(self.late)))()
            if not self.under_way:
                return
            at = self.rng.randrange(len(self.under_way)) if self.rng.random() < 0.4 else 0
            self.under_way.pop(at)()
        elif kind < 0.623 and not self.calm:
            self.coordinator_epoch += 1
            self.coordinators.append(Coordinator(self, self.coordinator_epoch))
        elif kind < 0.64:
            coordinator = self.any_coordinator()
            coordinator.decided(
                coordinator.transaction.expire(self.now, IDLE_MS), lambda _error, _metadata: None
            )
            if self.rng.random() < 0.3:
                coordinator.send(coordinator.transaction.markers())  # sent again
        else:
            self.producers[self.rng.random() < self.contention].step()

    def come_to_rest(self) -> None:
        """No more faults and no more requests: the last coordinator ends what is open."""
        self.calm = True
        self.coordinator_epoch += 1
        self.coordinators.append(Coordinator(self, self.coordinator_epoch))
        last = self.coordinators[-1]
        for _ in range(40):
            while self.under_way or self.late:
                (self.under_way or self.late).pop(0)()
            self.now += TIMEOUT_MS
            last.decided(last.transaction.expire(self.now, IDLE_MS), lambda _e, _m: None)

    def check(self) -> None:
        outcomes: dict[str, set[str]] = {}
        for partition in self.partitions:
            values = [each.value for each in partition.log]
            assert len(values) == len(set(values)), "no record is stored twice"
            for record in partition.log:
                outcomes.setdefault(record.attempt.name, set()).add(record.outcome)
        for attempt in self.attempts:
            found = outcomes.get(attempt.name, set())
            assert len(found) <= 1, (attempt, "half of it is visible")
            assert "open" not in found
            if attempt.is_committed and attempt.acknowledged:
                assert found == {"visible"}, attempt
            if not attempt.asked_commit:
                assert found <= {"hidden"}, attempt
            for index, value in attempt.acknowledged:
                assert value in [each.value for each in self.partitions[index].log]


def play(seed: int) -> World:
    rng = random.Random(seed)
    world = World(rng)
    for _ in range(rng.randint(50, 600)):
        world.step()
    world.come_to_rest()
    world.check()
    return world


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(300), deadline=None)
def test_a_transaction_is_visible_everywhere_or_nowhere(seed: int) -> None:
    play(seed)


@pytest.mark.long
def test_stories_have_commits_aborts_and_fences() -> None:
    """The test above would be of no use if nothing came to an end."""
    worlds = [play(seed) for seed in range(300)]
    attempts = [attempt for world in worlds for attempt in world.attempts]
    assert sum(each.is_committed and len(each.acknowledged) > 1 for each in attempts) > 30
    records = [each for world in worlds for p in world.partitions for each in p.log]
    assert sum(each.outcome == "hidden" for each in records) > 200
    assert sum(world.coordinator_epoch for world in worlds) > 400
