"""The transaction coordinator over a simulated ZooKeeper: its requests, failovers, lost answers, markers, timeouts."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.transaction import transaction_writer
from kbroker.coordinator.transaction.core.states import ProducerIdAndEpoch, TransactionState
from kbroker.coordinator.transaction.core.transaction import Verified
from kbroker.coordinator.transaction.transaction_coordinator import COMPLETE_WAIT
from kbroker.zk import znodes
from kclient.wire.error_codes import ErrorCode
from tests.stepped.transactional_brokers import (
    CoordinatingBroker,
    LoggedMarker,
    TransactionalBrokers,
    with_limits,
)

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
ONGOING, EMPTY = TransactionState.ONGOING, TransactionState.EMPTY
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
NONE = ErrorCode.NONE


@pytest.fixture
def cluster() -> TransactionalBrokers:
    return TransactionalBrokers()


def complete(cluster: TransactionalBrokers, name: str = "x") -> None:
    """Step until the transaction is complete, and its coordinator knows it."""

    def is_complete() -> bool:
        stored = cluster.stored(name)
        return stored is not None and stored.state in (COMPLETE_COMMIT, COMPLETE_ABORT)

    cluster.run(is_complete)
    cluster.pass_time(0.1)


# --- one transaction


def test_a_transaction_is_committed_in_all_its_partitions_and_groups(
    cluster: TransactionalBrokers,
) -> None:
    broker = cluster.broker()
    producer = broker.init()
    assert producer == (0, 0)
    assert broker.add(producer, T0, T1) is NONE
    assert broker.add(producer, U0) is NONE
    assert broker.add_group(producer, "g") is NONE
    assert broker.state() is ONGOING
    assert broker.end(producer) is NONE
    complete(cluster)
    marker = LoggedMarker(producer, 1, True, 0)
    group = (OFFSETS_TOPIC, partition_for("g", 3))
    assert cluster.logs == {T0: [marker], T1: [marker], U0: [marker], group: [marker]}
    cluster.pass_time(1)
    assert broker.state() is COMPLETE_COMMIT
    assert broker.end(producer) is NONE, "repeated"
    assert broker.end(producer, commit=False) is ErrorCode.INVALID_TXN_STATE
    assert broker.add(producer, T0) is NONE
    assert broker.end(producer, commit=False) is NONE
    complete(cluster)
    assert cluster.logs[T0] == [marker, LoggedMarker(producer, 2, False, 0)]
    assert cluster.logs[T1] == [marker]


def test_the_next_transaction_waits_for_a_moment_until_the_last_one_is_complete(
    cluster: TransactionalBrokers,
) -> None:
    broker = cluster.broker()
    producer = broker.init()
    for number in range(1, 4):
        assert broker.add(producer, T0) is NONE
        assert broker.end(producer) is NONE
        assert len(cluster.logs.get(T0, [])) == number - 1, "the marker is under way"
    cluster.takes_requests = False
    began = cluster.scheduler.now
    assert broker.add(producer, T0) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.end(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert 2 * COMPLETE_WAIT <= cluster.scheduler.now - began < 3 * COMPLETE_WAIT
    fenced = ProducerIdAndEpoch(0, 7)
    began = cluster.scheduler.now
    assert broker.add(fenced, T0) is ErrorCode.PRODUCER_FENCED
    assert cluster.scheduler.now - began < COMPLETE_WAIT
    waiting = broker.begin(broker.coordinator.add_partitions("x", producer, [T0]))
    broker.coordinator.on_resignation(0)
    assert cluster.done(waiting) is ErrorCode.NOT_COORDINATOR
    assert broker.coordinator._completing == {}


def test_each_step_is_stored_before_its_response(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    stored = cluster.stored()
    assert stored is not None
    assert (stored.producer, stored.state) == (producer, EMPTY)
    cluster.takes_requests = False
    for request, state in (
        (broker.coordinator.add_partitions("x", producer, [T0]), ONGOING),
        (broker.coordinator.end("x", producer, is_commit=True), PREPARE_COMMIT),
    ):
        answers: list[Any] = []
        broker.begin(request).addCallback(
            lambda _, answers=answers: answers.append(cluster.stored())
        )
        assert answers == []
        cluster.run(lambda answers=answers: bool(answers))
        assert answers[0].state is state


def test_what_a_transaction_is_refused(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    assert broker.init("") is ErrorCode.INVALID_REQUEST
    assert broker.init("x" * 1025) is ErrorCode.INVALID_REQUEST
    for timeout_ms in (0, -1, 900_001):
        assert broker.init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    producer = broker.init()
    other = ProducerIdAndEpoch(producer.producer_id + 1, 0)
    assert broker.add(producer, T0, name="unknown") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.add(other, T0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.add(ProducerIdAndEpoch(0, 1), T0) is ErrorCode.PRODUCER_FENCED
    assert broker.add_group(producer, "") is ErrorCode.INVALID_GROUP_ID
    assert broker.end(producer) is ErrorCode.INVALID_TXN_STATE
    assert broker.state("unknown") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert set(broker.coordinator._shards.partitions[0].ids) == {"x"}, "the others are not kept"


def test_the_next_producer_fences_the_former_and_aborts_its_transaction(
    cluster: TransactionalBrokers,
) -> None:
    broker = cluster.broker()
    first = broker.init()
    broker.add(first, T0)
    assert broker.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    complete(cluster)
    assert cluster.logs[T0] == [LoggedMarker(ProducerIdAndEpoch(0, 1), 1, False, 0)]
    cluster.pass_time(1)
    assert broker.init() == (0, 2)
    assert broker.add(first, T0) is ErrorCode.PRODUCER_FENCED
    assert broker.end(first) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_continues_raises_its_epoch(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    first = broker.init()
    assert broker.init(expected=first) == (0, 1)
    assert broker.init(expected=first) == (0, 1), "the response to the first request was lost"
    assert broker.init() == (0, 2)
    assert broker.init(expected=first) is ErrorCode.PRODUCER_FENCED


def test_leaders_verify_partitions_and_groups(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    group = partition_for("g", 3)
    groups = [(OFFSETS_TOPIC, p) for p in range(3)]
    no = Verified(ErrorCode.TRANSACTION_ABORTABLE)
    assert broker.verify(producer, T0, groups[group]) == [no, no]
    broker.add(producer, T0)
    broker.add_group(producer, "g")
    yes = Verified(NONE, 1)
    assert broker.verify(producer, T0, T1) == [yes, no]
    assert broker.verify(producer, *groups) == [yes if p == group else no for p in range(3)]
    fenced = Verified(ErrorCode.PRODUCER_FENCED)
    assert broker.verify(ProducerIdAndEpoch(0, 1), T0) == [fenced]
    unknown = Verified(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert broker.verify(producer, T0, name="unknown") == [unknown]
    cluster.takes_requests = False
    broker.end(producer)
    assert broker.verify(producer, T0) == [Verified(ErrorCode.CONCURRENT_TRANSACTIONS)]


def test_a_transaction_with_too_many_partitions_is_refused(
    cluster: TransactionalBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0)
    monkeypatch.setattr(transaction_writer, "MAX_STATE_BYTES", 400)
    many = [("topic" * 10, p) for p in range(100)]
    assert broker.add(producer, *many) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert broker.end(producer) is NONE
    complete(cluster)
    assert list(cluster.logs) == [T0]


# --- failover


def test_the_next_coordinator_continues_an_open_transaction(cluster: TransactionalBrokers) -> None:
    first, second = cluster.broker(1), None
    producer = first.init()
    first.add(producer, T0)
    second = cluster.broker(2)
    assert first.add(producer, T1) is ErrorCode.NOT_COORDINATOR
    assert first.init() is ErrorCode.NOT_COORDINATOR
    assert second.add(producer, T1) is NONE
    assert second.end(producer) is NONE
    complete(cluster)
    assert cluster.outcomes(1) == {T0: {True}, T1: {True}}
    assert {m.coordinator_epoch for log in cluster.logs.values() for m in log} == {1}


def test_a_deposed_coordinator_answers_nothing_from_memory(cluster: TransactionalBrokers) -> None:
    old = cluster.broker(1)
    producer = old.init()
    old.add(producer, T0)
    new = cluster.broker(2)
    assert new.end(producer, commit=False) is NONE
    complete(cluster)
    assert old.coordinator._shards.partitions, "it does not know yet"
    assert old.add(producer, T0) is ErrorCode.NOT_COORDINATOR, "it is in its memory"


@pytest.mark.parametrize("request_name", ["verify", "state", "list", "refusal"])
def test_each_kind_of_answer_of_a_deposed_coordinator_is_confirmed(
    cluster: TransactionalBrokers, request_name: str
) -> None:
    old = cluster.broker(1)
    producer = old.init()
    old.add(producer, T0)
    cluster.elect(2)
    stale = ProducerIdAndEpoch(0, 7)
    asked = {
        "verify": lambda: old.verify(producer, T0),
        "state": old.state,
        "list": lambda: old.ask(old.coordinator.list_transactions()) or ErrorCode.NOT_COORDINATOR,
        "refusal": lambda: old.add(stale, T0),
    }
    assert asked[request_name]() is ErrorCode.NOT_COORDINATOR


def test_two_producers_at_two_coordinators_never_both_have_the_id(
    cluster: TransactionalBrokers,
) -> None:
    old = cluster.broker(1)
    first = old.init()
    new = cluster.broker(2)
    late = old.begin(old.coordinator.init_producer_id("x", 1000))
    assert new.init() == (first.producer_id, 1)
    assert cluster.done(late) is ErrorCode.NOT_COORDINATOR


def test_another_isr_does_not_end_a_coordinator(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    cluster.change_isr()
    assert broker.add(producer, T0) is NONE
    cluster.change_isr()
    assert broker.end(producer) is NONE
    complete(cluster)


def test_a_session_that_ended_is_followed_by_loading_again(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0)
    for session in list(cluster.ensemble.sessions.values()):
        cluster.ensemble.end(session)
    cluster.pass_time(5)
    assert broker.end(producer) is NONE
    complete(cluster)


def test_requests_wait_until_the_ids_are_loaded(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker(1)
    producer = broker.init()
    broker.coordinator.on_resignation(0)
    assert broker.add(producer, T0) is ErrorCode.NOT_COORDINATOR
    broker.coordinator.on_election(0, 0)
    early = broker.begin(broker.coordinator.add_partitions("x", producer, [T0]))
    assert early.result is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    listing = broker.begin(broker.coordinator.list_transactions())
    assert listing.result is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    cluster.pass_time(1)
    assert broker.add(producer, T0) is NONE


def test_each_partition_has_its_ids(cluster: TransactionalBrokers) -> None:
    two = TransactionalBrokers(coordinators=2)
    one, other = two.broker(1, 0), two.broker(2, 1)
    names = {partition_for(f"x{n}", 2): f"x{n}" for n in range(10)}
    assert one.init(names[0]) == (0, 0)
    assert other.init(names[1]) == (1000, 0)
    assert one.init(names[1]) is ErrorCode.NOT_COORDINATOR
    two.lead(one, 1)
    assert one.init(names[1]) == (1000, 1)
    listed = one.ask(one.coordinator.list_transactions())
    assert {each.name for each in listed} == set(names.values())


# --- the crash points of docs/design/transactions.md


def crash(broker: CoordinatingBroker, how: str) -> None:
    if how == "killed":
        broker.kill()
    else:
        broker.process.pause()


HOW = pytest.mark.parametrize("how", ["killed", "paused"])


@HOW
@pytest.mark.parametrize("commit", [True, False])
def test_a_crash_before_the_decision_leaves_the_transaction_open(
    cluster: TransactionalBrokers, how: str, commit: bool
) -> None:
    """Between 2 and 3, 3 and 4, 4 and 5."""
    old = cluster.broker(1)
    producer = old.init()
    old.add(producer, T0)
    old.add_group(producer, "g")
    crash(old, how)
    new = cluster.broker(2)
    assert new.state() is ONGOING
    assert cluster.logs == {}
    if commit:
        assert new.add(producer, T1) is NONE
        assert new.end(producer) is NONE
    else:
        cluster.pass_time(80)
    complete(cluster)
    old.process.resume()
    cluster.pass_time(5)
    assert {outcome for found in cluster.outcomes(1).values() for outcome in found} == {commit}
    assert len(cluster.logs) == (3 if commit else 2)


@HOW
@pytest.mark.parametrize("is_written", [True, False])
def test_a_crash_between_the_decision_and_its_response(
    cluster: TransactionalBrokers, how: str, is_written: bool
) -> None:
    old = cluster.broker(1)
    producer = old.init()
    old.add(producer, T0, T1)
    under_way = old.begin(old.coordinator.end("x", producer, is_commit=True))
    if is_written:
        cluster.run(lambda: _state(cluster) is PREPARE_COMMIT)
    else:
        cluster.elect(2)  # the write on its way is refused
    crash(old, how)
    assert not under_way.called
    new = cluster.broker(2)
    if is_written:
        complete(cluster)
        cluster.pass_time(1)
        assert new.end(producer, commit=False) is ErrorCode.INVALID_TXN_STATE
    assert new.end(producer) is NONE
    complete(cluster)
    old.process.resume()
    cluster.pass_time(40)
    assert cluster.outcomes(1) == {T0: {True}, T1: {True}}


@HOW
@pytest.mark.parametrize("sent", ["none", "some", "all"])
def test_a_crash_while_markers_are_sent(cluster: TransactionalBrokers, how: str, sent: str) -> None:
    """Between 5 and 6, in the midst of 6, and between a marker and its acknowledgement."""
    old = cluster.broker(1)
    producer = old.init()
    old.add(producer, T0, T1, U0)
    if sent == "none":
        cluster.takes_requests = False
    elif sent == "some":
        cluster.error_of = lambda key, _: (
            ErrorCode.NOT_ENOUGH_REPLICAS if key == T1 else ErrorCode.NONE
        )
    else:
        cluster.loses_responses = True
    assert old.end(producer) is NONE
    cluster.pass_time(0.5)
    assert _state(cluster) is PREPARE_COMMIT
    assert len(cluster.logs) == {"none": 0, "some": 2, "all": 3}[sent]
    crash(old, how)
    cluster.takes_requests, cluster.loses_responses = True, False
    cluster.error_of = lambda _key, _marker: ErrorCode.NONE
    new = cluster.broker(2)
    complete(cluster)
    assert new.add(producer, T0) is NONE
    old.process.resume()
    cluster.pass_time(40)
    assert cluster.outcomes(1) == {T0: {True}, T1: {True}, U0: {True}}
    for log in cluster.logs.values():
        epochs = [marker.coordinator_epoch for marker in log]
        assert epochs == sorted(epochs), "no marker of the former coordinator follows"


@HOW
def test_a_crash_between_the_last_acknowledgement_and_complete(
    cluster: TransactionalBrokers, how: str
) -> None:
    old = cluster.broker(1)
    producer = old.init()
    old.add(producer, T0)
    assert old.end(producer) is NONE
    cluster.run(lambda: bool(cluster.logs))
    crash(old, how)
    new = cluster.broker(2)
    complete(cluster)
    cluster.pass_time(1)
    assert new.end(producer) is NONE, "the same decision is answered again"
    old.process.resume()
    cluster.pass_time(40)
    assert cluster.outcomes(1) == {T0: {True}}


def _state(cluster: TransactionalBrokers) -> TransactionState | None:
    stored = cluster.stored()
    return None if stored is None else stored.state


# --- lost answers of ZooKeeper


def test_a_lost_answer_is_read_before_the_next_step(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0)
    broker.lose_next_reply()
    assert broker.end(producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert broker.coordinator._shards.partitions[0].ids["x"].machine._write is not None
    complete(cluster)
    cluster.pass_time(1)
    assert broker.end(producer) is NONE
    assert cluster.outcomes(1) == {T0: {True}}


def test_a_write_that_was_not_done_is_done_by_the_retry(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    under_way = broker.begin(broker.coordinator.add_partitions("x", producer, [T0]))
    cluster.turn()
    broker.connections[-1].broken()
    assert cluster.done(under_way) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.pass_time(1)
    assert _state(cluster) is EMPTY
    assert broker.add(producer, T0) is NONE


def test_an_unknown_new_id_is_not_kept(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    under_way = broker.begin(broker.coordinator.init_producer_id("x", 1000))
    cluster.run(lambda: "x" in broker.coordinator._shards.partitions[0].ids)
    cluster.turn()
    broker.connections[-1].broken()
    assert cluster.done(under_way) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.pass_time(1)
    assert cluster.stored() is None
    assert broker.coordinator._shards.partitions[0].ids == {}
    assert broker.init() == (1, 0)


def test_a_lost_answer_to_complete(cluster: TransactionalBrokers) -> None:
    broker = cluster.broker()
    producer = broker.init()
    broker.add(producer, T0)
    assert broker.end(producer) is NONE
    cluster.run(lambda: bool(cluster.logs))
    broker.lose_next_reply()
    complete(cluster)
    cluster.pass_time(2)
    assert broker.add(producer, T0) is NONE


# --- many writes


def test_the_writes_of_a_turn_share_a_multi_and_one_refusal_fails_only_itself(
    cluster: TransactionalBrokers,
) -> None:
    broker = cluster.broker()
    names = [f"x{n}" for n in range(50)]
    producers = {name: broker.init(name) for name in names}
    before = cluster.ensemble.zxid
    requests = [
        broker.begin(broker.coordinator.add_partitions(name, producers[name], [T0]))
        for name in names
    ]
    assert [cluster.done(each) for each in requests] == [None] * 50
    assert cluster.ensemble.zxid - before <= 2
    # An operator writes one of the znodes.
    path = znodes.transactional_id_path("x7")
    cluster.write(path, cluster.ensemble.tree[path].data)
    requests = [
        broker.begin(broker.coordinator.end(name, producers[name], is_commit=True))
        for name in names
    ]
    outcomes = [cluster.done(each) for each in requests]
    assert outcomes.count(None) == 49
    assert outcomes[7] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.pass_time(2)
    assert broker.end(producers["x7"], name="x7") is NONE
    for name in names:
        complete(cluster, name)


def test_a_request_of_one_shard_that_is_lost_does_not_fail_those_of_another() -> None:
    cluster = TransactionalBrokers(coordinators=2)
    broker = cluster.broker(1)
    names = {partition_for(f"x{n}", 2): f"x{n}" for n in range(10)}
    producers = {p: broker.init(name) for p, name in names.items()}
    cluster.elect(2, partition=0)
    requests = [
        broker.begin(broker.coordinator.add_partitions(names[p], producers[p], [T0]))
        for p in (0, 1)
    ]
    assert [cluster.done(each) for each in requests] == [ErrorCode.NOT_COORDINATOR, None]


# --- znodes that cannot be decoded


def test_a_poison_znode_is_named_and_does_not_stop_the_others(
    cluster: TransactionalBrokers,
) -> None:
    first = cluster.broker(1)
    good, bad = first.init("good"), first.init("bad")
    path = znodes.transactional_id_path("bad")
    whole = cluster.ensemble.tree[path].data
    cluster.write(path, b"{")
    broker = cluster.broker(2)
    assert broker.add(good, T0, name="good") is NONE
    assert broker.add(bad, T0, name="bad") is ErrorCode.UNKNOWN_SERVER_ERROR
    assert broker.init("bad") is ErrorCode.UNKNOWN_SERVER_ERROR
    cluster.write(path, whole)
    cluster.pass_time(11)
    assert broker.add(bad, T0, name="bad") is NONE


def test_a_znode_that_becomes_poison_is_found_by_the_next_write(
    cluster: TransactionalBrokers,
) -> None:
    broker = cluster.broker()
    producer = broker.init()
    cluster.write(znodes.transactional_id_path("x"), b"{")
    assert broker.add(producer, T0) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.pass_time(1)
    assert broker.add(producer, T0) is ErrorCode.UNKNOWN_SERVER_ERROR


# --- time


def test_a_transaction_beyond_its_timeout_is_aborted_with_a_raised_epoch(
    cluster: TransactionalBrokers,
) -> None:
    broker = cluster.broker()
    producer = broker.init(timeout_ms=30_000)
    broker.add(producer, T0)
    cluster.pass_time(25)
    assert broker.state() is ONGOING
    cluster.pass_time(20)
    assert broker.state() is COMPLETE_ABORT
    assert cluster.logs[T0] == [LoggedMarker(ProducerIdAndEpoch(0, 1), 1, False, 0)]
    assert broker.end(producer) is ErrorCode.PRODUCER_FENCED


def test_ids_that_are_not_used_expire_and_open_ones_do_not() -> None:
    cluster = TransactionalBrokers(
        limits=with_limits(id_expiration_ms=20_000, expire_interval=10.0, abort_interval=1000.0)
    )
    broker = cluster.broker()
    broker.init("idle")
    open_producer = broker.init("open")
    broker.add(open_producer, T0, name="open")
    cluster.pass_time(15)
    assert cluster.stored("idle") is not None
    cluster.pass_time(20)
    assert cluster.stored("idle") is None
    assert broker.state("idle") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert set(broker.coordinator._shards.partitions[0].ids) == {"open"}
    assert broker.state("open") is ONGOING
    assert broker.init("idle") == (2, 0)


def test_a_paused_coordinator_expires_nothing_that_another_uses() -> None:
    cluster = TransactionalBrokers(
        limits=with_limits(id_expiration_ms=20_000, expire_interval=10.0)
    )
    old = cluster.broker(1)
    old.init()
    old.process.pause()
    cluster.pass_time(30)
    new = cluster.broker(2)
    producer = new.init()
    assert producer == (0, 1)
    old.process.resume()
    cluster.pass_time(12)
    stored = cluster.stored()
    assert stored is not None
    assert stored.producer == producer
