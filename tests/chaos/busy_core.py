"""S37: all brokers share one core with a busy process: they are slow, and no session expires."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kbroker.local import processes
from tests.audits.problem import Problem
from tests.chaos.cluster import ChaosCluster
from tests.chaos.scenario import progress

LASTING = (20.0, 40.0)
QUIET = 3.0
NEIGHBOUR = [sys.executable, "-c", "while True: pass"]


def one_core(cluster: ChaosCluster, chance: random.Random) -> None:
    """Crowd them for a while; no session may end meanwhile, and no leader change."""
    cluster.wait_in_sync()
    everywhere = os.sched_getaffinity(0)
    core = max(everywhere)
    pids = [cluster.brokers[n].pid for n in cluster.ids]
    before = _placement(cluster)
    cluster.recorder.nemesis(one_core=core)
    progress(cluster, f"all brokers and a busy neighbour are on core {core}")
    with _neighbour(core):
        _run_on(pids, {core})
        time.sleep(chance.uniform(*LASTING))
        _run_on(pids, everywhere)
    cluster.problems += what_moved(before, _placement(cluster))
    cluster.recorder.nemesis(all_cores=sorted(everywhere))
    time.sleep(QUIET)


class Placement(NamedTuple):
    """Registered brokers and leaders."""

    sessions: dict[int, tuple[int, int]]
    """By broker: the session of its registration, and its epoch."""
    leaders: dict[str, tuple[int, int]]
    """By partition: leader and leader epoch."""


def what_moved(before: Placement, after: Placement) -> list[Problem]:
    """Return a problem for every session that ended, and for every leader that changed."""
    return [
        Problem("session-ended", f"broker-{n}", f"{session} became {after.sessions.get(n)}")
        for n, session in before.sessions.items()
        if after.sessions.get(n) != session
    ] + [
        Problem("leader-moved", key, f"(leader, epoch) {leader} became {after.leaders.get(key)}")
        for key, leader in before.leaders.items()
        if after.leaders.get(key) != leader
    ]


def _placement(cluster: ChaosCluster) -> Placement:
    states = {key: cluster.state(key) for key in cluster.keys}
    leaders = {key: (state["leader"], state["leader_epoch"]) for key, state in states.items()}
    return Placement(cluster.sessions(), leaders)


@contextmanager
def _neighbour(core: int) -> Iterator[None]:
    with Path(os.devnull).open("wb") as nowhere:
        process = processes.start_bound_to_us(NEIGHBOUR, output=nowhere)
    os.sched_setaffinity(process.pid, {core})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _run_on(pids: Iterable[int], cores: set[int]) -> None:
    """Bind every thread; those made later inherit it."""
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), cores)
