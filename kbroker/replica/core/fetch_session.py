"""Fetch sessions: FetchSession and the FetchSessionCache that holds them (KIP-227).

Theory of operation
===================
A fetcher names its partitions once, in a full fetch, and from then on only changes. The session keeps the request and
the last sent offsets of each partition. A response contains only partitions with records, an error, a diverging epoch,
or another high watermark or log start offset than the one sent before.

These are not found by reading all partitions. A partition is **due** while it may have one of these. That is from when
it is named, or an event concerns it, until a read finds nothing new. So a fetch costs what changed, and an idle
partition costs nothing. A partition that failed, was cut short by max.bytes or returned records stays due. One with
records moves behind all others, so that none starves. A partition stays due while the follower is not in the ISR: every
fetch is an attempt to join.

The session epoch counts the requests. A request with another epoch is rejected, and the fetcher starts a new session.

The cache has max.incremental.fetch.session.cache.slots sessions at most. A new one evicts a session that was not used
for two minutes. Otherwise it evicts a less important one: followers come before consumers, larger sessions before
smaller. A session younger than two minutes is evicted only for a follower. A fetcher without a session receives full
responses, with session id 0.

A follower that starts again (its connection was lost, or its broker restarted) replaces its own former session. Former
sessions of consumers stay until their slot is needed: a new connection does not identify the consumer.

Partitions are watched by key as long as a session has them, so that events find them.

Invariants:
1. A partition that is not due has no change. A response from all partitions, less what equals the sent state, is the
   same as the response from those that are due.
2. The sent state changes only together with a response (`sent`).
3. The epoch goes up by one with every accepted request, from the largest one to 1, never back to 0.
4. Every watched partition belongs to a session in the cache.
5. There are never more sessions than slots.

In: requests, reads of partitions, events by key   Out: what to read, what to send, evictions, sessions with changes
Owner: kbroker.apis.api01_fetch (a session), replica.replica_manager (the cache)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias
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

MIN_EVICTION_SECONDS: Final = 120.0
"""A session used more recently, or a consumer's session created more recently, is not evicted for a consumer."""


