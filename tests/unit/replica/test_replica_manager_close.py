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


class FailingPool(EndingPool):
    """A pool of which the work that waits meets a failing disk when it is shut down."""

    def __init__(self, disk: FaultyDisk) -> None:
        super().__init__(holds=True)
        self._disk = disk

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if self.waiting:
            self._disk.fail("fsync", errno.EIO)
        self.run()


def test_a_directory_that_fails_while_a_move_ends_is_not_clean(tmp_path: Path) -> None:
    """Moves have a pool of their own: it was shut down in the thread that closed the logs."""
    disk = FaultyDisk()
    reactor: Any = Reactor()
    source, target = tmp_path / "a", tmp_path / "b"
    for each in (source, target):
        each.mkdir()
    moves = FailingPool(disk)
    broker = OneBroker(reactor, f"{source},{target}", disk=disk, pool=EndingPool(), move_pool=moves)
    manager = broker.replica_manager.log_manager
    manager.load()
    append(manager.create("t", 0, ID), 1)
    holds = next(each for each in (source, target) if (each / "t-0").exists())
    other = target if holds is source else source
    manager.move("t", 0, str(other))
    manager.moves.go_on(lambda _key: 1)
    moves.run()  # the record is copied; its sync waits
    reactor.advance(0)
    assert moves.waiting
    ended: list[bool] = []
    broker.replica_manager.close().addCallback(ended.append)
    for _ in range(5):
        reactor.advance(0)
    assert ended == [False]
    assert not (other / CLEAN_SHUTDOWN).exists()
    assert (holds / CLEAN_SHUTDOWN).exists()


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
