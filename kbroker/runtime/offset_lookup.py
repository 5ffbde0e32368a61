"""Where in a hosted partition an offset is: by timestamp, by the names of its ends (ListOffsets), by leader epoch.

Raises, like everything of `Partition`, a KafkaError that says why it cannot be answered. A replica of the partition
that goes by our leader epoch is answered as its fetches are, cut off from ZooKeeper or not (S11): a follower that is
out of range could not go on else, nor back the leader that it follows.

Owner: the reactor's thread.
"""

from __future__ import annotations

from typing import Final

from kbroker.log.partition_log import PartitionLog
from kbroker.log.timestamps import TimestampOffset
from kbroker.replication.leading import Leading
from kbroker.runtime.partition import Partition
from kclient.wire.errors import NotLeaderOrFollower, OffsetNotAvailable

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5

CONSUMER_REPLICA_ID: Final = -1
DEBUGGING_REPLICA_ID: Final = -2


def find_offset(
    partition: Partition,
    timestamp: int,
    current_leader_epoch: int,
    replica_id: int = CONSUMER_REPLICA_ID,
) -> TimestampOffset:
    """Answer ListOffsets: (timestamp, offset, leader epoch), -1 where there is none.

    A consumer hears of what is committed, others of the whole log, DEBUGGING_REPLICA_ID of a follower's, too.
    """
    if replica_id == DEBUGGING_REPLICA_ID:
        log = _log_of_any_replica(partition, current_leader_epoch)
        up_to = log.log_end_offset
    else:
        log, leading = _led_for(partition, replica_id, current_leader_epoch)
        up_to = log.log_end_offset
        if replica_id == CONSUMER_REPLICA_ID:
            up_to = leading.high_watermark
            if timestamp not in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED) and (
                up_to < leading.led_since_offset
            ):
                # What an earlier leader has shown may lie above: the offset would go back (KIP-207).
                raise OffsetNotAvailable(
                    f"{partition}: a new leader does not know yet what is committed"
                )
    if timestamp == LATEST:
        return TimestampOffset(-1, up_to, partition.role.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return TimestampOffset(-1, start, log.leader_epochs.epoch_at(start))
    if timestamp == LATEST_TIERED:
        return TimestampOffset(-1, -1, -1)
    found = (
        log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    )
    if found is None or found.offset >= up_to:
        return TimestampOffset(-1, -1, -1)
    return found


def _log_of_any_replica(partition: Partition, current_leader_epoch: int) -> PartitionLog:
    """Return the log whether we lead or follow; raise what says why there is none."""
    if partition.log is None:
        partition.led_for_followers()  # says why
        raise NotLeaderOrFollower(f"{partition} has no log here")
    partition.check_epoch(current_leader_epoch)
    return partition.log


def _led_for(
    partition: Partition, replica_id: int, current_leader_epoch: int
) -> tuple[PartitionLog, Leading]:
    """Return log and leader's view for who asks as *replica_id*, a broker's id or a negative number."""
    role = partition.role
    if replica_id in role.replicas and replica_id != role.broker_id and current_leader_epoch >= 0:
        return partition.led_for_followers(current_leader_epoch)
    return partition.led(current_leader_epoch)


def epoch_end(
    partition: Partition,
    leader_epoch: int,
    current_leader_epoch: int,
    replica_id: int = CONSUMER_REPLICA_ID,
) -> tuple[int, int]:
    """Answer OffsetForLeaderEpoch: (largest epoch <= *leader_epoch*, the offset it ends at)."""
    log, _ = _led_for(partition, replica_id, current_leader_epoch)
    return log.leader_epochs.end_offset_of(leader_epoch, log.log_end_offset)
