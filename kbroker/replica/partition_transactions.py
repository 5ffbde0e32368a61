"""PartitionTransactions: begins and ends the transactions of a partition in its log, while this broker leads it.

It joins the rules of `kbroker.replica.core.leader_transactions` with the log and with the verifications at the
coordinator (`AddPartitionsToTxnManager`). `Partition` decides whether this broker leads, and passes on the log end
after each append.

In: batches, markers, a promotion   Out: markers in the log, verifications   Owner: the reactor's thread
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.log.log_validator import RecordValidation
from kbroker.log.unified_log import UnifiedLog
from kbroker.replica.add_partitions_to_txn_manager import (
    RETRIABLE,
    AddPartitionsToTxnManager,
    Verified,
)
from kbroker.replica.core.leader_transactions import (
    UNKNOWN_NUMBER,
    EndTxnMarker,
    LeaderTransactions,
    VerificationStateEntry,
    client_abort,
)
from kbroker.replica.core.role import PartitionRole
from kbroker.replica.partition_dependencies import PartitionDependencies
from kclient.wire.batches import BatchInfo, Buffer, iterate, parse
from kclient.wire.errors import (
    InvalidProducerIdMapping,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicas,
    OutOfOrderSequenceNumber,
    TransactionalIdAuthorizationFailed,
)
from kclient.wire.records import ABORT, COMMIT, encode_transaction_marker

log = Logger()


class TransactionNotVerifiedError(Exception):
    """The batch begins a transaction that is being verified: append it again after the result."""

    def __init__(self, validation: RecordValidation, verification: VerificationStateEntry) -> None:
        super().__init__("the transaction of a batch is being verified at its coordinator")
        self.validation = validation
        self.verification = verification

    def completed(self) -> Deferred[None]:
        """Fire after the result; batches that wait for the same one continue in the order of these calls."""
        waiting: Deferred[None] = Deferred()
        self.verification.on_completion(lambda: waiting.callback(None))
        return waiting


class UnknownTransaction(NamedTuple):
    """A transaction that is open in the log, and did not begin in this leadership."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of the last batch of the producer; -1 if a mirror copied it."""
    leader_epoch: int


