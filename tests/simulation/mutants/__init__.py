"""Known bugs, to be put in on purpose: what the simulation is worth is which of them it finds.

One module per subject. `registry.py` collects the bugs by name; `tests/simulation/test_mutants.py` checks that the
simulation finds them.
"""

from tests.simulation.mutants import (
    controller,
    disk_damage,
    groups,
    log,
    mirror,
    replication,
    transactions,
)
from tests.simulation.mutants.registry import FREQUENT, MUTANTS, frequent_mutant, mutant, planted

__all__ = [
    "FREQUENT",
    "MUTANTS",
    "controller",
    "disk_damage",
    "frequent_mutant",
    "groups",
    "log",
    "mirror",
    "mutant",
    "planted",
    "replication",
    "transactions",
]
