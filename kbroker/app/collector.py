"""Python's cyclic collector, kept from blocking the reactor: long-lived objects are visited a few times only.

Theory of operation
===================
A full collection visits every object in one reactor turn: 80 ms with 3,000 partitions. Nearly all survivors are kept as
long as the broker runs: partitions, logs, sessions, metadata. So after a long full collection the survivors are frozen,
and the next one visits only newer objects. A frozen object is freed when its reference count drops to zero, as always.
Only frozen cycles stay, and only those that existed at the few moments when a collection was long.

The longest collection depends on how many objects are made between two. With Python's ten collections of the middle
generation, thousands of new partitions cost 30 ms at once. With other processes on the same cores they cost 100 ms.
`SECOND_THRESHOLD` makes the pieces smaller; each is frozen before it takes long.

The collector is off during the start (`cli/start.py`). Just before the broker listens it collects and freezes once.

Owner: the reactor's thread, mostly: a collection runs in whatever thread made the last object.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Final

SECOND_THRESHOLD: Final = 3
"""Collections of the middle generation, of some 8,000 objects each, before a full one (`gc`)."""

LONG_SECONDS: Final = 0.005
"""CPU time of a full collection after which its survivors are frozen."""

_FULL: Final = 2


class LongCollections:
    """A `gc.callbacks` entry: calls *freeze* after every full collection that was long."""

    def __init__(
        self,
        freeze: Callable[[], None] = gc.freeze,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._freeze = freeze
        self._cpu = cpu
        self._begun = 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """Record the *phase* of a collection, start or stop."""
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._begun = self._cpu()
        elif self._cpu() - self._begun > LONG_SECONDS:
            self._freeze()


def settle() -> None:
    """Collect and freeze the objects of the start, before clients can connect."""
    gc.collect()
    gc.freeze()


def begin() -> None:
    """Collect from now on. The first metadata from the controller is long-lived: it is frozen, too."""
    gc.freeze()
    gc.callbacks.append(LongCollections())
    gc.set_threshold(*gc.get_threshold()[:2], SECOND_THRESHOLD)
    gc.enable()