class CachedPartition:
    """One partition of a session: its last request, and the offsets sent last."""

    __slots__ = (
        "high_watermark",
        "key",
        "log_start_offset",
        "name",
        "request",
        "session",
        "topic_id",
    )

    def __init__(
        self, session: FetchSession, name: str, topic_id: UUID | None, request: FetchPartition
    ) -> None:
        self.session = session
        self.name = name
        """From the request: empty where it uses the topic id."""
        self.topic_id = topic_id
        self.request = request
        self.key: TopicPartition | None = None
        """None while the topic id is unknown."""
        self.high_watermark = -1
        self.log_start_offset = -1

    @property
    def id(self) -> PartitionId:
        """The fetcher's name of it."""
        topic = self.name if self.topic_id is None else self.topic_id
        return topic, self.request.partition

    def update_request(self, request: FetchPartition) -> None:
        """Store another request. One that does not continue from the last response shows that this was dropped.

        A follower drops a response that arrives after a change of its role: the same change must be sent again.
        """
        former, self.request = self.request, request
        if (
            request.current_leader_epoch != former.current_leader_epoch
            or request.fetch_offset <= former.fetch_offset
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
        """The partitions that may have a change, in the order in which they are read."""

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
            for request in topic.partitions:
                partition = self.partitions.get((called, request.partition))
                if partition is None:
                    partition = CachedPartition(self, topic.name, topic.topic_id, request)
                    self.partitions[called, request.partition] = partition
                    added.append(partition)
                else:
                    partition.update_request(request)
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
        """Return whether *answer* is to be sent; without a change, a partition that is caught up is no longer due.

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


_Watchers = dict[TopicPartition, dict[CachedPartition, None]]


class FetchSessionCache:
    """The cache. *new_id* draws a number 1..2**31-1; *evicted* receives each session that lost its slot."""

    def __init__(
        self,
        slots: int,
        new_id: Callable[[], int],
        evicted: Callable[[FetchSession], None],
        *,
        notifies_followers_of_high_watermark: bool,
    ) -> None:
        self._slots = slots
        self._new_id = new_id
        self._evicted = evicted
        self._notifies_followers = notifies_followers_of_high_watermark
        self._sessions: dict[int, FetchSession] = {}
        # In the order of their last use, the oldest first.
        self._of_owner: dict[tuple[int, str], FetchSession] = {}
        self._followers: _Watchers = {}
        self._clients: _Watchers = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        """Return a session in the cache."""
        return self._sessions.get(session_id)

    def maybe_create(
        self, owner: tuple[int, str] | None, size: int, *, uses_topic_ids: bool, now: float
    ) -> FetchSession | None:
        """Return a new session for *size* partitions; None if all others are more important."""
        if owner is not None and owner in self._of_owner:
            self._evict(self._of_owner[owner])
        if len(self._sessions) >= self._slots and not self._make_room(owner is not None, size, now):
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id <= 0:
            session_id = self._new_id()
        session = FetchSession(session_id, owner, uses_topic_ids=uses_topic_ids, now=now)
        self._sessions[session_id] = session
        if owner is not None:
            self._of_owner[owner] = session
        return session

    def used(self, session: FetchSession) -> None:
        """Move *session* behind all others: it was used last."""
        if self._sessions.pop(session.id, None) is not None:
            self._sessions[session.id] = session

    def remove(self, session: FetchSession) -> None:
        """Remove *session*: its fetcher closed it."""
        if self._sessions.pop(session.id, None) is None:
            return
        if session.owner is not None:
            self._of_owner.pop(session.owner, None)
        self.unwatch(session.partitions.values())

    def _make_room(self, privileged: bool, size: int, now: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now - oldest.used_at <= MIN_EVICTION_SECONDS:
            evictable = [
                session
                for session in self._sessions.values()
                if now - session.created_at > MIN_EVICTION_SECONDS
                or (privileged and not session.privileged)
            ]
            oldest = min(evictable, key=_worth, default=None)
            if oldest is None or (privileged, size) <= _worth(oldest):
                return False
        self._evict(oldest)
        return True

    def _evict(self, session: FetchSession) -> None:
        self.remove(session)
        self._evicted(session)

    # -- events --------------------------------------------------------------------------------

    def watch(self, partition: CachedPartition, key: TopicPartition) -> None:
        """Make *partition* due with every event of *key*."""
        partition.key = key
        watchers = self._followers if partition.session.privileged else self._clients
        watchers.setdefault(key, {})[partition] = None

    def unwatch(self, partitions: Iterable[CachedPartition]) -> None:
        """Receive no more events for *partitions*."""
        for partition in partitions:
            key = partition.key
            if key is None:
                continue
            watchers = self._followers if partition.session.privileged else self._clients
            watching = watchers.get(key)
            if watching is not None:
                watching.pop(partition, None)
                if not watching:
                    del watchers[key]

    def log_end_advanced(self, key: TopicPartition) -> Iterable[FetchSession]:
        """Handle the log of *key* growing, or its role changing; return the followers' sessions with changes."""
        return _due(self._followers.get(key))

    def high_watermark_advanced(self, key: TopicPartition) -> Iterable[FetchSession]:
        """Handle the high watermark of *key* advancing, or its role changing; return the sessions with changes.

        Followers receive the high watermark with the next response. It causes no response unless consumers read there.
        """
        by_followers, by_clients = self._followers.get(key), self._clients.get(key)
        if by_followers is None and by_clients is None:
            return ()
        followers, clients = _due(by_followers), _due(by_clients)
        return [*followers, *clients] if self._notifies_followers else clients


def _worth(session: FetchSession) -> tuple[bool, int]:
    return session.privileged, len(session.partitions)


def _due(watching: Iterable[CachedPartition] | None) -> Iterable[FetchSession]:
    if not watching:
        return ()
    for partition in watching:
        partition.session.due.setdefault(partition)
    return [partition.session for partition in watching]
