"""Look-ups of offsets in a hosted partition: by timestamp, by special timestamps (ListOffsets), by leader epoch.

Every function raises the KafkaError of the response. A request of an assigned replica that carries our leader epoch is
answered like its fetches, cut off from ZooKeeper or not (S11). Otherwise a follower that is out of range could not
continue, and would not back the leader that it follows.

Owner: the reactor's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore

from kbroker.common.turns import Turns
from kbroker.log.timestamps import Search, TimestampOffset
from kbroker.log.unified_log import UnifiedLog
from kbroker.replica.core.leader_state import LeaderState
from kbroker.replica.partition import Partition
from kclient.wire.errors import KafkaStorageError, NotLeaderOrFollower, OffsetNotAvailable

T = TypeVar("T")

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5

CONSUMER_REPLICA_ID: Final = -1
DEBUGGING_REPLICA_ID: Final = -2

NOWHERE: Final = TimestampOffset(-1, -1, -1)

SEARCHES_AT_ONCE: Final = 2
"""Batches that are decompressed at a time: each may take 64 MiB and the time of a processor."""
GIVE_WAY_SECONDS: Final = 0.0001


class InPool(Protocol):
    """Runs a call in a thread of the disk pool."""

    def __call__(self, work: Callable[[], T], /) -> Deferred[T]:
        """Fire with the result of *work*."""


class OffsetLookup:
    """Looks offsets up; records are read in the disk pool, SEARCHES_AT_ONCE batches at a time.

    *in_pool* runs a call there.
    """

    def __init__(self, in_pool: InPool) -> None:
        self._in_pool = in_pool
        self._places = DeferredSemaphore(SEARCHES_AT_ONCE)

    async def find(
        self,
        partition: Partition,
        timestamp: int,
        current_leader_epoch: int,
        replica_id: int = CONSUMER_REPLICA_ID,
        *,
        turns: Turns,
        read_committed: bool = False,
    ) -> TimestampOffset:
        """Answer ListOffsets: (timestamp, offset, leader epoch), -1 where there is none.

        A consumer receives offsets below the high watermark, with *read_committed* below the last stable offset.
        Replicas receive those of the whole log, DEBUGGING_REPLICA_ID also those of a follower.
        """
        log, up_to = _range_of(
            partition, timestamp, current_leader_epoch, replica_id, read_committed
        )
        if timestamp == LATEST:
            return TimestampOffset(-1, up_to, partition.role.leader_epoch)
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            start = log.log_start_offset
            return TimestampOffset(-1, start, log.leader_epochs.epoch_at(start))
        if timestamp == LATEST_TIERED:
            return NOWHERE
        if timestamp == MAX_TIMESTAMP:
            search = log.search_for_max_timestamp()
            found = None if search is None else await self._run(search)
        else:
            found = await self._first_at_or_after(partition, log, timestamp, turns)
        # Again: another broker may have become the leader since.
        _range_of(partition, timestamp, current_leader_epoch, replica_id, read_committed)
        if found is None or found.offset >= up_to:
            return NOWHERE
        return found

    async def _first_at_or_after(
        self, partition: Partition, log: UnifiedLog, timestamp: int, turns: Turns
    ) -> TimestampOffset | None:
        offset = 0
        while True:
            if partition.log is not log:
                raise NotLeaderOrFollower(f"{partition} is not here any more")
            step = log.search_for_timestamp(timestamp, offset)
            if step is None:
                return None
            if isinstance(step, int):
                offset = step
                await turns.next()
                continue
            found = await self._run(step)
            if found is not None:
                return found
            offset = step.next_offset

    async def _run(self, search: Search) -> TimestampOffset | None:
        """Run *search* in the disk pool, when there is a place."""
        await self._places.acquire()
        try:
            return await self._in_pool(lambda: search.run(_give_way))
        except OSError as error:
            raise KafkaStorageError(f"{search.file.path}: {error}") from error
        finally:
            self._places.release()


def _give_way() -> None:
    """Release the interpreter to the reactor's thread: a computing thread keeps it for 5 ms at a time."""
    time.sleep(GIVE_WAY_SECONDS)


def _range_of(
    partition: Partition,
    timestamp: int,
    current_leader_epoch: int,
    replica_id: int,
    read_committed: bool,
) -> tuple[UnifiedLog, int]:
    """Return the log that *replica_id* may search, and the end of the range."""
    if replica_id == DEBUGGING_REPLICA_ID:
        log = _log_of_any_replica(partition, current_leader_epoch)
        return log, log.log_end_offset
    log, leader_state = _led_for(partition, replica_id, current_leader_epoch)
    if replica_id != CONSUMER_REPLICA_ID:
        return log, log.log_end_offset
    up_to = leader_state.high_watermark
    if timestamp not in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED) and (
        up_to < leader_state.led_since_offset
    ):
        # An earlier leader may have committed more: the offset would go back (KIP-207).
        raise OffsetNotAvailable(
            f"{partition}: a new leader does not know yet which records are committed"
        )
    return log, log.last_stable_offset(up_to) if read_committed else up_to


def _log_of_any_replica(partition: Partition, current_leader_epoch: int) -> UnifiedLog:
    """Return the log of a leader or a follower; raise the reason if there is none."""
    if partition.log is None:
        partition.require_leader_for_followers()  # raises the reason
        raise NotLeaderOrFollower(f"{partition} has no log here")
    partition.check_epoch(current_leader_epoch)
    return partition.log


def _led_for(
    partition: Partition, replica_id: int, current_leader_epoch: int
) -> tuple[UnifiedLog, LeaderState]:
    """Return log and leader state for a request from *replica_id*, a broker's id or a negative number."""
    role = partition.role
    if replica_id in role.replicas and replica_id != role.broker_id and current_leader_epoch >= 0:
        return partition.require_leader_for_followers(current_leader_epoch)
    return partition.require_leader(current_leader_epoch)


def last_offset_for_leader_epoch(
    partition: Partition,
    leader_epoch: int,
    current_leader_epoch: int,
    replica_id: int = CONSUMER_REPLICA_ID,
) -> tuple[int, int]:
    """Answer OffsetForLeaderEpoch: (largest epoch <= *leader_epoch*, its end offset)."""
    log, _ = _led_for(partition, replica_id, current_leader_epoch)
    return log.leader_epochs.end_offset_of(leader_epoch, log.log_end_offset)
