"""The cleaner in its own process: the same result, errors as they are, and no process that stays."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log.cleaner import Cleaner, CleanerSizes, RoundLimits, SourceSegment
from kbroker.log.cleaner_process import CleanerProcess
from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.core.record_filter import LastBatch
from kbroker.log.disk import OS_DISK
from kbroker.log.transaction_index import LaterIndexes, packed
from kclient.wire.batches import iterate
from kclient.wire.errors import CorruptMessage, UnknownServerError
from kclient.wire.records import ABORT, COMMIT, Record, encode_batch
from tests.kit.transactional_logs import marker, transactional
from tests.kit.waiting import eventually

SIZES = CleanerSizes(24 * 1_000, 0.9, 1 << 16)
RECORDS = 40


@pytest.fixture
def process() -> Iterator[CleanerProcess]:
    process = CleanerProcess(SIZES)
    yield process
    process.close()


def segments_in(directory: Path) -> list[SourceSegment]:
    """Two segments of large records; every key is there twice."""
    found = []
    for base in (0, RECORDS):
        batches = [
            encode_batch(
                [Record(0, 1_000, b"key-%d" % (offset % 25), b"%d" % offset * 2_000)],
                base_offset=offset,
                producer_id=7 if offset == 3 else -1,
                producer_epoch=0 if offset == 3 else -1,
                base_sequence=0 if offset == 3 else -1,
            )
            for offset in range(base, base + RECORDS)
        ]
        path = directory / f"{base}.log"
        path.write_bytes(b"".join(batches))
        found.append(SourceSegment(str(path), base, path.stat().st_size))
    return found


LIMITS = RoundLimits(0, 2 * RECORDS, 5_000, 100, {7: LastBatch(3, 0)})


def test_the_process_yields_what_the_cleaner_yields(
    process: CleanerProcess, tmp_path: Path
) -> None:
    segments = segments_in(tmp_path)
    here = Cleaner(OS_DISK, segments, LIMITS, SIZES, throttle=lambda _bytes: None)
    for _ in range(2):  # it serves one round after the other
        there = process.round(segments, LIMITS)
        assert there.build_offset_map() == here.build_offset_map() == there.map_end == 2 * RECORDS
        for group in (segments[:1], segments[1:], segments):
            pieces = list(there.cleaned(group))
            assert b"".join(pieces) == b"".join(here.cleaned(group))
        assert len(pieces) > 1


def test_the_process_has_the_aborted_transactions_of_indexes_and_of_the_round(
    process: CleanerProcess, tmp_path: Path
) -> None:
    batches = [
        transactional(7, base_offset=0),
        transactional(8, base_offset=1),
        marker(7, ABORT, base_offset=2),
        transactional(7, base_offset=3, sequence=1),
        transactional(9, base_offset=4),
    ]
    path = tmp_path / "0.log"
    path.write_bytes(b"".join(batches))
    entries = [AbortedTransaction(7, 0, 2, 1)]
    (tmp_path / "0.txnindex").write_bytes(b"".join(map(packed, entries)))
    later = [AbortedTransaction(8, 1, 6, 3), AbortedTransaction(6, 5, 7, 3)]
    torn = packed(AbortedTransaction(9, 4, 9, 9))[:20]  # the broker is writing it
    (tmp_path / "5.txnindex").write_bytes(packed(later[0]))
    (tmp_path / "8.txnindex").write_bytes(packed(later[1]) + torn)
    indexes = LaterIndexes(
        [f"{tmp_path}/5.txnindex", f"{tmp_path}/6.txnindex"],  # one has no file
        f"{tmp_path}/8.txnindex",
        1,
        [AbortedTransaction(7, 3, 8, 4)],
    )
    segments = [SourceSegment(str(path), 0, path.stat().st_size)]
    last_batches = {7: LastBatch(0, 0), 8: LastBatch(1, 0), 9: LastBatch(4, 0)}
    limits = RoundLimits(0, 5, 5_000, 100, last_batches, indexes)
    here, there = (
        Cleaner(OS_DISK, segments, limits, SIZES, throttle=lambda _bytes: None),
        process.round(segments, limits),
    )
    for each in (here, there):
        assert each.build_offset_map() == 5
        found = b"".join(each.cleaned(segments))
        # The one at 3 is no last batch: it goes. That of producer 9 is committed; its record has no key.
        assert [(e.base_offset, e.record_count) for e in iterate(found)] == [
            (0, 0), (1, 0), (2, 1), (4, 0),
        ]  # fmt: skip
        assert list(each.kept_aborted()) == entries


def test_an_aborted_transaction_below_the_dirty_part_hides_nothing_behind_its_marker(
    tmp_path: Path,
) -> None:
    batches = [
        transactional(7, base_offset=0),
        marker(7, ABORT, base_offset=1),
        transactional(7, base_offset=2, sequence=1),
        marker(7, COMMIT, base_offset=3),
    ]
    path = tmp_path / "0.log"
    path.write_bytes(b"".join(batches))
    (tmp_path / "0.txnindex").write_bytes(packed(AbortedTransaction(7, 0, 1, 2)))
    segments = [SourceSegment(str(path), 0, path.stat().st_size)]
    cleaner = Cleaner(
        OS_DISK, segments, RoundLimits(2, 4, 5_000, 100, {}), SIZES, throttle=lambda _bytes: None
    )
    assert cleaner.build_offset_map() == 4


def test_damage_and_errors_of_the_disk_come_as_what_they_are(
    process: CleanerProcess, tmp_path: Path
) -> None:
    segments = segments_in(tmp_path)
    there = process.round(segments, LIMITS)
    there.build_offset_map()
    pid = process.pid
    assert pid is not None
    second = Path(segments[1].path)
    whole = second.read_bytes()
    second.write_bytes(whole[:-1] + b"?")
    with pytest.raises(CorruptMessage, match="CRC"):
        list(there.cleaned(segments))
    second.unlink()
    with pytest.raises(CorruptMessage, match="not there"):
        process.round(segments, LIMITS).build_offset_map()
    second.mkdir()
    with pytest.raises(IsADirectoryError) as found:
        process.round(segments, LIMITS).build_offset_map()
    assert found.value.errno == errno.EISDIR
    second.rmdir()
    second.write_bytes(whole)
    assert process.round(segments, LIMITS).build_offset_map() == 2 * RECORDS
    assert process.pid == pid


def test_a_process_that_is_killed_fails_its_round_and_the_next_round_has_another(
    process: CleanerProcess, tmp_path: Path
) -> None:
    segments = segments_in(tmp_path)
    there = process.round(segments, LIMITS)
    there.build_offset_map()
    killed = process.pid
    process.kill()
    with pytest.raises(UnknownServerError):
        list(there.cleaned(segments))
    assert process.round(segments, LIMITS).build_offset_map() == 2 * RECORDS
    assert process.pid not in (None, killed)


def test_a_process_that_was_ended_begins_no_other_round(
    process: CleanerProcess, tmp_path: Path
) -> None:
    segments = segments_in(tmp_path)
    there = process.round(segments, LIMITS)
    there.build_offset_map()
    process.end()
    with pytest.raises(UnknownServerError):
        list(there.cleaned(segments))
    with pytest.raises(UnknownServerError):
        process.round(segments, LIMITS).build_offset_map()
    assert process.pid is None


def test_a_process_that_cannot_be_started_is_no_error_of_the_disk(
    process: CleanerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = segments_in(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(UnknownServerError, match="cannot be started"):
        process.round(segments, LIMITS).build_offset_map()
    monkeypatch.undo()
    assert process.round(segments, LIMITS).build_offset_map() == 2 * RECORDS


def test_a_group_that_is_not_read_to_its_end_does_not_disturb_the_next_round(
    process: CleanerProcess, tmp_path: Path
) -> None:
    segments = segments_in(tmp_path)
    there = process.round(segments, LIMITS)
    there.build_offset_map()
    pieces = there.cleaned(segments)
    next(pieces)
    del pieces
    assert process.round(segments, LIMITS).build_offset_map() == 2 * RECORDS


def test_the_process_ends_with_its_broker_in_the_midst_of_a_round(tmp_path: Path) -> None:
    segments = segments_in(tmp_path)
    # A broker that is throttled to a byte per second: its cleaner waits after its first read.
    broker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from kbroker.log.cleaner_process import *\n"
            f"process = CleanerProcess(CleanerSizes(24_000, 0.9, 1 << 16), max_bytes_per_second=1)\n"
            f"import threading\n"
            f"segments = [SourceSegment(*each) for each in {[tuple(each) for each in segments]}]\n"
            f"limits = RoundLimits(0, {2 * RECORDS}, 5_000, 100, {{}})\n"
            "threading.Thread(target=process.begin, args=(segments, limits)).start()\n"
            "while process.pid is None: pass\n"
            "print(process.pid, flush=True)\n",
        ],
        stdout=subprocess.PIPE,
    )
    assert broker.stdout is not None
    pid = int(broker.stdout.readline())
    broker.kill()
    broker.wait()
    broker.stdout.close()
    eventually("the end of the process", lambda: not runs(pid))


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
