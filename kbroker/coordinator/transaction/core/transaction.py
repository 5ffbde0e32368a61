"""One transactional id at its coordinator: what each request and event leads to (KIP-98, KIP-360, KIP-890).

Theory of operation
===================
The stored metadata is what the coordinator knows to be in the znode. A request is refused, answered from the stored
metadata, or leads to a write. One write at a time is under way; requests that arrive meanwhile get
CONCURRENT_TRANSACTIONS, which clients retry. The response to a write follows its outcome (`written`). If the outcome is
unknown, the znode is read, and `found` has what is there.

The write of PrepareCommit or PrepareAbort decides the transaction. From then on, by whichever coordinator, the markers
are sent until each partition and group has acknowledged; then the Complete state is written. An abort that the
coordinator decides raises the epoch: no request of the former producer passes any more.

The shell fences: it writes with a check that this broker still coordinates, and confirms that before it answers from
the stored metadata.

Invariants:
1. A transaction is decided once: PrepareCommit and PrepareAbort follow Ongoing only.
2. The next transaction begins when every marker of the former one is acknowledged.
3. The epoch never falls for a producer id, and each decision of the coordinator itself raises it.
4. A producer other than the stored one changes nothing, but by InitProducerId.

In: requests, outcomes of writes, acknowledged markers, time   Out: `Refuse`, `Done`, `Write`, markers
Owner: the reactor's thread. Pure. Docs: docs/design/transactions.md
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.transaction.core.states import (
    IDLE,
    LAST_EPOCH_OF_A_PRODUCER,
    NO_PRODUCER_EPOCH,
    PREPARED,
    VALID_FROM,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from kclient.wire.error_codes import ErrorCode


class Refuse(NamedTuple):
    """The request changes nothing; its response has *error*."""

    error: ErrorCode


class Done(NamedTuple):
    """What the request asks for is stored already."""

    metadata: TransactionMetadata


class Write(NamedTuple):
    """*metadata* is to be written; then the response has *error*, NONE where the request is done."""

    metadata: TransactionMetadata
    error: ErrorCode = ErrorCode.NONE


Decision = Refuse | Done | Write


class Verified(NamedTuple):
    """The answer to a leader before the first batch of a transaction in a partition (KIP-890)."""

    error: ErrorCode
    number: int = 0
    """Of the open transaction: the marker that ends it has the same."""


class Marker(NamedTuple):
    """The end of a transaction, for one partition or group."""

    destination: TopicPartition | str
    producer: ProducerIdAndEpoch
    number: int
    is_commit: bool


class Transaction:
    """The machine of one transactional id; *stored* is None for one without a znode."""

    __slots__ = ("_acknowledged", "_write", "stored")

    def __init__(self, stored: TransactionMetadata | None) -> None:
        self.stored = stored
        """What is in the znode, as far as this coordinator knows."""
        self._write: Write | None = None
        self._acknowledged: set[TopicPartition | str] = set()

    @property
    def state(self) -> TransactionState | None:
        """The state that is reported; None for an id that is not known."""
        if self.stored is None:
            return None
        write = self._write
        is_raised = write is not None and write.metadata.producer_epoch > self.stored.producer_epoch
        if is_raised and self.stored.state is TransactionState.ONGOING:
            return TransactionState.PREPARE_EPOCH_FENCE
        return self.stored.state

    # Requests of producers

    def needs_producer_id(self) -> bool:
        """Return whether InitProducerId may need a new producer id."""
        return self.stored is None or self.stored.producer_epoch >= LAST_EPOCH_OF_A_PRODUCER

    def init_producer_id(
        self,
        timeout_ms: int,
        now_ms: int,
        new_producer_id: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> Decision:
        """Handle InitProducerId; *expected* is the producer that continues after an error (KIP-360).

        *new_producer_id* is used where `needs_producer_id`.
        """
        stored = self.stored
        if self._write is not None:
            return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if stored is None:
            return self._begin(
                Write(
                    TransactionMetadata(
                        new_producer_id, 0, timeout_ms, TransactionState.EMPTY, now_ms
                    )
                )
            )
        if expected is not None and not _may_continue(stored, expected):
            return Refuse(ErrorCode.PRODUCER_FENCED)
        if stored.state in PREPARED:
            return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if stored.state is TransactionState.ONGOING:
            return self._fence(stored, now_ms)
        empty = replace(
            stored, state=TransactionState.EMPTY, timeout_ms=timeout_ms, update_ms=now_ms
        )
        if expected is not None and expected.epoch != stored.producer_epoch:
            return self._begin(Write(empty))  # the response to the first request was lost
        last = NO_PRODUCER_EPOCH if expected is None else stored.producer_epoch
        if stored.producer_epoch >= LAST_EPOCH_OF_A_PRODUCER:
            return self._begin(
                Write(
                    replace(
                        empty,
                        producer_id=new_producer_id,
                        producer_epoch=0,
                        previous_producer_id=stored.producer_id,
                        last_producer_epoch=last,
                    )
                )
            )
        epoch = stored.producer_epoch + 1
        return self._begin(Write(replace(empty, producer_epoch=epoch, last_producer_epoch=last)))

    def add(
        self,
        producer: ProducerIdAndEpoch,
        now_ms: int,
        partitions: Iterable[TopicPartition] = (),
        groups: Iterable[str] = (),
    ) -> Decision:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn."""
        stored, error = self._stored_for(producer)
        if stored is None:
            return Refuse(error)
        if self._write is not None or stored.state in PREPARED:
            return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_open = stored.state is TransactionState.ONGOING
        with_partitions = (stored.partitions if is_open else frozenset()) | set(partitions)
        with_groups = (stored.groups if is_open else frozenset()) | set(groups)
        if is_open and (with_partitions, with_groups) == (stored.partitions, stored.groups):
            return Done(stored)
        if not with_partitions and not with_groups:
            return Done(stored)  # no marker would ever end it
        return self._begin(
            Write(
                replace(
                    stored,
                    state=TransactionState.ONGOING,
                    partitions=with_partitions,
                    groups=with_groups,
                    number=stored.number + (not is_open),
                    start_ms=stored.start_ms if is_open else now_ms,
                    update_ms=now_ms,
                )
            )
        )

    def verify(self, producer: ProducerIdAndEpoch, destination: TopicPartition | str) -> Verified:
        """Answer a leader, or the coordinator of a group, whether *destination* is in the open transaction."""
        stored, error = self._stored_for(producer)
        if stored is None:
            return Verified(error)
        is_ending = self._write is not None and self._write.metadata.state in PREPARED
        if is_ending or stored.state in PREPARED:
            return Verified(ErrorCode.CONCURRENT_TRANSACTIONS)
        if stored.state is not TransactionState.ONGOING or (
            destination not in stored.partitions and destination not in stored.groups
        ):
            return Verified(ErrorCode.TRANSACTION_ABORTABLE)
        return Verified(ErrorCode.NONE, stored.number)

    def end(self, producer: ProducerIdAndEpoch, now_ms: int, *, is_commit: bool) -> Decision:
        """Handle EndTxn. The write decides the transaction."""
        stored, error = self._stored_for(producer)
        if stored is None:
            return Refuse(error)
        if self._write is not None:
            return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if stored.state is TransactionState.ONGOING:
            state = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
            return self._begin(Write(replace(stored, state=state, update_ms=now_ms)))
        prepared, complete = (
            (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
            if is_commit
            else (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
        )
        if stored.state is prepared:
            return Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        return Done(stored) if stored.state is complete else Refuse(ErrorCode.INVALID_TXN_STATE)

    def _stored_for(
        self, producer: ProducerIdAndEpoch
    ) -> tuple[TransactionMetadata | None, ErrorCode]:
        """Return the stored metadata if *producer* may use the transactional id, else None and the error."""
        stored = self.stored
        if stored is None or stored.producer_id != producer.producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if stored.producer_epoch != producer.epoch:
            return None, ErrorCode.PRODUCER_FENCED
        return stored, ErrorCode.NONE

    # Time

    def expire(self, now_ms: int, idle_ms: int) -> Write | None:
        """Return the write that ends a transaction beyond its timeout, or deletes an id idle for *idle_ms*; or None.

        A metadata in state Dead means that the znode is to be deleted.
        """
        stored = self.stored
        if stored is None or self._write is not None:
            return None
        if stored.state is TransactionState.ONGOING:
            is_over = now_ms - stored.start_ms >= stored.timeout_ms
            return self._fence(stored, now_ms) if is_over else None
        if stored.state in IDLE and now_ms - stored.update_ms >= idle_ms:
            return self._begin(Write(replace(stored, state=TransactionState.DEAD)))
        return None

    def _fence(self, stored: TransactionMetadata, now_ms: int) -> Write:
        """Abort the open transaction with a raised epoch; the client retries InitProducerId after that."""
        return self._begin(
            Write(
                replace(
                    stored,
                    state=TransactionState.PREPARE_ABORT,
                    producer_epoch=stored.producer_epoch + 1,
                    last_producer_epoch=NO_PRODUCER_EPOCH,
                    update_ms=now_ms,
                ),
                ErrorCode.CONCURRENT_TRANSACTIONS,
            )
        )

    # Writes

    def _begin(self, write: Write) -> Write:
        before = self.stored.state if self.stored is not None else TransactionState.EMPTY
        assert before in VALID_FROM[write.metadata.state], (before, write)
        self._write = write
        return write

    def written(self) -> Collection[Marker]:
        """Handle the success of the write; return the markers to send now."""
        assert self._write is not None
        metadata = self._write.metadata
        return self.found(None if metadata.state is TransactionState.DEAD else metadata)

    def found(self, stored: TransactionMetadata | None) -> Collection[Marker]:
        """Handle what was read of the znode, after a write with an unknown outcome; return the markers to send now."""
        self._write = None
        self.stored = stored
        self._acknowledged = set()
        return self.markers()

    # Markers

    def markers(self) -> Collection[Marker]:
        """Return the markers that are not acknowledged; none unless a transaction is decided and not complete."""
        stored = self.stored
        if stored is None or stored.state not in PREPARED:
            return ()
        is_commit = stored.state is TransactionState.PREPARE_COMMIT
        destinations: list[TopicPartition | str] = [
            *sorted(stored.partitions), *sorted(stored.groups),
        ]  # fmt: skip
        return [
            Marker(each, stored.producer, stored.number, is_commit)
            for each in destinations
            if each not in self._acknowledged
        ]

    def acknowledged(self, marker: Marker, now_ms: int) -> Write | None:
        """Handle the acknowledgement of a marker; return the write of the Complete state after the last one."""
        stored = self.stored
        if stored is None or stored.state not in PREPARED or marker.number != stored.number:
            return None
        if marker.destination in stored.partitions or marker.destination in stored.groups:
            self._acknowledged.add(marker.destination)
        count = len(stored.partitions) + len(stored.groups)
        if self._write is not None or len(self._acknowledged) < count:
            return None
        state = (
            TransactionState.COMPLETE_COMMIT
            if stored.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT
        )
        return self._begin(
            Write(
                replace(
                    stored,
                    state=state,
                    partitions=frozenset(),
                    groups=frozenset(),
                    start_ms=-1,
                    update_ms=now_ms,
                )
            )
        )


def _may_continue(stored: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Return whether *expected* is the stored producer, or was it before the request that it repeats (KIP-360)."""
    if expected.epoch < 0:
        return False
    if expected.producer_id == stored.producer_id:
        return expected.epoch in (stored.producer_epoch, stored.last_producer_epoch)
    return (
        expected.producer_id == stored.previous_producer_id
        and expected.epoch == stored.last_producer_epoch
        and stored.producer_epoch == 0
    )
