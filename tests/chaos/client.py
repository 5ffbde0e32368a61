"""What a worker needs of a client, of any library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tests.checker.outcomes import Outcome

Positions = dict[str, int]
"""Per key (topic-partition) the next offset to read."""


class Ended(NamedTuple):
    """How a send ended."""

    outcome: Outcome
    offset: int | None = None
    """Of the first value."""
    err: str | None = None
    broker: int | None = None


class ClientLost(Exception):
    """The client cannot go on; its successor is another process."""


class Reader(Protocol):
    """A consumer."""

    def assign(self, positions: Positions) -> None:
        """Read these keys from there on, and no others."""
        ...

    def poll(self, timeout: float) -> dict[str, list[tuple[int, int]]]:
        """Return new records, (offset, value) by key. Raise ClientLost."""
        ...

    def close(self) -> None:
        """Let go of everything, quickly."""
        ...


class Client(Reader, Protocol):
    """A producer and a consumer."""

    send_meta: dict[str, Any]
    """What the history has to know of its sends (tests.checker.history)."""
    most_values: int
    """Of one send."""

    def send(self, key: str, values: Sequence[int], done: Callable[[Ended], None]) -> None:
        """Send *values* to *key*; *done* is called once, now or later, by any thread."""
        ...

    def flush(self, timeout: float) -> None:
        """Wait for answers."""
        ...


def split_key(key: str) -> tuple[str, int]:
    """Return topic and partition."""
    topic, _, partition = key.rpartition("-")
    return topic, int(partition)
