"""What a crash leaves of a log: the valid prefix, found again whatever the tail looks like (S13).

And what is never touched: bytes below the recovery point (S14).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.disk import OS_DISK
from kbroker.log.indexes import OffsetIndex, TimeIndex
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import iterate, parse
from kclient.wire.errors import CorruptMessage, KafkaStorageError
from kclient.wire.records import decode_batch
from tests.kit.log_timestamps import offset_for_timestamp
from tests.kit.logs import FaultyDisk, append, batch_of, open_log, read_bytes, records

SIZE = len(batch_of(0))
LOG = "00000000000000000000.log"
SETTINGS: dict[str, Any] = {"index_interval_bytes": 2 * SIZE}


def written(
    directory: Path, batches: int = 8, *, epoch: Callable[[int], int] = lambda n: 0
) -> bytes:
    """Write *batches* batches of two records, crash, and return the segment's bytes."""
    log = open_log(directory, **SETTINGS)
    for n in range(batches):
        append(log, 10 * n, 10 * n + 1, value=b"%d" % n, epoch=epoch(n))
    log.close(clean=False)
    return (directory / LOG).read_bytes()


def crashed(directory: Path, data: bytes) -> UnifiedLog:
    """Open a directory that holds only *data*, as a crash before any flush leaves it."""
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    (directory / LOG).write_bytes(data)
    return open_log(directory, **SETTINGS)


def model(data: bytes) -> list[tuple[int, bytes | None]]:
    """What the valid batches at the start of *data* hold."""
    found = []
    for info in iterate(data):
        found += [(record.offset, record.value) for record in decode_batch(data, info)]
    return found


def batch_starts(data: bytes) -> list[int]:
    return [info.position for info in iterate(data)] + [len(data)]


def goes_on(log: UnifiedLog, expected: list[tuple[int, bytes | None]]) -> None:
    """The log holds *expected*, takes appends, finds every offset and opens again."""
    assert records(log) == expected
    assert log.log_end_offset == (expected[-1][0] + 1 if expected else 0)
    result = append(log, 999, value=b"new", epoch=9)
    expected = [*expected, (result.base_offset, b"new")]
    for offset, _ in expected:
        assert parse(read_bytes(log, offset)).last_offset >= offset
    again = open_log(Path(log.directory), **SETTINGS)
    assert records(again) == expected


@pytest.mark.long
def test_a_tail_cut_at_any_byte_leaves_the_whole_batches_before_it(tmp_path: Path) -> None:
    data = written(tmp_path / "t-0")
    starts = batch_starts(data)
    for cut in range(starts[-4], len(data)):
        log = crashed(tmp_path / "t-1", data[:cut])
        goes_on(log, model(data[: max(start for start in starts if start <= cut)]))


@pytest.mark.long
def test_a_tail_garbled_at_any_byte_is_cut_before_that_batch(tmp_path: Path) -> None:
    data = written(tmp_path / "t-0")
    starts = batch_starts(data)
    for at in range(starts[-4], len(data)):
        garbled = bytearray(data)
        garbled[at] ^= 0x5A
        start = max(start for start in starts if start <= at)
        if 12 <= at - start < 16:
            continue  # the leader epoch: no check covers it, and it decides about no record
        if start == starts[-2] and at - start < 8:
            continue  # a greater offset of the last batch is a gap like any other
        goes_on(crashed(tmp_path / "t-1", bytes(garbled)), model(data[:start]))


