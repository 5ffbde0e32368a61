"""The transactional producer on scripted brokers: what is sent in which order, what calls raise, what fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.errors import (
    ConfigError,
    KafkaTimeoutError,
    RowsNotAcknowledged,
    SerializationError,
    TransactionAborted,
    TransactionStateError,
)
from kclient.producer.producer import Producer
from kclient.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kclient.wire import batches
from kclient.wire.errors import ErrorCode, MessageTooLarge, ProducerFenced
from kclient.wire.schema.end_txn import EndTxnResponse
from kclient.wire.versions import ApiKey
from tests.kit.scripted_broker import Outcome
from tests.kit.scripted_cluster import HELD, PendingRequest, ScriptedCluster
from tests.kit.scripted_transaction_coordinator import ScriptedTransactionCoordinator

GROUP = ConsumerGroupMetadata("g", 3, "member", "instance")
T0 = TopicPartition("t", 0)


class TransactionalProducer:
    """A producer on scripted brokers; `codes` are the errors of its requests, one by one."""

    def __init__(self, *, begun: bool = True, **settings: Any) -> None:
        self.scripted = ScriptedCluster({"t": 2}, brokers=2)
        self.coordinator = ScriptedTransactionCoordinator(self.scripted)
        self.codes = self.coordinator.codes
        self.producer: Producer[Any, Any] = Producer(
            reactor=self.scripted.clock, transactional_id="tx", **settings
        )
        self.scripted.attach(self.producer.cluster)
        if begun:
            assert self.call(self.producer.init_transactions).value is None
            assert self.call(self.producer.begin_transaction).value is None

    # --- the caller

    def call(self, method: Callable[..., Any], *args: Any, seconds: float = 0.5) -> Outcome:
        outcome = Outcome(method(*args))
        self.scripted.pass_time(seconds)
        return outcome

    def send(self, value: Any = b"v", partition: int = 0, seconds: float = 0.0) -> Outcome:
        outcome = Outcome(self.producer.send("t", value, partition=partition))
        self.scripted.pass_time(seconds)
        return outcome

    # --- the brokers

    def hold(self, api: ApiKey) -> Callable[[], None]:
        """Let requests of *api* wait; return a function that answers them, and later ones."""
        usual = self.scripted.answers[api]
        self.scripted.answers[api] = lambda _: HELD

        def go_on() -> None:
            self.scripted.answers[api] = usual
            for asked in self.scripted.waiting(api):
                self.scripted.answer(asked)

        return go_on

    def asked(self) -> list[ApiKey]:
        """Return the requests about transactions, and Produce, in their order."""
        own = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR)
        return [asked.api for asked in self.scripted.requests if asked.api not in own]

    def all(self, api: ApiKey) -> list[PendingRequest]:
        return [asked for asked in self.scripted.requests if asked.api is api]


def header(asked: PendingRequest) -> batches.BatchInfo:
    """Return the header of the only batch of a Produce."""
    (topic,) = asked.message.topics
    (partition,) = topic.partitions
    return batches.parse(partition.records)


# --- the usual course


def test_a_transaction_is_added_produced_and_ended_in_this_order() -> None:
    it = TransactionalProducer()
    sent = [it.send(partition=0), it.send(partition=1)]
    assert it.call(it.producer.commit_transaction).value is None
    assert all(outcome.value.offset == 0 for outcome in sent)
    assert it.asked() == [
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.PRODUCE,
        ApiKey.PRODUCE,
        ApiKey.END_TXN,
    ]
    init, added, produced, _, ended = [
        asked for asked in it.scripted.requests if asked.api in it.asked()
    ]
    assert (init.message.transactional_id, init.message.transaction_timeout_ms) == ("tx", 60_000)
    (topic,) = added.message.v3_and_below_topics
    assert (topic.name, topic.partitions) == ("t", [0, 1])
    assert added.version == 3
    assert (produced.message.transactional_id, produced.message.acks) == ("tx", -1)
    batch = header(produced)
    assert batch.is_transactional
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 0, 0)
    assert (ended.message.committed, ended.message.producer_epoch) == (True, 0)


def test_sequences_go_on_in_the_next_transaction() -> None:
    it = TransactionalProducer()
    it.send()
    it.call(it.producer.commit_transaction)
    it.call(it.producer.begin_transaction)
    it.send()
    it.call(it.producer.commit_transaction)
    assert [header(each).base_sequence for each in it.all(ApiKey.PRODUCE)] == [0, 1]
    assert it.scripted.count(ApiKey.ADD_PARTITIONS_TO_TXN) == 2
    assert it.scripted.count(ApiKey.INIT_PRODUCER_ID) == 1


def test_a_commit_does_not_wait_for_linger() -> None:
    it = TransactionalProducer(linger_ms=30_000)
    sent = it.send()
    assert it.call(it.producer.commit_transaction).value is None
    assert sent.value.offset == 0


def test_no_batch_is_sent_before_its_partition_is_added() -> None:
    it = TransactionalProducer(linger_ms=0)
    go_on = it.hold(ApiKey.ADD_PARTITIONS_TO_TXN)
    it.send(seconds=0.5)
    assert it.scripted.count(ApiKey.PRODUCE) == 0
    go_on()
    it.scripted.pass_time(0.2)
    assert it.scripted.count(ApiKey.PRODUCE) == 1


def test_the_end_waits_for_every_acknowledgement() -> None:
    it = TransactionalProducer()
    go_on = it.hold(ApiKey.PRODUCE)
    it.send()
    committing = it.call(it.producer.commit_transaction, seconds=2)
    assert not committing.fired
    assert it.scripted.count(ApiKey.END_TXN) == 0
    go_on()
    it.scripted.pass_time(0.2)
    assert committing.value is None


def test_records_that_wait_for_memory_are_part_of_the_commit() -> None:
    it = TransactionalProducer(buffer_memory=600, batch_size=500, linger_ms=0)
    sent = [it.send(b"x" * 300) for _ in range(4)]
    assert it.call(it.producer.commit_transaction, seconds=3).value is None
    assert all(outcome.value.offset == 0 for outcome in sent)
    assert it.asked()[-1] is ApiKey.END_TXN
    assert it.scripted.count(ApiKey.PRODUCE) == 4


def test_offsets_are_sent_as_the_member_of_the_group() -> None:
    it = TransactionalProducer()
    offsets = {T0: OffsetAndMetadata(5, "m", 2)}
    assert it.call(it.producer.send_offsets_to_transaction, offsets, GROUP).value is None
    it.call(it.producer.commit_transaction)
    assert it.asked()[1:] == [
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    ]
    (asked,) = it.all(ApiKey.TXN_OFFSET_COMMIT)
    request = asked.message
    assert (request.group_id, request.generation_id, request.member_id) == ("g", 3, "member")
    assert request.group_instance_id == "instance"
    (partition,) = request.topics[0].partitions
    assert (partition.committed_offset, partition.committed_leader_epoch) == (5, 2)


def test_offsets_need_the_metadata_of_the_group() -> None:
    it = TransactionalProducer()
    refused = it.call(it.producer.send_offsets_to_transaction, {T0: 5}, "g")
    assert isinstance(refused.error, TypeError)


# --- aborts


def test_an_abort_fails_what_is_not_sent_and_waits_for_what_is() -> None:
    it = TransactionalProducer(linger_ms=0, max_in_flight_requests_per_connection=1)
    go_on = it.hold(ApiKey.PRODUCE)
    in_flight = it.send(seconds=0.3)
    waiting = it.send()
    aborting = it.call(it.producer.abort_transaction)
    assert isinstance(waiting.error, TransactionAborted)
    assert not aborting.fired
    go_on()
    it.scripted.pass_time(0.2)
    assert aborting.value is None
    assert in_flight.value.offset == 0
    assert it.scripted.count(ApiKey.PRODUCE) == 1
    assert not it.all(ApiKey.END_TXN)[0].message.committed


def test_a_batch_in_flight_is_not_sent_again_after_an_abort() -> None:
    it = TransactionalProducer(linger_ms=0)
    it.hold(ApiKey.PRODUCE)
    record = it.send(seconds=0.3)
    aborting = it.call(it.producer.abort_transaction)
    it.scripted.one(ApiKey.PRODUCE).fail()
    it.scripted.pass_time(1.0)
    assert isinstance(record.error, TransactionAborted)
    assert aborting.value is None
    assert it.scripted.count(ApiKey.PRODUCE) == 1
    assert it.asked()[-2:] == [ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID]


def test_a_failed_record_fails_the_commit_and_a_new_epoch_follows_the_abort() -> None:
    it = TransactionalProducer(linger_ms=0)
    it.codes[ApiKey.PRODUCE] = [ErrorCode.INVALID_RECORD]
    failed = it.send(seconds=0.3)
    assert failed.error.code is ErrorCode.INVALID_RECORD  # type: ignore[attr-defined]
    refused = it.call(it.producer.commit_transaction)
    assert isinstance(refused.error, TransactionAborted)
    assert isinstance(it.send().error, TransactionAborted)
    assert it.call(it.producer.abort_transaction).value is None
    it.call(it.producer.begin_transaction)
    it.send()
    assert it.call(it.producer.commit_transaction).value is None
    batch = header(it.all(ApiKey.PRODUCE)[-1])
    assert (batch.producer_epoch, batch.base_sequence) == (1, 0)
    raised = it.all(ApiKey.INIT_PRODUCER_ID)[-1].message
    assert (raised.producer_id, raised.producer_epoch) == (7, 0)


def test_a_record_that_fails_during_the_commit_fails_the_commit() -> None:
    it = TransactionalProducer()
    it.codes[ApiKey.PRODUCE] = [ErrorCode.INVALID_RECORD]
    it.send()
    refused = it.call(it.producer.commit_transaction)
    assert isinstance(refused.error, TransactionAborted)
    assert it.scripted.count(ApiKey.END_TXN) == 0


def commit_after_a_failure(it: TransactionalProducer, *sends: Deferred[Any]) -> Outcome:
    """Commit as soon as one of *sends* has failed, in its callback; return the outcome of the commit."""
    committed: Deferred[None] = Deferred()
    failures: list[Failure] = []

    def failed(problem: Failure) -> None:
        failures.append(problem)
        if len(failures) == 1:
            it.producer.commit_transaction().chainDeferred(committed)

    for send in sends:
        send.addErrback(failed)
    it.scripted.pass_time(2.5)
    assert len(failures) == len(sends)
    return Outcome(committed)


def test_a_commit_in_the_callback_of_a_failed_record_is_refused() -> None:
    it = TransactionalProducer(linger_ms=0)
    it.codes[ApiKey.PRODUCE] = [ErrorCode.INVALID_RECORD]
    outcome = commit_after_a_failure(it, it.producer.send("t", b"v", partition=0))
    assert isinstance(outcome.error, TransactionAborted)
    assert it.all(ApiKey.END_TXN) == []
    assert it.call(it.producer.abort_transaction).value is None
    assert [asked.message.committed for asked in it.all(ApiKey.END_TXN)] == [False]


@pytest.mark.parametrize("count", [1, 2])
def test_a_commit_in_the_callback_of_a_record_without_a_topic_is_refused(count: int) -> None:
    it = TransactionalProducer(max_block_ms=1000)
    sends = [it.producer.send("nope", b"v") for _ in range(count)]
    assert isinstance(commit_after_a_failure(it, *sends).error, TransactionAborted)
    assert it.call(it.producer.abort_transaction).value is None
    assert it.call(it.producer.begin_transaction).value is None


def test_a_record_too_large_to_send_fails_the_transaction_and_one_not_serialized_does_not() -> None:
    it = TransactionalProducer()
    it.send(seconds=0.2)
    assert isinstance(it.send(object()).error, SerializationError)
    assert isinstance(it.send(b"x" * 2_000_000).error, MessageTooLarge)
    assert isinstance(it.call(it.producer.commit_transaction).error, TransactionAborted)


def test_a_batch_too_large_for_the_broker_is_split_within_the_transaction() -> None:
    it = TransactionalProducer()
    it.codes[ApiKey.PRODUCE] = [ErrorCode.MESSAGE_TOO_LARGE]
    sent = [it.send() for _ in range(5)]
    assert it.call(it.producer.commit_transaction).value is None
    assert all(outcome.value for outcome in sent)
    asked = it.all(ApiKey.PRODUCE)
    assert [(header(a).base_sequence, header(a).record_count) for a in asked] == [
        (0, 5),
        (0, 2),
        (2, 3),
    ]
    assert it.scripted.count(ApiKey.INIT_PRODUCER_ID) == 1


@pytest.mark.parametrize(
    ("api", "act"),
    [
        (ApiKey.ADD_PARTITIONS_TO_TXN, "send"),
        (ApiKey.END_TXN, "send"),
        (ApiKey.TXN_OFFSET_COMMIT, "offsets"),
    ],
)
def test_a_fenced_producer_fails_every_call_and_every_record(api: ApiKey, act: str) -> None:
    it = TransactionalProducer()
    it.codes[api] = [ErrorCode.INVALID_PRODUCER_EPOCH]
    if act == "send":
        it.send()
    else:
        refused = it.call(it.producer.send_offsets_to_transaction, {T0: 5}, GROUP)
        assert isinstance(refused.error, ProducerFenced)
    calls = (it.producer.commit_transaction, it.producer.abort_transaction)
    for call in (*calls, it.producer.begin_transaction):
        assert isinstance(it.call(call).error, ProducerFenced)
    assert isinstance(it.send().error, ProducerFenced)
    assert it.producer.undelivered == 0


def test_offsets_of_a_member_that_was_replaced_abort_the_transaction() -> None:
    it = TransactionalProducer()
    it.codes[ApiKey.TXN_OFFSET_COMMIT] = [ErrorCode.ILLEGAL_GENERATION]
    refused = it.call(it.producer.send_offsets_to_transaction, {T0: 5}, GROUP)
    assert isinstance(refused.error, TransactionAborted)
    assert it.call(it.producer.abort_transaction).value is None
    assert it.call(it.producer.begin_transaction).value is None


# --- coordinators and time


def test_concurrent_transactions_are_asked_again_after_20_ms() -> None:
    it = TransactionalProducer(retry_backoff_ms=1000, linger_ms=0)
    it.codes[ApiKey.ADD_PARTITIONS_TO_TXN] = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
    sent = it.send(seconds=0.4)
    assert sent.value.offset == 0
    assert it.scripted.count(ApiKey.ADD_PARTITIONS_TO_TXN) == 4


def test_a_coordinator_that_moved_is_found_again() -> None:
    it = TransactionalProducer()
    it.codes[ApiKey.ADD_PARTITIONS_TO_TXN] = [ErrorCode.NOT_COORDINATOR]
    it.scripted.coordinator = 2
    it.send()
    assert it.call(it.producer.commit_transaction, seconds=1.0).value is None
    assert [asked.node for asked in it.all(ApiKey.ADD_PARTITIONS_TO_TXN)] == [1, 2]
    assert it.all(ApiKey.END_TXN)[0].node == 2


def test_a_coordinator_that_does_not_answer_is_found_again_and_the_epoch_raised() -> None:
    it = TransactionalProducer()
    it.hold(ApiKey.END_TXN)
    it.send()
    committing = it.call(it.producer.commit_transaction)
    it.scripted.one(ApiKey.END_TXN).fail()
    it.scripted.coordinator = 2
    it.scripted.pass_time(0.5)
    it.scripted.one(ApiKey.END_TXN).answer(EndTxnResponse())
    it.scripted.pass_time(0.2)
    assert committing.value is None
    assert [asked.node for asked in it.all(ApiKey.END_TXN)] == [1, 2]
    assert it.call(it.producer.begin_transaction).value is None
    assert it.coordinator.epoch == 1


def test_a_commit_that_times_out_may_be_repeated() -> None:
    it = TransactionalProducer(max_block_ms=2000)
    go_on = it.hold(ApiKey.END_TXN)
    it.send()
    late = it.call(it.producer.commit_transaction, seconds=2.5)
    assert isinstance(late.error, KafkaTimeoutError)
    assert "commit_transaction() again" in str(late.error)
    assert isinstance(it.call(it.producer.abort_transaction).error, TransactionStateError)
    again = it.call(it.producer.commit_transaction)
    assert not again.fired
    go_on()
    it.scripted.pass_time(0.2)
    assert again.value is None
    assert it.scripted.count(ApiKey.END_TXN) == 1


@pytest.mark.parametrize(
    ("call", "api"),
    [
        ("init_transactions", ApiKey.INIT_PRODUCER_ID),
        ("commit_transaction", ApiKey.END_TXN),
        ("abort_transaction", ApiKey.END_TXN),
    ],
)
def test_a_call_that_timed_out_and_ended_meanwhile_succeeds_when_it_is_repeated(
    call: str, api: ApiKey
) -> None:
    it = TransactionalProducer(begun=api is ApiKey.END_TXN, max_block_ms=2000)
    go_on = it.hold(api)
    if api is ApiKey.END_TXN:
        it.send(seconds=0.2)
    assert isinstance(it.call(getattr(it.producer, call), seconds=2.5).error, KafkaTimeoutError)
    go_on()
    it.scripted.pass_time(0.2)
    assert it.call(getattr(it.producer, call)).value is None
    assert it.scripted.count(api) == 1
    assert isinstance(it.call(getattr(it.producer, call)).error, TransactionStateError)
    assert it.call(it.producer.begin_transaction).value is None


def test_a_commit_that_timed_out_and_failed_meanwhile_fails_when_it_is_repeated() -> None:
    it = TransactionalProducer(max_block_ms=2000, linger_ms=0)
    it.codes[ApiKey.PRODUCE] = [ErrorCode.INVALID_RECORD]
    go_on = it.hold(ApiKey.PRODUCE)
    it.send()
    late = it.call(it.producer.commit_transaction, seconds=2.5)
    assert isinstance(late.error, KafkaTimeoutError)
    go_on()
    it.scripted.pass_time(0.2)
    assert isinstance(it.call(it.producer.commit_transaction).error, TransactionAborted)
    assert it.call(it.producer.abort_transaction).value is None
    assert isinstance(it.call(it.producer.commit_transaction).error, TransactionStateError)


def test_the_outcome_of_a_commit_that_timed_out_ends_with_the_next_transaction() -> None:
    it = TransactionalProducer(max_block_ms=2000)
    go_on = it.hold(ApiKey.END_TXN)
    it.send()
    assert isinstance(it.call(it.producer.commit_transaction, seconds=2.5).error, KafkaTimeoutError)
    go_on()
    it.scripted.pass_time(0.2)
    assert it.call(it.producer.begin_transaction).value is None
    it.send()
    assert it.call(it.producer.commit_transaction).value is None
    assert it.scripted.count(ApiKey.END_TXN) == 2


def test_a_record_that_is_not_delivered_in_time_fails_the_transaction() -> None:
    it = TransactionalProducer(delivery_timeout_ms=2000, linger_ms=0)
    it.codes[ApiKey.ADD_PARTITIONS_TO_TXN] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100
    lost = it.send(seconds=2.5)
    assert isinstance(lost.error, KafkaTimeoutError)
    assert isinstance(it.call(it.producer.commit_transaction).error, TransactionAborted)


def test_init_transactions_waits_for_max_block_and_names_the_last_problem() -> None:
    it = TransactionalProducer(begun=False, max_block_ms=1000)
    it.codes[ApiKey.INIT_PRODUCER_ID] = [ErrorCode.CONCURRENT_TRANSACTIONS] * 8
    late = it.call(it.producer.init_transactions, seconds=1.5)
    assert isinstance(late.error, KafkaTimeoutError)
    assert "CONCURRENT_TRANSACTIONS" in str(late.error)
    assert it.call(it.producer.init_transactions, seconds=9).fired is True


def test_old_coordinators_get_old_versions() -> None:
    it = TransactionalProducer(begun=False)
    old = {
        ApiKey.INIT_PRODUCER_ID: 0,
        ApiKey.ADD_PARTITIONS_TO_TXN: 0,
        ApiKey.ADD_OFFSETS_TO_TXN: 0,
        ApiKey.TXN_OFFSET_COMMIT: 0,
        ApiKey.END_TXN: 0,
    }
    it.scripted.versions.update(old)
    it.call(it.producer.init_transactions)
    it.call(it.producer.begin_transaction)
    it.send()
    it.call(it.producer.send_offsets_to_transaction, {T0: 5}, GROUP)
    assert it.call(it.producer.commit_transaction).value is None
    assert all(asked.version == 0 for asked in it.scripted.requests if asked.api in old)


def test_columns_are_part_of_the_transaction_also_those_that_wait_for_memory() -> None:
    it = TransactionalProducer(buffer_memory=1200, batch_size=500, linger_ms=0)
    sent = Outcome(it.producer.send_columns("t", [b"x" * 100] * 40, partition=0))
    assert it.producer.undelivered == 40
    committed = it.call(it.producer.commit_transaction, seconds=5.0)
    assert committed.value is None
    assert sent.value.row_count == 40
    marked = [asked.api for asked in it.scripted.requests].index(ApiKey.END_TXN)
    assert ApiKey.PRODUCE not in [asked.api for asked in it.scripted.requests[marked:]]


def test_an_abort_fails_the_rows_that_wait_for_memory() -> None:
    it = TransactionalProducer(buffer_memory=1200, batch_size=500, linger_ms=0)
    sent = Outcome(it.producer.send_columns("t", [b"x" * 100] * 40, partition=0))
    assert it.call(it.producer.abort_transaction, seconds=5.0).value is None
    problem = sent.error
    assert isinstance(problem, RowsNotAcknowledged)
    assert isinstance(problem.cause, TransactionAborted)
    assert len(problem.rows) + problem.acknowledged.row_count == 40
    assert it.producer.undelivered == 0


# --- wrong use, settings, closing


def test_transactional_calls_need_a_transactional_id() -> None:
    scripted = ScriptedCluster({"t": 1})
    producer: Producer[Any, Any] = Producer(reactor=scripted.clock)
    scripted.attach(producer.cluster)
    for call in (producer.init_transactions, producer.begin_transaction):
        assert "transactional.id" in str(Outcome(call()).error)
    with pytest.raises(TransactionStateError, match=r"transactional\.id"):
        producer.transaction()


def test_wrong_use_names_the_next_step() -> None:
    it = TransactionalProducer(begun=False)
    assert "init_transactions() first" in str(it.send().error)
    it.call(it.producer.init_transactions)
    assert "begin_transaction() first" in str(it.send().error)
    assert "begin_transaction() first" in str(it.call(it.producer.commit_transaction).error)
    it.call(it.producer.begin_transaction)
    assert "commit_transaction() or" in str(it.call(it.producer.begin_transaction).error)
    refused = it.call(it.producer.send_batch_bytes, "t", 0, b"")
    assert isinstance(refused.error, TransactionStateError)
    assert it.call(it.producer.commit_transaction).value is None


@pytest.mark.parametrize("settings", [{"acks": "1"}, {"enable_idempotence": False}])
def test_transactions_imply_idempotence_and_all_acks(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id needs"):
        Producer(transactional_id="tx", reactor=object(), **settings)


def test_closing_aborts_the_open_transaction() -> None:
    it = TransactionalProducer(linger_ms=30_000)
    it.send(seconds=0.2)
    it.send()
    closed = it.call(it.producer.close, 5.0, seconds=1.0)
    assert closed.value == (0, 2)
    assert [asked.message.committed for asked in it.all(ApiKey.END_TXN)] == [False]


def test_closing_waits_for_a_commit() -> None:
    it = TransactionalProducer()
    go_on = it.hold(ApiKey.END_TXN)
    it.send()
    committing = it.call(it.producer.commit_transaction)
    closed = it.call(it.producer.close, 5.0, seconds=1.0)
    assert not closed.fired
    go_on()
    it.scripted.pass_time(0.5)
    assert committing.value is None
    assert closed.value == (1, 0)


def test_a_closed_producer_leaves_no_timer_and_no_call_waiting() -> None:
    it = TransactionalProducer()
    it.hold(ApiKey.END_TXN)
    it.send()
    committing = it.call(it.producer.commit_transaction)
    closed = it.call(it.producer.close, 1.0, seconds=2.0)
    assert closed.fired
    assert committing.fired
    left = [call for call in it.scripted.clock.getDelayedCalls() if call.getTime() < 100]
    assert left == []


# --- the block


def test_a_block_commits_at_its_end() -> None:
    it = TransactionalProducer(begun=False)

    async def work() -> None:
        await it.producer.init_transactions()
        async with it.producer.transaction():
            await it.producer.send("t", b"v", partition=0)

    from twisted.internet.defer import Deferred

    done = it.call(lambda: Deferred.fromCoroutine(work()), seconds=1.0)
    assert done.value is None
    assert [asked.message.committed for asked in it.all(ApiKey.END_TXN)] == [True]


@pytest.mark.parametrize("code", [0, ErrorCode.INVALID_RECORD])
def test_an_exception_of_a_block_aborts_and_is_raised(code: int) -> None:
    from twisted.internet.defer import Deferred

    it = TransactionalProducer(begun=False)
    it.codes[ApiKey.PRODUCE] = [code]

    async def work() -> None:
        await it.producer.init_transactions()
        async with it.producer.transaction():
            await it.producer.send("t", b"v", partition=0)
            raise ValueError("of the program")

    done = it.call(lambda: Deferred.fromCoroutine(work()), seconds=1.0)
    assert done.error.__class__.__name__ == ("InvalidRecord" if code else "ValueError")
    assert [asked.message.committed for asked in it.all(ApiKey.END_TXN)] == [False]


def test_a_commit_of_a_block_that_fails_aborts_and_is_raised() -> None:
    from twisted.internet.defer import Deferred

    it = TransactionalProducer(begun=False)
    it.codes[ApiKey.PRODUCE] = [ErrorCode.INVALID_RECORD]

    async def work() -> None:
        await it.producer.init_transactions()
        async with it.producer.transaction():
            it.producer.produce("t", b"v", partition=0)

    done = it.call(lambda: Deferred.fromCoroutine(work()), seconds=1.0)
    assert isinstance(done.error, TransactionAborted)
    assert [asked.message.committed for asked in it.all(ApiKey.END_TXN)] == [False]
    assert it.call(it.producer.begin_transaction).value is None
