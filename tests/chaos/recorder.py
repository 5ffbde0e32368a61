"""Writes the history: one counter, one clock, one file, any number of threads."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

from tests.checker.history import Event, Process


class Recorder:
    """The history of one run, in memory and in *path*."""

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8")
        self._processes = itertools.count()
        self._values = itertools.count(1)
        self.began_ns = time.monotonic_ns()
        self.wall_minus_monotonic_ns = time.time_ns() - self.began_ns

    def new_process(self) -> int:
        """Return the id of a client that is made now."""
        return next(self._processes)

    def new_value(self) -> int:
        """Return a value that no client has written yet."""
        return next(self._values)

    def event(
        self,
        p: Process,
        type_: str,
        f: str,
        v: Any = None,
        *,
        err: str | None = None,
        t: int | None = None,
        **meta: Any,
    ) -> Event:
        """Add one event, at *t* or now."""
        with self._lock:
            at = time.monotonic_ns() if t is None else t
            event = Event(len(self.events), at, p, type_, f, v, err, meta)
            self.events.append(event)
            if not self._file.closed:
                self._file.write(event.to_json() + "\n")
        return event

    def nemesis(self, **what: Any) -> Event:
        """Add what was done to the cluster."""
        return self.event("nemesis", "info", "nemesis", what)

    def monotonic_ns(self, wall_ms: int) -> int:
        """Translate a wall-clock time."""
        return wall_ms * 1_000_000 - self.wall_minus_monotonic_ns

    def close(self) -> None:
        """End the file; a client that is left behind may go on talking."""
        with self._lock:
            self._file.close()
