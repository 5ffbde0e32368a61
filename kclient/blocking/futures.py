"""The result of a blocking ``send``: a Future that is cheap until it is used.

A `concurrent.futures.Future` has a lock, a condition and two lists: 2 us, more than the rest of a send. This one holds
its batch and its record index. It becomes a real Future (for `concurrent.futures.wait`, `asyncio.wrap_future` and
callbacks) only if a caller waits for it before its batch is done.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kclient.blocking.thread import check_may_wait
from kclient.errors import KafkaError
from kclient.producer.append import Delivery
from kclient.producer.batch import ProducerBatch
from kclient.types import RecordMetadata

Register = Callable[[ProducerBatch, int, int, Any], None]
"""Registers a sink for (batch, record index, timestamp) in the reactor's thread; the batch does not linger."""


_becoming = threading.Lock()
"""Held while a future becomes a real one, which no two threads may do at the same time."""

_OF_A_REAL_ONE = (
    "_condition",
    "_state",
    "_result",
    "_exception",
    "_waiters",
    "_done_callbacks",
)
"""The attributes that Future.__init__ sets."""


class DeliveryFuture(Delivery, Future[RecordMetadata]):
    """The delivery of one record: `result` returns a RecordMetadata or raises the error.

    Callbacks run in the reactor's thread and must not block. A record cannot be revoked: `cancel` returns False.
    """

    def __getattr__(self, name: str) -> Any:
        """Become a real Future at the first use of an attribute that only a real one has."""
        if name not in _OF_A_REAL_ONE:
            raise AttributeError(name)
        with _becoming:
            # Another thread may have been faster: its waiter would wait for a condition that is replaced.
            if name not in self.__dict__:
                try:
                    Future.__init__(self)
                    # Only now: the reactor's thread may set the result at once.
                    self._register(self._batch, self._index, self._timestamp, _FutureSink(self))
                except BaseException:
                    # In the child of a fork this raises, and must do so again the next time.
                    for each in _OF_A_REAL_ONE:
                        self.__dict__.pop(each, None)
                    raise
            return self.__dict__[name]

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return the record's metadata, waiting at most *timeout* seconds; raise the error of the delivery."""
        outcome = self._batch.outcome(self._index, self._timestamp)
        if outcome is None:
            check_may_wait()
            return super().result(timeout)
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the delivery, None if it succeeded."""
        outcome = self._batch.outcome(self._index, self._timestamp)
        if outcome is None:
            check_may_wait()
            return super().exception(timeout)
        return outcome if isinstance(outcome, KafkaError) else None

    def done(self) -> bool:
        """Return whether the delivery has succeeded or failed."""
        return self._batch.outcome(self._index, self._timestamp) is not None

    def cancel(self) -> bool:
        """Return False: a sent record cannot be revoked."""
        return False


class _FutureSink:
    """Passes a result to a DeliveryFuture that has become a real Future."""

    def __init__(self, future: Future[RecordMetadata]) -> None:
        self._future = future

    def callback(self, result: Any) -> None:
        """Set the RecordMetadata."""
        self._future.set_result(result)

    def errback(self, fail: Any) -> None:
        """Set the error."""
        self._future.set_exception(fail)


def _forget_after_fork() -> None:
    """Have a new lock in the child of a fork: a thread of the parent may have held this one."""
    global _becoming
    _becoming = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
