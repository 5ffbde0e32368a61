"""Known bugs of transactions: decisions and markers out of order, epochs that are not raised, guards left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted.internet.defer import Deferred, succeed

from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.group_metadata import GroupMetadata
from kbroker.coordinator.group.pending_offsets import UnstablePartitions
from kbroker.coordinator.group.transactional_offsets import TransactionalOffsets
from kbroker.coordinator.shard_fence import ShardFence
from kbroker.coordinator.transaction.core.states import PREPARED, TransactionState
from kbroker.coordinator.transaction.core.transaction import Transaction, Write
from kbroker.coordinator.transaction.marker_channel_manager import TransactionMarkerChannelManager
from kbroker.coordinator.transaction.transaction_writer import TransactionWriter
from kbroker.log.core.log_transactions import LogTransactions
from kbroker.replica.add_partitions_to_txn_manager import AddPartitionsToTxnManager, Verified
from kbroker.replica.core.leader_transactions import UNKNOWN_NUMBER, LeaderTransactions
from kclient.wire.error_codes import ErrorCode
from tests.simulation.mutants.groups import _check, _with_any_version
from tests.simulation.mutants.registry import Change, frequent_mutant, mutant


@frequent_mutant
def marker_before_prepare_is_written() -> list[Change]:
    """The markers leave with the write of PrepareCommit or PrepareAbort, not after it."""
    original = TransactionWriter.write

    def write(self: TransactionWriter, id: Any, write: Write) -> Deferred[None]:
        done = original(self, id, write)
        if write.metadata.state in PREPARED:
            machine = Transaction(write.metadata)
            stored, id.machine.stored = id.machine.stored, write.metadata
            self._on_stored(id, machine.markers())
            self._clock.callLater(0.002, _put_back, id, write, stored)
        return done

    return [(TransactionWriter, "write", write)]


def _put_back(id: Any, write: Write, stored: Any) -> None:
    if id.machine.stored is write.metadata and id.machine._write is write:
        id.machine.stored = stored


@mutant
def transactions_not_verified() -> list[Change]:
    """A leader begins a transaction without asking the coordinator: behind its marker, too."""
    return [(AddPartitionsToTxnManager, "verify", lambda *_: succeed(Verified(ErrorCode.NONE)))]


@mutant
def answer_counts_after_a_marker() -> list[Change]:
    """The answer of the coordinator begins a transaction although its marker arrived since the request."""
    return [(LeaderTransactions, "_end_verification", lambda _self, _marker: None)]


@frequent_mutant
def epoch_not_raised_at_a_fence() -> list[Change]:
    """The coordinator aborts a transaction beyond its timeout, or of a former producer, in the same epoch."""

    def fence(self: Transaction, stored: Any, now_ms: int) -> Write:
        state = TransactionState.PREPARE_ABORT
        aborted = replace(stored, state=state, update_ms=now_ms)
        return self._begin(Write(aborted, ErrorCode.CONCURRENT_TRANSACTIONS))

    return [(Transaction, "_fence", fence)]


@mutant
def number_of_a_transaction_ignored() -> list[Change]:
    """A marker ends whichever transaction of its producer is open: the next one, too."""
    number_of = (LeaderTransactions, "number_of", lambda _self, _producer_id: UNKNOWN_NUMBER)
    return [number_of, *number_of_a_transaction_in_memory_only()]


@mutant
def number_of_a_transaction_in_memory_only() -> list[Change]:
    """A leader forgets the number of a transaction with its role, and does not find it in the log."""
    original = LeaderTransactions.takes

    def takes(self: LeaderTransactions, *args: Any, is_open: bool, ended: int) -> bool:
        return original(self, *args, is_open=is_open)

    return [(LeaderTransactions, "takes", takes)]


@frequent_mutant
def pending_offsets_applied_at_abort() -> list[Change]:
    """The marker of an abort sets the offsets of the transaction."""
    original = TransactionalOffsets.end

    def end(self: TransactionalOffsets, *args: Any, is_commit: bool, **how: Any) -> Any:
        return original(self, *args, is_commit=True, **how)

    return [(TransactionalOffsets, "end", end)]


@mutant
def pending_offsets_not_unstable() -> list[Change]:
    """OffsetFetch with require_stable answers the former offset while a transaction commits another one."""
    original = GroupCoordinator.offsets_and_pending

    async def offsets_and_pending(self: GroupCoordinator, group_id: str) -> Any:
        offsets, _ = await original(self, group_id)
        return offsets, UnstablePartitions()

    return [(GroupCoordinator, "offsets_and_pending", offsets_and_pending)]


@mutant
def offsets_of_a_marker_not_read() -> list[Change]:
    """A transaction is acknowledged because its pending znode is gone; the offsets in memory are those of before."""
    original = GroupMetadata.load_offsets

    async def load_offsets(self: GroupMetadata, *, again: bool = False) -> None:
        if not again:
            await original(self)

    return [(GroupMetadata, "load_offsets", load_offsets)]


@mutant
def transactions_not_fenced() -> list[Change]:
    """The state of a transactional id is written whatever the version of the partition's state: by a former
    coordinator, too."""
    original = TransactionWriter._send

    def send(self: TransactionWriter) -> None:
        ShardFence.check = property(_with_any_version)  # type: ignore[method-assign,assignment]
        try:
            original(self)
        finally:
            ShardFence.check = _check  # type: ignore[method-assign]

    return [(TransactionWriter, "_send", send)]


@mutant
def markers_sent_once() -> list[Change]:
    """A marker that was not acknowledged is not sent again: not to the next leader, either."""
    return [(TransactionMarkerChannelManager, "_again_later", lambda _self, _markers: None)]


@frequent_mutant
def last_stable_offset_ignores_open_transactions() -> list[Change]:
    """The last stable offset is the high watermark."""
    return [(LogTransactions, "first_unstable_offset", lambda _self, _high_watermark: None)]
