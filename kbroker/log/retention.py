"""Which segments may go: retention by time, by size, and below the log start offset.

Time is the time of the records: a segment is as old as its newest record, whatever the clock showed
when it was written. Only a segment without any timestamp is as old as its file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.config.log import LogConfig
from kbroker.log.log_segment import LogSegment


def deletable(
    segments: Sequence[LogSegment],
    config: LogConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    up_to_offset: int,
    now_ms: int,
    modified_ms: Callable[[str], int],
) -> int:
    """Return how many of the oldest segments retention is done with.

    All of them only when the last one has records (the caller rolls then); never one that reaches
    beyond *up_to_offset*. Without ``delete`` in cleanup.policy only the log start offset counts.
    """
    by_policy = config.deletes
    excess = -1
    if by_policy and config.retention_bytes >= 0:
        excess = sum(segment.size for segment in segments) - config.retention_bytes
    for number, segment in enumerate(segments):
        last = number + 1 == len(segments)
        end = log_end_offset if last else segments[number + 1].base_offset
        if end > up_to_offset or (last and not segment.size):
            return number
        below_start = end <= log_start_offset and not last
        too_old = False
        if by_policy and config.retention_ms >= 0:
            newest = segment.max_timestamp
            if newest < 0:
                newest = modified_ms(segment.path)
            too_old = now_ms - newest > config.retention_ms
        too_much = excess >= segment.size
        if not (below_start or too_old or too_much):
            return number
        excess -= segment.size
    return len(segments)
