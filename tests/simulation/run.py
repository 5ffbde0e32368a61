"""Plays one schedule, of one cluster, or of two and a mirror between them."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

from twisted.logger import globalLogBeginner

from tests.simulation.mirror import MirrorSimulation
from tests.simulation.script import Script
from tests.simulation.simulation import Result, Simulation


def simulation_of(script: Script, **options: Any) -> Simulation:
    """Return the simulation that plays *script*: of one cluster, or of two and a mirror."""
    return (MirrorSimulation if script.mirror else Simulation)(script, **options)


def run(script: Script, **options: Any) -> Result:
    """Run one schedule. Python's cyclic collector waits until it is over, for equal runs."""
    _settle()
    collecting = gc.isenabled()
    gc.disable()
    try:
        return simulation_of(script, **options).run()
    finally:
        if collecting:
            gc.enable()


@cache
def _settle() -> None:
    """Release what this process no longer needs, once.

    Twisted keeps the last 65,536 events, with the objects that they refer to, until logging begins. What is imported is
    not examined by the collector again.
    """
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    gc.collect()
    gc.freeze()
