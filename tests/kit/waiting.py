"""Waiting in tests: poll with a deadline instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException
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


def eventually(what: str, condition: Callable[[], T], timeout: float = 40.0) -> T:
    """Poll until *condition* gives something true; return that.

    The longer it takes, the rarer: tests of processes wait for minutes together, beside others that compute.
    """
    began = time.monotonic()
    deadline = began + timeout
    while True:
        try:
            if result := condition():
                return result
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"waited {timeout:g} s for {what}"
        time.sleep(min(0.1, 0.02 + (time.monotonic() - began) / 20))
