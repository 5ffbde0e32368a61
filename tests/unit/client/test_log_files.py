"""`kclient log`: files that a broker wrote are sound, each kind of damage is found and named, and nothing else is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kbroker.log import offset_checkpoint_file
from kclient.cli.commands import kclient
from kclient.log_files.dump import Dump, DumpOptions, is_known
from kclient.log_files.verify import Verifier, files_of
from kclient.wire.batches import parse
from kclient.wire.records import ABORT, COMMIT, Record, encode_batch
from tests.kit.logs import append, batch_of, open_log
from tests.kit.producer_batches import numbered_batch
from tests.kit.transactional_logs import marker, transactional

LOG = f"{0:020d}"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory with the files of two logs, as a broker leaves them."""
    directory = tmp_path_factory.mktemp("data")
    log = open_log(directory / "t-0", index_interval_bytes=200)
    for n in range(40):
        append(log, 1000 + n, 1000 + n, value=b"value-%d" % n, epoch=n // 20)
    for codec in (1, 2, 3, 4):
        batch = batch_of(2000, value=b"compressed", codec=codec)
        log.append_as_leader(batch, parse(batch), 3, 0)
    for sequence in range(3):
        batch = numbered_batch(77, sequence)
        log.append_as_leader(batch, parse(batch), 3, 0)
    log.roll(5)
    append(log, 3000, epoch=3)
    log.close()
    log = open_log(directory / "x-0")
    for batch in (
        transactional(7, epoch=4), transactional(8, count=2), marker(7, ABORT, epoch=4), marker(8, COMMIT),
    ):  # fmt: skip
        log.append_as_leader(batch, parse(batch), 0, 1000)
    log.close()
    checkpoint = offset_checkpoint_file.encode({("t", 0): 88, ("x", 0): 5})
    (directory / offset_checkpoint_file.RECOVERY_POINTS).write_bytes(checkpoint)
    return directory


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "data")
    return tmp_path / "data"


def problems(directory: Path) -> list[str]:
    verifier = Verifier()
    return [
        f"{each.path.relative_to(directory)}: {each.text}"
        for path in files_of(directory)
        for each in verifier.check(path).problems
    ]


def test_files_of_a_broker_are_sound(written: Path) -> None:
    assert problems(written) == []
    suffixes = {path.suffix for path in files_of(written)}
    assert suffixes == {".log", ".index", ".timeindex", ".txnindex", ".snapshot", ""}


def test_each_file_alone_is_sound(written: Path) -> None:
    """No check depends on the files before it."""
    for path in files_of(written):
        assert Verifier().check(path).problems == [], path


