"""DelayedOperationPurgatory: the requests that wait for a partition or for a fetch session.

Theory of operation
===================
A request that cannot be answered yet becomes a `DelayedOperation`: a Deferred, one timer, and the keys that it watches.

| watchers | operations | events |
| --- | --- | --- |
| `high_watermarks`, by partition | Produce, markers, DeleteRecords, consumers' full fetches | watermark, role, start |
| `log_ends`, by partition | full fetches of followers | log end, role, log start |
| `sessions`, by fetch session | its incremental fetch (KIP-227): at most one waits | one of its partitions is due |

An event only marks its key. The operations are tried later in the same turn of the reactor, after the responses that
caused the event have left. So many appends of one turn wake a long poll once, and no operation runs inside a change.

Invariants:
1. An operation completes once: by an event, its timeout, its cancellation, or `expire`, whichever comes first.
2. A completed operation is no longer referred to from here.
3. An operation that raises completes with that error and does not affect the others.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kbroker.common.topic_partition import TopicPartition
from kbroker.network.service import HeldResponse
from kbroker.replica.core.fetch_session import FetchSession
from kbroker.replica.core.watchers import Watchers
from kclient.wire.errors import ErrorCode, KafkaError, code_of

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class DelayedOperation(Generic[T]):
    """One request that waits: *attempt* returns its response or None, *expired* its response in any case."""

    __slots__ = ("_attempt", "_expired", "_keys", "_watchers", "answer", "is_completed", "timer")

    answer: Deferred[T]
    timer: Any

    def __init__(
        self,
        watchers: Watchers[Any, DelayedOperation[Any]],
        keys: tuple[Hashable, ...],
        attempt: Callable[[], T | None],
        expired: Callable[[], T],
    ) -> None:
        self._watchers = watchers
        self._keys = keys
        self._attempt = attempt
        self._expired = expired
        self.is_completed = False
        """Whether it has a result, or was cancelled."""

    def try_complete(self) -> None:
        """Complete with what *attempt* returns, unless that is None."""
        self._run(self._attempt)

    def expire(self) -> None:
        """Complete with what *expired* returns."""
        self._run(self._expired)

    def cancel(self, _answer: Any = None) -> None:
        """Stop waiting."""
        self._end()

    def _run(self, work: Callable[[], T | None]) -> None:
        if self.is_completed:
            return
        result: Any
        try:
            result = work()
        except Exception:
            result = Failure()
        if result is not None and not self.is_completed:
            self._end()
            self.answer.callback(result)

    def _end(self) -> None:
        self.is_completed = True
        self._watchers.remove(self, self._keys)
        if self.timer.active():
            self.timer.cancel()


class PartitionResult(Protocol):
    """The part of a response that a partition has."""

    error_code: int


class PendingPartition:
    """A partition of a request that waits. *check* returns whether its wait is over; its KafkaError ends it, too."""

    __slots__ = ("_check", "_result", "key")

    def __init__(
        self, key: TopicPartition, check: Callable[[], bool], result: PartitionResult
    ) -> None:
        self.key = key
        self._check = check
        self._result = result

    def is_done(self) -> bool:
        """Return whether the wait is over; an error is put into the result."""
        try:
            return self._check()
        except KafkaError as error:
            self._result.error_code = int(code_of(error))
            return True

    def time_out(self) -> None:
        """Make the result an error: what was begun may or may not become complete."""
        self._result.error_code = int(ErrorCode.REQUEST_TIMED_OUT)


class DelayedOperationPurgatory:
    """All delayed operations of the replica manager."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._is_scheduled = False
        self.high_watermarks: Watchers[TopicPartition, DelayedOperation[Any]] = Watchers(self._wake)
        self.log_ends: Watchers[TopicPartition, DelayedOperation[Any]] = Watchers(self._wake)
        self.sessions: Watchers[FetchSession, DelayedOperation[Any]] = Watchers(self._wake)

    def __len__(self) -> int:
        return len(self.high_watermarks) + len(self.log_ends) + len(self.sessions)

    def delay(
        self,
        watchers: Watchers[K, DelayedOperation[Any]],
        keys: Iterable[K],
        seconds: float,
        attempt: Callable[[], T | None],
        expired: Callable[[], T],
        *,
        held: bool = False,
    ) -> Deferred[T]:
        """Fire with what *attempt* returns after an event at *keys*, once that is not None.

        After *seconds* it fires with what *expired* returns. An error of either is the Deferred's. Cancel the Deferred
        to stop waiting. With *held* the operation expires when the connection's next request arrives.
        """
        operation: DelayedOperation[T] = DelayedOperation(watchers, tuple(keys), attempt, expired)
        operation.answer = (
            HeldResponse(operation.cancel, operation.expire) if held else Deferred(operation.cancel)
        )
        operation.timer = self._reactor.callLater(max(seconds, 0), operation.expire)
        watchers.add(operation, operation._keys)  # type: ignore[arg-type]  # of K
        return operation.answer

    async def until_done(self, pending: Iterable[PendingPartition], seconds: float) -> None:
        """Wait until all of *pending* are done; after *seconds* those that are left time out."""
        left = [each for each in pending if not each.is_done()]
        if not left:
            return

        def attempt() -> bool | None:
            left[:] = [each for each in left if not each.is_done()]
            return None if left else True

        def expired() -> bool:
            for each in left:
                each.time_out()
            return True

        keys = [each.key for each in left]
        await self.delay(self.high_watermarks, keys, seconds, attempt, expired)

    def expire(self, session: FetchSession) -> None:
        """Complete the fetch of *session* that waits, if one does, with what there is."""
        for operation in self.sessions.of(session):
            operation.expire()

    def _wake(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._reactor.callLater(0, self._try_woken)

    def _try_woken(self) -> None:
        self._is_scheduled = False
        woken = self.high_watermarks.collect() + self.log_ends.collect() + self.sessions.collect()
        for operation in woken:
            operation.try_complete()
