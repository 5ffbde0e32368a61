"""Incremental fetches that wait: each session has at most one, woken by what its session hears (KIP-227).

A full fetch is watched for by key while it waits (`delayed_requests`). A session watches its partitions all the
time, so a fetch that waits has only to be found, however many partitions it stands for. Whoever is woken is looked at
later in the same turn of the reactor, once, as there.

Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kbroker.common.topic_partition import TopicPartition
from kbroker.network.service import Answer, HeldResponse
from kbroker.replica.core.fetch_session import FetchSession
from kbroker.replica.core.fetch_session_cache import FetchSessionCache
from kbroker.replica.delayed_requests import DelayedRequests


class _Wait:
    """One fetch: *attempt* answers it if there is enough, *expired* in any case."""

    __slots__ = ("answer", "attempt", "expired", "timer")

    def __init__(
        self,
        answer: Deferred[Answer],
        attempt: Callable[[], Answer],
        expired: Callable[[], Answer],
        timer: Any,
    ) -> None:
        self.answer = answer
        self.attempt = attempt
        self.expired = expired
        self.timer = timer


class DelayedFetches:
    """The fetches that wait, by session."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._waiting: dict[FetchSession, _Wait] = {}
        self._woken: dict[FetchSession, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def listen(
        self, sessions: FetchSessionCache, clients: DelayedRequests, followers: DelayedRequests
    ) -> None:
        """Have *sessions* hear of what wakes the requests of *clients* and *followers*."""

        def committed(key: TopicPartition) -> None:
            self._wake(sessions.committed(key))

        def appended(key: TopicPartition) -> None:
            self._wake(sessions.appended(key))

        clients.on_wake(committed)
        followers.on_wake(appended)

    def _wake(self, sessions: Iterable[FetchSession]) -> None:
        for session in sessions:
            if session in self._waiting:
                if not self._woken:
                    self._reactor.callLater(0, self._wake_now)
                self._woken[session] = None

    def _wake_now(self) -> None:
        woken, self._woken = self._woken, {}
        for session in woken:
            wait = self._waiting.get(session)
            if wait is not None:
                self._finish(session, wait, wait.attempt)

    def finish(self, session: FetchSession) -> None:
        """Answer the fetch of *session* that waits, if one does, with what there is."""
        wait = self._waiting.get(session)
        if wait is not None:
            self._finish(session, wait, wait.expired)

    def _finish(self, session: FetchSession, wait: _Wait, look: Callable[[], Answer]) -> None:
        result: Any
        try:
            result = look()
        except Exception:
            result = Failure()
        if result is None:
            return
        self._forget(session, wait)
        wait.answer.callback(result)

    def _forget(self, session: FetchSession, wait: _Wait) -> None:
        if self._waiting.get(session) is wait:
            del self._waiting[session]
        if wait.timer.active():
            wait.timer.cancel()

    def wait(
        self,
        session: FetchSession,
        seconds: float,
        attempt: Callable[[], Answer],
        expired: Callable[[], Answer],
    ) -> Deferred[Answer]:
        """Fire with what *attempt* returns after an event, once that is not None; with *expired* in the end.

        That is after *seconds*, or when the next request of the connection is there already. The session
        has no other fetch that waits (see `finish`).
        """
        answer: Deferred[Answer] = HeldResponse(
            lambda _cancelled: self._forget(session, wait), lambda: self.finish(session)
        )
        timer = self._reactor.callLater(seconds, self.finish, session)
        wait = self._waiting[session] = _Wait(answer, attempt, expired, timer)
        return answer
