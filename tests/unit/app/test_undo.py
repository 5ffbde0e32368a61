"""A stop: the opposite order of the start, and nothing keeps the rest from being stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred

from kbroker.app.undo import Undo


def running(undo: Undo) -> Deferred[None]:
    return Deferred.fromCoroutine(undo.run())


def test_what_was_started_last_is_stopped_first() -> None:
    undo, done = Undo(lambda: 0.0), list[str]()

    def step(name: str) -> Callable[[], None]:
        return lambda: done.append(name)

    undo.add(step("logs"))
    undo.add(step("network"), step("groups"))
    assert running(undo).called
    assert done == ["groups", "network", "logs"]


def test_a_step_may_be_added_that_runs_after_all_others() -> None:
    undo, done = Undo(lambda: 0.0), list[str]()
    undo.add(lambda: done.append("session"))
    undo.add_last(partial(done.append, "logs"))
    undo.add(lambda: done.append("network"))
    assert running(undo).called
    assert done == ["network", "session", "logs"]


def test_every_step_is_waited_for() -> None:
    undo, done = Undo(lambda: 0.0), list[str]()
    slow: Deferred[None] = Deferred()
    slower: Deferred[None] = Deferred()

    async def coroutine() -> None:
        await slower
        done.append("coroutine")

    undo.add(lambda: done.append("last"))
    undo.add(coroutine)
    undo.add(lambda: slow)
    stopped = running(undo)
    assert done == []
    slow.callback(None)
    assert done == []
    slower.callback(None)
    assert done == ["coroutine", "last"]
    assert stopped.called


def test_a_step_that_fails_does_not_stop_the_others() -> None:
    undo, done = Undo(lambda: 0.0), list[str]()

    def broken() -> None:
        raise OSError("no disk")

    async def broken_later() -> None:
        raise OSError("no network")

    undo.add(lambda: done.append("last"))
    undo.add(broken, broken_later)
    assert running(undo).called
    assert done == ["last"]
