"""The machine of a transactional id: each request in each state, as Kafka answers it, and the writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.coordinator.transaction.core.states import (
    LAST_EPOCH_OF_A_PRODUCER,
    VALID_FROM,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from kbroker.coordinator.transaction.core.transaction import (
    Done,
    Marker,
    Refuse,
    Transaction,
    Verified,
    Write,
)
from kclient.wire.error_codes import ErrorCode

P = ProducerIdAndEpoch(7, 3)
T0, T1 = ("t", 0), ("t", 1)
TIMEOUT = 1000

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = (
    TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT,
)  # fmt: skip


def in_state(state: TransactionState, **fields: object) -> Transaction:
    has = state not in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
    metadata = TransactionMetadata(
        7, 3, TIMEOUT, state, 100, number=5,
        start_ms=100 if has else -1, partitions=frozenset({T0, T1} if has else ()),
    )  # fmt: skip
    return Transaction(replace(metadata, **fields))  # type: ignore[arg-type]


def write_of(decision: object) -> Write:
    assert isinstance(decision, Write)
    return decision


def test_a_new_transactional_id_gets_a_producer_id_and_epoch_0() -> None:
    transaction = Transaction(None)
    assert transaction.needs_producer_id()
    write = write_of(transaction.init_producer_id(TIMEOUT, 100, 42))
    assert (write.metadata.producer, write.metadata.state) == ((42, 0), EMPTY)
    assert transaction.stored is None, "not before it is written"
    assert transaction.init_producer_id(TIMEOUT, 100, 43) == Refuse(
        ErrorCode.CONCURRENT_TRANSACTIONS
    )
    assert transaction.written() == ()
    assert transaction.stored == write.metadata


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_the_next_producer_gets_the_next_epoch(state: TransactionState) -> None:
    write = write_of(in_state(state).init_producer_id(50, 200, 42))
    assert (write.metadata.producer, write.metadata.timeout_ms) == ((7, 4), 50)
    assert write.metadata.last_producer_epoch == -1


def test_a_producer_that_continues_raises_its_own_epoch_once() -> None:
    """KIP-360: the second request repeats the first, the response to which was lost."""
    transaction = in_state(COMPLETE_ABORT)
    assert write_of(transaction.init_producer_id(TIMEOUT, 1, 42, P)).metadata.producer == (7, 4)
    transaction.written()
    assert write_of(transaction.init_producer_id(TIMEOUT, 1, 42, P)).metadata.producer == (7, 4)
    transaction.written()
    refused = transaction.init_producer_id(TIMEOUT, 1, 42, ProducerIdAndEpoch(7, 2))
    assert refused == Refuse(ErrorCode.PRODUCER_FENCED)
    other = transaction.init_producer_id(TIMEOUT, 1, 42, ProducerIdAndEpoch(8, 4))
    assert other == Refuse(ErrorCode.PRODUCER_FENCED)


def test_after_the_last_epoch_comes_another_producer_id() -> None:
    last = ProducerIdAndEpoch(7, LAST_EPOCH_OF_A_PRODUCER)
    transaction = in_state(EMPTY, producer_epoch=last.epoch)
    assert transaction.needs_producer_id()
    write = write_of(transaction.init_producer_id(TIMEOUT, 1, 42, last))
    assert (write.metadata.producer, write.metadata.previous_producer_id) == ((42, 0), 7)
    transaction.written()
    again = write_of(transaction.init_producer_id(TIMEOUT, 1, 43, last))
    assert again.metadata.producer == (42, 0), "the response was lost"


def test_a_fence_uses_the_epoch_that_no_producer_gets() -> None:
    transaction = in_state(ONGOING, producer_epoch=LAST_EPOCH_OF_A_PRODUCER)
    write = write_of(transaction.init_producer_id(TIMEOUT, 1, 42))
    assert write.metadata.producer_epoch == 2**15 - 1


def test_init_producer_id_aborts_an_open_transaction_with_a_raised_epoch() -> None:
    transaction = in_state(ONGOING)
    write = write_of(transaction.init_producer_id(TIMEOUT, 200, 42))
    assert (write.metadata.state, write.metadata.producer, write.error) == (
        PREPARE_ABORT, (7, 4), ErrorCode.CONCURRENT_TRANSACTIONS,
    )  # fmt: skip
    assert transaction.state is TransactionState.PREPARE_EPOCH_FENCE
    markers = list(transaction.written())
    assert markers == [Marker(each, (7, 4), 5, is_commit=False) for each in (T0, T1)]  # type: ignore[arg-type]
    assert transaction.end(P, 200, is_commit=True) == Refuse(ErrorCode.PRODUCER_FENCED)


def test_the_first_partitions_begin_a_transaction_and_more_join_it() -> None:
    transaction = in_state(COMPLETE_COMMIT)
    first = write_of(transaction.add(P, 200, [T0])).metadata
    assert (first.state, first.number, first.start_ms) == (ONGOING, 6, 200)
    transaction.written()
    more = write_of(transaction.add(P, 300, [T1], ["g"])).metadata
    assert (more.number, more.start_ms, more.groups) == (6, 200, {"g"})
    assert more.partitions == {T0, T1}
    transaction.written()
    assert transaction.add(P, 400, [T0], ["g"]) == Done(more)


def test_nothing_is_begun_for_no_partition() -> None:
    transaction = in_state(EMPTY)
    assert isinstance(transaction.add(P, 200), Done)


@pytest.mark.parametrize("producer", [(8, 3), (7, 2), (7, 4)])
def test_another_producer_changes_nothing(producer: tuple[int, int]) -> None:
    other = ProducerIdAndEpoch(*producer)
    error = (
        ErrorCode.PRODUCER_FENCED
        if other.producer_id == 7
        else ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )
    transaction = in_state(ONGOING)
    assert transaction.add(other, 1, [T0]) == Refuse(error)
    assert transaction.end(other, 1, is_commit=True) == Refuse(error)
    assert transaction.verify(other, T0) == Verified(error)
    assert Transaction(None).end(other, 1, is_commit=True) == Refuse(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (EMPTY, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (PREPARE_COMMIT, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_TXN_STATE),
        (PREPARE_ABORT, ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS),
        (COMPLETE_COMMIT, None, ErrorCode.INVALID_TXN_STATE),
        (COMPLETE_ABORT, ErrorCode.INVALID_TXN_STATE, None),
    ],
)
def test_a_decision_is_repeated_and_never_changed(
    state: TransactionState, commit: ErrorCode | None, abort: ErrorCode | None
) -> None:
    for is_commit, error in ((True, commit), (False, abort)):
        decision = in_state(state).end(P, 1, is_commit=is_commit)
        assert isinstance(decision, Done) if error is None else decision == Refuse(error)


def test_a_leader_may_append_only_what_the_open_transaction_has() -> None:
    transaction = in_state(ONGOING, groups=frozenset({"g"}))
    for destination in (T0, T1, "g"):
        assert transaction.verify(P, destination) == Verified(ErrorCode.NONE, 5)
    assert transaction.verify(P, ("u", 0)) == Verified(ErrorCode.TRANSACTION_ABORTABLE)
    transaction.end(P, 1, is_commit=True)
    busy = Verified(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert transaction.verify(P, T0) == busy, "the decision may be written already"
    transaction.written()
    assert transaction.verify(P, T0) == busy
    for state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
        assert in_state(state).verify(P, T0) == Verified(ErrorCode.TRANSACTION_ABORTABLE)


def test_complete_is_written_after_the_last_acknowledgement() -> None:
    transaction = in_state(ONGOING, groups=frozenset({"g"}))
    transaction.end(P, 1, is_commit=True)
    markers = list(transaction.written())
    assert [each.destination for each in markers] == [T0, T1, "g"]
    assert transaction.acknowledged(markers[0], 2) is None
    assert transaction.acknowledged(markers[0], 2) is None
    assert transaction.acknowledged(markers[1]._replace(number=4), 2) is None
    assert transaction.acknowledged(markers[1], 2) is None
    assert list(transaction.markers()) == markers[2:]
    write = transaction.acknowledged(markers[2], 3)
    assert write is not None
    assert (write.metadata.state, write.metadata.partitions) == (COMPLETE_COMMIT, frozenset())
    assert transaction.acknowledged(markers[2], 3) is None, "one write at a time"
    assert transaction.add(P, 4, [T0]) == Refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert transaction.written() == ()
    assert isinstance(transaction.add(P, 4, [T0]), Write)


def test_after_an_unknown_outcome_the_znode_counts_and_markers_are_sent_again() -> None:
    transaction = in_state(ONGOING)
    stored = transaction.stored
    write = write_of(transaction.end(P, 1, is_commit=True))
    assert transaction.found(stored) == (), "it was not applied"
    assert transaction.state is ONGOING
    transaction.end(P, 1, is_commit=True)
    assert len(transaction.found(write.metadata)) == 2, "it was applied"
    assert len(Transaction(None).found(write.metadata)) == 2, "the next coordinator"


def test_a_transaction_beyond_its_timeout_is_aborted_with_a_raised_epoch() -> None:
    transaction = in_state(ONGOING)
    assert transaction.expire(100 + TIMEOUT - 1, 10) is None
    write = transaction.expire(100 + TIMEOUT, 10)
    assert write is not None
    assert (write.metadata.state, write.metadata.producer_epoch) == (PREPARE_ABORT, 4)
    assert transaction.expire(100 + TIMEOUT, 10) is None, "one write at a time"


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_an_idle_id_expires_and_its_znode_is_deleted(state: TransactionState) -> None:
    transaction = in_state(state)
    assert transaction.expire(109, 10) is None
    write = transaction.expire(110, 10)
    assert write is not None
    assert write.metadata.state is TransactionState.DEAD
    assert transaction.written() == ()
    assert transaction.state is None


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_a_decided_transaction_never_expires(state: TransactionState) -> None:
    assert in_state(state).expire(10**12, 10) is None


def test_the_table_is_kafkas() -> None:
    assert VALID_FROM[PREPARE_COMMIT] == {ONGOING}
    assert VALID_FROM[TransactionState.DEAD] == {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT}
    assert set(VALID_FROM) == set(TransactionState)
