"""Records that both logs have, and that a consumer with isolation.level=read_committed gets from one log only.

A Fetch response names the aborted transactions, from the transaction index of the leader. The records of two logs may
be equal while their indexes differ: after damage of the index of one broker, for example. Such records are not CORRUPT,
and a copy does not repair them.

In: equal records, with whether either log calls them aborted.  Out: runs.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

ABORTED_AT_SOURCE = "aborted at the source"
ABORTED_AT_TARGET = "aborted at the target"
OPEN_AT_SOURCE = "in an open transaction at the source"
OPEN_AT_TARGET = "in an open transaction at the target"


class Run(NamedTuple):
    """Neighbours that one log calls aborted and the other does not: the numbers of the first and the last record."""

    first: int
    last: int
    reason: str

    @property
    def records(self) -> int:
        """How many records it has."""
        return self.last - self.first + 1


def runs(differing: Iterable[tuple[int, bool]]) -> Iterator[Run]:
    """Join (number of a record, whether it is aborted at the source) into runs; the numbers ascend."""
    run: Run | None = None
    for number, at_source in differing:
        reason = ABORTED_AT_SOURCE if at_source else ABORTED_AT_TARGET
        if run is not None and (run.last + 1, run.reason) == (number, reason):
            run = run._replace(last=number)
            continue
        if run is not None:
            yield run
        run = Run(number, number, reason)
    if run is not None:
        yield run
