"""Where in a hosted partition an offset is: by timestamp, by the names of its ends (ListOffsets), by leader epoch.

Raises, like everything of `Partition`, a KafkaError that says why it cannot be answered. A replica of the partition
that goes by our leader epoch is answered as its fetches are, cut off from ZooKeeper or not (S11): a follower that is
out of range could not go on else, nor back the leader that it follows.

Owner: the reactor's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore

from kbroker.common.shared_turns import Turns
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
"""Batches that are open at a time: each may take 64 MiB, and the time of a processor."""
GIVE_WAY_SECONDS: Final = 0.0001


class InPool(Protocol):
    """Runs a call in a pool's thread."""

    def __call__(self, work: Callable[[], T], /) -> Deferred[T]:
        """Fire with what *work* returns."""


class OffsetLookup:
    """Looks offsets up; the records of a batch in the pool, so many at a time.

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
    ) -> TimestampOffset:
        """Answer ListOffsets: (timestamp, offset, leader epoch), -1 where there is none.

        A consumer hears of what is committed, others of the whole log, DEBUGGING_REPLICA_ID of a follower's, too.
        """
        log, up_to = _range_of(partition, timestamp, current_leader_epoch, replica_id)
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
        # Once more: meanwhile another broker may have become the leader.
        _range_of(partition, timestamp, current_leader_epoch, replica_id)
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
        """Run *search* in the pool, when there is a place."""
        await self._places.acquire()
        try:
            return await self._in_pool(lambda: search.run(_give_way))
        except OSError as error:
            raise KafkaStorageError(f"{search.file.path}: {error}") from error
        finally:
            self._places.release()


def _give_way() -> None:
    """Let the reactor's thread have the interpreter: a thread that computes keeps it for 5 ms at a time."""
    time.sleep(GIVE_WAY_SECONDS)


def _range_of(
    partition: Partition, timestamp: int, current_leader_epoch: int, replica_id: int
) -> tuple[UnifiedLog, int]:
    """Return the log in which *replica_id* may look, and up to which offset."""
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
        # What an earlier leader has shown may lie above: the offset would go back (KIP-207).
        raise OffsetNotAvailable(f"{partition}: a new leader does not know yet what is committed")
    return log, up_to


def _log_of_any_replica(partition: Partition, current_leader_epoch: int) -> UnifiedLog:
    """Return the log whether we lead or follow; raise what says why there is none."""
    if partition.log is None:
        partition.require_leader_for_followers()  # says why
        raise NotLeaderOrFollower(f"{partition} has no log here")
    partition.check_epoch(current_leader_epoch)
    return partition.log


def _led_for(
    partition: Partition, replica_id: int, current_leader_epoch: int
) -> tuple[UnifiedLog, LeaderState]:
    """Return log and leader's view for who asks as *replica_id*, a broker's id or a negative number."""
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
    """Answer OffsetForLeaderEpoch: (largest epoch <= *leader_epoch*, the offset it ends at)."""
    log, _ = _led_for(partition, replica_id, current_leader_epoch)
    return log.leader_epochs.end_offset_of(leader_epoch, log.log_end_offset)
