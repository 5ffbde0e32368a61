"""Many seeds, in this process or in several of their own.

A cluster that was played is one great knot of references, and Python's cyclic collector takes as long to undo it as
a tenth of the play. A worker never does: it is forked with everything imported, plays a chunk, and ends.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context

from tests.simulation.mutants import planted
from tests.simulation.run import run
from tests.simulation.script import Script, draw
from tests.simulation.simulation import Result

CHUNK = 100
"""Seeds that one process takes at a time: 3 MB of memory for each. The first of them also compiles the codecs."""


Draw = Callable[[int], Script]
"""Makes the schedule of a seed."""


def outcomes(seeds: Iterable[int], mutant: str | None = None, drawn: Draw = draw) -> list[Result]:
    """Run *seeds*, one after the other."""
    with planted(mutant):
        return [run(drawn(seed)) for seed in seeds]


def _outcomes(task: tuple[range, str | None, Draw]) -> list[Result]:
    gc.disable()
    return outcomes(*task)


def all_outcomes(
    seeds: range, jobs: int, mutant: str | None = None, drawn: Draw = draw
) -> Iterator[Result]:
    """Run *seeds* in *jobs* processes; the results are in their order."""
    tasks = [(seeds[at : at + CHUNK], mutant, drawn) for at in range(0, len(seeds), CHUNK)]
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        for found in pool.imap(_outcomes, tasks):
            yield from found
