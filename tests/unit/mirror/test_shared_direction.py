"""What a process copies of a direction: everything, or the share of a worker that may leave and come back."""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.python.failure import Failure

from kbroker.zk.client import ZooKeeperClient
from kclient.types import TopicPartition
from mirrormaker.config import MirrorConfig
from mirrormaker.shared_direction import LEAVE, SharedDirection, WholeDirection
from mirrormaker.topics import Plan, Topic
from mirrormaker.worker_registry import workers_path
from mirrormaker.workers import WorkerState
from tests.simulation.clock import Process
from tests.simulation.zk_connection import client_of
from tests.stepped.zookeeper import SteppedZooKeeper

CONFIG = MirrorConfig.of(
    {
        "clusters": "east, west",
        "east.bootstrap.servers": "a:1",
        "west.bootstrap.servers": "b:1",
        "west.zookeeper.connect": "zk:1",
        "east->west.enabled": "true",
    }
).flows[0]
PATH = workers_path("theSource")
PLAN = Plan({"orders": "east.orders", "new": "east.new"}, unmarked=frozenset({"east.new"}))
SOURCE = {"orders": Topic(2), "new": Topic(1)}
EVERY = {TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("new", 0)}


class World(SteppedZooKeeper):
    """A simulated ZooKeeper, and a process that is the only worker."""

    def __init__(self) -> None:
        super().__init__()
        self.process = Process(self.scheduler, "worker", Random(1))
        self.changes = 0
        self.direction = SharedDirection(
            self.process,
            CONFIG,
            changed=self._changed,
            report=lambda _about, _what: None,
            defect=Failure.raiseException,
            client=self._client,
            worker_id=None,
        )
        self.direction.compared()
        self.direction.enter("theSource")

    def _client(self, reactor: Any, connect: str, *, session_timeout: float) -> ZooKeeperClient:
        return client_of(self.ensemble, reactor, 1, [], connect, session_timeout)

    def _changed(self) -> None:
        self.changes += 1

    @property
    def is_registered(self) -> bool:
        return bool(PATH in self.ensemble.tree and self.ensemble.tree[PATH].children)


def test_a_process_without_workers_copies_everything() -> None:
    direction = WholeDirection()
    assert direction.share(PLAN, SOURCE) == EVERY
    assert direction.is_elected
    assert direction.copies_groups
    assert not direction.rejected(TopicPartition("orders", 0))
    assert direction.workers is None


def test_a_worker_copies_nothing_before_it_is_registered_and_then_its_share() -> None:
    world = World()
    direction = world.direction
    assert direction.share(PLAN, SOURCE) == set()
    assert not direction.is_elected
    assert not direction.copies_groups
    world.run(lambda: world.changes > 0)
    assert direction.share(PLAN, SOURCE) == EVERY, (
        "the only worker is elected: also what is unmarked"
    )
    assert direction.is_elected
    assert direction.copies_groups


def test_a_worker_that_compares_no_topics_leaves_and_comes_back_with_the_next_comparison() -> None:
    world = World()
    direction = world.direction
    world.run(lambda: direction.workers.state is WorkerState.MEMBER)
    world.pass_time(LEAVE - world.scheduler.now - 1)
    direction.update_registration({})
    world.pass_time(0.9)
    assert world.is_registered
    world.pass_time(0.2)
    direction.update_registration({})
    world.run(lambda: not world.is_registered)
    assert not direction.copies_groups
    assert direction.share(PLAN, SOURCE) == set(), "it had no share before"
    direction.compared()
    direction.update_registration({})
    world.run(lambda: direction.workers.state is WorkerState.MEMBER)
    assert world.is_registered
