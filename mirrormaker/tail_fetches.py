"""Fetches the caught-up partitions of one direction: a fetch session with each source leader (`TailSession`).

Contract
========
The flow adds the fetch of a partition (`add`), and takes it out (`discard`) when the link wants another one. A
partition is in at most one session. It leaves its session with the answer that names it; the flow adds it again. This
module knows neither links nor the target.

A session shares the tail channel of its leader with fetches that have no session. These are the first fetch on a
connection, which shows the broker's versions, and those of partitions without a topic id. The two take turns: after a
fetch without a session the fetch of the session is next (`send_first`), otherwise it comes last (`send`).

In: fetches, responses of the source   Out: requests, outcomes   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.net.cluster import Cluster
from kclient.net.waiting import all_settled
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError
from mirrormaker import source as reading
from mirrormaker.fetch_budget import FetchBudget
from mirrormaker.link_state import PartitionFetch
from mirrormaker.locator import kafka_error
from mirrormaker.settings import LinkSettings
from mirrormaker.source import BULK_CHANNEL, TAIL_CHANNEL, Outcome
from mirrormaker.tail_session import TailSession


class TailFetches:
    """The sessions with the leaders of *source*.

    *answered* gets the outcomes of a response; *failed* gets a leader, the error of its fetch, and the partitions that
    left the session with it. *defect* gets a failure that is not a KafkaError.
    """

    def __init__(
        self,
        source: Cluster,
        settings: LinkSettings,
        budget: FetchBudget,
        *,
        answered: Callable[[list[tuple[PartitionFetch, Outcome]]], None],
        failed: Callable[[int, KafkaError, list[PartitionFetch]], None],
        defect: Callable[[Failure], None],
    ) -> None:
        self._source = source
        self._settings = settings
        self._budget = budget
        self._answered = answered
        self._failed = failed
        self._defect = defect
        self._sessions: dict[int, TailSession] = {}
        """By source leader."""
        self._session_of: dict[TopicPartition, TailSession] = {}
        self._first: set[int] = set()
        """Source leaders with a last fetch on the tail channel that was without a session."""

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._session_of

    def fetch_of(self, tp: TopicPartition) -> PartitionFetch | None:
        """Return the fetch of a partition in a session, else None."""
        session = self._session_of.get(tp)
        return None if session is None else session.fetch_of(tp)

    def answered_at(self, tp: TopicPartition) -> float:
        """Return the time of the last successful response to the session of *tp*; 0.0 if it is in none."""
        session = self._session_of.get(tp)
        return 0.0 if session is None else session.answered_at

    def supports(self, leader: int) -> bool:
        """Return whether *leader* can have a session: it is connected, and supports topic ids in Fetch."""
        connection = self._source.brokers.ready(leader, TAIL_CHANNEL)
        return connection is not None and reading.supports_sessions(connection)

    def add(self, leader: int, fetch: PartitionFetch) -> None:
        """Fetch a partition from *leader*, which `supports` sessions."""
        session = self._sessions.setdefault(leader, TailSession())
        self._session_of[fetch.tp] = session
        session.add(fetch, self._source.metadata.leader_epoch(fetch.tp))

    def discard(self, tp: TopicPartition) -> None:
        """Take a partition out of its session, if it is in one; a response to its fetch is ignored."""
        session = self._session_of.pop(tp, None)
        if session is not None:
            session.discard(tp)

    def sent_without_session(self, leader: int) -> None:
        """Note a fetch without a session on the tail channel of *leader*: the session is next."""
        self._first.add(leader)

    def send_first(self) -> list[PartitionFetch]:
        """Send as `send`, to the leaders with a session that is next on its channel."""
        return self._send(self._first)

    def send(self) -> list[PartitionFetch]:
        """Send the next fetch of each session that has partitions and no fetch in flight.

        Return the fetches of sessions with a connection that is closed; they have left the session.
        """
        return self._send(self._sessions)

    def _send(self, leaders: Iterable[int]) -> list[PartitionFetch]:
        lost = []
        for leader in list(leaders):
            session = self._sessions.get(leader)
            if session and not self._budget.in_flight((leader, TAIL_CHANNEL)):
                lost += self._send_one(leader, session)
        return lost

    def _send_one(self, leader: int, session: TailSession) -> list[PartitionFetch]:
        connection = self._source.brokers.ready(leader, TAIL_CHANNEL)
        if connection is None:  # it was closed between two fetches
            return self._lost(session)
        room = self._budget.room(self._settings.max_partition_fetch_bytes)
        if not room:
            return []
        self._first.discard(leader)
        self._budget.reserve((leader, TAIL_CHANNEL), room)
        answer = Deferred.fromCoroutine(
            reading.fetch_tail(
                self._source,
                connection,
                session,
                max_wait_ms=self._settings.fetch_max_wait_ms,
                max_bytes=room,
            )
        )
        answer.addBoth(self._ended, leader, session).addErrback(self._defect)
        return []

    def _ended(self, result: Any, leader: int, session: TailSession) -> None:
        self._budget.release((leader, TAIL_CHANNEL))
        if isinstance(result, Failure):
            problem = kafka_error(result)
            self._failed(leader, problem, self._lost(session))
        else:
            for fetch, _ in result:
                del self._session_of[fetch.tp]
            self._answered(result)

    async def close(self, timeout: float) -> None:
        """Close the sessions, to free their slots at the leaders; best effort, in at most *timeout* seconds.

        The requests use the bulk channel, if it is connected: on the tail channel they wait behind the long poll.
        """
        closing = []
        for leader, session in self._sessions.items():
            asked = session.close_request()
            ready = self._source.brokers.ready
            connection = ready(leader, BULK_CHANNEL) or ready(leader, TAIL_CHANNEL)
            if asked is not None and connection is not None:
                closing.append(reading.close_session(connection, asked, timeout=timeout))
        await all_settled(closing)

    def _lost(self, session: TailSession) -> list[PartitionFetch]:
        """Take all partitions out of a session with an unknown state; return their fetches."""
        every = session.lost()
        for fetch in every:
            del self._session_of[fetch.tp]
        return every
