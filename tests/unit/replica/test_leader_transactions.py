"""The leader's part in transactions: which markers are appended, and when an answer of the coordinator counts."""

from __future__ import annotations

import pytest

from kbroker.log.core.producer_state import ProducerStateEntry
from kbroker.replica.core.leader_transactions import (
    MOST_REFUSED,
    UNKNOWN_NUMBER,
    EndTxnMarker,
    LeaderTransactions,
    VerificationState,
    VerificationStateEntry,
)
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import InvalidProducerEpoch, TransactionCoordinatorFenced

P = 7


def marker(
    epoch: int = 0, number: int = UNKNOWN_NUMBER, *, coordinator_epoch: int = 3
) -> EndTxnMarker:
    return EndTxnMarker(P, epoch, coordinator_epoch, is_commit=True, number=number)


def state(epoch: int, coordinator_epoch: int = -1) -> ProducerStateEntry:
    entry = ProducerStateEntry(epoch)
    entry.coordinator_epoch = coordinator_epoch
    return entry


def asked(
    transactions: LeaderTransactions, sequence: int = 0, *, epoch: int = 0
) -> VerificationStateEntry:
    found, is_new = transactions.maybe_start_verification(P, epoch, sequence)
    assert is_new
    return found


def begun(number: int) -> LeaderTransactions:
    """Transactions with an open one of *number*."""
    transactions = LeaderTransactions()
    transactions.complete_verification(P, asked(transactions), ErrorCode.NONE, number)
    transactions.began(P)
    return transactions


def answer(
    transactions: LeaderTransactions, entry: VerificationStateEntry, number: int = 5
) -> bool:
    """Answer positively; return whether that counts."""
    transactions.complete_verification(P, entry, ErrorCode.NONE, number)
    return transactions.verified(P, entry.producer_epoch) is entry


# Markers


def test_a_marker_of_a_lower_producer_epoch_is_refused() -> None:
    with pytest.raises(InvalidProducerEpoch, match="4 is on"):
        LeaderTransactions().takes(marker(3), state(4), is_open=True)


def test_a_marker_of_a_lower_coordinator_epoch_is_refused() -> None:
    with pytest.raises(TransactionCoordinatorFenced, match="4 is on"):
        LeaderTransactions().takes(marker(), state(0, 4), is_open=True)


@pytest.mark.parametrize(
    ("open_number", "number", "ends"),
    [(5, 5, True), (5, 4, False), (5, 6, True), (5, -1, True), (-1, 4, True), (-1, -1, True)],
)
def test_a_late_marker_is_known_by_its_number(open_number: int, number: int, ends: bool) -> None:
    transactions = begun(open_number)
    assert transactions.takes(marker(number=number), state(0), is_open=True) is ends


@pytest.mark.parametrize("known", [None, state(0), state(0, 2), state(0, 3)])
def test_without_a_transaction_a_marker_is_appended(known: ProducerStateEntry | None) -> None:
    """An earlier leader may have a batch of the transaction that this log does not have."""
    assert LeaderTransactions().takes(marker(), known, is_open=False)
    assert LeaderTransactions().takes(marker(1), known, is_open=False)


def test_the_number_is_forgotten_with_the_marker_and_with_the_leadership() -> None:
    transactions = begun(5)
    assert LeaderTransactions(transactions).number_of(P) == 5
    assert LeaderTransactions().number_of(P) == UNKNOWN_NUMBER
    transactions.ended(P)
    assert transactions.number_of(P) == UNKNOWN_NUMBER


# Verifications


def test_batches_that_wait_share_a_verification_and_are_called_in_order() -> None:
    transactions = LeaderTransactions()
    entry = asked(transactions)
    calls: list[int] = []
    for number in range(3):
        assert transactions.maybe_start_verification(P, 0, number) == (entry, False)
        entry.on_completion(lambda number=number: calls.append(number))  # type: ignore[misc]
    assert answer(transactions, entry)
    assert calls == [0, 1, 2]
    entry.on_completion(lambda: calls.append(3))
    assert calls[-1] == 3


def test_an_answer_counts_until_the_batch_is_appended() -> None:
    transactions = LeaderTransactions()
    assert answer(transactions, asked(transactions))
    transactions.began(P)
    assert transactions.verified(P, 0) is None
    assert transactions.number_of(P) == 5


@pytest.mark.parametrize(
    ("number", "epoch", "counts"),
    [(5, 0, False), (4, 0, True), (6, 0, False), (-1, 0, False), (-1, 1, False), (4, 1, True)],
)
@pytest.mark.parametrize("is_early", [True, False])
def test_an_answer_does_not_count_after_the_marker_of_that_transaction(
    number: int, epoch: int, counts: bool, is_early: bool
) -> None:
    transactions = LeaderTransactions()
    entry = asked(transactions)
    end = marker(epoch, number)
    if is_early:
        transactions.takes(end, None, is_open=False)
        assert answer(transactions, entry) is counts
    else:
        assert answer(transactions, entry)
        transactions.takes(end, None, is_open=False)
        assert (transactions.verified(P, 0) is entry) is counts


def test_a_marker_of_an_earlier_epoch_is_of_another_transaction() -> None:
    transactions = LeaderTransactions()
    entry = asked(transactions, epoch=2)
    transactions.takes(marker(1), None, is_open=False)
    assert answer(transactions, entry)


def test_an_answer_without_a_number_counts_if_no_marker_came() -> None:
    transactions = LeaderTransactions()
    assert answer(transactions, asked(transactions), UNKNOWN_NUMBER)
    transactions = LeaderTransactions()
    entry = asked(transactions)
    transactions.takes(marker(number=1), None, is_open=False)
    assert not answer(transactions, entry, UNKNOWN_NUMBER)


def test_after_an_error_that_may_pass_the_lowest_sequence_is_remembered() -> None:
    transactions = LeaderTransactions()
    entry = asked(transactions, 3)
    transactions.maybe_start_verification(P, 0, 4)
    transactions.complete_verification(P, entry, ErrorCode.NOT_COORDINATOR, -1, is_retriable=True)
    assert entry.state is VerificationState.REFUSED
    assert asked(transactions, 4).lowest_sequence == 3
    assert transactions.maybe_start_verification(P, 0, 2)[0].lowest_sequence == 2
    assert asked(transactions, 0, epoch=1).lowest_sequence == 0


def test_after_another_error_nothing_is_remembered() -> None:
    transactions = LeaderTransactions()
    entry = asked(transactions, 3)
    transactions.complete_verification(P, entry, ErrorCode.INVALID_TXN_STATE, -1)
    assert asked(transactions, 4).lowest_sequence == 4


def test_an_older_epoch_is_refused_while_a_later_one_asks_which_takes_its_place() -> None:
    transactions = LeaderTransactions()
    first = asked(transactions)
    second = asked(transactions, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        transactions.maybe_start_verification(P, 0, 0)
    assert not answer(transactions, first)
    assert answer(transactions, second)


def test_few_failures_are_remembered() -> None:
    transactions = LeaderTransactions()
    for producer_id in range(MOST_REFUSED + 10):
        entry, _ = transactions.maybe_start_verification(producer_id, 0, 1)
        transactions.complete_verification(
            producer_id, entry, ErrorCode.NOT_COORDINATOR, -1, is_retriable=True
        )
    assert len(transactions._verifications) == MOST_REFUSED
    assert transactions.maybe_start_verification(9, 0, 5)[0].lowest_sequence == 5
    assert transactions.maybe_start_verification(MOST_REFUSED, 0, 5)[0].lowest_sequence == 1
