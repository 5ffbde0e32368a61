"""What a scenario is, and rounds of a fault and its repair."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import Fault

Round = Callable[[ChaosCluster, random.Random], None]


@dataclass(frozen=True)
class Scenario:
    """What is played, and on what."""

    about: str
    play: Round
    zookeepers: int = 1
    brokers: int = 3
    unclean_election: bool = False
    """Whether the script lets stale replicas be elected."""
    small_disks: bool = False
    """Whether every broker's log directory is a file system of its own, which the script makes full."""
    namespaces: bool = False
    """Whether every broker and ZooKeeper server is a host of its own, and cuts are dropped packets."""
    soak: bool = False
    """Whether it is judged that nothing grows: memory, descriptors, threads, znodes, watches."""


def play_fault(
    cluster: ChaosCluster, chance: random.Random, fault: Fault, lasting: float, quiet: float
) -> None:
    """Hurt, wait, repair, wait."""
    running: Iterator[str] = fault(cluster, chance)
    words = next(running, "")
    progress(cluster, words)
    time.sleep(lasting)
    for _ in running:
        pass
    time.sleep(quiet)


def progress(cluster: ChaosCluster, words: str) -> None:
    """Print a line of progress."""
    seconds = (time.monotonic_ns() - cluster.recorder.began_ns) / 1e9
    print(f"{seconds:7.1f} s  {words}", flush=True)  # noqa: T201


def rounds(
    *of: Fault, lasting: tuple[float, float] = (1, 7), quiet: tuple[float, float] = (2, 5)
) -> Round:
    """Play one of *of*, drawn each time."""

    def play(cluster: ChaosCluster, chance: random.Random) -> None:
        play_fault(cluster, chance, chance.choice(of), chance.uniform(*lasting), chance.uniform(*quiet))  # fmt: skip

    return play