class PartitionTransactions:
    """The transactions of one partition. *role* is that of the partition; its log is *own* in each call."""

    __slots__ = ("_dependencies", "_key", "_role", "in_epoch")

    def __init__(
        self, key: TopicPartition, role: PartitionRole, dependencies: PartitionDependencies
    ) -> None:
        self._key = key
        self._role = role
        self._dependencies = dependencies
        self.in_epoch = LeaderTransactions()
        """What this broker, as the leader, knows besides the log."""

    def __repr__(self) -> str:
        topic, index = self._key
        return f"{topic}-{index}"

    def begin_leader_epoch(self, *, is_unbroken: bool) -> None:
        """Begin a leader epoch; *is_unbroken*: no other broker led since the epoch before."""
        self.in_epoch = LeaderTransactions(self.in_epoch if is_unbroken else None)

    # -- batches -------------------------------------------------------------------------------

    def check_request(self, transactional_id: str | None) -> None:
        """Raise the error of Kafka for transactional records of a transaction that no coordinator has.

        Without a transactional id a request is not authorized. With one, a leader that cannot verify transactions
        (KIP-890) knows of no transactional id.
        """
        if transactional_id is None:
            raise TransactionalIdAuthorizationFailed(
                "transactional records need the transactional id of their request"
            )
        if self._dependencies.add_partitions_to_txn_manager is None:
            raise InvalidProducerIdMapping(
                f"transactional id {transactional_id[:249]!r} has no transaction that this broker could verify"
            )

    def require(
        self,
        own: UnifiedLog,
        info: BatchInfo,
        transactional_id: str | None,
        validation: RecordValidation,
        awaited: VerificationStateEntry | None,
    ) -> None:
        """Return if the batch is in its producer's open transaction, or may begin one.

        Raise TransactionNotVerifiedError. Raise NotEnoughReplicas, which producers retry, if the verification *awaited*
        by the batch is not valid any more. Raise OutOfOrderSequenceNumber for a batch that must wait for an earlier
        one.
        """
        producer_id = info.producer_id
        verifier = self._dependencies.add_partitions_to_txn_manager
        if verifier is None or _is_open(own, info) or not verifier.is_enabled():
            return
        verification = self.in_epoch.verified(producer_id, info.producer_epoch)
        if verification is None:
            if awaited is None:
                awaited = self._maybe_start(verifier, info, transactional_id or "")
                raise TransactionNotVerifiedError(validation, awaited)
            raise NotEnoughReplicas(
                f"{self}: a marker arrived, or the leader changed, while the transaction was verified"
            )
        if (
            producer_id not in own.producers.states.entries
            and info.base_sequence > verification.lowest_sequence
        ):
            raise OutOfOrderSequenceNumber(
                f"{self}: producer {producer_id} sent sequence {info.base_sequence} before"
                f" {verification.lowest_sequence}, which it has to repeat"
            )
        if producer_id in own.producers.transactions.ongoing:
            self.abort_lost(own, producer_id)

    def maybe_start_verification(self, own: UnifiedLog, buf: Buffer, transactional_id: str) -> None:
        """Start to verify the transaction of the batch in *buf*, if it may begin one."""
        verifier = self._dependencies.add_partitions_to_txn_manager
        if verifier is None or own.config.kbroker_mirror_source_cluster_id:
            return
        if not verifier.is_enabled():
            return
        with suppress(KafkaError):  # the append raises it, too
            info = parse(buf)
            if not info.is_transactional or info.producer_id < 0 or _is_open(own, info):
                return
            if own.producers.states.check(info) is None:
                self._maybe_start(verifier, info, transactional_id)

    def _maybe_start(
        self, verifier: AddPartitionsToTxnManager, info: BatchInfo, transactional_id: str
    ) -> VerificationStateEntry:
        """Return the verification of the transaction of a batch; it starts now unless it is under way."""
        in_epoch, producer_id = self.in_epoch, info.producer_id
        verification, is_new = in_epoch.maybe_start_verification(
            producer_id, info.producer_epoch, info.base_sequence
        )

        def completed(found: Verified) -> None:
            is_retriable = found.error in RETRIABLE
            in_epoch.complete_verification(
                producer_id, verification, found.error, found.number, is_retriable=is_retriable
            )

        if is_new:
            result = verifier.verify(transactional_id, producer_id, info.producer_epoch, self._key)
            result.addCallback(completed)
            result.addErrback(lambda failure: log.failure("a verification failed", failure))
        return verification

    # -- markers -------------------------------------------------------------------------------

    def end(self, own: UnifiedLog, marker: EndTxnMarker, now_ms: int) -> int:
        """Append *marker*, if it has an effect; return the end of the log then, else 0.

        A mirror has no transactions of this cluster: a marker has no effect there. Raise InvalidProducerEpoch or
        TransactionCoordinatorFenced.
        """
        if own.config.kbroker_mirror_source_cluster_id:
            return 0
        producers, producer_id = own.producers, marker.producer_id
        known = producers.states.entries.get(producer_id)
        is_open = producer_id in producers.transactions.ongoing
        ended, _ = producers.markers.get(producer_id, (UNKNOWN_NUMBER, -1))
        if not self.in_epoch.takes(marker, known, is_open=is_open, ended=ended):
            return 0
        return self._append_marker(own, marker, now_ms)

    def abort_for_client(self, own: UnifiedLog, marker: EndTxnMarker, now_ms: int) -> int:
        """Append the ABORT of the producer's open transaction for a client; return the end of the log, 0 for a mirror.

        Nothing is appended if no transaction is open. Raise as `end`, and as `client_abort`.
        """
        if own.config.kbroker_mirror_source_cluster_id:
            return 0
        ongoing = own.producers.transactions.ongoing.get(marker.producer_id)
        if ongoing is None:
            # An ABORT that timed out is sent again. It waits for the replicas, too.
            return own.log_end_offset
        known = own.producers.states.entries.get(marker.producer_id)
        return self.end(own, client_abort(marker, known, ongoing.producer_epoch), now_ms)

    def abort_lost(self, own: UnifiedLog, producer_id: int) -> None:
        """Append the ABORT of a transaction that its coordinator has completed, or that none has: its marker was lost.

        Before a batch of the next transaction: the records of both would become one.
        """
        known = own.producers.states.entries.get(producer_id)
        log.warn(
            "{partition}: aborts a transaction of producer {producer_id}: no coordinator has it any more",
            partition=repr(self), producer_id=producer_id,
        )  # fmt: skip
        marker = EndTxnMarker(
            producer_id,
            own.producers.transactions.ongoing[producer_id].producer_epoch,
            -1 if known is None else known.coordinator_epoch,
            is_commit=False,
        )
        self._append_marker(own, marker, self._dependencies.now_ms())

    def abort_copied(self, own: UnifiedLog, *, is_promoted_now: bool) -> bool:
        """Append an ABORT marker for each open transaction of a promoted mirror that was copied; False if none is.

        No coordinator of this cluster has these transactions: the last stable offset would not move again. All are
        copied that are open when the topic *is promoted now*. Later, the log of the broker that copied shows it.
        """
        if not own.config.is_promoted_mirror:
            return False
        ongoing = own.producers.transactions.ongoing
        if self._dependencies.add_partitions_to_txn_manager is not None and not is_promoted_now:
            copied = own.producers.copied
            ongoing = {p: each for p, each in ongoing.items() if each.first_offset in copied}
        if not ongoing:
            return False
        now_ms = self._dependencies.now_ms()
        markers = b"".join(
            encode_transaction_marker(
                ABORT,
                producer_id=producer_id,
                producer_epoch=each.producer_epoch,
                coordinator_epoch=-1,
                timestamp=now_ms,
                base_offset=own.log_end_offset + n,
            )
            for n, (producer_id, each) in enumerate(ongoing.items())
        )
        with suppress(KafkaStorageError):  # the log directory is offline then
            # As a copy: it is no batch of a producer of this cluster with the same id.
            own.append_copied(
                markers,
                list(iterate(markers)),
                self._role.leader_epoch,
                now_ms,
                start_offset=own.log_end_offset,
            )
        return True

    def unknown(self, own: UnifiedLog) -> list[UnknownTransaction]:
        """Return the open transactions that did not begin in this leadership; none of a mirror."""
        ongoing = own.producers.transactions.ongoing
        if not ongoing or own.config.kbroker_mirror_source_cluster_id:
            return []
        known = own.producers.states.entries
        return [
            UnknownTransaction(
                producer_id,
                each.first_offset,
                known[producer_id].last_offset if producer_id in known else -1,
                self._role.leader_epoch,
            )
            for producer_id, each in ongoing.items()
            if self.in_epoch.number_of(producer_id) == UNKNOWN_NUMBER
        ]

    def _append_marker(self, own: UnifiedLog, marker: EndTxnMarker, now_ms: int) -> int:
        """Append *marker* as leader; return the end of the log."""
        batch = encode_transaction_marker(
            COMMIT if marker.is_commit else ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=now_ms,
            number=marker.number,
        )
        result = own.append_as_leader(batch, parse(batch), self._role.leader_epoch, now_ms)
        self.in_epoch.ended(marker.producer_id)
        return result.last_offset + 1


def _is_open(own: UnifiedLog, info: BatchInfo) -> bool:
    """Return whether the batch is in an open transaction of its producer, of the same epoch."""
    if info.producer_id not in own.producers.transactions.ongoing:
        return False
    known = own.producers.states.entries.get(info.producer_id)
    return known is not None and known.epoch == info.producer_epoch
