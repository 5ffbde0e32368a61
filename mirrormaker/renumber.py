"""Batches of the source for a target that assigns offsets itself: what is sent of a run, and how. Pure.

A producer's batch has contiguous offsets from 0, the producer's id, epoch and sequence, and no flags of the source's
broker. These are fields of the header: the records stay encoded and compressed, and only the CRC is computed again.
Only a batch with offsets that compaction removed, or with LogAppendTime timestamps, is decoded and encoded again.

Control batches and records of aborted transactions are not sent. The run was fetched up to the last stable offset, so
each transaction in it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from kclient.consumer.aborted import BatchVisibility
from kclient.wire import batches
from kclient.wire.batches import BatchInfo
from kclient.wire.records import decode_batch, encode_batch
from mirrormaker.runs import Run
from mirrormaker.transaction import Batch


def batches_of(run: Run) -> list[Batch]:
    """Return the visible batches of *run*. Raise KafkaError for records that cannot be decoded."""
    return [
        Batch(_as_produced(run.data, info), info.record_count, info.base_offset)
        for info in visible_batches(run)
    ]


def first_visible(run: Run) -> int | None:
    """Return the offset of the first visible batch of *run*; None if there is none."""
    return next((info.base_offset for info in visible_batches(run)), None)


def visible_batches(run: Run) -> Iterator[BatchInfo]:
    """Yield the batches of *run* with records that consumers with read_committed get."""
    visible = BatchVisibility(run.aborted)
    for info in batches.iterate(run.data):
        if not visible.is_hidden(info, run.data) and info.record_count:
            yield info


def last_base_offset(run: Run) -> int:
    """Return the base offset of the last batch of *run*."""
    last = run.base_offset
    for info in batches.iterate(run.data):
        last = info.base_offset
    return last


def _as_produced(data: memoryview, info: BatchInfo) -> memoryview:
    """Return one batch with contiguous offsets and CreateTime timestamps; a view if it has them already."""
    if info.record_count == info.last_offset_delta + 1 and not info.log_append_time:
        return data[info.position : info.end]
    records = decode_batch(data, info)
    return memoryview(encode_batch(records, codec=info.codec))


def with_producer(
    data: memoryview, *, producer_id: int, epoch: int, sequence: int, is_transactional: bool
) -> bytes:
    """Return the batch *data* as one of this producer, with base offset 0."""
    info = batches.parse(data)
    return batches.build(
        data[batches.HEADER_SIZE :],
        record_count=info.record_count,
        last_offset_delta=info.last_offset_delta,
        base_timestamp=info.base_timestamp,
        max_timestamp=info.max_timestamp,
        attributes=info.codec | (batches.TRANSACTIONAL if is_transactional else 0),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
