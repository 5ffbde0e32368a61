"""Which records of a batch stay in a cleaned log, and the batch with only those.

Theory of operation
===================
A batch above the end of the offset map stays as it is. Below, the records of an aborted transaction go, and another
record stays if the map has no later offset of its key. A tombstone that is the last record of its key stays until the
delete horizon of its batch (KIP-534). The first round that keeps it sets the horizon to now + delete.retention.ms, in
attribute bit 6 and the base timestamp. A horizon beyond the largest int64 is that number: the tombstone stays for ever.
A record without a key goes.

Records that stay are copied as bytes. Base offset and base timestamp stay, so their deltas hold; only a new horizon
changes the base timestamp, and the timestamp deltas are encoded again.

A marker stays as long as a batch of its transaction does, and then until a delete horizon, as a tombstone.

Invariants:
1. A record that stays keeps its offset, timestamp, key, value and headers.
2. The last batch of an active producer stays, and the batch at the end of the round, if need be without records. They
   carry the last sequence, and the end of the log.
3. Base offset, last offset delta, leader epoch, producer, sequence, codec and timestamp type of a batch stay.
4. A batch that came out comes out unchanged at the same time, until something supersedes it.

Pure. Docs: docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kbroker.log.core.cleaned_transactions import CleanedTransactions
from kbroker.log.core.offset_map import OffsetMap
from kclient.wire.batches import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    IN_TRANSACTION,
    NO_TIMESTAMP,
    BatchInfo,
    Buffer,
    build,
)
from kclient.wire.compression import compress, decompress
from kclient.wire.errors import InvalidRecord
from kclient.wire.record_cursor import RecordCursor
from kclient.wire.record_writer import varint

_INT64_MAX: Final = 2**63 - 1


class LastBatch(NamedTuple):
    """The end of an active producer's records in the log."""

    last_offset: int | None
    """Of its last batch with records; None if only a marker is known."""
    epoch: int


class CleaningRound(NamedTuple):
    """What a round knows beside the batches."""

    map_end: int
    """The offset behind the last one in the map: nothing is removed from there on."""
    end_offset: int
    """The first uncleanable offset: the batch that ends there stays."""
    now_ms: int
    delete_retention_ms: int
    last_batches: Mapping[int, LastBatch]
    """The last batch of each active producer."""


class KeptRecord(NamedTuple):
    """A record that stays: its place in the batch's decompressed records."""

    start: int
    behind_timestamp: int
    """Where the fields behind the timestamp delta begin."""
    end: int
    timestamp_delta: int
    has_value: bool


