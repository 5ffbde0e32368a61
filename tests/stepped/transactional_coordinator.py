"""A stepped group coordinator with a transaction coordinator that the test plays: open transactions by producer id."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed

from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.core.records import CommitDetail
from kbroker.coordinator.group.transactional_offsets import TransactionalCommit
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError
from tests.stepped.coordinator import SteppedCoordinator, _codes

Verified = tuple[ErrorCode, int]
NUMBER = 7
"""The number of a transaction, unless the test sets another one."""


class TransactionalCoordinator(SteppedCoordinator):
    """Answers verifications at once with *verified*, or when the test answers *verifications*."""

    def __init__(self, **limits: float) -> None:
        super().__init__(**limits)
        self.verified: Verified = (ErrorCode.NONE, NUMBER)
        self.asked: list[tuple[str, int, int, TopicPartition]] = []
        self.verifications: list[Deferred[Verified]] | None = None
        """Verifications without an answer; None: they are answered at once."""

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partition: TopicPartition
    ) -> Deferred[Verified]:
        self.asked.append((transactional_id, producer_id, epoch, partition))
        if self.verifications is None:
            return succeed(self.verified)
        self.verifications.append(Deferred())
        return self.verifications[-1]

    def txn_commit(
        self,
        *offsets: tuple[str, int, int],
        group: str = "g",
        producer_id: int = 5,
        epoch: int = 0,
        metadata: str = "",
        **member: Any,
    ) -> Deferred[list[ErrorCode]]:
        """Send TxnOffsetCommit of (topic, partition, offset)."""
        detail = CommitDetail(metadata=metadata)
        wanted = [(topic, partition, OffsetCommit(at, detail)) for topic, partition, at in offsets]
        commit = TransactionalCommit("x", producer_id, epoch, **member)
        committing = self.coordinator.commit_in_transaction(group, wanted, commit, self.verify)
        return Deferred.fromCoroutine(_codes(committing, len(wanted)))

    def marker(
        self,
        *,
        is_commit: bool,
        producer_id: int = 5,
        epoch: int = 0,
        number: int | None = NUMBER,
        sent_by_client: bool = False,
    ) -> Deferred[ErrorCode]:
        """Send a marker for the only partition."""
        return self.coordinator.end_transaction(
            0, producer_id, epoch, number, is_commit=is_commit, sent_by_client=sent_by_client
        )

    def unstable(self, *keys: tuple[str, int], group: str = "g") -> set[tuple[str, int]]:
        """Return which of *keys* an OffsetFetch that requires stable offsets refuses."""
        asking = Deferred.fromCoroutine(self.coordinator.offsets_and_pending(group))
        _, pending = self.done(asking)
        return {key for key in keys if key in pending}

    def pending_znodes(self) -> list[str]:
        """Return the names of the znodes of pending offsets."""
        return sorted(self.ensemble.tree["/transactions/pending"].children)

    def lose_connection(self) -> None:
        """Break the connection to ZooKeeper: requests without an answer have an unknown outcome."""
        self.connections[-1].broken()

    def error_of(self, request: Deferred[Any]) -> ErrorCode:
        """Return the error of a KafkaError that *request* fails with, NONE if it succeeds."""
        try:
            self.done(request)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE
