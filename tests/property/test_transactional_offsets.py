"""Offsets in transactions, over two coordinators and a ZooKeeper that fail: all or none, in order, none lost.

A schedule has transactions of two producers and plain commits, in one group. It plays the transaction coordinator: a
transaction is decided once, its marker is repeated until a coordinator acknowledges it, and then the next one begins.
Answers to verifications are late, copies of commits and markers of ended transactions arrive, brokers are replaced
without knowing it, paused and restarted, and replies of ZooKeeper are lost.

The model knows of each commit only when it was sent and answered. One commit is *before* another if it was answered,
and had no copy on its way, when the other was sent. A commit is *effective* if it is a plain one that was acknowledged,
or one of a committed transaction with an acknowledged marker. Then each offset that is read must be of a commit that
may be visible, and not before an effective one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.transactional_offsets import TransactionalCommit
from kbroker.zk import znodes
from kclient.net.waiting import as_deferred
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError
from tests.kit.groups import LIMITS
from tests.kit.property_tests import examples
from tests.simulation.clock import Process
from tests.simulation.zk_connection import ZkConnection, client_of
from tests.stepped.zookeeper import SteppedZooKeeper

STATE = znodes.partition_state_path(OFFSETS_TOPIC, 0)
PENDING = "/transactions/pending"
PARTITIONS = range(3)


@dataclass(eq=False)
class Commit:
    """The offset *value*, which no other commit has, for some partitions."""

    value: int
    partitions: tuple[int, ...]
    sent: float
    transaction: Transaction | None = None
    under_way: int = 0
    is_acknowledged: bool = False
    ended: float = inf
    """When the last request was answered and none is unknown; inf: it may still have an effect."""
    is_unknown: bool = False

    def over(self) -> float:
        """Return the time from which on the commit changes nothing any more."""
        end = inf if self.under_way or self.is_unknown else self.ended
        return min(end, self.transaction.ended if self.transaction is not None else inf)


@dataclass(eq=False)
class Transaction:
    producer_id: int
    epoch: int
    number: int
    commits: list[Commit] = field(default_factory=list)
    is_commit: bool | None = None
    marker_epoch: int = 0
    marked: float = inf
    """When its marker was sent first."""
    ended: float = inf
    """When its marker was acknowledged."""


class Broker:
    """A process with a session and a coordinator of the only partition."""

    def __init__(self, schedule: Schedule, number: int) -> None:
        self.number = number
        self.process = Process(schedule.scheduler, f"broker {number}", Random(number))
        self.connections: list[ZkConnection] = []
        zk = client_of(schedule.ensemble, self.process, number, self.connections)
        self.coordinator = GroupCoordinator(
            self.process,
            zk,
            broker_id=number,
            limits=LIMITS,
            now_ms=lambda: 0,
            no_successor_at=lambda _partition, _leader_epoch: -inf,
            is_alone=lambda _partition, _leader_epoch: False,
        )
        self.coordinator._transactional._at_once = schedule.offsets_at_once
        as_deferred(zk.start(60)).addErrback(lambda _: None)


class Schedule(SteppedZooKeeper):
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.offsets_at_once = self.rng.choice([1, 2, 300])
        """Offsets that one multi of a marker sets."""
        super().__init__(self.rng)
        assignment = znodes.TopicAssignment(uuid4(), {0: znodes.ReplicaAssignment((1, 2))})
        self.ensemble.put(znodes.topic_path(OFFSETS_TOPIC), znodes.encode_topic(assignment))
        self.ensemble.trail(self.rng.choice([0.0, 0.5]))
        self.leader, self.leader_epoch = 1, 0
        self.ensemble.put(STATE, self.state())
        self.brokers = {number: Broker(self, number) for number in (1, 2)}
        self.failed: list[Any] = []
        """What was found wrong while nothing waited for it."""
        self.values = 0
        self.plain: list[Commit] = []
        self.transactions: list[Transaction] = []
        self.open: dict[int, Transaction | None] = {5: None, 6: None}
        self.epochs = {5: 0, 6: 0}
        self.numbers = {5: 0, 6: 0}
        self.requests: list[tuple[Deferred[tuple[ErrorCode, int]], tuple[ErrorCode, int]]] = []
        self.counts: Counter[str] = Counter()
        self.brokers[1].coordinator.on_election(0, 0)
        self.pass_time(0.5)

    def state(self) -> bytes:
        state = LeaderAndIsr(self.leader, self.leader_epoch, (self.leader,), 1)
        return znodes.encode_partition_state(state)

    def broker(self) -> Broker:
        """Return the leader, mostly."""
        number = self.leader if self.rng.random() < 0.85 else 3 - self.leader
        return self.brokers[number]

    # --- clients

    def request(self, commit: Commit) -> Callable[[Any], None]:
        """Count a request of *commit*; return what handles its answer."""
        commit.under_way += 1

        def answered(result: Any) -> None:
            commit.under_way -= 1
            code = result[0] if isinstance(result, list) else _code(result)
            self.counts[f"commit {code.name}"] += 1
            if code is ErrorCode.NONE:
                commit.is_acknowledged = True
            elif code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                commit.is_unknown = True
            commit.ended = self.scheduler.now

        return answered

    def new_commit(self, transaction: Transaction | None) -> Commit:
        self.values += 1
        count = 1 if transaction is None else self.rng.randint(1, len(PARTITIONS))
        partitions = tuple(self.rng.sample(PARTITIONS, count))
        return Commit(self.values, partitions, self.scheduler.now, transaction)

    def commit_plain(self) -> None:
        commit = self.new_commit(None)
        self.plain.append(commit)
        wanted = [("t", partition, OffsetCommit(commit.value)) for partition in commit.partitions]
        committing = self.broker().coordinator.commit("g", wanted)
        as_deferred(committing).addBoth(self.request(commit))

    def commit_in_transaction(self) -> None:
        producer_id = self.rng.choice([5, 6])
        transaction = self.open[producer_id]
        if transaction is None:
            self.numbers[producer_id] += 1
            epoch, number = self.epochs[producer_id], self.numbers[producer_id]
            transaction = self.open[producer_id] = Transaction(producer_id, epoch, number)
            self.transactions.append(transaction)
        if transaction.is_commit is not None:
            return
        waiting = [commit for commit in transaction.commits if not commit.is_acknowledged]
        if waiting and waiting[0].under_way and self.rng.random() < 0.8:
            return
        commit = waiting[0] if waiting else self.new_commit(transaction)
        if not waiting:
            transaction.commits.append(commit)
        self.send(commit)

    def send(self, commit: Commit) -> None:
        transaction = commit.transaction
        assert transaction is not None
        wanted = [("t", partition, OffsetCommit(commit.value)) for partition in commit.partitions]
        asked = TransactionalCommit("x", transaction.producer_id, transaction.epoch)
        broker = self.broker()
        committing = broker.coordinator.commit_in_transaction(
            "g", wanted, asked, partial(self.verify, broker.process, transaction)
        )
        as_deferred(committing).addBoth(self.request(commit))

    def copy_arrives(self) -> None:
        """Send a request of a decided transaction again: it has no effect, and leaves nothing behind."""
        decided = [each for each in self.open.values() if each and each.is_commit is not None]
        commits = [commit for transaction in decided for commit in transaction.commits]
        if commits:
            self.send(self.rng.choice(commits))

    def fetch(self) -> None:
        effective = self.effective()
        fetching = Deferred.fromCoroutine(self.fetched())
        fetching.addCallbacks(self.check_fetched, lambda _: None, (effective,))
        fetching.addErrback(self.failed.append)

    async def fetched(self) -> dict[int, int | None]:
        """Return the stable offsets by partition; None: there is none."""
        offsets, pending = await self.broker().coordinator.offsets_and_pending("g")
        committed = offsets.committed.get("t", {})
        return {
            partition: committed[partition].offset if partition in committed else None
            for partition in PARTITIONS
            if ("t", partition) not in pending
        }

    # --- the transaction coordinator

    def verify(
        self,
        process: Process,
        transaction: Transaction,
        _transactional_id: str,
        producer_id: int,
        epoch: int,
        partition: TopicPartition,
    ) -> Deferred[tuple[ErrorCode, int]]:
        assert partition == (OFFSETS_TOPIC, 0)
        request: Deferred[tuple[ErrorCode, int]] = Deferred()
        if transaction.marked < inf:
            # A request behind its marker: if the next transaction was open, it would count as part of it. That is a
            # limit of the protocol, because the request has no number.
            request.callback((ErrorCode.TRANSACTION_ABORTABLE, -1))
            return request
        # The request takes a while, and so does the answer.
        delay = self.rng.choice([0.001, 0.02, 0.2])
        self.scheduler.after(
            delay, self.handle_at_coordinator, process, request, producer_id, epoch
        )
        return request

    def handle_at_coordinator(
        self,
        process: Process,
        request: Deferred[tuple[ErrorCode, int]],
        producer_id: int,
        epoch: int,
    ) -> None:
        transaction = self.open[producer_id]
        if epoch != self.epochs[producer_id]:
            answer = ErrorCode.PRODUCER_FENCED, -1
        elif transaction is None:
            answer = ErrorCode.TRANSACTION_ABORTABLE, -1
        elif transaction.is_commit is not None:
            answer = ErrorCode.CONCURRENT_TRANSACTIONS, -1
        else:
            answer = ErrorCode.NONE, transaction.number
        arrival = self.scheduler.now + self.rng.choice([0.001, 0.01, 0.2])
        process.arrives(arrival, request.callback, answer)

    def decide(self) -> None:
        transaction = self.open[self.rng.choice([5, 6])]
        if transaction is None or transaction.is_commit is not None:
            return
        may_commit = all(commit.is_acknowledged for commit in transaction.commits)
        transaction.is_commit = may_commit and self.rng.random() < 0.8
        if not transaction.is_commit and self.rng.random() < 0.5:
            self.epochs[transaction.producer_id] += 1  # by a timeout
        transaction.marker_epoch = self.epochs[transaction.producer_id]
        self.counts["commits" if transaction.is_commit else "aborts"] += 1

    def send_marker(self) -> None:
        for transaction in self.open.values():
            if transaction is not None and transaction.is_commit is not None:
                self.mark(transaction)

    def mark(self, transaction: Transaction) -> None:
        transaction.marked = min(transaction.marked, self.scheduler.now)

        def answered(error: ErrorCode) -> None:
            self.counts[f"marker {error.name}"] += 1
            if error is ErrorCode.NONE and self.open[transaction.producer_id] is transaction:
                self.open[transaction.producer_id] = None
                transaction.ended = self.scheduler.now

        ending = self.broker().coordinator.end_transaction(
            0,
            transaction.producer_id,
            transaction.marker_epoch,
            transaction.number,
            is_commit=bool(transaction.is_commit),
        )
        ending.addCallback(answered).addErrback(self.failed.append)

    def late_marker(self) -> None:
        over = [each for each in self.transactions if each.ended < inf]
        if over:
            self.mark(self.rng.choice(over[-3:]))

    # --- faults

    def lose_reply(self) -> None:
        for broker in self.brokers.values():
            broker.connections[-1].lose_next_reply = True

    def break_connection(self) -> None:
        self.broker().connections[-1].broken()

    def change_isr(self) -> None:
        self.write(STATE, self.state())

    def fail_over(self) -> None:
        """Elect the other broker, or the same one again; the former leader learns of it late, or never."""
        former = self.leader
        self.leader = self.rng.choice([1, 2])
        self.leader_epoch += 1
        self.change_isr()
        elected = self.brokers[self.leader]
        elected.process.callLater(0, elected.coordinator.on_election, 0, self.leader_epoch)
        if former != self.leader and self.rng.random() < 0.6:
            late = self.rng.choice([0.0, 0.05, 1.0])
            deposed = self.brokers[former]
            deposed.process.callLater(late, self.resign, deposed, self.leader_epoch)

    def resign(self, deposed: Broker, leader_epoch: int) -> None:
        """Notify *deposed* of the election in *leader_epoch*, unless it knows of a later one."""
        if deposed.coordinator._shards._led.get(0, -1) < leader_epoch:
            deposed.coordinator.on_resignation(0)

    def pause(self) -> None:
        process = self.broker().process
        process.pause()
        self.scheduler.after(self.rng.choice([0.05, 1.0]), process.resume)

    def restart(self) -> None:
        number = self.broker().number
        former = self.brokers[number]
        former.process.kill()
        former.connections[-1].broken()
        for transaction in self.transactions:
            for commit in transaction.commits:
                self.lost(commit)
        for commit in self.plain:
            self.lost(commit)
        started = self.brokers[number] = Broker(self, number)
        if number == self.leader:
            started.coordinator.on_election(0, self.leader_epoch)

    def lost(self, commit: Commit) -> None:
        """Handle a request that may never be answered, because the process ended."""
        if commit.under_way:
            commit.is_unknown = True
            commit.under_way = 0

    def expire_session(self) -> None:
        connection = self.broker().connections[-1]
        if connection.session is not None:
            self.ensemble.end(connection.session)

    # --- the model

    def effective(self) -> list[Commit]:
        plain = [commit for commit in self.plain if commit.is_acknowledged]
        return plain + [
            commit
            for transaction in self.transactions
            if transaction.is_commit and transaction.ended < inf
            for commit in transaction.commits
        ]

    def find(self, value: int | None) -> Commit | None:
        commits = self.plain + [c for each in self.transactions for c in each.commits]
        return next((commit for commit in commits if commit.value == value), None)

    def check_fetched(self, stable: dict[int, int | None], effective: list[Commit]) -> None:
        self.counts["fetches"] += 1
        self.counts["stable"] += len(stable)
        found = {partition: self.find(value) for partition, value in stable.items()}
        for partition, commit in found.items():
            if commit is not None and commit.transaction is not None:
                assert commit.transaction.is_commit, f"{commit} is visible"
            for other in effective:
                if partition in other.partitions:
                    assert not _is_before(commit, other), f"{partition}: {other} is lost: {commit}"
        visible = {c.transaction for c in found.values() if c and c.transaction}
        for transaction in visible:
            for other in transaction.commits:
                for partition in set(other.partitions) & found.keys():
                    assert not _is_before(found[partition], other), "half of it is visible"

    # --- the schedule

    def step(self) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.commit_in_transaction, 30),
            (self.commit_plain, 6),
            (self.decide, 10),
            (self.send_marker, 14),
            (self.late_marker, 3),
            (self.copy_arrives, 5),
            (self.fetch, 14),
            (self.lose_reply, 2),
            (self.break_connection, 1),
            (self.change_isr, 4),
            (self.fail_over, 3),
            (self.pause, 1),
            (self.restart, 1),
            (self.expire_session, 1),
        ]
        chosen = self.rng.choices([a for a, _ in actions], [weight for _, weight in actions])[0]
        self.counts[chosen.__name__] += 1
        chosen()
        self.pass_time(self.rng.choice([0.0, 0.0, 0.003, 0.01, 0.05, 0.5]))
        assert not self.failed, self.failed

    def come_to_rest(self) -> None:
        for broker in self.brokers.values():
            broker.process.resume()
        self.pass_time(15.0)
        for transaction in self.open.values():
            if transaction is not None and transaction.is_commit is None:
                transaction.is_commit = False
                self.epochs[transaction.producer_id] += 1
                transaction.marker_epoch = self.epochs[transaction.producer_id]
        self.brokers[3 - self.leader].coordinator.on_resignation(0)
        for _ in range(60):
            self.send_marker()
            self.pass_time(1.0)
            if not any(self.open.values()):
                break
        assert not any(self.open.values()), "a transaction does not end"

    def check(self) -> None:
        assert not self.failed, self.failed
        assert not self.ensemble.tree[PENDING].children, "a pending znode is left"
        stable: dict[int, int | None] = {}
        for partition in PARTITIONS:
            znode = self.ensemble.tree.get(f"/consumers/g/offsets/t/{partition}")
            stable[partition] = None if znode is None else int(znode.data)
        self.check_fetched(stable, self.effective())
        for _ in range(20):
            self.fetch()
            self.pass_time(1.0)
        pending = self.brokers[self.leader].coordinator._shards.partitions[0].pending
        assert not pending._by_group
        assert not pending._guards
        assert not self.failed, self.failed


def _is_before(one: Commit | None, other: Commit) -> bool:
    """Return whether *one* had no effect any more when *other* was sent; no commit is before all."""
    return one is None or (one is not other and one.over() < other.sent)


def _code(failure: Any) -> ErrorCode:
    failure.trap(KafkaError)
    code: ErrorCode = failure.value.code
    return code


def play(seed: int) -> Schedule:
    schedule = Schedule(seed)
    for _ in range(schedule.rng.randint(20, 150)):
        schedule.step()
    schedule.come_to_rest()
    schedule.check()
    return schedule


@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_offsets_of_a_transaction_are_visible_all_or_none(seed: int) -> None:
    play(seed)


@pytest.mark.long
def test_stories_have_commits_aborts_and_unknown_outcomes() -> None:
    """The test above would be of no use if nothing came to an end."""
    counts: Counter[str] = Counter()
    for seed in range(60):
        counts += play(seed).counts
    assert counts["commits"] > 50
    assert counts["aborts"] > 50
    assert counts["commit COORDINATOR_NOT_AVAILABLE"] > 20
    assert counts["commit CONCURRENT_TRANSACTIONS"] > 5
    assert counts["marker NOT_LEADER_OR_FOLLOWER"] > 50
    assert counts["stable"] > 300
