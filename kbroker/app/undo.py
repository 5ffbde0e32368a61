"""The steps that undo a start: run in the opposite order, each even if another fails.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutine
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

log = Logger(namespace="kbroker.broker")

LOGGED_SECONDS: Final = 0.05
"""Steps that took at least this long are named in the log."""

Step = Callable[[], Any]
"""Undoes something, now or when its Deferred fires or its coroutine ends."""


class Undo:
    """The steps that are still to be undone; *seconds* is the reactor's clock."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._steps: list[Step] = []

    def add(self, *steps: Step) -> None:
        """Run *steps* before those that were added earlier, the last of them first."""
        self._steps += steps

    def add_last(self, step: Step) -> None:
        """Run *step* after all others."""
        self._steps.insert(0, step)

    async def run(self) -> None:
        """Run all steps, one after the other; one that fails does not stop the others."""
        begun = self._seconds()
        took: list[tuple[float, str]] = []
        while self._steps:
            step = self._steps.pop()
            step_begun = self._seconds()
            try:
                result = step()
                if iscoroutine(result) or isinstance(result, Deferred):
                    await result
            except Exception:
                log.failure("a part of the broker did not stop properly")
            took.append((self._seconds() - step_begun, _name(step)))
        log.info(
            "stopped in {total:.2f} s: {steps}",
            total=self._seconds() - begun,
            steps=", ".join(f"{name} {s:.2f}" for s, name in took if s >= LOGGED_SECONDS),
        )


def _name(step: Step) -> str:
    name: str = getattr(step, "func", step).__qualname__  # of a partial, that of its function
    return name
