"""Commits through a ZooKeeper that refuses multis: nothing lost, nothing taken back."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kbroker.coordinator.group.core.commits import (
    CommitKey,
    CommitQueue,
    OffsetCommit,
    PendingCommit,
)
from kclient.wire.error_codes import ErrorCode
from tests.kit.property_tests import examples

KEYS = st.sampled_from([CommitKey("g", "t", p) for p in range(3)])
Batch = list[PendingCommit[int]]


class CommitsThroughZooKeeper(RuleBasedStateMachine):
    """Offsets count up per key, so the newest commit is the largest. Waiters are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: CommitQueue[int] = CommitQueue()
        self.in_flight: list[tuple[Batch, list[tuple[CommitKey, int]]]] = []
        self.limbo: list[PendingCommit[int]] = []
        self.znodes: dict[CommitKey, int] = {}
        self.offsets: dict[CommitKey, int] = {}
        self.waiting: dict[int, tuple[CommitKey, int]] = {}
        self.acknowledged: dict[CommitKey, int] = {}
        self.serial = 0

    @rule(key=KEYS)
    def client_commits(self, key: CommitKey) -> None:
        self.serial += 1
        offset = self.offsets[key] = self.offsets.get(key, 0) + 1
        self.waiting[self.serial] = key, offset
        self.queue.add(key, OffsetCommit(offset), self.serial)

    @precondition(lambda self: len(self.queue))
    @rule(count=st.integers(1, 3))
    def batch_is_sent(self, count: int) -> None:
        batch = self.queue.take(count)
        self.in_flight.append((batch, [(c.key, c.value.offset) for c in batch]))

    @precondition(lambda self: self.in_flight)
    @rule()
    def zookeeper_applies(self) -> None:
        batch, written = self.in_flight.pop(0)
        for key, offset in written:
            assert offset >= self.znodes.get(key, 0)  # 3
            self.znodes[key] = offset
        for commit in batch:
            self.settled(self.queue.settle(commit, ErrorCode.NONE), ErrorCode.NONE)

    @precondition(lambda self: self.in_flight)
    @rule()
    def zookeeper_refuses(self) -> None:
        self.limbo += self.in_flight.pop(0)[0]

    @precondition(lambda self: self.limbo)
    @rule(index=st.integers(0, 9))
    def innocent_is_queued_again(self, index: int) -> None:
        commit = self.limbo.pop(index % len(self.limbo))
        error, waiters = self.queue.retry(commit)
        self.settled(waiters, error)

    @precondition(lambda self: self.limbo)
    @rule(index=st.integers(0, 9))
    def culprit_is_given_up(self, index: int) -> None:
        commit = self.limbo.pop(index % len(self.limbo))
        self.settled(self.queue.settle(commit, ErrorCode.UNKNOWN_SERVER_ERROR), ErrorCode(-1))

    def settled(self, waiters: list[int], error: ErrorCode) -> None:
        for waiter in waiters:
            key, offset = self.waiting.pop(waiter)  # 1
            if error is ErrorCode.NONE:
                assert self.znodes[key] >= offset  # 2
                self.acknowledged[key] = max(self.acknowledged.get(key, 0), offset)

    @invariant()
    def acknowledged_offsets_stay(self) -> None:
        for key, offset in self.acknowledged.items():
            assert self.znodes[key] >= offset

    def teardown(self) -> None:
        while self.limbo:
            self.innocent_is_queued_again(0)
        while self.queue or self.in_flight:
            if len(self.queue):
                self.batch_is_sent(2)
            self.zookeeper_applies()
        assert not self.waiting  # 1
        assert not self.queue._newest


TestCommitsThroughZooKeeper = CommitsThroughZooKeeper.TestCase
TestCommitsThroughZooKeeper.settings = settings(max_examples=examples(100), stateful_step_count=40)
