"""FetchSession: the last request and response of each of a fetcher's partitions, and which may have news (KIP-227).

Theory of operation
===================
A fetcher names its partitions once, in a full fetch, and from then on only changes. The session keeps the request and
the last sent offsets of each partition. A response contains only partitions with records, an error, a diverging epoch,
or another high watermark or log start offset than the one sent before.

These are not found by reading all partitions. A partition is **due** while it may have news: from when it is named, or
an event concerns it, until a read finds nothing new. So a fetch costs what changed, and an idle partition costs
nothing. A partition that failed, was cut short by max.bytes or returned records stays due. One that returned records
moves behind all others, so that none starves. A partition stays due while the follower is not in the ISR: every fetch
is an attempt to join.

The session epoch counts the requests. A request with another epoch is rejected, and the fetcher starts a new session.

Invariants:
1. A partition that is not due has no news: a response from all partitions, less what equals the sent state, is the
   same as the response from those that are due.
2. The sent state changes only together with a response (`sent`).
3. The epoch goes up by one with every accepted request, from the largest one to 1, never back to 0.

In: requests, reads of partitions, events   Out: what to read, what to send   Owner: kbroker.apis.api01_fetch
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeAlias
from uuid import UUID

from kbroker.common.topic_partition import TopicPartition
from kclient.wire.fetch import (
    INITIAL_SESSION_EPOCH,
    FetchPartition,
    FetchPartitionResponse,
    FetchTopic,
    ForgottenTopic,
    next_session_epoch,
)

PartitionId: TypeAlias = tuple[UUID | str, int]
"""A request's name of a partition: the topic id, or the topic name up to v12, and the index."""


class CachedPartition:
    """One partition of a session: its last request, and the offsets sent last."""

    __slots__ = (
        "asked",
        "high_watermark",
        "key",
        "log_start_offset",
        "name",
        "session",
        "topic_id",
    )

    def __init__(
        self, session: FetchSession, name: str, topic_id: UUID | None, asked: FetchPartition
    ) -> None:
        self.session = session
        self.name = name
        """From the request: empty where it uses the topic id."""
        self.topic_id = topic_id
        self.asked = asked
        self.key: TopicPartition | None = None
        """None while the topic id is unknown."""
        self.high_watermark = -1
        self.log_start_offset = -1

    @property
    def id(self) -> PartitionId:
        """The fetcher's name of it."""
        topic = self.name if self.topic_id is None else self.topic_id
        return topic, self.asked.partition

    def update_request(self, asked: FetchPartition) -> None:
        """Store another request. One that does not continue from the last response shows that this was dropped.

        A follower drops a response that arrives after a change of its role: the same news must be sent again.
        """
        former, self.asked = self.asked, asked
        if (
            asked.current_leader_epoch != former.current_leader_epoch
            or asked.fetch_offset <= former.fetch_offset
        ):
            self.high_watermark = self.log_start_offset = -1

    def has_changed(self, answer: FetchPartitionResponse) -> bool:
        """Return whether *answer* differs from the state sent last."""
        return bool(
            answer.records_size
            or answer.error_code
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica >= 0
        )


class FetchSession:
    """The session *id* of one fetcher.

    *owner* is the broker that fetches as a follower, and its client id; None for a consumer. Sessions of followers are
    privileged: consumers do not evict them.
    """

    __slots__ = (
        "__weakref__",
        "answered_at",
        "created_at",
        "due",
        "epoch",
        "id",
        "owner",
        "partitions",
        "used_at",
        "uses_topic_ids",
    )

    def __init__(
        self, id: int, owner: tuple[int, str] | None, *, uses_topic_ids: bool, now: float
    ) -> None:
        self.id = id
        self.owner = owner
        self.uses_topic_ids = uses_topic_ids
        self.created_at = self.used_at = now
        self.answered_at = now
        """When our last response was made. The request with the next epoch shows that it was received."""
        self.epoch = next_session_epoch(INITIAL_SESSION_EPOCH)
        """The epoch of the next request."""
        self.partitions: dict[PartitionId, CachedPartition] = {}
        self.due: dict[CachedPartition, None] = {}
        """The partitions that may have news, in the order in which they are read."""

    @property
    def privileged(self) -> bool:
        """Whether a follower fetches."""
        return self.owner is not None

    def update(
        self, topics: Iterable[FetchTopic], forgotten: Sequence[ForgottenTopic]
    ) -> tuple[list[CachedPartition], list[CachedPartition]]:
        """Apply the changes in a request; return the added and the removed partitions."""
        added = []
        for topic in topics:
            called = topic.name if topic.topic_id is None else topic.topic_id
            for asked in topic.partitions:
                partition = self.partitions.get((called, asked.partition))
                if partition is None:
                    partition = CachedPartition(self, topic.name, topic.topic_id, asked)
                    self.partitions[called, asked.partition] = partition
                    added.append(partition)
                else:
                    partition.update_request(asked)
                self.due[partition] = None
        removed = []
        for gone in forgotten:
            called = gone.name if gone.topic_id is None else gone.topic_id
            for index in gone.partitions:
                partition = self.partitions.pop((called, index), None)
                if partition is not None:
                    self.due.pop(partition, None)
                    removed.append(partition)
        return added, removed

    def accepted(self, now: float) -> int:
        """Count a request with the right epoch; return the epoch of the next one."""
        self.used_at = now
        self.epoch = next_session_epoch(self.epoch)
        return self.epoch

    def defer(self, count: int) -> None:
        """Move those of the first *count* that are due behind all others: these were read."""
        for partition in list(islice(self.due, count)):
            del self.due[partition]
            self.due[partition] = None

    def was_read(
        self, partition: CachedPartition, answer: FetchPartitionResponse, *, is_caught_up: bool
    ) -> bool:
        """Return whether *answer* is to be sent; without news, a partition that is caught up is no longer due.

        *is_caught_up*: the fetcher has everything, and the next change arrives as an event.
        """
        if partition.has_changed(answer):
            return True
        if is_caught_up:
            self.due.pop(partition, None)
        return False

    def sent(
        self, partition: CachedPartition, answer: FetchPartitionResponse, *, is_caught_up: bool
    ) -> None:
        """Record an answer that is sent now."""
        partition.high_watermark = answer.high_watermark
        partition.log_start_offset = answer.log_start_offset
        if answer.records_size:
            self.due.pop(partition, None)
            self.due[partition] = None
        elif is_caught_up:
            self.due.pop(partition, None)
