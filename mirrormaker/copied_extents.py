"""The extents that one mirror has copied: from acknowledged appends to evidence. Pure.

An extent grows with each append that follows it, and ends where a batch begins in another window. It also ends where an
append does not follow it (a rewind, an append with an unknown outcome). Its last end is that of the copy of the
partition. What no acknowledgement proves is in no extent. docs/design/mirror-evidence.md has the reasons.

Invariants (tests cite the numbers):
 1. each batch of an acknowledged append is in exactly one extent of its partition;
 2. an extent has no batch that was not acknowledged;
 3. an extent has no batches of two windows.

In: acknowledged appends   Out: extents to write   Owner: `mirrormaker.evidence`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kclient.mirror_evidence import MASK, WINDOW, CopiedTopic, Extent
from kclient.types import TopicPartition


class Place(NamedTuple):
    """A target partition, and the topics of the copy."""

    tp: TopicPartition
    topic: CopiedTopic


class Copied(NamedTuple):
    """An extent of a place."""

    place: Place
    extent: Extent


@dataclass(slots=True)
class _Open:
    first: int
    until: int
    window: int
    """The window in which its first batch begins."""
    batches: int = 0
    read: int = 0
    written: int = 0
    is_returned: bool = False
    """Whether `CopiedExtents.due` has returned it as it is."""

    def extent(self) -> Extent:
        return Extent(self.first, self.until, self.batches, self.read & MASK, self.written & MASK)


class CopiedExtents:
    """Extents that wait to be written, at most *most* that grow no more."""

    def __init__(self, most: int, window: int = WINDOW) -> None:
        self._window = window
        self._open: dict[Place, _Open] = {}
        self._closed: deque[Copied] = deque(maxlen=most)
        self.dropped = 0
        """Extents that were dropped because too many waited: their offsets have no evidence."""

    def appended(
        self, place: Place, follows: int, batches: Sequence[tuple[int, int, int]], until: int
    ) -> None:
        """Add an acknowledged append at log end *follows*, up to *until*.

        *batches*: the base offset, the header's hash as it was read, and the hash as it was written.
        """
        one = self._open.get(place)
        if one is not None and one.until != follows:
            self._close(place)
            one = None
        first = follows
        for base_offset, read, written in batches:
            window = base_offset // self._window
            if one is not None and one.window != window:
                one.until = first = base_offset
                self._close(place)
                one = None
            if one is None:
                one = self._open[place] = _Open(first, first, window)
            one.batches += 1
            one.read += read
            one.written += written
            one.is_returned = False
        if one is not None:
            one.until = until

    def removed(self, tp: TopicPartition) -> None:
        """Close the extents of the target partition *tp*: this mirror no longer copies it."""
        for place in [place for place in self._open if place.tp == tp]:
            self._close(place)

    def due(self) -> list[Copied]:
        """Return every extent that has grown since it was last returned."""
        found = list(self._closed)
        self._closed.clear()
        for place, one in self._open.items():
            if not one.is_returned:
                one.is_returned = True
                found.append(Copied(place, one.extent()))
        return found

    def not_written(self, extents: Iterable[Copied]) -> None:
        """Take back *extents* of `due` that could not be written."""
        later = list(self._closed)
        self._closed.clear()
        for each in (*extents, *later):
            self._wait(each)

    def _close(self, place: Place) -> None:
        one = self._open.pop(place)
        if not one.is_returned:
            self._wait(Copied(place, one.extent()))

    def _wait(self, each: Copied) -> None:
        self.dropped += len(self._closed) == self._closed.maxlen
        self._closed.append(each)
