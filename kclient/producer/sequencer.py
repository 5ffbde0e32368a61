"""Sequence numbers of an idempotent producer (KIP-98), and recovery from gaps (KIP-360).

Theory of operation
===================
A broker accepts a batch of a producer id and epoch only if its sequence follows the last one of the partition. So a
batch that is sent twice is stored once, and the order holds with several batches in flight. A failed batch with a
sequence may leave a gap: later batches would be rejected. Then the producer raises its epoch (KIP-360). Each partition
moves to the new epoch, from sequence 0, when no batch with an old sequence is left. A batch keeps its sequence until
the broker has confirmed that it does not have it, because under another sequence it could be stored twice. A gap is
certain when a batch is rejected after all earlier ones are done. Then no later batch is stored, and all of them may get
new sequences. The halves of a batch that is split share its sequences.

Two batches are sent alone, without a later one behind them. One is the first of a partition: a broker without state of
the producer accepts any sequence (KAFKA-14359). It would store the second batch after it has rejected the first. The
other is one that is sent again. A broker remembers five batches of a producer. It rejects an older one that it has
stored.

Invariants: 1. per partition and epoch, sequences are consecutive. 2. a batch changes its sequence only if it is
certainly not in the log. 3. a partition changes its epoch only without batches in flight, and without waiting batches
that keep their sequence. 4. at most four batches are sent after one that may have to be sent again.
In: a batch before sending, rejected, failed.   Owner: the sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kclient.producer.batch import LAST_SEQUENCE, ProducerBatch
from kclient.types import TopicPartition

_LAST_EPOCH = 0x7FFF


@dataclass(slots=True)
class _PartitionSequence:
    """The producer id, epoch and next sequence of one partition.

    *broken*: a sequence failed, no new one is assigned. *hole*: the broker certainly does not have it, so no later
    batch is stored. *acknowledged*: the broker has a batch of it.
    """

    producer_id: int
    epoch: int
    next_sequence: int = 0
    broken: bool = False
    hole: bool = False
    acknowledged: bool = False


class Sequencer:
    """Assigns the sequences of one idempotent producer. *producer_id* is -1 before InitProducerId.

    Without *raises_epoch* a failed batch only ends the sequences of its partition: the coordinator of a transactional
    producer raises the epoch, before the next transaction.
    """

    def __init__(self, *, raises_epoch: bool = True) -> None:
        self._raises_epoch = raises_epoch
        self.producer_id = -1
        self.epoch = -1
        self._partitions: dict[TopicPartition, _PartitionSequence] = {}

    @property
    def needs_producer_id(self) -> bool:
        """Whether InitProducerId must be sent first."""
        return self.producer_id < 0

    def given(self, producer_id: int, epoch: int) -> None:
        """Set the producer id and epoch; partitions move to it as soon as they can."""
        self.producer_id = producer_id
        self.epoch = epoch

    def may_send(self, batch: ProducerBatch, in_flight: Sequence[ProducerBatch]) -> bool:
        """Return whether *batch*, the next of its partition, may be sent with the unanswered ones *in_flight*."""
        if self.needs_producer_id:
            return False
        if not in_flight:
            return True
        state = self._partitions.get(batch.tp)
        if state is None or not state.acknowledged or any(each.attempts > 1 for each in in_flight):
            return False
        return self._keeps_number(batch, state) or not self._outdated(state)

    def number(self, batch: ProducerBatch) -> None:
        """Assign a sequence to *batch*, unless it keeps its own."""
        known = self._partitions.get(batch.tp)
        if known is not None and self._keeps_number(batch, known):
            return
        if known is None or self._outdated(known):
            known = _PartitionSequence(self.producer_id, self.epoch)
            self._partitions[batch.tp] = known
        batch.producer_id, batch.producer_epoch = known.producer_id, known.epoch
        batch.base_sequence = known.next_sequence
        known.next_sequence = (known.next_sequence + batch.record_count) & LAST_SEQUENCE

    def acknowledged(self, batch: ProducerBatch) -> None:
        """Record that the broker has *batch*."""
        known = self._sequence_of(batch)
        if known is not None:
            known.acknowledged = True

    def given_up(self, batch: ProducerBatch) -> None:
        """Record that a batch failed: if it has a sequence, there may be a gap after it."""
        known = self._sequence_of(batch)
        if known is None or known.broken:
            return
        known.broken = True
        is_latest = (known.producer_id, known.epoch) == (self.producer_id, self.epoch)
        if self._raises_epoch and is_latest:
            self._raise_epoch()

    def rejected_after_gap(self, batch: ProducerBatch) -> bool:
        """Handle the rejection of *batch* by its sequence, while no earlier batch is pending.

        Return whether an earlier failed batch explains it; then *batch* gets a new sequence.
        """
        known = self._sequence_of(batch)
        if known is None or not known.broken:
            return False
        known.hole = True
        return True

    def _sequence_of(self, batch: ProducerBatch) -> _PartitionSequence | None:
        """Return the partition's sequence if *batch* has its number from it."""
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
