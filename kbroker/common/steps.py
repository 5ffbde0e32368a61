"""Work in steps: a generator that yields after every partition, so that its driver may let others have their turn.

An event that touches ten thousand partitions takes a good part of a second to think about. Whoever has nothing else to
do runs it to its end (`at_once`); the broker's reactor does some steps in every turn (`common.turns`). Between two
steps the tables are half of what they were and half of what they will be: only the machine that works on them, and
looks that can bear it, may use them then.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


def at_once(work: Steps[T]) -> T:
    """Run *work* to its end; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the generator's result
