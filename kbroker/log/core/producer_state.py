"""The state of idempotent producers in one log, and the check of their next batch (KIP-98, KIP-360).

Theory of operation
===================
A producer numbers its records per partition; a batch has its producer id, its epoch and the sequence of its first
record. The log remembers each producer's last batches. So a batch that was sent twice is recognised, and a lost one
leaves a gap that is seen.

A batch of a client is one of these:

- *next*: its sequence follows the last one (0 follows 2^31 - 1), or is 0 in a later epoch, or the
  producer is not known. The last is in order: what was known of it may have gone with retention,
  expiry or DeleteRecords, and the producer goes on counting (KIP-360).
- *a duplicate* of one of the last five, which is as many as a producer has in flight. It is not appended again, and
  answered as the first time.
- *out of order*: anything else in this epoch, and a later epoch that does not begin with 0.
- *of an epoch that is over*.

Batches of a leader (a follower's log) or of the log itself (recovery) are taken as they are.

Invariants:
1. Nothing changes before a batch is in the log (KAFKA-6683): `check` changes nothing, `appended` does.
2. What is remembered of a producer is the end of what it has in the log, of its last epoch. A cut of the log may leave
   fewer than five batches. But among them is each that is in the log and may still be in flight. A producer does not
   send a batch before the fifth one before it is answered.
3. Sequence numbers of remembered batches have no hole, where a client wrote them.

In: headers of batches. Out: the duplicate, or a refusal. Owner: the thread that owns the log. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from kclient.wire.batches import NO_SEQUENCE, BatchInfo
from kclient.wire.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber

LAST_SEQUENCE: Final = 0x7FFFFFFF
RECOGNISED: Final = 5
"""How many batches back a duplicate is recognised: max.in.flight.requests.per.connection."""

_REMEMBERED: Final = RECOGNISED + 1
"""With it the last sequence is known when the log is cut behind what is committed. A producer that waits for acks=all
has no more than five batches there."""

_tuple_new = tuple.__new__


class BatchMetadata(NamedTuple):
    """One batch of a producer that is in the log."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    """Its last sequence and offset minus its first."""
    timestamp: int
    """Its max timestamp in ms: the leader's clock under LogAppendTime."""

    @property
    def base_sequence(self) -> int:
        """The sequence of its first record."""
        return (self.last_sequence - self.offset_delta) & LAST_SEQUENCE

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


