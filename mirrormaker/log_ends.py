"""Reads the start and end offsets of both logs for many partitions in few requests.

Links need them when they start or rewind. The target is read before the source, and the source's end before its start.
So records that arrive in between never make the target look as if it were ahead. The source's end is the last stable
offset; the high watermark is read after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kclient.net.cluster import Cluster
from kclient.net.offsets import EARLIEST, LATEST, list_offsets
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError
from mirrormaker.link_state import LastBatch, LogEnds
from mirrormaker.source import last_batches

TIMEOUT = 3.0
"""Seconds to retry one request; the link requests the ends again later."""
CUT_TIMEOUT = 60.0
"""Seconds to retry the request for a cut, which is read once."""


async def read_log_ends(
    source: Cluster, target: Cluster, pairs: Mapping[TopicPartition, TopicPartition]
) -> dict[TopicPartition, LogEnds | KafkaError]:
    """Return the `LogEnds` of every pair (source partition -> target partition), or its KafkaError."""
    copies = dict.fromkeys(pairs.values())
    copy_ids = {copy: target.metadata.topic_id(copy.topic) for copy in copies}
    target_starts = await _offsets(target, copies, EARLIEST)
    target_ends = await high_watermarks(target, copies)
    source_starts, source_ends, watermarks = await source_offsets(source, pairs)
    answers: dict[TopicPartition, LogEnds | KafkaError] = {}
    for tp, copy in pairs.items():
        found = (
            source_starts[tp],
            source_ends[tp],
            target_starts[copy],
            target_ends[copy],
            watermarks[tp],
        )
        problem = next((each for each in found if isinstance(each, KafkaError)), None)
        offsets = [each for each in found if isinstance(each, int)]
        if problem is None:
            start, end, target_start, target_end, watermark = offsets
            answers[tp] = LogEnds(
                start,
                end,
                target_start,
                target_end,
                source_high_watermark=watermark,
                target_topic_id=copy_ids[copy],
            )
        else:
            answers[tp] = problem
    return await _with_last_batches(source, target, pairs, answers)


async def source_offsets(
    source: Cluster, tps: Mapping[TopicPartition, object]
) -> tuple[dict[TopicPartition, int | KafkaError], ...]:
    """Return the log start, the last stable offset and the high watermark of every partition of the source."""
    ends = await _offsets(source, tps, LATEST)
    watermarks = await high_watermarks(source, tps)
    return await _offsets(source, tps, EARLIEST), ends, watermarks


async def _with_last_batches(
    source: Cluster,
    target: Cluster,
    pairs: Mapping[TopicPartition, TopicPartition],
    answers: dict[TopicPartition, LogEnds | KafkaError],
) -> dict[TopicPartition, LogEnds | KafkaError]:
    """Add the last batch below the target's end, from each log that has it, and where the source's log starts."""
    at: dict[TopicPartition, int] = {}
    copied: dict[TopicPartition, int] = {}
    for tp, ends in answers.items():
        if isinstance(ends, KafkaError):
            continue
        if ends.source_start < ends.target_end <= ends.source_end:
            at[tp] = ends.target_end
        if ends.target_start < ends.target_end:
            copied[pairs[tp]] = ends.target_end
    target_last_batches = await last_batches(target, copied)
    source_last_batches = await last_batches(source, at)
    for tp, ends in answers.items():
        theirs, ours = source_last_batches.get(tp), target_last_batches.get(pairs[tp])
        if isinstance(ends, KafkaError):
            continue
        problem = next((each for each in (theirs, ours) if isinstance(each, KafkaError)), None)
        answers[tp] = problem or replace(
            ends,
            source_last_batch=theirs if isinstance(theirs, LastBatch) else None,
            target_last_batch=ours if isinstance(ours, LastBatch) else None,
        )
    return await with_first_batches(source, answers)


async def with_first_batches(
    source: Cluster, answers: dict[TopicPartition, LogEnds | KafkaError]
) -> dict[TopicPartition, LogEnds | KafkaError]:
    """Add the batch that holds the source's log start, where the target ends at or below it."""
    at = {
        tp: ends.source_start + 1
        for tp, ends in answers.items()
        if isinstance(ends, LogEnds)
        and ends.source_start > 0
        and ends.target_end <= ends.source_start < max(ends.source_end, ends.source_high_watermark)
    }
    return await with_source_batches(
        source, answers, at, lambda ends, found: replace(ends, source_first_batch=found)
    )


async def with_source_batches(
    source: Cluster,
    answers: dict[TopicPartition, LogEnds | KafkaError],
    at: dict[TopicPartition, int],
    add: Callable[[LogEnds, LastBatch | None], LogEnds],
) -> dict[TopicPartition, LogEnds | KafkaError]:
    """Let *add* put the source's batch below each offset of *at*, None if there is none, into the answers."""
    for tp, found in (await last_batches(source, at)).items():
        ends = answers[tp]
        if isinstance(found, KafkaError):
            answers[tp] = found
        elif isinstance(ends, LogEnds):
            answers[tp] = add(ends, found)
    return answers


async def _offsets(
    cluster: Cluster,
    tps: Mapping[TopicPartition, object],
    timestamp: int,
    *,
    read_committed: bool = True,
    timeout: float = TIMEOUT,
) -> dict[TopicPartition, int | KafkaError]:
    """Return one offset per log, or its KafkaError."""
    if not tps:
        return {}
    answers = await list_offsets(
        cluster,
        dict.fromkeys(tps, timestamp),
        read_committed=read_committed and timestamp == LATEST,
        timeout=timeout,
    )
    return {
        tp: answer if isinstance(answer, KafkaError) else answer.offset
        for tp, answer in answers.items()
    }


async def log_starts(
    cluster: Cluster, tps: Mapping[TopicPartition, object], *, timeout: float = TIMEOUT
) -> dict[TopicPartition, int | KafkaError]:
    """Return the log start offset of every partition, or its KafkaError."""
    return await _offsets(cluster, tps, EARLIEST, timeout=timeout)


async def high_watermarks(
    cluster: Cluster, tps: Mapping[TopicPartition, object], *, timeout: float = TIMEOUT
) -> dict[TopicPartition, int | KafkaError]:
    """Return the high watermark of every partition, or its KafkaError."""
    return await _offsets(cluster, tps, LATEST, read_committed=False, timeout=timeout)


async def read_cuts(cluster: Cluster, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the last stable offset of every partition: where a copy ends. Raise the KafkaError of any of them."""
    cuts = {}
    for tp, answer in (
        await _offsets(cluster, dict.fromkeys(tps), LATEST, timeout=CUT_TIMEOUT)
    ).items():
        if isinstance(answer, KafkaError):
            raise answer
        cuts[tp] = answer
    return cuts
