"""Find records by time: the time index, then batch headers, then the records of one batch.

The only place of the log that decodes a batch, and only the batch that holds the answer. The owner of the log finds out
in which part of which segment to look (`search_from`). The search itself (`Search.run`) is for a pool: a batch may hold
a million records, and headers may promise what their records do not keep.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kbroker.log import scan
from kbroker.log.log_segment import LogSegment
from kbroker.log.slices import SegmentFile
from kclient.wire.batches import BatchInfo, parse

MAX_DECOMPRESSED: Final = 32 << 20
"""What a batch may decompress to that is searched; a larger one is an error (MESSAGE_TOO_LARGE)."""
SEGMENTS_AT_ONCE: Final = 50
"""So many segments are searched for their greatest timestamp in one call: each may have to be read."""
HEADERS_AT_ONCE: Final = 200
"""Batch headers read between two pauses."""


class TimestampOffset(NamedTuple):
    """A record found by time: its timestamp in ms, its offset and the epoch that wrote it."""

    timestamp: int
    offset: int
    leader_epoch: int


class Search(NamedTuple):
    """The search for the first record at or after a time in a part of one segment."""

    file: SegmentFile
    position: int
    size: int
    """Where the part ends in the file."""
    timestamp: int
    from_offset: int
    next_offset: int
    """Where to go on if there is none."""

    def run(self, pause: Callable[[], None] = lambda: None) -> TimestampOffset | None:
        """Return the record, or None. Slow: runs in a pool, and calls *pause* about every millisecond."""
        for count, (position, info) in enumerate(
            scan.headers(self.file, self.position, self.size), start=1
        ):
            if count % HEADERS_AT_ONCE == 0:
                pause()
            if info.max_timestamp < self.timestamp or info.last_offset < self.from_offset:
                continue
            found = self._in_batch(position, info, pause)
            if found is not None:
                return found
        return None

    def _in_batch(
        self, position: int, info: BatchInfo, pause: Callable[[], None]
    ) -> TimestampOffset | None:
        """Return the first record of the batch at *position* that is not older or hidden."""
        if info.log_append_time:
            offset = max(info.base_offset, self.from_offset)
            return TimestampOffset(info.max_timestamp, offset, info.leader_epoch)
        from kclient.wire.record_search import (
            first_at_or_after,  # only this search needs the codecs
        )

        batch = self.file.pread(info.size, position)
        found = first_at_or_after(
            batch,
            parse(batch),
            self.timestamp,
            self.from_offset,
            max_size=MAX_DECOMPRESSED,
            pause=pause,
        )
        return None if found is None else TimestampOffset(*found, info.leader_epoch)


def search_from(
    segments: Sequence[LogSegment], timestamp: int, from_offset: int, log_end_offset: int
) -> Search | int | None:
    """Return where to look for the first record at or after *timestamp* from *from_offset* on.

    An offset instead of a search: nothing is below it, and more is to be looked at from there on. None: there is none.
    """
    first = max(bisect_right(segments, from_offset, key=lambda each: each.base_offset) - 1, 0)
    for number in range(first, len(segments)):
        segment = segments[number]
        end = segments[number + 1].base_offset if number + 1 < len(segments) else log_end_offset
        if number - first == SEGMENTS_AT_ONCE:
            return segment.base_offset
        if end <= from_offset or segment.max_timestamp < timestamp:
            continue
        start = _start(segment, timestamp)
        return Search(segment.file, start, segment.size, timestamp, from_offset, end)
    return None


def search_greatest(segments: Sequence[LogSegment], log_start_offset: int) -> Search | None:
    """Return where to look for the first record that has the greatest timestamp of the log."""
    if not segments:
        return None
    best = max(segments, key=lambda segment: segment.max_timestamp)
    timestamp = best.max_timestamp
    if timestamp < 0:
        return None
    found = best.locate(best.max_timestamp_offset)
    if found is None:
        return None
    end = found.position + found.info.size
    return Search(
        best.file, found.position, end, timestamp, log_start_offset, found.info.next_offset
    )


def _start(segment: LogSegment, timestamp: int) -> int:
    """Return a position before which no record is at or after *timestamp*."""
    entry = segment.time_index.at_most(timestamp)
    return segment.indexed_position(segment.base_offset + entry[1]) if entry else 0
