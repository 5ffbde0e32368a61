"""Snapshots of the producers of a log: ``00000000000000000042.snapshot`` is what was known at 42.

Theory of operation
===================
The log itself has the producer of each batch, so a snapshot is a short cut. The newest good one, and the headers of the
batches behind it, give what was known. One is written at every roll, with the new segment's base offset for its name,
and at a clean shutdown. It goes when its segment goes. One that cannot be read, or is of offsets the log does not have,
is removed and an older one is taken.

The format is Kafka's, version 1: version i16, CRC-32C of the rest u32, then an array of entries. An entry has producer
id i64, epoch i16, last sequence i32, last offset i64 and last offset delta i32. Then follow timestamp i64, coordinator
epoch i32 and the first offset of the open transaction i64. Kafka writes one entry per producer and knows one batch
after a restart. We write one per batch, oldest first. Kafka's reader keeps the last one. Ours keeps them all, and so
duplicates are recognised after a restart as before. The open transaction is in the last row of its producer. A producer
that only a mirror copied has a row without a batch (last offset -1). Ours reads the transaction from it, and no state
of the producer.

The newest entry's timestamp is when the producer wrote, by the broker's clock: expiry goes by it.

Owner: the thread that owns the log; `ProducerSnapshots.load` may be slow.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kbroker.log.core.log_transactions import OngoingTransaction
from kbroker.log.core.producer_state import (
    LAST_SEQUENCE,
    RECOGNISED,
    BatchMetadata,
    ProducerStateEntry,
    ProducerStates,
)
from kbroker.log.disk import Disk, read_file, replace_file, unlink_if_there
from kclient.wire.crc import crc32c
from kclient.wire.errors import CorruptMessage

SNAPSHOT_SUFFIX: Final = ".snapshot"
_NAME: Final = re.compile(r"^(\d{20})\.snapshot$")
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_NO_TRANSACTION: Final = -1
_NONE: Final[Mapping[int, OngoingTransaction]] = {}


class Snapshot(NamedTuple):
    """The content of a snapshot file."""

    states: ProducerStates
    ongoing: Mapping[int, OngoingTransaction]
    """The open transactions by producer id."""


def encode(states: ProducerStates, ongoing: Mapping[int, OngoingTransaction] = _NONE) -> bytes:
    """Return the content of a snapshot file."""
    pack = _ENTRY.pack
    rows: list[bytes] = []
    alone = dict(ongoing)
    for producer_id, entry in states.entries.items():
        batches = entry.batches[-RECOGNISED:]
        for batch in batches[:-1]:
            rows.append(
                pack(
                    producer_id, entry.epoch, batch.last_sequence, batch.last_offset,
                    batch.offset_delta, batch.timestamp, entry.coordinator_epoch, _NO_TRANSACTION,
                )
            )  # fmt: skip
        newest = batches[-1] if batches else BatchMetadata(-1, -1, 0, -1)
        first_offset = _NO_TRANSACTION
        transaction = ongoing.get(producer_id)
        if batches and transaction is not None and transaction.producer_epoch == entry.epoch:
            first_offset = alone.pop(producer_id).first_offset
        rows.append(
            pack(
                producer_id, entry.epoch, newest.last_sequence, newest.last_offset,
                newest.offset_delta, entry.touched_ms, entry.coordinator_epoch, first_offset,
            )
        )  # fmt: skip
    for producer_id, (first_offset, epoch) in alone.items():
        rows.append(pack(producer_id, epoch, -1, -1, 0, -1, -1, first_offset))
    content = _COUNT.pack(len(rows)) + b"".join(rows)
    return _HEAD.pack(_VERSION, crc32c(content)) + content


def decode(content: bytes) -> Snapshot:
    """Read the content of a snapshot file; raise CorruptMessage when it makes no sense."""
    head = _HEAD.size + _COUNT.size
    if len(content) < head:
        raise CorruptMessage(f"a snapshot has {head} bytes at least, this has {len(content)}")
    version, crc = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise CorruptMessage(f"version {version} of a snapshot is not known")
    rows = memoryview(content)[head:]
    if crc32c(memoryview(content)[_HEAD.size :]) != crc:
        raise CorruptMessage("the CRC of the snapshot is wrong")
    (count,) = _COUNT.unpack_from(content, _HEAD.size)
    if count * _ENTRY.size != len(rows):
        raise CorruptMessage(f"{count} entries announced, {len(rows)} bytes of them found")
    states = ProducerStates()
    ongoing: dict[int, OngoingTransaction] = {}
    for row in _ENTRY.iter_unpack(rows):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first_offset = (
            row
        )
        if first_offset >= 0:
            ongoing[producer_id] = OngoingTransaction(first_offset, epoch)
            if offset < 0 <= producer_id:
                continue
        if producer_id < 0 or epoch < 0 or delta < 0 or sequence < -1 or offset < -1:
            raise CorruptMessage(f"producer {producer_id}: a number is negative")
        entry = states.entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = ProducerStateEntry(epoch)
            entry.complete = False
            states.remember(producer_id, entry)
        entry.touched_ms = timestamp
        entry.coordinator_epoch = coordinator_epoch
        if sequence >= 0 and offset >= 0:
            entry.batches.append(BatchMetadata(sequence & LAST_SEQUENCE, offset, delta, timestamp))
            entry.last_offset = offset
    return Snapshot(states, ongoing)


class ProducerSnapshots:
    """The snapshot files of one log, in *directory*."""

    __slots__ = ("_disk", "directory", "offsets")

    def __init__(self, disk: Disk, directory: str, names: Iterable[str] = ()) -> None:
        self._disk = disk
        self.directory = directory
        self.offsets = sorted(int(found.group(1)) for name in names if (found := _NAME.match(name)))
        """At which offsets there is one, in order."""

    @property
    def newest(self) -> int:
        """The newest snapshot's offset, or -1."""
        return self.offsets[-1] if self.offsets else -1

    def path(self, offset: int) -> str:
        """Return the file of the snapshot at *offset*."""
        return f"{self.directory}/{offset:020d}{SNAPSHOT_SUFFIX}"

    def write(
        self,
        offset: int,
        states: ProducerStates,
        segments: Iterable[int],
        ongoing: Mapping[int, OngoingTransaction] = _NONE,
    ) -> None:
        """Put down what is known at *offset*; not synced. Raise OSError.

        The one it follows goes, unless it is at the base offset of a segment (*segments*).
        """
        replace_file(self._disk, self.path(offset), encode(states, ongoing), durable=False)
        if self.newest != offset:
            self.drop(self.newest, keep=segments)
            self.offsets.append(offset)

    def load(self, end_offset: int, notes: list[str]) -> tuple[int, Snapshot] | None:
        """Return the newest good snapshot up to *end_offset* and its offset; None without any.

        Snapshots behind, and those that cannot be read, are removed.
        """
        self.drop_behind(end_offset)
        for offset in self.offsets[::-1]:
            path = self.path(offset)
            try:
                found = decode(read_file(self._disk, path))
                if any(entry.last_offset >= offset for entry in found.states.entries.values()):
                    raise CorruptMessage("it knows of batches behind its own offset")
                if any(each.first_offset >= offset for each in found.ongoing.values()):
                    raise CorruptMessage("it knows of transactions behind its own offset")
                return offset, found
            except FileNotFoundError:
                pass
            except CorruptMessage as error:
                notes.append(f"{path}: {error.message}; rebuilt from the batches")
            self.drop(offset)
        return None

    def drop(self, offset: int, *, keep: Iterable[int] = ()) -> None:
        """Remove the snapshot at *offset*, if there is one and *offset* is not to *keep*."""
        if offset in self.offsets and offset not in keep:
            unlink_if_there(self._disk, self.path(offset))
            self.offsets.remove(offset)

    def drop_behind(self, end_offset: int) -> None:
        """Remove what the log, which ends at *end_offset*, cannot have known."""
        while self.newest > end_offset:
            self.drop(self.newest)

    def gone(self, offset: int) -> None:
        """Handle the deletion of the snapshot at *offset* with its segment."""
        if offset in self.offsets:
            self.offsets.remove(offset)

    def moved_to(self, directory: str) -> None:
        """Follow the rename of the directory."""
        self.directory = directory
