"""Find records by time: the time index, then batch headers, then the records of one batch.

The only place of the log that opens a batch, and only the one that the answer is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.log import scan
from kbroker.log.segment import Segment
from kclient.wire.batches import BatchInfo, parse


class TimestampOffset(NamedTuple):
    """A record found by time: its timestamp in ms, its offset and the epoch that wrote it."""

    timestamp: int
    offset: int
    leader_epoch: int


def first_at_or_after(
    segments: Sequence[Segment], timestamp: int, log_start_offset: int, log_end_offset: int
) -> TimestampOffset | None:
    """Return the first record at or after *timestamp* from *log_start_offset* on."""
    for number, segment in enumerate(segments):
        end = segments[number + 1].base_offset if number + 1 < len(segments) else log_end_offset
        if end <= log_start_offset or segment.max_timestamp < timestamp:
            continue
        for position, info in scan.headers(segment.file, _start(segment, timestamp), segment.size):
            if info.max_timestamp < timestamp or info.last_offset < log_start_offset:
                continue
            found = _in_batch(segment, position, info, timestamp, log_start_offset)
            if found is not None:
                return found
    return None


def greatest(segments: Sequence[Segment], log_start_offset: int) -> TimestampOffset | None:
    """Return the first record that has the greatest timestamp of the log."""
    if not segments:
        return None
    best = max(segments, key=lambda segment: segment.max_timestamp)
    timestamp = best.max_timestamp
    if timestamp < 0:
        return None
    found = best.locate(best.max_timestamp_offset)
    if found is None:
        return None
    return _in_batch(best, found.position, found.info, timestamp, log_start_offset)


def _start(segment: Segment, timestamp: int) -> int:
    """Return a position before which no record is at or after *timestamp*."""
    entry = segment.time_index.at_most(timestamp)
    return segment.indexed_position(segment.base_offset + entry[1]) if entry else 0


def _in_batch(
    segment: Segment, position: int, info: BatchInfo, timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    """Return the first record of the batch at *position* that is not older or hidden."""
    if info.log_append_time:
        offset = max(info.base_offset, log_start_offset)
        return TimestampOffset(info.max_timestamp, offset, info.leader_epoch)
    from kclient.wire.records import decode_batch  # codecs are for those who need them

    batch = segment.file.pread(info.size, position)
    for record in decode_batch(batch, parse(batch)):
        if record.timestamp >= timestamp and record.offset >= log_start_offset:
            return TimestampOffset(record.timestamp, record.offset, info.leader_epoch)
    return None
