"""The asyncio clients on scripted brokers: cancelled tasks lose no record, and loops may follow one another."""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

import kclient
from kclient import aio, tx
from kclient.aio import event_loop
from kclient.errors import ClientClosed, IllegalStateError, KafkaError, MessageTooLarge
from kclient.types import OffsetAndMetadata, RecordMetadata, TopicPartition
from kclient.wire.batches import parse
from kclient.wire.errors import ErrorCode, RebalanceInProgress
from kclient.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from kclient.wire.versions import ApiKey
from tests.kit.consumer_fixture import ConsumerFixture
from tests.kit.scripted_cluster import ScriptedCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class OnScriptedCluster:
    """An asyncio consumer on scripted brokers, in real time."""

    def __init__(self, records: int = 3, **settings: Any) -> None:
        self.scripted = ConsumerFixture(2, **settings)
        self.consumer = aio.Consumer(
            fetch_max_wait_ms=50, **{"auto_offset_reset": "earliest", **settings}
        )
        self.scripted.scripted.clock = self.consumer._core.cluster.reactor
        for n in range(2 if records else 0):
            self.scripted.produce(n, *[b"%d.%d" % (n, i) for i in range(records)])
        self.scripted.scripted.attach(self.consumer._core.cluster)

    async def values(self, wanted: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        give_up_at = time.monotonic() + 10
        while len(found) < wanted and time.monotonic() < give_up_at:
            for records in (await self.consumer.getmany(timeout=0.2)).values():
                found += [record.value for record in records]
        return found


def on_scripted_cluster(
    test: Callable[[OnScriptedCluster], Awaitable[None]], **settings: Any
) -> None:
    """Run *test* with a consumer on scripted brokers, on a loop of its own."""

    async def main() -> None:
        it = OnScriptedCluster(**settings)
        await test(it)
        await it.consumer.close()

    asyncio.run(main())


# --- records


def test_records_come_by_getone_getmany_and_iteration() -> None:
    async def test(it: OnScriptedCluster) -> None:
        it.consumer.assign([T0, T1])
        assert (await it.consumer.getone(T1)).value == b"1.0"
        assert (await it.consumer.getone()).value == b"0.0"
        assert [r.value for r in (await it.consumer.getmany(T1, max_records=1))[T1]] == [b"1.1"]
        seen = []
        async for record in it.consumer:
            seen.append(record.value)
            if len(seen) == 3:
                break
        assert sorted(seen) == [b"0.1", b"0.2", b"1.2"]
        assert await it.consumer.getmany(timeout_ms=50) == {}

    on_scripted_cluster(test)


def test_no_record_is_lost_however_often_getone_is_cancelled() -> None:
    """A task may be cancelled when the record is there already, but before the task has run again."""

    async def test(it: OnScriptedCluster) -> None:
        it.consumer.assign([T0])
        found: list[int] = []
        cancelled = 0
        produced = 0
        give_up_at = time.monotonic() + 20
        while len(found) < 300:
            assert time.monotonic() < give_up_at
            if produced <= len(found):
                it.scripted.produce(0, b"x")
                produced += 1
                it.scripted.scripted.clock.callLater(0, it.scripted.release)
            task = asyncio.ensure_future(it.consumer.getone())
            for _ in range((cancelled + produced) % 9):
                await asyncio.sleep(0)
            task.cancel()
            try:
                found.append((await task).offset)
            except asyncio.CancelledError:
                cancelled += 1
        assert found == list(range(300))
        assert cancelled > 10

    on_scripted_cluster(test, records=0)


@pytest.mark.parametrize("call", ["getone", "getmany", "poll_batches", "poll_arrow"])
def test_a_task_that_is_cancelled_when_its_wait_has_ended_takes_no_record(call: str) -> None:
    async def test(it: OnScriptedCluster) -> None:
        it.consumer.assign([T0])
        core = it.consumer._core
        arguments: dict[str, Any] = {} if call == "getone" else {"timeout": 10}
        task = asyncio.ensure_future(getattr(it.consumer, call)(**arguments))
        while not any(core._partitions.ready()):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await it.values(3) == [b"0.0", b"0.1", b"0.2"]

    on_scripted_cluster(test)


def test_several_tasks_take_turns_and_each_record_has_one() -> None:
    async def test(it: OnScriptedCluster) -> None:
        it.consumer.assign([T0, T1])
        found: list[Any] = []

        async def work(number: int) -> None:
            while len(found) < 40:
                if number:
                    found.append((await it.consumer.getone()).value)
                else:
                    for records in (await it.consumer.getmany(timeout=0.1, max_records=1)).values():
                        found.extend(r.value for r in records)
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(work(n)) for n in range(4)]
        while len(found) < 40:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert Counter(found) == Counter(b"%d.%d" % (p, n) for p in (0, 1) for n in range(20))

    on_scripted_cluster(test, records=20)


