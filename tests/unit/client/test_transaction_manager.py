"""Which request a transactional producer sends next, and what each error leads to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kclient.errors import ConnectionClosed, TransactionAborted, TransactionStateError
from kclient.producer.transaction_manager import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    Initialized,
    InitProducerId,
    Request,
    State,
    TransactionManager,
)
from kclient.types import (
    NO_PRODUCER,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from kclient.wire.errors import ErrorCode, KafkaError, ProducerFenced, for_code

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
FIRST = ProducerIdAndEpoch(7, 0)
MEMBER = ConsumerGroupMetadata("g", 3, "member")
OFFSETS = {A: OffsetAndMetadata(5)}
LOST = ConnectionClosed("the connection was lost")


def error(code: ErrorCode) -> KafkaError:
    return for_code(code)("refused")


class Played:
    """A manager, and its coordinator played by the test; times are in seconds."""

    def __init__(self, *, raises_epochs: bool = True) -> None:
        self.manager = TransactionManager("tx", lambda count: 0.1 * 2**count)
        self.raises_epochs = raises_epochs
        self.has_batches = False
        self.now = 0.0

    def initialized(self) -> Played:
        self.manager.init()
        self.succeed(Initialized(FIRST, self.raises_epochs))
        return self

    def begun(self, *partitions: TopicPartition) -> Played:
        """Begin a transaction with *partitions*."""
        if self.manager.state is State.UNINITIALIZED:
            self.initialized()
        self.manager.begin()
        if partitions:
            self.manager.add_partitions(partitions)
            assert isinstance(self.next(), AddPartitions)
            self.manager.succeeded(self.request)
        return self

    def next(self) -> Request | None:
        found = self.manager.next_request(self.now, has_batches=self.has_batches)
        if found is not None:
            self.request = found
        return found

    def succeed(self, outcome: Initialized | None = None) -> Request:
        found = self.next()
        assert found is not None
        self.manager.succeeded(found, outcome)
        return found

    def fail(self, problem: KafkaError, **options: Any) -> Request:
        found = self.next()
        assert found is not None
        self.manager.failed(found, problem, self.now, **options)
        return found


# --- the usual course


def test_a_transaction_from_the_producer_id_to_the_commit() -> None:
    it = Played()
    it.manager.init()
    assert it.next() == InitProducerId(NO_PRODUCER)
    assert it.next() is None
    it.manager.succeeded(it.request, Initialized(FIRST, True))
    it.manager.begin()
    assert it.next() is None
    it.manager.add_partitions([A, B])
    assert not it.manager.may_send_to(A)
    assert it.next() == AddPartitions(FIRST, frozenset({A, B}))
    it.manager.succeeded(it.request)
    assert it.manager.may_send_to(A)
    it.has_batches = True
    it.manager.begin_commit()
    assert it.next() is None
    it.has_batches = False
    assert it.next() == EndTransaction(FIRST, committed=True)
    it.manager.succeeded(it.request)
    assert it.manager.state is State.READY
    assert not it.manager.may_send_to(A)


def test_partitions_that_come_meanwhile_are_added_together_by_the_next_request() -> None:
    it = Played().begun()
    it.manager.add_partitions([A])
    assert it.next() == AddPartitions(FIRST, frozenset({A}))
    it.manager.add_partitions([A, B])
    it.manager.add_partitions([TopicPartition("b", 1)])
    assert it.next() is None
    it.manager.succeeded(it.request)
    assert it.next() == AddPartitions(FIRST, frozenset({B, TopicPartition("b", 1)}))


def test_a_partition_is_added_once_in_each_transaction() -> None:
    it = Played().begun(A)
    it.manager.add_partitions([A])
    assert it.next() is None
    it.manager.begin_commit()
    it.succeed()
    it.begun(A)
    assert it.request == AddPartitions(FIRST, frozenset({A}))


def test_a_transaction_without_partitions_and_offsets_ends_without_a_request() -> None:
    it = Played().begun()
    it.manager.begin_commit()
    assert it.next() is None
    assert it.manager.state is State.READY
    it.manager.begin()
    it.manager.begin_abort()
    assert it.next() is None
    assert it.manager.state is State.READY


def test_offsets_are_added_once_for_each_group_and_sent_before_the_commit() -> None:
    it = Played().begun()
    first = it.manager.send_offsets(MEMBER, OFFSETS)
    second = it.manager.send_offsets(MEMBER, {A: OffsetAndMetadata(6)})
    it.manager.begin_commit()
    assert it.succeed() == AddOffsets(FIRST, "g")
    assert it.succeed() == CommitOffsets(FIRST, first)
    assert not it.manager.is_pending(first)
    assert it.manager.is_pending(second)
    assert it.succeed() == CommitOffsets(FIRST, second)
    assert it.succeed() == EndTransaction(FIRST, committed=True)


def test_no_offsets_are_no_request() -> None:
    it = Played().begun()
    assert not it.manager.is_pending(it.manager.send_offsets(MEMBER, {}))
    assert it.next() is None


def test_an_abort_waits_for_batches_in_flight_and_drops_what_is_not_sent() -> None:
    it = Played().begun(A)
    it.manager.add_partitions([B])
    it.manager.send_offsets(MEMBER, OFFSETS)
    it.has_batches = True
    it.manager.begin_abort()
    assert it.next() is None
    assert not it.manager.may_send_to(A)
    assert isinstance(it.manager.refusal, TransactionAborted)
    it.has_batches = False
    assert it.succeed() == EndTransaction(FIRST, committed=False)
    assert it.manager.state is State.READY
    assert it.manager.refusal is None


def test_partitions_that_come_during_an_abort_are_not_added() -> None:
    it = Played().begun(A)
    it.manager.begin_abort()
    it.manager.add_partitions([B])
    assert it.succeed() == EndTransaction(FIRST, committed=False)
    it.manager.begin()
    assert it.next() is None


# --- repetitions


def test_concurrent_transactions_after_a_commit_are_asked_again_after_20_ms() -> None:
    it = Played().begun()
    it.manager.add_partitions([A])
    it.fail(error(ErrorCode.CONCURRENT_TRANSACTIONS))
    assert it.manager.retry_at == pytest.approx(0.02)
    assert it.next() is None
    it.now = 0.02
    it.manager.add_partitions([B])
    assert it.succeed() == AddPartitions(FIRST, frozenset({A, B}))


def test_other_repetitions_back_off() -> None:
    it = Played().begun(A)
    it.manager.add_partitions([B])
    for wait in (0.1, 0.2, 0.4):
        it.fail(error(ErrorCode.CONCURRENT_TRANSACTIONS))
        assert it.manager.retry_at == pytest.approx(it.now + wait)
        it.now = it.manager.retry_at
    it.succeed()
    assert it.manager.retry_at == 0


RETRIED = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
]


def at_init() -> Played:
    it = Played()
    it.manager.init()
    return it


def at_add_partitions() -> Played:
    it = Played().begun()
    it.manager.add_partitions([A])
    return it


def at_add_offsets() -> Played:
    it = Played().begun(A)
    it.manager.send_offsets(MEMBER, OFFSETS)
    return it


def at_commit_offsets() -> Played:
    it = at_add_offsets()
    it.succeed()
    return it


def at_commit() -> Played:
    it = Played().begun(A)
    it.manager.begin_commit()
    return it


def at_abort() -> Played:
    it = Played().begun(A)
    it.manager.begin_abort()
    return it


EVERYWHERE = [at_init, at_add_partitions, at_add_offsets, at_commit_offsets, at_commit, at_abort]
Start = Callable[[], Played]


@pytest.mark.parametrize("start", EVERYWHERE)
@pytest.mark.parametrize("code", RETRIED)
def test_what_can_succeed_later_is_repeated(start: Start, code: ErrorCode) -> None:
    it = start()
    state = it.manager.state
    first = it.fail(error(code))
    assert it.manager.state is state
    it.now = it.manager.retry_at
    assert it.next() == first


@pytest.mark.parametrize("start", EVERYWHERE)
@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_newer_producer_is_fatal(start: Start, code: ErrorCode) -> None:
    it = start()
    it.fail(error(code))
    assert it.manager.state is State.FATAL_ERROR
    for call in (it.manager.begin, it.manager.begin_commit, it.manager.begin_abort):
        with pytest.raises(ProducerFenced, match="close this producer"):
            call()
    assert isinstance(it.manager.refusal, ProducerFenced)
    assert it.next() is None


@pytest.mark.parametrize("start", EVERYWHERE)
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_TXN_STATE,
    ],
)
def test_other_errors_are_fatal(start: Start, code: ErrorCode) -> None:
    it = start()
    it.fail(error(code))
    assert it.manager.state is State.FATAL_ERROR


@pytest.mark.parametrize(
    ("start", "code"),
    [
        (at_add_partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (at_add_partitions, ErrorCode.TRANSACTION_ABORTABLE),
        (at_add_partitions, ErrorCode.UNKNOWN_SERVER_ERROR),
        (at_add_offsets, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (at_add_offsets, ErrorCode.TRANSACTION_ABORTABLE),
        (at_commit_offsets, ErrorCode.ILLEGAL_GENERATION),
        (at_commit_offsets, ErrorCode.UNKNOWN_MEMBER_ID),
        (at_commit_offsets, ErrorCode.FENCED_INSTANCE_ID),
        (at_commit_offsets, ErrorCode.REBALANCE_IN_PROGRESS),
        (at_commit_offsets, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        (at_commit, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_after_some_errors_the_caller_aborts_and_goes_on(start: Start, code: ErrorCode) -> None:
    it = start()
    it.fail(error(code))
    assert it.manager.state is State.ABORTABLE_ERROR
    assert it.next() is None
    for call in (it.manager.check_send, it.manager.begin_commit, it.manager.begin):
        with pytest.raises(TransactionAborted, match=r"call abort_transaction") as refused:
            call()
        assert refused.value.__cause__ is it.manager.error
    it.manager.begin_abort()
    if (last := it.next()) is not None:
        assert last == EndTransaction(FIRST, committed=False)
        it.manager.succeeded(last)
    assert it.manager.state is State.READY
    it.manager.begin()


def test_a_refused_first_partition_leaves_nothing_to_end() -> None:
    it = at_add_partitions()
    it.fail(error(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    it.manager.begin_abort()
    assert it.next() is None
    assert it.manager.state is State.READY


# --- the epoch (KIP-360) and requests that may be late (KIP-890)


def test_after_a_failed_batch_with_a_sequence_the_abort_raises_the_epoch() -> None:
    it = Played().begun(A)
    it.manager.batch_failed(error(ErrorCode.REQUEST_TIMED_OUT), has_sequence=True)
    it.manager.begin_abort()
    assert it.succeed() == EndTransaction(FIRST, committed=False)
    assert it.manager.state is State.INITIALIZING
    second = ProducerIdAndEpoch(7, 1)
    assert it.succeed(Initialized(second, True)) == InitProducerId(FIRST)
    it.begun(A)
    assert it.request == AddPartitions(second, frozenset({A}))


def test_a_batch_that_fails_during_the_abort_raises_the_epoch_too() -> None:
    it = Played().begun(A)
    it.has_batches = True
    it.manager.begin_abort()
    it.manager.batch_failed(LOST, has_sequence=True)
    it.has_batches = False
    it.succeed()
    assert it.next() == InitProducerId(FIRST)


def test_a_batch_without_a_sequence_needs_no_new_epoch() -> None:
    it = Played().begun(A)
    it.manager.batch_failed(error(ErrorCode.MESSAGE_TOO_LARGE), has_sequence=False)
    it.manager.begin_abort()
    it.succeed()
    assert it.manager.state is State.READY


def test_a_coordinator_that_cannot_raise_the_epoch_makes_a_failed_batch_fatal() -> None:
    it = Played(raises_epochs=False).begun(A)
    it.manager.batch_failed(LOST, has_sequence=True)
    assert it.manager.state is State.FATAL_ERROR
    with pytest.raises(KafkaError, match=r"Kafka 2\.5"):
        it.manager.begin_abort()


@pytest.mark.parametrize("start", [at_add_partitions, at_add_offsets, at_commit_offsets, at_commit])
def test_after_a_lost_response_no_transaction_begins_in_the_same_epoch(start: Start) -> None:
    it = start()
    it.fail(LOST)
    it.now = it.manager.retry_at
    while it.manager.state is State.IN_TRANSACTION and it.next() is not None:
        it.manager.succeeded(it.request)
    if it.manager.state is State.IN_TRANSACTION:
        it.manager.begin_commit()
    assert isinstance(it.succeed(), EndTransaction)
    assert it.manager.state is State.INITIALIZING
    assert it.next() == InitProducerId(FIRST)


def test_a_connection_that_could_not_be_opened_has_lost_no_response() -> None:
    it = at_commit()
    it.fail(LOST, sent=False)
    it.now = it.manager.retry_at
    it.succeed()
    assert it.manager.state is State.READY


def test_a_first_partition_that_may_be_added_is_aborted_but_not_repeated() -> None:
    it = at_add_partitions()
    it.fail(LOST)
    it.manager.begin_abort()
    assert it.succeed() == EndTransaction(FIRST, committed=False)
    assert it.next() == InitProducerId(FIRST)


def test_the_coordinator_may_not_know_a_transaction_that_was_never_certain() -> None:
    it = at_add_partitions()
    it.fail(LOST)
    it.manager.begin_abort()
    assert isinstance(it.fail(error(ErrorCode.INVALID_TXN_STATE)), EndTransaction)
    assert it.next() == InitProducerId(FIRST)


def test_an_expired_transactional_id_has_nothing_to_abort() -> None:
    it = at_add_offsets()
    it.fail(error(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    assert it.manager.state is State.ABORTABLE_ERROR
    it.manager.begin_abort()
    assert it.next() == InitProducerId(FIRST)


def test_without_a_higher_epoch_an_unknown_producer_is_fatal() -> None:
    it = Played(raises_epochs=False).begun()
    it.manager.add_partitions([A])
    it.fail(error(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    assert it.manager.state is State.FATAL_ERROR


def test_a_fenced_commit_after_a_lost_response_may_have_been_committed() -> None:
    it = at_commit()
    it.fail(LOST)
    it.now = it.manager.retry_at
    it.fail(error(ErrorCode.PRODUCER_FENCED))
    assert "may have committed" in str(it.manager.error)


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (ErrorCode.PRODUCER_FENCED, State.FATAL_ERROR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, State.ABORTABLE_ERROR),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, State.ABORTABLE_ERROR),
        (ErrorCode.INVALID_TXN_STATE, State.ABORTABLE_ERROR),
        (ErrorCode.TRANSACTION_ABORTABLE, State.ABORTABLE_ERROR),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, State.FATAL_ERROR),
    ],
)
def test_what_a_failed_batch_leads_to(code: ErrorCode, state: State) -> None:
    for it in (Played().begun(A), at_commit()):
        it.manager.batch_failed(error(code), has_sequence=True)
        assert it.manager.state is state


# --- wrong use


@pytest.mark.parametrize(
    ("start", "call", "next_step"),
    [
        (Played, "begin", r"init_transactions\(\) first"),
        (Played, "check_send", r"init_transactions\(\) first"),
        (at_init, "begin", r"init_transactions\(\) again"),
        (lambda: Played().initialized(), "init", r"begin_transaction\(\) first"),
        (lambda: Played().initialized(), "check_send", r"begin_transaction\(\) first"),
        (lambda: Played().initialized(), "begin_commit", r"begin_transaction\(\) first"),
        (lambda: Played().initialized(), "begin_abort", r"begin_transaction\(\) first"),
        (lambda: Played().begun(), "begin", r"commit_transaction\(\) or abort_transaction\(\)"),
        (at_commit, "begin", r"commit_transaction\(\) again"),
        (at_commit, "begin_abort", r"commit_transaction\(\) again"),
        (at_commit, "check_send", r"commit_transaction\(\) again"),
        (at_abort, "begin_commit", r"abort_transaction\(\) again"),
    ],
)
def test_wrong_use_is_refused_with_the_next_step(start: Start, call: str, next_step: str) -> None:
    it = start()
    before = it.manager.state
    with pytest.raises(TransactionStateError, match=next_step):
        getattr(it.manager, call)()
    assert it.manager.state is before


@pytest.mark.parametrize(
    ("start", "call"), [(at_init, "init"), (at_commit, "begin_commit"), (at_abort, "begin_abort")]
)
def test_a_call_that_timed_out_may_be_repeated(start: Start, call: str) -> None:
    it = start()
    before = it.next()
    getattr(it.manager, call)()
    assert it.next() is None
    assert it.request == before