class ProducerStateEntry:
    """What is known of one producer."""

    __slots__ = ("batches", "complete", "coordinator_epoch", "epoch", "last_offset", "touched_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[BatchMetadata] = []
        """Its newest batches of this epoch, oldest first; none if only a marker is known."""
        self.touched_ms = 0
        """When it wrote last, by the broker's clock: record timestamps may have any value. Of batches read from the
        log again (`reload`) the timestamp counts, as in Kafka, but neither later than now nor before what is known."""
        self.last_offset = -1
        """The end of its last batch of whatever kind."""
        self.coordinator_epoch = -1
        """Of the transaction coordinator that wrote its last marker; -1 if none is known."""
        self.complete = True
        """Whether `batches` has every batch of this epoch: none was evicted."""

    def __repr__(self) -> str:
        return f"ProducerStateEntry(epoch={self.epoch}, batches={self.batches})"

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record in this epoch, or -1."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, info: BatchInfo) -> BatchMetadata | None:
        """Return the batch, one of the last five, that *info* of this epoch repeats."""
        last = info.last_sequence
        for batch in self.batches[: -RECOGNISED - 1 : -1]:
            if batch.last_sequence == last and batch.offset_delta == info.last_offset_delta:
                return batch
        return None


class ProducerStates:
    """The producers of one log, by producer id."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, ProducerStateEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    @property
    def entries(self) -> Mapping[int, ProducerStateEntry]:
        """Every producer that is known."""
        return self._entries

    def check(self, info: BatchInfo) -> BatchMetadata | None:
        """Return what the client's batch *info* repeats, or None when it is to be appended.

        *info* has a producer id. Raise OutOfOrderSequenceNumber or InvalidProducerEpoch.
        """
        entry = self._entries.get(info.producer_id)
        if entry is None:
            return None
        base = info.base_sequence
        if info.producer_epoch == entry.epoch:
            batches = entry.batches
            last = batches[-1].last_sequence if batches else NO_SEQUENCE
            if base == (last + 1) & LAST_SEQUENCE:
                return None
            duplicate = entry.duplicate_of(info)
            if duplicate is not None:
                return duplicate
            raise OutOfOrderSequenceNumber(
                f"producer {info.producer_id} epoch {entry.epoch} sent sequence {base},"
                f" its last was {last}"
            )
        if info.producer_epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"epoch {info.producer_epoch} of producer {info.producer_id} is over,"
                f" {entry.epoch} is on"
            )
        if base != 0:
            raise OutOfOrderSequenceNumber(
                f"producer {info.producer_id} began epoch {info.producer_epoch} with sequence"
                f" {base}, not 0"
            )
        return None

    def appended(
        self,
        info: BatchInfo,
        base_offset: int,
        now_ms: int,
        timestamp: int | None = None,
    ) -> None:
        """Record *info*, which has a producer id and is in the log now at *base_offset*.

        *timestamp* is the leader's clock where that replaced the batch's own.
        """
        epoch = info.producer_epoch
        entry = self._entries.get(info.producer_id)
        if entry is None:
            entry = self._entries[info.producer_id] = ProducerStateEntry(epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches = []
            entry.complete = False
        delta = info.last_offset_delta
        entry.last_offset = last_offset = base_offset + delta
        entry.touched_ms = now_ms
        sequence = info.base_sequence
        if sequence < 0:
            return  # a transaction marker: it has an epoch, and no sequence
        if timestamp is None:
            timestamp = info.max_timestamp
        batches = entry.batches
        last_sequence = (sequence + delta) & LAST_SEQUENCE
        batches.append(_tuple_new(BatchMetadata, (last_sequence, last_offset, delta, timestamp)))
        if len(batches) > _REMEMBERED:
            del batches[0]
            entry.complete = False

    def transaction_ended(self, producer_id: int, coordinator_epoch: int) -> None:
        """Record the marker that was appended last for a producer."""
        entry = self._entries.get(producer_id)
        if entry is not None:
            entry.coordinator_epoch = coordinator_epoch

    def remember(self, producer_id: int, entry: ProducerStateEntry) -> None:
        """Take over the entry of a producer from a snapshot."""
        self._entries[producer_id] = entry

    def truncate_from_end(self, end_offset: int) -> dict[int, int]:
        """Remove batches that reach to *end_offset* or beyond: the log was cut off there.

        Return the producers of which nothing is left here though there may be in the log, and when
        they wrote last.
        """
        lost: dict[int, int] = {}
        for producer_id, entry in list(self._entries.items()):
            if entry.last_offset < end_offset:
                continue
            kept = [batch for batch in entry.batches if batch.last_offset < end_offset]
            if kept:
                entry.batches = kept
                entry.last_offset = kept[-1].last_offset
            else:
                del self._entries[producer_id]
                if not entry.complete:
                    lost[producer_id] = entry.touched_ms
        return lost

    def expire(self, idle_since_ms: int, keep: Container[int] = ()) -> int:
        """Remove producers that wrote nothing after *idle_since_ms*, but those to *keep*; return how many."""
        if not self._entries:
            return 0
        expired = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.touched_ms <= idle_since_ms and producer_id not in keep
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    def clear(self) -> None:
        """Remove every entry."""
        self._entries.clear()

    def replay(self, infos: Iterable[BatchInfo], now_ms: int) -> None:
        """Record batches that are in the log already, oldest first, and came now."""
        for info in infos:
            if info.producer_id >= 0:
                touched_ms = info.max_timestamp if info.log_append_time else now_ms
                self.appended(info, info.base_offset, touched_ms)

    def reload(self, infos: Iterable[BatchInfo], now_ms: int) -> None:
        """Record batches that are in the log since they were written, oldest first; it is *now_ms*."""
        for info in infos:
            if info.producer_id >= 0:
                known = self._entries.get(info.producer_id)
                written_ms = info.max_timestamp if info.max_timestamp >= 0 else now_ms
                touched_ms = max(min(written_ms, now_ms), known.touched_ms if known else 0)
                self.appended(info, info.base_offset, touched_ms)
