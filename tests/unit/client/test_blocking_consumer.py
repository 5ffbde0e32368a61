"""The blocking consumer on scripted brokers: what runs in the caller's thread, and what an interrupt must not lose."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kclient
from kclient.blocking.thread import reactor_thread
from kclient.errors import ClientClosed, KafkaError, KafkaTimeoutError
from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.errors import ErrorCode, RebalanceInProgress
from kclient.wire.versions import ApiKey
from tests.kit.consumer_fixture import ConsumerFixture
from tests.kit.waiting import eventually

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class OnScriptedCluster:
    """A blocking consumer on scripted brokers, in real time."""

    def __init__(self, records: int = 3, **settings: Any) -> None:
        self.scripted = ConsumerFixture(2, **settings)
        self.scripted.scripted.clock = reactor_thread().reactor
        for n in range(2):
            self.scripted.produce(n, *[b"%d.%d" % (n, i) for i in range(records)])
        self.consumer = kclient.Consumer(
            fetch_max_wait_ms=50, **{"auto_offset_reset": "earliest", **settings}
        )
        self.scripted.scripted.attach(self.consumer._core.cluster)

    def join(self, *share: int, **callbacks: Any) -> None:
        self.scripted.share = [TopicPartition("t", n) for n in share]
        self.consumer.subscribe(["t"], **callbacks)

    def values(self, wanted: int) -> list[bytes | None]:
        """Poll until there are so many records."""
        found: list[bytes | None] = []
        give_up_at = time.monotonic() + 10
        while len(found) < wanted and time.monotonic() < give_up_at:
            for records in self.consumer.poll(timeout=0.2).values():
                found += [record.value for record in records]
        return found


@pytest.fixture
def on_scripted_cluster() -> Iterator[Callable[..., OnScriptedCluster]]:
    made: list[OnScriptedCluster] = []

    def make(**settings: Any) -> OnScriptedCluster:
        made.append(OnScriptedCluster(**settings))
        return made[-1]

    yield make
    for it in made:
        it.consumer.close(1)


def test_callbacks_run_in_the_polling_thread_and_may_commit(on_scripted_cluster: Any) -> None:
    it = on_scripted_cluster(group_id="g", heartbeat_interval_ms=20, enable_auto_commit=False)
    calls: list[Any] = []

    def on_revoke(consumer: kclient.Consumer, partitions: list[TopicPartition]) -> None:
        consumer.commit()
        calls.append((consumer, threading.get_ident(), partitions))

    it.join(0, on_revoke=on_revoke)
    assert it.values(3) == [b"0.0", b"0.1", b"0.2"]
    it.scripted.share = [T1]
    it.scripted.heartbeat_code = ErrorCode.REBALANCE_IN_PROGRESS
    assert it.values(3) == [b"1.0", b"1.1", b"1.2"]
    assert calls == [(it.consumer, threading.get_ident(), [T0])]
    assert it.scripted.commits() == [{("t", 0): 3}]


def test_poll_raises_what_a_callback_raises_and_goes_on(on_scripted_cluster: Any) -> None:
    it = on_scripted_cluster(group_id="g")

    def on_assign(consumer: Any, partitions: Any) -> None:
        raise ZeroDivisionError("of the callback")

    it.join(0, on_assign=on_assign)
    with pytest.raises(ZeroDivisionError, match="of the callback"):
        it.values(1)
    assert it.values(3) == [b"0.0", b"0.1", b"0.2"]


def test_an_interrupt_in_a_callback_ends_the_poll_and_the_next_one_goes_on(
    on_scripted_cluster: Any,
) -> None:
    it = on_scripted_cluster(group_id="g")

    def on_assign(consumer: Any, partitions: Any) -> None:
        raise KeyboardInterrupt

    it.join(0, on_assign=on_assign)
    with pytest.raises(KeyboardInterrupt):
        it.values(1)
    assert it.values(3) == [b"0.0", b"0.1", b"0.2"]


@pytest.mark.parametrize("call", ["poll", "poll_batches", "poll_arrow"])
def test_records_that_an_exception_kept_from_the_caller_are_polled_again(
    on_scripted_cluster: Any, call: str
) -> None:
    it = on_scripted_cluster(group_id="g")
    it.consumer.assign([T0])

    def interrupted(problem: Any, offsets: Any) -> None:
        raise KeyboardInterrupt

    it.consumer.commit_async({T0: 0}, interrupted)
    with pytest.raises(KeyboardInterrupt):
        [getattr(it.consumer, call)(timeout=0.1) for _ in range(100)]
    assert it.values(3) == [b"0.0", b"0.1", b"0.2"]


def test_the_callback_of_a_commit_runs_in_the_polling_thread(on_scripted_cluster: Any) -> None:
    it = on_scripted_cluster(group_id="g", enable_auto_commit=False)
    it.consumer.assign([T0])
    assert len(it.values(3)) == 3
    calls: list[Any] = []
    it.consumer.commit_async(callback=lambda *given: calls.append((threading.get_ident(), *given)))
    it.consumer.poll(timeout=0.2)
    assert calls == [(threading.get_ident(), None, {T0: OffsetAndMetadata(3, "", 0)})]


def test_close_waits_for_commits_and_calls_their_callbacks(on_scripted_cluster: Any) -> None:
    it = on_scripted_cluster(group_id="g", enable_auto_commit=False)
    it.consumer.assign([T0])
    calls: list[Any] = []
    it.scripted.refuse_commits(ErrorCode.REBALANCE_IN_PROGRESS)
    it.consumer.commit_async({T0: 1}, lambda problem, offsets: calls.append(problem))
    it.consumer.close()
    assert isinstance(calls[0], RebalanceInProgress)


@pytest.mark.parametrize("inside", [True, False], ids=["in a callback", "between polls"])
def test_unsubscribing_calls_the_listener_in_the_callers_thread(
    on_scripted_cluster: Any, inside: bool
) -> None:
    """Between polls it ran in kclient's own thread and could not commit; in a callback it waited for itself."""
    it = on_scripted_cluster(group_id="g", enable_auto_commit=False)
    threads: list[int] = []

    def on_revoke(consumer: kclient.Consumer, partitions: list[TopicPartition]) -> None:
        consumer.commit({T0: 1})
        threads.append(threading.get_ident())

    def on_assign(consumer: kclient.Consumer, partitions: list[TopicPartition]) -> None:
        if inside:
            consumer.unsubscribe()

    it.join(0, on_assign=on_assign, on_revoke=on_revoke)
    deadline = time.monotonic() + 10
    while not it.scripted.generation and time.monotonic() < deadline:
        it.consumer.poll(timeout=0.1)
    it.consumer.poll(timeout=0.1)
    if not inside:
        it.consumer.unsubscribe()
    assert threads == [threading.get_ident()]
    assert it.consumer.assignment() == set()


