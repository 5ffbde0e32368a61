"""What users of confluent-kafka, kafka-python and aiokafka expect of a consumer, on scripted brokers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from kclient.consumer.client import Consumer, RebalanceListener
from kclient.errors import ClientClosed, IllegalStateError, KafkaError
from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.errors import ErrorCode, RebalanceInProgress
from kclient.wire.versions import ApiKey
from tests.kit.consumer_fixture import ConsumerFixture
from tests.kit.scripted_cluster import HELD, now

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MEMBER = {
    "group_id": "g",
    "heartbeat_interval_ms": 1000,
    "session_timeout_ms": 10_000,
    "partition_assignment_strategy": "range",
}


def filled(*partitions: int, records: int = 3, **settings: Any) -> ConsumerFixture:
    """A consumer with assigned partitions, with fetched records."""
    it = ConsumerFixture(2, **settings)
    for n in range(2):
        it.produce(n, *[b"%d.%d" % (n, i) for i in range(records)])
    it.assign(*partitions)
    waiting = it.consumer.getmany(timeout=0)
    it.scripted.turn()
    assert now(waiting) == {}
    it.scripted.pass_time(0.2)
    return it


def member(**settings: Any) -> ConsumerFixture:
    """A member of a group, without partitions by now."""
    it = ConsumerFixture(2, **{**MEMBER, **settings})
    for n in range(2):
        it.produce(n, *[b"%d.%d" % (n, i) for i in range(3)])
    it.share = [T0]
    return it


def join(it: ConsumerFixture) -> None:
    it.poll()
    it.scripted.pass_time(0.3)
    it.poll()
    it.scripted.pass_time(0.3)


# --- getone, getmany


def test_getone_returns_one_record_after_another() -> None:
    it = filled(0)
    assert [it.run(it.consumer.getone()).value for _ in range(3)] == [b"0.0", b"0.1", b"0.2"]
    waiting = it.consumer.getone()
    it.scripted.pass_time(30)
    assert not waiting.called
    it.produce(0, b"late")
    it.release()
    it.scripted.turn()
    assert now(waiting).value == b"late"


def test_getone_and_getmany_of_some_partitions_leave_the_others_alone() -> None:
    it = filled(0, 1)
    first = it.run(it.consumer.getone())
    other = T1 if first.partition == 0 else T0
    assert it.run(it.consumer.getone(other)).offset == 0
    assert it.run(it.consumer.getone(other)).offset == 1
    assert [r.offset for r in it.run(it.consumer.getmany(other))[other]] == [2]
    assert it.run(it.consumer.getone()).offset == 1
    assert it.consumer.next_offset(other) == 3
    rest = it.run(it.consumer.getmany(timeout_ms=100))
    assert [(tp, r.offset) for tp in rest for r in rest[tp]] == [(first.topic_partition, 2)]


def test_a_cancelled_getone_takes_no_record() -> None:
    it = filled(0, records=1)
    assert it.run(it.consumer.getone()).offset == 0
    waiting: Deferred[Any] = it.consumer.getone()
    waiting.addErrback(lambda failure: failure.trap(CancelledError))
    it.scripted.turn()
    waiting.cancel()
    it.produce(0, b"next")
    it.release()
    it.scripted.turn()
    assert it.run(it.consumer.getone()).value == b"next"


def test_what_is_ready_is_not_taken_before_the_caller_takes_it() -> None:
    """A task of asyncio may be cancelled between the end of its wait and its next turn."""
    it = filled(0)
    it.run(it.consumer.polling.until_ready(1.0))
    assert it.consumer.next_offset(T0) == 0
    assert [r.offset for r in it.consumer.polling.take(2)[T0]] == [0, 1]


@pytest.mark.parametrize("call", ["getone", "getmany"])
def test_a_partition_that_is_not_assigned_is_refused(call: str) -> None:
    it = filled(0)
    with pytest.raises(KafkaError, match="t-1 is not assigned"):
        it.run(getattr(it.consumer, call)(T1))


def test_getone_of_a_partition_that_is_revoked_meanwhile_ends() -> None:
    it = filled(0, records=1)
    it.poll()
    waiting = it.consumer.getone(T0)
    it.scripted.pass_time(0.5)
    it.consumer.assign([T1])
    it.scripted.pass_time(1.0)
    with pytest.raises(IllegalStateError, match="t-0 is not assigned"):
        now(waiting)


@pytest.mark.parametrize(
    "given", [{"max_records": 0}, {"timeout": -1}, {"timeout_ms": -5}, {"timeout": math.nan}]
)
def test_bounds_that_cannot_be_meant_are_refused(given: dict[str, float]) -> None:
    it = filled(0)
    with pytest.raises(ValueError, match=r"max_records is 0|is negative"):
        it.run(it.consumer.poll(**given))  # type: ignore[arg-type]


def test_a_poll_waits_without_limit() -> None:
    it = filled(0, records=1)
    it.poll()
    waiting = it.consumer.poll(timeout=math.inf)
    it.scripted.pass_time(100)
    it.produce(0, b"next")
    it.release()
    it.scripted.turn()
    assert now(waiting)[T0][0].value == b"next"


def test_a_closed_consumer_ends_a_getone() -> None:
    it = filled()
    waiting = it.consumer.getone()
    it.scripted.turn()
    it.run(it.consumer.close())
    with pytest.raises(ClientClosed):
        now(waiting)
    with pytest.raises(ClientClosed):
        it.run(it.consumer.getone())


# --- an iteration and other calls


def test_a_poll_after_an_iteration_returns_what_was_not_yielded() -> None:
    it = filled(0)
    it.run(it.consumer.getone())
    assert it.poll(most=1) == {0: [b"0.1"]}
    assert it.poll() == {0: [b"0.2"]}
    assert it.consumer.next_offset(T0) == 3


def test_a_seek_drops_what_an_iteration_has_not_yielded() -> None:
    it = filled(0)
    it.run(it.consumer.getone())
    it.consumer.seek(T0, 0)
    assert it.records() == {0: [b"0.0", b"0.1", b"0.2"]}


def test_an_automatic_commit_between_getones_covers_what_was_yielded_only() -> None:
    it = filled(0, 1, group_id="g", auto_commit_interval_ms=1)
    first = it.run(it.consumer.getone())
    it.scripted.pass_time(0.1)
    other = T1 if first.partition == 0 else T0
    it.run(it.consumer.getone(other))
    it.scripted.pass_time(0.1)
    assert it.commits()[-1] == {tuple(first.topic_partition): 1}


def test_seek_to_committed_leaves_what_has_no_commit() -> None:
    it = filled(0, 1, group_id="g")
    it.committed[T0] = 1
    it.poll()
    assert it.run(it.consumer.seek_to_committed()) == {T0: 1, T1: None}
    assert it.records() == {0: [b"0.1", b"0.2"]}


# --- on_assign, on_revoke, on_lost


def test_functions_are_called_with_the_consumer_and_the_partitions() -> None:
    it = member()
    calls: list[Any] = []
    it.consumer.subscribe(
        ["t"],
        on_assign=lambda consumer, tps: calls.append(("assign", consumer is it.consumer, tps)),
        on_revoke=lambda consumer, tps: calls.append(("revoke", consumer is it.consumer, tps)),
    )
    join(it)
    it.rebalance(1)
    it.poll()
    assert calls[:2] == [("assign", True, [T0]), ("revoke", True, [T0])]
    it.heartbeat_code = ErrorCode.UNKNOWN_MEMBER_ID
    it.scripted.pass_time(1.3)
    it.poll()
    # Without on_lost, on_revoke is called, as in confluent-kafka.
    assert [what for what, _, _ in calls] == ["assign", "revoke", "assign", "revoke", "assign"]


def test_on_lost_is_called_in_place_of_on_revoke() -> None:
    it = member()
    calls: list[str] = []
    it.consumer.subscribe(
        ["t"],
        on_revoke=lambda _, tps: calls.append("revoke"),
        on_lost=lambda _, tps: calls.append("lost"),
    )
    join(it)
    it.heartbeat_code = ErrorCode.UNKNOWN_MEMBER_ID
    it.scripted.pass_time(1.3)
    it.poll()
    assert calls == ["lost"]


def test_a_listener_of_another_library_has_no_on_partitions_lost() -> None:
    calls = []

    class Foreign:
        def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
            calls.append("assigned")

        def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
            calls.append("revoked")

    it = member()
    it.consumer.subscribe(["t"], listener=Foreign())  # type: ignore[arg-type]
    join(it)
    it.heartbeat_code = ErrorCode.UNKNOWN_MEMBER_ID
    it.scripted.pass_time(1.3)
    it.poll()
    assert calls == ["assigned", "revoked", "assigned"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"listener": RebalanceListener(), "on_assign": print}, "either a listener or on_assign"),
        ({"on_revoke": 5}, "5 is no function"),
        ({"listener": RebalanceListener}, "no object with methods"),
        ({"listener": print}, "no object with methods"),
    ],
)
def test_callbacks_that_cannot_be_right_are_refused(given: dict[str, Any], why: str) -> None:
    it = member()
    with pytest.raises(TypeError, match=why):
        it.consumer.subscribe(["t"], **given)


def test_a_cancelled_poll_does_not_cancel_the_listener_and_the_next_one_waits_for_it() -> None:
    it = member()
    ends: Deferred[None] = Deferred()
    events: list[str] = []

    async def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        events.append("begins")
        await ends
        events.append("ends")
        raise ZeroDivisionError("of the listener")

    it.consumer.subscribe(["t"], on_assign=on_assign)
    it.poll()
    it.scripted.pass_time(0.3)
    waiting = it.consumer.poll(timeout=5)
    waiting.addErrback(lambda failure: failure.trap(CancelledError))
    it.scripted.turn()
    waiting.cancel()
    assert events == ["begins"]
    waiting = it.consumer.poll(timeout=1)
    it.scripted.pass_time(2)
    assert not waiting.called
    ends.callback(None)
    it.scripted.turn()
    with pytest.raises(ZeroDivisionError):
        now(waiting)
    assert events == ["begins", "ends"]
    assert it.records() == {0: [b"0.0", b"0.1", b"0.2"]}


def test_a_problem_of_a_listener_of_a_cancelled_poll_is_raised_by_the_next_one() -> None:
    it = member()
    ends: Deferred[None] = Deferred()
    it.consumer.subscribe(["t"], on_assign=lambda consumer, partitions: ends)
    it.poll()
    it.scripted.pass_time(0.3)
    waiting = it.consumer.poll(timeout=5)
    waiting.addErrback(lambda failure: failure.trap(CancelledError))
    it.scripted.turn()
    waiting.cancel()
    ends.errback(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        it.poll()
    assert it.records() == {0: [b"0.0", b"0.1", b"0.2"]}


def test_closing_waits_for_the_listener_of_a_cancelled_poll() -> None:
    it = member()
    ends: Deferred[None] = Deferred()
    events: list[str] = []

    async def on_revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        events.append("begins")
        await ends
        events.append("ends")

    it.consumer.subscribe(["t"], on_revoke=on_revoke)
    join(it)
    it.rebalance(1)
    waiting = it.consumer.poll(timeout=5)
    waiting.addErrback(lambda failure: failure.trap(CancelledError))
    it.scripted.turn()
    waiting.cancel()
    closing = it.consumer.close()
    it.scripted.turn()
    assert not closing.called
    ends.callback(None)
    it.scripted.turn()
    assert closing.called
    assert events == ["begins", "ends"], "once, although the consumer was closed meanwhile"


@pytest.mark.parametrize("timeout", [2.0, 0.0])
def test_closing_takes_no_longer_than_its_timeout_though_the_coordinator_is_silent(
    timeout: float,
) -> None:
    it = member()
    it.consumer.subscribe(["t"])
    join(it)
    assert it.poll() or it.poll()
    for api in (ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP):
        it.scripted.answers[api] = lambda _: HELD
    began = it.now
    closing = it.consumer.close(timeout)
    while not closing.called:
        it.scripted.pass_time(0.1)
        assert it.now - began <= timeout + 0.2
    assert any(asked.api is ApiKey.LEAVE_GROUP for asked in it.scripted.requests)


# --- store_offsets


def stored(**settings: Any) -> ConsumerFixture:
    return filled(0, 1, group_id="g", enable_auto_offset_store=False, **settings)


def test_automatic_commits_commit_what_is_stored_and_nothing_else() -> None:
    it = stored(auto_commit_interval_ms=1)
    record = it.run(it.consumer.getone())
    it.scripted.pass_time(0.1)
    it.poll()
    it.scripted.pass_time(0.1)
    assert it.commits() == []
    it.consumer.store_offsets(record)
    it.poll()
    it.scripted.pass_time(0.1)
    assert it.commits() == [{tuple(record.topic_partition): record.offset + 1}]


@pytest.mark.parametrize("how", ["commit", "close", "commit_async"])
def test_every_commit_without_offsets_commits_what_is_stored(how: str) -> None:
    it = stored()
    it.poll()
    it.consumer.store_offsets({T0: 2, T1: OffsetAndMetadata(1, "by me")})
    it.run(getattr(it.consumer, how)())
    assert it.commits() == [{("t", 0): 2, ("t", 1): 1}]


def test_nothing_is_committed_if_nothing_is_stored() -> None:
    it = stored()
    it.poll()
    it.run(it.consumer.commit())
    it.run(it.consumer.close())
    assert it.commits() == []


def test_offsets_are_not_stored_for_partitions_of_others_or_beside_automatic_stores() -> None:
    it = stored()
    with pytest.raises(KafkaError, match="t-7 is not assigned"):
        it.consumer.store_offsets({T0: 1, TopicPartition("t", 7): 1})
    it.run(it.consumer.close())
    assert it.commits() == []
    with pytest.raises(KafkaError, match=r"enable\.auto\.offset\.store=false"):
        filled(0, group_id="g").consumer.store_offsets({T0: 1})


# --- commit_async, metrics


def test_the_callback_of_a_commit_gets_the_error_or_none_and_the_offsets() -> None:
    it = filled(0, group_id="g")
    it.poll()
    outcomes: list[Any] = []
    it.run(it.consumer.commit_async(callback=lambda *outcome: outcomes.append(outcome)))
    it.refuse_commits(ErrorCode.REBALANCE_IN_PROGRESS)
    failed = it.consumer.commit_async({T0: 1}, lambda *outcome: outcomes.append(outcome))
    it.scripted.pass_time(1)
    with pytest.raises(RebalanceInProgress):
        now(failed)
    assert outcomes[0] == (None, {T0: OffsetAndMetadata(3, "", 0)})
    assert isinstance(outcomes[1][0], RebalanceInProgress)
    assert outcomes[1][1] == {T0: OffsetAndMetadata(1)}


def test_metrics_count_records_commits_and_lag() -> None:
    it = filled(0, group_id="g")
    assert it.consumer.metrics()["records_consumed"] == 0
    it.poll(most=2)
    it.run(it.consumer.commit())
    found = it.consumer.metrics()
    assert found["records_consumed"] == 2
    assert found["records_lag_max"] == 1
    assert found["commits"] == 1
    assert found["assigned_partitions"] == 1
    assert found["bytes_fetched"] > 0
    assert found["requests"] > 0
