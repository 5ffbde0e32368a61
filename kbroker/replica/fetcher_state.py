"""FetcherState: the partitions of one fetcher, its next request, and the handling of responses; nothing here waits.

Theory of operation
===================
The session (KIP-227) holds the last request for each partition. `_moved` holds the partitions with a new request:
records were appended, or the partition was added. A partition that failed, with whatever error, or is throttled
(KIP-73) is left out of the session until its delay is over. It delays no other. A partition with another role by now is
removed when it is met.

A partition with an append that waits for a sync (flush.messages) is not fetched before the sync has ended. The offset
in a fetch states what this replica has (docs/design/flush.md).

Invariants:
1. An added partition is in the session, in `_moved`, delayed, or waits for a sync. A delayed one is in neither of the
   first two, nor is one that waits for a sync once the next request is built.
2. A response is applied only to a partition that was requested since it was added, in its present role.
3. A session never names a removed partition.

In: partitions, responses, the time (seconds)   Out: requests, appended logs, partitions out of the leader's range
Owner: its `ReplicaFetcher`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.topic_partition import TopicPartition
from kbroker.replica import follower_log
from kbroker.replica.core.follower_state import FollowerState
from kbroker.replica.core.replication_quota import ReplicationQuota
from kbroker.replica.partition import Partition
from kclient.net.fetch_session import FetchSessionHandler
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError, for_code
from kclient.wire.fetch import FetchPartitionResponse, FetchRequest, FetchResponse

log = Logger()

FIRST_PAUSE = 0.05
"""Seconds of delay after the first failure; doubled with every further one."""

LONGEST_THROTTLE_SECONDS = 1.0
"""A throttled partition is tried again after so long: the rate may have changed."""

NEW_PARTITIONS_PER_FETCH = 250
"""The most partitions in a fetch that the session does not have yet."""

REPORTED_AFTER_FAILURES: Final = 4
"""A partition that failed so often in a row is reported in the log."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """A fetcher's part of the broker's configuration, in seconds and bytes."""

    broker_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    max_pause: float
    request_timeout: float


class PartitionFetchState:
    """One followed partition, in one role."""

    __slots__ = (
        "failures",
        "follower_state",
        "in_sync",
        "is_requested",
        "not_before",
        "partition",
        "topic_id",
    )

    def __init__(self, partition: Partition, follower_state: FollowerState) -> None:
        self.partition = partition
        self.follower_state = follower_state
        self.topic_id = partition.topic_id
        self.is_requested = False
        """Whether a fetch has requested it."""
        self.in_sync = False
        """Whether it had all committed records at the last response."""
        self.failures = 0
        self.not_before = 0.0
        """When it may be fetched again; 0: now."""

    @property
    def current(self) -> bool:
        """Whether the role is still the present one."""
        return self.partition.follower_state is self.follower_state


class FetcherState:
    """The partitions that are fetched from broker *leader*; *throttle* is the follower's quota."""

    def __init__(self, leader: int, settings: FetcherSettings, throttle: ReplicationQuota) -> None:
        self._leader = leader
        self._settings = settings
        self._throttle = throttle
        self._followed: dict[TopicPartition, PartitionFetchState] = {}
        self._by_id: dict[tuple[UUID | None, int], PartitionFetchState] = {}
        """The same, by the identity in responses."""
        self._moved: dict[PartitionFetchState, None] = {}
        """Partitions that the next fetch requests from another offset, or for the first time."""
        self._pausing: dict[PartitionFetchState, None] = {}
        self._flushing: dict[PartitionFetchState, bool] = {}
        """Partitions with appends that wait for a sync, and whether the session no longer has them."""
        self.session = FetchSessionHandler()
        self.failing: list[tuple[PartitionFetchState, Exception]] = []
        """Partitions that fail repeatedly, until they are reported."""

    def __len__(self) -> int:
        return len(self._followed)

    def add_partition(self, partition: Partition) -> None:
        """Fetch *partition* in its present role."""
        assert partition.follower_state is not None
        self.remove_partition(partition.key)
        each = PartitionFetchState(partition, partition.follower_state)
        self._followed[partition.key] = each
        self._by_id[each.topic_id, partition.key[1]] = each
        self._moved[each] = None

    def log_start_advanced(self, key: TopicPartition) -> None:
        """Send the new log start offset of a partition with the next fetch."""
        each = self._followed.get(key)
        if each is not None and each not in self._pausing:
            self._moved[each] = None

    def log_flushed(self, key: TopicPartition) -> bool:
        """Handle the end of a log's sync: fetch on. Return whether the partition waited for it."""
        each = self._followed.get(key)
        if each is None or each not in self._flushing:
            return False
        del self._flushing[each]
        self._moved[each] = None
        return True

    @property
    def awaits_flush(self) -> bool:
        """Whether the last response brought records that wait for a sync."""
        return bool(self._flushing) and not all(self._flushing.values())

    def remove_partition(self, key: TopicPartition) -> None:
        """Fetch a partition no longer."""
        each = self._followed.pop(key, None)
        if each is None:
            return
        self._by_id.pop((each.topic_id, key[1]), None)
        self._moved.pop(each, None)
        self._pausing.pop(each, None)
        self._flushing.pop(each, None)
        self.session.remove(each.topic_id, key[1])

    def clear(self) -> None:
        """Remove every partition."""
        for key in list(self._followed):
            self.remove_partition(key)

    def seconds_until_fetch(self, now: float) -> float | None:
        """Return the seconds until the next fetch; None: no partitions, or all wait for syncs."""
        if not self._followed:
            return None
        if len(self._pausing) + len(self._flushing) < len(self._followed):
            return 0.0
        return self.seconds_until_due(now)

    def seconds_until_due(self, now: float) -> float | None:
        """Return the seconds until the first delayed partition may be fetched again; None: none is delayed."""
        if not self._pausing:
            return None
        return max(min(each.not_before for each in self._pausing) - now, 0.0)

    # -- requests -------------------------------------------------------------------------------

    def build_fetch(self, broker_epoch: int, now: float) -> FetchRequest | None:
        """Return the next request, with our *broker_epoch* (KIP-903); None: nothing to fetch."""
        settings = self._settings
        if self._pausing:
            for each in [each for each in self._pausing if each.not_before <= now]:
                del self._pausing[each]
                self._moved[each] = None
        for each, has_left in self._flushing.items():
            if not has_left:
                self._leave_until_flushed(each)
        moved, self._moved = self._moved, {}
        for each in moved:
            try:
                self._request(each, now)
            except Exception as error:
                self.delay_partition(each, error, now)
        if not self.session:
            return None
        request_data = self.session.request(NEW_PARTITIONS_PER_FETCH)
        return FetchRequest(
            0 if self.session.is_behind else settings.max_wait_ms,
            settings.min_bytes,
            request_data.topics,
            max_bytes=settings.max_bytes,
            session_id=request_data.session_id,
            session_epoch=request_data.session_epoch,
            replica_id=settings.broker_id,
            replica_epoch=broker_epoch,
            forgotten=request_data.forgotten,
        )

    def _request(self, each: PartitionFetchState, now: float) -> None:
        if not each.current:
            self.remove_partition(each.partition.key)
        elif each.partition.flush_is_due:
            self._leave_until_flushed(each)
        elif not self._is_throttled(each, now):
            asked = follower_log.build_fetch(each.partition, self._settings.partition_max_bytes)
            self.session.add(each.topic_id, asked)
            each.is_requested = True

    def _leave_until_flushed(self, each: PartitionFetchState) -> None:
        self._flushing[each] = True
        self.session.remove(each.topic_id, each.partition.key[1])

    def _is_throttled(self, each: PartitionFetchState, now: float) -> bool:
        """Delay a partition that is throttled (KIP-73), unless it is in sync."""
        throttle, log_of = self._throttle, each.partition.log
        if each.in_sync or log_of is None:
            return False
        if not throttle.is_throttled(each.partition.key, log_of.config):
            return False
        wait = throttle.throttle_time(now)
        if wait <= 0:
            return False
        each.not_before = now + min(wait, LONGEST_THROTTLE_SECONDS)
        self._pausing[each] = None
        self.session.remove(each.topic_id, each.partition.key[1])
        return True

    # -- responses ------------------------------------------------------------------------------

    def process_fetch_response(
        self, response: FetchResponse, now: float, now_ms: int
    ) -> list[PartitionFetchState]:
        """Apply *response*; return the partitions with a log outside the leader's range."""
        out_of_range = []
        for topic in response.topics:
            for answer in topic.partitions:
                each = self._by_id.get((topic.topic_id, answer.partition))
                if (
                    each is None
                    or not each.is_requested
                    or each in self._pausing
                    or not each.current
                ):
                    continue
                if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    out_of_range.append(each)
                elif answer.error_code:
                    self.delay_partition(each, for_code(answer.error_code)(), now)
                else:
                    try:
                        self._process_partition_data(each, answer, now, now_ms)
                    except Exception as error:
                        self.delay_partition(each, error, now)
        return out_of_range

    def _process_partition_data(
        self, each: PartitionFetchState, answer: FetchPartitionResponse, now: float, now_ms: int
    ) -> None:
        partition = each.partition
        log_of = partition.log
        end = log_of.log_end_offset if log_of is not None else -1
        start = log_of.log_start_offset if log_of is not None else -1
        size = follower_log.process_partition_data(partition, answer, now_ms)
        each.failures = 0
        if log_of is not None:
            each.in_sync = log_of.log_end_offset >= answer.high_watermark
            if size and self._throttle.is_throttled(partition.key, log_of.config):
                self._throttle.record(size, now)
        moved_start = log_of is not None and log_of.log_start_offset != start
        if partition.flush_is_due:
            self._flushing[each] = False
        elif size or moved_start or answer.diverging_epoch is not None:
            self._moved[each] = None
        if answer.diverging_epoch is not None and partition.log is not None:
            log.info(
                "truncated {partition} from {old} to {new} to agree with its leader, broker {id},"
                " in epoch {epoch}",
                partition=partition, old=end, new=partition.log.log_end_offset,
                id=self._leader, epoch=each.follower_state.leader_epoch,
            )  # fmt: skip

    def resume(self, each: PartitionFetchState) -> None:
        """Fetch from the present end of the log."""
        self._moved[each] = None

    def delay_partition(self, each: PartitionFetchState, error: Exception, now: float) -> None:
        """Delay one partition after *error*; log an unexpected error when it is the first in a row."""
        if not isinstance(error, KafkaError) and not each.failures:
            log.failure("following {p} failed", Failure(error), p=each.partition)
        if self._followed.get(each.partition.key) is not each:
            return
        each.failures += 1
        pause = min(FIRST_PAUSE * 2 ** min(each.failures - 1, 10), self._settings.max_pause)
        each.not_before = now + pause
        self._moved.pop(each, None)
        self._flushing.pop(each, None)
        self._pausing[each] = None
        self.session.remove(each.topic_id, each.partition.key[1])
        if each.failures == REPORTED_AFTER_FAILURES:
            self.failing.append((each, error))
