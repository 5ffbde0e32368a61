"""Events drawn for the log: topics with a sync before the acknowledgement, compacted ones, and power losses of all
machines at once.

The first draw of a seed stays as it is; what is here is added by generators of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

Drawn = tuple[float, str, tuple[str, ...]]
"""A time, a verb and its words."""

KINDS = ("idempotent", "all", "large", "large")
"""What producers write before an outage; `large` records are torn between pages."""

WRONG = ("gap", "epoch")

FLUSHED = {"power": 0.6, "disks": 0.3, "bad disks": 0.3, "crashes": 0.3, "everything": 0.3}
"""How likely the topics of a seed are flushed, by its mix of faults."""


def words_of_topics(seed: int, fault_mix: str) -> tuple[str, ...]:
    """Return the kinds of all topics of a seed.

    `flushed`: flush.messages=1. `compacted`: each record has a key of its own, so that all of them stay.
    """
    is_flushed = Random(seed ^ 0xF1005).random() < FLUSHED.get(fault_mix, 0.1)
    is_compacted = Random(seed ^ 0xC0417AC7).random() < (0.3 if fault_mix in FLUSHED else 0.15)
    return ("flushed",) * is_flushed + ("compacted",) * is_compacted


def _outages(seed: int, fault_mix: str, until: float, brokers: int) -> Iterator[Drawn]:
    """Take the power of all machines at once while producers write, in some of the seeds that are about power."""
    rng = Random(seed ^ 0x0FF)
    if fault_mix != "power" or rng.random() < 0.5:
        return
    every_broker = tuple(str(broker) for broker in range(1, brokers + 1))
    time = rng.uniform(3.0, max(until, 4.0))
    for _ in range(rng.choice((1, 1, 2))):
        verb = rng.choice(("power", "powerack"))
        if verb == "powerack":
            yield time, verb, every_broker
        for _ in range(rng.randint(1, 4)):
            yield time, "produce", ("a", "0", rng.choice(KINDS), "2")
            time += rng.uniform(0.0, 0.3)
        if verb == "power":
            yield time, verb, every_broker
        for broker in every_broker:
            yield time + rng.uniform(0.2, 2.0), "start", (broker,)
        time += rng.uniform(8.0, 12.0)


def _rejected_producers(seed: int, until: float) -> Iterator[Drawn]:
    """Have producers send what must be refused, in some seeds."""
    rng = Random(seed ^ 0x1D)
    if rng.random() < 0.7:
        return
    for _ in range(rng.randint(1, 4)):
        yield rng.uniform(3.0, max(until, 4.0)), "misproduce", ("a", "0", rng.choice(WRONG))


def _sync_faults(seed: int, fault_mix: str, until: float, brokers: int) -> Iterator[Drawn]:
    """Have syncs fail for a while, in some seeds that are about disks."""
    rng = Random(seed ^ 0x5C)
    if fault_mix not in ("bad disks", "everything") or rng.random() < 0.5:
        return
    time, where = rng.uniform(3.0, max(until, 4.0)), (str(rng.randint(1, brokers)), "/data")
    yield time, "syncfail", where
    for _ in range(rng.randint(1, 3)):
        yield time + rng.uniform(0.0, 2.0), "produce", ("a", "0", rng.choice(KINDS), "4")
    yield time + rng.uniform(2.0, 6.0), "diskworks", where


def drawn(seed: int, fault_mix: str, until: float, brokers: int) -> Iterator[Drawn]:
    """Draw what is added to a seed's schedule, which ends at about *until*."""
    yield from _outages(seed, fault_mix, until, brokers)
    yield from _sync_faults(seed, fault_mix, until, brokers)
    yield from _rejected_producers(seed, until)
