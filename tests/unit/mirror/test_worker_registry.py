"""A worker registers in ZooKeeper and follows the list of workers, whatever happens to its session."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kbroker.zk.client import ZooKeeperClient
from mirrormaker.settings import LinkSettings
from mirrormaker.worker_registry import PUBLISH_INTERVAL, WorkerRegistry, workers_path
from mirrormaker.workers import Workers, WorkerSettings, WorkerState, group_of
from tests.simulation.clock import Process
from tests.simulation.zk_connection import ZkConnection, client_of
from tests.simulation.zookeeper import ZOOKEEPER
from tests.stepped.zookeeper import SteppedZooKeeper

TIMEOUT = 6.0
PATH = workers_path("theSource")


class Worker:
    """A process with a registry, at the simulated ZooKeeper."""

    def __init__(self, world: World, number: int, group: str) -> None:
        self.number = number
        self.process = Process(world.scheduler, f"worker {number}", Random(number))
        self.workers = Workers(
            f"{number:016x}", group_of("east", "west", LinkSettings(topics=group))
        )
        self.connections: list[ZkConnection] = []
        self.lines: list[str] = []
        self.changes = 0
        self._world = world
        self.registry = WorkerRegistry(
            self.process,
            WorkerSettings("zk:1", TIMEOUT),
            self.workers,
            changed=self._changed,
            report=lambda _about, what: self.lines.append(what),
            defect=Failure.raiseException,
            client=self._client,
        )
        self.registry.enter("theSource")

    def _client(self, reactor: Any, connect: str, *, session_timeout: float) -> ZooKeeperClient:
        assert reactor is self.process
        return client_of(
            self._world.ensemble,
            self.process,
            self.number,
            self.connections,
            connect,
            session_timeout,
        )

    def _changed(self) -> None:
        self.changes += 1

    @property
    def seen(self) -> list[int]:
        """The numbers of the workers that it has seen, if it is one of them."""
        if self.workers.state is not WorkerState.MEMBER:
            return []
        return [int(each.worker_id, 16) for each in self.workers.members]


class World(SteppedZooKeeper):
    def worker(self, number: int, group: str = "orders") -> Worker:
        return Worker(self, number, group)

    @property
    def znodes(self) -> list[str]:
        return sorted(self.ensemble.tree[PATH].children) if PATH in self.ensemble.tree else []


@pytest.fixture
def world() -> World:
    return World()


def test_workers_find_each_other_and_the_oldest_is_elected(world: World) -> None:
    one = world.worker(1)
    world.run(lambda: one.seen == [1])
    two = world.worker(2)
    world.run(lambda: one.seen == two.seen == [1, 2])
    assert (one.workers.is_elected, two.workers.is_elected) == (True, False)
    assert len(world.znodes) == 2


def test_a_killed_worker_is_left_out_when_its_session_expires(world: World) -> None:
    one, two = world.worker(1), world.worker(2)
    world.run(lambda: len(one.seen) == len(two.seen) == 2)
    one.process.kill()
    one.connections[-1].process_died()
    world.run(lambda: two.seen == [2], TIMEOUT + 1)
    assert two.workers.is_elected


def test_a_worker_that_stops_is_left_out_at_once(world: World) -> None:
    one, two = world.worker(1), world.worker(2)
    world.run(lambda: len(one.seen) == len(two.seen) == 2)
    Deferred.fromCoroutine(one.registry.stop())
    world.run(lambda: two.seen == [2], 0.5)


def test_an_expired_session_is_followed_by_a_registration_with_the_same_id(world: World) -> None:
    one, two = world.worker(1), world.worker(2)
    world.run(lambda: len(one.seen) == len(two.seen) == 2)
    before = one.changes
    session = one.connections[-1].session
    assert session is not None
    world.ensemble.end(session)
    world.run(lambda: one.workers.state is WorkerState.CUT_OFF)
    assert one.changes > before
    world.run(lambda: one.seen == two.seen == [2, 1])


def test_a_worker_that_is_cut_off_knows_it_before_its_znode_is_gone(world: World) -> None:
    one, two = world.worker(1), world.worker(2)
    world.run(lambda: len(one.seen) == len(two.seen) == 2)
    world.pass_time(TIMEOUT)
    world.ensemble.network.block(1, ZOOKEEPER)
    one.connections[-1].unreachable()
    world.run(lambda: one.workers.state is WorkerState.CUT_OFF)
    assert len(world.znodes) == 2
    world.run(lambda: two.seen == [2])
    world.ensemble.network.unblock(1, ZOOKEEPER)
    one.connections[-1].reachable()
    world.run(lambda: one.seen == two.seen == [2, 1])


def test_a_session_that_outlives_an_outage_needs_no_second_registration(world: World) -> None:
    one = world.worker(1)
    world.run(lambda: one.seen == [1])
    znodes = world.znodes
    world.ensemble.stop()
    world.run(lambda: one.workers.state is WorkerState.CUT_OFF)
    world.ensemble.start()
    world.run(lambda: one.seen == [1])
    assert world.znodes == znodes


def test_a_registration_with_an_unknown_outcome_is_read_back(world: World) -> None:
    one = Worker(world, 1, "orders")
    world.run(lambda: bool(one.connections) and one.connections[-1].live)
    one.connections[-1].lose_next_reply = True
    world.run(lambda: one.seen == [1])
    world.pass_time(3 * TIMEOUT)
    assert one.seen == [1]
    assert len(world.znodes) == 1


def test_a_worker_registers_again_when_an_operator_deletes_its_znode(world: World) -> None:
    one = world.worker(1)
    world.run(lambda: one.seen == [1])
    (name,) = world.znodes
    world.ensemble.remove(f"{PATH}/{name}")
    world.run(lambda: bool(world.znodes) and world.znodes != [name])
    world.run(lambda: one.seen == [1])


def test_a_worker_that_leaves_comes_back_when_it_can(world: World) -> None:
    one, two = world.worker(1), world.worker(2)
    world.run(lambda: len(one.seen) == len(two.seen) == 2)
    one.registry.leave()
    assert one.workers.state is WorkerState.CUT_OFF
    world.run(lambda: two.seen == [2], 1.0)
    world.pass_time(3 * TIMEOUT)
    assert (one.seen, two.seen, len(world.znodes)) == ([], [2], 1)
    one.registry.leave()
    assert len([line for line in one.lines if "leaves" in line]) == 1
    one.registry.come_back()
    world.run(lambda: one.seen == two.seen == [2, 1])


def test_a_worker_waits_for_zookeeper_and_reports_it(world: World) -> None:
    world.ensemble.stop()
    one = world.worker(1)
    world.run(lambda: bool(one.lines))
    assert one.lines == ["no ZooKeeper server of zk:1 answers; nothing is copied"]
    world.ensemble.start()
    world.run(lambda: one.seen == [1])


def test_counts_are_written_when_they_changed_and_not_too_often(world: World) -> None:
    one = world.worker(1)
    world.run(lambda: one.seen == [1])
    path = f"{PATH}/{world.znodes[0]}"

    def stored() -> Any:
        return json.loads(world.ensemble.tree[path].data).get("partitions")

    one.registry.publish({"partitions": 3})
    world.run(lambda: stored() == 3)
    one.registry.publish({"partitions": 4})
    world.pass_time(1.0)
    assert stored() == 3
    world.pass_time(PUBLISH_INTERVAL)
    one.registry.publish({"partitions": 4})
    world.run(lambda: stored() == 4)
    version = world.ensemble.tree[path].version
    world.pass_time(2 * PUBLISH_INTERVAL)
    one.registry.publish({"partitions": 4})
    world.pass_time(1.0)
    assert world.ensemble.tree[path].version == version


def test_a_worker_with_other_settings_is_reported_once(world: World) -> None:
    one = world.worker(1)
    other = world.worker(2, group="payments")
    world.run(lambda: other.seen == [2] and bool(one.lines))
    world.worker(3)
    world.run(lambda: one.seen == [1, 3])
    assert one.lines == ["0000000000000002 has other settings and copies for itself"]
