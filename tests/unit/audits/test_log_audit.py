"""The log audit: replicas in order pass, and every single thing that is damaged in one of them is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kclient.wire.batches import HEADER_SIZE, LENGTH_END, iterate, parse
from kclient.wire.records import Record, encode_batch
from tests.audits.logs import audit_logs
from tests.kit.logs import open_log

BATCHES = 40
KEY = "t-0"


def write_replica(directory: Path) -> None:
    """Forty batches of two records by one producer, over two epochs and a few segments."""
    log = open_log(directory, segment_bytes=1024, index_interval_bytes=100)
    for n in range(BATCHES):
        records = [Record(m, 1000 + n, None, b"%d" % (2 * n + m)) for m in range(2)]
        batch = encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=2 * n)
        log.append_as_leader(batch, parse(batch), 0 if n < 20 else 1, 0)
    assert log.close()


@pytest.fixture
def data(tmp_path: Path) -> dict[int, Path]:
    """Three brokers' directories with equal replicas."""
    first = tmp_path / "broker-1" / "data"
    first.mkdir(parents=True)
    write_replica(first / KEY)
    for n in (2, 3):
        shutil.copytree(first.parent, tmp_path / f"broker-{n}")
    return {n: tmp_path / f"broker-{n}" / "data" for n in (1, 2, 3)}


ACKNOWLEDGED = {KEY: {offset: offset for offset in range(2 * BATCHES)}}
ENDS = {KEY: 2 * BATCHES}


def rules(data: dict[int, Path], *, clean: bool = True) -> set[str]:
    audit = audit_logs(
        data, clean=data if clean else (), high_watermarks=ENDS, acknowledged=ACKNOWLEDGED
    )
    return {problem.rule for problem in audit.problems}


def segments(data: dict[int, Path], broker: int = 2) -> list[Path]:
    return sorted((data[broker] / KEY).glob("*.log"))


def test_equal_replicas_in_order_pass(data: dict[int, Path]) -> None:
    assert len(segments(data)) > 2
    audit = audit_logs(data, clean=data, high_watermarks=ENDS, acknowledged=ACKNOWLEDGED)
    assert audit.problems == []
    assert (audit.partitions, audit.replicas, audit.batches) == (1, 3, 3 * BATCHES)


def flip_a_bit(data: dict[int, Path]) -> None:
    path = segments(data)[0]
    content = bytearray(path.read_bytes())
    content[HEADER_SIZE + 5] ^= 1
    path.write_bytes(content)


def another_leader_epoch(data: dict[int, Path]) -> None:
    path = segments(data)[-1]
    content = bytearray(path.read_bytes())
    content[LENGTH_END + 3] = 9
    path.write_bytes(content)


def cut_off_the_end(data: dict[int, Path]) -> None:
    path = segments(data)[-1]
    content = path.read_bytes()
    last = max(info.position for info in iterate(content))
    path.write_bytes(content[:last])


def half_a_batch_at_the_end(data: dict[int, Path]) -> None:
    path = segments(data)[-1]
    content = path.read_bytes()
    path.write_bytes(content + content[:30])


def a_batch_twice(data: dict[int, Path]) -> None:
    path = segments(data)[-1]
    content = path.read_bytes()
    path.write_bytes(content + content[: parse(content).size])


def another_value(data: dict[int, Path]) -> None:
    path = segments(data)[-1]
    content = path.read_bytes()
    info = parse(content)
    records = [Record(info.base_offset + n, 1, None, b"-5") for n in range(2)]
    batch = encode_batch(records, base_offset=info.base_offset, leader_epoch=info.leader_epoch)
    path.write_bytes(batch + content[info.size :])


def an_index_that_points_elsewhere(data: dict[int, Path]) -> None:
    path = segments(data)[0].with_suffix(".index")
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)


def a_time_index_that_is_early(data: dict[int, Path]) -> None:
    path = segments(data)[0].with_suffix(".timeindex")
    content = bytearray(path.read_bytes())
    content[:8] = (1).to_bytes(8, "big")
    path.write_bytes(content)


def other_epochs(data: dict[int, Path]) -> None:
    path = data[2] / KEY / "leader-epoch-checkpoint"
    assert path.read_text() == "0\n2\n0 0\n1 40\n"
    path.write_text("0\n2\n0 0\n1 42\n")


def no_snapshot(data: dict[int, Path]) -> None:
    for path in (data[2] / KEY).glob("*.snapshot"):
        path.unlink()


def a_snapshot_of_before(data: dict[int, Path]) -> None:
    older, newest = sorted((data[2] / KEY).glob("*.snapshot"))[-2:]
    newest.write_bytes(older.read_bytes())


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (flip_a_bit, {"corrupt"}),
        (another_leader_epoch, {"replicas-differ", "epochs", "epoch-order"}),
        (
            cut_off_the_end,
            {"replica-short", "replicas-differ", "acknowledged-not-there", "producers", "index"},
        ),
        (half_a_batch_at_the_end, {"tail"}),
        (a_batch_twice, {"offset-order", "replicas-differ", "replica-short", "producers"}),
        (another_value, {"replicas-differ", "acknowledged-not-there"}),
        (an_index_that_points_elsewhere, {"index"}),
        (a_time_index_that_is_early, {"timeindex"}),
        (other_epochs, {"epochs"}),
        (no_snapshot, {"producers"}),
        (a_snapshot_of_before, {"producers"}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_damage_of_one_replica_is_named(
    data: dict[int, Path], damage: Callable[[dict[int, Path]], None], expected: set[str]
) -> None:
    damage(data)
    assert rules(data) == expected


def test_a_killed_broker_may_leave_half_a_batch_and_old_checkpoints(data: dict[int, Path]) -> None:
    half_a_batch_at_the_end(data)
    no_snapshot(data)
    other_epochs(data)
    assert rules(data, clean=False) == set()


def test_a_record_that_all_have_lost_is_named(data: dict[int, Path]) -> None:
    for n in data:
        path = segments(data, n)[-1]
        path.write_bytes(b"")
    assert "replica-short" in rules(data, clean=False)
