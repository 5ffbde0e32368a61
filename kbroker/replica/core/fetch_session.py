"""One incremental fetch session: what a fetcher wants, what it was told, and where there may be news (KIP-227).

Theory of operation
===================
A fetcher names its partitions once, in a full fetch, and from then on only what it wants otherwise. We keep what it
wants and what it was told last, and answer only with partitions that have something to say: records, an error, a
diverging epoch, or another high watermark or log start than told before.

Which those are is not found by looking at all of them. A partition is **due** while there may be something to say: from
when it is named, or something happened to it (`happened`), until it was looked at and found to have nothing. So a fetch
costs what changed, and an idle partition costs nothing. A partition that failed, was cut short by max.bytes or gave
records stays due, the latter behind all others, so that nobody starves; so does one where the follower is not in the
ISR, for every fetch is an attempt to join.

The epoch counts the requests: one that is missing or comes twice is refused, and the fetcher begins anew.

Invariants:
1. A partition that is not due has nothing to say: an answer with all partitions, less what equals what was told, is
   the same as the answer made from those that are due.
2. What was told is changed only together with an answer (`told`).
3. The epoch goes up by one with every request that is accepted, from the largest one to 1, never back to 0.

In: requests, answers of partitions, what happened to partitions   Out: what to look at, what to say
Owner: kbroker.apis.api01_fetch
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
"""How a request calls a partition: the topic's id, or its name up to v12, and the index."""


class CachedPartition:
    """What one fetcher wants of one partition, and what it was told of it."""

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
        """As the request had it: empty where it goes by id."""
        self.topic_id = topic_id
        self.asked = asked
        self.key: TopicPartition | None = None
        """None while nobody knows the topic id."""
        self.high_watermark = -1
        self.log_start_offset = -1

    @property
    def id(self) -> PartitionId:
        """How the fetcher calls it."""
        topic = self.name if self.topic_id is None else self.topic_id
        return topic, self.asked.partition

    def update_request(self, asked: FetchPartition) -> None:
        """Take another question. One that does not go on from the last answer shows that it was not taken.

        A follower drops an answer that comes when its role has changed: what that said is to be said again.
        """
        former, self.asked = self.asked, asked
        if (
            asked.current_leader_epoch != former.current_leader_epoch
            or asked.fetch_offset <= former.fetch_offset
        ):
            self.high_watermark = self.log_start_offset = -1

    def has_changed(self, answer: FetchPartitionResponse) -> bool:
        """Say whether the fetcher must hear *answer*, knowing what it was told."""
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

    *owner* is the broker that fetches as a follower, and its client id; None for anybody else. Followers' sessions are
    privileged: others do not evict them.
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
        """When our last answer was made. The request with the next epoch shows that it was received."""
        self.epoch = next_session_epoch(INITIAL_SESSION_EPOCH)
        """The epoch that the next request has to carry."""
        self.partitions: dict[PartitionId, CachedPartition] = {}
        self.due: dict[CachedPartition, None] = {}
        """Those that may have something to say, in the order in which they are looked at."""

    @property
    def privileged(self) -> bool:
        """Whether a follower fetches."""
        return self.owner is not None

    def update(
        self, topics: Iterable[FetchTopic], forgotten: Sequence[ForgottenTopic]
    ) -> tuple[list[CachedPartition], list[CachedPartition]]:
        """Take a request's changes; return the partitions that are new, and those that are gone."""
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
        """Count a request whose epoch was the right one; return the epoch of the one after it."""
        self.used_at = now
        self.epoch = next_session_epoch(self.epoch)
        return self.epoch

    def defer(self, count: int) -> None:
        """Put those of the first *count* that are due behind all others: these had their turn."""
        for partition in list(islice(self.due, count)):
            del self.due[partition]
            self.due[partition] = None

    def was_read(
        self, partition: CachedPartition, answer: FetchPartitionResponse, *, is_caught_up: bool
    ) -> bool:
        """Say whether *answer* is to be said; one that is not, of a clean partition, ends its turn.

        *is_caught_up*: whoever fetches has all there is, and only an event can change that.
        """
        if partition.has_changed(answer):
            return True
        if is_caught_up:
            self.due.pop(partition, None)
        return False

    def sent(
        self, partition: CachedPartition, answer: FetchPartitionResponse, *, is_caught_up: bool
    ) -> None:
        """Take note of an answer that leaves now."""
        partition.high_watermark = answer.high_watermark
        partition.log_start_offset = answer.log_start_offset
        if answer.records_size:
            self.due.pop(partition, None)
            self.due[partition] = None
        elif is_caught_up:
            self.due.pop(partition, None)