class RecordFilter:
    """Filters the batches of one log, all of them and in order, by *offset_map* and *transactions*."""

    def __init__(
        self,
        offset_map: OffsetMap,
        round_: CleaningRound,
        transactions: CleanedTransactions,
    ) -> None:
        self._map = offset_map
        self._round = round_
        self._transactions = transactions
        self.records_read = self.records_kept = 0

    def filter(self, buf: Buffer, info: BatchInfo) -> Buffer | None:
        """Return the checked batch *info* of *buf* without the records that go; None if the batch goes.

        Raise InvalidRecord for records that do not add up, CorruptMessage for a transaction index that contradicts a
        marker, and what `decompress` raises.
        """
        self.records_read += info.record_count
        if not info.attributes & IN_TRANSACTION:
            return self._filtered(buf, info, is_discarded=False)
        transactions = self._transactions
        if info.is_control:
            may_go = transactions.may_discard_marker(buf, info)
            return self._filtered(buf, info, is_discarded=may_go)
        kept = self._filtered(buf, info, is_discarded=transactions.is_aborted(info))
        if kept is not None:
            transactions.batch_stays(info)
        return kept

    def _filtered(self, buf: Buffer, info: BatchInfo, *, is_discarded: bool) -> Buffer | None:
        """Return what stays of a batch; *is_discarded*: its records are aborted, or its marker may go."""
        whole = memoryview(buf)[info.position : info.end]
        count = info.record_count
        if info.base_offset >= self._round.map_end:
            self.records_kept += count
            return whole
        raw = bytes(decompress(info.codec, whole[HEADER_SIZE:])) if count else b""
        horizon = info.base_timestamp if info.has_delete_horizon else None
        is_over = horizon is not None and horizon <= self._round.now_ms
        goes_whole = is_discarded and (is_over or not info.is_control)
        kept = [] if goes_whole else self._kept(raw, info, is_over)
        self.records_kept += len(kept)
        if not kept:
            return _without_records(info) if self._stays_empty(info) else None
        if horizon is None and (is_discarded or not all(each.has_value for each in kept)):
            return self._with_horizon(info, raw, kept)
        if len(kept) == count:
            return whole
        payload = b"".join([raw[each.start : each.end] for each in kept])
        return _rebuilt(info, payload, kept, info.base_timestamp, info.attributes)

    def _kept(self, raw: bytes, info: BatchInfo, is_over: bool) -> list[KeptRecord]:
        """Return the records of *raw* that stay: all of a control batch, else by key."""
        base_offset = info.base_offset
        above = 0 if info.is_control else self._round.map_end - base_offset
        last_delta = -1
        kept = []
        cursor = RecordCursor(raw)
        for _ in range(info.record_count):
            cursor.next()
            delta = cursor.offset_delta
            if delta <= last_delta:
                raise InvalidRecord(f"offset delta {delta} does not follow {last_delta}")
            last_delta = delta
            has_value = cursor.value_size >= 0
            if delta < above:
                if cursor.key_size < 0 or (is_over and not has_value):
                    continue
                key = raw[cursor.key_start : cursor.key_start + cursor.key_size]
                if self._map.get(key) > base_offset + delta:
                    continue
            kept.append(
                KeptRecord(
                    cursor.start,
                    cursor.behind_timestamp,
                    cursor.end,
                    cursor.timestamp_delta,
                    has_value,
                )
            )
        if not cursor.at_end():
            raise InvalidRecord(f"bytes follow the last of {info.record_count} records")
        return kept

    def _stays_empty(self, info: BatchInfo) -> bool:
        if info.next_offset == self._round.end_offset:
            return True
        last = self._round.last_batches.get(info.producer_id) if info.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset is None:
            return info.is_control and info.producer_epoch == last.epoch
        return info.last_offset == last.last_offset

    def _with_horizon(self, info: BatchInfo, raw: bytes, kept: Sequence[KeptRecord]) -> bytes:
        # delete.retention.ms may be the largest int64: for ever.
        horizon = min(self._round.now_ms + self._round.delete_retention_ms, _INT64_MAX)
        shift = info.base_timestamp - horizon
        parts: list[bytes] = []
        for each in kept:
            delta = each.timestamp_delta + shift
            if info.log_append_time:
                delta = info.max_timestamp - horizon
            head = b"\0" + varint(delta)
            parts += (
                varint(len(head) + each.end - each.behind_timestamp),
                head,
                raw[each.behind_timestamp : each.end],
            )
        return _rebuilt(info, b"".join(parts), kept, horizon, info.attributes | DELETE_HORIZON)


def _rebuilt(
    info: BatchInfo,
    payload: bytes,
    kept: Sequence[KeptRecord],
    base_timestamp: int,
    attributes: int,
) -> bytes:
    """Return the batch with the records *kept*, which *payload* has, relative to *base_timestamp*."""
    if info.log_append_time:
        max_timestamp = info.max_timestamp
    else:
        max_timestamp = info.base_timestamp + max(each.timestamp_delta for each in kept)
    return build(
        compress(info.codec, payload),
        record_count=len(kept),
        last_offset_delta=info.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        attributes=attributes,
        base_offset=info.base_offset,
        leader_epoch=info.leader_epoch,
        producer_id=info.producer_id,
        producer_epoch=info.producer_epoch,
        base_sequence=info.base_sequence,
    )


def _without_records(info: BatchInfo) -> bytes:
    """Return the header alone: the end of the batch, and its producer's last sequence."""
    return build(
        b"",
        record_count=0,
        last_offset_delta=info.last_offset_delta,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=info.max_timestamp,
        attributes=info.attributes & ~(CODEC_MASK | DELETE_HORIZON),
        base_offset=info.base_offset,
        leader_epoch=info.leader_epoch,
        producer_id=info.producer_id,
        producer_epoch=info.producer_epoch,
        base_sequence=info.base_sequence,
    )
