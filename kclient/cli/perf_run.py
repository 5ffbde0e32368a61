"""What the commands of `kclient perf` share: payloads, a report every 5 s, the client's share of a CPU."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kclient.cli.perf_figures import Window, busy_note
from kclient.cli.settings import Settings

REPORT_EVERY_S = 5.0
_POOL = 1_048_576
"""Bytes that payloads are cut from: more than a batch has, so that a codec finds no repetition."""


def payloads(size: int) -> Callable[[], bytes]:
    """Return a source of values of *size* random capital letters, as kafka-producer-perf-test sends them."""
    pool = bytes(random.choices(range(65, 91), k=_POOL + size))

    def payload() -> bytes:
        at = int(random.random() * _POOL)
        return pool[at : at + size]

    return payload


@contextmanager
def reports(settings: Settings, reactor: Any, window: Window) -> Iterator[None]:
    """Write the line of *window* to stderr every 5 s; none with -q."""
    from twisted.internet.task import LoopingCall

    call = LoopingCall(lambda: settings.note(window.report(reactor.seconds())))
    call.clock = reactor
    call.start(REPORT_EVERY_S, now=False)
    try:
        yield
    finally:
        if call.running:
            call.stop()


class Stopwatch:
    """The time, and the processor time of this process, since its creation."""

    def __init__(self, reactor: Any) -> None:
        self._seconds = reactor.seconds
        self.began = reactor.seconds()
        self._cpu = time.process_time()

    def elapsed(self) -> float:
        """Return the seconds so far."""
        return float(self._seconds() - self.began)

    def note_if_busy(self, settings: Settings) -> None:
        """Write to stderr that this process may be the limit, if it is so."""
        text = busy_note(time.process_time() - self._cpu, self.elapsed())
        if text is not None:
            settings.note(text)
