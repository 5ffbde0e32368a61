"""The range of offsets that -o names, in each partition, and the walk of a consumer through it.

`kclient consume`, `topic cp` and `topic analyze` read a range up to the log ends of their start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kclient.cli.offset_spec import Anchor, Bound, OffsetSpec
from kclient.cli.progress import Progress, share_line
from kclient.types import TopicPartition

NO_SUCH_TOPIC_S = 3.0
"""Seconds to wait for a topic's metadata: enough for one that was created just before."""


async def assign(
    consumer: Any, places: list[TopicPartition], spec: OffsetSpec, *, at_end: bool
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Assign and seek; return the positions, and the offsets to stop before, where there are any."""
    consumer.assign(places)
    starts = await consumer.beginning_offsets(places)
    ends = await consumer.end_offsets(places)
    firsts = {
        tp: max(starts[tp], min(offset, ends[tp]))
        for tp, offset in (await resolve(consumer, spec.first, places, starts, ends)).items()
    }
    for tp, offset in firsts.items():
        consumer.seek(tp, offset)
    stops: dict[TopicPartition, int] = dict(ends) if at_end else {}
    if spec.last is not None:
        for tp, stop in (await resolve(consumer, spec.last, places, starts, ends)).items():
            stops[tp] = min(stop, stops.get(tp, stop))
    return firsts, stops


async def resolve(
    consumer: Any,
    bound: Bound,
    places: list[TopicPartition],
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offset of *bound* in each partition; it can be outside of the log."""
    if bound.anchor is Anchor.TIME:
        found = await consumer.offsets_for_times(dict.fromkeys(places, bound.number))
        return {tp: ends[tp] if at is None else at.offset for tp, at in found.items()}
    if bound.anchor is Anchor.STORED:
        committed = await consumer.committed(places)
        return {tp: starts[tp] if at is None else at.offset for tp, at in committed.items()}
    return {
        tp: {
            Anchor.START: starts[tp] + bound.number,
            Anchor.END: ends[tp] + bound.number,
            Anchor.OFFSET: bound.number,
        }[bound.anchor]
        for tp in places
    }


async def read_range(
    consumer: Any,
    firsts: Mapping[TopicPartition, int],
    stops: Mapping[TopicPartition, int],
    take: Callable[[], Awaitable[bool]],
    *,
    verb: str,
    progress: Progress,
    seconds: Callable[[], float],
    timeout: float,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[TopicPartition, int]:
    """Call *take* until each partition is read from *firsts* to *stops*; return the positions of those that are not.

    *take* polls and handles the records; it returns whether there were any. The read ends without its stops if there
    is no record for *timeout* seconds, not counting those that handling takes, or when *is_over* returns True.
    """
    total = sum(max(0, stops[tp] - first) for tp, first in firsts.items())
    left = {tp: first for tp, first in firsts.items() if first < stops[tp]}
    consumer.pause(*(firsts.keys() - left.keys()))
    began = last = seconds()
    while left and seconds() - last < timeout and not is_over():
        if await take():
            last = seconds()
        for tp in list(left):
            position = consumer.next_offset(tp)
            left[tp] = left[tp] if position is None else position
            if left[tp] >= stops[tp]:
                consumer.pause(tp)
                del left[tp]
        done = total - sum(stops[tp] - at for tp, at in left.items())
        progress.show(share_line(verb, done, total, seconds() - began))
    progress.clear()
    return left
