"""The log ends of partitions with a target that renumbers offsets: the stored position takes the place of its log end.

With a position, `LogEnds` has source offsets on both sides, and `mirrormaker.link` works as it does with a target that
keeps offsets. The last batch of the target is the source's batch that the position describes.

A position proves what was copied, if the target's log still has it. So the target's log end is compared with the end
that the position states. A log with records, and without a position, is not continued: committed offsets expire after
offsets.retention.minutes without a commit, and copying from the start would double every record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError
from mirrormaker.lineage import Lineage, text_of
from mirrormaker.link_state import Cause, LastBatch, LogEnds, Problem
from mirrormaker.log_ends import high_watermarks, source_offsets
from mirrormaker.position import Position
from mirrormaker.source import last_batches


def lineage_of(position: Position | None, topic_id: str) -> Lineage:
    """Return the lineage of a copy with this position; *topic_id* is that of the source now."""
    return Lineage(topic_id, "" if position is None else position.topic_id)


def position_of(
    positions: Mapping[TopicPartition, Position], target: Cluster, copy: TopicPartition
) -> Position | None:
    """Return the position of *copy*; None if there is none, or if it is that of an earlier topic of this name."""
    found = positions.get(copy)
    topic_id = text_of(target.metadata.topic_id(copy.topic))
    if found is not None and "" not in (found.target_topic_id, topic_id):
        return found if found.target_topic_id == topic_id else None
    return found


async def read_renumbered_ends(
    source: Cluster,
    target: Cluster,
    pairs: Mapping[TopicPartition, TopicPartition],
    positions: Mapping[TopicPartition, Position],
    group: str,
) -> dict[TopicPartition, LogEnds | KafkaError]:
    """Return the ends of every pair (source partition -> target partition), or its KafkaError.

    *positions* are the stored ones, read before. A partition without a position, and with an empty log, is at offset 0.
    """
    target_ends = await high_watermarks(target, dict.fromkeys(pairs.values()))
    starts, ends, watermarks = await source_offsets(source, pairs)
    answers: dict[TopicPartition, LogEnds | KafkaError] = {}
    for tp, copy in pairs.items():
        found = (starts[tp], ends[tp], watermarks[tp], target_ends[copy])
        problem = next((each for each in found if isinstance(each, KafkaError)), None)
        start, end, watermark, target_end = (x if isinstance(x, int) else -1 for x in found)
        position = position_of(positions, target, copy)
        answers[tp] = problem or LogEnds(
            start,
            end,
            0,
            0 if position is None else position.offset,
            target_last_batch=_last_batch(position),
            source_high_watermark=watermark,
            problem=refusal(position, target_end, group),
        )
    return await _with_source_batches(source, answers)


def refusal(position: Position | None, target_end: int, group: str) -> Problem | None:
    """Return why a target partition that ends at *target_end* cannot be continued, if so."""
    if position is None and target_end > 0:
        return Problem(
            Cause.UNPROVEN,
            f"the target's log ends at {target_end}, and the group {group} has no offset for it. Delete the target "
            "topic; or commit the next source offset for this group, if the target is a copy up to it",
        )
    if position is not None and target_end < position.target_end:
        return Problem(
            Cause.TARGET_LOST,
            f"its log ends at {target_end}, records up to offset {position.target_end} were acknowledged",
        )
    return None


def _last_batch(position: Position | None) -> LastBatch | None:
    """Return the source's batch that was copied last, as the position describes it."""
    if position is None or position.base_offset < 0:
        return None
    return LastBatch(position.base_offset, position.offset, position.crc, position.leader_epoch)


async def _with_source_batches(
    source: Cluster, answers: dict[TopicPartition, LogEnds | KafkaError]
) -> dict[TopicPartition, LogEnds | KafkaError]:
    """Add the last batch below each position, from the source's log if it has it."""
    at = {
        tp: ends.target_end
        for tp, ends in answers.items()
        if isinstance(ends, LogEnds)
        and ends.target_last_batch is not None
        and ends.source_start < ends.target_end <= ends.source_end
    }
    for tp, found in (await last_batches(source, at)).items():
        ends = answers[tp]
        if isinstance(found, KafkaError):
            answers[tp] = found
        elif isinstance(ends, LogEnds):
            answers[tp] = replace(ends, source_last_batch=found)
    return answers
