"""The share of its examples that a property test tries in this run.

`make check` is short and runs often: a tenth of the examples each time, never the same ones. `make test` tries a
quarter, and `make test EXAMPLES=100` all. KBROKER_EXAMPLES is the share in per cent; more than 100 searches longer.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

T = TypeVar("T")

SHARE = int(os.environ.get("KBROKER_EXAMPLES", "100"))


def examples(number: int) -> int:
    """Return how many of *number* examples this run tries.

    >>> examples(100) == SHARE
    True
    """
    return max(1, number * SHARE // 100)


def at_least(fewest: int, of: int | None = None) -> int:
    """Return how many of *of* examples this run tries, but *fewest* in a short run; *of* is *fewest* if not given.

    For a test that asserts that every kind of outcome occurred.
    """
    return max(fewest, examples(fewest if of is None else of))


def cases(every: Sequence[T]) -> Sequence[T]:
    """Return the cases of a long list of parameters that this run tries: all, or in a short run others each day.

    >>> len(cases(range(100))) >= min(SHARE, 50)
    True
    """
    step = 1 if SHARE >= 50 else 100 // SHARE
    return every[datetime.now(UTC).toordinal() % step :: step]
