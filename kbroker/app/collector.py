"""Python's cyclic collector, kept from stopping the reactor for long: what lives long is looked at a few times only.

Theory of operation
===================
A full collection looks at every object there is, in one go, while nobody is heard: 80 ms with three thousand
partitions. What survives it will nearly all live as long as the broker: partitions, logs, sessions, metadata. So when a
full collection took long, what survived is frozen, and the next one looks at what came since. What is frozen goes as
always when nobody refers to it; only cycles would stay, and no more of them than were alive at the few moments when a
collection was long.

How long the longest is, is decided by how much may come between two: with Python's ten of the middle generation,
thousands of new partitions cost 30 ms at once, which other processes on the same cores made 100. So they are looked at
in smaller pieces (`SECOND_THRESHOLD`), each of which is frozen before it is worth noticing.

Before the broker listens it collects and freezes at once; until it is ready the collector is off (`cli/start.py`).

Owner: the reactor's thread, mostly: a collection runs in whatever thread made the last object.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Final

SECOND_THRESHOLD: Final = 3
"""Collections of the middle generation, which are of some 8,000 objects, before a full one is thought of (`gc`)."""

LONG_SECONDS: Final = 0.005
"""A full collection of so much CPU time is the last one that looks at what survived it."""

_FULL: Final = 2


class LongCollections:
    """Told of every collection by `gc.callbacks`; *freeze* is called after those that were full and long."""

    def __init__(
        self,
        freeze: Callable[[], None] = gc.freeze,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._freeze = freeze
        self._cpu = cpu
        self._begun = 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """Take note of a collection's *phase*, start or stop."""
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._begun = self._cpu()
        elif self._cpu() - self._begun > LONG_SECONDS:
            self._freeze()


def settle() -> None:
    """Look a last time at what start-up made, while nobody waits for us."""
    gc.collect()
    gc.freeze()


def begin() -> None:
    """Collect from now on. What the controller told us first lives long: it is not looked at."""
    gc.freeze()
    gc.callbacks.append(LongCollections())
    gc.set_threshold(*gc.get_threshold()[:2], SECOND_THRESHOLD)
    gc.enable()
