"""Finds a record of a log by time, all at once: the searches that a broker runs in a pool, one after the other."""

from __future__ import annotations

from kbroker.log.timestamps import Search, TimestampOffset
from kbroker.log.unified_log import UnifiedLog


def offset_for_timestamp(log: UnifiedLog, timestamp: int) -> TimestampOffset | None:
    """Return the first record at or after *timestamp* (ms), or None."""
    offset = log.log_start_offset
    while True:
        step = log.search_for_timestamp(timestamp, offset)
        if step is None:
            return None
        if isinstance(step, Search):
            found = step.run()
            if found is not None:
                return found
            offset = step.next_offset
        else:
            offset = step


def max_timestamp(log: UnifiedLog) -> TimestampOffset | None:
    """Return the first record with the greatest timestamp (KIP-734), or None."""
    search = log.search_for_max_timestamp()
    return None if search is None else search.run()
