"""A controller of many partitions is never long at anything: counted, not timed.

A `KafkaController` runs on the simulated ZooKeeper, its brokers are fakes in another process. What it does in one
turn of its reactor is measured by the functions it calls: the same number on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import FrameType
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from kbroker.common.endpoint import Endpoint
from kbroker.controller.controller import KafkaController
from kbroker.metadata.broker_registration import ensure_paths
from kbroker.zk import znodes
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.interface import Stat
from kbroker.zk.reconnect import Reconnect
from kclient.types import TopicPartition
from kclient.wire import messages
from kclient.wire.messages import RequestHeader
from kclient.wire.versions import ApiKey
from tests.kit.controller_settings import controller_settings
from tests.kit.controllers import FakeBrokers
from tests.simulation.clock import Process, Scheduler
from tests.simulation.network import Network
from tests.simulation.zk_connection import client_of
from tests.simulation.zookeeper import Ensemble

PARTITIONS = 150
PER_TURN = 15
PER_STEP = 25
CALLS_PER_TURN = 4_000
"""Functions of Python called. Done in one turn, each of the events below takes 10,000 or more."""

ANY = Stat(*[0] * len(Stat._fields))
"""What ZooKeeper keeps of a znode, where no test depends on it."""

TURNS = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
ASSIGNMENT = {index: TURNS[index % 3] for index in range(PARTITIONS)}


class World:
    """A controller, its ZooKeeper and three fake brokers."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        rng = Random(1)
        self.ensemble = Ensemble(self.scheduler, rng, Network(self.scheduler, rng))
        self.cluster = FakeBrokers()
        self.longest = 0
        """The most functions that the controller called in one turn."""
        self.most_ordered = 0
        """The most partitions of LeaderAndIsr requests in one turn."""
        self._ordered = 0
        self.process, self.zk = self._process()
        self.until(lambda: self.zk.connected)
        self._do(ensure_paths(self.zk))
        for broker_id in (1, 2, 3):
            self.register(broker_id)
        self.controller = self.candidate()

    def _process(self) -> tuple[Process, ZooKeeperClient]:
        process = Process(self.scheduler, "controller", Random(2))
        zk = client_of(self.ensemble, process, 1, [])
        zk.start(10)
        return process, zk

    def candidate(self) -> KafkaController:
        """Return an active controller."""
        controller = KafkaController(
            self.process,
            self.zk,
            controller_settings(partitions_per_turn=PER_TURN, partitions_per_step=PER_STEP),
            self._send,
            now_ms=lambda: 1,
            new_topic_id=lambda: UUID(int=7),
            reconnect=Reconnect(self.zk, self.process),
        )
        controller.start()
        self.until(lambda: controller.is_active)
        return controller

    def _send(
        self, broker_id: int, host: str, port: int, api: ApiKey, version: int, request: Any
    ) -> Deferred[Any]:
        """Encode it here, where that counts; respond elsewhere."""
        messages.encode_request(RequestHeader(api, version, 1, "test"), request)
        if api is ApiKey.LEADER_AND_ISR:
            self._ordered += sum(len(topic.partition_states) for topic in request.topic_states)
        answer: Deferred[Any] = Deferred()

        def respond() -> None:
            response = self.cluster[broker_id].receive(api, request)
            if not isinstance(response, Deferred):
                response = succeed(response)
            response.addCallback(
                lambda given: self.process.arrives(
                    self.scheduler.now + 0.001, answer.callback, given
                )
            )

        self.scheduler.after(0.001, respond)
        return answer

    def register(self, broker_id: int) -> None:
        endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9000 + broker_id)
        registration = znodes.BrokerInfo(broker_id, (endpoint,), rack=None, timestamp=1)
        self._do(self.zk.create(znodes.broker_path(broker_id), znodes.encode_broker(registration)))

    def remove(self, path: str) -> None:
        self._do(self.zk.delete(path))

    def create(self, path: str, data: bytes = b"") -> None:
        self._do(self.zk.create(path, data, make_parents=True))

    def _do(self, work: Any) -> None:
        done = work if isinstance(work, Deferred) else Deferred.fromCoroutine(work)
        self.until(lambda: done.called)
        failed: list[Failure] = []
        done.addErrback(failed.append)
        assert not failed

    def until(self, condition: Callable[[], bool]) -> None:
        """Let turn follow turn until *condition* holds, 30 s at most."""
        deadline = self.scheduler.now + 30
        while not condition():
            assert self.scheduler.now < deadline, "it never came to that"
            self._turn()

    def _turn(self) -> None:
        """Do what is due; what that asks for at once is the next turn's."""
        heap, last = self.scheduler._heap, self.scheduler._number
        now = heap[0][0]
        calls = 0

        def count(_frame: FrameType, what: str, _argument: object) -> None:
            nonlocal calls
            calls += what == "call"

        while heap and heap[0][0] <= now and heap[0][1] <= last:
            before = calls
            sys.setprofile(count)
            try:
                stepped = self.scheduler.step(now)
            finally:
                sys.setprofile(None)
            if stepped is not self.process:
                calls = before
        self.longest = max(self.longest, calls)
        self.most_ordered, self._ordered = max(self.most_ordered, self._ordered), 0

    def joins_the_isr(self, broker_id: int, topic: str, partition: int) -> None:
        """Have the leader of a partition take a follower into the ISR, and announce it."""
        path = znodes.partition_state_path(topic, partition)
        state = znodes.decode_partition_state(topic, partition, self.ensemble.tree[path].data, ANY)
        state = replace(state, isr=(*state.isr, broker_id), isr_epochs=())
        self._do(self.zk.set(path, znodes.encode_partition_state(state), -1))
        changed = znodes.encode_partitions([TopicPartition(topic, partition)])
        self._do(self.zk.create(znodes.ISR_CHANGE_PREFIX, changed, sequential=True))

    def replicas_of(self, partition: int, of: int = 2) -> tuple[int, ...]:
        """Return a partition's replicas in the metadata of broker *of*."""
        return self.cluster[of].cache.topics["many"].partitions[partition].replicas

    def leaders(self, of: int = 2) -> list[int]:
        """Return the leader of each partition in the metadata of broker *of*."""
        topic = self.cluster[of].cache.topics.get("many")
        if topic is None:
            return []
        return [topic.partitions[index].leader for index in sorted(topic.partitions)]


