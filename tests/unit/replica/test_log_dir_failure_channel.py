"""A failed log directory is reported to the controller, whatever the outcome of a znode write (S15)."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kbroker.replica.log_dir_failure_channel import RETRY_SECONDS, LogDirFailureChannel
from kbroker.zk import znodes
from kbroker.zk.errors import ConnectionLoss


class Writes:
    """A ZooKeeper that answers when a test does so."""

    def __init__(self) -> None:
        self.reported: list[int] = []
        self.waiting: list[Deferred[str]] = []

    def create(self, path: str, data: bytes, *, sequential: bool) -> Deferred[str]:
        assert sequential
        assert path == "/log_dir_event_notification/log_dir_event_"
        self.reported.append(znodes.decode_log_dir_event(path, data))
        self.waiting.append(Deferred())
        return self.waiting[-1]


def channel_and_clock() -> tuple[Clock, Any, LogDirFailureChannel]:
    clock, zookeeper = Clock(), Writes()
    return clock, zookeeper, LogDirFailureChannel(clock, zookeeper, 4)


def test_a_failure_is_reported_until_zookeeper_has_it() -> None:
    clock, zookeeper, directories = channel_and_clock()
    directories.report()
    zookeeper.waiting.pop().errback(Failure(ConnectionLoss("x")))
    assert zookeeper.reported == [4]
    clock.advance(RETRY_SECONDS)
    zookeeper.waiting.pop().callback("x")
    clock.advance(RETRY_SECONDS)
    assert zookeeper.reported == [4, 4]


def test_failures_during_a_report_are_reported_together_after_it() -> None:
    _, zookeeper, directories = channel_and_clock()
    for _ in range(3):
        directories.report()
    assert zookeeper.reported == [4]
    zookeeper.waiting.pop().callback("x")
    assert zookeeper.reported == [4, 4]
    zookeeper.waiting.pop().callback("x")
    assert zookeeper.reported == [4, 4]


def test_a_broker_that_stops_reports_nothing_more() -> None:
    clock, zookeeper, directories = channel_and_clock()
    directories.report()
    directories.stop()
    zookeeper.waiting.pop().errback(Failure(ConnectionLoss("x")))
    clock.advance(RETRY_SECONDS)
    assert zookeeper.reported == [4]
