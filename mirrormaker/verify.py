"""``kmirror verify``: compares the ends of both logs and sampled batches of every partition. Nothing is changed.

`mirrormaker.sampling` decides what to read and what may be stated; this module reads. A batch that differs is read
again after a while, because retention or an election may be under way.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from kclient.errors import KafkaError
from kclient.net.waiting import all_of, all_settled, sleep
from kclient.types import TopicPartition
from mirrormaker.config import MirrorConfig
from mirrormaker.divergence import Batch
from mirrormaker.link_state import LogEnds
from mirrormaker.log_ends import read_log_ends
from mirrormaker.mirror import Mirror
from mirrormaker.sampling import Result, conclusion, exit_code, sampled_offsets
from mirrormaker.topics import Selection
from mirrormaker.whole_log import batches_at

Echo = Callable[[str], None]

_AT_ONCE = 20
"""Partitions that are read at the same time."""
_SETTLE = 2.0
"""Seconds before a batch that differs is read again."""


async def show_verification(
    reactor: Any, config: MirrorConfig, echo: Echo, *, samples: int, seed: int, max_lag: int
) -> int:
    """Compare *samples* batches per partition of every flow; print and return the exit code."""
    results: list[Result] = []
    failed_flows: list[str] = []
    missing = 0
    for flow in config.flows:
        mirror = Mirror(reactor, flow, once=False, report=lambda _about, _what: None)
        try:
            await mirror.open()
            echo(flow.name)
            found, absent = await _verify_flow(
                mirror, echo, samples, Random(seed).randrange, max_lag
            )
            results += found
            missing += absent
        except KafkaError as problem:  # the other flows are compared nevertheless
            echo(f"{flow.name}: {problem}")
            failed_flows.append(flow.name)
        finally:
            await mirror.stop()
    code = exit_code(results, missing=missing, failed_flows=failed_flows)
    last = conclusion(results, missing=missing, failed_flows=failed_flows)
    echo(f"verify: {last}; seed {seed}, exit code {int(code)}")
    return int(code)


async def _verify_flow(
    mirror: Mirror, echo: Echo, samples: int, below: Callable[[int], int], max_lag: int
) -> tuple[list[Result], int]:
    """Compare one flow; return the results, and the number of partitions that the target lacks."""
    plan = await mirror.topics.plan()
    present = mirror.target.metadata.topics
    pairs, missing = {}, 0
    config = mirror.config
    selection = Selection(config.source, config.target, config.settings)
    for name, copy in plan.mirrored.items():
        if selection.is_heartbeats(name):  # compacted, and of kmirror itself
            echo(f"  {name}: heartbeats, not compared")
            continue
        partitions = present[copy].partitions if copy in present else {}
        for number in range(mirror.topics.compared[name].partitions):
            if number in partitions:
                pairs[TopicPartition(name, number)] = TopicPartition(copy, number)
            else:
                missing += 1
                echo(f"  {name}-{number}: is not at the target")
    ends = await read_log_ends(mirror.source, mirror.target, pairs)
    results: list[Result] = []
    for name, conflict in plan.conflicts.items():
        results.append(Result(0, 0, 0, 0, not_mirrored=conflict))
        echo(f"  {name}: {results[-1]}")
    left = list(pairs)
    while left:
        now, left = left[:_AT_ONCE], left[_AT_ONCE:]
        compacted = {tp: mirror.topics.compared[tp.topic].compacted for tp in now}
        answers = await all_settled(
            _verify(mirror, tp, pairs[tp], ends[tp], compacted[tp], samples, below, max_lag)
            for tp in now
        )
        for tp, answer in zip(now, answers, strict=True):
            result = (
                Result(0, 0, 0, 0, unreadable=str(answer))
                if isinstance(answer, KafkaError)
                else answer
            )
            results.append(result)
            echo(f"  {tp}: {result}")
    return results, missing


async def _verify(
    mirror: Mirror,
    tp: TopicPartition,
    copy: TopicPartition,
    ends: LogEnds | KafkaError,
    compacted: bool,
    samples: int,
    below: Callable[[int], int],
    max_lag: int,
) -> Result:
    if isinstance(ends, KafkaError):
        raise ends
    result = Result(ends.source_start, ends.source_end, ends.target_start, ends.target_end, max_lag)
    if compacted:
        result.why_not = "the cleaner writes equal records in other batches"
        return result
    for at in sampled_offsets(*result.common, samples, below):
        found = await _pair(mirror, tp, copy, at)
        if not _is_same(*found):
            await sleep(mirror.source.reactor, _SETTLE)
            found = await _pair(mirror, tp, copy, at)
        result.compare(at, *found)
    return result


async def _pair(
    mirror: Mirror, tp: TopicPartition, copy: TopicPartition, at: int
) -> tuple[Batch | None, Batch | None]:
    """Return the batch at the offset *at*, or the first one above it, of the source and of the target."""
    source, target = await all_of(
        (
            batches_at(mirror.source, tp, at, max_bytes=1),
            batches_at(mirror.target, copy, at, max_bytes=1),
        )
    )
    return (source[0] if source else None), (target[0] if target else None)


def _is_same(source: Batch | None, target: Batch | None) -> bool:
    return source is not None and target is not None and source.equals(target)
