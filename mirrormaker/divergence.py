"""Where the logs of one partition at two clusters diverge, and which batches only one of them has. Pure.

Theory of operation
===================
`Batch` is equal to another one if base offset, length, CRC and bytes are the same; the leader epoch is not compared.
Its reader has computed the CRC again; a damaged batch is equal to none. If theirs is the damaged one, ours may be the
only good copy: the comparison names it, and the caller must not remove ours.

`DivergenceSearch` finds the end of the common batches with few reads. It assumes that the logs agree below a batch in
which they agree. `Comparison` compares every batch and assumes nothing: a batch is removed only on its word. See
docs/design/mirror-failback.md.

Invariants (tests/property/test_divergence.py cites the numbers):
 1. for logs with a common prefix and no equal batch above it, the search returns the end of that prefix;
 2. the comparison reports each batch of *ours* exactly once, in order, as equal if and only if *theirs* has it;
 3. if all batches of *ours* are equal, `first_lacking` is the first offset of *theirs* in a hole of *ours*, if any;
 4. `first_damaged` is the first damaged batch of *theirs*, also behind the end of *ours*;
 5. none of these depends on how many batches a read returns.

In: batches of both logs   Out: the next offset to read, the batches without an equal one   Owner: the command
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from kclient.wire import batches
from kclient.wire.batches import BatchInfo, Buffer
from kclient.wire.errors import CorruptMessage

_EPOCH_AT, _MAGIC_AT = 12, 16


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One whole batch, as fetched."""

    info: BatchInfo
    """The header; its position is 0."""
    data: memoryview
    is_damaged: bool = False
    """Whether its CRC is not that of its bytes."""

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return self.info.base_offset

    @property
    def next_offset(self) -> int:
        """The first offset after it."""
        return self.info.next_offset

    def equals(self, other: Batch) -> bool:
        """Return whether both are undamaged and the same, apart from the leader epoch."""
        return (
            not self.is_damaged
            and not other.is_damaged
            and self.data[:_EPOCH_AT] == other.data[:_EPOCH_AT]
            and self.data[_MAGIC_AT:] == other.data[_MAGIC_AT:]
        )


def read_batches(data: Buffer) -> list[Batch]:
    """Return the whole batches of *data*; their CRCs are checked. Raise CorruptMessage for an invalid header."""
    view = memoryview(data)
    found = []
    for info in batches.iterate(view):
        try:
            batches.check_crc(view, info)
        except CorruptMessage:
            damaged = True
        else:
            damaged = False
        found.append(Batch(info._replace(position=0), view[info.position : info.end], damaged))
    return found


class DivergenceSearch:
    """A binary search for the first offset of the range [*start*, *end*) that differs.

    *start* is the later log start, *end* the earlier log end. While `probe` is an offset, the caller reads the batch
    that contains it from both logs, or the first one above it, and calls `answer`.
    """

    def __init__(self, start: int, end: int) -> None:
        self.common_until = start
        """The end of the common batches as far as known; of all, when `probe` is None."""
        self._differs_at = max(start, end)
        self.probes = 0
        self.equal_probes = 0
        """How many of the probes found equal batches."""
        self.damaged_at: int | None = None
        """The base offset of the first damaged batch of theirs among the probes; None if there is none."""

    @property
    def probe(self) -> int | None:
        """The next offset to read; None if the search has ended."""
        if self.common_until >= self._differs_at:
            return None
        return (self.common_until + self._differs_at) // 2

    def answer(self, ours: Batch | None, theirs: Batch | None) -> None:
        """Handle what both logs have at `probe`; None where a log has no batch there or above."""
        at = self.probe
        if at is None:
            raise ValueError("the search has ended")
        self.probes += 1
        if theirs is not None and theirs.is_damaged:
            self.damaged_at = (
                theirs.base_offset
                if self.damaged_at is None
                else min(theirs.base_offset, self.damaged_at)
            )
        if ours is not None and theirs is not None and ours.equals(theirs):
            self.equal_probes += 1
            self.common_until = max(ours.next_offset, at + 1)
        else:
            # Below the first difference both logs have the same batches, so none of these begins below it.
            bases = [each.base_offset for each in (ours, theirs) if each is not None]
            self._differs_at = max(min([at, *bases]), self.common_until)


class Side(Enum):
    """A log of the comparison."""

    OURS = "ours"
    """The log that records are to be removed from."""
    THEIRS = "theirs"


