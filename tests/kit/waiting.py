"""Waiting in tests: poll with a deadline, never sleep and hope."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twisted.internet.task import deferLater

T = TypeVar("T")


async def until(condition: Callable[[], T], *, timeout: float = 10.0, what: str = "") -> T:
    """Wait, on the reactor, until *condition* gives something true, and return that."""
    from twisted.internet import reactor

    deadline = reactor.seconds() + timeout
    while not (result := condition()):
        if reactor.seconds() > deadline:
            raise AssertionError(f"waited {timeout:g} s for {what or condition}")
        await deferLater(reactor, 0.01)
    return result
