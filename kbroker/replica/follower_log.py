"""The log of a follower: the fetch request for its end, and the leader's response applied to it.

The decisions are in `kbroker.replica.core.follower_state`; this file carries them out. Errors are KafkaErrors: of the
log, which is offline then, or of the leader's response.

Owner: the reactor's thread.
"""

from __future__ import annotations

from kbroker.log.unified_log import UnifiedLog
from kbroker.replica.core.follower_state import EpochEnd, FollowerState
from kbroker.replica.partition import Partition
from kclient.wire.batches import HEADER_SIZE, parse
from kclient.wire.errors import NotLeaderOrFollower, OffsetOutOfRange, UnknownServerError
from kclient.wire.fetch import FetchPartition, FetchPartitionResponse


def follower_replica(partition: Partition) -> tuple[UnifiedLog, FollowerState]:
    """Return log and follower state; raise NotLeaderOrFollower where there are none (any more)."""
    log, follower_state = partition.log, partition.follower_state
    if log is None or follower_state is None:
        raise NotLeaderOrFollower(f"{partition} is not a follower")
    return log, follower_state


def build_fetch(partition: Partition, max_bytes: int) -> FetchPartition:
    """Return the request for the next records, at most *max_bytes* (or one batch)."""
    log, follower_state = follower_replica(partition)
    return FetchPartition(
        partition.key[1],
        log.log_end_offset,
        max_bytes,
        follower_state.leader_epoch,
        log.leader_epochs.latest,
        log.log_start_offset,
    )


def process_partition_data(
    partition: Partition, answer: FetchPartitionResponse, now_ms: int
) -> int:
    """Truncate, or append and update the offsets from the leader's; return the bytes appended."""
    log, follower_state = follower_replica(partition)
    if answer.log_start_offset > max(answer.high_watermark, 0):
        raise UnknownServerError(
            f"{partition}: its leader begins at {answer.log_start_offset}, above its own high watermark"
            f" {answer.high_watermark}: nothing is deleted here for that"
        )
    if answer.diverging_epoch is not None:
        diverging = answer.diverging_epoch
        theirs = EpochEnd(diverging.epoch, diverging.end_offset)
        ours = EpochEnd(*log.leader_epochs.end_offset_of(theirs.epoch, log.log_end_offset))
        before = (log.log_end_offset, log.leader_epochs.latest)
        truncate(partition, follower_state.agreed_end(theirs, ours, log.log_end_offset))
        if before == (log.log_end_offset, log.leader_epochs.latest):
            raise UnknownServerError(
                f"{partition} diverges from its leader at {theirs}, and there is nothing to cut"
            )
        return 0
    records = answer.record_set
    size = 0
    if records:
        first = parse(records).base_offset if len(records) >= HEADER_SIZE else log.log_end_offset
        if first < log.log_end_offset == log.log_start_offset:
            # The leader's log begins within a batch (DeleteRecords): it comes whole.
            log.truncate_fully_and_start_at(first, now_ms)
        size = log.append_as_follower(records, now_ms)
    start = min(answer.log_start_offset, log.log_end_offset)
    if start > log.log_start_offset:
        log.advance_log_start(start)
    if follower_state.update_high_watermark(answer.high_watermark, log.log_end_offset):
        partition.high_watermark_advanced()
    if log.log_end_offset >= answer.high_watermark:
        log.lacks_until_in_sync = ""
    return size


def truncate(partition: Partition, offset: int) -> None:
    """Truncate the log to *offset*; an epoch without records is forgotten."""
    log, follower_state = follower_replica(partition)
    log.truncate_to(offset)
    log.leader_epochs.truncate_from_end(log.log_end_offset)
    follower_state.truncated(log.log_end_offset)


def fetch_offset_and_truncate(
    partition: Partition, leader_start: int, leader_end: int, now_ms: int
) -> None:
    """Bring a log that is out of the leader's range back into it (S33: never wholesale to 0)."""
    log, follower_state = follower_replica(partition)
    if leader_start > leader_end:
        raise UnknownServerError(
            f"{partition}: its leader begins at {leader_start}, behind its own end {leader_end}: nothing is deleted"
            " here for that"
        )
    if leader_start == log.log_end_offset > 0:
        # Our records are deleted at the leader, and may never have been its own. They must not come back if our log
        # start offset is lost, and their producers must not be answered.
        log.truncate_fully_and_start_at(leader_start, now_ms)
        return
    if leader_start < log.log_end_offset <= leader_end:
        raise OffsetOutOfRange(
            f"{partition} ends at {log.log_end_offset}, inside {leader_start}..{leader_end} of its leader,"
            " which refuses it all the same: it does not know the epoch of its last record"
        )
    if leader_end < log.log_end_offset:
        truncate(partition, leader_end)
    if log.log_end_offset < leader_start:
        log.truncate_fully_and_start_at(leader_start, now_ms)
        follower_state.truncated(leader_start)
        follower_state.update_high_watermark(leader_start, leader_start)
