"""The checkpoint files of a log directory at a start: damaged, too high, or of a log that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.log_managers import ID, Brokers
from tests.kit.logs import FaultyDisk, append, records


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


def test_s08_a_high_watermark_that_a_start_rejected_is_not_accepted_when_the_log_has_grown_again(
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
    accepted = dict(dirs.high_watermarks)
    dirs.missing_logs.clear()
    dirs.lower_checkpoints(accepted)
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
    assert dirs.sweep(lambda _: 2, lambda _key: None) == 2
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


def test_s08_a_log_start_that_was_not_accepted_is_not_kept_for_a_log_that_is_away(
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


def test_s08_a_recovery_point_above_the_end_is_not_accepted_when_the_log_has_grown_again(
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


def test_a_high_watermark_rejected_after_a_power_loss_is_not_accepted_after_a_kill_either(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Of what is below it a cut may have been undone. The kill keeps the log as the power loss left it."""
    dirs = brokers().start()
    dirs.registering()
    dirs.registered(10)
    for number in (0, 1):
        append(dirs.create("t", number, ID), 1, 2, 3)
    dirs.checkpoint({("t", 0): 2, ("t", 1): 9})
    dirs.release()
    after_power_loss = brokers()
    after_power_loss.dirs.histories.boot_id = "another-boot"
    dirs = after_power_loss.start()
    assert dirs.high_watermarks == {("t", 0): 0, ("t", 1): 0}
    dirs.registering()
    dirs.registered(20)
    dirs.release()
    after_kill = brokers()
    after_kill.dirs.histories.boot_id = "another-boot"
    dirs = after_kill.start()
    assert dirs.high_watermarks == {("t", 0): 0, ("t", 1): 0}
    missing = {key: log.missing_below for key in dirs if (log := dirs.get(*key)) is not None}
    assert missing == {("t", 0): None, ("t", 1): 9}, "what is known to be lost stays known"


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
def test_s08_a_log_start_that_no_second_file_has_is_not_accepted(
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
def test_s08_a_log_start_of_kafka_is_accepted_up_to_the_high_watermark(
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
