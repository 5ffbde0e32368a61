"""Known bugs of replication: the ISR, the high watermark, and truncation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kbroker.apis import api00_produce
from kbroker.metadata.epoch_fences import ControllerFence, Registration
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.replica import follower_log
from kbroker.replica.become_leader_or_follower import ReplicaStateChanges
from kbroker.replica.core.follower_state import EpochEnd, FollowerState
from kbroker.replica.core.leader_state import LeaderState
from kbroker.replica.core.role import PartitionRole
from kbroker.replica.fetch_reader import FetchReader
from kbroker.replica.partition import Partition
from kbroker.zk.client import ClientRequests
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import StopReplicaRequest
from tests.simulation.mutants.registry import Change, frequent_mutant, mutant


@mutant
def watermark_by_committed_isr() -> list[Change]:
    """The watermark counts the acknowledged ISR only, not an ISR that may have been written (KIP-497)."""

    original = LeaderState.advance

    def advance(self: LeaderState) -> bool:
        maximal, joining = self.maximal_isr, self._joining
        self.maximal_isr, self._joining = self.isr, set()
        try:
            return original(self)
        finally:
            self.maximal_isr, self._joining = maximal, joining

    return [(LeaderState, "advance", advance)]


@frequent_mutant
def truncation_to_the_watermark() -> list[Change]:
    """A new follower cuts its log at the watermark it knows, as before KIP-101."""
    original = Partition.take_role

    def take_role(self: Partition, *args: Any) -> None:
        original(self, *args)
        if self.follower_state is not None and self.log is not None:
            self.log.truncate_to(self.follower_state.high_watermark)

    return [(Partition, "take_role", take_role)]


@mutant
def state_written_unconditionally() -> list[Change]:
    """The ISR is written whatever the version of the znode is (KAFKA-2729 cured too well)."""
    original = ClientRequests.set

    def set_any(self: ClientRequests, path: str, data: bytes, version: int) -> Any:
        return original(self, path, data, -1 if path.endswith("/state") else version)

    return [(ClientRequests, "set", set_any)]


@frequent_mutant
def joining_the_isr_early() -> list[Change]:
    """Every replica that fetches joins the ISR, wherever its log ends."""
    original = LeaderState.follower_fetched

    def fetched(self: LeaderState, replica: int, offset: int, *rest: Any, **named: Any) -> Any:
        mark, start = self.high_watermark, self.epoch_start_offset
        self.high_watermark = self.epoch_start_offset = min(offset, mark)
        try:
            effects = original(self, replica, offset, *rest, **named)
        finally:
            self.high_watermark = max(mark, self.high_watermark)
            self.epoch_start_offset = start
        return effects

    return [(LeaderState, "follower_fetched", fetched)]


@mutant
def joining_before_the_epoch_start() -> list[Change]:
    """A follower joins the ISR at the watermark that a new leader happens to know (KAFKA-7128)."""
    original = LeaderState.follower_fetched

    def fetched(self: LeaderState, *given: Any, **named: Any) -> Any:
        start, self.epoch_start_offset = self.epoch_start_offset, 0
        try:
            return original(self, *given, **named)
        finally:
            self.epoch_start_offset = start

    return [(LeaderState, "follower_fetched", fetched)]


@frequent_mutant
def answer_before_the_watermark() -> list[Change]:
    """acks=all is answered when the leader has it."""
    return [(api00_produce, "ALL_IN_SYNC", 77)]


@mutant
def no_divergence() -> list[Change]:
    """A leader never returns a diverging epoch."""
    return [(Partition, "diverging_epoch", lambda *_args, **_more: None)]


@mutant
def lost_answer_taken_for_a_refusal() -> list[Change]:
    """An ISR write with a lost answer counts as not done (S5)."""

    def found(self: LeaderState, *_found: Any) -> Any:
        self.pending = None
        self._update_maximal_isr()
        return []

    return [(LeaderState, "isr_found", found)]


@frequent_mutant
def no_min_isr_at_append() -> list[Change]:
    """A leader appends acks=all batches while its ISR is under min.insync.replicas."""
    return [(Partition, "require_leader_for_append", lambda self, _acks: self.require_leader())]


@frequent_mutant
def watermark_under_min_isr() -> list[Change]:
    """The high watermark advances while the ISR is under min.insync.replicas (KAFKA-15583).

    The leader remembers the replicas that left such an ISR (`elr`), and waits for them: the second guard goes, too.
    """
    advance, settle = LeaderState.advance, LeaderState._update_maximal_isr

    def unguarded(original: Any) -> Any:
        def method(self: LeaderState) -> Any:
            required, self.min_insync_replicas = self.min_insync_replicas, 1
            elr, self.elr = self.elr, {}
            try:
                return original(self)
            finally:
                self.min_insync_replicas, self.elr = required, elr

        return method

    return [
        (LeaderState, "advance", unguarded(advance)),
        (LeaderState, "_update_maximal_isr", unguarded(settle)),
    ]


@mutant
def a_missed_epoch_is_trusted() -> list[Change]:
    """A follower cuts its log where the leader's epoch ends, though it does not know that epoch (KIP-279)."""

    def agreed_end(_self: FollowerState, theirs: EpochEnd, _ours: EpochEnd, log_end: int) -> int:
        return min(theirs.end_offset, log_end)

    return [(FollowerState, "agreed_end", agreed_end)]


