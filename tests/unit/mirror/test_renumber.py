"""What of a run is sent to a target that assigns offsets, and what the batches look like there."""

from __future__ import annotations

from dataclasses import replace

from kclient.wire import batches
from kclient.wire.batches import LOG_APPEND_TIME, TRANSACTIONAL, parse
from kclient.wire.fetch import AbortedTransaction
from kclient.wire.records import (
    ABORT,
    COMMIT,
    Record,
    decode_batch,
    encode_batch,
    encode_transaction_marker,
)
from mirrormaker.renumber import batches_of, first_visible, last_base_offset, with_producer
from mirrormaker.runs import Run, read_run
from tests.kit.record_batches import some_records

ZSTD = 4


def run_of(*data: bytes, aborted: tuple[AbortedTransaction, ...] = ()) -> Run:
    run = read_run(memoryview(b"".join(data)), 0)
    assert run is not None
    return replace(run, aborted=aborted)


def test_a_batch_keeps_its_records_and_codec_and_gets_the_producer() -> None:
    source = encode_batch(
        some_records(3), base_offset=70, codec=ZSTD, producer_id=5, base_sequence=9
    )
    (batch,) = batches_of(run_of(source))
    sent = with_producer(batch.data, producer_id=8, epoch=2, sequence=40, is_transactional=True)
    info = batches.check_produced(sent, max_batch_bytes=1 << 20)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (8, 2, 40)
    assert (info.base_offset, info.codec, info.is_transactional) == (0, ZSTD, True)
    assert sent[61:] == source[61:], "the records are not decoded"
    plain = with_producer(batch.data, producer_id=-1, epoch=-1, sequence=-1, is_transactional=False)
    assert not batches.check_produced(plain, max_batch_bytes=1 << 20).is_transactional


def test_markers_and_aborted_records_are_not_sent() -> None:
    def transactional(base: int, producer: int) -> bytes:
        return encode_batch(
            some_records(1),
            base_offset=base,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL,
        )

    def marker(base: int, producer: int, kind: int) -> bytes:
        return encode_transaction_marker(
            kind,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=base,
        )

    run = run_of(
        transactional(0, 1),
        transactional(1, 2),
        marker(2, 1, ABORT),
        marker(3, 2, COMMIT),
        transactional(4, 1),
        marker(5, 1, COMMIT),
        aborted=(AbortedTransaction(1, 0),),
    )
    assert [parse(batch.data).base_offset for batch in batches_of(run)] == [1, 4]
    assert last_base_offset(run) == 5, "the position is behind the marker"
    assert first_visible(run) == 1
    hidden = run_of(transactional(0, 1), marker(1, 1, ABORT), aborted=(AbortedTransaction(1, 0),))
    assert first_visible(hidden) is None


def test_a_batch_with_removed_records_gets_contiguous_offsets() -> None:
    records = [Record(3, 10, b"a", b"1"), Record(7, 20, b"b", None, (("h", b"x"),))]
    source = encode_batch(records, base_offset=3, keep_offsets=True, last_offset_delta=6)
    (batch,) = batches_of(run_of(source))
    sent = with_producer(batch.data, producer_id=1, epoch=0, sequence=0, is_transactional=True)
    info = batches.check_produced(sent, max_batch_bytes=1 << 20)
    found = decode_batch(sent, info)
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in found] == [
        (0, 10, b"a", b"1", ()),
        (1, 20, b"b", None, (("h", b"x"),)),
    ]


def test_an_empty_batch_that_compaction_left_is_not_sent() -> None:
    empty = batches.build(
        b"",
        record_count=0,
        last_offset_delta=4,
        base_timestamp=-1,
        max_timestamp=-1,
        base_offset=5,
    )
    assert batches_of(run_of(empty)) == []


def test_timestamps_of_the_sources_broker_become_those_of_the_records() -> None:
    source = encode_batch(some_records(2))
    source = batches.with_log_append_time(source, parse(source), 777)
    assert parse(source).attributes & LOG_APPEND_TIME
    (batch,) = batches_of(run_of(source))
    sent = with_producer(batch.data, producer_id=1, epoch=0, sequence=0, is_transactional=True)
    info = batches.check_produced(sent, max_batch_bytes=1 << 20)
    assert not info.log_append_time
    assert [record.timestamp for record in decode_batch(sent, info)] == [777, 777]
