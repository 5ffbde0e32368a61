"""Decides which batches of a fetch are invisible: control batches and batches of aborted transactions (KIP-98).

A Fetch response with isolation level read_committed lists the aborted transactions as (producer id, first offset). A
producer's batches are invisible from that offset up to the abort marker of the transaction. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop

from kclient.wire.batches import BatchInfo
from kclient.wire.fetch import AbortedTransaction
from kclient.wire.records import ABORT, control_type, decode_columns


class BatchVisibility:
    """Decides for the batches of one response, in order."""

    def __init__(self, aborted: Iterable[AbortedTransaction] | None) -> None:
        self._to_come = [(each.first_offset, each.producer_id) for each in aborted or ()]
        heapify(self._to_come)
        self._aborting: set[int] = set()

    def is_hidden(self, info: BatchInfo, data: memoryview) -> bool:
        """Return whether the batch at info.position of *data* is invisible."""
        while self._to_come and self._to_come[0][0] <= info.last_offset:
            self._aborting.add(heappop(self._to_come)[1])
        if info.is_control:
            if info.producer_id in self._aborting and _is_abort(info, data):
                self._aborting.discard(info.producer_id)
            return True
        return info.is_transactional and info.producer_id in self._aborting


def _is_abort(info: BatchInfo, data: memoryview) -> bool:
    keys = decode_columns(data, info).keys
    return bool(keys) and control_type(keys[0]) == ABORT  # compaction may have removed the record
