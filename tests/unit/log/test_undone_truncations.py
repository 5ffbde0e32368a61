"""Truncations that a power loss undid in part: recovery cuts again what does not belong together.

The property test of segment replacements found each of these.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.config.log import LogConfig
from kbroker.log.core.partition_metadata_file import PartitionMetadata, encode_partition_metadata
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import parse
from kclient.wire.errors import KafkaStorageError
from tests.kit.logs import IGNORED, FaultyDisk, append, batch_of, open_log, records
from tests.kit.producer_batches import numbered_batch
from tests.kit.simulated_disk import SimulatedDisk

COMPACTED: dict[str, Any] = {"cleanup_policy": ("compact",)}


def segment(directory: Path, base: int) -> Path:
    return directory / f"{base:020d}.log"


def test_a_truncation_within_a_batch_is_synced_with_the_segment_that_had_it() -> None:
    """The batch is not split, so the log ends before the offset that was asked for, in an earlier segment."""
    disk = SimulatedDisk()
    disk.mkdir("/t-0")
    log = UnifiedLog.create(
        "/t-0", LogConfig(), PartitionMetadata(None), IGNORED, now_ms=0, disk=disk
    )
    for sequence in (0, 1):
        batch = numbered_batch(1, sequence, 3)
        log.append_as_leader(batch, parse(batch), 0, 0)
    log.flush()
    log.roll(0)
    log.flush()
    assert log.truncate_to(4) == 3
    log.roll(0)
    append(log)
    log.flush()
    content = disk.durable("/t-0")
    assert len(content["00000000000000000000.log"]) == len(numbered_batch(1, 0, 3))


def test_the_end_of_the_segment_before_the_recovery_point_is_cut_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, 1, 2)
    log.roll(0)
    append(log, 3, 4, value=b"later")
    log.flush()
    log.close(clean=False)
    first = segment(tmp_path / "t-0", 0)
    whole = first.read_bytes()
    for tail in (batch_of(9, 9, base_offset=2), bytes(100), batch_of(9, base_offset=2)[:-1]):
        first.write_bytes(whole + tail)
        again = open_log(tmp_path / "t-0", recovery_point=2)
        assert first.read_bytes() == whole
        assert any("a truncation was undone" in note for note in again.notes)
        assert [offset for offset, _ in records(again)] == [0, 1, 2, 3]
        again.close(clean=False)


def test_damage_before_the_end_of_that_segment_is_not_taken_for_an_undone_truncation(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "t-0")
    for n in range(2):
        append(log, n)
    log.roll(0)
    append(log)
    log.flush()
    log.close(clean=False)
    first = segment(tmp_path / "t-0", 0)
    damaged = first.read_bytes()[: len(batch_of(0))] + bytes(len(batch_of(0)))
    first.write_bytes(damaged)
    open_log(tmp_path / "t-0", recovery_point=2)
    assert first.read_bytes() == damaged


def test_a_segment_that_begins_below_the_end_of_the_one_before_is_no_hole_of_compaction(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "t-0", **COMPACTED)
    append(log, 1, 2, 3)
    log.close(clean=False)
    segment(tmp_path / "t-0", 2).touch()
    again = open_log(tmp_path / "t-0", **COMPACTED)
    assert again.log_end_offset == 3
    assert any("below the end of the segment before it" in note for note in again.notes)


MADE_HERE = encode_partition_metadata(PartitionMetadata(UUID(int=1), 0, "made-here"))
BY_KAFKA = encode_partition_metadata(PartitionMetadata(UUID(int=1)))


@pytest.mark.parametrize(
    ("metadata", "found"),
    [(MADE_HERE, 1), (BY_KAFKA, 2), (None, 2), (b"", 1), (bytes(len(MADE_HERE)), 1)],
    ids=["ours", "Kafka 2.8", "older Kafka", "empty", "zeros"],
)
def test_a_hole_in_a_compacted_log_is_accepted_where_apache_kafka_wrote_the_log(
    tmp_path: Path, metadata: bytes | None, found: int
) -> None:
    """Our own compaction states its holes in .gap files; a power loss empties a file that was not synced."""
    log = open_log(tmp_path / "t-0", **COMPACTED)
    append(log)
    log.close(clean=False)
    segment(tmp_path / "t-0", 5).write_bytes(batch_of(0, base_offset=5, leader_epoch=0))
    (tmp_path / "t-0" / "partition.metadata").unlink(missing_ok=True)
    if metadata is not None:
        (tmp_path / "t-0" / "partition.metadata").write_bytes(metadata)
    assert len(records(open_log(tmp_path / "t-0", **COMPACTED))) == found


def test_records_of_an_earlier_epoch_behind_those_of_a_later_one_are_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, epoch=4)
    append(log, epoch=7)
    log.close(clean=False)
    first = segment(tmp_path / "t-0", 0)
    first.write_bytes(first.read_bytes() + batch_of(0, base_offset=2, leader_epoch=4))
    again = open_log(tmp_path / "t-0")
    assert again.log_end_offset == 2
    assert any("leader epoch 4 follows 7" in note for note in again.notes)


@pytest.mark.parametrize("call", ["rename", "unlink"])
@pytest.mark.parametrize("calls", range(9))
def test_a_log_that_ended_while_it_was_emptied_below_its_start_has_no_hole(
    tmp_path: Path, call: str, calls: int
) -> None:
    """The recovery point is lowered later: recovery does not look for a hole below it."""
    disk = FaultyDisk()
    log = open_log(tmp_path / "t-0", log_start_offset=30, disk=disk)
    for n in range(3):
        append(log, n)
        log.roll(0)
    append(log, 3)
    log.flush()
    old = records(log)
    disk.fail(call, after=calls)
    with suppress(KafkaStorageError):
        log.truncate_to(10)
    log.close(clean=False)
    again = open_log(tmp_path / "t-0", recovery_point=34, log_start_offset=30)
    found = records(again)
    assert found == old[: len(found)]
    assert len(found) == len(old) or again.missing_below == 34
