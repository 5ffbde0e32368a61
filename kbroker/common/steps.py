"""Work in steps: a generator that yields after every partition, so that its driver can interrupt it.

An event that touches ten thousand partitions takes some tenths of a second. A caller without other work runs it to its
end (`at_once`). The broker's reactor does some steps in every turn (`common.turns`). Between two steps the tables are
partly updated: only the machine that works on them, and look-ups that tolerate this, may use them then.
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
