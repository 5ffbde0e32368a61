"""Transactional batches and markers, and a model of the transactions of a log.

The model decodes every batch. It knows nothing of snapshots, indexes, truncations or restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kclient.consumer.aborted import BatchVisibility
from kclient.wire.batches import CONTROL, TRANSACTIONAL, iterate, parse
from kclient.wire.fetch import AbortedTransaction
from kclient.wire.records import (
    ABORT,
    COMMIT,
    Record,
    decode_batch,
    encode_batch,
    encode_transaction_marker,
)


def transactional(
    producer_id: int,
    value: bytes = b"v",
    count: int = 1,
    *,
    base_offset: int = 0,
    epoch: int = 0,
    sequence: int = 0,
    leader_epoch: int = 0,
    is_transactional: bool = True,
) -> bytes:
    """One batch of a producer, in a transaction or not."""
    return encode_batch(
        [Record(base_offset + n, 1000, None, value, ()) for n in range(count)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if is_transactional else 0,
    )


def marker(
    producer_id: int,
    kind: int = COMMIT,
    *,
    base_offset: int = 0,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: int = 0,
) -> bytes:
    """The control batch that ends a transaction."""
    return encode_transaction_marker(
        kind,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=1000,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def other_control(producer_id: int, key: bytes, *, base_offset: int = 0, epoch: int = 0) -> bytes:
    """A control batch that is no marker, by its *key*."""
    return encode_batch(
        [Record(base_offset, 1000, key, b"", ())],
        base_offset=base_offset,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        attributes=CONTROL | TRANSACTIONAL,
    )


class Ended(NamedTuple):
    """A transaction that ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int


@dataclass
class Decoded:
    """The transactions of a log."""

    ongoing: dict[int, int] = field(default_factory=dict)
    """The first offset of each open transaction, by producer id."""
    ended: list[Ended] = field(default_factory=list)
    records: list[tuple[int, bytes | None, tuple[int, int] | None]] = field(default_factory=list)
    """Offset, value and transaction (producer id, first offset) of each record of an application."""

    def last_stable_offset(self, high_watermark: int, markers_from: int = 0) -> int:
        """Return it; transactions with a marker below *markers_from* count as replicated."""
        unstable = [*self.ongoing.values()]
        unstable += [
            each.first_offset
            for each in self.ended
            if each.last_offset >= max(high_watermark, markers_from)
        ]
        return min([high_watermark, *unstable])

    def committed(self, start: int, end: int) -> list[tuple[int, bytes | None]]:
        """Return the records from *start* up to *end* that a consumer with read_committed has to get."""
        hidden = {(each.producer_id, each.first_offset) for each in self.ended if each.is_aborted}
        return [
            (offset, value)
            for offset, value, transaction in self.records
            if start <= offset < end and transaction not in hidden
        ]


def decoded(batches: Mapping[int, bytes]) -> Decoded:
    """Decode the *batches* of a log, by base offset."""
    log = Decoded()
    for base, data in sorted(batches.items()):
        info = parse(data)._replace(base_offset=base)
        pid = info.producer_id
        rows = decode_batch(data, info)
        if not info.is_control:
            if info.is_transactional:
                log.ongoing.setdefault(pid, base)
            transaction = (pid, log.ongoing[pid]) if info.is_transactional else None
            log.records += [(row.offset, row.value, transaction) for row in rows]
            continue
        kind = int.from_bytes((rows[0].key or b"")[2:4]) if rows else -1
        if len((rows[0].key or b"") if rows else b"") < 4 or kind not in (ABORT, COMMIT):
            continue
        first = log.ongoing.pop(pid, None)
        if first is not None:
            stable = min(log.ongoing.values(), default=base + 1)
            log.ended.append(Ended(pid, first, base, kind == ABORT, stable))
    return log


def visible(
    data: bytes, aborted: Iterable[AbortedTransaction], offset: int
) -> tuple[list[tuple[int, bytes | None]], int]:
    """Return what a consumer finds in a response for *offset*, and the offset of its next fetch."""
    visibility = BatchVisibility(aborted)
    view = memoryview(data)
    found: list[tuple[int, bytes | None]] = []
    for info in iterate(data):
        if not visibility.is_hidden(info, view):
            found += [(r.offset, r.value) for r in decode_batch(data, info) if r.offset >= offset]
        offset = info.next_offset
    return found, offset