def create_topic(world: World) -> None:
    assigned = {p: znodes.ReplicaAssignment(r, (), ()) for p, r in ASSIGNMENT.items()}
    topic = znodes.TopicAssignment(partitions=assigned, topic_id=UUID(int=9))
    world.create(znodes.topic_path("many"), znodes.encode_topic(topic))
    world.until(lambda: world.leaders() == [r[0] for r in ASSIGNMENT.values()])


@pytest.fixture
def world() -> World:
    """A controller of nothing yet."""
    return World()


def test_a_reassignment_that_ended_before_its_neighbours_is_completed_soon(world: World) -> None:
    create_topic(world)
    world.register(4)
    world.until(lambda: 4 in world.cluster[2].cache.brokers)
    targets = {TopicPartition("many", p): (2, 3, 4) for p in range(10)}
    world.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets))
    world.until(lambda: world.replicas_of(4) == (2, 3, 4, 1))
    world.joins_the_isr(4, "many", 4)
    world.until(lambda: world.replicas_of(4) == (2, 3, 4))
    assert world.replicas_of(5) == (2, 3, 4, 1)


@pytest.mark.long
def test_no_turn_of_a_controller_is_long_whatever_happens_to_its_partitions(world: World) -> None:
    seen: dict[str, int] = {}

    def saw(what: str) -> None:
        seen[what], world.longest = world.longest, 0

    saw("election")
    create_topic(world)
    saw("creation")
    world.remove(znodes.broker_path(3))
    world.until(lambda: 3 not in world.leaders())
    saw("death")
    del world.cluster.brokers[3]
    world.register(3)
    world.until(lambda: len(world.cluster[3].cache.topics) == 1)
    saw("return")
    targets = {TopicPartition("many", p): (2, 1) for p in range(PARTITIONS)}
    world.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets))
    world.until(lambda: "/admin/reassign_partitions" not in world.ensemble.tree)
    saw("reassignment")
    world.controller.stop()
    world.remove(znodes.CONTROLLER)
    world.remove(znodes.broker_path(1))
    world.controller = world.candidate()
    world.until(lambda: set(world.leaders()) == {2})
    saw("its own election")
    world.register(1)
    world.until(lambda: 1 in world.cluster[2].cache.brokers)
    world.create(znodes.delete_topic_path("many"))
    world.until(lambda: znodes.topic_path("many") not in world.ensemble.tree)
    saw("deletion")
    assert world.most_ordered == PER_TURN
    assert {what: calls for what, calls in seen.items() if calls > CALLS_PER_TURN} == {}