class Comparison:
    """Compares two logs batch by batch. Feed the side that `wants` until it is None."""

    def __init__(self) -> None:
        self._waiting: dict[Side, deque[Batch]] = {side: deque() for side in Side}
        self._ended: set[Side] = set()
        self._compared_until = 0
        """The end of the last batch of ours that is decided."""
        self.first_lacking: int | None = None
        """The first offset of theirs in a hole of ours; None if it has none."""
        self.first_damaged: int | None = None
        """The base offset of the first damaged batch of theirs; None if it has none."""

    @property
    def wants(self) -> Side | None:
        """The side to read from next; None if both have ended: all of ours is compared, all of theirs checked."""
        for side in Side:
            if not self._waiting[side] and side not in self._ended:
                return side
        return None

    def feed(self, side: Side, found: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
        """Add the next batches of *side*; yield each batch of ours that is decided, with whether theirs has it."""
        batches_read = list(found)
        self._waiting[side].extend(batches_read)
        if side is Side.THEIRS and self.first_damaged is None:
            self.first_damaged = next((b.base_offset for b in batches_read if b.is_damaged), None)
        return self._decided()

    def end(self, side: Side) -> Iterator[tuple[Batch, bool]]:
        """Record that *side* has no more batches; yield as `feed`."""
        self._ended.add(side)
        return self._decided()

    def _decided(self) -> Iterator[tuple[Batch, bool]]:
        ours, theirs = self._waiting[Side.OURS], self._waiting[Side.THEIRS]
        while ours:
            if theirs:
                if theirs[0].base_offset < ours[0].base_offset:
                    self._skip(theirs.popleft(), ours[0])
                elif theirs[0].base_offset > ours[0].base_offset:
                    yield self._next(), False
                else:
                    mine = self._next()
                    yield mine, mine.equals(theirs.popleft())
            elif Side.THEIRS in self._ended:
                yield self._next(), False
            else:
                return
        if Side.OURS in self._ended:
            theirs.clear()  # nothing is left to compare with; what is read of theirs is checked for damage only

    def _next(self) -> Batch:
        """Take the next batch of ours."""
        mine = self._waiting[Side.OURS].popleft()
        self._compared_until = mine.next_offset
        return mine

    def _skip(self, other: Batch, following: Batch) -> None:
        """Note a batch of theirs that begins below *following*, the next one of ours."""
        is_hole = max(other.base_offset, self._compared_until) < following.base_offset
        if is_hole and other.next_offset > self._compared_until and self.first_lacking is None:
            self.first_lacking = max(other.base_offset, self._compared_until)


class Kind(Enum):
    """What a batch without an equal one is; the manifest has the value."""

    HEAD = "head"
    """The other log starts above it: it has deleted these offsets, or never had them."""
    DIFFERING = "differing"
    """The other log has something else there, and a batch above is equal."""
    TAIL = "tail"
    """It is above the last equal batch."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """What the comparison of one partition found."""

    log_start: int
    log_end: int
    other_start: int
    """The log start of the other side."""
    last_equal_end: int | None
    """The end of the last equal batch; None if no batch is equal."""
    first_unequal: int | None
    """The base offset of the first batch without an equal one that is no head; None if there is none."""
    first_lacking: int | None = None
    """The first offset of the other log in a hole of this one; None if it has none."""
    proven_until: int = 0
    """The offset up to which marks prove that both logs have the same records."""

    @property
    def is_prefix(self) -> bool:
        """Whether the log is a prefix of the other one, as far as that one still has it."""
        if self.first_unequal is not None or self.first_lacking is not None:
            return False
        if self.is_emptied:  # the other one has nothing below its start that this one could lack
            return self.log_end <= max(self.other_start, self.proven_until)
        return not self.is_unknown

    @property
    def is_emptied(self) -> bool:
        """Whether the log has no record any more."""
        return self.log_start == self.log_end > 0

    @property
    def is_unknown(self) -> bool:
        """Whether the logs cannot show where they diverge.

        Either the other one has no batch of the time before. Or this one is empty, and nothing shows whether the
        other one has what it had.
        """
        if self.last_equal_end is not None:
            return False
        if self.is_emptied:
            return self.log_end > self.proven_until
        return self.log_start < self.log_end and self.other_start > self.log_start

    @property
    def kept_until(self) -> int:
        """The offset up to which an offset of this log means the same record in the other one."""
        if self.is_unknown:
            return min(self.log_start, self.other_start)
        return self.log_end if self.first_unequal is None else self.first_unequal


def kind_of(
    base_offset: int, next_offset: int, *, other_start: int, last_equal_end: int | None
) -> Kind:
    """Return the kind of the offsets [*base_offset*, *next_offset*) of ours, which have no equal batch."""
    if next_offset <= other_start:
        return Kind.HEAD
    below = last_equal_end is not None and base_offset < last_equal_end
    return Kind.DIFFERING if below else Kind.TAIL
