"""Many seeds, in one process or in several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from multiprocessing import get_context

from tests.simulation.mutants import planted
from tests.simulation.run import Result, run
from tests.simulation.script import draw

CHUNK = 25
"""Seeds that one process takes at a time."""


def outcomes(seeds: Iterable[int], mutant: str | None = None) -> list[Result]:
    """Run *seeds*, one after the other."""
    with planted(mutant):
        return [run(draw(seed)) for seed in seeds]


def _outcomes(task: tuple[range, str | None]) -> list[Result]:
    return outcomes(*task)


def all_outcomes(seeds: range, jobs: int, mutant: str | None = None) -> Iterator[Result]:
    """Run *seeds* in *jobs* processes."""
    tasks = [(seeds[at : at + CHUNK], mutant) for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        for task in tasks:
            yield from _outcomes(task)
        return
    with get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap(_outcomes, tasks):
            yield from found
