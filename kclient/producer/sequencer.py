"""Sequence numbers of an idempotent producer (KIP-98), and starting over when they broke.

Theory of operation
===================
The broker accepts a batch of a producer id and epoch only if its sequence follows the last one of
that partition, so a batch sent twice is stored once, and order holds with several in flight. When a
numbered batch is given up there may be a hole after it: the producer's epoch is raised (KIP-360),
and each partition goes over to the new epoch, beginning at 0, when nothing numbered is left of the
old one. A batch keeps its number until the broker has said that it does not hold it: sent again
under another one it could be stored twice. A hole is certain once a batch behind it was refused
with all before it settled; then nothing behind it was stored, and it all may be numbered anew.

Invariants: 1. Per partition and epoch, sequences are handed out without a hole and in order.
2. A batch changes its number only if it is certainly not in the log. 3. A partition changes its
epoch only while nothing of it is in flight, and no batch that keeps its number waits.
In: a batch about to be sent, refused, split, given up.   Owner: the sender.
"""

from __future__ import annotations

from dataclasses import dataclass

from kclient.producer.batch import ProducerBatch
from kclient.types import TopicPartition

_LAST_SEQUENCE = 0x7FFFFFFF
_LAST_EPOCH = 0x7FFF


@dataclass(slots=True)
class _PartitionSequence:
    """One partition: under which id and epoch it counts, and the next number.

    *broken*: a number was given up, no new one is handed out. *hole*: and the broker does not have
    it, so that nothing behind it was stored.
    """

    producer_id: int
    epoch: int
    next_sequence: int = 0
    broken: bool = False
    hole: bool = False


class Sequencer:
    """Numbers the batches of one idempotent producer. *producer_id* -1: not yet given one."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1
        self._partitions: dict[TopicPartition, _PartitionSequence] = {}

    @property
    def needs_producer_id(self) -> bool:
        """Whether InitProducerId has to be asked before anything can be sent."""
        return self.producer_id < 0

    def given(self, producer_id: int, epoch: int) -> None:
        """Take the id that the cluster gave; partitions go over to it when they can."""
        self.producer_id = producer_id
        self.epoch = epoch

    def may_send(self, batch: ProducerBatch, in_flight: int) -> bool:
        """Tell whether *batch*, the next of its partition, may go with *in_flight* unanswered."""
        if self.needs_producer_id:
            return False
        known = self._partitions.get(batch.tp)
        if known is None or self._keeps_number(batch, known):
            return True
        return not self._outdated(known) or not in_flight

    def number(self, batch: ProducerBatch) -> None:
        """Give *batch*, which may be sent, its sequence, unless it keeps the one it has."""
        known = self._partitions.get(batch.tp)
        if known is not None and self._keeps_number(batch, known):
            return
        if known is None or self._outdated(known):
            known = _PartitionSequence(self.producer_id, self.epoch)
            self._partitions[batch.tp] = known
        batch.producer_id, batch.producer_epoch = known.producer_id, known.epoch
        batch.base_sequence = known.next_sequence
        known.next_sequence = (known.next_sequence + batch.record_count) & _LAST_SEQUENCE

    def given_up(self, batch: ProducerBatch) -> None:
        """Note that a batch is not sent again: if numbered, there may be a hole after it."""
        known = self._sequence_of(batch)
        if known is None or known.broken:
            return
        known.broken = True
        if (known.producer_id, known.epoch) == (self.producer_id, self.epoch):
            self._raise_epoch()

    def split(self, batch: ProducerBatch) -> None:
        """Note that a batch was refused as too large, so not stored, and becomes two."""
        known = self._sequence_of(batch)
        self.given_up(batch)
        if known is not None:
            known.hole = True

    def rejected_after_gap(self, batch: ProducerBatch) -> bool:
        """Take the broker's word that *batch* does not follow what it has, all before being settled.

        Return whether a batch given up before it explains that; then it will be numbered anew.
        """
        known = self._sequence_of(batch)
        if known is None or not known.broken:
            return False
        known.hole = True
        return True

    def _sequence_of(self, batch: ProducerBatch) -> _PartitionSequence | None:
        """Return the partition's numbering if *batch* has its number from it."""
        known = self._partitions.get(batch.tp)
        if known is None or batch.base_sequence < 0:
            return None
        same = (batch.producer_id, batch.producer_epoch) == (known.producer_id, known.epoch)
        return known if same else None

    def _keeps_number(self, batch: ProducerBatch, known: _PartitionSequence) -> bool:
        return self._sequence_of(batch) is known and not known.hole

    def _outdated(self, known: _PartitionSequence) -> bool:
        return known.broken or (known.producer_id, known.epoch) != (self.producer_id, self.epoch)

    def _raise_epoch(self) -> None:
        if self.epoch >= _LAST_EPOCH:
            self.producer_id = self.epoch = -1
        else:
            self.epoch += 1
