"""Transactions as the log cleaner passes them: which batches are aborted, and which markers may go.

Theory of operation
===================
The batches of a log come here in the order of their offsets, each once in a pass (Kafka's CleanedTransactionMetadata).
The transaction index gives the aborted transactions. It is read as far as the pass has got. The last stable offset in
an entry is not above the first offset of any later entry. So memory holds the transactions that are open at one offset.

The index decides which records are removed for ever, and has no checksum. So each marker is compared with it: one that
contradicts the index raises CorruptMessage.

Invariants:
1. The records of an aborted transaction are discarded; those of others are not.
2. A marker may be discarded only if no batch of its transaction stays, not even one without records. A reader of such a
   batch needs the marker, and recovery would find an open transaction.
3. An entry of the index is kept if its marker was passed and a batch of its transaction stays. So an entry has a
   marker.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from kclient.wire.batches import LARGEST_OFFSET, BatchInfo, Buffer
from kclient.wire.errors import CorruptMessage
from kclient.wire.records import transaction_marker


class AbortedTransaction(NamedTuple):
    """An aborted transaction: an entry of the transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    """That of the marker."""
    last_stable_offset: int = -1
    """That of the log, up to the marker."""


class CleanedTransactions:
    """One pass over a log, or over a part of it, with the *aborted* transactions that reach into it.

    *aborted* is in the order of the markers, and is read lazily.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._index = iter(aborted)
        self._begun_below = -1
        """Every entry that is not read yet has its first offset at or above this."""
        self._to_come: list[tuple[int, AbortedTransaction]] = []
        """A heap, by first offset, of entries that begin behind the last batch."""
        self._aborted: dict[int, AbortedTransaction] = {}
        """The aborted transactions that are open here, by producer id."""
        self._passed: dict[int, bool] = {}
        """The open transactions of which a batch was passed, by producer id: whether a batch stays."""
        self.kept: list[AbortedTransaction] = []
        """The entries that are kept, of the markers that were passed; the caller may clear it."""

    def is_aborted(self, info: BatchInfo) -> bool:
        """Pass a batch that is no control batch; return whether its records are aborted."""
        if not info.is_transactional or info.producer_id < 0:
            return False
        self._begin_up_to(info.last_offset)
        self._passed.setdefault(info.producer_id, False)
        return info.producer_id in self._aborted

    def batch_stays(self, info: BatchInfo) -> None:
        """Record that the batch that was passed last stays, if need be without records."""
        if info.producer_id in self._passed:
            self._passed[info.producer_id] = True

    def may_discard_marker(self, buf: Buffer, info: BatchInfo) -> bool:
        """Pass the control batch *info* of *buf*; return whether it may go. Raise CorruptMessage."""
        marker = transaction_marker(buf, info)
        if marker is None or info.producer_id < 0:
            # Without a record: an earlier round removed the marker. Other control batches stay.
            return not info.record_count
        self._begin_up_to(info.last_offset)
        entry = self._aborted.pop(info.producer_id, None)
        is_known = info.producer_id in self._passed
        has_batches = self._passed.pop(info.producer_id, False)
        if marker.is_aborted:
            is_right = not is_known if entry is None else entry.last_offset == info.last_offset
        else:
            is_right = entry is None
        if not is_right:
            raise CorruptMessage(
                f"the transaction index contradicts the marker at offset {info.last_offset} of producer"
                f" {info.producer_id}: it has {entry or 'no aborted transaction'}"
            )
        if entry is not None and has_batches:
            self.kept.append(entry)
        return not has_batches

    def _begin_up_to(self, offset: int) -> None:
        """Open the aborted transactions that begin up to *offset*."""
        while self._begun_below <= offset:
            entry = next(self._index, None)
            if entry is None:
                self._begun_below = LARGEST_OFFSET + 1
                break
            self._begun_below = entry.last_stable_offset
            heappush(self._to_come, (entry.first_offset, entry))
        while self._to_come and self._to_come[0][0] <= offset:
            entry = heappop(self._to_come)[1]
            self._aborted[entry.producer_id] = entry
