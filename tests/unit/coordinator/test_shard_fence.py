"""Confirmations: by ZooKeeper, many by one multi; by the followers while it does not answer."""

from __future__ import annotations

from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.coordinator.shard_fence import (
    CHECK_TIMEOUT,
    FOLLOWERS_TIMEOUT,
    LeadershipConfirmer,
    ShardFence,
)
from kbroker.zk.errors import BadVersion, ConnectionLoss, SessionExpired
from kbroker.zk.interface import Node, Operation, Session, Stat, ZooKeeper
from kbroker.zk.znodes import encode_partition_state, partition_state_path
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import code_of

NEVER = float("-inf")


class SlowZooKeeper:
    """Keeps multis until the test answers them. The state of partition 0 names the leader."""

    def __init__(self) -> None:
        self.connected = True
        self.multis: list[tuple[list[Operation], Deferred[Any]]] = []
        self.leader, self.leader_epoch, self.version = 1, 5, 0

    def in_session(self, _session: Session) -> SlowZooKeeper:
        return self

    def multi(self, operations: list[Operation]) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        self.multis.append((operations, answer))
        return answer

    async def get(self, path: str) -> Node:
        assert path == partition_state_path(OFFSETS_TOPIC, 0)
        state = encode_partition_state(LeaderAndIsr(self.leader, self.leader_epoch, (1, 2), 1))
        return Node(state, Stat(0, 0, 0, 0, self.version, 0, 0, 0, 0, 0, 0))

    def passes(self) -> None:
        """Answer the oldest multi: its checks passed."""
        operations, answer = self.multis.pop(0)
        answer.callback([None] * len(operations))

    def fails(self, error: Exception) -> None:
        """Answer the oldest multi with *error*."""
        self.multis.pop(0)[1].errback(error)


