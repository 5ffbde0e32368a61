"""TxnOffsetCommit and OffsetFetch with require_stable, at their handlers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from twisted.internet.defer import Deferred

from kbroker.apis.api09_offset_fetch import OffsetFetch
from kbroker.apis.api28_txn_offset_commit import TxnOffsetCommit
from kbroker.apis.budgets import RequestBudget
from kbroker.apis.request import RequestContext
from kbroker.common.turns import WithoutTurns
from kbroker.metadata.metadata_cache import MetadataCache, PartitionMetadata, TopicMetadata
from kclient.wire.error_codes import ErrorCode
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kclient.wire.schema.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kclient.wire.versions import ApiKey
from tests.stepped.transactional_coordinator import TransactionalCoordinator
from tests.unit.apis.kit import PEER

E = ErrorCode


def metadata() -> MetadataCache:
    """Return a cache with topic t, of partitions 0 and 1."""
    cache = MetadataCache("cluster")
    known = {p: PartitionMetadata(p, 1, 0, (1,), (1,), (), 0, 1) for p in (0, 1)}
    cache.topics["t"] = TopicMetadata("t", uuid4(), known)
    return cache


class Handlers(TransactionalCoordinator):
    def __init__(self) -> None:
        super().__init__()
        self.txn_offset_commit = TxnOffsetCommit(self.coordinator, metadata(), self.verify)
        self.offset_fetch = OffsetFetch(self.coordinator)

    def ask(self, handler: Any, api: ApiKey, version: int, request: Any) -> Any:
        context = RequestContext(
            RequestHeader(api, version, 1, "c"), PEER, RequestBudget(1 << 20, 1000), WithoutTurns()
        )
        return self.done(Deferred.fromCoroutine(handler(context, request)))

    def send(self, version: int, **fields: Any) -> dict[tuple[str, int], ErrorCode]:
        def topic(name: str, *partitions: tuple[int, int]) -> TxnOffsetCommitRequestTopic:
            rows = [TxnOffsetCommitRequestPartition(p, at, 3, "m") for p, at in partitions]
            return TxnOffsetCommitRequestTopic(name, rows)

        request = TxnOffsetCommitRequest(
            "x", "g", 5, 0, topics=[topic("t", (0, 7), (1, -1), (2, 7)), topic("u", (0, 7))], **fields
        )  # fmt: skip
        response = self.ask(self.txn_offset_commit, ApiKey.TXN_OFFSET_COMMIT, version, request)
        return {
            (topic.name, p.partition_index): ErrorCode(p.error_code)
            for topic in response.topics
            for p in topic.partitions
        }

    def fetch(self, version: int, *, require_stable: bool) -> list[tuple[int, int, ErrorCode]]:
        """Fetch partitions 0 and 1: offset, leader epoch, error."""
        request = OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0, 1])])
        if version >= 8:
            topics = [OffsetFetchRequestTopics("t", [0, 1])]
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)])
        request.require_stable = require_stable
        response = self.ask(self.offset_fetch, ApiKey.OFFSET_FETCH, version, request)
        answered = response.groups[0] if version >= 8 else response
        return [
            (p.committed_offset, p.committed_leader_epoch, ErrorCode(p.error_code))
            for p in answered.topics[0].partitions
        ]


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.mark.parametrize("version", range(5))
def test_known_partitions_are_committed_and_others_refused(
    handlers: Handlers, version: int
) -> None:
    assert handlers.send(version) == {
        ("t", 0): E.NONE,
        ("t", 1): E.OFFSET_OUT_OF_RANGE,
        ("t", 2): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("u", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    handlers.done(handlers.marker(is_commit=True))
    assert handlers.fetch(7, require_stable=True)[0] == (7, 3, E.NONE)


@pytest.mark.parametrize(
    ("version", "answer", "error"),
    [
        (3, E.TRANSACTION_ABORTABLE, E.INVALID_TXN_STATE),
        (4, E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
        (1, E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE),
        (2, E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_LOAD_IN_PROGRESS),
        (2, E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH),
    ],
)
def test_errors_are_those_of_the_version(
    handlers: Handlers, version: int, answer: ErrorCode, error: ErrorCode
) -> None:
    handlers.verified = answer, -1
    assert handlers.send(version)["t", 0] is error


def test_an_error_of_the_group_is_that_of_each_partition(handlers: Handlers) -> None:
    handlers.coordinator.on_resignation(0)
    assert handlers.send(4)["t", 0] is E.NOT_COORDINATOR


@pytest.mark.parametrize("version", [7, 8, 9])
def test_stable_offsets_are_those_without_a_pending_one(handlers: Handlers, version: int) -> None:
    handlers.done(handlers.commit(("t", 0, 1), ("t", 1, 2)))
    handlers.send(4)
    unstable = (-1, -1, E.UNSTABLE_OFFSET_COMMIT)
    assert handlers.fetch(version, require_stable=True) == [unstable, (2, -1, E.NONE)]
    assert handlers.fetch(version, require_stable=False) == [(1, -1, E.NONE), (2, -1, E.NONE)]
    handlers.done(handlers.marker(is_commit=False))
    assert handlers.fetch(version, require_stable=True) == [(1, -1, E.NONE), (2, -1, E.NONE)]


def test_unreadable_pending_offsets_are_an_error_where_stable_ones_are_required(
    handlers: Handlers,
) -> None:
    handlers.done(handlers.commit(("t", 0, 1), ("t", 1, 2)))
    handlers.ensemble.put("/transactions/pending/6,g", b"{}")
    handlers.elect()
    error = (-1, -1, E.UNKNOWN_SERVER_ERROR)
    assert handlers.fetch(8, require_stable=True) == [error, error]
    assert handlers.fetch(8, require_stable=False) == [(1, -1, E.NONE), (2, -1, E.NONE)]