def test_closing_ends_what_waits() -> None:
    async def test(it: OnScriptedCluster) -> None:
        it.consumer.assign([T0])

        async def iterate() -> int:
            return len([record async for record in it.consumer])

        async def get() -> Any:
            return await it.consumer.getone()

        tasks = [asyncio.ensure_future(each) for each in (iterate(), get())]
        await asyncio.sleep(0.1)
        await it.consumer.close()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert ended[0] == 0
        assert isinstance(ended[1], ClientClosed)
        await it.consumer.stop()
        with pytest.raises(ClientClosed):
            await it.consumer.getmany(timeout=1)
        with pytest.raises(ClientClosed):
            await it.consumer.start()

    on_scripted_cluster(test, records=0)


def test_odd_bounds() -> None:
    async def test(it: OnScriptedCluster) -> None:
        it.consumer.assign([T0])
        assert (await it.consumer.consume(2, math.inf))[1].value == b"0.1"
        assert (await it.consumer.consume(1, -1))[0].value == b"0.2"
        with pytest.raises(ValueError, match="max_records is 0"):
            await it.consumer.getmany(max_records=0)
        with pytest.raises(TypeError, match="name the unit"):
            await it.consumer.poll(1.0)  # type: ignore[arg-type]
        with pytest.raises(KafkaError, match="t-1 is not assigned"):
            await it.consumer.getone(T1)

    on_scripted_cluster(test)


# --- groups


def test_callbacks_may_be_coroutines_of_asyncio_and_commit() -> None:
    calls: list[Any] = []

    async def test(it: OnScriptedCluster) -> None:
        async def on_revoke(consumer: aio.Consumer, partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0.01)
            await consumer.commit()
            calls.append((consumer is it.consumer, partitions))

        it.scripted.share = [T0]
        it.consumer.subscribe(["t"], on_revoke=on_revoke, on_assign=lambda *_: None)
        assert await it.values(3) == [b"0.0", b"0.1", b"0.2"]
        it.scripted.share = [T1]
        it.scripted.heartbeat_code = ErrorCode.REBALANCE_IN_PROGRESS
        assert await it.values(3) == [b"1.0", b"1.1", b"1.2"]
        assert calls == [(True, [T0])]
        assert it.scripted.commits() == [{("t", 0): 3}]

    on_scripted_cluster(test, group_id="g", heartbeat_interval_ms=20, enable_auto_commit=False)


def test_a_timeout_of_getone_does_not_cancel_a_callback() -> None:
    events: list[str] = []

    async def test(it: OnScriptedCluster) -> None:
        async def on_assign(consumer: aio.Consumer, partitions: list[TopicPartition]) -> None:
            events.append("begins")
            await asyncio.sleep(0.3)
            events.append("ends")

        it.scripted.share = [T0]
        it.consumer.subscribe(["t"], on_assign=on_assign)
        while not events:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(it.consumer.getone(), 0.1)
        assert events == ["begins"]
        assert (await it.consumer.getone()).value == b"0.0"
        assert events == ["begins", "ends"]

    on_scripted_cluster(test, group_id="g")


