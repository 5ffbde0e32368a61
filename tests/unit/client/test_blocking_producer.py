"""The blocking producer on scripted brokers: in a child of a fork, and in a callback of a delivery."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from threading import Thread
from typing import Any

import pytest

from kclient.blocking import Producer, futures
from kclient.blocking.thread import reactor_thread
from kclient.errors import ClientClosed, KafkaError
from tests.kit.scripted_cluster import ScriptedCluster


class OnScriptedCluster:
    """A blocking producer that knows topic "t"; nothing is acknowledged."""

    def __init__(self, **settings: Any) -> None:
        self.scripted = ScriptedCluster({"t": 1})
        self.scripted.clock = reactor_thread().reactor
        self.producer: Producer[Any, Any] = Producer(
            enable_idempotence=False, delivery_timeout_ms=1000, **settings
        )
        self.scripted.attach(self.producer._core.cluster)
        self.producer.partitions_for("t")

    def close(self) -> None:
        self.producer.close(0.1)


def in_child(body: Any) -> int:
    """Run body() in a child of a fork; return its exit code, 9 if it does not end within some seconds."""
    child = os.fork()
    if not child:
        code = 8
        try:
            code = body()
        finally:
            os._exit(code)
    give_up_at = time.monotonic() + 20
    while time.monotonic() < give_up_at:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return 9


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("call", ["send", "produce"])
@pytest.mark.parametrize("is_locked", [False, True], ids=["free", "locked"])
def test_a_forked_child_cannot_send_with_the_producer_of_its_parent(
    call: str, is_locked: bool
) -> None:
    """The record went to a buffer that nothing sends, without an error; or the child waited for a lock for ever."""
    it = OnScriptedCluster()

    def body() -> int:
        try:
            getattr(it.producer, call)("t", b"lost")
        except ClientClosed as problem:
            return 0 if "fork" in str(problem) else 2
        return 1

    if is_locked:  # as by the reactor's thread at the moment of the fork
        reactor_thread().run(lambda: it.producer._lock.acquire())  # type: ignore[arg-type,return-value]
    try:
        assert in_child(body) == 0
    finally:
        if is_locked:
            reactor_thread().call(it.producer._lock.release)
    it.producer.send("t", b"the parent goes on")
    it.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_record_of_its_parent() -> None:
    """The second call waited for ever: the future was a real one by then, and nothing set its result."""
    it = OnScriptedCluster()
    sent = it.producer.send("t", b"v")

    def body() -> int:
        for _ in range(2):
            try:
                sent.result(1)
            except ClientClosed:
                continue
            except TimeoutError:
                return 1
        return 0

    assert in_child(body) == 0
    it.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_nor_for_a_thread_of_its_parent_that_began_to_wait_at_the_moment_of_the_fork() -> None:
    """That thread held the lock of becoming a real future; every wait of the child was for it, and had no end."""
    it = OnScriptedCluster()
    sent = it.producer.send("t", b"v")

    def body() -> int:
        try:
            sent.result(1)
        except ClientClosed:
            return 0
        return 1

    with futures._becoming:
        assert in_child(body) == 0
    it.close()


def test_a_result_that_comes_while_its_future_becomes_a_real_one_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reactor's thread set the result between two assignments of Future.__init__, which set it to None again."""
    it = OnScriptedCluster()
    sent: Any = it.producer.send("t", b"v")
    plain = dict(vars(Future()))
    sinks: list[Any] = []

    def register(_batch: Any, _index: int, _timestamp: int, sink: Any) -> None:
        sinks.append(sink)

    def interrupted(future: Any) -> None:
        for name, value in plain.items():
            if name == "_result" and sinks:  # the reactor's thread runs for a moment
                Thread(target=sinks.pop().callback, args=["metadata"], daemon=True).start()
                time.sleep(0.1)
            setattr(future, name, value)

    sent._register = register
    monkeypatch.setattr(Future, "__init__", interrupted)
    assert sent.running() is False  # becomes a real one
    for sink in sinks:
        sink.callback("metadata")
    assert Future.result(sent, 5) == "metadata"
    it.close()


def test_threads_that_wait_for_one_record_at_the_same_moment_wait_for_the_same_result() -> None:
    """The second one gave the future another condition; the first one waited for that it had, for ever."""
    it = OnScriptedCluster()
    sent: Any = it.producer.send("t", b"v")
    condition = sent._condition
    assert sent.__getattr__("_condition") is condition, "a thread that has not seen it yet"
    it.close()
    assert isinstance(sent.exception(5), KafkaError)


@pytest.mark.parametrize("call", ["send", "send_columns"])
def test_a_callback_does_not_wait_for_memory_that_only_its_own_thread_frees(call: str) -> None:
    """All clients of the process stood still for max.block.ms, a minute by default; then it failed all the same."""
    it = OnScriptedCluster(buffer_memory=400, batch_size=200, max_block_ms=3000)
    it.producer.send("t", b"x" * 200)
    rest = b"x" * 200
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="callback"):
        reactor_thread().call(
            lambda: getattr(it.producer, call)("t", rest if call == "send" else [rest])
        )
    assert time.monotonic() - began < 2.5
    it.close()
