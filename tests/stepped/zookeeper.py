"""The simulated ZooKeeper on one virtual clock that the test moves on.

Nothing happens between two calls of the test, so the test can place a request between any two steps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from twisted.internet.defer import Deferred

from kbroker.zk.znodes import PERSISTENT_PATHS
from kclient.wire.errors import KafkaError
from tests.simulation.clock import Scheduler
from tests.simulation.network import Network
from tests.simulation.zookeeper import Ensemble


class SteppedZooKeeper:
    """The ensemble with the persistent paths of a cluster, and the clock. Delays are those of *rng*."""

    def __init__(self, rng: Random | None = None) -> None:
        self.scheduler = Scheduler()
        rng = rng or Random(1)
        self.ensemble = Ensemble(self.scheduler, rng, Network(self.scheduler, rng))
        for path in PERSISTENT_PATHS:
            if path not in self.ensemble.tree:
                self.ensemble.put(path)

    def write(self, path: str, data: bytes) -> None:
        """Write a znode by hand: its version grows."""
        self.ensemble._commit(("set", path, data, 0, self.ensemble._next_zxid()))

    def run(self, until: Callable[[], bool], seconds: float = 60.0) -> None:
        """Step until *until* returns True."""
        end = self.scheduler.now + seconds
        while not until():
            assert self.scheduler.step(end) is not False, "it did not happen"

    def turn(self) -> None:
        """Make every call that is due now, and let no time pass."""
        while self.scheduler.step(self.scheduler.now) is not False:
            pass

    def pass_time(self, seconds: float) -> None:
        """Make every call that is due in so many seconds."""
        end = self.scheduler.now + seconds
        while self.scheduler.step(end) is not False:
            pass

    def done(self, under_way: Deferred[Any]) -> Any:
        """Step until *under_way* has fired; return its result, or raise its error."""
        outcome: list[Any] = []
        under_way.addBoth(outcome.append)
        self.run(lambda: bool(outcome))
        if hasattr(outcome[0], "raiseException"):
            outcome[0].raiseException()
        return outcome[0]


async def outcome_of(request: Awaitable[Any]) -> Any:
    """Return the result of *request*, or the code of its KafkaError."""
    try:
        return await request
    except KafkaError as error:
        return error.code
