"""What is drawn to try the log: topics that are synced before they acknowledge, and outages of all machines at once.

The first draw of a seed stays as it is; what is here is added by generators of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

Drawn = tuple[float, str, tuple[str, ...]]
"""A time, a verb and its words."""

FLUSHED = {"power": 0.6, "disks": 0.3, "bad disks": 0.3, "crashes": 0.3, "everything": 0.3}
"""How likely the topics of a seed are flushed, by its weather."""


def topics_are_flushed(seed: int, weather: str) -> bool:
    """Say whether the topics of a seed have flush.messages=1."""
    return Random(seed ^ 0xF1005).random() < FLUSHED.get(weather, 0.1)


def outages(seed: int, weather: str, until: float, brokers: int) -> Iterator[Drawn]:
    """Take the power of all machines at once while producers write, in some of the seeds that are about power."""
    rng = Random(seed ^ 0x0FF)
    if weather != "power" or rng.random() < 0.5:
        return
    everybody = tuple(str(broker) for broker in range(1, brokers + 1))
    time = rng.uniform(3.0, max(until, 4.0))
    for _ in range(rng.choice((1, 1, 2))):
        verb = rng.choice(("power", "powerack"))
        if verb == "powerack":
            yield time, verb, everybody
        for _ in range(rng.randint(1, 4)):
            yield time, "produce", ("a", "0", rng.choice(("idempotent", "all")), "2")
            time += rng.uniform(0.0, 0.3)
        if verb == "power":
            yield time, verb, everybody
        for broker in everybody:
            yield time + rng.uniform(0.2, 2.0), "start", (broker,)
        time += rng.uniform(8.0, 12.0)
