"""Runs: consecutive whole batches of one partition, as fetched; their records stay encoded.

A fetch response may begin with a batch that starts below the fetch offset: it is kept whole. It may end with a
truncated batch: that one is dropped. The mirror reads each batch's header and checks its CRC. So it reports a batch
that was damaged on the network or on the source's disk, and does not copy it. Nothing is decompressed or decoded, and
no byte is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kclient.mirror_evidence import HashedBatch
from kclient.wire import batches
from kclient.wire.crc import crc32c
from kclient.wire.errors import CorruptMessage, UnsupportedForMessageFormat
from kclient.wire.fetch import AbortedTransaction


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Batches of one partition; *data* is a view of the fetch response."""

    data: memoryview
    base_offset: int
    next_offset: int
    batch_count: int
    record_count: int
    """The sum of the headers' record counts; less than the offset range after compaction."""
    missing_offsets: int
    """Offsets between the batches that no batch covers: the source no longer has them."""
    max_timestamp: int
    """The highest record timestamp, in milliseconds since the epoch; -1 without records."""
    leader_epoch: int
    """The leader epoch at the source of the last batch."""
    last_crc: int
    """The CRC of the last batch."""
    aborted: Sequence[AbortedTransaction] = ()
    """The aborted transactions of the source that have records in it."""
    hashed: Sequence[HashedBatch] = ()
    """Its batches with the hashes of their headers, if `mirrormaker.evidence` wants them."""

    @property
    def largest_batch(self) -> int:
        """The size in bytes of the largest batch; the run is read again for it."""
        return max(info.length + 12 for info in batches.iterate(self.data))

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.data)


def read_run(data: memoryview, asked: int, end: int | None = None) -> Run | None:
    """Return the whole batches of *data* from offset *asked* on, without those that begin at or above *end*.

    None if there are none. Raise CorruptMessage if the first batch is damaged, UnsupportedForMessageFormat if it is a
    message of a format before Kafka 0.11. The batches before it are returned, and the next fetch begins with it.
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
    except (CorruptMessage, UnsupportedForMessageFormat):
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
