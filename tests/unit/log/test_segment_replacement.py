"""The steps of a replacement, one by one, and what recovery does with each set of names."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kbroker.config.log import LogConfig
from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.core.partition_metadata_file import PartitionMetadata
from kbroker.log.disk import OsDisk
from kbroker.log.segment_replacement import abandoned_files, recovery_steps
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import iterate, parse
from kclient.wire.errors import CorruptMessage, KafkaStorageError
from kclient.wire.records import ABORT
from tests.kit.crashing_disk import Crashed, CrashingDisk
from tests.kit.log_timestamps import offset_for_timestamp
from tests.kit.logs import IGNORED, append, open_log, records
from tests.kit.transactional_logs import marker, transactional

SETTINGS = {"segment_bytes": 160, "index_interval_bytes": 1}
FIRST, SECOND, THIRD = (f"{base:020d}" for base in (0, 2, 4))


@pytest.fixture
def log(tmp_path: Path) -> UnifiedLog:
    """Return a log of six batches with a record each, two in a segment; all is synced."""
    log = log_of_six(tmp_path / "t-0")
    assert [each.base_offset for each in log.segments] == [0, 2, 4]
    return log


def log_of_six(directory: Path) -> UnifiedLog:
    log = open_log(directory, **SETTINGS)
    for n in range(6):
        append(log, n, value=b"%d" % n)
    log.flush()
    return log


def batches(log: UnifiedLog, *offsets: int) -> list[bytes]:
    """Return the batches at *offsets* as they are in the files."""
    found = []
    for segment in log.segments:
        data = segment.file.pread(segment.size, 0)
        found += [
            data[info.position : info.end] for info in iterate(data) if info.base_offset in offsets
        ]
    return found


def names(log: UnifiedLog) -> set[str]:
    """Return the files of segments, without the names of their kinds that do not matter here."""
    return {each for each in os.listdir(log.directory) if ".log" in each or ".gap" in each}


def values(log: UnifiedLog) -> list[bytes | None]:
    return [value for _, value in records(log)]


def test_one_segment_takes_the_place_of_two(log: UnifiedLog) -> None:
    replacement = log.start_replacement(0, 2)
    replacement.write(batches(log, 1, 2))
    assert names(log) >= {f"{FIRST}.log.cleaned", f"{THIRD}.gap.cleaned"}
    assert values(log) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert replacement.publish()
    assert names(log) >= {f"{FIRST}.log", f"{FIRST}.log.swap", f"{THIRD}.gap.swap"}
    deleted = log.replace_segments(replacement)
    assert values(log) == [b"1", b"2", b"4", b"5"]
    assert f"{log.directory}/{SECOND}.log.deleted" in deleted
    replacement.sync()
    log.complete_replacement(replacement)
    for path in deleted:
        os.unlink(path)
    assert names(log) == {f"{FIRST}.log", f"{THIRD}.log", f"{THIRD}.gap"}
    assert values(log) == [b"1", b"2", b"4", b"5"]
    found = offset_for_timestamp(log, 2), offset_for_timestamp(log, 3)
    assert [each.offset for each in found if each] == [2, 4]


def test_only_sealed_and_synced_segments_are_replaced_one_run_after_the_other(
    log: UnifiedLog,
) -> None:
    with pytest.raises(ValueError, match="not all sealed"):
        log.start_replacement(1, 2)
    for n in range(3):
        append(log, n)
    assert log.segments.active.base_offset == 8
    with pytest.raises(ValueError, match="only what is below 6 is synced"):
        log.start_replacement(1, 3)
    log.flush()
    first = log.start_replacement(0, 1)
    with pytest.raises(ValueError, match="being replaced already"):
        log.start_replacement(1, 1)
    with pytest.raises(ValueError, match="not synced"):
        log.replace_segments(first)
    first.cancel()
    with pytest.raises(ValueError, match="being replaced already"):
        log.start_replacement(1, 1)
    first.sync()
    assert log.start_replacement(1, 1)


@pytest.mark.parametrize(
    ("offsets", "why"), [((2, 1), "are not within 3-3"), ((4,), "are not within 0-3")]
)
def test_a_batch_that_cannot_be_in_the_run_is_rejected(
    log: UnifiedLog, offsets: tuple[int, ...], why: str
) -> None:
    replacement = log.start_replacement(0, 2)
    parts = [batches(log, each)[0] for each in offsets]
    with pytest.raises(CorruptMessage, match=why):
        replacement.write(parts)
    replacement.cancel()
    assert not [name for name in names(log) if name.endswith(".cleaned")]


def test_a_buffer_that_ends_within_a_batch_is_rejected(log: UnifiedLog) -> None:
    (batch,) = batches(log, 1)
    with pytest.raises(CorruptMessage, match="ends within a batch"):
        log.start_replacement(0, 2).write([batch[:-1]])


@pytest.mark.parametrize("published", [False, True])
def test_a_truncation_of_the_run_cancels_its_replacement(log: UnifiedLog, published: bool) -> None:
    replacement = log.start_replacement(0, 2)
    replacement.write(batches(log, 0, 3))
    if published:
        assert replacement.publish()
    log.truncate_to(3)
    assert names(log) == {f"{FIRST}.log", f"{SECOND}.log"}
    assert not replacement.publish()
    assert log.replace_segments(replacement) == []
    log.complete_replacement(replacement)
    assert values(log) == [b"0", b"1", b"2"]


class InterruptingDisk(OsDisk):
    """The real disk; *call* runs within the next sync of a file."""

    def __init__(self) -> None:
        self.call: Callable[[], object] = lambda: None

    def fsync(self, fd: int, /) -> None:  # type: ignore[override]
        """Sync after the call."""
        call, self.call = self.call, lambda: None
        call()
        os.fsync(fd)


def test_a_truncation_while_the_new_segment_is_synced_is_no_failure_of_the_disk(
    tmp_path: Path,
) -> None:
    disk = InterruptingDisk()
    log = open_log(tmp_path / "t-0", disk=disk, **SETTINGS)
    for n in range(6):
        append(log, n, value=b"%d" % n)
    log.flush()
    replacement = log.start_replacement(0, 2)
    disk.call = lambda: log.truncate_to(3)
    replacement.write(batches(log, 0, 3))
    assert replacement.is_cancelled
    assert not replacement.publish()
    replacement.sync()
    assert replacement.is_over
    assert names(log) == {f"{FIRST}.log", f"{SECOND}.log"}
    assert values(log) == [b"0", b"1", b"2"]


def test_after_a_truncation_the_new_segment_is_written_no_further(log: UnifiedLog) -> None:
    def interrupted() -> Iterator[bytes]:
        first, second = batches(log, 0, 3)
        yield first
        log.truncate_to(3)
        yield second
        pytest.fail("the rest is not asked for")

    replacement = log.start_replacement(0, 2)
    replacement.write(interrupted())
    assert not replacement.publish()
    assert not [name for name in os.listdir(log.directory) if name.endswith(".cleaned")]


def test_a_replacement_of_a_deleted_log_leaves_a_new_log_of_its_name_alone(tmp_path: Path) -> None:
    """The pool is at work on it while the topic is deleted and created again, and compacted by another worker."""
    directory = tmp_path / "t-0"
    former, latter = (log_of_six(path) for path in (directory, tmp_path / "new"))
    late = former.start_replacement(0, 2)
    late.write(batches(former, 0, 3))
    former.close()
    directory.rename(tmp_path / "t-0.deleted")
    former.segments.moved_to(f"{tmp_path}/t-0.deleted")
    latter.close()
    os.rename(tmp_path / "new", directory)
    log = open_log(directory, **SETTINGS)
    log.flush()
    replacement = log.start_replacement(0, 2)
    replacement.write(batches(log, 1, 2))
    late.sync()
    assert late.is_over
    assert replacement.publish()
    deleted = log.replace_segments(replacement)
    late.sync()
    replacement.sync()
    log.complete_replacement(replacement)
    assert deleted
    assert values(log) == [b"1", b"2", b"4", b"5"]


def test_a_truncation_behind_the_run_leaves_the_replacement_alone(log: UnifiedLog) -> None:
    replacement = log.start_replacement(0, 2)
    replacement.write(batches(log, 0))
    log.truncate_to(5)
    assert replacement.publish()
    log.replace_segments(replacement)
    assert values(log) == [b"0", b"4"]


def test_a_truncation_of_the_new_segment_gives_it_its_names_first(log: UnifiedLog) -> None:
    replacement = log.start_replacement(0, 2)
    replacement.write(batches(log, 0, 3))
    replacement.publish()
    log.replace_segments(replacement)
    log.truncate_to(2)
    append(log, value=b"new")
    replacement.sync()
    log.complete_replacement(replacement)
    replacement.sync()
    assert replacement.is_over
    assert {name for name in names(log) if not name.endswith(".deleted")} == {f"{FIRST}.log"}
    assert values(log) == [b"0", b"new"]


def test_the_hole_behind_a_new_segment_is_no_loss_for_recovery(
    log: UnifiedLog, tmp_path: Path
) -> None:
    replacement = log.start_replacement(0, 2)
    replacement.write(batches(log, 0))
    replacement.publish()
    log.replace_segments(replacement)
    replacement.sync()
    log.complete_replacement(replacement)
    again = open_log(tmp_path / "t-0", **SETTINGS)
    assert values(again) == [b"0", b"4", b"5"]
    os.unlink(f"{log.directory}/{THIRD}.gap")
    cut = open_log(tmp_path / "t-0", **SETTINGS)
    assert values(cut) == [b"0"], "without the file the same hole is a loss"


@pytest.mark.parametrize("clean", [True, False])
def test_a_hole_where_a_leader_epoch_begins_does_not_contradict_the_epochs(
    tmp_path: Path, clean: bool
) -> None:
    log = open_log(tmp_path / "t-0", **SETTINGS)
    for n, epoch in enumerate([0, 0, 3, 3, 3, 4]):
        append(log, n, value=b"%d" % n, epoch=epoch)
    log.flush()
    replacement = log.start_replacement(0, 2)
    replacement.write(batches(log, 0, 3))  # without the last record of epoch 0 and the first of 3
    replacement.publish()
    log.replace_segments(replacement)
    replacement.sync()
    log.complete_replacement(replacement)
    expected = log.leader_epochs.entries
    assert [tuple(each) for each in expected] == [(0, 0), (3, 2), (4, 5)]
    log.close(clean=clean)
    again = open_log(tmp_path / "t-0", clean=clean, recovery_point=6, **SETTINGS)
    assert again.leader_epochs.entries == expected
    assert not [note for note in again.notes if "leader epochs" in note]


def test_a_new_segment_that_cannot_be_read_is_named_and_nothing_is_removed(
    log: UnifiedLog, tmp_path: Path
) -> None:
    replacement = log.start_replacement(0, 2)
    replacement.write(batches(log, 0, 3))
    replacement.publish()
    swap = Path(f"{log.directory}/{FIRST}.log.swap")
    swap.write_bytes(swap.read_bytes()[:-1])
    before = names(log)
    with pytest.raises(KafkaStorageError, match=rf"{FIRST}\.log\.swap, half of an interrupted"):
        open_log(tmp_path / "t-0", **SETTINGS)
    assert names(log) == before


def test_while_a_cleaned_file_is_left_what_follows_it_was_not_published() -> None:
    here = [f"{FIRST}.log", f"{FIRST}.log.cleaned", f"{SECOND}.log.swap", f"{SECOND}.index.swap"]
    assert abandoned_files(here) == [here[3], here[2], here[1]]


def test_a_cleaned_file_above_a_new_segment_is_of_the_next_replacement() -> None:
    here = [f"{FIRST}.log.swap", f"{SECOND}.log.cleaned", f"{SECOND}.index.cleaned"]
    assert abandoned_files(here) == sorted(here[1:])


def test_an_index_without_its_segment_does_not_undo_a_replacement() -> None:
    assert abandoned_files([f"{FIRST}.log.swap", f"{FIRST}.index.cleaned"]) == [
        f"{FIRST}.index.cleaned"
    ]


def test_a_new_segment_replaces_what_begins_below_its_end() -> None:
    here = [f"{FIRST}.log", f"{FIRST}.index", f"{SECOND}.log", f"{THIRD}.log", f"{FIRST}.log.swap"]
    steps = recovery_steps(here, {0: 3}, {})
    assert steps.replaced == [f"{FIRST}.index", f"{FIRST}.log", f"{SECOND}.log"]
    assert steps.renames == [(f"{FIRST}.log.swap", f"{FIRST}.log")]


def test_a_gap_file_extends_what_is_replaced_to_the_next_segment() -> None:
    here = [f"{SECOND}.log", f"{THIRD}.log", f"{FIRST}.log.swap", f"{THIRD}.gap.swap"]
    assert recovery_steps(here, {0: 1}, {4: 1}).replaced == [f"{SECOND}.log"]
    assert recovery_steps(here, {0: 1}, {4: 2}).replaced == [f"{THIRD}.gap.swap"], "another end"


def test_a_new_segment_without_batches_replaces_the_old_one_of_its_name() -> None:
    here = [f"{FIRST}.log", f"{FIRST}.snapshot", f"{FIRST}.gap", f"{FIRST}.log.swap"]
    assert recovery_steps(here, {0: 0}, {}).replaced == [f"{FIRST}.log"]


def test_the_batches_get_their_final_name_last_and_the_gap_file_first() -> None:
    here = [f"{FIRST}.log.swap", f"{FIRST}.index.swap", f"{THIRD}.gap.swap"]
    renamed = [target for _, target in recovery_steps(here, {0: 1}, {4: 1}).renames]
    assert renamed == [f"{THIRD}.gap", f"{FIRST}.index", f"{FIRST}.log"]


def test_segments_that_have_their_final_name_already_stay_between_new_ones() -> None:
    here = [f"{FIRST}.log.swap", f"{SECOND}.log", f"{THIRD}.log.swap"]
    assert recovery_steps(here, {0: 2, 4: 6}, {}).replaced == []


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("power_lost", [False, True])
def test_a_crash_at_any_step_loses_no_aborted_transaction(
    is_cancelled: bool, power_lost: bool
) -> None:
    reached_end = False
    calls = 0
    while not reached_end:
        disk = CrashingDisk.with_log("/data/t-0")
        config = LogConfig(segment_bytes=10**6)
        metadata = PartitionMetadata(None)
        log = UnifiedLog.create("/data/t-0", config, metadata, IGNORED, now_ms=0, disk=disk)
        for _ in range(2):
            for batch in (transactional(7), marker(7, ABORT)):
                log.append_as_leader(batch, parse(batch), 0, 1)
            log.roll(1)
        log.flush()
        kept = [list(each.transaction_index.entries()) for each in log.segments][1]
        disk.calls_left = calls
        with suppress(Crashed):
            replace(log, kept, is_cancelled=is_cancelled)
            reached_end = True
        disk.calls_left = -1
        if power_lost:
            disk.lose_power(random.Random(calls))
        else:
            disk.kill()
        log = UnifiedLog.open("/data/t-0", config, IGNORED, now_ms=1, disk=disk, recovery_point=4)
        data = log.segments[0].file.pread(log.segments[0].size, 0)
        is_new = parse(data).base_offset == 2
        found = [entry.last_offset for s in log.segments for entry in s.transaction_index.entries()]
        assert found == ([3] if is_new else [1, 3]), calls
        assert not reached_end or is_new is not is_cancelled
        calls += 1
    assert calls > 20


def replace(log: UnifiedLog, kept: list[AbortedTransaction], *, is_cancelled: bool = False) -> None:
    """Replace both sealed segments by the batches of the second one."""
    second = log.segments[1]
    data = second.file.pread(second.size, 0)
    replacement = log.start_replacement(0, 2)
    replacement.write([data], lambda: kept)
    replacement.publish()
    if is_cancelled:
        replacement.cancel()
        replacement.sync()
        return
    log.replace_segments(replacement)
    replacement.sync()
    log.complete_replacement(replacement)
    replacement.sync()
