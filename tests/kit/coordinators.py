"""Group coordinators in this process over a real ZooKeeper: a session, and the only partition of the offsets topic.

The test makes one the leader; a deposed one is not informed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest_twisted

from kbroker.app.world import World
from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.core.effects import JoinGroupResult, Sync, SyncGroupResult
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.metadata import broker_registration
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError
from tests.kit.groups import LIMITS, join_request
from tests.kit.waiting import until

QUICK = replace(LIMITS, initial_rebalance_delay=0.0)
Offsets = dict[str, dict[int, int]]


class CoordinatingBroker:
    """A session with a coordinator of the only partition of __consumer_offsets."""

    def __init__(self, reactor: Any, zk: ZooKeeperClient, broker_id: int) -> None:
        self.zk = zk
        self.broker_id = broker_id
        self.no_successor_at = float("-inf")
        """What the followers' fetches show; by default nothing."""
        self.coordinator = GroupCoordinator(
            reactor,
            zk,
            broker_id=broker_id,
            limits=QUICK,
            now_ms=World().now_ms,
            no_successor_at=lambda _partition, _leader_epoch: self.no_successor_at,
            is_alone=lambda _partition, _leader_epoch: False,
        )

    @property
    def acts_as_coordinator(self) -> bool:
        """Whether it coordinates as far as it knows."""
        return 0 in self.coordinator._shards.partitions

    async def lead(self, leader_epoch: int) -> None:
        """Become leader: ZooKeeper first, then the word of the controller, as it is in a cluster."""
        await self.write_state(leader_epoch)
        self.coordinator.on_election(0, leader_epoch)
        await until(self.loaded, what="the coordinator to load")

    async def write_state(self, leader_epoch: int) -> None:
        path = znodes.partition_state_path(OFFSETS_TOPIC, 0)
        state = LeaderAndIsr(self.broker_id, leader_epoch, (self.broker_id,), 1)
        data = znodes.encode_partition_state(state)
        if await self.zk.exists(path) is None:
            await self.write_topic(partitions=1)
            await self.zk.create(path, data, make_parents=True)
        else:
            await self.zk.set(path, data, -1)

    async def write_topic(self, partitions: int) -> None:
        replicas = dict.fromkeys(range(partitions), znodes.ReplicaAssignment((1, 2)))
        data = znodes.encode_topic(znodes.TopicAssignment(uuid4(), replicas))
        path = znodes.topic_path(OFFSETS_TOPIC)
        if await self.zk.exists(path) is None:
            await self.zk.create(path, data, make_parents=True)
        else:
            await self.zk.set(path, data, -1)

    def loaded(self) -> bool:
        return self.coordinator.listing()[1] is ErrorCode.NONE and self.acts_as_coordinator

    async def join(self, name: str, member_id: str = "", group: str = "g") -> JoinGroupResult:
        request = join_request(name, member_id, requires_known_member_id=False)
        return await self.coordinator.join(group, request)

    async def sync(self, name: str, generation: int, **assignments: bytes) -> SyncGroupResult:
        by_id = {f"{member}-id": data for member, data in assignments.items()}
        return await self.coordinator.sync("g", Sync(f"{name}-id", generation, by_id))

    async def heartbeat(self, name: str, generation: int) -> ErrorCode:
        return await self.coordinator.heartbeat("g", f"{name}-id", None, generation)

    async def commit(self, offsets: Offsets, group: str = "g", **member: object) -> list[ErrorCode]:
        flat = [(t, p, OffsetCommit(o)) for t, ps in offsets.items() for p, o in ps.items()]
        try:
            return await self.coordinator.commit(group, flat, **member)  # type: ignore[arg-type]
        except KafkaError as error:
            return [error.code] * len(flat)

    async def offsets(self, group: str = "g") -> Offsets:
        found = await self.coordinator.offsets(group)
        return {t: {p: c.offset for p, c in ps.items()} for t, ps in found.committed.items()}


async def error_of(request: Awaitable[Any]) -> ErrorCode:
    """Return the code of the KafkaError that *request* raises, NONE if it raises none."""
    try:
        await request
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


Open = Callable[..., Awaitable[CoordinatingBroker]]


@pytest_twisted.async_yield_fixture  # type: ignore[untyped-decorator]  # it ships no types
async def open_broker(zookeeper_connect: str) -> AsyncIterator[Open]:
    from twisted.internet import reactor as twisted_reactor

    reactor: Any = twisted_reactor
    brokers: list[CoordinatingBroker] = []

    async def open_one(broker_id: int = 1, connect: str = zookeeper_connect) -> CoordinatingBroker:
        zk = ZooKeeperClient(reactor, connect, session_timeout=4.0)
        await zk.start(10)
        await broker_registration.ensure_paths(zk)
        brokers.append(CoordinatingBroker(reactor, zk, broker_id))
        return brokers[-1]

    yield open_one
    for broker in brokers:
        broker.coordinator.stop()
        await broker.zk.stop(2)


async def stable(broker: CoordinatingBroker) -> None:
    """Make group g Stable with members a and b in generation 2."""
    assert (await broker.join("a")).error is ErrorCode.NONE
    joined = broker.coordinator.join("g", join_request("b", requires_known_member_id=False))
    a = await broker.join("a", "a-id")
    await joined
    assert (a.generation_id, len(a.members)) == (2, 2)
    await broker.sync("a", 2, a=b"A", b=b"B")
    assert (await broker.sync("b", 2)).assignment == b"B"