@mutant
def truncation_happens_once() -> list[Change]:
    """A follower that has cut its log once takes it for the leader's (KIP-279)."""
    cut: dict[int, FollowerState] = {}
    truncate, build_fetch = follower_log.truncate, follower_log.build_fetch

    def truncates(partition: Partition, offset: int) -> None:
        truncate(partition, offset)
        follower_state = follower_log.follower_replica(partition)[1]
        cut[id(follower_state)] = follower_state

    def asks(partition: Partition, max_bytes: int) -> Any:
        asked = build_fetch(partition, max_bytes)
        if id(partition.follower_state) in cut:
            asked.last_fetched_epoch = -1
        return asked

    return [
        (follower_log, "truncate", truncates),
        (follower_log, "build_fetch", asks),
    ]


@mutant
def a_fetch_of_an_old_epoch_is_counted() -> list[Change]:
    """A fetch that a follower sent in an earlier leader epoch is served as one that names no epoch (KIP-320).

    Three checks stand in its way: of the epoch, of the last epoch in the follower's log, and of the epoch again where
    the high watermark is moved.
    """
    answer = FetchReader._read_one

    def answered(self: FetchReader, name: Any, topic_id: Any, asked: Any) -> Any:
        partition = self._replica_manager.registry.partitions.get((name, asked.partition))
        if self._follower is not None and partition is not None:
            epoch = partition.role.leader_epoch
            if asked.current_leader_epoch < epoch:
                asked = replace(asked, current_leader_epoch=epoch, last_fetched_epoch=-1)
        return answer(self, name, topic_id, asked)

    return [(FetchReader, "_read_one", answered)]


@mutant
def a_cut_off_leader_serves() -> list[Change]:
    """A leader with an expired session serves clients until it receives its successor's epoch (S11)."""
    return [(Partition, "require_leader", Partition.require_leader_for_followers)]


@mutant
def broker_epoch_unchecked() -> list[Change]:
    """A broker executes a controller's request for an earlier run of that broker (KIP-380).

    The numbers of requests, which are compared across restarts, are a second guard, and go, too.
    """
    original = ControllerFence.is_overtaken

    def is_overtaken(self: ControllerFence, epoch: int, broker_epoch: int, number: int) -> bool:
        return broker_epoch >= self._sender[1] and original(self, epoch, broker_epoch, number)

    return [
        (Registration, "lowest_accepted", -1),
        (ControllerFence, "is_overtaken", is_overtaken),
    ]


@mutant
def any_epoch_in_leader_and_isr() -> list[Change]:
    """A broker takes the role of an earlier leader epoch."""
    check_leader_and_isr = PartitionRole.check_leader_and_isr

    def judged(self: PartitionRole, *given: Any) -> ErrorCode:
        epoch, self.leader_epoch = self.leader_epoch, -1
        try:
            return check_leader_and_isr(self, *given)
        finally:
            self.leader_epoch = epoch

    return [(PartitionRole, "check_leader_and_isr", judged)]


@mutant
def any_epoch_in_stop_replica() -> list[Change]:
    """A broker executes a StopReplica of an earlier leader epoch (KIP-570).

    The numbers of requests are a second guard for what one controller sends: StopReplica is not numbered, either.
    """
    original = ReplicaStateChanges._check_epochs

    def refused(self: ReplicaStateChanges, request: Any) -> ErrorCode:
        if isinstance(request, StopReplicaRequest):
            request.request_number = -1
        return original(self, request)

    return [
        (PartitionRole, "check_stop_replica", lambda _self, _epoch: ErrorCode.NONE),
        (ReplicaStateChanges, "_check_epochs", refused),
    ]


@mutant
def members_of_an_old_broker_epoch_join_the_isr() -> list[Change]:
    """A fetch that a broker sent in an earlier run adds it to the ISR (KIP-903)."""

    def may_join(self: MetadataCache, broker_id: int, _broker_epoch: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.is_shutting_down

    return [(MetadataCache, "may_join_isr", may_join)]


@mutant
def fetches_of_an_old_broker_epoch_are_counted() -> list[Change]:
    """A leader takes the broker epoch of a follower from its metadata, not from the fetch (KIP-903)."""
    original = Partition.read_as_follower

    def read(self: Partition, replica: int, *given: Any, **named: Any) -> Any:
        metadata = self._dependencies.may_join_isr.__self__  # type: ignore[attr-defined]
        broker = metadata.brokers.get(replica)
        named["broker_epoch"] = broker.epoch if broker is not None else -1
        return original(self, replica, *given, **named)

    return [(Partition, "read_as_follower", read)]
