"""The close of a broker's logs: after the outcome of every work that was under way in the disk pool."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.task import Clock

from kbroker.log.clean_shutdown_file import CLEAN_SHUTDOWN
from tests.kit.log_managers import ID, Pool
from tests.kit.logs import FaultyDisk, append
from tests.kit.one_broker import OneBroker


class EndingPool(Pool):
    """A pool that runs what waits when it is shut down."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.run()


class InlineThreads:
    """A reactor's threads: each work runs at once, and its outcome is a later turn."""

    def callInThreadWithCallback(  # noqa: N802
        self, ended: Callable[[bool, Any], None], work: Callable[[], Any]
    ) -> None:
        ended(True, work())


class Reactor(Clock):
    """A clock with threads."""

    def getThreadPool(self) -> InlineThreads:  # noqa: N802
        return InlineThreads()

    def callFromThread(self, call: Callable[..., Any], *given: Any) -> None:  # noqa: N802
        self.callLater(0, call, *given)


def test_a_directory_that_fails_while_the_pool_ends_is_not_clean(tmp_path: Path) -> None:
    """The logs were closed in a thread, before the failure was handled on the reactor's: the directory was clean."""
    disk = FaultyDisk()
    pool = EndingPool(holds=True)
    reactor: Any = Reactor()
    broker = OneBroker(reactor, str(tmp_path), disk=disk, pool=pool)
    manager = broker.replica_manager.log_manager
    manager.load()
    append(manager.create("t", 0, ID), 1)
    manager.checkpoint()
    disk.fail("rename", errno.EIO)
    ended: list[bool] = []
    broker.replica_manager.close().addCallback(ended.append)
    for _ in range(5):
        reactor.advance(0)
    assert ended == [False]
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
