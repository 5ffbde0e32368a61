"""Which batches of a fetch nobody shall see: control batches, and those of aborted transactions (KIP-98).

A Fetch answer under read_committed lists the aborted transactions that reach into it, as (producer id, first offset).
A producer's batches are dropped from there on until the abort marker that ends its transaction. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop
from typing import Protocol

from kclient.wire.batches import BatchInfo
from kclient.wire.errors import InvalidRecord
from kclient.wire.records import ABORT, control_type, decode_columns


class AbortedTransaction(Protocol):
    """An aborted transaction as a Fetch answer names it."""

    @property
    def producer_id(self) -> int:
        """Whose it was."""

    @property
    def first_offset(self) -> int:
        """Where it began in this partition."""


class BatchVisibility:
    """Judges the batches of one answer, in their order."""

    def __init__(self, aborted: Iterable[AbortedTransaction] | None) -> None:
        self._to_come = [(each.first_offset, each.producer_id) for each in aborted or ()]
        heapify(self._to_come)
        self._aborting: set[int] = set()

    def is_hidden(self, info: BatchInfo, data: memoryview) -> bool:
        """Tell whether the batch at info.position of *data* is to be hidden."""
        while self._to_come and self._to_come[0][0] <= info.last_offset:
            self._aborting.add(heappop(self._to_come)[1])
        if info.is_control:
            if info.producer_id in self._aborting and _is_abort(info, data):
                self._aborting.discard(info.producer_id)
            return True
        return info.is_transactional and info.producer_id in self._aborting


def _is_abort(info: BatchInfo, data: memoryview) -> bool:
    keys = decode_columns(data, info).keys
    if not keys:
        raise InvalidRecord(f"the control batch at offset {info.base_offset} has no record")
    return control_type(keys[0]) == ABORT
