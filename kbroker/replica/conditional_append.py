"""Conditional appends of a mirror: batches keep their offsets, and are appended only where they belong.

A run of batches names its predecessor: the log end offset, and the CRC of the batch that ends there. As with Raft's
check of the previous entry, logs that agree at one batch agree below it. A run that was sent twice, late or behind a
lost append meets another log end. It is rejected with the actual one (`kclient.wire.produce`, tagged field 10000).

Such an append can put batches of any producer at any offset. So it is accepted only for topics that are marked as a
mirror (POLICY_VIOLATION otherwise), and for offsets up to LARGEST_COPIED_OFFSET.

A kmirror may be paused. The topic of its run may be deleted and created again meanwhile, at the source or at the
target. The first run has no predecessor that shows it. So a run also names both topic ids. Both are durable with the
topic, and a topic id is never used twice: no leader accepts the run any more (docs/design/mirror.md).

Owner: the reactor's thread.
"""

from __future__ import annotations

from kbroker.log.unified_log import AppendResult, UnifiedLog
from kbroker.replica.partition import Partition
from kclient.wire.batches import HEADER_SIZE, Buffer, check_copied, parse
from kclient.wire.errors import OutOfOrderSequenceNumber, PolicyViolation, UnknownTopicId
from kclient.wire.produce import MIRROR_SOURCE_CONFIG, NO_TOPICS, CopiedTopics


class UnexpectedLogEndError(OutOfOrderSequenceNumber):
    """A conditional append found another log end than it expected; nothing was appended."""

    def __init__(self, message: str, *, log_end_offset: int) -> None:
        super().__init__(message)
        self.log_end_offset = log_end_offset


def append_copied(
    partition: Partition,
    buf: Buffer,
    follows: tuple[int, int],
    acks: int,
    now_ms: int,
    topics: CopiedTopics = NO_TOPICS,
) -> AppendResult:
    """Append the batches in *buf* with their own offsets, if that is where the log ends.

    *follows* is the log end offset and the CRC of the batch before it; `UnexpectedLogEndError` if the log differs. An
    empty log (CRC 0) starts at the offset given, where the source starts. All or nothing. Producer ids are those of
    another cluster: they do not concern our own producers. Raise UnknownTopicId or PolicyViolation if *topics* are not
    this topic and the topic of its records at the source.
    """
    log, leader_state = partition.require_leader_for_append(acks)
    if not log.config.kbroker_mirror_source_cluster_id:
        way = "which kmirror sets to the source cluster's id"
        if log.config.is_promoted_mirror:
            way = "and it was promoted; kmirror promote of the flow from this cluster makes it a mirror again"
        raise PolicyViolation(
            f"{partition}: the topic is no mirror: conditional appends need {MIRROR_SOURCE_CONFIG}, {way}"
        )
    if topics is not NO_TOPICS:
        _check_topics(partition, log, topics)
    expected_log_end, previous_crc = follows
    is_empty = log.log_start_offset == log.log_end_offset
    begins = is_empty and not previous_crc and log.log_end_offset < expected_log_end
    if log.log_end_offset != expected_log_end and not begins:
        raise UnexpectedLogEndError(
            f"{partition} ends at offset {log.log_end_offset}, not at {expected_log_end}",
            log_end_offset=log.log_end_offset,
        )
    if not is_empty:
        found = _last_crc(partition, log)
        if found != previous_crc:
            raise UnexpectedLogEndError(
                f"{partition}: the batch before offset {expected_log_end} has CRC {found:#010x},"
                f" not {previous_crc:#010x}",
                log_end_offset=expected_log_end,
            )
    batches = check_copied(
        buf, next_offset=expected_log_end, max_batch_bytes=log.config.max_message_bytes
    )
    result = log.append_copied(
        buf, batches, partition.role.leader_epoch, now_ms, start_offset=expected_log_end
    )
    # An empty log begins where the first batch does: nothing below is waited for.
    leader_state.high_watermark = max(leader_state.high_watermark, result.log_start_offset)
    partition.last_copied = (partition.role.leader_epoch, result.last_offset + 1, batches[-1].crc)
    partition.log_end_advanced(leader_state, result.last_offset + 1)
    return result


def _check_topics(partition: Partition, log: UnifiedLog, topics: CopiedTopics) -> None:
    """Raise unless *topics* are the topic of *partition* and the source topic of its records."""
    if None not in (topics.target_id, log.topic_id) and topics.target_id != log.topic_id:
        raise UnknownTopicId(f"{partition}: the topic was created again, it has another topic id")
    stated = log.config.kbroker_mirror_source_topic_id
    if topics.source_id and topics.source_id != stated:
        raise PolicyViolation(
            f"{partition}: the topic is a mirror of topic id {stated or '(none)'} at the source, the records are of "
            f"{topics.source_id}"
        )


def _last_crc(partition: Partition, log: UnifiedLog) -> int:
    """Return the CRC of the last batch: remembered after our own append, because a leader never truncates."""
    epoch, end, crc = partition.last_copied
    if (epoch, end) == (partition.role.leader_epoch, log.log_end_offset):
        return crc
    found = log.read(log.log_end_offset - 1, HEADER_SIZE)
    try:
        return parse(b"".join(part.read() for part in found.slices)).crc
    finally:
        for part in found.slices:
            part.release()
