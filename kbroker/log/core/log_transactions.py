"""The transactions of one log: which are open, and which have ended lately (KIP-98).

Theory of operation
===================
The batches of the log come here in the order of their offsets. A transactional batch of a producer without an open
transaction begins one. A marker (a control batch with ABORT or COMMIT) ends it. Nothing else has an effect, and it does
not matter where a batch comes from: consumers decode a log by the same rule.

Transactions that ended are remembered for two reasons. Until its marker is replicated, a transaction holds the last
stable offset back. And a truncation that cuts a marker opens the transaction again. The oldest are forgotten when there
are more than `REMEMBERED`, once their markers are below the high watermark. So are all that ended before the log was
opened: `known_from` is the offset from which on all markers are remembered.

Invariants:
1. The open transactions are those that the rule gives for the batches up to the log end.
2. A producer has one open transaction at most; `ongoing` is in the order of the first offsets.
3. The first unstable offset does not fall while the high watermark and the log do not.

In: transactional and control batches, truncations, the high watermark   Out: transactions that ended
Owner: the thread that owns the log. Pure. Docs: docs/design/transactions.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

REMEMBERED: Final = 1000
"""Ended transactions that are remembered although their markers are replicated, for truncations."""


class OngoingTransaction(NamedTuple):
    """An open transaction of a producer."""

    first_offset: int
    producer_epoch: int


class CompletedTransaction(NamedTuple):
    """A transaction that ended in the log."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    """The offset of the marker."""
    is_aborted: bool


class LogTransactions:
    """The transactions of a log with the *ongoing* ones, of which all markers from *known_from* on come here."""

    __slots__ = ("_completed", "_high_watermark", "_ongoing", "known_from")

    def __init__(
        self, ongoing: Mapping[int, OngoingTransaction] | None = None, known_from: int = 0
    ) -> None:
        self._ongoing = _in_order(ongoing or {})
        self._completed: deque[CompletedTransaction] = deque()
        self._high_watermark = 0
        self.known_from = known_from
        """Every transaction with a marker at or above this offset is open or remembered."""

    @property
    def ongoing(self) -> Mapping[int, OngoingTransaction]:
        """The open transactions by producer id, in the order of their first offsets."""
        return self._ongoing

    # Batches

    def transactional_batch(self, producer_id: int, producer_epoch: int, base_offset: int) -> None:
        """Handle a transactional batch that is no control batch."""
        if producer_id not in self._ongoing:
            self._ongoing[producer_id] = OngoingTransaction(base_offset, producer_epoch)

    def marker(
        self, producer_id: int, offset: int, *, is_aborted: bool
    ) -> CompletedTransaction | None:
        """Handle a marker; return the transaction that it ends, None if none is open."""
        ongoing = self._ongoing.pop(producer_id, None)
        if ongoing is None:
            return None
        completed = CompletedTransaction(
            producer_id, ongoing.producer_epoch, ongoing.first_offset, offset, is_aborted
        )
        self._completed.append(completed)
        if len(self._completed) > REMEMBERED:
            self._forget()
        return completed

    def last_stable_offset_behind(self, completed: CompletedTransaction) -> int:
        """Return the last stable offset of a log in which all is replicated up to the marker of *completed*."""
        for ongoing in self._ongoing.values():
            return ongoing.first_offset
        return completed.last_offset + 1

    # The last stable offset

    def replicated(self, high_watermark: int) -> None:
        """Handle a high watermark: transactions with a marker below may be forgotten."""
        self._high_watermark = max(self._high_watermark, high_watermark)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of a transaction that is open, or has its marker at or above *high_watermark*."""
        first = None
        for ongoing in self._ongoing.values():
            first = ongoing.first_offset
            break
        for completed in reversed(self._completed):
            if completed.last_offset < high_watermark:
                break
            if first is None or completed.first_offset < first:
                first = completed.first_offset
        return first

    # Truncation

    def truncate_from_end(self, end_offset: int) -> None:
        """Handle a truncation to *end_offset*, which is not below `known_from`."""
        self._high_watermark = min(self._high_watermark, end_offset)
        kept = {
            producer_id: ongoing
            for producer_id, ongoing in self._ongoing.items()
            if ongoing.first_offset < end_offset
        }
        while self._completed and self._completed[-1].last_offset >= end_offset:
            cut = self._completed.pop()
            if cut.first_offset < end_offset:
                kept[cut.producer_id] = OngoingTransaction(cut.first_offset, cut.producer_epoch)
        self._ongoing = _in_order(kept)

    def _forget(self) -> None:
        completed = self._completed
        while len(completed) > REMEMBERED and completed[0].last_offset < self._high_watermark:
            self.known_from = completed.popleft().last_offset + 1


def _in_order(ongoing: Mapping[int, OngoingTransaction]) -> dict[int, OngoingTransaction]:
    rows: Iterable[tuple[int, OngoingTransaction]] = ongoing.items()
    return dict(sorted(rows, key=lambda row: row[1].first_offset))
