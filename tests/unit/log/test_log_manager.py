"""Many logs in several directories: ownership, start and end, deletion, sweeps, failures."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kbroker.log import log_segment, open_files
from kclient.wire.errors import (
    InconsistentClusterId,
    KafkaStorageError,
    LogDirNotFound,
)
from tests.kit.log_managers import ID, Brokers, Unreadable
from tests.kit.logs import FaultyDisk, append, batch_of, records
from tests.kit.simulated_disk import SimulatedDisk

SIZE = len(batch_of(0))


def test_logs_come_back_after_a_clean_shutdown(brokers: Brokers) -> None:
    dirs = brokers().start()
    assert dirs.clean is False
    log = dirs.create("t", 0, ID)
    append(log, 1, epoch=3)
    append(dirs.create("t-with-dashes", 12, None), 1)
    assert dirs.close(broker_epoch=77, high_watermarks={("t", 0): 1})
    dirs = brokers().start()
    assert (dirs.clean, dirs.broker_epoch) == (True, 77)
    assert sorted(dirs) == [("t", 0), ("t-with-dashes", 12)]
    found = dirs.get("t", 0)
    assert found is not None
    assert records(found) == [(0, b"v")]
    assert (found.topic_id, found.leader_epochs.entries) == (ID, ((3, 0),))
    assert dirs.high_watermarks == {("t", 0): 1}
    assert dirs.notes == []


def test_the_clean_marker_is_gone_once_it_was_read(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers().start()
    append(dirs.create("t", 0, ID), 1)
    dirs.close(broker_epoch=5)
    marker = tmp_path / "a" / ".kafka_cleanshutdown"
    assert json.loads(marker.read_text()) == {"version": 0, "brokerEpoch": 5}
    brokers().start().release()
    assert not marker.exists()
    dirs = brokers().start()
    assert (dirs.clean, dirs.broker_epoch) == (False, -1)


@pytest.mark.parametrize("content", ["", "{}", "\0\0", '{"version":0}', '{"brokerEpoch":"x"}'])
def test_a_marker_without_an_epoch_is_a_marker(
    brokers: Brokers, tmp_path: Path, content: str
) -> None:
    brokers().start().close()
    (tmp_path / "a" / ".kafka_cleanshutdown").write_text(content)
    dirs = brokers().start()
    assert (dirs.clean, dirs.broker_epoch) == (True, -1)


def test_a_second_broker_is_kept_out(brokers: Brokers) -> None:
    brokers("a").start()
    with pytest.raises(KafkaStorageError, match="in use by another process"):
        brokers("b", "a").start()
    brokers("b").start()  # and what it had locked before that is free again


def test_a_directory_named_twice_is_refused(brokers: Brokers) -> None:
    with pytest.raises(KafkaStorageError, match="twice"):
        brokers("a", "./a").start()


def test_a_file_in_the_place_of_a_directory_is_named(brokers: Brokers, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(KafkaStorageError, match=f"{tmp_path}/a cannot be used"):
        brokers().start()


def test_the_wrong_broker_and_the_wrong_cluster_are_refused(
    brokers: Brokers, tmp_path: Path
) -> None:
    brokers().start().close()
    before = (tmp_path / "a" / "meta.properties").read_text()
    with pytest.raises(KafkaStorageError, match="belongs to broker 1, not 2"):
        brokers().start(broker_id=2)
    with pytest.raises(InconsistentClusterId, match=r"belongs to cluster east.*of cluster west"):
        brokers("a", "b").start(cluster_id="west")
    assert (tmp_path / "a" / "meta.properties").read_text() == before
    assert not (tmp_path / "b" / "meta.properties").exists()
    assert before.splitlines()[1:4] == ["version=0", "broker.id=1", "cluster.id=east"]


def test_directories_of_two_brokers_are_not_mixed(brokers: Brokers) -> None:
    brokers("a").start(broker_id=1).close()
    brokers("b").start(broker_id=2).close()
    with pytest.raises(KafkaStorageError, match="must not mix"):
        brokers("a", "b").start(broker_id=1)


def test_the_stored_broker_id_is_known_before_the_cluster_is(brokers: Brokers) -> None:
    brokers().start(broker_id=8).close()
    assert brokers().log_dirs.stored_identity()[:2] == (8, "east")


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 50, b"version=1\nnode.id=1\n", b"broker.id=x\n", b"nonsense", b"\xff\xfe"],
    ids=["empty", "zeros", "kraft", "words", "no key", "binary"],
)
def test_a_damaged_meta_properties_is_named(
    brokers: Brokers, tmp_path: Path, content: bytes
) -> None:
    brokers().start().close()
    (tmp_path / "a" / "meta.properties").write_bytes(content)
    with pytest.raises(KafkaStorageError, match=r"meta\.properties"):
        brokers().start()
    assert (tmp_path / "a" / "meta.properties").read_bytes() == content


def test_a_meta_properties_of_kafka_is_understood(brokers: Brokers, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "meta.properties").write_text(
        "#\n#Sat Nov 21 08:00:00 UTC 2026\nbroker.id=4\nversion=0\ncluster.id=abc_-1\n"
    )
    assert brokers().start(broker_id=4, cluster_id="abc_-1").online == [str(tmp_path / "a")]


@pytest.mark.parametrize("name", ["recovery-point", "replication", "log-start"])
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\0" * 30,
        b"0\n7\nt 0 3\n",
        b"9\n0\n",
        b"0\n1\nt 0 x\n",
        b"0\n1\nt 0 -4\n",
        b"0\n2\nt 0 3\nt 0 4\n",
        b"\xff",
    ],
    ids=["missing", "empty", "zeros", "count", "version", "words", "negative", "twice", "binary"],
)
def test_a_damaged_checkpoint_is_as_good_as_none(
    brokers: Brokers, tmp_path: Path, name: str, clean: bool, content: bytes | None
) -> None:
    dirs = brokers().start()
    for n in range(5):
        append(dirs.create("t", 0, ID), n)
    dirs.close(high_watermarks={("t", 0): 4})
    path = tmp_path / "a" / f"{name}-offset-checkpoint"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    if not clean:
        (tmp_path / "a" / ".kafka_cleanshutdown").unlink()
    dirs = brokers().start()
    log = dirs.get("t", 0)
    assert log is not None
    assert len(records(log)) == 5
    assert any(str(path) in note for note in dirs.notes) == (content is not None)


def test_a_checkpoint_beyond_the_end_does_no_harm(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers().start()
    append(dirs.create("t", 0, ID), 1)
    dirs.close()
    path = tmp_path / "a" / "recovery-point-offset-checkpoint"
    path.write_text("0\n1\nt 0 99999999\n")
    (tmp_path / "a" / ".kafka_cleanshutdown").unlink()
    log = brokers().start().get("t", 0)
    assert log is not None
    assert (log.log_end_offset, log.missing_below) == (1, 99999999)


def test_s08_a_high_watermark_beyond_the_end_commits_nothing(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    append(dirs.create("t", 0, ID), 1, 2, 3)
    dirs.close(high_watermarks={("t", 0): 2})
    set_line(tmp_path / "a" / "replication-offset-checkpoint", "t 0 4")
    dirs = brokers().start()
    log = dirs.get("t", 0)
    assert log is not None
    assert (dirs.high_watermarks["t", 0], log.missing_below) == (0, 4)


def test_s08_a_high_watermark_that_a_start_rejected_is_not_believed_when_the_log_has_grown_again(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    append(dirs.create("t", 0, ID), 1, 2, 3)
    append(dirs.create("t", 1, ID), 1, 2)
    dirs.close(high_watermarks={("t", 0): 2, ("t", 1): 2})
    path = tmp_path / "a" / "replication-offset-checkpoint"
    path.write_text("0\n3\nt 0 5\nt 1 2\ndeleted 0 7\n")
    dirs = brokers().start()
    log = dirs.get("t", 0)
    assert log is not None
    believed = dict(dirs.high_watermarks)
    dirs.missing_logs.clear()
    dirs.lower_checkpoints(believed)
    assert sorted(path.read_text().splitlines()) == ["0", "2", "t 0 0", "t 1 2"]
    append(log, 4, 5)
    dirs.release()
    assert brokers().start().high_watermarks == {("t", 0): 0, ("t", 1): 2}


def test_s17_the_log_start_is_kept_after_the_segments_below_it_were_deleted(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Their names are removed without a sync: after a power loss they may be there again, and hide a hole."""
    broker = brokers(retention_ms=1, segment_bytes=100)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    for n in range(3):
        append(log, n)
    first = tmp_path / "a" / "t-0" / "00000000000000000000.log"
    content = first.read_bytes()
    log.advance_log_start(2)
    broker.now_ms = 10**9
    assert dirs.sweep(lambda _: 2) == 2
    assert log.segments.first_offset == log.log_start_offset == 2
    dirs.checkpoint({("t", 0): 3})
    dirs.release()
    first.write_bytes(content)
    found = brokers().start().get("t", 0)
    assert found is not None
    assert (found.log_start_offset, len(records(found))) == (2, 1)


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "damaged"])
def test_the_log_start_of_a_log_that_is_away_is_kept_until_it_is_back(
    brokers: Brokers, tmp_path: Path, is_missing: bool
) -> None:
    dirs = brokers().start()
    for number in range(2):
        log = dirs.create("t", number, ID)
        for n in range(4):
            append(log, n)
        log.advance_log_start(2)
    assert dirs.close(high_watermarks={("t", 0): 4, ("t", 1): 4})
    place, away = tmp_path / "a" / "t-0", tmp_path / "t-0"
    metadata = place / "partition.metadata"
    content = metadata.read_bytes()
    if is_missing:
        place.rename(away)
    else:
        metadata.write_text("nonsense")
    dirs = brokers().start()
    assert list(dirs) == [("t", 1)]
    dirs.checkpoint({("t", 1): 4})
    dirs.close(high_watermarks={("t", 1): 4})
    if is_missing:
        away.rename(place)
    else:
        metadata.write_bytes(content)
    dirs = brokers().start()
    found = dirs.get("t", 0)
    assert found is not None
    assert (found.log_start_offset, len(records(found))) == (2, 2), "deleted records stay deleted"