# --- iterations


def test_a_seek_of_one_partition_keeps_what_an_iteration_has_of_another(
    on_scripted_cluster: Any,
) -> None:
    it = on_scripted_cluster()
    it.consumer.assign([T0, T1])
    seen = []
    for record in it.consumer:
        seen.append(record.value)
        if len(seen) == 1:
            it.consumer.seek_to_beginning(record.topic_partition)
        if len(seen) == 7:
            break
    assert sorted(seen[1:]) == [b"0.0", b"0.1", b"0.2", b"1.0", b"1.1", b"1.2"]


def test_unsubscribing_in_an_iteration_commits_what_was_yielded(on_scripted_cluster: Any) -> None:
    it = on_scripted_cluster(group_id="g")
    it.join(0)
    for record in it.consumer:
        if record.offset == 1:
            break
    it.consumer.unsubscribe()
    assert it.scripted.commits()[-1] == {("t", 0): 2}


def test_a_commit_in_an_iteration_covers_what_was_yielded(on_scripted_cluster: Any) -> None:
    it = on_scripted_cluster(group_id="g", enable_auto_commit=False)
    it.consumer.assign([T0])
    for record in it.consumer:
        assert it.consumer.position(T0) == record.offset + 1
        it.consumer.commit()
        if record.offset == 2:
            break
    assert it.scripted.commits() == [{("t", 0): n} for n in (1, 2, 3)]


