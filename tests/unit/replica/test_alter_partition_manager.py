"""The ISR on its way into ZooKeeper, whatever becomes of the answer (S4, S5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.replica.alter_partition_manager import (
    ANNOUNCE_SECONDS,
    WRITES_AT_A_TIME,
    AlterPartitionManager,
)
from kbroker.replica.core.leader_state import LeaderState
from kbroker.zk import znodes
from kbroker.zk.errors import AccessDenied, BadVersion, ConnectionLoss, NoNode, SessionExpired
from kbroker.zk.interface import Node, Stat
from tests.kit.partitions import HostedPartition


def stat(version: int) -> Stat:
    return Stat(1, 1, 0, 0, version, 0, 0, 0, 0, 0, 0)


class OneZnode:
    """A ZooKeeper with one partition's state; *mishaps* are what becomes of the next writes."""

    def __init__(self) -> None:
        self.state: LeaderAndIsr | None = LeaderAndIsr(1, 0, (1,), 1)
        self.version = 7
        self.mishaps: list[str] = []
        self.unreadable = 0
        """Reads that are refused from now on."""
        self.announced: list[bytes] = []
        self.connected = True
        self.session = None

    def set(self, path: str, data: bytes, version: int) -> Deferred[Stat]:
        assert path == "/brokers/topics/t/partitions/0/state"
        mishap = self.mishaps.pop(0) if self.mishaps else ""
        if mishap == "lost":
            return fail(ConnectionLoss(path))
        if self.state is None:
            return fail(NoNode(path))
        if version != self.version:
            return fail(BadVersion(path))
        self.version += 1
        self.state = znodes.decode_partition_state("t", 0, data, stat(self.version))
        return (
            fail(ConnectionLoss(path)) if mishap == "answer lost" else succeed(stat(self.version))
        )

    def sync(self, _path: str) -> Deferred[None]:
        return succeed(None)

    def get(self, path: str) -> Deferred[Node]:
        if self.unreadable:
            self.unreadable -= 1
            return fail(AccessDenied(path))
        if self.state is None:
            return fail(NoNode(path))
        return succeed(Node(znodes.encode_partition_state(self.state), stat(self.version)))

    def create(self, path: str, data: bytes, *, sequential: bool) -> Deferred[str]:
        assert sequential
        assert path == "/isr_change_notification/isr_change_"
        self.announced.append(data)
        return succeed(path + "0000000000")


class Connected:
    """ZooKeeper is always back."""

    def connected(self, _session: object = None) -> Deferred[None]:
        return succeed(None)


class Reconnecting:
    """ZooKeeper is back when a test fires what it returned."""

    def __init__(self) -> None:
        self.waiting: list[Deferred[None]] = []

    def connected(self, _session: object = None) -> Deferred[None]:
        self.waiting.append(Deferred())
        return self.waiting[-1]


