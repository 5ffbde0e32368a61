"""What a fetcher follows, what its next fetch asks for, and what becomes of the answer; nothing here waits.

Theory of operation
===================
The session (KIP-227) holds what the leader was asked for; `_moved` holds what it is to be asked anew, because something
was appended, or because it begins to be followed. A partition that fails, or is throttled (KIP-73), is left out of the
session until its pause is over, by whatever error: what nobody foresaw of one holds up none of the others. A partition
whose role is another one by now is dropped when it is met.

A partition whose append waits for a sync (flush.messages) is not asked for before the sync has ended: the offset that a
fetch names says what this replica has (docs/design/flush.md).

Invariants:
1. What is followed is in the session, among `_moved`, pauses, or waits for a sync; what pauses is in neither of the
   first two, nor is what waits for a sync once the next request is built.
2. An answer is taken only for a partition that was asked for since it is followed, in the role that it has now.
3. A session never names a partition that is not followed.

In: partitions, answers, the time (seconds)   Out: requests, appended logs, who has to start over
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
"""Seconds before what failed once is tried again; twice as long every time."""

LONGEST_THROTTLE_SECONDS = 1.0
"""After so long a throttled partition looks again: the rate may be another one by then."""

NEW_PARTITIONS_PER_FETCH = 250
"""How many partitions a fetch asks for that the session does not know yet."""

REPORTED_AFTER_FAILURES: Final = 4
"""Partitions that failed so often in a row are told of."""


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """What followers take from the broker's configuration; seconds and bytes."""

    broker_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    max_pause: float
    request_timeout: float


class PartitionFetchState:
    """One partition that is followed, in one role."""

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
        """Whether a fetch has asked for it."""
        self.in_sync = False
        """Whether it had all that is committed, by the last answer."""
        self.failures = 0
        self.not_before = 0.0
        """When it may be asked for again; 0: now."""

    @property
    def current(self) -> bool:
        """Whether the role is still the one that we follow in."""
        return self.partition.follower_state is self.follower_state


class FetcherState:
    """The partitions that are followed on broker *leader*; *throttle* is a follower's."""

    def __init__(self, leader: int, settings: FetcherSettings, throttle: ReplicationQuota) -> None:
        self._leader = leader
        self._settings = settings
        self._throttle = throttle
        self._followed: dict[TopicPartition, PartitionFetchState] = {}
        self._by_id: dict[tuple[UUID | None, int], PartitionFetchState] = {}
        """The same, as answers call them."""
        self._moved: dict[PartitionFetchState, None] = {}
        """Those that the next fetch asks for from another offset, or for the first time."""
        self._pausing: dict[PartitionFetchState, None] = {}
        self._flushing: dict[PartitionFetchState, bool] = {}
        """Those whose appends wait for a sync, and whether the session does not name them any more."""
        self.session = FetchSessionHandler()
        self.failing: list[tuple[PartitionFetchState, Exception]] = []
        """Those that fail again and again, until somebody told of them."""

    def __len__(self) -> int:
        return len(self._followed)

    def add_partition(self, partition: Partition) -> None:
        """Follow *partition* in the role it has now."""
        assert partition.follower_state is not None
        self.remove_partition(partition.key)
        each = PartitionFetchState(partition, partition.follower_state)
        self._followed[partition.key] = each
        self._by_id[each.topic_id, partition.key[1]] = each
        self._moved[each] = None

    def log_start_advanced(self, key: TopicPartition) -> None:
        """Say with the next fetch what there is of a partition now: its log begins elsewhere."""
        each = self._followed.get(key)
        if each is not None and each not in self._pausing:
            self._moved[each] = None

    def log_flushed(self, key: TopicPartition) -> bool:
        """Handle the end of a log's sync: the next fetch asks for what follows. Return whether that was awaited."""
        each = self._followed.get(key)
        if each is None or each not in self._flushing:
            return False
        del self._flushing[each]
        self._moved[each] = None
        return True

    @property
    def awaits_flush(self) -> bool:
        """Whether the last answer brought records that wait for a sync."""
        return bool(self._flushing) and not all(self._flushing.values())

    def remove_partition(self, key: TopicPartition) -> None:
        """Fetch a partition no more."""
        each = self._followed.pop(key, None)
        if each is None:
            return
        self._by_id.pop((each.topic_id, key[1]), None)
        self._moved.pop(each, None)
        self._pausing.pop(each, None)
        self._flushing.pop(each, None)
        self.session.remove(each.topic_id, key[1])

    def clear(self) -> None:
        """Follow nothing any more."""
        for key in list(self._followed):
            self.remove_partition(key)

    def seconds_until_fetch(self, now: float) -> float | None:
        """Return the seconds until something is to be fetched; None: nothing is followed, or all waits for syncs."""
        if not self._followed:
            return None
        if len(self._pausing) + len(self._flushing) < len(self._followed):
            return 0.0
        if not self._pausing:
            return None
        return max(min(each.not_before for each in self._pausing) - now, 0.0)

    # -- what is asked -------------------------------------------------------------------------

    def build_fetch(self, broker_epoch: int, now: float) -> FetchRequest | None:
        """Return what is to be asked next, in our life of *broker_epoch* (KIP-903); None: nothing."""
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
        """Let a partition pause that is throttled (KIP-73), unless it is in sync."""
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

    # -- what is answered ----------------------------------------------------------------------

    def process_fetch_response(
        self, response: FetchResponse, now: float, now_ms: int
    ) -> list[PartitionFetchState]:
        """Append what came; return those that our log is out of the leader's range of."""
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
        """Ask with the next fetch for what comes after the end of its log now."""
        self._moved[each] = None

    def delay_partition(self, each: PartitionFetchState, error: Exception, now: float) -> None:
        """Let one partition pause; tell of an *error* that nobody foresaw when it is the first in a row."""
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
