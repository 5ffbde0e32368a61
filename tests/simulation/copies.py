"""One replica's log as the observer last read it, and how far it agrees with the committed records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import BatchInfo, check_crc, iterate
from kclient.wire.errors import CorruptMessage
from kclient.wire.records import control_type, decode_columns

Record = tuple[int, int]
"""Leader epoch and CRC of the batch that holds it."""

Content = tuple[int, int | None, list[str]]
"""Of a batch of a transaction: the producer id, the outcome in a marker, and the values of the records."""

GONE: Record = (-1, -1)
"""In place of a record below the log's start."""


class Broken(AssertionError):
    """A predicate does not hold."""


@dataclass(slots=True)
class Copy:
    """The log and what it holds, from offset 0 on."""

    log: UnifiedLog | None = None
    truncations: int = -1
    start: int = 0
    """The first offset that was not deleted."""
    records: list[Record] = field(default_factory=list)
    numbers: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """By the offset of a batch of an idempotent producer: its id, epoch, sequence, and how many records it has."""
    transactional: dict[int, Content] = field(default_factory=dict)
    """By the offset of a batch of a transaction."""
    agreed: int = 0
    """Below, it holds what the ledger holds."""
    reconciled: int = -1
    """The leader epoch of the last accepted loss that this replica has reconciled with."""
    recovery_point: int = 0
    synced: int = 0
    """Below, the ledger was found synced on this replica's disk."""
    seen: tuple[Any, ...] = ()
    leader_state: Any = None
    high_watermark: int = 0

    def look(self, log: UnifiedLog, truncations: int) -> None:
        """Bring it up to the end of *log*."""
        if self.log is not log or self.truncations != truncations:
            self.records.clear()
            self.numbers.clear()
            self.transactional.clear()
            self.log, self.truncations, self.agreed, self.synced = log, truncations, 0, 0
        self.start = log.log_start_offset
        records = self.records
        if len(records) < self.start:
            records += [GONE] * (self.start - len(records))
        while len(records) < log.log_end_offset:
            slices = log.read(len(records), 1 << 20).slices
            data = b"".join(part.read() for part in slices)
            for part in slices:
                part.release()
            if not data:
                raise Broken(
                    f"{log.directory} ends at {log.log_end_offset}, and {len(records)} is not there"
                )
            for info in iterate(data):
                if info.base_offset != len(records) and info.base_offset >= self.start:
                    raise Broken(
                        f"{log.directory}: a batch at {info.base_offset}, not {len(records)}"
                    )
                if not crc_is_right(data, info):
                    raise Broken(
                        f"ValidBatches: {log.directory}: the CRC of the batch at {info.base_offset} is wrong"
                    )
                count = info.next_offset - len(records)
                records += [(info.leader_epoch, info.crc)] * count
                if info.is_transactional:
                    self.transactional[info.base_offset] = content_of(data, info)
                if info.producer_id >= 0 and not info.is_control:
                    self.numbers[info.base_offset] = (
                        info.producer_id, info.producer_epoch, info.base_sequence,
                        info.last_offset_delta + 1,
                    )  # fmt: skip

    def compare(self, ledger: list[Record]) -> int:
        """Return below which offset it holds what *ledger* holds; what was deleted was the same, on either side.

        The ledger has `GONE` below the start of the leader that it was read from, after an accepted loss.
        """
        at, records, start = self.agreed, self.records, self.start
        end = min(len(records), len(ledger))
        if at < start:
            at = min(start, end)
        while at < end and ledger[at] in (records[at], GONE):
            at += 1
        self.agreed = at
        return at


def content_of(data: bytes, info: BatchInfo) -> Content:
    """Return what a batch of a transaction has."""
    columns = decode_columns(data, info)
    if info.is_control:
        return info.producer_id, control_type(columns.keys[0]), []
    return info.producer_id, None, [value.decode() for value in columns.values if value is not None]


def crc_is_right(data: bytes, info: BatchInfo) -> bool:
    """Return whether a batch is what its producer sent."""
    try:
        check_crc(data, info)
    except CorruptMessage:
        return False
    return True


def difference(copy: Copy | None, ledger: list[Record]) -> str:
    """Describe where *copy* and *ledger* differ."""
    records = copy.records if copy is not None else []
    for offset in range(copy.start if copy is not None else 0, max(len(records), len(ledger))):
        ours = records[offset] if offset < len(records) else None
        theirs = ledger[offset] if offset < len(ledger) else None
        if ours != theirs:
            return (
                f"at {offset} it has {_shown(ours)}, committed is {_shown(theirs)}"
                f" (it ends at {len(records)}, the ledger at {len(ledger)})"
            )
    return "no difference"


def _shown(record: Record | None) -> str:
    return "nothing" if record is None else f"{record[1]:08x} of epoch {record[0]}"
