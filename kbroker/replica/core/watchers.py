"""Which delayed operations wait for which event, by key.

An event marks its key as woken; the operations that watch woken keys are collected once per turn of the reactor. An
event without watchers costs one look-up.

Invariants:
1. Operations are collected in the order in which they began to watch.
2. After `remove` no reference to an operation is left here.
3. An event that occurs after `collect` is collected with the next one.

In: events by key   Out: operations to try   Owner: `DelayedOperationPurgatory`
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Op = TypeVar("Op", bound=Hashable)


class Watchers(Generic[K, Op]):
    """The operations that watch one kind of event; *woken* is called when the first key is marked."""

    __slots__ = ("_operations", "_woken", "_woken_keys")

    def __init__(self, woken: Callable[[], None]) -> None:
        self._operations: dict[K, dict[Op, None]] = {}
        self._woken_keys: dict[K, None] = {}
        self._woken = woken

    def __len__(self) -> int:
        """Return the number of operations that wait."""
        return len({each for watching in self._operations.values() for each in watching})

    def add(self, operation: Op, keys: Iterable[K]) -> None:
        """Have *operation* watch *keys*."""
        for key in keys:
            self._operations.setdefault(key, {})[operation] = None

    def remove(self, operation: Op, keys: Iterable[K]) -> None:
        """End the watch of *operation* over *keys*."""
        for key in keys:
            watching = self._operations.get(key)
            if watching is not None:
                watching.pop(operation, None)
                if not watching:
                    del self._operations[key]

    def notify(self, key: K) -> None:
        """Mark *key*: its operations are to be tried."""
        if key in self._operations:
            if not self._woken_keys:
                self._woken()
            self._woken_keys[key] = None

    def of(self, key: K) -> list[Op]:
        """Return the operations that watch *key*."""
        return list(self._operations.get(key, ()))

    def collect(self) -> list[Op]:
        """Return the operations that watch a woken key, each once; no key is woken any more."""
        keys = self._woken_keys
        if not keys:
            return []
        self._woken_keys = {}
        operations = self._operations
        if len(keys) == 1:
            (key,) = keys
            return list(operations.get(key, ()))
        return list(dict.fromkeys(each for key in keys for each in operations.get(key, ())))
