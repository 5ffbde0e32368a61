"""The registry of known bugs: each module of this package adds its own with a decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Change = tuple[Any, str, Any]
"""Where, which attribute, and what it is replaced by."""

Planting = Callable[[], list[Change]]
"""Return what to change; called before anything is changed."""

MUTANTS: dict[str, Planting] = {}

FREQUENT: list[str] = []
"""Known bugs that every fifth seed finds, or more. Which seed does changes with every line of the broker."""


def mutant(plant: Planting) -> Planting:
    """Add a bug by its name; a script in `scripts/mutants/` finds it, or many seeds do."""
    MUTANTS[plant.__name__] = plant
    return plant


def frequent_mutant(plant: Planting) -> Planting:
    """Add a bug by its name; `test_mutants.py` checks that some of the first seeds find it."""
    FREQUENT.append(plant.__name__)
    return mutant(plant)


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have the bug *name* in the code, for a while."""
    changes = [] if name is None else MUTANTS[name]()
    before = [(where, attribute, getattr(where, attribute)) for where, attribute, _ in changes]
    for where, attribute, value in changes:
        setattr(where, attribute, value)
    try:
        yield
    finally:
        for where, attribute, value in before:
            setattr(where, attribute, value)
