"""A group coordinator over the simulated ZooKeeper, in one process that the test steps through.

It leads the only partition of __consumer_offsets. Nothing happens between two calls of the test, so the test can place
a request between any two steps of the coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from uuid import uuid4

from twisted.internet.defer import Deferred

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.coordinator.group.core.commits import OffsetCommit
from kbroker.coordinator.group.core.effects import JoinGroupResult
from kbroker.coordinator.group.core.records import CommitDetail
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.zk import znodes
from kclient.net.waiting import as_deferred
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError
from tests.kit.groups import LIMITS, join_request
from tests.simulation.clock import EPOCH, Process
from tests.simulation.zk_connection import ZkConnection, client_of
from tests.stepped.zookeeper import SteppedZooKeeper

STATE = znodes.partition_state_path(OFFSETS_TOPIC, 0)


class SteppedCoordinator(SteppedZooKeeper):
    """A session, a coordinator that has loaded, and a wall clock (*now_ms*) that the test sets."""

    def __init__(self, **limits: float) -> None:
        super().__init__()
        self.process = Process(self.scheduler, "broker", Random(2))
        self.connections: list[ZkConnection] = []
        self.now_ms = int(EPOCH * 1000) + 1000  # later than any write of a test
        assignment = znodes.TopicAssignment(uuid4(), {0: znodes.ReplicaAssignment((1, 2))})
        self.ensemble.put(znodes.topic_path(OFFSETS_TOPIC), znodes.encode_topic(assignment))
        state = LeaderAndIsr(1, 0, (1,), 1)
        self.ensemble.put(STATE, znodes.encode_partition_state(state))
        self.zk = client_of(self.ensemble, self.process, 1, self.connections)
        self.coordinator = GroupCoordinator(
            self.process,
            self.zk,
            broker_id=1,
            limits=replace(LIMITS, **{"initial_rebalance_delay": 0.0, **limits}),  # type: ignore[arg-type]
            now_ms=lambda: self.now_ms,
            no_successor_at=lambda _partition, _epoch: self.process.seconds(),
            is_alone=lambda _partition, _epoch: False,
        )
        self.done(as_deferred(self.zk.start(10)))
        self.elect()

    def elect(self) -> None:
        """Unload the groups, if there are any, and load them."""
        self.coordinator.on_resignation(0)
        self.coordinator.on_election(0, 0)
        self.run(lambda: self.coordinator.listing()[1] is ErrorCode.NONE)

    def change_isr(self) -> None:
        """Write the state of the partition again, with the same leader: its version grows."""
        self.write(STATE, self.ensemble.tree[STATE].data)

    # --- requests, which return at once

    def commit(
        self, *offsets: tuple[str, int, int], group: str = "g", metadata: str = ""
    ) -> Deferred[list[ErrorCode]]:
        """Commit (topic, partition, offset) as a client outside of the group."""
        detail = CommitDetail(metadata=metadata)
        wanted = [(topic, partition, OffsetCommit(at, detail)) for topic, partition, at in offsets]
        return Deferred.fromCoroutine(_codes(self.coordinator.commit(group, wanted), len(wanted)))

    def offsets(self, group: str = "g") -> dict[str, dict[int, int]]:
        """Return the committed offsets of *group* as OffsetFetch gives them."""
        found = self.done(Deferred.fromCoroutine(self.coordinator.offsets(group)))
        return {t: {p: c.offset for p, c in ps.items()} for t, ps in found.committed.items()}

    def join(self, name: str, group: str = "g", **changes: Any) -> Deferred[JoinGroupResult]:
        """Join as a client that needs no member id first."""
        request = join_request(name, requires_known_member_id=False, **changes)
        return self.coordinator.join(group, request)

    def expire(self, before_ms: int, group: str = "g") -> Deferred[int]:
        """Expire the offsets of *group* from before *before_ms*."""
        return Deferred.fromCoroutine(self.coordinator.expire_offsets(group, before_ms))

    def delete_offsets(self, *wanted: tuple[str, int], group: str = "g") -> Deferred[Any]:
        """Handle OffsetDelete."""
        deletion = self.coordinator.delete_offsets(group, wanted)
        return Deferred.fromCoroutine(_codes(deletion, len(wanted)))


async def _codes(request: Awaitable[Sequence[ErrorCode]], count: int) -> list[ErrorCode]:
    try:
        return list(await request)
    except KafkaError as error:
        return [error.code] * count
