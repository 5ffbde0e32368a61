"""The log ends of partitions with a target that renumbers offsets: the stored position takes the place of its log end.

With a position, `LogEnds` has source offsets on both sides, and `mirrormaker.link` works as it does with a target that
keeps offsets. The last batch of the target is the source's batch that the position describes.

A position proves what was copied, if the target's log still has it. So the target's log end is compared with the end
that the position states. Behind that end there may be markers and aborted records, but no visible record. It would be
of another producer, or the position is an old one, and the copy would double records.

A log with records, and without a position, is not continued. Committed offsets expire after offsets.retention.minutes
without a commit, and copying from the start would double every record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kclient.net.cluster import Cluster
from kclient.net.leader_requests import request_leaders
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError, OffsetNotAvailable
from mirrormaker.lineage import Lineage, text_of
from mirrormaker.link_state import Cause, LastBatch, LogEnds, PartitionFetch, Problem
from mirrormaker.log_ends import (
    high_watermarks,
    source_offsets,
    with_first_batches,
    with_source_batches,
)
from mirrormaker.position import Position
from mirrormaker.renumber import first_visible
from mirrormaker.source import Fetched, Outcome, fetch

CHANNEL = "mirror-check"
FETCH_BYTES = 1 << 20
MOST_BYTES = 16 << 20
"""Bytes of one partition, and of all, in a fetch of what is behind the positions."""


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
    *,
    is_transactional: bool,
) -> dict[TopicPartition, LogEnds | KafkaError]:
    """Return the ends of every pair (source partition -> target partition), or its KafkaError.

    *positions* are the stored ones, read before. A partition without a position, and with an empty log, is at offset 0.
    Without transactions records behind the position are no problem: they are copied again.
    """
    target_ends = await high_watermarks(target, dict.fromkeys(pairs.values()))
    starts, ends, watermarks = await source_offsets(source, pairs)
    behind: dict[TopicPartition, int | KafkaError | None] = {}
    if is_transactional:
        behind = await _visible_behind(
            target, dict.fromkeys(pairs.values()), positions, target_ends
        )
    answers: dict[TopicPartition, LogEnds | KafkaError] = {}
    for tp, copy in pairs.items():
        found = (starts[tp], ends[tp], watermarks[tp], target_ends[copy], behind.get(copy))
        problem = next((each for each in found if isinstance(each, KafkaError)), None)
        start, end, watermark, target_end, written = (
            x if isinstance(x, int) else -1 for x in found
        )
        position = position_of(positions, target, copy)
        answers[tp] = problem or LogEnds(
            start,
            end,
            0,
            0 if position is None else position.offset,
            target_last_batch=_last_batch(position),
            source_high_watermark=watermark,
            problem=refusal(position, target_end, group, written=written),
        )
    return await with_first_batches(source, await _with_source_batches(source, answers))


async def _visible_behind(
    target: Cluster,
    copies: Iterable[TopicPartition],
    positions: Mapping[TopicPartition, Position],
    target_ends: Mapping[TopicPartition, int | KafkaError],
) -> dict[TopicPartition, int | KafkaError | None]:
    """Return the offset of the first visible record behind the end that each position states; None without one.

    An error of one leader, or of one partition, is the result of those partitions.
    """
    left: dict[TopicPartition, int] = {}
    for copy in copies:
        position, end = position_of(positions, target, copy), target_ends[copy]
        if position is None or not position.is_described or isinstance(end, KafkaError):
            continue
        if position.target_end < end:
            left[copy] = position.target_end

    async def fetch_from(
        leader: int, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Outcome]:
        fetches = [PartitionFetch(copy, 0, offset, FETCH_BYTES) for copy, offset in offsets.items()]
        return await fetch(
            target, leader, fetches, channel=CHANNEL, max_wait_ms=0, max_bytes=MOST_BYTES
        )

    found: dict[TopicPartition, int | KafkaError | None] = {}
    while left:
        before = dict(left)
        outcomes: Mapping[TopicPartition, Outcome] = await request_leaders(target, left, fetch_from)
        for copy, outcome in outcomes.items():
            if isinstance(outcome, KafkaError):
                found[copy] = outcome
            elif isinstance(outcome, Fetched) and outcome.run is not None:
                left[copy] = outcome.run.next_offset
                found[copy] = first_visible(outcome.run)
            if found.get(copy) is not None or _is_end(outcome, left[copy]):
                del left[copy]
        if left == before:
            problem = OffsetNotAvailable("what is behind the position cannot be read yet")
            return {**found, **dict.fromkeys(left, problem)}
    return found


def _is_end(outcome: Outcome, offset: int) -> bool:
    """Return whether nothing is to be read from *offset* on: the last stable offset, or deleted by retention."""
    return not isinstance(outcome, Fetched) or outcome.source_end <= offset


def refusal(
    position: Position | None, target_end: int, group: str, *, written: int = -1
) -> Problem | None:
    """Return why a target partition that ends at *target_end* cannot be continued, if so.

    *written* is the offset of a visible record behind the end that the position states; -1 if there is none.
    """
    if written >= 0:
        return Problem(
            Cause.TARGET_WRITTEN,
            f"offset {written} of the target is visible, and the group {group} has a position from before it. Another "
            "producer wrote it, or the position was set back. Delete the target topic to copy it again",
        )
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
    return await with_source_batches(
        source, answers, at, lambda ends, found: replace(ends, source_last_batch=found)
    )
