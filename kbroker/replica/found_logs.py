"""What a LeaderAndIsr finds on this broker's disks: its own log, a log of another topic, or fewer records than before.

Nothing is changed here. A replica that is elected, and finds its log missing, truncated or replaced, must not lead
(S8).

Owner: the reactor's thread
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from kbroker.common.isr_epochs import UNKNOWN_EPOCH, before_void, is_void
from kbroker.common.log_dir_integrity import BrokerEpochs
from kbroker.log.log_manager import LogManager
from kbroker.log.unified_log import UnifiedLog
from kbroker.replica.partition import Partition
from kclient.wire.interbroker import LeaderAndIsrPartitionState


def stray(
    log_manager: LogManager,
    found: UnifiedLog,
    topic_id: UUID | None,
    state: LeaderAndIsrPartitionState,
    broker_id: int,
) -> str:
    """Return why the log in a partition's directory does not belong to that partition; "" if nothing shows that.

    It belongs to another topic, to an earlier topic of that name, or to another partition. Directories were exchanged,
    or a power loss brought one back (S27). A power loss may also remove the topic id from a log and leave records, or
    their end: the offset below which all were deleted. The owner of such a log is unknown. It is not trusted where
    other brokers have the records, or where no records can exist yet. A clean shutdown since then does not help: the
    loss may be older. Directories that only Apache Kafka has written to may hold logs that never had an id (before
    2.8); these are trusted after a clean shutdown.
    """
    partition = found.metadata.partition
    if partition not in (None, state.partition_index):
        return f"its directory holds the log of partition {partition}"
    if topic_id is None:
        return ""
    if found.topic_id is not None or found.log_end_offset == 0:
        is_other = found.topic_id not in (None, topic_id)
        return f"its directory holds the log of topic id {found.topic_id}" if is_other else ""
    follows = state.leader not in (broker_id, -1)
    may_be_without_id = log_manager.clean and not log_manager.written_by_kbroker
    is_doubtful = state.is_new or (follows and not may_be_without_id)
    return "its directory holds a log that has lost its topic id" if is_doubtful else ""


def missing_records(
    log_manager: LogManager, partition: Partition, state: LeaderAndIsrPartitionState
) -> str:
    """Return what a log lacks that it once held; "" if nothing is known to be missing."""
    if partition.lacks_records:
        return partition.lacks_records
    found = log_manager.get(*partition.key)
    if found is None:
        # A log that never existed is no loss: the controller of a new partition died before its request arrived.
        if partition.key in log_manager.missing_logs and not state.is_new:
            return "its directory is gone"
        missing = log_manager.histories.missing_directories
        if missing and not state.is_new:
            return f"it is not here, and may be in the log directory that is missing ({', '.join(missing)})"
        return ""
    if found.missing_below is not None:
        return f"its log ends at {found.log_end_offset}, but had everything below {found.missing_below}"
    if found.lacks_until_in_sync:
        return found.lacks_until_in_sync
    if log_manager.is_copied(found):
        return "its log was copied from another broker's log directory"
    return ""


NOT_REPORTED: Final = (-1, -1, -1, -1)


def end_of_leaderless(
    log_manager: LogManager, partition: Partition | None, state: LeaderAndIsrPartitionState
) -> tuple[int, int, int, int]:
    """Return last epoch and end of a leaderless partition's log, and the first and last broker epoch that it covers.

    The latter are -1 where the log does not cover the broker epoch under which this replica joined the ISR. All are -1
    for any other partition. A log that ends too early is reported all the same: after a power loss of all machines it
    may be the longest.
    """
    if state.leader >= 0 or partition is None or partition.offline is not None:
        return NOT_REPORTED
    found = log_manager.get(*partition.key)
    there = log_manager.histories.found_logs
    if found is None or (there is not None and partition.key not in there):
        return NOT_REPORTED  # a new log: the earlier one may be in a directory that is missing
    if partition.lacks_records and found.missing_below is None and not found.lacks_until_in_sync:
        return NOT_REPORTED  # the earlier log is not here, and may come back
    intact = None if partition.lacks_records else log_manager.vouched_for(partition.key)
    if intact is None or not _is_covered(intact, state, partition.role.broker_id):
        return found.leader_epochs.latest, found.log_end_offset, -1, -1
    return found.leader_epochs.latest, found.log_end_offset, intact.first, intact.last


def _is_covered(intact: BrokerEpochs, state: LeaderAndIsrPartitionState, broker_id: int) -> bool:
    """Return whether *intact* covers the broker epoch under which the replica joined the ISR; true if none is known."""
    isr_epochs = {
        **dict(zip(state.elr, state.elr_epochs, strict=False)),
        **dict(zip(state.isr, state.isr_epochs, strict=False)),
    }
    isr_epoch = isr_epochs.get(broker_id, UNKNOWN_EPOCH)
    if is_void(isr_epoch):
        isr_epoch = before_void(isr_epoch)
    return isr_epoch == UNKNOWN_EPOCH or intact.covers(isr_epoch)
