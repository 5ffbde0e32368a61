"""Shortens a script that breaks a predicate: lines are dropped while it still fails."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.run import run
from tests.simulation.script import Script
from tests.simulation.simulation import Result

MOST_RUNS = 400


def shrink(failed: Result, run_one: Callable[[Script], Result] = run) -> Result:
    """Return the result of the shortest script found that fails as *failed* does.

    Halves first, then quarters, down to single lines (delta debugging), until nothing more can go.
    """
    best = failed
    runs = 0
    size = max(len(best.script.events) // 2, 1)
    while size >= 1:
        at = len(best.script.events) - size
        shorter = False
        while at > -size and runs < MOST_RUNS:
            start = max(at, 0)
            candidate = best.script.without(range(start, start + size))
            runs += 1
            result = run_one(candidate)
            if result.failure is not None and result.kind == failed.kind:
                best, shorter = result, True
            at -= size
        if runs >= MOST_RUNS:
            break
        if size == 1 and not shorter:
            break
        size = size // 2 if size > 1 else 1
    return best
