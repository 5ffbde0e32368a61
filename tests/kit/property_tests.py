"""The share of its examples that a property test tries in this run.

`make check` is short and runs often: a quarter of the examples each time, never the same ones. `make test` tries
all. KBROKER_EXAMPLES is the share in per cent; more than 100 searches longer.
"""

import os

SHARE = int(os.environ.get("KBROKER_EXAMPLES", "100"))


def examples(number: int) -> int:
    """Return how many of *number* examples this run tries.

    >>> examples(100) == SHARE
    True
    """
    return max(1, number * SHARE // 100)


def at_least(number: int) -> int:
    """Return *number* or, in a longer search, more: for a test that asserts that every kind of outcome occurred."""
    return max(number, examples(number))
