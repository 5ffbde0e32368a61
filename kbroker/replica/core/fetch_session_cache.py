"""FetchSessionCache: which fetchers have a session, evictions, and events by partition (KIP-227).

Theory of operation
===================
There are max.incremental.fetch.session.cache.slots sessions at most. A new one evicts a session that was not used for
two minutes. Otherwise it evicts a less important one: followers come before consumers, larger sessions before smaller.
A session younger than two minutes is evicted only for a follower. A fetcher without a session receives full responses,
with session id 0.

A follower that starts again (its connection was lost, or its broker restarted) replaces its own former session. Former
sessions of consumers stay until their slot is needed: a new connection does not identify the consumer.

Partitions are watched by key as long as a session has them, so that events find them.

Invariants: 1. every watched partition belongs to a session in the cache. 2. there are never more sessions than slots.

In: requests for sessions, events by key   Out: sessions, evictions, sessions with news   Owner: replica.replica_manager
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kbroker.common.topic_partition import TopicPartition
from kbroker.replica.core.fetch_session import CachedPartition, FetchSession

MIN_EVICTION_SECONDS: Final = 120.0
"""A session used more recently, or a consumer's session created more recently, is not evicted for a consumer."""

_Watchers = dict[TopicPartition, dict[CachedPartition, None]]


class FetchSessionCache:
    """The cache. *new_id* draws a number 1..2**31-1; *evicted* receives each session that lost its slot."""

    def __init__(
        self,
        slots: int,
        new_id: Callable[[], int],
        evicted: Callable[[FetchSession], None] = lambda _session: None,
        *,
        notifies_followers_of_high_watermark: bool = False,
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
        """Handle the log of *key* growing, or its role changing; return the followers' sessions with news."""
        return _due(self._followers.get(key))

    def high_watermark_advanced(self, key: TopicPartition) -> Iterable[FetchSession]:
        """Handle the high watermark of *key* advancing, or its role changing; return the consumers' sessions with news.

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
