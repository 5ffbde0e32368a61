"""Requests that wait for something to happen to one of several partitions: Kafka's purgatory.

Theory of operation
===================
A waiting request watches keys. When something happened to a key (records were appended, the high watermark
moved, leadership went) everybody who watches it is asked whether it can be completed now. Nothing scans: what
nobody watches costs nothing, and a request's timeout is a timer of its own, kept by its owner.

Invariants:
1. A waiting request is completed once, by whichever comes first: an event, its timeout, its cancellation.
2. After it is completed nothing here refers to it.
3. Events during `happened` reach who was added meanwhile only with the next one.

In: events by key   Out: completions   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class DelayedOperation(Generic[K]):
    """One request that waits; *try_complete* answers it and returns True once that is possible."""

    __slots__ = ("_try_complete", "done", "keys")

    def __init__(self, keys: Iterable[K], try_complete: Callable[[], bool]) -> None:
        self.keys = tuple(keys)
        self._try_complete = try_complete
        self.done = False

    def attempt(self) -> bool:
        """Complete the request if it can be; return whether it is done."""
        if not self.done and self._try_complete():
            self.done = True
        return self.done


class Purgatory(Generic[K]):
    """Everybody who waits, by what they wait for.

    *report* hears of the error of a request that broke while being completed: it must not break the
    others (T7).
    """

    def __init__(self, report: Callable[[Exception], None]) -> None:
        self._watchers: dict[K, dict[DelayedOperation[K], None]] = {}
        """In the order in which they came."""
        self._report = report

    def __len__(self) -> int:
        return len({waiting for watchers in self._watchers.values() for waiting in watchers})

    def watched(self, key: K) -> bool:
        """Say whether anybody watches *key*."""
        return key in self._watchers

    def add(self, waiting: DelayedOperation[K]) -> None:
        """Let *waiting* wait for its keys."""
        for key in waiting.keys:
            self._watchers.setdefault(key, {})[waiting] = None

    def remove(self, waiting: DelayedOperation[K]) -> None:
        """Forget *waiting*: it timed out or was cancelled."""
        waiting.done = True
        for key in waiting.keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(waiting, None)
                if not watchers:
                    del self._watchers[key]

    def happened(self, *keys: K) -> int:
        """Try once to complete each request that watches any of *keys*; return how many were completed."""
        completed = 0
        watchers = self._watchers
        for waiting in (
            list(watchers.get(keys[0], ()))
            if len(keys) == 1
            else dict.fromkeys(each for key in keys for each in watchers.get(key, ()))
        ):
            try:
                done = waiting.attempt()
            except Exception as error:
                self._report(error)
                done = True
            if done:
                self.remove(waiting)
                completed += 1
        return completed