@pytest.mark.parametrize("call", ["getone", "getmany"])
def test_a_callback_that_asks_for_records_is_refused(call: str) -> None:
    """They come when it has ended: it waited for itself."""
    problems: list[Any] = []

    async def test(it: OnScriptedCluster) -> None:
        async def on_assign(consumer: aio.Consumer, partitions: list[TopicPartition]) -> None:
            arguments: dict[str, Any] = {} if call == "getone" else {"timeout": 10}
            with pytest.raises(IllegalStateError, match="in a rebalance callback") as caught:
                await getattr(consumer, call)(**arguments)
            problems.append(caught.value)
            workers.append(asyncio.ensure_future(consumer.getone(*partitions)))

        workers: list[Any] = []
        it.scripted.share = [T0]
        it.consumer.subscribe(["t"], on_assign=on_assign)
        first = await asyncio.wait_for(it.consumer.getone(), 10)
        second = await asyncio.wait_for(workers[0], 10)
        assert {first.value, second.value} == {b"0.0", b"0.1"}, "tasks that it starts may ask"
        assert problems

    on_scripted_cluster(test, group_id="g")


def test_a_commit_without_waiting_has_a_callback() -> None:
    async def test(it: OnScriptedCluster) -> None:
        it.consumer.assign([T0])
        await it.values(3)
        outcomes: list[Any] = []
        it.consumer.commit_async(callback=lambda *outcome: outcomes.append(outcome))
        await it.consumer.commit({T0: 1})
        assert outcomes == [(None, {T0: OffsetAndMetadata(3, "", 0)})]
        it.scripted.refuse_commits(ErrorCode.REBALANCE_IN_PROGRESS)
        it.consumer.commit_async({T0: 2}, lambda problem, offsets: outcomes.append(problem))
        with pytest.raises(RebalanceInProgress):
            await it.consumer.commit({T0: 1})
        assert isinstance(outcomes[1], RebalanceInProgress)

    on_scripted_cluster(test, group_id="g", enable_auto_commit=False)


# --- loops