def test_a_poll_after_an_iteration_respects_its_bound(on_scripted_cluster: Any) -> None:
    it = on_scripted_cluster()
    it.consumer.assign([T0])
    next(iter(it.consumer))
    assert [r.value for r in it.consumer.poll(max_records=1)[T0]] == [b"0.1"]


def test_a_failure_in_an_iteration_repeats_the_record_in_hand_and_no_other(
    on_scripted_cluster: Any,
) -> None:
    it = on_scripted_cluster(group_id="g")

    def work() -> None:
        with it.consumer:
            for record in it.consumer:
                it.consumer.lag(T0)
                if record.offset == 1:
                    raise ZeroDivisionError

    it.join(0)
    with pytest.raises(ZeroDivisionError):
        work()
    assert it.scripted.commits()[-1] == {("t", 0): 1}


@pytest.mark.parametrize("call", ["poll", "poll_batches", "poll_arrow"])
def test_a_failure_after_a_poll_in_an_iteration_commits_none_of_its_records(
    on_scripted_cluster: Any, call: str
) -> None:
    it = on_scripted_cluster(group_id="g")

    def work() -> None:
        with it.consumer:
            next(iter(it.consumer))
            assert getattr(it.consumer, call)(timeout=5)
            raise ZeroDivisionError

    it.join(0)
    with pytest.raises(ZeroDivisionError):
        work()
    assert it.scripted.commits()[-1] == {("t", 0): 1}


# --- odd arguments, and the end


def test_getone_waits_for_a_record_and_not_longer_than_asked_for(on_scripted_cluster: Any) -> None:
    it = on_scripted_cluster(records=1)
    it.consumer.assign([T0, T1])
    assert it.consumer.getone(T1).value == b"1.0"
    assert it.consumer.getone(timeout=1e12).value == b"0.0"
    with pytest.raises(KafkaTimeoutError, match=r"no record arrived within 0\.2 s"):
        it.consumer.getone(timeout=0.2)


@pytest.mark.parametrize("timeout", [-1, None, math.inf, 1e12])
def test_consume_waits_without_limit(on_scripted_cluster: Any, timeout: float | None) -> None:
    it = on_scripted_cluster()
    it.consumer.assign([T0])
    assert [r.value for r in it.consumer.consume(2, timeout)] == [b"0.0", b"0.1"]


def test_a_closed_consumer_may_be_closed_again_and_refuses_the_rest(
    on_scripted_cluster: Any,
) -> None:
    it = on_scripted_cluster(group_id="g")
    it.consumer.assign([T0])
    it.consumer.close()
    it.consumer.close()
    for call in (
        lambda: it.consumer.__enter__(),
        lambda: it.consumer.poll(timeout=1),
        lambda: it.consumer.getone(),
        lambda: it.consumer.subscribe(["t"]),
        lambda: it.consumer.assign([T0]),
        lambda: it.consumer.end_offsets([T0]),
        lambda: it.consumer.partitions_for_topic("t"),
    ):
        with pytest.raises(ClientClosed):
            call()
    assert list(it.consumer) == []
    assert it.consumer.assignment() == set()
    assert it.consumer.metrics()["assigned_partitions"] == 0


def test_closing_in_another_thread_ends_a_poll(on_scripted_cluster: Any) -> None:
    it = on_scripted_cluster()
    it.consumer.assign([])
    ended: list[Any] = []
    polling = threading.Thread(target=lambda: ended.append(it.consumer.poll(timeout=math.inf)))
    polling.start()
    while not it.consumer._core.polling._running:
        time.sleep(0.001)
    with pytest.raises(KafkaError, match="one at a time"):
        it.consumer.poll()
    it.consumer.close()
    polling.join(5)
    assert ended == [{}]


def test_a_consumer_that_is_dropped_leaves_its_group() -> None:
    """In a notebook, a cell that is executed again drops one: it kept its partitions for five minutes."""
    it = OnScriptedCluster(group_id="g")
    it.join(0, on_assign=lambda consumer, partitions: None, on_revoke=lambda *_: None)
    assert it.values(3)
    del it.consumer
    gc.collect()
    asked = it.scripted.scripted.requests
    eventually("LeaveGroup", lambda: any(a.api is ApiKey.LEAVE_GROUP for a in asked), 5)
    assert {("t", 0): 3} not in it.scripted.commits(), "the last records may not be processed"
