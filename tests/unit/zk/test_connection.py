"""Between the reactor and the connection thread: few wake-ups, and a bounded number of results per turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.task import Clock

from kbroker.zk.connection import MESSAGES_PER_TURN, Connection, Inbox


class Reactor(Clock):
    """A reactor that the test turns by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.from_threads: list[Callable[[], Any]] = []

    def callFromThread(self, callable: Callable[..., Any], *args: Any) -> None:  # noqa: N802
        self.from_threads.append(lambda: callable(*args))

    def turn(self) -> None:
        """Do what is due, and nothing that this brings up."""
        due, self.from_threads = self.from_threads, []
        for call in due:
            call()
        self.advance(0)


def test_of_thousands_of_results_some_are_handled_in_every_turn() -> None:
    reactor = Reactor()
    inbox = Inbox(reactor)
    handled: list[int] = []
    for number in range(2 * MESSAGES_PER_TURN + 1):
        inbox.push(handled.append, number)
    assert len(reactor.from_threads) == 1
    counts = []
    for _ in range(4):
        reactor.turn()
        counts.append(len(handled))
    assert counts == [MESSAGES_PER_TURN, 2 * MESSAGES_PER_TURN, *[2 * MESSAGES_PER_TURN + 1] * 2]
    assert handled == sorted(handled)


class WakeUps:
    """The end of the socket pair that wakes the thread."""

    def __init__(self) -> None:
        self.count = 0

    def send(self, _data: bytes) -> int:
        self.count += 1
        return 1


def test_the_thread_is_woken_once_behind_all_requests_of_a_turn() -> None:
    reactor = Reactor()
    unknown: Any = None
    connection = Connection(
        "127.0.0.1:1",
        session_timeout=6.0,
        resume=None,
        logger=unknown,
        inbox=Inbox(reactor),
        listener=unknown,
    )
    wake_ups = WakeUps()
    connection._write_sock = wake_ups
    for _ in range(3):
        connection.enqueue(unknown, unknown)
        connection._wake_pending = False  # the thread was quick
    assert wake_ups.count == 0
    reactor.turn()
    assert wake_ups.count == 1
    connection._wake_pending = False
    connection.enqueue(unknown, unknown)
    reactor.turn()
    assert wake_ups.count == 2
