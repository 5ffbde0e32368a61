"""A controller that dies by its `Fate`, and another broker that takes over; for tests that try every step of some work.

The mortal is broker 1, the successor broker 2. Once the mortal is dead he is buried (his session ends) and is back
as an obedient broker, as after a restart.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from twisted.internet import reactor
from twisted.internet.task import deferLater

from kbroker.controller.controller import ControllerSettings, KafkaController
from kbroker.metadata.broker_registration import ensure_paths
from kbroker.zk.client import ZooKeeperClient
from tests.kit.controllers import Member, PaperCluster, register
from tests.kit.dying import DyingZooKeeper, Fate
from tests.kit.waiting import until


@dataclass
class Succession:
    """The mortal, his successor, and what they see."""

    fate: Fate
    mortal: ZooKeeperClient
    zookeeper: ZooKeeperClient
    """Of everybody else."""
    cluster: PaperCluster
    first: KafkaController
    second: Member
    is_buried: bool = False

    async def begin(self) -> None:
        """Have the mortal elected, if he lives to be, and the successor stand behind him."""
        self.first.start()
        await until(lambda: self.first.is_active or self.fate.is_dead)
        self.second.controller.start()

    async def until_solved(self, problem: Callable[[], Awaitable[str]], seconds: float) -> None:
        """Wait until *problem* says "", burying the dead and starting him again as an obedient broker."""
        deadline = time.monotonic() + seconds
        while text := await problem():
            if self.fate.is_dead and not self.is_buried:
                self.is_buried = True
                await self.mortal.stop(2)
                await register(self.zookeeper, 1)
            assert time.monotonic() < deadline, f"{text}; died at {self.fate.steps_taken[-3:]}"
            await deferLater(reactor, 0.02)


@asynccontextmanager
async def succession(connect: str, fate: Fate, others: Iterable[int]) -> AsyncIterator[Succession]:
    """Give the two on a chroot of their own, with broker 1 and the *others* registered; at the end both stop."""
    sessions = [ZooKeeperClient(reactor, connect, session_timeout=4.0) for _ in range(2)]
    mortal, other = sessions
    for session in sessions:
        await session.start(10)
    await ensure_paths(other)
    cluster = PaperCluster()
    await register(mortal, 1)
    for broker_id in others:
        await register(other, broker_id)

    def dying_send(*args: Any) -> Any:
        return fate.step(f"{args[3].name} to {args[0]}", lambda: cluster.send(*args))

    first = KafkaController(
        reactor,
        DyingZooKeeper(mortal, fate),
        ControllerSettings(1, "PLAINTEXT"),
        dying_send,
        now_ms=lambda: 1,
        new_topic_id=uuid4,
    )
    made = Succession(fate, mortal, other, cluster, first, Member(other, cluster, 2))
    try:
        yield made
    finally:
        fate.is_dead = True
        first.stop()
        made.second.controller.stop()
        for session in sessions:
            await session.stop(2)


async def die_at_every_step(
    connect: str, scenario: Callable[[str, Fate], Awaitable[None]], *, after: bool
) -> int:
    """Play *scenario* again and again, on a chroot each, with a death one step later; return how many there were."""
    at = 0
    while True:
        at += 1
        fate = Fate(at, after=after)
        await scenario(f"{connect}/run-{at}", fate)
        if fate.steps < at:  # it lived through all of its work
            print(f"{at - 1} crash points")  # noqa: T201
            return at - 1