def test_the_log_start_of_a_lost_log_is_not_kept_for_another_one(brokers: Brokers) -> None:
    dirs = brokers().start()
    log = dirs.create("t", 0, ID)
    append(log, 1, 2)
    log.advance_log_start(2)
    assert dirs.close(high_watermarks={("t", 0): 2})
    (Path(log.directory)).rename(Path(log.directory).parent.parent / "t-0")
    dirs = brokers().start()
    dirs.checkpoint({})
    append(dirs.create("t", 0, ID, is_new=False), 1)
    dirs.checkpoint({("t", 0): 1})
    dirs.release()
    found = brokers().start().get("t", 0)
    assert found is not None
    assert found.log_start_offset == 0


def test_s08_a_log_start_that_was_not_believed_is_not_kept_for_a_log_that_is_away(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    append(dirs.create("t", 0, ID), 1, 2, 3)
    assert dirs.close(high_watermarks={("t", 0): 3})
    (tmp_path / "a" / "log-start-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    (tmp_path / "a" / "t-0").rename(tmp_path / "t-0")
    dirs = brokers().start()
    dirs.close()
    (tmp_path / "t-0").rename(tmp_path / "a" / "t-0")
    found = brokers().start().get("t", 0)
    assert found is not None
    assert found.log_start_offset == 0


def test_s08_a_recovery_point_above_the_end_is_not_believed_when_the_log_has_grown_again(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    log = dirs.create("t", 0, ID)
    for n in range(3):
        append(log, n)
    log.flush()
    dirs.checkpoint({("t", 0): 3})
    dirs.release()
    segment = tmp_path / "a" / "t-0" / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    dirs = brokers().start()
    found = dirs.get("t", 0)
    assert found is not None
    assert (found.log_end_offset, found.missing_below) == (2, 3)
    found.missing_below = None  # the loss was accepted
    dirs.lower_checkpoints({("t", 0): 0})
    recovery_points = tmp_path / "a" / "recovery-point-offset-checkpoint"
    assert recovery_points.read_text().splitlines() == ["0", "1", "t 0 2"]


def test_one_write_lowers_the_high_watermarks_of_all_logs_after_a_power_loss(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    dirs.registered(10)
    for number in range(3):
        append(dirs.create("t", number, ID), 1, 2, 3)
    dirs.checkpoint({("t", 0): 3, ("t", 1): 3, ("t", 2): 9})
    dirs.release()
    broker = brokers()
    broker.dirs.histories.boot_id = "another-boot"
    dirs = broker.start()
    dirs.lower_checkpoints({("t", 0): 0})
    path = tmp_path / "a" / "replication-offset-checkpoint"
    lines = sorted(path.read_text().splitlines()[2:])
    assert lines == ["t 0 0", "t 1 0", "t 2 9"], "records of t-2 are missing"


def test_high_watermarks_that_are_not_too_high_are_not_written_again(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    append(dirs.create("t", 0, ID), 1, 2, 3)
    dirs.checkpoint({("t", 0): 2})
    path = tmp_path / "a" / "replication-offset-checkpoint"
    before = path.stat().st_ino
    dirs.lower_checkpoints({("t", 0): 2, ("t", 1): 0})
    dirs.lower_checkpoints({("t", 0): 3})
    assert path.stat().st_ino == before


def set_line(path: Path, line: str) -> None:
    path.write_text(f"0\n1\n{line}\n")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("offset", [3, 5, 6, 99999999])
def test_s08_a_log_start_that_no_second_file_has_is_not_believed(
    brokers: Brokers, tmp_path: Path, offset: int, clean: bool
) -> None:
    dirs = brokers().start()
    for n in range(5):
        append(dirs.create("t", 0, ID), n)
    dirs.close(high_watermarks={("t", 0): 5})
    path = tmp_path / "a" / "log-start-offset-checkpoint"
    set_line(path, f"t 0 {offset}")
    if not clean:
        (tmp_path / "a" / ".kafka_cleanshutdown").unlink()
    dirs = brokers().start()
    log = dirs.get("t", 0)
    assert log is not None
    assert (log.log_start_offset, len(records(log))) == (0, 5)
    (note,) = (note for note in dirs.notes if str(path) in note)
    assert f"log start offset {offset} of t-0 is not accepted" in note


@pytest.mark.parametrize("clean", [True, False])
def test_s08_of_two_log_starts_the_lower_one_counts(
    brokers: Brokers, tmp_path: Path, clean: bool
) -> None:
    dirs = brokers().start()
    log = dirs.create("t", 0, ID)
    for n in range(5):
        append(log, n)
    log.advance_log_start(2)
    if clean:
        dirs.close(high_watermarks={("t", 0): 5})
    else:
        dirs.checkpoint({("t", 0): 5})
        dirs.release()
    dirs = brokers().start()
    found = dirs.get("t", 0)
    assert found is not None
    assert found.log_start_offset == 2
    assert not any("log start" in note for note in dirs.notes)
    dirs.release()
    set_line(tmp_path / "a" / "log-start-offset-checkpoint", "t 0 4")
    found = brokers().start().get("t", 0)
    assert found is not None
    assert found.log_start_offset == 2


@pytest.mark.parametrize(("line", "begins"), [("t 0 3", 3), ("t 0 4", 0)])
def test_s08_a_log_start_of_kafka_is_believed_up_to_the_high_watermark(
    brokers: Brokers, tmp_path: Path, line: str, begins: int
) -> None:
    dirs = brokers().start()
    for n in range(5):
        append(dirs.create("t", 0, ID), n)
    dirs.close(high_watermarks={("t", 0): 3})
    (tmp_path / "a" / "log-start-offset-checkpoint-copy").unlink()
    set_line(tmp_path / "a" / "log-start-offset-checkpoint", line)
    log = brokers().start().get("t", 0)
    assert log is not None
    assert log.log_start_offset == begins


def test_the_copy_of_the_log_starts_is_written_first(brokers: Brokers, tmp_path: Path) -> None:
    disk = FaultyDisk()
    dirs = brokers(disk=disk).start()
    log = dirs.create("t", 0, ID)
    append(log, 1)
    dirs.checkpoint({("t", 0): 1})
    log.advance_log_start(1)
    renamed: list[str] = []
    rename = disk.rename
    disk.rename = lambda old, new: (renamed.append(Path(new).name), rename(old, new))[1]  # type: ignore[method-assign]
    dirs.checkpoint({("t", 0): 1})
    starts = [name for name in renamed if name.startswith("log-start")]
    assert starts == ["log-start-offset-checkpoint-copy", "log-start-offset-checkpoint"]
    renamed.clear()
    dirs.checkpoint({("t", 0): 1})
    assert "log-start-offset-checkpoint-copy" not in renamed


def test_new_partitions_go_where_there_are_fewest(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers("a", "b", "c").start()
    for n in range(9):
        dirs.create("t", n, ID)
    counts = [len(list((tmp_path / name).glob("t-*"))) for name in "abc"]
    assert counts == [3, 3, 3]
    assert dirs.directory_of("t", 0) == str(tmp_path / "a")
    assert dirs.create("t", 0, ID) is dirs.get("t", 0)


def test_a_high_watermark_in_another_directory_is_of_a_deleted_topic(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b").start()
    append(dirs.create("t", 0, ID), 2)
    dirs.checkpoint({("t", 0): 0})
    dirs.release()
    (tmp_path / "b" / "replication-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    dirs = brokers("a", "b").start()
    assert dirs.directory_of("t", 0) == str(tmp_path / "a")
    assert dirs.high_watermarks.get(("t", 0), 0) == 0


def test_a_partition_in_two_directories_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers("a", "b").start()
    dirs.create("t", 0, ID)
    dirs.close()
    (tmp_path / "b" / "t-0").mkdir()
    with pytest.raises(KafkaStorageError, match=r"t-0 is in .*/a and in .*/b"):
        brokers("a", "b").start()


def test_other_directories_and_files_are_left_alone(brokers: Brokers, tmp_path: Path) -> None:
    brokers().start().close()
    for name in ("lost+found", "t-0.0123456789abcdef0123456789abcdef-future", "no number-x"):
        (tmp_path / "a" / name).mkdir()
    (tmp_path / "a" / "t-7").write_text("a file")
    dirs = brokers().start()
    assert list(dirs) == []
    assert len(dirs.notes) == 3


def test_a_damaged_partition_is_named_and_the_others_are_served(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    for n in range(3):
        append(dirs.create("t", n, ID), 1)
    assert dirs.close()
    (tmp_path / "a" / "t-1" / "partition.metadata").write_text("nonsense")
    dirs = brokers().start()
    assert sorted(dirs) == [("t", 0), ("t", 2)]
    assert "t-1/partition.metadata" in str(dirs.failed["t", 1])
    with pytest.raises(KafkaStorageError, match="t-1"):
        dirs.create("t", 1, ID)
    assert dirs.close() is False
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()


def test_a_directory_that_was_put_back_by_hand_waits_for_a_restart(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers("a", "b")
    dirs = broker.start()
    for number in range(2):
        append(dirs.create("t", number, ID), 1)
    assert dirs.close(high_watermarks={("t", 0): 1, ("t", 1): 1})
    (tmp_path / "a" / "t-0").rename(tmp_path / "t-0")
    broker = brokers("a", "b")
    dirs = broker.start()
    (tmp_path / "t-0").rename(tmp_path / "a" / "t-0")
    for _ in range(3):  # whichever directory has the fewest logs then
        with pytest.raises(KafkaStorageError, match=r"a/t-0.*restart the broker"):
            dirs.create("t", 0, ID, is_new=False)
        dirs.create("u", len(dirs), ID)
    assert broker.failures == []
    assert len(dirs.online) == 2
    dirs.close(high_watermarks={("t", 1): 1})
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists(), "t-0 was not opened"
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()
    dirs = brokers("a", "b").start()
    found = dirs.get("t", 0)
    assert found is not None
    assert (len(records(found)), dirs.high_watermarks["t", 0]) == (1, 1)


@pytest.mark.parametrize("opened", range(2))
def test_a_log_that_could_not_be_created_leaves_no_directory_behind(
    brokers: Brokers, opened: int
) -> None:
    """Another directory has the partition then, and the next start would refuse to have it in two."""
    disk = FaultyDisk()
    dirs = brokers("a", "b", disk=disk).start()
    disk.fail("open", errno.ENOSPC, after=opened)
    with pytest.raises(KafkaStorageError):
        dirs.create("t", 0, ID)
    append(dirs.create("t", 0, ID), 1)
    dirs.release()
    found = brokers("a", "b").start().get("t", 0)
    assert found is not None
    assert len(records(found)) == 1


def test_a_file_in_the_place_of_a_partitions_directory_concerns_that_partition_only(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers()
    dirs = broker.start()
    (tmp_path / "a" / "t-0").write_text("?")
    with pytest.raises(KafkaStorageError, match="a/t-0"):
        dirs.create("t", 0, ID)
    assert broker.failures == []
    dirs.create("t", 1, ID)


# Deletion


def test_a_deleted_partition_is_renamed_at_once_and_removed_later(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(file_delete_delay_ms=1000)
    dirs = broker.start()
    append(dirs.create("t", 0, ID), 1)
    dirs.delete("t", 0)
    assert dirs.get("t", 0) is None
    (renamed,) = (tmp_path / "a").glob("t-0.*-delete")
    assert len(renamed.name) == len("t-0.") + 32 + len("-delete")
    broker.now_ms = 999
    dirs.remove_due()
    assert renamed.exists()
    broker.now_ms = 1000
    dirs.remove_due()
    assert not renamed.exists()
    with pytest.raises(LogDirNotFound):
        dirs.delete("t", 0)


def test_what_a_crash_left_of_a_deleted_partition_is_removed(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    append(dirs.create("t", 0, ID), 1)
    dirs.delete("t", 0)
    dirs.release()
    dirs = brokers().start()
    assert list(dirs) == []
    dirs.remove_due()
    assert not list((tmp_path / "a").glob("*-delete"))


@pytest.mark.parametrize("removal", ["delete", "set_aside"])
def test_s27_a_power_loss_does_not_bring_a_deleted_log_back_beside_its_successor(
    brokers: Brokers, removal: str
) -> None:
    """Its new name is not synced. With the successor in another directory the broker would not start."""
    is_new = True
    for seed in range(12):
        disk = SimulatedDisk()
        paths = Path(f"/{seed}a"), Path(f"/{seed}b")
        broker = brokers(*paths, disk=disk)
        dirs = broker.start()
        dirs.create("t", 0, ID)
        dirs.create("u", 0, ID)
        dirs.create("u", 1, ID).flush()
        getattr(dirs, removal)("t", 0)
        dirs.delete("u", 0)
        dirs.delete("u", 1)
        dirs.create("v", 0, ID)
        assert len(dirs) == 1
        log = dirs.create("t", 0, ID)
        append(log, 1)
        log.flush()
        disk.lose_power(random.Random(seed))
        dirs = brokers(*paths, disk=disk).start()
        found = dirs.get("t", 0)
        assert found is not None
        is_new = is_new and len(records(found)) == 1
    assert is_new, "it was synced, and its name with it"


@pytest.mark.parametrize(("synced", "expected"), [(False, "a"), (True, "b")])
def test_a_deleted_log_keeps_its_successor_in_its_directory_until_its_new_name_is_synced(
    brokers: Brokers, tmp_path: Path, synced: bool, expected: str
) -> None:
    broker = brokers("a", "b", holds=True)
    dirs = broker.start()
    dirs.create("t", 0, ID)
    dirs.create("u", 0, ID)
    dirs.delete("t", 0)
    for number in range(2):
        dirs.create("v", number, ID)
    dirs.checkpoint()
    if synced:
        broker.pool.run()
    dirs.create("t", 0, ID)
    assert dirs.directory_of("t", 0) == str(tmp_path / expected)


def test_a_flush_that_runs_after_its_log_was_deleted_writes_nothing_into_the_next_one(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(holds=True)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    append(log, 1, epoch=5)
    log.roll(0)
    assert broker.pool.waiting
    dirs.delete("t", 0)
    dirs.create("t", 0, ID)
    broker.pool.run()
    assert not list((tmp_path / "a" / "t-0").glob("leader-epoch-checkpoint*"))


def test_a_long_topic_name_can_be_deleted(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers().start()
    dirs.create("x" * 240, 0, ID)
    dirs.delete("x" * 240, 0)
    (renamed,) = (tmp_path / "a").glob("*-delete")
    assert len(renamed.name) == 255


def test_a_topic_created_again_does_not_inherit_recovery_points(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Else its records would pass for synced, and a torn tail for bit rot."""
    dirs = brokers().start()
    log = dirs.create("t", 0, ID)
    for n in range(9):
        append(log, n)
    log.flush()
    log.advance_log_start(5)
    dirs.checkpoint({("t", 0): 9})
    assert "t 0 9" in (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text()
    dirs.delete("t", 0)
    append(dirs.create("t", 0, ID), 1)
    dirs.release()
    with (tmp_path / "a" / "t-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")
    again = brokers().start().get("t", 0)
    assert again is not None
    assert records(again) == [(0, b"v")]
    assert again.missing_below is None


def test_a_truncated_log_does_not_keep_its_old_recovery_point(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers().start()
    log = dirs.create("t", 0, ID)
    for n in range(9):
        append(log, n)
    log.flush()
    dirs.checkpoint()
    log.truncate_to(4)
    assert "t 0 4" in (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text()


# Sweeps, flushes, checkpoints


def test_a_sweep_drops_old_segments_and_unlinks_them_later(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(segment_bytes=SIZE, retention_bytes=2 * SIZE, file_delete_delay_ms=500)
    dirs = broker.start()
    for topic in ("t", "u"):
        log = dirs.create(topic, 0, ID)
        for n in range(5):
            append(log, n)
    assert dirs.sweep(lambda key: 2 if key == ("u", 0) else None) == 5
    assert len(list((tmp_path / "a" / "t-0").glob("*.log.deleted"))) == 3
    broker.now_ms = 500
    assert dirs.sweep(lambda key: 2) == 0
    assert not list((tmp_path / "a").glob("*/*.deleted"))
    assert len(list((tmp_path / "a" / "t-0").glob("*.log"))) == 2
    assert len(list((tmp_path / "a" / "u-0").glob("*.log"))) == 3


def test_what_was_sealed_is_flushed_and_checkpointed(brokers: Brokers, tmp_path: Path) -> None:
    dirs = brokers(segment_bytes=3 * SIZE).start()
    log = dirs.create("t", 0, ID)
    for n in range(8):
        append(log, n)
    assert log.recovery_point == 6
    dirs.checkpoint({("t", 0): 7, ("gone", 1): 3})
    assert (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 6\n"
    assert (tmp_path / "a" / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 7\n"
    assert (tmp_path / "a" / "log-start-offset-checkpoint").read_text() == "0\n0\n"
    log.advance_log_start(4)
    dirs.checkpoint()
    assert (tmp_path / "a" / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 4\n"


def test_a_checkpoint_decided_earlier_does_not_overwrite_a_later_one(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(holds=True)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    append(log, 1)
    log.flush()
    dirs.checkpoint()
    append(log, 2)
    log.flush()
    dirs.checkpoint()
    broker.pool.waiting.reverse()
    broker.pool.run()
    assert "t 0 2" in (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text()


def test_a_checkpoint_under_way_does_not_outlive_the_log_that_it_is_of(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(holds=True)
    dirs = broker.start()
    dirs.registered(10)
    append(dirs.create("t", 0, ID), 1)
    dirs.checkpoint({("t", 0): 1})
    dirs.delete("t", 0)
    append(dirs.create("t", 0, ID), 1)
    broker.pool.run()
    dirs.release()
    assert brokers().start().high_watermarks.get(("t", 0), 0) == 0


def test_a_checkpoint_under_way_names_no_recovery_point_above_a_truncation(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers(holds=True)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    for _ in range(4):
        append(log, 1)
    log.flush()
    dirs.checkpoint({("t", 0): 4})
    log.truncate_to(2)
    append(log, 1)
    broker.pool.run()
    for name in ("recovery-point", "replication"):
        assert (tmp_path / "a" / f"{name}-offset-checkpoint").read_text() != "0\n1\nt 0 4\n"


def test_flush_messages_and_flush_ms_are_kept(brokers: Brokers) -> None:
    broker = brokers(flush_messages=3, flush_ms=100)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    append(log, 1, 1)
    dirs.flush_due()
    assert log.recovery_point == 0
    append(log, 1)
    dirs.flush_due()
    assert log.recovery_point == 3
    append(log, 1)
    dirs.flush_due()
    broker.now_ms = 99
    dirs.flush_due()
    assert log.recovery_point == 3
    broker.now_ms = 100
    dirs.flush_due()
    assert log.recovery_point == 4


def test_the_recovery_point_moves_when_the_flush_is_done(brokers: Brokers) -> None:
    broker = brokers(holds=True, flush_messages=1)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    append(log, 1)
    dirs.flush_due()
    assert log.recovery_point == 0
    broker.pool.run()
    assert log.recovery_point == 1


# Failing directories


def test_a_directory_that_fails_goes_offline_and_the_other_goes_on(
    brokers: Brokers, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    broker = brokers("a", "b", disk=disk)
    dirs = broker.start()
    for n in range(4):
        append(dirs.create("t", n, ID), 1)
    log = dirs.get("t", 0)
    assert log is not None
    disk.fail("pwritev", errno.EIO)
    with pytest.raises(KafkaStorageError):
        append(log, 2)
    lost = [("t", 0), ("t", 2)]
    assert broker.failures == [(str(tmp_path / "a"), lost)]
    assert sorted(dirs) == [("t", 1), ("t", 3)]
    assert sorted(dirs.failed) == lost
    assert dirs.online == [str(tmp_path / "b")]
    assert list(dirs.offline) == [str(tmp_path / "a")]
    with pytest.raises(KafkaStorageError):
        dirs.create("t", 0, ID)
    assert dirs.directory_of("t", 9) is None
    dirs.create("t", 9, ID)
    assert dirs.directory_of("t", 9) == str(tmp_path / "b")
    assert dirs.close() is False
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("call", ["fsync", "sync_dir"])
def test_a_sync_that_fails_in_the_pool_takes_the_directory_offline(
    brokers: Brokers, tmp_path: Path, call: str
) -> None:
    disk = FaultyDisk()
    broker = brokers(disk=disk, flush_messages=1)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    disk.fail(call)
    append(log, 1)
    assert broker.failures == [(str(tmp_path / "a"), [("t", 0)])]
    assert log.recovery_point == 0
    with pytest.raises(KafkaStorageError):
        append(log, 2)
    with pytest.raises(KafkaStorageError, match="every log directory is offline"):
        dirs.create("u", 0, ID)


def test_a_sync_that_ends_in_an_unforeseen_error_fences_the_log(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    broker = brokers(disk=disk, flush_messages=1)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    disk.break_down("fsync")
    append(log, 1)
    assert "MemoryError" in caplog.text  # of the pool, in a callback that raised it
    assert broker.failures == [(str(tmp_path / "a"), [("t", 0)])]
    assert log.recovery_point == 0
    with pytest.raises(KafkaStorageError):
        append(log, 2)


def test_a_sync_that_ended_in_an_unforeseen_error_is_not_tried_again(brokers: Brokers) -> None:
    disk = FaultyDisk()
    log = brokers(disk=disk).start().create("t", 0, ID)
    append(log, 1)
    first = log.start_flush()
    append(log, 1)
    second = log.start_flush()
    assert first is not None
    assert second is not None
    disk.break_down("fsync")
    for work in (first, second, first):
        with pytest.raises(MemoryError):
            work.run()


def test_a_checkpoint_that_fails_takes_the_directory_offline(
    brokers: Brokers, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    broker = brokers(disk=disk)
    dirs = broker.start()
    log = dirs.create("t", 0, ID)
    append(log, 1)
    log.flush()
    dirs.checkpoint()
    before = (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text()
    append(log, 1)
    log.flush()
    disk.write_short(3)
    disk.fail("pwritev", errno.ENOSPC)
    dirs.checkpoint()
    assert len(broker.failures) == 1
    assert (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text() == before


def test_a_deletion_that_fails_takes_the_directory_offline(
    brokers: Brokers, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    broker = brokers(disk=disk)
    dirs = broker.start()
    dirs.create("t", 0, ID)
    dirs.create("t", 1, ID)
    disk.fail("rename")
    with pytest.raises(KafkaStorageError):
        dirs.delete("t", 0)
    assert broker.failures == [(str(tmp_path / "a"), [("t", 1)])]


def test_a_log_that_could_not_be_deleted_is_not_created_in_another_directory(
    brokers: Brokers,
) -> None:
    """The failed directory has it still: at the next start the partition would be in two directories."""
    disk = FaultyDisk()
    dirs = brokers("a", "b", disk=disk).start()
    append(dirs.create("t", 0, ID), 1)
    disk.fail("rename")
    with pytest.raises(KafkaStorageError):
        dirs.delete("t", 0)
    with pytest.raises(KafkaStorageError, match="t-0 is offline"):
        dirs.create("t", 0, ID, is_new=False)
    dirs.release()
    found = brokers("a", "b").start().get("t", 0)
    assert found is not None
    assert len(records(found)) == 1


@pytest.mark.parametrize("failing", ["open", "pread"])
def test_a_log_that_cannot_be_read_does_not_stop_the_retention_of_the_others(
    brokers: Brokers, tmp_path: Path, failing: str
) -> None:
    broker = brokers("a", "b")
    dirs = broker.start()
    for number in range(2):
        log = dirs.create("t", number, ID)
        append(log, 1)
        log.roll(0)
    assert dirs.close()
    disk = FaultyDisk()
    broker = brokers("a", "b", disk=disk, retention_ms=1)
    dirs = broker.start()
    for number in range(2):
        (tmp_path / "ab"[number] / f"t-{number}" / f"{0:020d}.timeindex").unlink()
    broker.now_ms = 10**9
    disk.fail(failing)
    assert dirs.sweep(lambda _: 1) == 1
    assert broker.failures == [(str(tmp_path / "a"), [("t", 0)])]
    assert list(dirs) == [("t", 1)]


def test_retention_without_a_file_descriptor_tries_again_later(
    brokers: Brokers, tmp_path: Path
) -> None:
    broker = brokers()
    dirs = broker.start()
    for number in range(2):
        log = dirs.create("t", number, ID)
        append(log, 1)
        log.roll(0)
    assert dirs.close()
    disk = FaultyDisk()
    broker = brokers(disk=disk, retention_ms=1)
    dirs = broker.start()
    (tmp_path / "a" / "t-0" / f"{0:020d}.timeindex").unlink()
    broker.now_ms = 10**9
    disk.fail("open", errno.EMFILE)
    assert dirs.sweep(lambda _: 1) == 1
    assert broker.failures == []
    assert dirs.sweep(lambda _: 1) == 1


def test_a_directory_without_damage_is_closed_cleanly_beside_one_that_failed(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Without its marker every log in it is recovered, and after a reboot its replicas are not believed."""
    disk = FaultyDisk()
    dirs = brokers("a", "b", disk=disk).start()
    logs = [dirs.create("t", number, ID) for number in range(2)]
    disk.fail("pwritev")
    with pytest.raises(KafkaStorageError):
        append(logs[0], 1)
    append(logs[1], 1)
    assert dirs.close(broker_epoch=7) is False
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "b" / ".kafka_cleanshutdown").exists()


def test_a_directory_that_cannot_be_read_at_start_is_offline(
    brokers: Brokers, tmp_path: Path
) -> None:
    dirs = brokers("a", "b", disk=Unreadable(tmp_path / "a")).start()
    assert dirs.online == [str(tmp_path / "b")]
    dirs.release()
    with pytest.raises(KafkaStorageError, match="no log directory is usable"):
        brokers("a", disk=Unreadable(tmp_path / "a")).start()


class Failed(FaultyDisk):
    """A disk on which *call* fails with *code* for everything below *path*."""

    def __init__(self, path: Path, call: str, code: int) -> None:
        super().__init__()
        real = getattr(self, call)

        def refuse(where: str, *rest: Any) -> Any:
            if where.startswith(f"{path}/"):
                raise OSError(code, os.strerror(code))
            return real(where, *rest)

        setattr(self, call, refuse)


@pytest.mark.parametrize("failing", ["lock", "open"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_s15_a_broker_starts_without_a_log_directory_on_a_failed_disk(
    brokers: Brokers, tmp_path: Path, failing: str, code: int
) -> None:
    dirs = brokers("a", "b").start()
    for number in range(2):
        append(dirs.create("t", number, ID), 1)
    assert dirs.close()
    dirs = brokers("a", "b", disk=Failed(tmp_path / "a", failing, code)).start()
    assert (dirs.online, list(dirs)) == ([str(tmp_path / "b")], [("t", 1)])
    assert dirs.unreadable_dirs == [str(tmp_path / "a")]
    with pytest.raises(KafkaStorageError, match="t-0 is not created again"):
        dirs.create("t", 0, ID, is_new=False)
    dirs.create("t", 2, ID)
    dirs.close()
    assert sorted(brokers("a", "b").start()) == [("t", 0), ("t", 1), ("t", 2)]


@pytest.mark.parametrize("failing", ["lock", "open"])
def test_s15_a_broker_without_a_disk_that_works_does_not_start(
    brokers: Brokers, tmp_path: Path, failing: str
) -> None:
    brokers("a").start().close()
    with pytest.raises(KafkaStorageError, match=r"no log directory is usable.*/a: .*Input/output"):
        brokers("a", disk=Failed(tmp_path / "a", failing, errno.EIO)).start()
    assert list(brokers("a").start()) == [], "it was unlocked"


def test_a_log_directory_that_is_not_to_be_written_is_a_fault_of_the_configuration(
    brokers: Brokers, tmp_path: Path
) -> None:
    with pytest.raises(KafkaStorageError, match="cannot be used"):
        brokers("a", "b", disk=Failed(tmp_path / "a", "lock", errno.EACCES))


def test_a_shutdown_that_cannot_sync_is_not_clean(brokers: Brokers, tmp_path: Path) -> None:
    disk = FaultyDisk()
    dirs = brokers(disk=disk).start()
    append(dirs.create("t", 0, ID), 1)
    disk.fail("fsync")
    assert dirs.close() is False
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()


def test_only_so_many_segment_files_are_open_at_a_time(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = brokers().start()
    monkeypatch.setattr(log_segment, "max_open_files", 10)
    logs = [dirs.create("t", n, ID) for n in range(40)]
    for _ in range(3):
        for log in logs:
            append(log, 1)
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    paths = {log.segments[0].path for log in logs}
    assert sum(os.path.realpath(link) in paths for link in links) <= 10
    assert all(len(records(log)) == 3 for log in logs)


def test_where_descriptors_are_scarce_a_segment_is_opened_in_exchange_for_another(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        log_segment, "_opened", type(log_segment._opened)()
    )  # other tests left some open
    dirs = brokers().start()
    logs = [dirs.create("t", n, ID) for n in range(40)]
    for log in logs[:5]:
        append(log, 1)
    monkeypatch.setattr(open_files, "limit", lambda: 0)  # every descriptor is one of the last
    for _ in range(3):
        for log in logs:
            append(log, 1)
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    paths = {log.segments[0].path for log in logs}
    assert sum(os.path.realpath(link) in paths for link in links) <= 5 + 1
    assert all(len(records(log)) >= 3 for log in logs)


def test_idle_partitions_keep_no_file_open(brokers: Brokers, tmp_path: Path) -> None:
    def open_segments() -> int:
        count = 0
        for fd in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the descriptor that listdir had open
                link = os.readlink(f"/proc/self/fd/{fd}")
                count += link.startswith(str(tmp_path)) and link.endswith(".log")
        return count

    dirs = brokers().start()
    for n in range(50):
        dirs.create("t", n, ID)
    assert open_segments() == 0
    append(log := dirs.create("t", 0, ID), 1)
    assert log.log_end_offset == 1
    assert open_segments() == 1
    dirs.close()
    dirs = brokers().start()
    assert open_segments() == 0


def test_data_files_are_for_the_owner_and_the_group_and_not_executable(
    brokers: Brokers, tmp_path: Path
) -> None:
    former = os.umask(0)
    try:
        dirs = brokers("data/a").start()
        append(dirs.create("t", 0, ID), 1)
        dirs.checkpoint({("t", 0): 1})
        dirs.registered(10)
        dirs.close()
    finally:
        os.umask(former)
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "data").rglob("*")
        if path.name != "data"
    }
    assert {path.name: oct(mode) for path, mode in modes.items() if path.is_file()} == {
        path.name: "0o640" for path in modes if path.is_file()
    }
    assert {oct(mode) for path, mode in modes.items() if path.is_dir()} == {"0o750"}
    assert len(modes) > 10
