"""Runs: whole batches of one partition that follow each other, as they were fetched; never opened.

A fetch answer may begin with a batch that starts below the offset asked for (it is kept whole) and
may end with a batch that was cut off (it is dropped). Each batch's header is read and its CRC
checked, so that a bit that flipped on the way or on the source's disk is named here and not copied.
Nothing is decompressed, no record is looked at, no byte is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from crc32c import crc32c

from kclient.wire import batches
from kclient.wire.errors import CorruptMessage


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Batches of one partition; *data* is a view of the fetch answer they came in."""

    data: memoryview
    base_offset: int
    next_offset: int
    batch_count: int
    record_count: int
    """As the headers say; fewer than offsets where the source was compacted."""
    missing_offsets: int
    """Offsets between its batches that no batch holds: the source has them no more."""
    max_timestamp: int
    """Milliseconds; the greatest of all records, -1 without any."""
    leader_epoch: int
    """The source's, of the last batch."""
    last_crc: int
    """Of the last batch."""

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)


def read_run(data: memoryview, asked: int, end: int | None = None) -> Run | None:
    """Return the whole batches of *data* from the one that holds *asked* on, those at *end* left out.

    None if there are none. Raise CorruptMessage for the first batch if it is damaged; batches before
    a damaged one are returned, and the next fetch begins with it.
    """
    start = position = 0
    base_offset = -1
    next_offset = asked
    batch_count = record_count = missing = 0
    max_timestamp = epoch = -1
    crc = 0
    try:
        for info in batches.iterate(data):
            following = info.base_offset + info.last_offset_delta + 1
            if following <= asked and not batch_count:
                start = position = info.position + info.length + 12
                continue
            if end is not None and info.base_offset >= end:
                break
            stop = info.position + info.length + 12
            if crc32c(data[info.position + 21 : stop]) != info.crc:
                batches.check_crc(data, info)
            if batch_count:
                if info.base_offset < next_offset:
                    raise CorruptMessage(
                        f"batch of offset {info.base_offset} comes after offset {next_offset - 1}"
                    )
                missing += info.base_offset - next_offset
            else:
                base_offset = info.base_offset
            batch_count += 1
            record_count += info.record_count
            max_timestamp = max(max_timestamp, info.max_timestamp)
            epoch = info.leader_epoch
            crc = info.crc
            next_offset = following
            position = stop
    except CorruptMessage:
        if not batch_count:
            raise
    if not batch_count:
        return None
    return Run(
        data[start:position],
        base_offset,
        next_offset,
        batch_count,
        record_count,
        missing,
        max_timestamp,
        epoch,
        crc,
    )
