"""What the broker uses of Twisted's reactor, as protocols: a test or the simulation brings its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """Monotonic time, and calls to come."""

    def seconds(self) -> float:
        """Return the monotonic time in seconds."""

    def callLater(self, delay: float, callable: Callable[..., Any], /, *args: Any) -> Any:  # noqa: N802
        """Call *callable* after *delay* seconds; return an IDelayedCall."""


class Reactor(Clock, Protocol):
    """A clock that takes calls from other threads."""

    def callFromThread(self, callable: Callable[..., Any], /, *args: Any) -> Any:  # noqa: N802
        """Call *callable* on the reactor's thread."""
