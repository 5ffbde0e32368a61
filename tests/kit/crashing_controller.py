"""A controller that crashes at a `CrashPoint`, and another broker that takes over: for a crash at every step.

Broker 1 crashes, broker 2 takes over. After the crash the session of broker 1 ends, and it registers again as a broker
that is no candidate, as after a restart.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from twisted.internet import reactor as twisted_reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from kbroker.controller.controller import KafkaController
from kbroker.metadata.broker_registration import ensure_paths
from kbroker.zk.client import ZooKeeperClient
from kclient.wire.versions import ApiKey
from tests.kit.controller_settings import controller_settings
from tests.kit.controllers import ControlPlane, FakeBrokers, register
from tests.kit.crash_points import CrashingZooKeeper, CrashPoint
from tests.kit.waiting import until

reactor: Any = twisted_reactor


@dataclass
class ControllerFailover:
    """The controller that crashes, the next one, and what they see."""

    crash_point: CrashPoint
    crashing: ZooKeeperClient
    zookeeper: ZooKeeperClient
    """Of every other broker."""
    cluster: FakeBrokers
    first: KafkaController
    second: ControlPlane
    is_restarted: bool = False

    async def begin(self) -> None:
        """Elect the first controller, unless it crashes before, then start the second candidate."""
        self.first.start()
        await until(lambda: self.first.is_active or self.crash_point.has_crashed)
        self.second.controller.start()

    async def until_solved(self, problem: Callable[[], Awaitable[str]], seconds: float) -> None:
        """Wait until *problem* returns "", restarting the broker that crashed as one that is no candidate."""
        deadline = time.monotonic() + seconds
        while text := await problem():
            if self.crash_point.has_crashed and not self.is_restarted:
                self.is_restarted = True
                await self.crashing.stop(2)
                await register(self.zookeeper, 1)
            assert time.monotonic() < deadline, (
                f"{text}; crashed at {self.crash_point.steps_taken[-3:]}"
            )
            await deferLater(reactor, 0.02)


@asynccontextmanager
async def controller_failover(
    connect: str, crash_point: CrashPoint, others: Iterable[int]
) -> AsyncIterator[ControllerFailover]:
    """Give the two on a chroot of their own, with broker 1 and the *others* registered; at the end both stop."""
    sessions = [ZooKeeperClient(reactor, connect, session_timeout=4.0) for _ in range(2)]
    crashing, other = sessions
    for session in sessions:
        await session.start(10)
    await ensure_paths(other)
    cluster = FakeBrokers()
    await register(crashing, 1)
    for broker_id in others:
        await register(other, broker_id)

    def crashing_send(
        broker_id: int, host: str, port: int, api: ApiKey, version: int, request: Any
    ) -> Deferred[Any]:
        return crash_point.step(
            f"{api.name} to {broker_id}",
            lambda: cluster.send(broker_id, host, port, api, version, request),
        )

    first = KafkaController(
        reactor,
        CrashingZooKeeper(crashing, crash_point),
        controller_settings(),
        crashing_send,
        now_ms=lambda: 1,
        new_topic_id=uuid4,
    )
    made = ControllerFailover(
        crash_point, crashing, other, cluster, first, ControlPlane(other, cluster, 2)
    )
    try:
        yield made
    finally:
        crash_point.has_crashed = True
        first.stop()
        made.second.controller.stop()
        for session in sessions:
            await session.stop(2)


async def crash_at_every_step(
    connect: str, scenario: Callable[[str, CrashPoint], Awaitable[None]], *, after: bool
) -> int:
    """Run *scenario* again and again, on a chroot each, with a crash one step later; return how many there were."""
    at = 0
    while True:
        at += 1
        crash_point = CrashPoint(at, after=after)
        await scenario(f"{connect}/run-{at}", crash_point)
        if crash_point.steps < at:  # it has done all of its work
            print(f"{at - 1} crash points")  # noqa: T201
            return at - 1