@pytest.mark.parametrize(
    "tail",
    [
        b"\0" * 10,
        b"\0" * 61,
        b"\0" * 100_000,
        random.Random(1).randbytes(61),
        random.Random(2).randbytes(5000),
        batch_of(1, base_offset=16)[:40],
        batch_of(1, base_offset=16)[:-1],
        batch_of(1, base_offset=16)[:-1] + b"X",
        batch_of(1, base_offset=15),
        batch_of(1, base_offset=0),
        batch_of(1, base_offset=-5),
        b"\x7f" + batch_of(1, base_offset=16)[1:],
        batch_of(1, base_offset=16)[:8] + b"\x7f\xff\xff\xff" + b"\0" * 100,
        batch_of(1, base_offset=16)[:8] + b"\xff\xff\xff\xff" + b"\0" * 100,
    ],
    ids=[
        "10 zeros",
        "a header of zeros",
        "a preallocated tail",
        "a random header",
        "random bytes",
        "a cut header",
        "a cut batch",
        "a wrong CRC",
        "an offset that is taken",
        "the first offset again",
        "a negative offset",
        "a huge offset",
        "a huge length",
        "a negative length",
    ],
)
def test_a_tail_that_is_no_batch_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    data = written(tmp_path / "t-0")
    log = crashed(tmp_path / "t-1", data + tail)
    assert (tmp_path / "t-1" / LOG).stat().st_size == len(data)
    goes_on(log, model(data))


def test_gaps_are_in_order(tmp_path: Path) -> None:
    """Compaction leaves them, and a log that was copied has those of its source."""
    log = open_log(tmp_path / "t-0", **SETTINGS)
    append(log, 1)
    log.append_as_follower(batch_of(1, 2, base_offset=7, leader_epoch=0), 0)
    log.append_as_follower(batch_of(3, base_offset=10, leader_epoch=0), 0)
    log.close(clean=False)
    assert [offset for offset, _ in records(open_log(tmp_path / "t-0"))] == [0, 7, 8, 10]


def test_a_gap_that_the_next_batch_contradicts_is_a_damaged_offset(tmp_path: Path) -> None:
    data = bytearray(written(tmp_path / "t-0"))
    start = batch_starts(bytes(data))[5]
    data[start + 6] ^= 1  # 256 more
    log = crashed(tmp_path / "t-1", bytes(data))
    assert log.log_end_offset == 10
    assert (tmp_path / "t-1" / f"{LOG}.{start}.quarantined").read_bytes() == bytes(data[start:])


def test_recovery_rebuilds_indexes_and_epochs_as_they_were(tmp_path: Path) -> None:
    written(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0", **SETTINGS)
    for n in range(30):
        append(log, 100 + n, epoch=n // 7)
    log.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "t-0").iterdir()}
    crashed(tmp_path / "t-1", before[LOG]).close()
    after = {path.name: path.read_bytes() for path in (tmp_path / "t-1").iterdir()}
    assert after == before


