"""Committed batches of idempotent producers: once each, without a gap, and none of an epoch that is over."""

from __future__ import annotations

from uuid import UUID

from tests.simulation.copies import Broken

Where = tuple[UUID, int]
Numbers = tuple[int, int, int]
"""Producer id, producer epoch and base sequence."""


class Sequences:
    """What each producer has committed to each partition."""

    def __init__(self) -> None:
        self._first: dict[tuple[Where, Numbers], int] = {}
        """Where a batch was committed first."""
        self._last: dict[tuple[Where, int], tuple[int, int]] = {}
        """By producer: the epoch and the last sequence of its last batch."""

    def committed(
        self, name: str, where: Where, numbers: Numbers, offsets: range, *, start: int, known: bool
    ) -> None:
        """Take a batch that is committed at *offsets*, in a log that begins at *start*.

        Every leader must have *known* what its producer wrote before.
        """
        producer, epoch, sequence = numbers
        first = self._first.setdefault((where, numbers), offsets.start)
        if first != offsets.start and first >= start:
            raise Broken(
                f"NoDuplicates: {name}: producer {producer}'s batch {sequence} is at {first} and at"
                f" {offsets.start}"
            )
        before = self._last.get((where, producer))
        self._last[where, producer] = (epoch, sequence + len(offsets) - 1)
        if before is None or not known:
            return
        follows = (epoch, sequence) == (before[0], before[1] + 1)
        begins = epoch > before[0] and sequence == 0
        if not (follows or begins):
            raise Broken(
                f"Sequences: {name}: producer {producer}'s batch {sequence} of epoch {epoch} is at"
                f" {offsets.start}, behind {before[1]} of epoch {before[0]}"
            )

    def cut(self, where: Where, end: int) -> None:
        """Forget what was committed at *end* or behind it: an accepted loss."""
        for key in [k for k, at in self._first.items() if k[0] == where and at >= end]:
            del self._first[key]
        for each in [k for k in self._last if k[0] == where]:
            del self._last[each]