class Scene:
    """Broker 1 leads alone, broker 2 has caught up."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.zookeeper = OneZnode()
        unknown: Any = self.zookeeper
        reconnect: Any = Connected()
        self.writer = AlterPartitionManager(self.clock, unknown, reconnect)
        self.partition = HostedPartition(directory, 1, alter_partition=self.writer)
        self.partition.take(1, 0, (1,), replicas=(1, 2), version=7)

    @property
    def leader_state(self) -> LeaderState:
        assert self.partition.leader_state is not None
        return self.partition.leader_state

    def follower_catches_up(self) -> None:
        leader_state = self.leader_state
        self.partition.perform(
            leader_state.follower_fetched(2, leader_state.log_end_offset, 0, 0.0)
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize("mishap", ["", "lost", "answer lost"])
def test_the_isr_is_written_and_announced_whatever_becomes_of_the_answer(
    scene: Scene, mishap: str
) -> None:
    scene.zookeeper.mishaps = [mishap]
    scene.follower_catches_up()
    assert scene.zookeeper.state is not None
    assert scene.zookeeper.state.isr == (1, 2)
    assert (scene.leader_state.isr, scene.leader_state.zk_version) == ({1, 2}, 8)
    assert scene.leader_state.pending is None
    assert (scene.partition.role.isr, scene.partition.role.partition_epoch) == ({1, 2}, 8)
    scene.clock.advance(ANNOUNCE_SECONDS)
    (announced,) = scene.zookeeper.announced
    assert znodes.decode_partitions("/p", announced) == [("t", 0)]


def test_a_newer_leader_epoch_ends_it(scene: Scene) -> None:
    scene.zookeeper.state = LeaderAndIsr(2, 1, (2,), 1)
    scene.zookeeper.version = 9
    scene.follower_catches_up()
    assert scene.zookeeper.state.leader == 2
    assert scene.leader_state.is_fenced
    assert scene.leader_state.maximal_isr == {1, 2}
    scene.clock.advance(10)
    assert scene.zookeeper.announced == []


def test_a_topic_that_is_gone_ends_it(scene: Scene) -> None:
    scene.zookeeper.state = None
    scene.follower_catches_up()
    assert scene.leader_state.is_fenced


def test_a_write_that_is_refused_for_ever_does_not_spin(scene: Scene) -> None:
    scene.zookeeper.mishaps = ["lost"] * 5
    scene.follower_catches_up()
    assert len(scene.zookeeper.mishaps) == 3
    scene.clock.advance(1)
    assert len(scene.zookeeper.mishaps) == 2
    scene.writer.stop()


def test_the_outcome_of_a_write_is_read_again_after_any_error(scene: Scene) -> None:
    scene.zookeeper.mishaps = ["answer lost"]
    scene.zookeeper.unreadable = 1
    scene.follower_catches_up()
    assert scene.leader_state.pending == {1, 2}
    scene.clock.advance(1)
    assert scene.leader_state.pending is None
    assert scene.leader_state.isr == {1, 2}


def test_a_write_of_an_earlier_epoch_is_forgotten(scene: Scene) -> None:
    scene.zookeeper.mishaps = ["lost"] * 3
    scene.follower_catches_up()
    scene.partition.take(1, 1, (1,), replicas=(1, 2), version=9)
    scene.clock.advance(1)
    assert scene.zookeeper.state is not None
    assert scene.zookeeper.state.isr == (1,)
    assert (scene.leader_state.isr, scene.leader_state.zk_version) == ({1}, 9)


class SlowZooKeeper:
    """Answers writes when a test does so."""

    def __init__(self) -> None:
        self.waiting: list[Deferred[Stat]] = []
        self.announced: list[bytes] = []
        self.session = None

    def sync(self, _path: str) -> Deferred[None]:
        return succeed(None)

    def set(self, _path: str, _data: bytes, version: int) -> Deferred[Stat]:
        self.waiting.append(Deferred())
        return self.waiting[-1]

    def create(self, path: str, data: bytes, *, sequential: bool) -> Deferred[str]:
        self.announced.append(data)
        return succeed(path)


def test_thousands_are_written_some_at_a_time_and_announced_together(tmp_path: Path) -> None:
    clock, zookeeper = Clock(), SlowZooKeeper()
    unknown: Any = zookeeper
    reconnect: Any = Connected()
    writer = AlterPartitionManager(clock, unknown, reconnect)
    count = 2 * WRITES_AT_A_TIME + 5
    for index in range(count):
        place = tmp_path / str(index)
        place.mkdir()
        partition = HostedPartition(place, 1, alter_partition=writer)
        partition.key = ("t", index)
        partition.take(1, 0, (1,), replicas=(1, 2), version=7)
        assert partition.leader_state is not None
        partition.perform(partition.leader_state.follower_fetched(2, 0, 0, 0.0))
    most = written = 0
    while zookeeper.waiting:
        most = max(most, len(zookeeper.waiting))
        some, zookeeper.waiting = zookeeper.waiting[:50], zookeeper.waiting[50:]
        for answer in some:
            answer.callback(stat(8))
        written += len(some)
        clock.advance(ANNOUNCE_SECONDS)
    assert (most, written) == (WRITES_AT_A_TIME, count)
    clock.advance(1)
    assert len(zookeeper.announced) <= 3
    announced = [
        key for data in zookeeper.announced for key in znodes.decode_partitions("/p", data)
    ]
    assert sorted(announced) == [("t", index) for index in range(count)]


def test_after_a_write_that_came_to_nothing_the_follower_is_asked_again(scene: Scene) -> None:
    scene.zookeeper.state = LeaderAndIsr(1, 0, (1,), 1)
    scene.zookeeper.version = 9  # another write, in our name
    scene.follower_catches_up()
    assert (scene.leader_state.isr, scene.leader_state.pending) == ({1}, None)
    assert scene.partition.appended == [("t", 0)]


def one_write(
    directory: Path, reconnect: Any
) -> tuple[SlowZooKeeper, AlterPartitionManager, list[str]]:
    """Begin an ISR write that ZooKeeper does not answer; the list notes when the partition is settled."""
    zookeeper = SlowZooKeeper()
    unknown: Any = zookeeper
    writer = AlterPartitionManager(Clock(), unknown, reconnect)
    partition = HostedPartition(directory, 1, alter_partition=writer)
    partition.take(1, 0, (1,), replicas=(1, 2), version=7)
    assert partition.leader_state is not None
    partition.perform(partition.leader_state.follower_fetched(2, 0, 0, 0.0))
    partition.leader_state = None  # it leads no more: the topic is being deleted
    settled: list[str] = []
    waiting = Deferred.fromCoroutine(writer.settled(partition.key))
    waiting.addCallback(lambda _: settled.append("settled"))
    return zookeeper, writer, settled


def test_a_partition_is_settled_when_its_write_is_answered(tmp_path: Path) -> None:
    zookeeper, _, settled = one_write(tmp_path, Connected())
    assert settled == []
    zookeeper.waiting[0].callback(stat(8))
    assert settled == ["settled"]


def test_a_rejected_write_is_settled_at_once(tmp_path: Path) -> None:
    zookeeper, _, settled = one_write(tmp_path, Connected())
    zookeeper.waiting[0].errback(BadVersion("/p"))
    assert settled == ["settled"]


def test_a_write_without_an_answer_is_settled_when_another_server_has_the_session(
    tmp_path: Path,
) -> None:
    reconnect = Reconnecting()
    zookeeper, _, settled = one_write(tmp_path, reconnect)
    zookeeper.waiting[0].errback(ConnectionLoss("/p"))
    assert settled == [], "the first server may still apply the write"
    reconnect.waiting[0].errback(ConnectionLoss("/p"))
    assert settled == []
    reconnect.waiting[1].callback(None)
    assert settled == ["settled"]


def test_a_write_of_a_session_that_is_over_is_settled(tmp_path: Path) -> None:
    reconnect = Reconnecting()
    zookeeper, _, settled = one_write(tmp_path, reconnect)
    zookeeper.waiting[0].errback(ConnectionLoss("/p"))
    reconnect.waiting[0].errback(SessionExpired())
    assert settled == ["settled"]


def test_a_partition_without_a_write_is_settled(tmp_path: Path) -> None:
    _, writer, _ = one_write(tmp_path, Connected())
    settled: list[None] = []
    Deferred.fromCoroutine(writer.settled(("other", 0))).addCallback(settled.append)
    assert settled == [None]
