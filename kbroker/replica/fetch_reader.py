"""FetchReader: one pass over the partitions of a fetch, within the byte limit of the whole response.

Each attempt at a delayed fetch makes a new reader. Slices hold their segments open, so a pass that is not sent is
released. Owner: the reactor's thread.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from kbroker.network.transport import release
from kbroker.replica.partition import Partition, Read
from kbroker.replica.preferred_read_replica import ReplicaSelector
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.errors import (
    InconsistentTopicId,
    KafkaError,
    UnknownTopicId,
    code_of,
)
from kclient.wire.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
)

READ_COMMITTED = 1
DEBUGGING_REPLICA = -2
"""The replica id of kafka-replica-verification, which fetches from each replica. It reads committed records."""


class ReadResult(NamedTuple):
    """The response for one partition."""

    response: FetchPartitionResponse
    is_caught_up: bool
    """Whether the next change of the partition arrives as an event (`Read.is_caught_up`)."""


class FetchReader:
    """A pass for *request*, within *limit* bytes.

    *follower* is the broker that fetches, None for a consumer. *again*: the fetch was delayed, and its arrival is
    recorded. *replica_selector* selects the preferred read replica of a consumer (KIP-392).
    """

    __slots__ = (
        "_again",
        "_follower",
        "_limit",
        "_read",
        "_replica_manager",
        "_replica_selector",
        "_request",
        "_throttled",
        "failed",
        "size",
    )

    def __init__(
        self,
        replica_manager: ReplicaManager,
        request: FetchRequest,
        follower: int | None,
        limit: int,
        *,
        again: bool,
        replica_selector: ReplicaSelector | None = None,
    ) -> None:
        self._replica_manager = replica_manager
        self._request = request
        self._follower = follower
        self._limit = limit
        self._again = again
        self._replica_selector = replica_selector
        self._read: list[FetchPartitionResponse] = []
        self._throttled = 0
        """Bytes of records that count for the leader's quota."""
        self.size = 0
        """Bytes of records."""
        self.failed = False
        """Whether a partition has a response that must not wait: an error, a divergence, a preferred read replica."""

    @property
    def suffices(self) -> bool:
        """Whether the response is complete enough to be sent now."""
        request = self._request
        enough = min(request.min_bytes, self._limit)
        return self.size >= enough or self.failed or request.max_wait_ms <= 0

    def read(self, name: str | None, topic_id: UUID | None, asked: FetchPartition) -> ReadResult:
        """Read one partition of topic *name*, which is None for an unknown topic id."""
        try:
            return self._read_one(name, topic_id, asked)
        except KafkaError as error:
            self.failed = True
            return ReadResult(FetchPartitionResponse(asked.partition, int(code_of(error))), False)

    def _read_one(
        self, name: str | None, topic_id: UUID | None, asked: FetchPartition
    ) -> ReadResult:
        if name is None:
            raise UnknownTopicId(f"topic id {topic_id}")
        follower = self._follower
        partition = self._replica_manager.partition(name, asked.partition)
        if topic_id is not None and partition.topic_id not in (None, topic_id):
            raise InconsistentTopicId(f"{partition} has topic id {partition.topic_id}")
        response = FetchPartitionResponse(asked.partition)
        if asked.last_fetched_epoch >= 0:
            if follower is None:
                partition.require_leader(asked.current_leader_epoch)
            else:
                partition.require_leader_for_follower(follower, asked.current_leader_epoch)
            diverging = partition.diverging_epoch(
                asked.fetch_offset, asked.last_fetched_epoch, follower=follower is not None
            )
            if diverging is not None:
                self.failed = True
                response.diverging_epoch = EpochEndOffset(*diverging)
                return ReadResult(response, False)
        if follower is None and self._request.rack_id:
            redirect = self._redirect(partition, asked)
            if redirect is not None:
                return ReadResult(redirect, False)
        room = max(min(asked.partition_max_bytes, self._limit - self.size), 0)
        read = (
            self._read_for_client(partition, asked, room)
            if follower is None
            else self._read_for_follower(partition, follower, asked, room)
        )
        response.high_watermark = read.high_watermark
        response.last_stable_offset = read.last_stable_offset
        response.log_start_offset = read.log_start_offset
        response.records, response.records_size = read.found
        if self._request.isolation_level == READ_COMMITTED:
            response.aborted_transactions = [
                AbortedTransaction(each.producer_id, each.first_offset) for each in read.aborted
            ]
        if response.records_size:
            self.size += response.records_size
            self._read.append(response)
        return ReadResult(response, read.is_caught_up)

    def _read_for_client(self, partition: Partition, asked: FetchPartition, room: int) -> Read:
        # Only a consumer with a rack, and the verification tool, expect the errors of followers.
        request = self._request
        anywhere = request.rack_id or request.replica_id == DEBUGGING_REPLICA
        at_leader = partition.leader_state is not None or not anywhere
        return (partition.read if at_leader else partition.read_at_follower)(
            asked.fetch_offset,
            room,
            min_one_batch=not self.size,
            current_leader_epoch=asked.current_leader_epoch,
            read_committed=request.isolation_level == READ_COMMITTED,
        )

    def _read_for_follower(
        self, partition: Partition, follower: int, asked: FetchPartition, room: int
    ) -> Read:
        named, held_back = self._throttle(partition, follower)
        read = partition.read_as_follower(
            follower,
            asked.fetch_offset,
            0 if held_back else room,
            min_one_batch=not (self.size or held_back),
            current_leader_epoch=asked.current_leader_epoch,
            broker_epoch=self._request.replica_epoch,
            again=self._again,
        )
        partition.follower_starts_at(follower, asked.log_start_offset)
        if named:
            size = read.found[1]
            self._throttled += size
            self._replica_manager.quotas.leader.record(size, self._now())
        return read

    def _redirect(
        self, partition: Partition, asked: FetchPartition
    ) -> FetchPartitionResponse | None:
        """Return a response with the preferred read replica in place of records; None if this broker serves."""
        if self._replica_selector is None or partition.leader_state is None:
            return None
        log, leader_state = partition.require_leader(asked.current_leader_epoch)
        replica = self._replica_selector(leader_state, self._request.rack_id, asked.fetch_offset)
        if replica is None:
            return None
        self.failed = True
        response = FetchPartitionResponse(asked.partition)
        response.preferred_read_replica = replica
        response.high_watermark = leader_state.high_watermark
        response.last_stable_offset = log.last_stable_offset(leader_state.high_watermark)
        response.log_start_offset = log.log_start_offset
        return response

    def _throttle(self, partition: Partition, follower: int) -> tuple[bool, bool]:
        """Return whether *partition* is throttled on the leader's side, and whether *follower* is held back."""
        throttle, log, leader_state = (
            self._replica_manager.quotas.leader,
            partition.log,
            partition.leader_state,
        )
        if (
            log is None
            or leader_state is None
            or not throttle.is_throttled(partition.key, log.config)
        ):
            return False, False
        return True, follower not in leader_state.isr and throttle.is_quota_exceeded(self._now())

    def _now(self) -> float:
        now: float = self._replica_manager.reactor.seconds()
        return now

    def release(self) -> None:
        """Release the file slices: they are not sent, and do not count for the quota."""
        if self._throttled:
            self._replica_manager.quotas.leader.record(-self._throttled, self._now())
        for response in self._read:
            release(response.records)  # type: ignore[arg-type]  # slices, from `read`