def change(position: int, *content: int) -> Callable[[Path], None]:
    """Overwrite bytes of a file."""

    def changed(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[position : position + len(content)] = bytes(content)
        path.write_bytes(data)

    return changed


def cut(count: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[:-count])


def add(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes() + content)


def twice(path: Path) -> None:
    """Write the last batch of a producer again, behind it."""
    data = path.read_bytes()
    *_, (position, size) = [(at, parse(data, at).size) for at in _positions(data)]
    path.write_bytes(data + (89).to_bytes(8, "big") + data[position + 8 : position + size])


def _positions(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += parse(data, at).size
    return found


@pytest.mark.parametrize(
    ("name", "damage", "expected"),
    [
        (f"t-0/{LOG}.log", change(80, 0xFF), "record batch is corrupt (CRC-32C"),
        (f"t-0/{LOG}.log", cut(1), "is cut off"),
        (f"t-0/{LOG}.log", add(b"\1" * 7), "7 bytes at the end are no batch"),
        (f"t-0/{LOG}.log", change(7, 9), "do not follow"),
        (f"t-0/{LOG}.log", change(12, 0, 0, 0, 1), "leader epoch 0 follows 1"),
        (f"t-0/{LOG}.log", twice, "sequences 2 to 2 again, a duplicate"),
        (f"t-0/{LOG}.log", add(encode_batch([Record(500, 0, None, b"v")], base_offset=500)),
         "ends at offset 500, above the base offset"),
        (f"t-0/{LOG}.index", cut(3), "no multiple of 8"),
        (f"t-0/{LOG}.index", change(7, 1), "no batch begins at byte"),
        (f"t-0/{LOG}.index", change(0, 0, 0, 0, 1), "above that of the entry"),
        (f"t-0/{LOG}.index", change(8, 0, 0, 0, 1), "offset 1 follows"),
        (f"t-0/{LOG}.index", add(b"\0\0\x7f\0\0\0\x7f\0"), "no batch begins at byte 32512"),
        (f"t-0/{LOG}.timeindex", change(0, *bytes(8)), "but a record up to that offset has"),
        (f"t-0/{LOG}.timeindex", add(bytes(7) + b"\1\0\0\xff\0"), "timestamp 1 follows"),
        (f"x-0/{LOG}.txnindex", cut(34), "no entry for the aborted transaction of producer 7"),
        (f"x-0/{LOG}.txnindex", Path.unlink, f"there is no {LOG}.txnindex, with the aborted transaction of producer 7"),
        (f"x-0/{LOG}.txnindex", change(0, 0, 9), "version 9"),
        (f"x-0/{LOG}.txnindex", change(25, 1), "no marker is at that offset"),
        (f"x-0/{5:020d}.snapshot", change(20, 1), "CRC-32C"),
        (f"x-0/{5:020d}.snapshot", lambda path: path.rename(path.with_name(f"{1:020d}.snapshot")),
         "lies behind the snapshot"),
        ("t-0/leader-epoch-checkpoint", lambda path: path.write_text("0\n2\n0 0\n1 30\n"), "have epoch 0"),
        ("t-0/leader-epoch-checkpoint", lambda path: path.write_text("0\n2\n1 0\n0 30\n"), "epoch 0 follows 1"),
        ("t-0/leader-epoch-checkpoint", lambda path: path.write_text("0\n3\n0 0\n"), "announces 3 entries"),
        ("recovery-point-offset-checkpoint", lambda path: path.write_text("0\n1\nt 0 -4\n"), "is no entry"),
        ("recovery-point-offset-checkpoint", lambda path: path.write_text("0\n2\nt 0 4\nt 0 5\n"), "two entries"),
        ("recovery-point-offset-checkpoint", lambda path: path.write_text("zero\n"), "not a checkpoint"),
    ],
)  # fmt: skip
def test_damage_is_found(
    copy: Path, name: str, damage: Callable[[Path], None], expected: str
) -> None:
    damage(copy / name)
    found = problems(copy)
    assert any(expected in each for each in found), found
    where = {each.split(": ")[0].partition("/")[0] for each in found}
    assert where == {name.partition("/")[0]}, "no other log is accused"


def test_zeros_behind_the_last_batch_are_preallocated(copy: Path) -> None:
    add(bytes(5000))(copy / "t-0" / f"{LOG}.log")
    add(bytes(800))(copy / "t-0" / f"{LOG}.index")
    add(bytes(1200))(copy / "t-0" / f"{LOG}.timeindex")
    assert problems(copy) == []
    checked = Verifier().check(copy / "t-0" / f"{LOG}.log")
    assert checked.note is not None
    assert "5000 bytes of zeros" in checked.note


def test_an_empty_checkpoint_has_no_entries(copy: Path) -> None:
    """Apache Kafka leaves cleaner-offset-checkpoint so where nothing is compacted."""
    (copy / "cleaner-offset-checkpoint").touch()
    assert problems(copy) == []


def test_a_segment_that_was_copied_alone_needs_no_index(copy: Path) -> None:
    for suffix in ("txnindex", "index", "timeindex"):
        (copy / "x-0" / f"{LOG}.{suffix}").unlink()
    assert problems(copy) == []


def test_a_file_that_goes_meanwhile_is_no_problem(copy: Path) -> None:
    (copy / "t-0" / f"{LOG}.log").unlink()
    ended = run("verify", copy)
    assert ended.exit_code == 0
    assert f"{LOG}.log: not there any more" in ended.output
    assert run("verify", copy / "t-0" / f"{LOG}.index").exit_code == 1


def test_an_index_entry_may_name_the_last_of_several_batches(tmp_path: Path) -> None:
    """A follower appends what one fetch returned, and indexes its last offset."""
    log = open_log(tmp_path / "t-0", index_interval_bytes=100)
    append(log, 1, value=bytes(200))
    batches = b"".join(batch_of(2, base_offset=n, leader_epoch=0, value=bytes(80)) for n in (1, 2))
    log.append_as_follower(batches, 0)
    log.close()
    assert problems(tmp_path) == []


# --- the commands


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(kclient, ["log", *map(str, words)])


def test_a_sound_directory_is_exit_code_0(written: Path) -> None:
    ended = run("verify", written)
    assert (ended.exit_code, ended.output) == (
        0,
        "16 files, 52 batches, 93 records: nothing is wrong\n",
    )


def test_a_problem_is_exit_code_4_with_its_place(copy: Path) -> None:
    change(80, 0xFF)(copy / "t-0" / f"{LOG}.log")
    ended = run("verify", copy / "t-0" / f"{LOG}.log")
    assert ended.exit_code == 4
    assert f"{LOG}.log: byte 0, offset 0: record batch is corrupt" in ended.output
    assert ended.output.endswith("1 problem\n")
    (row,) = json.loads(run("verify", copy / "t-0" / f"{LOG}.log", "-J").output)
    (problem,) = row["problems"]
    assert (problem["position"], problem["offset"], row["batches"]) == (0, 0, 47)
    assert run("dump", "--records", copy / "t-0" / f"{LOG}.log").exit_code == 4


def test_a_shallow_check_decodes_no_records(copy: Path) -> None:
    """The CRC is right, the records are not: the header has one record too many."""
    batch = bytearray(encode_batch([Record(0, 0, None, b"v")]))
    batch[57:61] = (2).to_bytes(4, "big")
    from crc32c import crc32c

    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    path = copy / f"{0:020d}.log"
    path.write_bytes(batch)
    assert run("verify", path).exit_code == 4
    assert run("verify", "--shallow", path).exit_code == 0


def test_a_torn_end_is_exit_code_4_of_dump(copy: Path) -> None:
    path = copy / "t-0" / f"{LOG}.log"
    cut(1)(path)
    ended = run("dump", path)
    assert ended.exit_code == 4
    assert "invalid bytes at the end of" in ended.output
    assert run("dump", path, "--format", "jsonl").exit_code == 4


def test_records_as_json_have_every_byte(written: Path) -> None:
    lines = run("dump", "--data", written / "x-0", "--format", "jsonl").output.splitlines()
    rows = [json.loads(line) for line in lines]
    assert next(row["records"][0]["value"] for row in rows if "records" in row) == "v"
    assert rows[0]["file"].endswith(f"{LOG}.log")
    assert rows[-1] == {
        "file": str(written / "x-0" / "leader-epoch-checkpoint"), "epoch": 0, "start_offset": 0,
    }  # fmt: skip


@pytest.mark.parametrize("word", ["dump", "verify"])
def test_what_is_no_log_file_is_a_usage_error(word: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no log")
    for path in (tmp_path / "notes.txt", tmp_path):
        ended = run(word, path)
        assert ended.exit_code == 2
        assert "log" in ended.output


def test_every_file_of_a_directory_is_dumped(written: Path) -> None:
    files = [path for path in written.rglob("*") if path.is_file()]
    assert all(is_known(path) for path in files)
    dump = Dump(DumpOptions(print_data=True))
    lines = [line for path in files for line in dump.lines(path)]
    assert sum(line.startswith("Dumping ") for line in lines) == len(files)
    assert "topic: t partition: 0 offset: 88" in lines
    assert dump.findings() == []
    assert (dump.unreadable, dump.torn) == (0, 0)