class Table:
    """A fence, and the right to partition 0."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self.clock = Clock()
        self.zookeeper = SlowZooKeeper()
        self.followed_at = NEVER
        self.confirmer = LeadershipConfirmer(
            self.clock,
            lambda _partition, _epoch: self.followed_at,
            lambda _partition, _epoch: is_alone,
        )
        self.lost: list[ShardFence] = []
        self.fence = ShardFence(
            cast(ZooKeeper, self.zookeeper),
            Session(1, 4.0),
            broker_id=1,
            topic=OFFSETS_TOPIC,
            partition=0,
            leader_epoch=5,
            on_lost=self._on_lost,
            confirmer=self.confirmer,
        )

    def _on_lost(self, fence: ShardFence) -> None:
        self.lost.append(fence)
        fence.resign()

    def ask(self, *, to_write: bool = False) -> list[ErrorCode]:
        """Ask for a confirmation; return where its answer will be."""
        answers: list[ErrorCode] = []
        confirm = self.fence.confirm_writable if to_write else self.fence.confirm
        confirm().addCallbacks(
            lambda _: answers.append(ErrorCode.NONE),
            lambda failure: answers.append(code_of(failure.value)),
        )
        return answers

    def turn(self) -> None:
        """Let a turn of the reactor pass."""
        self.clock.advance(0)


@pytest.fixture
def table() -> Table:
    return Table()


def test_the_requests_of_a_turn_share_a_multi(table: Table) -> None:
    asked = [table.ask(to_write=number % 2 == 0) for number in range(10)]
    table.turn()
    assert len(table.zookeeper.multis) == 1
    assert asked == [[]] * 10
    table.zookeeper.passes()
    assert asked == [[ErrorCode.NONE]] * 10


def test_a_request_that_comes_after_the_check_was_sent_needs_the_next_one(table: Table) -> None:
    table.ask()
    table.turn()
    late = table.ask()
    table.turn()
    assert len(table.zookeeper.multis) == 1
    table.zookeeper.passes()
    assert late == []
    table.turn()
    table.zookeeper.passes()
    assert late == [ErrorCode.NONE]


def test_a_new_version_of_the_same_leader_is_checked_again(table: Table) -> None:
    asked = table.ask()
    table.turn()
    table.zookeeper.version = 7
    error = BadVersion("/")
    error.index = 0
    table.zookeeper.fails(error)
    assert asked == []
    assert table.zookeeper.multis[0][0] == [table.fence.check]
    assert table.fence.check.version == 7
    table.zookeeper.passes()
    assert asked == [ErrorCode.NONE]


def test_another_leader_ends_the_right(table: Table) -> None:
    asked = table.ask()
    table.turn()
    table.zookeeper.leader = 2
    table.zookeeper.leader_epoch = 6
    error = BadVersion("/")
    error.index = 0
    table.zookeeper.fails(error)
    assert asked == [ErrorCode.NOT_COORDINATOR]
    assert table.lost == [table.fence]
    assert table.ask() == [ErrorCode.NOT_COORDINATOR]


def test_a_session_that_is_over_ends_the_right(table: Table) -> None:
    asked = table.ask()
    table.turn()
    table.zookeeper.fails(SessionExpired("/"))
    assert asked == [ErrorCode.NOT_COORDINATOR]
    assert table.lost == [table.fence]


def test_followers_confirm_when_the_connection_is_lost(table: Table) -> None:
    table.clock.advance(10.0)
    asked = table.ask()
    table.turn()
    table.followed_at = 9.9
    table.zookeeper.connected = False
    table.zookeeper.fails(ConnectionLoss("/"))
    assert asked == []
    table.followed_at = 10.0
    table.clock.pump([0.1])
    assert asked == [ErrorCode.NONE]


def test_followers_confirm_while_zookeeper_is_silent(table: Table) -> None:
    asked = table.ask()
    table.turn()
    table.followed_at = 0.5
    table.clock.pump([0.1] * 5)
    assert asked == []
    table.clock.advance(CHECK_TIMEOUT)
    assert asked == [ErrorCode.NONE]
    # From now on without a delay, until ZooKeeper answers.
    table.followed_at = table.clock.seconds()
    assert table.ask() == [ErrorCode.NONE]
    table.zookeeper.passes()
    assert table.ask() == []


def test_a_fetch_from_before_the_request_confirms_nothing(table: Table) -> None:
    table.clock.advance(100.0)
    table.zookeeper.connected = False
    table.followed_at = 99.9
    asked = table.ask()
    table.clock.pump([0.1] * 20)
    assert asked == []
    table.clock.advance(FOLLOWERS_TIMEOUT)
    assert asked == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_members_of_a_coordinator_without_followers_are_sent_away_soon(table: Table) -> None:
    table.clock.advance(100.0)
    table.zookeeper.connected = False
    table.followed_at = 97.0
    asked = table.ask()
    table.clock.pump([0.1] * 4)
    assert asked == []
    table.clock.pump([0.1] * 2)
    assert asked == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_what_has_to_be_written_needs_zookeeper(table: Table) -> None:
    table.zookeeper.connected = False
    table.followed_at = 1000.0
    assert table.ask() == [ErrorCode.NONE]
    assert table.ask(to_write=True) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_what_has_to_be_written_waits_a_moment_for_a_silent_zookeeper(table: Table) -> None:
    table.followed_at = 1000.0
    asked = table.ask(to_write=True)
    table.turn()
    assert asked == []
    table.clock.advance(CHECK_TIMEOUT)
    assert asked == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_a_right_that_is_given_up_while_followers_are_awaited_is_answered(table: Table) -> None:
    table.zookeeper.connected = False
    asked = table.ask()
    table.fence.resign()
    table.clock.pump([0.1])
    assert asked == [ErrorCode.NOT_COORDINATOR]


def test_what_was_confirmed_once_stays_so(table: Table) -> None:
    table.followed_at = 3.0
    assert table.fence.confirmed_since(3.0)
    table.followed_at = NEVER
    assert table.fence.confirmed_since(3.0)
    assert not table.fence.confirmed_since(3.1)


def test_requests_made_by_an_answer_are_answered(table: Table) -> None:
    table.zookeeper.connected = False
    table.followed_at = 1.0
    second: list[None] = []
    table.clock.advance(2.0)
    table.fence.confirm().addCallback(lambda _: table.fence.confirm().addCallback(second.append))
    table.followed_at = 2.1
    table.clock.pump([0.02, 0.02])
    table.followed_at = 9.0
    table.clock.pump([0.1] * 3)
    assert second == [None]


def test_alone_in_the_isr_a_coordinator_waits_for_a_slow_zookeeper() -> None:
    table = Table(is_alone=True)
    first = table.ask()
    table.turn()
    table.clock.advance(CHECK_TIMEOUT)
    second = table.ask()
    table.clock.advance(1.5)
    assert (first, second) == ([], []), "no follower can confirm, and ZooKeeper may"
    table.zookeeper.passes()
    assert first == [ErrorCode.NONE]
    table.turn()
    table.clock.advance(2.5)
    table.zookeeper.passes()
    assert second == [ErrorCode.NONE]
    third = table.ask()
    table.turn()
    table.clock.pump([0.1] * 51)
    assert third == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
