"""The transactions of one log: what is remembered of those that ended, and what a truncation opens again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.log.core.log_transactions import REMEMBERED, LogTransactions
from kclient.wire.batches import parse
from kclient.wire.records import ABORT, COMMIT
from tests.kit.logs import open_log
from tests.kit.transactional_logs import marker, transactional

P, Q = 7, 8
MANY = REMEMBERED + 100


def firsts(transactions: LogTransactions) -> dict[int, int]:
    return {pid: each.first_offset for pid, each in transactions.ongoing.items()}


def ended(count: int, high_watermark: int | None = None) -> LogTransactions:
    """So many transactions of one record each, replicated up to *high_watermark* (None: all before the last)."""
    transactions = LogTransactions()
    for n in range(count):
        transactions.transactional_batch(P, 0, 2 * n)
        transactions.replicated(2 * n if high_watermark is None else high_watermark)
        transactions.marker(P, 2 * n + 1, is_aborted=False)
    return transactions


def test_the_oldest_transactions_are_forgotten_when_there_are_many() -> None:
    assert ended(REMEMBERED).known_from == 0
    transactions = ended(MANY)
    assert transactions.known_from == 2 * (MANY - REMEMBERED)
    transactions.truncate_from_end(transactions.known_from + 1)
    assert firsts(transactions) == {P: transactions.known_from}


def test_a_transaction_with_a_marker_that_is_not_replicated_is_not_forgotten() -> None:
    transactions = ended(MANY, high_watermark=3)
    assert transactions.known_from == 2
    assert transactions.first_unstable_offset(3) == 2
    assert transactions.first_unstable_offset(2) == 2
    assert transactions.first_unstable_offset(2 * MANY) is None


def test_the_last_stable_offset_counts_open_and_unreplicated_transactions() -> None:
    transactions = LogTransactions()
    transactions.transactional_batch(P, 0, 5)
    transactions.transactional_batch(Q, 0, 6)
    assert transactions.first_unstable_offset(100) == 5
    completed = transactions.marker(P, 7, is_aborted=True)
    assert completed is not None
    assert transactions.last_stable_offset_behind(completed) == 6
    assert [transactions.first_unstable_offset(mark) for mark in (7, 8)] == [5, 6]
    assert transactions.marker(P, 8, is_aborted=True) is None, "none is open"


def test_a_truncation_opens_again_what_it_cut_and_keeps_the_order() -> None:
    transactions = LogTransactions()
    transactions.transactional_batch(P, 3, 0)
    transactions.transactional_batch(Q, 0, 1)
    transactions.marker(P, 2, is_aborted=False)
    transactions.transactional_batch(P, 4, 3)
    transactions.truncate_from_end(2)
    assert list(firsts(transactions).items()) == [(P, 0), (Q, 1)]
    assert transactions.ongoing[P].producer_epoch == 3


@pytest.mark.parametrize("clean", [True, False, None], ids=["restarted", "killed", "running"])
@pytest.mark.parametrize("end", [1, 2, 3, 2 * MANY - 1])
def test_a_deep_truncation_finds_what_was_forgotten(
    tmp_path: Path, end: int, clean: bool | None
) -> None:
    log = open_log(tmp_path / "t-0")
    for n in range(MANY):
        for batch in (transactional(P, sequence=n), marker(P, COMMIT if n % 2 else ABORT)):
            log.append_as_leader(batch, parse(batch), 0, 0)
        log.replicated(2 * n)
    if clean is not None:
        log.flush()
        log.close(clean=clean)
        log = open_log(tmp_path / "t-0", clean=clean, recovery_point=2 * MANY)
    log.truncate_to(end)
    assert firsts(log.producers.transactions) == ({P: end - 1} if end % 2 else {})
    last = [each.last_offset for each in log.segments[0].transaction_index.entries()]
    assert last == list(range(1, end, 4))
