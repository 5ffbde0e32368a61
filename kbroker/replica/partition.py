"""Partition: one hosted partition with its role and its log, and everything that clients and followers do with it.

It joins `PartitionRole`, `LeaderState` and `FollowerState` with the log on disk. Every method raises the KafkaError of
the response. Delayed requests are woken through `PartitionDependencies`, when the state is consistent again.
Transactions begin and end in `PartitionTransactions`.

Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from kbroker.common.topic_partition import TopicPartition
from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.core.leader_epoch_cache import UNKNOWN_EPOCH, UNKNOWN_OFFSET
from kbroker.log.log_segments import LogSlice
from kbroker.log.log_validator import RecordValidation
from kbroker.log.unified_log import AppendResult, UnifiedLog
from kbroker.replica.core.follower_state import FollowerState
from kbroker.replica.core.leader_state import Effect, LeaderState, WriteIsr
from kbroker.replica.core.leader_transactions import EndTxnMarker, VerificationStateEntry
from kbroker.replica.core.role import PartitionRole, Role
from kbroker.replica.partition_dependencies import PartitionDependencies
from kbroker.replica.partition_transactions import PartitionTransactions, UnknownTransaction
from kclient.wire.batches import BatchInfo, Buffer, check_produced
from kclient.wire.errors import (
    FencedLeaderEpoch,
    InvalidTxnState,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownLeaderEpoch,
)
from kclient.wire.interbroker import LeaderAndIsrPartitionState
from kclient.wire.produce import MIRROR_SOURCE_CONFIG


class Read(NamedTuple):
    """What a fetch reads in one partition."""

    found: LogSlice
    high_watermark: int
    log_start_offset: int
    is_caught_up: bool
    """The reader has everything, and a follower is in the ISR; the next change arrives as an event."""
    last_stable_offset: int
    aborted: Sequence[AbortedTransaction] = ()
    """Under read_committed: the aborted transactions that overlap `found`."""


class Partition:
    """A partition with a replica on this broker."""

    __slots__ = (
        "_dependencies",
        "follower_state",
        "key",
        "lacks_records",
        "last_copied",
        "leader_state",
        "log",
        "offline",
        "role",
        "transactions",
    )

    def __init__(
        self,
        key: TopicPartition,
        broker_id: int,
        dependencies: PartitionDependencies,
    ) -> None:
        self.key = key
        self.role = PartitionRole(broker_id)
        self.log: UnifiedLog | None = None
        """None before the first LeaderAndIsr and when offline."""
        self.leader_state: LeaderState | None = None
        """Set while this broker leads."""
        self.follower_state: FollowerState | None = None
        """Set while it does not, from the first LeaderAndIsr on."""
        self.offline: str | None = None
        """Why the replica is offline: its log directory failed."""
        self.lacks_records = ""
        """What the log lacks that it once held, while there is no leader to fetch it from; or ""."""
        self._dependencies = dependencies
        self.last_copied = (-1, -1, 0)
        """Leader epoch, log end offset and CRC of the last batch after the last conditional append."""
        self.transactions = PartitionTransactions(key, self.role, dependencies)

    def __repr__(self) -> str:
        topic, index = self.key
        return f"{topic}-{index}"

    @property
    def topic_id(self) -> UUID | None:
        """The topic id, from the controller or from the log's partition.metadata."""
        return self.role.topic_id

    # -- roles ---------------------------------------------------------------------------------

    def take_role(
        self,
        state: LeaderAndIsrPartitionState,
        topic_id: UUID | None,
        log: UnifiedLog,
        high_watermark: int,
    ) -> None:
        """Become leader or follower of *state*, on *log*; *high_watermark* is the checkpointed one."""
        role, previous = self.role, self.leader_state
        known = max(self._known_high_watermark(high_watermark), log.log_start_offset)
        self.log = log
        role.take(state, topic_id)
        log.role_began()
        if role.current is not Role.LEADER:
            self.leader_state = None
            self.follower_state = FollowerState(
                role.leader, role.leader_epoch, min(known, log.log_end_offset)
            )
            # An epoch without records is no part of the log that the next leader compares.
            log.leader_epochs.truncate_from_end(log.log_end_offset)
            return
        self.follower_state = None
        if log.leader_epochs.latest < state.leader_epoch:
            # Persisted with the next flush: the epoch starts here even if nothing is appended (KAFKA-7415).
            log.leader_epochs.assign(state.leader_epoch, log.log_end_offset)
        self.leader_state = LeaderState(
            role.broker_id,
            role.isr,
            log_end_offset=log.log_end_offset,
            high_watermark=known,
            replicas=frozenset(role.replicas),
            leader_epoch=role.leader_epoch,
            zk_version=role.partition_epoch,
            min_insync_replicas=min(log.config.min_insync_replicas, len(role.replicas)),
            lag_time_max=self._dependencies.lag_time_max,
            now=self._dependencies.now(),
            previous=previous,
            epochs=dict(zip(state.isr, state.isr_epochs, strict=False)),
            elr=dict(zip(state.elr, state.elr_epochs, strict=False)),
            is_recovering=state.leader_recovery_state != 0,
            durable_end=log.held_at,
            log_start_offset=log.log_start_offset,
        )
        is_unbroken = self.leader_state.led_since_epoch < role.leader_epoch
        self.transactions.begin_leader_epoch(is_unbroken=is_unbroken)
        self.perform(self.leader_state.propose_again())
        self.abort_copied_transactions()

    def _known_high_watermark(self, otherwise: int) -> int:
        if self.leader_state is not None:
            return self.leader_state.high_watermark
        return self.follower_state.high_watermark if self.follower_state is not None else otherwise

    def stop(self) -> None:
        """Neither lead nor follow until the next LeaderAndIsr."""
        mark = self.high_watermark
        self.leader_state = None
        self.follower_state = FollowerState(-1, self.role.leader_epoch, mark)
        self.role.current = Role.FOLLOWER

    def perform(self, effects: Iterable[Effect]) -> None:
        """Carry out the effects of the leader state."""
        for effect in effects:
            if isinstance(effect, WriteIsr):
                self._dependencies.alter_partition.submit(self, effect)
            else:
                self._dependencies.high_watermark_advanced(self.key)

    def isr_write_failed(self) -> None:
        """Have the followers' next fetches propose them again: an ISR write may have failed."""
        self._dependencies.log_end_advanced(self.key)

    def maybe_shrink_isr(self) -> None:
        """Propose an ISR without the followers that lag."""
        if self.leader_state is not None:
            self.perform(self.leader_state.maybe_shrink_isr(self._dependencies.now()))

    def go_offline(self, cause: str) -> None:
        """Take the replica offline: its log directory failed."""
        self.offline = cause
        self.log = None
        self.leader_state = None
        self.follower_state = None
        self._dependencies.high_watermark_advanced(self.key)

    def require_leader(self, current_leader_epoch: int = -1) -> tuple[UnifiedLog, LeaderState]:
        """Return log and leader state; raise the error for a client of the wrong broker or epoch."""
        log, leader_state = self._require_leader_state()
        dependencies = self._dependencies
        if dependencies.registration.is_cut_off and not leader_state.is_backed(
            dependencies.followers, dependencies.now()
        ):
            raise NotLeaderOrFollower(
                f"{self}: cut off from ZooKeeper; another broker may lead it by now"
            )
        self.check_epoch(current_leader_epoch)
        return log, leader_state

    def require_leader_for_followers(
        self, current_leader_epoch: int = -1
    ) -> tuple[UnifiedLog, LeaderState]:
        """Return log and leader state, cut off or not: a follower in our epoch has elected no other leader."""
        found = self._require_leader_state()
        self.check_epoch(current_leader_epoch)
        return found

    def require_leader_for_follower(
        self, replica: int, current_leader_epoch: int
    ) -> tuple[UnifiedLog, LeaderState]:
        """Return log and leader state for a fetch of *replica*, which must be an assigned replica.

        Kafka's errors for any other replica. Both are retriable: our assignment may be older than the follower's.
        """
        found = self.require_leader_for_followers(current_leader_epoch)
        if replica not in self.role.replicas:
            error = NotLeaderOrFollower if current_leader_epoch < 0 else UnknownLeaderEpoch
            raise error(f"broker {replica} is no replica of {self}")
        return found

    def _require_leader_state(self) -> tuple[UnifiedLog, LeaderState]:
        log, leader_state = self.log, self.leader_state
        if log is None or leader_state is None:
            if self.offline is not None:
                raise KafkaStorageError(f"{self} is offline: {self.offline}")
            raise NotLeaderOrFollower(f"{self} is led by broker {self.role.leader}")
        return log, leader_state

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise the error for a client with another leader epoch than ours; -1 is none."""
        if current_leader_epoch not in (-1, self.role.leader_epoch):
            ours = self.role.leader_epoch
            if current_leader_epoch < ours:
                raise FencedLeaderEpoch(
                    f"{self}: leader epoch {current_leader_epoch} is fenced, the current one is {ours}"
                )
            raise UnknownLeaderEpoch(
                f"{self}: leader epoch {current_leader_epoch} is not known yet, the current one is {ours}"
            )

    @property
    def high_watermark(self) -> int:
        """The end of the committed records; the last known one while another broker leads."""
        return self._known_high_watermark(self.log.log_start_offset if self.log is not None else 0)

    # -- produce -------------------------------------------------------------------------------

    def append(
        self,
        buf: Buffer,
        acks: int,
        now_ms: int,
        *,
        transactional_id: str | None = None,
        zstd_allowed: bool = True,
        validation: RecordValidation | None = None,
        verification: VerificationStateEntry | None = None,
    ) -> AppendResult:
        """Validate the one batch in *buf* and append it as leader; PolicyViolation if the topic is a mirror.

        Raise LongValidationError if its records are to be checked in a pool, and TransactionNotVerifiedError if its
        transaction is to be verified first. Append it again with that *validation* and *verification* afterwards.
        """
        log, leader_state = self.require_leader_for_append(acks)
        config = log.config
        if config.kbroker_mirror_source_cluster_id:
            raise PolicyViolation(
                f"{self} is a mirror of cluster {config.kbroker_mirror_source_cluster_id} and read-only"
                f" ({MIRROR_SOURCE_CONFIG}): produce to that cluster. kmirror promote makes it writable;"
                " kmirror promote --abort does, if a promotion was not finished"
            )
        info = check_produced(
            buf, max_batch_bytes=config.max_message_bytes, zstd_allowed=zstd_allowed
        )
        if info.is_transactional:
            self.transactions.check_request(transactional_id)
        if validation is None:
            validation = RecordValidation(buf, info, config, now_ms)
            validation.run_briefly()
        buf, info = validation.result(self)
        if info.producer_id >= 0:
            repeated = self.check_producer(log, info)
            if repeated is not None:
                return repeated
            if info.is_transactional:
                self.transactions.require(log, info, transactional_id, validation, verification)
            elif info.producer_id in log.producers.transactions.ongoing:
                raise InvalidTxnState(
                    f"{self}: producer {info.producer_id} has an open transaction, the batch is not transactional"
                )
        result = log.append_as_leader(buf, info, self.role.leader_epoch, now_ms)
        if info.is_transactional:
            self.transactions.in_epoch.began(info.producer_id)
        self.log_end_advanced(leader_state, result.last_offset + 1)
        return result

    def require_leader_for_append(self, acks: int) -> tuple[UnifiedLog, LeaderState]:
        """Return log and leader state; NotEnoughReplicas when acks=all cannot be served."""
        log, leader_state = self.require_leader()
        if acks == -1 and not leader_state.has_min_insync_replicas:
            raise NotEnoughReplicas(
                f"{self} has {len(leader_state.isr)} in-sync replicas,"
                f" min.insync.replicas asks for {leader_state.min_insync_replicas}"
            )
        return log, leader_state

    def check_producer(self, log: UnifiedLog, info: BatchInfo) -> AppendResult | None:
        """Return the former result for an idempotent producer's batch that is in the log already (KIP-98).

        Raise OutOfOrderSequenceNumber or InvalidProducerEpoch.
        """
        repeated = log.producers.states.check(info)
        if repeated is None:
            return None
        return AppendResult(
            repeated.base_offset,
            repeated.last_offset,
            repeated.timestamp if log.config.log_append_time else -1,
            log.log_start_offset,
        )

    # -- transactions --------------------------------------------------------------------------

    def maybe_start_transaction_verification(self, buf: Buffer, transactional_id: str) -> None:
        """Start to verify the transaction of the batch in *buf*, if it may begin one.

        The batch is appended later in this request. So the verifications of all its partitions are sent together.
        """
        if self.log is not None and self.leader_state is not None:
            self.transactions.maybe_start_verification(self.log, buf, transactional_id)

    def end_transaction(
        self, marker: EndTxnMarker, now_ms: int, *, sent_by_client: bool = False
    ) -> int:
        """Append *marker* as leader, if it has an effect; return the offset up to which to wait for the replicas.

        The marker counts when the records below that offset are committed; 0: it counts now. *sent_by_client*: it is an
        ABORT, and the sender is no broker. Raise NotEnoughReplicas with fewer in-sync replicas than
        min.insync.replicas, InvalidProducerEpoch, or TransactionCoordinatorFenced.
        """
        log, leader_state = self.require_leader_for_append(-1)
        if sent_by_client:
            end = self.transactions.abort_for_client(log, marker, now_ms)
        else:
            end = self.transactions.end(log, marker, now_ms)
        if end:
            self.log_end_advanced(leader_state, end)
        return end

    def unknown_transactions(self) -> list[UnknownTransaction]:
        """Return the open transactions that did not begin in this leadership; none of a mirror."""
        if self.log is None or self.leader_state is None:
            return []
        return self.transactions.unknown(self.log)

    def abort_hanging_transaction(self, hanging: UnknownTransaction) -> None:
        """Append the ABORT of a transaction that no coordinator has, unless its state has changed since."""
        log, leader_state = self.log, self.leader_state
        if log is None or leader_state is None or hanging not in self.unknown_transactions():
            return
        # Cut off, or its log directory is offline: the next look finds it again.
        with suppress(KafkaError):
            self.require_leader()
            self.transactions.abort_lost(log, hanging.producer_id)
        self.log_end_advanced(leader_state, log.log_end_offset)

    def abort_copied_transactions(self, *, is_promoted_now: bool = False) -> None:
        """Abort the open transactions of a promoted mirror that were copied; see `PartitionTransactions`."""
        log, leader_state = self.log, self.leader_state
        if log is None or leader_state is None:
            return
        if self.transactions.abort_copied(log, is_promoted_now=is_promoted_now):
            self.log_end_advanced(leader_state, log.log_end_offset)

    # -- the log end, and what is acknowledged -------------------------------------------------

    def log_end_advanced(self, leader_state: LeaderState, log_end_offset: int) -> None:
        """Pass the new log end to the leader state, and wake the followers' fetches."""
        held_at = None
        if self.log is not None:
            held_at = self.log.held_at
            self.log.replicated(leader_state.high_watermark)
        if leader_state.log_end(log_end_offset, self._dependencies.now(), held_at):
            self._dependencies.high_watermark_advanced(self.key)
        if leader_state.is_followed:
            self._dependencies.log_end_advanced(self.key)

    def log_flushed(self) -> None:
        """Handle the end of a sync of the log: its records count as our copy, and their producers get responses."""
        log, leader_state = self.log, self.leader_state
        if log is None:
            return
        if leader_state is None:
            self._dependencies.fetchers.log_flushed(self.key)
            return
        held_at = log.held_at
        self.perform(leader_state.flushed(log.log_end_offset if held_at is None else held_at))
        self._dependencies.high_watermark_advanced(self.key)

    @property
    def flush_is_due(self) -> bool:
        """Whether records of the log wait for a sync."""
        return self.log is not None and self.log.held_at is not None

    def awaits_flush(self, last_offset: int) -> bool:
        """Return whether the record at *last_offset* needs a sync before its response."""
        held_at = self.log.held_at if self.log is not None else None
        return held_at is not None and held_at <= last_offset

    def is_flushed(self, offset: int, leader_epoch: int) -> bool:
        """Return whether the record before *offset*, appended in *leader_epoch*, is synced as its topic requires.

        NotLeaderOrFollower if another broker may have led since: the record may no longer be in the log.
        """
        _, leader_state = self.require_leader()
        if leader_epoch < leader_state.led_since_epoch:
            raise NotLeaderOrFollower(f"{self} changed its leader before the sync ended")
        return not self.awaits_flush(offset - 1)

    def is_committed(self, offset: int, leader_epoch: int) -> bool:
        """Return whether the record before *offset*, appended in *leader_epoch*, is committed.

        NotLeaderOrFollower if another broker may have led since; NotEnoughReplicasAfterAppend when fewer replicas have
        it than min.insync.replicas.
        """
        _, leader_state = self.require_leader()
        if leader_epoch < leader_state.led_since_epoch:
            raise NotLeaderOrFollower(f"{self} changed its leader before the record was committed")
        if leader_state.high_watermark < offset:
            return False
        if not leader_state.has_min_insync_replicas:
            raise NotEnoughReplicasAfterAppend(
                f"{self} has only {len(leader_state.isr)} in-sync replicas left"
            )
        return True

    # -- fetch ---------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool,
        current_leader_epoch: int = -1,
        read_committed: bool = False,
    ) -> Read:
        """Return replicated batches from *offset* on; with *read_committed* up to the last stable offset (KIP-98)."""
        log, leader_state = self.require_leader(current_leader_epoch)
        return _read_up_to(
            log, leader_state.high_watermark, offset, max_bytes, min_one_batch, read_committed
        )

    def read_at_follower(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool,
        current_leader_epoch: int,
        read_committed: bool = False,
    ) -> Read:
        """Return batches from *offset* on that this follower knows to be committed (KIP-392).

        Above its high watermark it returns no records, above its log end OffsetOutOfRange: the consumer asks the
        leader.
        """
        log, follower_state = self.log, self.follower_state
        if log is None or follower_state is None:
            self.require_leader(current_leader_epoch)
            raise NotLeaderOrFollower(f"{self} has no log here")
        self.check_epoch(current_leader_epoch)
        return _read_up_to(
            log, follower_state.high_watermark, offset, max_bytes, min_one_batch, read_committed
        )

    def high_watermark_advanced(self) -> None:
        """Wake delayed requests: this follower's high watermark advanced."""
        if self.log is not None:
            self.log.replicated(self.high_watermark)
        self._dependencies.high_watermark_advanced(self.key)

    def read_as_follower(
        self,
        replica: int,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool,
        current_leader_epoch: int,
        broker_epoch: int = -1,
        again: bool = False,
    ) -> Read:
        """Return batches up to the log end for follower *replica*; the offset is its log end.

        *broker_epoch* is the epoch in the fetch (KIP-903). *again*: a delayed fetch, with an arrival that is recorded
        already.
        """
        log, leader_state = self.require_leader_for_follower(replica, current_leader_epoch)
        found = log.read(offset, max_bytes, min_one_batch=min_one_batch)
        if not again:
            dependencies = self._dependencies
            self.perform(
                leader_state.follower_fetched(
                    replica,
                    offset,
                    current_leader_epoch,
                    dependencies.now(),
                    broker_epoch,
                    may_join=replica in leader_state.maximal_isr
                    or dependencies.may_join_isr(replica, broker_epoch),
                )
            )
        # A follower outside the ISR tries to join with every fetch, until a pending write names it.
        is_caught_up = offset >= log.log_end_offset and leader_state.is_in_proposed_isr(replica)
        high_watermark = leader_state.high_watermark
        return Read(
            found,
            high_watermark,
            log.log_start_offset,
            is_caught_up,
            log.last_stable_offset(high_watermark),
        )

    def diverging_epoch(
        self, fetch_offset: int, last_fetched_epoch: int, *, follower: bool = False
    ) -> tuple[int, int] | None:
        """Return (epoch, end offset) up to which a reader's log agrees with ours, if it diverges; else None.

        *last_fetched_epoch* is the epoch of the reader's record before *fetch_offset* (KIP-595). A *follower* may end
        where our log begins, with an epoch older than all that we know. It has none of our records, and whether it ever
        agreed can no longer be known: OffsetOutOfRange, so that it starts again there.
        """
        log, _ = self._require_leader_state()
        if follower and fetch_offset == log.log_start_offset > 0:
            entries = log.leader_epochs.entries
            if entries and last_fetched_epoch < entries[0].epoch:
                raise OffsetOutOfRange(
                    f"{self} begins at {fetch_offset}: no record of this follower is in it"
                )
        epoch, end = log.leader_epochs.end_offset_of(last_fetched_epoch, log.log_end_offset)
        if epoch == UNKNOWN_EPOCH or end == UNKNOWN_OFFSET:
            raise OffsetOutOfRange(f"{self}: leader epoch {last_fetched_epoch} is unknown here")
        return (epoch, end) if epoch < last_fetched_epoch or end < fetch_offset else None

    # -- the log start offset --------------------------------------------------------------------

    def follower_starts_at(self, replica: int, log_start_offset: int) -> None:
        """Handle the log start offset in a fetch of *replica*: DeleteRecords waits for it."""
        leader_state = self.leader_state
        if leader_state is not None and leader_state.follower_starts_at(replica, log_start_offset):
            self._dependencies.high_watermark_advanced(self.key)

    def low_watermark(self, live: Container[int]) -> int:
        """Return the smallest log start offset of this replica and of those on *live* brokers."""
        log, leader_state = self.require_leader()
        return leader_state.low_watermark(log.log_start_offset, live)

    def delete_records(self, before_offset: int) -> int:
        """Delete everything below *before_offset* (-1: the high watermark); return the log start offset."""
        log, leader_state = self.require_leader()
        if not log.config.deletes:
            raise PolicyViolation(
                f"{self}: records can only be deleted where cleanup.policy contains delete"
            )
        wanted = leader_state.high_watermark if before_offset == -1 else before_offset
        if not 0 <= wanted <= leader_state.high_watermark:
            raise OffsetOutOfRange(
                f"{self}: cannot delete up to {wanted}, the high watermark is {leader_state.high_watermark}"
            )
        if log.advance_log_start(wanted):
            self.log_start_advanced()
        return log.log_start_offset

    def log_start_advanced(self) -> None:
        """Handle a new log start offset: fetch sessions and our leader receive it."""
        self._dependencies.high_watermark_advanced(self.key)
        self._dependencies.log_end_advanced(self.key)
        self._dependencies.fetchers.log_start_advanced(self.key)


def _read_up_to(
    log: UnifiedLog,
    high_watermark: int,
    offset: int,
    max_bytes: int,
    min_one_batch: bool,
    read_committed: bool,
) -> Read:
    """Read for a client: up to the *high_watermark* of the replica, or its last stable offset."""
    last_stable_offset = log.last_stable_offset(high_watermark)
    end = last_stable_offset if read_committed else high_watermark
    found = log.read(offset, max_bytes, up_to_offset=end, min_one_batch=min_one_batch)
    aborted = log.aborted_transactions(offset, found, end) if read_committed else ()
    return Read(
        found, high_watermark, log.log_start_offset, offset >= end, last_stable_offset, aborted
    )
