"""Snapshot files: Kafka's format, damage, which one counts."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.core.log_transactions import OngoingTransaction
from kbroker.log.core.producer_state import ProducerStates
from kbroker.log.disk import OS_DISK
from kbroker.log.producer_snapshots import ProducerSnapshots, decode, encode
from kclient.wire.errors import CorruptMessage
from tests.kit.producer_batches import header

KAFKAS = ">qhiqiqiq"


def states_of(*batches: tuple[int, int, int], now_ms: int = 500) -> ProducerStates:
    """Producer, epoch and sequence of batches of one record each."""
    states = ProducerStates()
    for offset, (producer_id, epoch, sequence) in enumerate(batches):
        states.appended(header(producer_id, sequence, epoch=epoch), offset, now_ms)
    return states


def test_the_newest_batch_of_a_producer_is_its_last_entry() -> None:
    content = encode(states_of((7, 1, 0), (9, 0, 5), (7, 1, 1)))
    version, crc, count = struct.unpack_from(">hIi", content)
    assert (version, crc, count) == (1, crc32c(content[6:]), 3)
    rows = list(struct.iter_unpack(KAFKAS, content[10:]))
    assert rows[0] == (7, 1, 0, 0, 0, 1000, -1, -1)
    assert rows[1] == (7, 1, 1, 2, 0, 500, -1, -1)
    assert rows[2] == (9, 0, 5, 1, 0, 500, -1, -1)


def test_what_kafka_writes_is_read() -> None:
    rows = struct.pack(KAFKAS, 7, 3, 41, 99, 9, 123, 0, -1) + struct.pack(
        KAFKAS, 8, 2, -1, -1, 0, 456, 4, -1
    )
    content = struct.pack(">i", 2) + rows
    states, ongoing = decode(struct.pack(">hI", 1, crc32c(content)) + content)
    assert ongoing == {}
    assert states.check(header(7, 42, epoch=3)) is None
    duplicate = states.check(header(7, 32, 10, epoch=3))
    assert duplicate is not None
    assert (duplicate.base_offset, duplicate.last_offset) == (90, 99)
    assert states.check(header(8, 0, epoch=2)) is None
    assert states.entries[8].touched_ms == 456


def test_five_batches_of_each_producer_come_back() -> None:
    states = decode(encode(states_of(*((7, 0, n) for n in range(9))))).states
    for sequence in range(4, 9):
        duplicate = states.check(header(7, sequence))
        assert duplicate is not None
        assert duplicate.last_offset == sequence


@given(
    batches=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**31 - 1)), max_size=30
    )
)
def test_encoding_again_gives_the_same(batches: list[tuple[int, int, int]]) -> None:
    content = encode(states_of(*batches))
    assert encode(*decode(content)) == content


@given(data=st.data())
def test_any_damage_is_noticed(data: st.DataObject) -> None:
    content = encode(states_of((7, 1, 0), (9, 0, 5)))
    broken = bytearray(content)
    at = data.draw(st.integers(0, len(content) - 1))
    broken[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptMessage):
        decode(bytes(broken))
    with pytest.raises(CorruptMessage):
        decode(content[:at])


def test_the_newest_good_snapshot_at_or_below_the_end_counts(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(OS_DISK, str(tmp_path))
    known = states_of((7, 0, 0))
    for offset in (10, 20, 30, 40):
        snapshots.write(offset, known, [10, 20, 30])
    (tmp_path / f"{30:020d}.snapshot").write_bytes(b"")
    found = ProducerSnapshots(OS_DISK, str(tmp_path), (path.name for path in tmp_path.iterdir()))
    assert found.offsets == [10, 20, 30, 40]
    notes: list[str] = []
    loaded = found.load(39, notes)
    assert loaded is not None
    assert (loaded[0], set(loaded[1].states)) == (20, {7})
    assert len(notes) == 1
    assert "00030.snapshot: a snapshot has 10 bytes at least, this has 0" in notes[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{offset:020d}.snapshot" for offset in (10, 20)
    ]


def test_a_snapshot_with_batches_behind_its_own_offset_is_not_used(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(OS_DISK, str(tmp_path))
    snapshots.write(1, states_of((7, 0, 0), (7, 0, 1)), [])
    notes: list[str] = []
    assert snapshots.load(5, notes) is None
    assert "behind its own offset" in notes[0]


def test_a_snapshot_of_no_segment_goes_when_the_next_is_written(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(OS_DISK, str(tmp_path))
    for offset in (10, 13, 20, 20):
        snapshots.write(offset, ProducerStates(), [0, 10, 20])
    assert snapshots.offsets == [10, 20]
    assert not (tmp_path / f"{13:020d}.snapshot").exists()


def test_an_open_transaction_is_in_the_last_row_of_its_producer_and_alone_for_a_copied_one() -> (
    None
):
    ongoing = {7: OngoingTransaction(3, 1), 8: OngoingTransaction(5, 2)}
    content = encode(states_of((7, 1, 0), (7, 1, 1)), ongoing)
    rows = list(struct.iter_unpack(KAFKAS, content[10:]))
    assert [row[-1] for row in rows] == [-1, 3, 5]
    assert rows[2] == (8, 2, -1, -1, 0, -1, -1, 5)
    states, found = decode(content)
    assert found == ongoing
    assert list(states) == [7]


def test_a_copied_transaction_of_a_producer_with_an_own_epoch_has_its_own_row() -> None:
    ongoing = {7: OngoingTransaction(3, 9)}
    states, found = decode(encode(states_of((7, 1, 0)), ongoing))
    assert found == ongoing
    assert states.entries[7].epoch == 1


def test_a_snapshot_with_a_transaction_behind_its_own_offset_is_not_used(tmp_path: Path) -> None:
    snapshots = ProducerSnapshots(OS_DISK, str(tmp_path))
    snapshots.write(5, ProducerStates(), [], {7: OngoingTransaction(5, 0)})
    notes: list[str] = []
    assert snapshots.load(9, notes) is None
    assert "transactions behind its own offset" in notes[0]