def test_one_loop_after_the_other_and_two_at_a_time() -> None:
    async def main() -> list[bytes | None]:
        it = OnScriptedCluster()
        it.consumer.assign([T0])
        found = await it.values(3)
        await it.consumer.close()
        return found

    results: list[Any] = [asyncio.run(main()) for _ in range(3)]
    threads = [threading.Thread(target=lambda: results.append(asyncio.run(main()))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [[b"0.0", b"0.1", b"0.2"]] * 5
    assert event_loop._reactors == []


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.long
def test_a_loop_leaves_no_file_descriptors_behind(closes: bool) -> None:
    async def main() -> None:
        it = OnScriptedCluster()
        if closes:
            await it.consumer.close()

    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    for _ in range(2):
        asyncio.run(main())
    before = descriptors()
    for _ in range(5):
        asyncio.run(main())
    assert descriptors() <= before
    assert len(event_loop._reactors) == (0 if closes else 1)


def test_a_client_is_of_one_loop_only() -> None:
    async def make() -> aio.Consumer:
        return OnScriptedCluster().consumer

    consumer = asyncio.run(make())

    async def use() -> None:
        with pytest.raises(RuntimeError, match="this Consumer belongs to another event loop"):
            await consumer.getmany(timeout=1)
        with pytest.raises(RuntimeError, match="another event loop"):
            await consumer.close()

    asyncio.run(use())


OUTSIDE = """
import asyncio, sys
from kclient import aio
for kind in (aio.Producer, aio.Consumer, aio.AdminClient):
    try:
        kind({"bootstrap.servers": "a:1"})
    except RuntimeError as problem:
        print(problem)

async def main():
    aio.Producer({"bootstrap.servers": "a:1"})

asyncio.run(main())
assert "twisted.internet.reactor" not in sys.modules
"""


@pytest.mark.long
def test_a_client_is_created_in_a_coroutine_and_installs_no_global_reactor() -> None:
    """Outside of pytest, with a plugin that runs Twisted's reactor."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", OUTSIDE], capture_output=True, text=True, check=False
    )
    lines = [
        f"no event loop is running: create the {kind} inside of a coroutine"
        for kind in ("Producer", "Consumer", "AdminClient")
    ]
    assert (ran.stdout.splitlines(), ran.stderr) == (lines, "")


# --- the producer


def produced(
    test: Callable[[aio.Producer[Any, Any], ScriptedCluster], Coroutine[Any, Any, None]],
) -> None:
    async def main() -> None:
        producer: aio.Producer[Any, Any] = aio.Producer(linger_ms=0, enable_idempotence=False)
        scripted = ScriptedCluster({"t": 1})
        scripted.clock = producer._core.cluster.reactor
        end = 0

        def append(request: ProduceRequest) -> ProduceResponse:
            nonlocal end
            base = end
            for topic in request.topics:
                end += sum(parse(p.records).record_count for p in topic.partitions)
            return ProduceResponse(
                [ProduceTopicResponse("t", [ProducePartitionResponse(0, base_offset=base)])]
            )

        scripted.answers[ApiKey.PRODUCE] = append
        scripted.attach(producer._core.cluster)
        await test(producer, scripted)
        await producer.stop()

    asyncio.run(main())


def test_a_send_is_a_future() -> None:
    async def test(producer: aio.Producer[Any, Any], scripted: ScriptedCluster) -> None:
        sent = producer.send("t", "value", b"key")
        assert isinstance(sent, asyncio.Future)
        assert (await sent).offset == 0
        futures = [producer.send("t", str(n)) for n in range(10)]
        assert [m.offset for m in await asyncio.gather(*futures)] == list(range(1, 11))
        assert (await producer.send_and_wait("t")).offset == 11
        assert await producer.flush() == producer.undelivered == 0
        assert producer.metrics()["records_delivered"] == 12

    produced(test)


def test_a_cancelled_send_is_sent_all_the_same() -> None:
    async def test(producer: aio.Producer[Any, Any], scripted: ScriptedCluster) -> None:
        sent = producer.send("t", "value")
        sent.cancel()
        assert (await producer.send("t", "value")).offset == 1
        with pytest.raises(asyncio.CancelledError):
            await sent

    produced(test)


def test_the_error_of_a_record_is_that_of_its_future() -> None:
    async def test(producer: aio.Producer[Any, Any], scripted: ScriptedCluster) -> None:
        with pytest.raises(MessageTooLarge):
            await producer.send("t", b"x" * 2_000_000)
        outcomes: list[Any] = []
        producer.produce("t", b"x" * 2_000_000, on_delivery=lambda *given: outcomes.append(given))
        await producer.produce("t", b"x", on_delivery=lambda *given: outcomes.append(given))
        await asyncio.sleep(0)
        assert isinstance(outcomes[0][0], MessageTooLarge)
        assert outcomes[1][0] is None
        assert isinstance(outcomes[1][1], RecordMetadata)

    produced(test)


# --- the same methods everywhere


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "AdminClient"])
@pytest.mark.parametrize("api", [kclient, aio], ids=["blocking", "asyncio"])
def test_every_method_of_the_twisted_api_is_there_with_the_same_parameters(
    api: Any, kind: str
) -> None:
    core, face = getattr(tx, kind), getattr(api, kind)
    inside = {"put", "exhausted", "record_failed", "send_to", "assigned_of"}
    inside |= {"columns", "send_columns_to"}
    if api is kclient:
        inside |= {"ready", "next_offset"}  # send blocks; position looks up
    for name, method in inspect.getmembers(core, inspect.isfunction):
        if name.startswith("_") or name in inside:
            continue
        ours = inspect.signature(getattr(face, name)).parameters
        assert set(inspect.signature(method).parameters) - {"failed"} <= set(ours), name
        assert getattr(face, name).__doc__, name
