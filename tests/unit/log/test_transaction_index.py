"""The transaction index: Kafka's format, what a fetch collects, and where its entries go with the segment."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kbroker.log import quarantine
from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.disk import OS_DISK
from kbroker.log.log_segment import LogSegment
from kbroker.log.transaction_index import TransactionIndex
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import iterate, parse
from kclient.wire.errors import CorruptMessage
from kclient.wire.records import ABORT, COMMIT
from tests.kit.logs import open_log
from tests.kit.transactional_logs import marker, transactional

KAFKAS = ">hqqqq"
P = 7


def index(tmp_path: Path, *entries: tuple[int, int, int, int]) -> TransactionIndex:
    found = TransactionIndex(OS_DISK, str(tmp_path / "0"), new=True)
    for entry in entries:
        found.append(AbortedTransaction(*entry))
    return found


def append(log: UnifiedLog, batch: bytes) -> None:
    log.append_as_leader(batch, parse(batch), 0, 0)


def firsts(found: TransactionIndex, offset: int, upper_bound: int) -> tuple[list[int], bool]:
    """The first offsets of the transactions that are collected, and whether the search ends."""
    aborted: list[AbortedTransaction] = []
    ends = found.collect(offset, upper_bound, aborted)
    return [each.first_offset for each in aborted], ends


def test_an_aborted_transaction_is_an_entry_of_kafkas_format(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for batch in (
        transactional(P), transactional(8, count=2), marker(P, ABORT), marker(8, COMMIT),
    ):  # fmt: skip
        append(log, batch)
    log.flush()
    content = (tmp_path / "t-0" / f"{0:020d}.txnindex").read_bytes()
    # Producer 8 has an open transaction from offset 1 on when the marker of P is appended at 3.
    assert content == struct.pack(KAFKAS, 0, P, 0, 3, 1)
    assert log.producers.transactions.ongoing == {}


def test_a_log_without_aborted_transactions_has_no_index_file(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, transactional(P))
    append(log, marker(P, COMMIT))
    assert log.close()
    assert not list((tmp_path / "t-0").glob("*.txnindex"))


def test_a_fetch_gets_what_overlaps_it_and_the_search_ends_where_nothing_can_follow(
    tmp_path: Path,
) -> None:
    found = index(tmp_path, (1, 0, 10, 5), (2, 5, 20, 21), (3, 30, 40, 41))
    found.write_out()
    found.append(AbortedTransaction(4, 50, 60, 61))
    assert firsts(found, 0, 100) == ([0, 5, 30, 50], False)
    assert firsts(found, 11, 100) == ([5, 30, 50], False)
    assert firsts(found, 0, 5) == ([0], True)
    assert firsts(found, 20, 21) == ([5], True)
    assert firsts(found, 21, 30) == ([], True)
    assert firsts(found, 61, 100) == ([], False)


def test_a_truncation_removes_entries_in_memory_and_in_the_file(tmp_path: Path) -> None:
    found = index(tmp_path, (1, 0, 10, 11), (2, 15, 20, 21))
    found.write_out()
    found.append(AbortedTransaction(3, 25, 30, 31))
    found.truncate(30)
    assert [each.last_offset for each in found.entries()] == [10, 20]
    found.truncate(20)
    assert [each.last_offset for each in found.entries()] == [10]
    assert len((tmp_path / "0.txnindex").read_bytes()) == 34


def test_an_entry_of_another_version_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "0.txnindex").write_bytes(struct.pack(KAFKAS, 1, P, 0, 3, 1))
    found = TransactionIndex(OS_DISK, str(tmp_path / "0"))
    with pytest.raises(CorruptMessage, match="version 1"):
        firsts(found, 0, 10)


def test_recovery_keeps_what_was_synced_and_replaces_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    good = struct.pack(KAFKAS, 0, 1, 0, 10, 11)
    path.write_bytes(good + struct.pack(KAFKAS, 0, 2, 15, 20, 21) + bytes(50))
    found = TransactionIndex(OS_DISK, str(tmp_path / "0"))
    new = AbortedTransaction(3, 12, 18, 19)
    assert found.replace_behind(15, [new])
    assert [each.last_offset for each in found.entries()] == [10, 18]
    assert path.read_bytes() == good + struct.pack(KAFKAS, 0, 3, 12, 18, 19)
    assert not found.replace_behind(15, [new]), "nothing changes the second time"


def test_a_new_segment_does_not_take_over_the_index_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / f"{5:020d}.txnindex"
    for make in ("create", "quarantine"):
        path.write_bytes(struct.pack(KAFKAS, 0, P, 5, 6, 7))
        segment = LogSegment.create(OS_DISK, str(tmp_path), 5, 0)
        if make == "quarantine":
            segment.transaction_index.append(AbortedTransaction(P, 5, 6, 7))
            segment.write_indexes()
            quarantine.put_aside(OS_DISK, segment)
        assert not path.exists()


def test_open_transactions_of_which_nothing_is_left_are_forgotten(tmp_path: Path) -> None:
    """Recovery began the log again at its start offset; the snapshot is from before."""
    log = open_log(tmp_path / "t-0")
    append(log, transactional(P))
    log.roll(0)
    log.flush()
    log.close(clean=False)
    for path in (tmp_path / "t-0").glob("*.log"):
        path.write_bytes(b"")
    log = open_log(tmp_path / "t-0", log_start_offset=9)
    assert log.log_end_offset == 9
    assert log.producers.transactions.ongoing == {}
    assert log.last_stable_offset(9) == 9


@pytest.mark.parametrize("clean", [True, False])
def test_a_copied_transaction_stays_open_over_a_restart_and_is_no_state_of_a_producer(
    tmp_path: Path, clean: bool
) -> None:
    log = open_log(tmp_path / "t-0")
    data = transactional(P, epoch=4)
    log.append_copied(data, list(iterate(data)), 0, 0, start_offset=0)
    log.flush()
    log.close(clean=clean)
    log = open_log(tmp_path / "t-0", clean=clean, recovery_point=1)
    assert {pid: each[:2] for pid, each in log.producers.transactions.ongoing.items()} == {
        P: (0, 4)
    }
    assert len(log.producers.states) == 0
    append(log, marker(P, ABORT, epoch=4))
    assert log.last_stable_offset(1) == 0
    assert log.last_stable_offset(2) == 2


def test_an_open_transaction_does_not_expire_with_its_producer(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, transactional(P))
    append(log, transactional(8, is_transactional=False))
    assert log.producers.expire(10) == 1
    assert list(log.producers.states) == [P]
    append(log, marker(P, COMMIT, coordinator_epoch=3))
    assert log.producers.states.entries[P].coordinator_epoch == 3
    log.close()
    log = open_log(tmp_path / "t-0", clean=True)
    assert log.producers.states.entries[P].coordinator_epoch == 3
    assert log.producers.expire(10) == 1


def test_without_snapshots_a_recovery_builds_the_index_from_all_batches(tmp_path: Path) -> None:
    """As a log of an older kbroker, the snapshots of which have no transactions: they are removed by hand."""
    log = open_log(tmp_path / "t-0")
    for batch in (transactional(P), marker(P, ABORT), transactional(8)):
        append(log, batch)
        log.roll(0)
    log.flush()
    log.close(clean=False)
    for kind in ("*.snapshot", "*.txnindex"):
        for path in (tmp_path / "t-0").glob(kind):
            path.unlink()
    log = open_log(tmp_path / "t-0", recovery_point=3)
    entries = [entry for segment in log.segments for entry in segment.transaction_index.entries()]
    assert entries == [(P, 0, 1, 2)]
    assert log.last_stable_offset(3) == 2
