"""Offset commits on their way to ZooKeeper: coalesced, batched, retried without a committed offset going back.

Theory of operation
===================
Commits wait in a queue, by (group, topic, partition). A newer commit of the same key replaces a queued one; one write
settles both. Batches leave the queue in order and become multis. Several may be in flight, and ZooKeeper applies them
in the order of sending.

A multi is all or nothing, so one refused operation undoes all commits of the multi; the others are queued again. By
then a newer commit of the same key may have been sent or even acknowledged. Writing the older value now would take the
offset back. So a commit refers to its successor, and gets the result of the newest instead of being written again.

Invariants
----------
1. Every waiter is settled exactly once.
2. A waiter is settled with NONE only after its commit, or a newer one of its key, was written.
3. The values written for one key are in the order of the commits.

In: add, take, settle, retry   Out: batches, settled waiters, pending keys   Owner: the reactor's thread
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from kbroker.coordinator.group.core.records import NO_DETAIL, CommitDetail
from kclient.wire.error_codes import ErrorCode

Waiter = TypeVar("Waiter")


class CommitKey(NamedTuple):
    """The group and partition of a committed offset."""

    group_id: str
    topic: str
    partition: int


class OffsetCommit(NamedTuple):
    """One offset to store."""

    offset: int
    detail: CommitDetail = NO_DETAIL


@dataclass(slots=True, eq=False)
class PendingCommit(Generic[Waiter]):
    """A commit that is not settled yet, with its waiters."""

    key: CommitKey
    value: OffsetCommit
    waiters: list[Waiter]
    error: ErrorCode | None = None
    """Its result; None while it is pending."""

    superseded_by: "PendingCommit[Waiter] | None" = None
    refusals: int = 0
    """How often ZooKeeper refused a multi because of this commit."""


@dataclass(slots=True, eq=False)
class CommitQueue(Generic[Waiter]):
    """The commits of all groups of this coordinator. A *waiter* is any object of the owner."""

    _queued: dict[CommitKey, PendingCommit[Waiter]] = field(default_factory=dict)
    _newest: dict[CommitKey, PendingCommit[Waiter]] = field(default_factory=dict)
    """The newest commit of every key with a pending commit."""

    def __len__(self) -> int:
        """Return how many commits wait to be sent."""
        return len(self._queued)

    def add(self, key: CommitKey, value: OffsetCommit, waiter: Waiter) -> None:
        """Queue a commit."""
        queued = self._queued.get(key)
        if queued is not None:
            queued.value = value
            queued.waiters.append(waiter)
            return
        commit = PendingCommit(key, value, [waiter])
        older = self._newest.get(key)
        if older is not None:
            older.superseded_by = commit
        self._queued[key] = self._newest[key] = commit

    def take(self, count: int) -> list[PendingCommit[Waiter]]:
        """Take up to *count* commits off the queue, oldest first."""
        taken = list(islice(self._queued.values(), count))
        for commit in taken:
            del self._queued[commit.key]
        return taken

    def settle(self, commit: PendingCommit[Waiter], error: ErrorCode) -> list[Waiter]:
        """Settle *commit*, which was taken; return its waiters."""
        commit.error = error
        if self._newest.get(commit.key) is commit:
            del self._newest[commit.key]
        waiters, commit.waiters = commit.waiters, []
        return waiters

    def retry(self, commit: PendingCommit[Waiter]) -> tuple[ErrorCode, list[Waiter]]:
        """Queue *commit*, which was taken and not written, again.

        If a newer commit of its key is settled already, return that result and the waiters of *commit*.
        """
        newest = commit
        while newest.superseded_by is not None:
            newest = newest.superseded_by
        if newest is commit:
            self._queued[commit.key] = commit
        elif newest.error is None:
            newest.waiters += self.settle(commit, ErrorCode.NONE)
        else:
            return newest.error, self.settle(commit, newest.error)
        return ErrorCode.NONE, []

    def is_pending(self, key: CommitKey) -> bool:
        """Return whether a commit of *key* is not settled yet."""
        return key in self._newest

    def has_pending(self, group_id: str) -> bool:
        """Return whether a commit of *group_id* is not settled yet."""
        return any(key.group_id == group_id for key in self._newest)

    def take_groups(self, group_ids: set[str]) -> Iterator[PendingCommit[Waiter]]:
        """Take everything queued for these groups off the queue."""
        for commit in [c for c in self._queued.values() if c.key.group_id in group_ids]:
            del self._queued[commit.key]
            yield commit
