"""Batches of idempotent producers, and the headers of such batches alone."""

from __future__ import annotations

from kbroker.log.unified_log import AppendResult, UnifiedLog
from kclient.wire.batches import BatchInfo, parse
from kclient.wire.records import Record, encode_batch


def numbered_batch(
    producer_id: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    timestamp: int = 1000,
    base_offset: int = 0,
    leader_epoch: int = 0,
    value: bytes | None = None,
) -> bytes:
    """One batch of *count* records of a producer, the first of which has *sequence*."""
    content = b"%d/%d/%d" % (producer_id, epoch, sequence) if value is None else value
    return encode_batch(
        [Record(base_offset + n, timestamp, None, content, ()) for n in range(count)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def header(
    producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, base_offset: int = 0
) -> BatchInfo:
    """The header of such a batch."""
    return parse(numbered_batch(producer_id, sequence, count, epoch=epoch, base_offset=base_offset))


def append_numbered(
    log: UnifiedLog,
    producer_id: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    now_ms: int = 0,
) -> AppendResult:
    """Append a batch as leader, unchecked, as after `ProducerStates.check`."""
    batch = numbered_batch(producer_id, sequence, count, epoch=epoch, timestamp=now_ms)
    return log.append_as_leader(batch, parse(batch), 0, now_ms)
