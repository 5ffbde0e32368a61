"""Transactions as the log cleaner passes them: which batches are aborted, and which markers may go.

The batches of a log come here in the order of their offsets, each once in a pass (Kafka's CleanedTransactionMetadata).

Invariants:
1. The records of an aborted transaction are discarded; those of others are not.
2. A marker may be discarded only if no batch of its transaction was passed: a reader of the batch needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kclient.wire.batches import BatchInfo
from kclient.wire.records import ABORT, COMMIT


class AbortedTransaction(NamedTuple):
    """An aborted transaction: an entry of the transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    """That of the marker."""
    last_stable_offset: int = -1
    """That of the log, up to the marker."""


class CleanedTransactions:
    """One pass over a log with the *aborted* transactions of it."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._to_come = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        """Those that begin behind the last batch; the next one is the last."""
        self._aborted: dict[int, bool] = {}
        """Whether a batch was passed of each producer's aborted transaction that is open here."""
        self._committed: set[int] = set()
        """Producers with a batch of a transaction that is open here, and not aborted."""

    def discards(self, info: BatchInfo, control_type: int | None = None) -> bool:
        """Pass the next batch; return whether its records, or the marker in it, may go.

        *control_type* is that of a control batch; None for a control batch without its record.
        """
        while self._to_come and self._to_come[-1].first_offset <= info.last_offset:
            self._aborted.setdefault(self._to_come.pop().producer_id, False)
        if info.is_control:
            return self._discards_marker(info.producer_id, control_type)
        if not info.is_transactional:
            return False
        if info.producer_id in self._aborted:
            self._aborted[info.producer_id] = True
            return True
        self._committed.add(info.producer_id)
        return False

    def _discards_marker(self, producer_id: int, control_type: int | None) -> bool:
        if control_type is None:
            return True
        if control_type == ABORT:
            return not self._aborted.pop(producer_id, False)
        if control_type == COMMIT:
            has_batches = producer_id in self._committed
            self._committed.discard(producer_id)
            return not has_batches
        return False
