"""Runs: what of a fetch answer is copied."""

from __future__ import annotations

import zlib

import pytest

from kclient.wire.errors import CorruptMessage, UnsupportedForMessageFormat
from kclient.wire.records import encode_batch
from mirrormaker.runs import read_run
from tests.kit.record_batches import NOW_MS, some_records


def batch(base_offset: int, count: int = 2, epoch: int = 0) -> bytes:
    return encode_batch(some_records(count), base_offset=base_offset, leader_epoch=epoch)


def view(*batches: bytes) -> memoryview:
    return memoryview(b"".join(batches))


def test_whole_batches_are_one_run() -> None:
    data = view(batch(4), batch(6, 3, epoch=5))
    run = read_run(data, 4)
    assert run is not None
    assert run.data == data
    assert run.data.obj is data.obj, "a view, not a copy"
    assert (run.base_offset, run.next_offset) == (4, 9)
    assert (run.batch_count, run.record_count, run.missing_offsets) == (2, 5, 0)
    assert (run.leader_epoch, run.max_timestamp) == (5, NOW_MS + 2)


def test_a_batch_that_was_cut_off_is_left_out() -> None:
    run = read_run(view(batch(4), batch(6)[:-1]), 4)
    assert run is not None
    assert run.data == batch(4)
    assert read_run(view(batch(4)[:-1]), 4) is None
    assert read_run(view(), 4) is None


def test_batches_below_the_offset_are_left_out_and_one_around_it_is_whole() -> None:
    run = read_run(view(batch(0), batch(2), batch(4)), 3)
    assert run is not None
    assert run.data == view(batch(2), batch(4))
    assert (run.base_offset, run.next_offset) == (2, 6)


def test_batches_from_the_end_on_are_left_out() -> None:
    run = read_run(view(batch(0), batch(2), batch(4)), 0, end=4)
    assert run is not None
    assert run.data == view(batch(0), batch(2))
    assert read_run(view(batch(4)), 2, end=4) is None


def test_offsets_that_no_batch_holds_are_counted() -> None:
    run = read_run(view(batch(0), batch(10), batch(20)), 0)
    assert run is not None
    assert (run.next_offset, run.missing_offsets) == (22, 16)


def old_message(offset: int) -> bytes:
    """Return a message of format 1 (Kafka 0.10) with a null key and the value b"v"."""
    body = b"\x01\x00" + bytes(8) + b"\xff" * 4 + (1).to_bytes(4, "big") + b"v"
    checked = zlib.crc32(body).to_bytes(4, "big") + body
    return offset.to_bytes(8, "big") + len(checked).to_bytes(4, "big") + checked


def test_a_message_of_an_old_format_ends_the_run_before_it() -> None:
    run = read_run(view(batch(4), old_message(6)), 4)
    assert run is not None
    assert run.next_offset == 6
    with pytest.raises(UnsupportedForMessageFormat, match="message format 1"):
        read_run(view(old_message(6)), 6)


def test_a_damaged_batch_ends_the_run_before_it() -> None:
    damaged = bytearray(batch(2))
    damaged[-1] ^= 1
    run = read_run(view(batch(0), bytes(damaged), batch(4)), 0)
    assert run is not None
    assert run.data == batch(0)
    with pytest.raises(CorruptMessage):
        read_run(view(bytes(damaged), batch(4)), 2)


def test_offsets_that_go_back_end_the_run() -> None:
    run = read_run(view(batch(0), batch(1), batch(4)), 0)
    assert run is not None
    assert run.next_offset == 2