def test_recovery_of_the_unsynced_part_leaves_the_same_files(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    for n in range(100):
        append(log, n, epoch=n // 30)
        if n == 60:
            log.flush()
    log.close(clean=False)
    shutil.copytree(tmp_path / "t-0", tmp_path / "t-1")
    for name, recovery_point in (("t-0", 0), ("t-1", 61)):
        open_log(tmp_path / name, recovery_point=recovery_point, **SETTINGS).close()
    whole, part = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("t-0", "t-1")
    )
    assert part == whole


def test_epochs_of_batches_that_were_truncated_do_not_come_back(tmp_path: Path) -> None:
    """The file is written when the log is flushed: after a crash it may know too much."""
    log = open_log(tmp_path / "t-0")
    append(log, 1, epoch=0)
    append(log, 2, epoch=1)
    log.flush()
    log.truncate_to(0)
    append(log, 3, epoch=1)
    log.close(clean=False)
    log = open_log(tmp_path / "t-0", recovery_point=0)
    assert log.leader_epochs.entries == ((1, 0),)


def test_recovery_reads_on_from_the_last_index_entry_below_the_recovery_point(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    for n in range(200):
        append(log, n)
    log.flush()
    for n in range(3):
        append(log, 200 + n)
    disk = FaultyDisk()
    again = open_log(tmp_path / "t-0", disk=disk, recovery_point=200, **SETTINGS)
    assert again.log_end_offset == 203
    assert again.recovery_point == 200
    assert len(again.segments[0].offset_index) > 60
    assert [call for call, _ in disk.calls].count("pread") < 40


def test_only_the_end_of_recovery_moves_nothing(tmp_path: Path) -> None:
    """A crash during recovery is followed by the same recovery (KAFKA-10471)."""
    written(tmp_path / "t-0")
    assert open_log(tmp_path / "t-0", **SETTINGS).recovery_point == 0


def test_recovery_that_fails_half_way_can_be_done_again(tmp_path: Path) -> None:
    data = written(tmp_path / "t-0")
    for after in range(12):
        (tmp_path / "t-0" / LOG).write_bytes(data + b"\0" * 100)
        disk = FaultyDisk()
        for call in ("ftruncate", "open", "pread"):
            disk.fail(call, after=after)
        with suppress(OSError):
            open_log(tmp_path / "t-0", disk=disk, **SETTINGS)
        assert records(open_log(tmp_path / "t-0", **SETTINGS)) == model(data)


def test_segments_behind_a_cut_are_put_aside_and_not_deleted(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"segment_bytes": 3 * SIZE}
    log = open_log(tmp_path / "t-0", **settings)
    for n in range(9):
        append(log, n)
    log.close(clean=False)
    path = tmp_path / "t-0" / "00000000000000000003.log"
    data = bytearray(path.read_bytes())
    data[SIZE + 65] ^= 1
    path.write_bytes(data)
    log = open_log(tmp_path / "t-0", **settings)
    assert [offset for offset, _ in records(log)] == [0, 1, 2, 3]
    assert (tmp_path / "t-0" / "00000000000000000006.log.quarantined").stat().st_size == 3 * SIZE
    assert any("00000000000000000006.log" in note for note in log.notes)
    assert append(log, 50).base_offset == 4


def test_a_segment_behind_a_hole_is_put_aside(tmp_path: Path) -> None:
    """A power loss may take the end of a segment and leave the next one."""
    settings: dict[str, Any] = {"segment_bytes": 3 * SIZE}
    log = open_log(tmp_path / "t-0", **settings)
    for n in range(9):
        append(log, n)
    log.close(clean=False)
    path = tmp_path / "t-0" / "00000000000000000003.log"
    path.write_bytes(path.read_bytes()[: 2 * SIZE])
    shutil.copytree(tmp_path / "t-0", tmp_path / "t-1")
    log = open_log(tmp_path / "t-0", **settings)
    assert log.log_end_offset == 5
    assert (tmp_path / "t-0" / "00000000000000000006.log.quarantined").exists()
    compacted = open_log(tmp_path / "t-1", cleanup_policy=("compact",), **settings)
    assert [offset for offset, _ in records(compacted)] == [0, 1, 2, 3, 4, 6, 7, 8]


def test_nothing_that_was_put_aside_is_written_over(tmp_path: Path) -> None:
    for _ in range(2):
        data = bytearray(written(tmp_path / "t-0"))
        data[batch_starts(bytes(data))[3] + 65] ^= 1
        (tmp_path / "t-0" / LOG).write_bytes(data)
        open_log(tmp_path / "t-0", **SETTINGS)
        (tmp_path / "t-0" / LOG).write_bytes(b"")
    assert len(list((tmp_path / "t-0").glob("*.quarantined"))) == 2


def test_whole_batches_behind_a_damaged_one_are_put_aside(tmp_path: Path) -> None:
    data = bytearray(written(tmp_path / "t-0"))
    third = batch_starts(bytes(data))[3]
    data[third + 65] ^= 1
    log = crashed(tmp_path / "t-1", bytes(data))
    assert log.log_end_offset == 6
    aside = (tmp_path / "t-1" / f"{LOG}.{third}.quarantined").read_bytes()
    assert aside == bytes(data[third:])


def test_a_torn_tail_is_not_put_aside(tmp_path: Path) -> None:
    data = written(tmp_path / "t-0")
    crashed(tmp_path / "t-1", data[:-1])
    assert not list((tmp_path / "t-1").glob("*.quarantined"))


# Below the recovery point


def test_damage_below_the_recovery_point_is_named_and_left_alone(tmp_path: Path) -> None:
    data = bytearray(written(tmp_path / "t-0"))
    start = batch_starts(bytes(data))[5]
    data[start + 16] = 9  # the magic byte
    for path in (tmp_path / "t-0").iterdir():
        path.unlink()
    (tmp_path / "t-0" / LOG).write_bytes(data)
    with pytest.raises(CorruptMessage, match=rf"{LOG}: byte {start}"):
        open_log(tmp_path / "t-0", recovery_point=16, **SETTINGS)
    assert (tmp_path / "t-0" / LOG).read_bytes() == data


def test_a_flipped_bit_below_the_recovery_point_cuts_nothing(tmp_path: Path) -> None:
    data = bytearray(written(tmp_path / "t-0"))
    data[batch_starts(bytes(data))[2] + 65] ^= 1
    (tmp_path / "t-0" / LOG).write_bytes(data)
    log = open_log(tmp_path / "t-0", recovery_point=16, **SETTINGS)
    assert log.log_end_offset == 16
    assert (tmp_path / "t-0" / LOG).read_bytes() == data


def test_a_log_that_lost_synced_records_opens_and_reports_it(tmp_path: Path) -> None:
    data = written(tmp_path / "t-0")
    (tmp_path / "t-0" / LOG).write_bytes(data[: batch_starts(data)[4]])
    log = open_log(tmp_path / "t-0", recovery_point=16, **SETTINGS)
    assert (log.log_end_offset, log.missing_below) == (8, 16)
    assert any("everything below 16 was synced" in note for note in log.notes)


def test_a_recovery_point_beyond_the_end_does_not_stay_there(tmp_path: Path) -> None:
    written(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0", recovery_point=10**9, **SETTINGS)
    assert log.recovery_point == log.log_end_offset == 16


# After a clean shutdown


def test_a_clean_log_is_opened_from_the_end_of_its_index(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    for n in range(500):
        append(log, n)
    assert log.close()
    disk = FaultyDisk()
    again = open_log(tmp_path / "t-0", disk=disk, clean=True, recovery_point=500, **SETTINGS)
    assert again.log_end_offset == again.recovery_point == 500
    assert [call for call, _ in disk.calls].count("pread") < 15


def test_a_clean_shutdown_marker_over_a_dirty_tail_is_not_trusted(tmp_path: Path) -> None:
    data = written(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0", **SETTINGS)
    log.close()
    with (tmp_path / "t-0" / LOG).open("ab") as file:
        file.write(batch_of(1, base_offset=16)[:-3])
    log = open_log(tmp_path / "t-0", clean=True, recovery_point=16, **SETTINGS)
    goes_on(log, model(data))


# Index files and other files of the directory


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    changed = {
        "missing": None,
        "empty": b"",
        "zeros": bytes(len(data)),
        "preallocated": data + bytes(10_000),
        "cut": data[:-3],
        "random": random.Random(7).randbytes(len(data)),
        "random longer": random.Random(8).randbytes(3 * len(data) + 1),
        "ones": b"\xff" * len(data),
    }[how]
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("segment", ["00000000000000000000", "00000000000000000040"])
@pytest.mark.parametrize(
    "how",
    ["missing", "empty", "zeros", "preallocated", "cut", "random", "random longer", "ones"],
)
def test_a_damaged_index_costs_nothing_but_time(
    tmp_path: Path, how: str, segment: str, suffix: str, clean: bool
) -> None:
    settings: dict[str, Any] = {"segment_bytes": 40 * SIZE, "index_interval_bytes": SIZE}
    log = open_log(tmp_path / "t-0", **settings)
    for n in range(75):
        append(log, 1000 + n, value=b"%02d" % n if n > 1 else b"v")
    assert len(log.segments) == 2 or len(log.segments) == 3
    base = f"{log.segments[0 if segment.endswith('00') else -1].base_offset:020d}"
    expected = records(log)
    log.close(clean=True)
    damage(tmp_path / "t-0" / f"{base}.{suffix}", how)
    log = open_log(tmp_path / "t-0", clean=clean, recovery_point=75, **settings)
    assert records(log) == expected
    for offset in (0, 17, 39, 40, 60, 74):
        assert parse(read_bytes(log, offset)).base_offset == offset
        found = offset_for_timestamp(log, 1000 + offset)
        assert found is not None
        assert found.offset == offset
    assert append(log, 2000).base_offset == 75


def test_an_index_of_another_partition_is_rebuilt(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"index_interval_bytes": 0}
    log = open_log(tmp_path / "t-0", **settings)
    other = open_log(tmp_path / "t-1", **settings)
    for n in range(50):
        append(log, n)
        append(other, 10 * n, value=b"x" * (n + 5))
    expected = records(log)
    log.close()
    other.close()
    for suffix in ("index", "timeindex"):
        name = f"00000000000000000000.{suffix}"
        (tmp_path / "t-1" / name).replace(tmp_path / "t-0" / name)
    log = open_log(tmp_path / "t-0", clean=True, recovery_point=50, **settings)
    assert records(log) == expected
    assert [parse(read_bytes(log, n)).base_offset for n in range(50)] == list(range(50))
    found = [offset_for_timestamp(log, n) for n in range(50)]
    assert [one and one.offset for one in found] == list(range(50))


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 20, b"1\n0\n", b"0\n5\n0 0\n", b"0\n2\n3 0\n1 5\n", b"0\n1\nx y\n", b"\xff\xfe"],
    ids=["empty", "zeros", "future version", "count", "decreasing", "words", "binary"],
)
def test_a_damaged_epoch_file_is_rebuilt_from_the_batches(tmp_path: Path, content: bytes) -> None:
    log = open_log(tmp_path / "t-0")
    for n in range(9):
        append(log, n, epoch=n // 3)
    log.close()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_bytes(content)
    log = open_log(tmp_path / "t-0", clean=True, recovery_point=9)
    assert log.leader_epochs.entries == ((0, 0), (1, 3), (2, 6))
    assert any("leader-epoch-checkpoint" in note for note in log.notes)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "entries",
    [
        "1\n9 0\n",
        "1\n0 0\n",
        "4\n0 0\n1 4\n2 8\n3 10\n",
        "4\n0 0\n1 4\n2 8\n3 14\n",
        "3\n0 0\n1 4\n3 12\n",
        "3\n1 0\n2 8\n3 12\n",
        "1\n3 12\n",
        "0\n",
    ],
    ids=["another", "older", "too early", "too late", "gap", "another first", "last", "none"],
)
def test_s08_an_epoch_file_that_the_batches_contradict_is_rebuilt(
    tmp_path: Path, entries: str, clean: bool
) -> None:
    written(tmp_path / "t-0", epoch=lambda n: n // 2)
    before = open_log(tmp_path / "t-0", **SETTINGS)
    epochs, end = before.leader_epochs.entries, before.log_end_offset
    before.close()
    assert epochs == ((0, 0), (1, 4), (2, 8), (3, 12))
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n" + entries)
    log = open_log(tmp_path / "t-0", clean=clean, recovery_point=end, **SETTINGS)
    assert log.leader_epochs.entries == epochs
    assert any("leader-epoch-checkpoint" in note for note in log.notes)


def test_s08_an_epoch_file_that_begins_within_a_batch_is_accepted(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    append(log, 1, 2, 3, epoch=4)
    append(log, 4, epoch=5)
    log.advance_log_start(1)
    log.close()
    again = open_log(tmp_path / "t-0", clean=True, recovery_point=4, log_start_offset=1, **SETTINGS)
    assert again.leader_epochs.entries == ((4, 1), (5, 3))
    assert not again.notes


def test_epochs_beyond_the_recovered_end_are_forgotten(tmp_path: Path) -> None:
    data = written(tmp_path / "t-0", epoch=lambda n: n // 2)
    log = open_log(tmp_path / "t-0", **SETTINGS)
    log.close()
    (tmp_path / "t-0" / LOG).write_bytes(data[: batch_starts(data)[5]])
    log = open_log(tmp_path / "t-0", **SETTINGS)
    assert log.leader_epochs.entries == ((0, 0), (1, 4), (2, 8))


def test_leftovers_go_and_unknown_files_stay(tmp_path: Path) -> None:
    data = written(tmp_path / "t-0")
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000000.index.deleted",
        "leader-epoch-checkpoint.tmp",
        "00000000000000000005.log.cleaned",
    ):
        (tmp_path / "t-0" / name).write_bytes(b"x")
    for name in ("README", "12.log", "00000000000000000000.txnindex"):
        (tmp_path / "t-0" / name).write_bytes(b"x")
    log = open_log(tmp_path / "t-0", **SETTINGS)
    assert records(log) == model(data)
    names = {path.name for path in (tmp_path / "t-0").iterdir()}
    assert not [name for name in names if name.endswith((".deleted", ".tmp", ".cleaned"))]
    assert {"README", "12.log", "00000000000000000000.txnindex"} <= names


def test_half_a_compaction_is_named(tmp_path: Path) -> None:
    written(tmp_path / "t-0")
    (tmp_path / "t-0" / "00000000000000000000.log.swap").write_bytes(b"x")
    with pytest.raises(KafkaStorageError, match=r"\.swap"):
        open_log(tmp_path / "t-0")


@pytest.mark.parametrize("content", [b"version: 7\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", b"junk"])
def test_a_damaged_partition_metadata_is_named(tmp_path: Path, content: bytes) -> None:
    written(tmp_path / "t-0")
    (tmp_path / "t-0" / "partition.metadata").write_bytes(content)
    with pytest.raises(CorruptMessage, match=r"partition\.metadata"):
        open_log(tmp_path / "t-0")


def test_an_empty_partition_metadata_is_as_good_as_none(tmp_path: Path) -> None:
    written(tmp_path / "t-0")
    (tmp_path / "t-0" / "partition.metadata").write_bytes(b"")
    assert open_log(tmp_path / "t-0").topic_id is None


def test_a_log_start_offset_beyond_the_end_is_where_the_log_goes_on(tmp_path: Path) -> None:
    written(tmp_path / "t-0")
    log = open_log(tmp_path / "t-0", log_start_offset=40, **SETTINGS)
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)
    assert append(log, 1).base_offset == 40
    assert records(log) == [(40, b"v")]
    # Nothing is left that would make a hole, should a power loss take the log start offset.
    assert [segment.base_offset for segment in log.segments] == [40]
    assert open_log(tmp_path / "t-0", **SETTINGS).log_start_offset == 40


def test_an_index_reads_zeros_at_its_end_as_no_entries(tmp_path: Path) -> None:
    """Kafka preallocates its indexes; killed, it leaves them ten megabytes long."""
    index = OffsetIndex(OS_DISK, str(tmp_path / "i"))
    for n in range(1, 1000):
        index.append(n, 100 * n)
    index.write_out()
    with Path(index.path).open("ab") as file:
        file.write(bytes(80_000))
    again = OffsetIndex(OS_DISK, str(tmp_path / "i"))
    assert len(again) == 999
    assert again.last() == (999, 99900)
    assert [again.at_most(n) for n in (0, 1, 500, 999, 5000)] == [
        None,
        (1, 100),
        (500, 50_000),
        (999, 99_900),
        (999, 99_900),
    ]
    again.trim()
    assert Path(index.path).stat().st_size == 999 * 8


def test_an_index_finds_entries_in_the_file_and_pending_ones(tmp_path: Path) -> None:
    index = TimeIndex(OS_DISK, str(tmp_path / "i"), new=True)
    for n in range(3000):
        index.append(10 * n, n)
        if n == 2000:
            index.write_out()
    for n in range(3000):
        assert index.at_most(10 * n + 5) == (10 * n, n)
    assert index.count_below(2500, column=1) == 2500
    index.keep(2500)
    assert index.last() == (24990, 2499)
    index.keep(100)
    assert index.last() == (990, 99)
    assert len(index) == 100
    assert list(index.entries()) == [(10 * n, n) for n in range(100)]
