"""What a log knows of producers through rolls, restarts, crashes, truncations and retention."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.config.log import LogConfig
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import iterate, parse
from kclient.wire.errors import KafkaStorageError
from tests.kit.logs import IGNORED, FaultyDisk, append, open_log
from tests.kit.producer_batches import append_numbered, header, numbered_batch
from tests.kit.simulated_disk import SimulatedDisk
from tests.kit.transactional_logs import marker

P = 9
SIZE = len(numbered_batch(P, 0, value=b"v"))


def snapshots(log: UnifiedLog) -> list[int]:
    """The offsets of the snapshot files."""
    return sorted(int(path.stem) for path in Path(log.directory).glob("*.snapshot"))


def known(log: UnifiedLog) -> dict[int, tuple[int, int, int]]:
    """Per producer: epoch, last sequence and last offset."""
    return {
        producer_id: (entry.epoch, entry.last_sequence, entry.last_offset)
        for producer_id, entry in log.producers.states.entries.items()
    }


def recognised(log: UnifiedLog, *sequences: int) -> bool:
    """Whether batches of one record with these sequences are duplicates."""
    return all(log.producers.states.check(header(P, n)) is not None for n in sequences)


def test_a_roll_writes_a_snapshot_named_after_the_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append_numbered(log, P, 0)
    log.roll(0)
    append(log, 1)
    log.roll(0)
    assert snapshots(log) == [segment.base_offset for segment in log.segments[1:]] == [1, 2]


def test_a_clean_shutdown_writes_a_snapshot_and_the_next_one_replaces_it(tmp_path: Path) -> None:
    for sequence in range(3):
        log = open_log(tmp_path / "t-0", clean=sequence > 0)
        append_numbered(log, P, sequence)
        assert log.close()
        assert snapshots(log) == [sequence + 1]
    log = open_log(tmp_path / "t-0", clean=True)
    assert known(log) == {P: (0, 2, 2)}
    assert log.close()
    assert snapshots(log) == [3]


@pytest.mark.parametrize(
    ("timestamps", "now_ms", "touched_ms"),
    [
        ((100,), 900, 100),
        ((100, 300), 900, 300),
        ((300, 100), 900, 300),
        ((5000,), 900, 900),
        ((-1,), 900, 900),
    ],
)
def test_after_a_crash_the_timestamps_of_batches_count_as_write_times(
    tmp_path: Path, timestamps: tuple[int, ...], now_ms: int, touched_ms: int
) -> None:
    log = open_log(tmp_path / "t-0")
    for sequence, timestamp in enumerate(timestamps):
        append_numbered(log, P, sequence, now_ms=timestamp)
    log = open_log(tmp_path / "t-0", now_ms=now_ms)
    assert log.producers.states.entries[P].touched_ms == touched_ms
    assert log.producers.states.expire(touched_ms - 1) == 0
    assert log.producers.states.expire(touched_ms) == 1


@pytest.mark.parametrize("seed", range(10))
def test_a_clean_shutdown_forgets_nothing_when_the_power_goes_then(seed: int) -> None:
    """KAFKA-9892. The log was closed cleanly, so no start reads it again to find out."""
    disk = SimulatedDisk()
    disk.mkdir("/data")
    disk.mkdir("/data/t-0")
    disk.sync_dir("/")
    log = UnifiedLog.open("/data/t-0", LogConfig(), IGNORED, now_ms=0, disk=disk)
    append_numbered(log, P, 0)
    log.flush()
    assert log.close()
    disk.lose_power(random.Random(seed))
    log = UnifiedLog.open("/data/t-0", LogConfig(), IGNORED, now_ms=0, disk=disk, clean=True)
    assert known(log) == {P: (0, 0, 0)}


def test_a_log_without_producers_leaves_no_snapshot(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, 1)
    assert log.close()
    assert snapshots(log) == []


@pytest.mark.parametrize("damage", [b"", b"\0" * 60, None], ids=["empty", "zeros", "missing"])
def test_without_a_good_snapshot_the_batches_count(tmp_path: Path, damage: bytes | None) -> None:
    log = open_log(tmp_path / "t-0")
    append_numbered(log, 1, 0)
    log.roll(0)
    append_numbered(log, P, 0)
    append_numbered(log, P, 1)
    assert log.close()
    for path in (tmp_path / "t-0").glob("*.snapshot"):
        if damage is not None:
            path.write_bytes(damage)
        elif path.stem.endswith("3"):
            path.unlink()
    log = open_log(tmp_path / "t-0", clean=True)
    assert known(log) == {1: (0, 0, 0), P: (0, 1, 2)}
    notes = [note for note in log.notes if ".snapshot" in note]
    assert len(notes) == (0 if damage is None else 2)
    assert all(note.endswith("rebuilt from the batches") for note in notes)


def test_only_what_is_behind_the_snapshot_is_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append_numbered(log, P, 0)
    log.roll(0)
    append_numbered(log, P, 1)
    log.close(clean=False)
    first = Path(log.segments[0].path)
    first.write_bytes(bytes(first.stat().st_size))
    log = open_log(tmp_path / "t-0", recovery_point=1)
    assert known(log) == {P: (0, 1, 1)}
    assert recognised(log, 0, 1)


def test_a_truncation_takes_newer_snapshots_away(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for sequence in range(20):
        append_numbered(log, P, sequence)
        if sequence % 5 == 4:
            log.roll(0)
    assert snapshots(log) == [5, 10, 15, 20]
    log.truncate_to(12)
    assert snapshots(log) == [5, 10]
    assert known(log) == {P: (0, 11, 11)}
    assert recognised(log, 10, 11)
    log.truncate_to(10)
    assert snapshots(log) == [5, 10]
    log.truncate_to(2)
    assert snapshots(log) == []
    assert known(log) == {P: (0, 1, 1)}
    log.truncate_to(0)
    assert known(log) == {}


def test_a_snapshot_that_a_power_loss_brought_back_is_not_used(tmp_path: Path) -> None:
    """A truncation removed it, and the removal was not synced: its batches are not those of the log."""
    log = open_log(tmp_path / "t-0")
    append_numbered(log, P, 0)
    log.flush()
    append_numbered(log, P, 1)
    append_numbered(log, 4, 0)
    log.roll(0)
    snapshot = tmp_path / "t-0" / f"{3:020d}.snapshot"
    content = snapshot.read_bytes()
    log.truncate_to(1)
    for sequence in range(5):
        append_numbered(log, 5, sequence)
    log.close(clean=False)
    assert not snapshot.exists()
    snapshot.write_bytes(content)
    log = open_log(tmp_path / "t-0", recovery_point=1)
    assert known(log) == {P: (0, 0, 0), 5: (0, 4, 5)}
    assert not recognised(log, 1), "it was cut off: the producer sends it again"


def test_a_truncation_below_a_new_epoch_brings_the_old_one_back(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append_numbered(log, P, 0, epoch=3)
    append_numbered(log, P, 0, epoch=4)
    log.truncate_to(1)
    assert known(log) == {P: (3, 0, 0)}


def test_a_deep_cut_looks_for_lost_producers_from_the_end_on(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append_numbered(log, 1, 0)
    log.roll(0)
    append_numbered(log, 2, 0)
    for n in range(50):
        append_numbered(log, P, n * 100, 100)
    for n in range(10):
        append_numbered(log, 1, 1 + n)
        append_numbered(log, 2, 1 + n)
        append_numbered(log, 3, n)
        append_numbered(log, P, 5000 + n)
    log.truncate_to(4902)
    assert known(log) == {1: (0, 0, 0), 2: (0, 0, 1), P: (0, 4899, 4901)}
    log.truncate_to(1)
    assert known(log) == {1: (0, 0, 0)}


@pytest.mark.parametrize("is_before_snapshot", [True, False])
def test_a_producer_of_which_only_a_marker_is_near_the_cut_keeps_its_sequence(
    tmp_path: Path, is_before_snapshot: bool
) -> None:
    log = open_log(tmp_path / "t-0")
    append_numbered(log, P, 0, 3)
    if is_before_snapshot:
        log.roll(0)
    else:
        append_numbered(log, 1, 0, 2000)
    for epoch in (0, 1):  # the second one fences the producer
        batch = marker(P, epoch=epoch)
        log.append_as_leader(batch, parse(batch), 0, 1)
    cut = log.log_end_offset - 1
    log.truncate_to(cut)
    assert known(log)[P] == (0, 2, cut - 1)
    assert log.producers.states.entries[P].batches[-1].last_offset == 2


def test_a_log_that_begins_again_knows_no_producer(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append_numbered(log, P, 0)
    log.roll(0)
    log.truncate_fully_and_start_at(100)
    assert (known(log), snapshots(log)) == ({}, [])


def test_producers_outlive_their_records_and_snapshots_do_not(tmp_path: Path) -> None:
    """KIP-360: retention must not make a producer that is there unknown."""
    log = open_log(tmp_path / "t-0", retention_ms=10)
    append_numbered(log, P, 0)
    log.roll(0)
    append(log, 1)
    log.roll(0)
    append(log, 10**6)
    assert snapshots(log) == [1, 2]
    doomed = log.delete_old_segments(10**6)
    assert [segment.base_offset for segment in log.segments] == [2]
    assert snapshots(log) == [2]
    assert sum(path.endswith(".snapshot.deleted") for path in doomed) == 1
    log.close()
    log = open_log(tmp_path / "t-0", clean=True)
    assert known(log) == {P: (0, 0, 0)}


def test_a_follower_keeps_the_same_producer_state_as_its_leader(tmp_path: Path) -> None:
    leader, follower = open_log(tmp_path / "t-0"), open_log(tmp_path / "t-1")
    for sequence in range(8):
        append_numbered(leader, P, sequence)
        append(leader, 1)
    data = b"".join(part.read() for part in leader.read(0, 1 << 20).slices)
    follower.append_as_follower(data, 0)
    assert known(follower) == known(leader)
    assert recognised(follower, 3, 4, 5, 6, 7)


def test_copied_batches_change_no_producer_state_even_in_recovery(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append_numbered(log, P, 0)
    data = numbered_batch(P, 50, base_offset=1) + numbered_batch(4, 0, base_offset=2)
    log.append_copied(data, list(iterate(data)), 0, 0, start_offset=0)
    assert known(log) == {P: (0, 0, 0)}
    append_numbered(log, P, 1)
    log.close(clean=False)
    log = open_log(tmp_path / "t-0")
    assert known(log) == {P: (0, 1, 3)}
    log.truncate_to(2)
    assert log.producers.copied.ranges == ((1, 2),)
    log.truncate_to(1)
    assert log.producers.copied.ranges == ()


def test_batches_in_the_place_of_truncated_copies_are_remembered_after_a_restart(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "t-0")
    copies = b"".join(numbered_batch(4, n, base_offset=n) for n in range(3))
    log.append_copied(copies, list(iterate(copies)), 0, 0, start_offset=0)
    append_numbered(log, P, 0)
    log.truncate_to(1)
    for sequence in range(3):
        append_numbered(log, P, sequence)
    log.close(clean=False)
    log = open_log(tmp_path / "t-0")
    assert known(log) == {P: (0, 2, 3)}
    assert recognised(log, 0, 1, 2)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_batch_behind_copies_is_not_taken_for_one_of_them_if_the_broker_ends_there(
    tmp_path: Path, role: str
) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", disk=disk)
    copy = numbered_batch(4, 0)
    log.append_copied(copy, list(iterate(copy)), 0, 0, start_offset=0)
    appends: dict[str, Callable[[], object]] = {
        "leader": lambda: append_numbered(log, P, 0),
        "follower": lambda: log.append_as_follower(numbered_batch(P, 0, base_offset=1), 0),
    }
    disk.fail("rename")
    with pytest.raises(KafkaStorageError):
        appends[role]()
    log.close(clean=False)
    log = open_log(tmp_path / "t-0")
    assert (log.log_end_offset, known(log)) == (1, {})


def test_copies_beyond_the_end_that_recovery_found_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append_numbered(log, P, 0)
    log.close(clean=False)
    (tmp_path / "t-0" / "copied-offsets").write_bytes(b"0\n0 3\n")
    log = open_log(tmp_path / "t-0")
    assert log.producers.copied.ranges == ((0, 1),)


def test_a_damaged_list_of_copies_is_reported(tmp_path: Path) -> None:
    open_log(tmp_path / "t-0").close()
    (tmp_path / "t-0" / "copied-offsets").write_bytes(b"0\n5 3\n")
    log = open_log(tmp_path / "t-0")
    assert "copied-offsets" in log.notes[0]
