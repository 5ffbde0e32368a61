"""Where both logs of many partitions are: asked for in few requests, for links that start or rewind.

The target is asked before the source, and the source's start after its end, so that what moves
meanwhile never looks like a target that is ahead.
"""

from __future__ import annotations

from collections.abc import Mapping

from kclient.net.cluster import Cluster
from kclient.net.offsets import EARLIEST, LATEST, list_offsets
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError
from mirrormaker.source import tails
from mirrormaker.words import Ends, Tail

PATIENCE = 3.0
"""Seconds to retry one question; the link asks again later."""


async def find_ends(
    source: Cluster, target: Cluster, pairs: Mapping[TopicPartition, TopicPartition]
) -> dict[TopicPartition, Ends | KafkaError]:
    """Return the `Ends` of every pair (source partition -> target partition), or what is wrong there."""
    copies = dict.fromkeys(pairs.values())
    target_starts = await _offsets(target, copies, EARLIEST)
    target_ends = await _offsets(target, copies, LATEST)
    source_ends = await _offsets(source, pairs, LATEST)
    source_starts = await _offsets(source, pairs, EARLIEST)
    answers: dict[TopicPartition, Ends | KafkaError] = {}
    for tp, copy in pairs.items():
        found = (source_starts[tp], source_ends[tp], target_starts[copy], target_ends[copy])
        problem = next((each for each in found if isinstance(each, KafkaError)), None)
        offsets = [each for each in found if isinstance(each, int)]
        answers[tp] = problem or Ends(*offsets)  # type: ignore[arg-type]  # four of them
    return await _with_tails(source, target, pairs, answers)


async def _with_tails(
    source: Cluster,
    target: Cluster,
    pairs: Mapping[TopicPartition, TopicPartition],
    answers: dict[TopicPartition, Ends | KafkaError],
) -> dict[TopicPartition, Ends | KafkaError]:
    """Add the batch before the target's end, on each side that has it."""
    at: dict[TopicPartition, int] = {}
    copied: dict[TopicPartition, int] = {}
    for tp, ends in answers.items():
        if isinstance(ends, KafkaError):
            continue
        if ends.source_start < ends.target_end <= ends.source_end:
            at[tp] = ends.target_end
        if ends.target_start < ends.target_end:
            copied[pairs[tp]] = ends.target_end
    target_tails = await tails(target, copied)
    source_tails = await tails(source, at)
    for tp, ends in answers.items():
        theirs, ours = source_tails.get(tp), target_tails.get(pairs[tp])
        if isinstance(ends, KafkaError):
            continue
        problem = next((each for each in (theirs, ours) if isinstance(each, KafkaError)), None)
        answers[tp] = problem or Ends(
            ends.source_start,
            ends.source_end,
            ends.target_start,
            ends.target_end,
            theirs if isinstance(theirs, Tail) else None,
            ours if isinstance(ours, Tail) else None,
        )
    return answers


async def _offsets(
    cluster: Cluster, tps: Mapping[TopicPartition, object], timestamp: int
) -> dict[TopicPartition, int | KafkaError]:
    """Return one end of every log; what failed is that partition's answer."""
    if not tps:
        return {}
    answers = await list_offsets(
        cluster,
        dict.fromkeys(tps, timestamp),
        read_committed=timestamp == LATEST,
        timeout=PATIENCE,
    )
    return {
        tp: answer if isinstance(answer, KafkaError) else answer.offset
        for tp, answer in answers.items()
    }
