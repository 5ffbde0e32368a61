"""A claimed controller epoch is compared with ZooKeeper: one read at a time, and never a raised fence for a lie."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kbroker.apis.gates import ControllerEpochs
from kbroker.network.service import RequestRefusedError
from kbroker.zk import znodes
from kbroker.zk.errors import Disconnected, NoNode
from kbroker.zk.interface import Node
from kbroker.zk.reconnect import CONNECT_TIMEOUT, Reconnect
from kclient.wire.errors import ClusterAuthorizationFailed


class InMemoryZooKeeper:
    """Answers reads of /controller_epoch on demand."""

    connected = True
    session = None

    def __init__(self) -> None:
        self.reads: list[Deferred[Any]] = []

    def on_session(self, _callback: object) -> None:
        pass

    def sync(self, path: str) -> Deferred[None]:
        assert path == znodes.CONTROLLER_EPOCH
        return succeed(None)

    def get(self, path: str) -> Deferred[Any]:
        assert path == znodes.CONTROLLER_EPOCH
        self.reads.append(Deferred())
        return self.reads[-1]

    def holds(self, epoch: int) -> None:
        """Answer the read that is under way."""
        stat: Any = None
        self.reads[-1].callback(znodes_node(epoch, stat))


def znodes_node(epoch: int, stat: Any) -> Any:
    return Node(znodes.encode_controller_epoch(epoch), stat)


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.zookeeper = InMemoryZooKeeper()
        zookeeper: Any = self.zookeeper
        self.epochs = ControllerEpochs(zookeeper, Reconnect(zookeeper, self.clock))

    def claim(self, epoch: int) -> list[Any]:
        """Claim *epoch*; the list is to hold None for confirmed, or the error."""
        ended: list[Any] = []
        asked = Deferred.fromCoroutine(self.epochs.confirm(epoch))
        asked.addBoth(lambda r: ended.append(r.value if isinstance(r, Failure) else r))
        return ended


def test_an_epoch_that_zookeeper_holds_is_confirmed_and_known_from_then_on() -> None:
    world = World()
    claim = world.claim(5)
    assert claim == []
    world.zookeeper.holds(5)
    assert claim == [None]
    assert world.claim(5) == world.claim(3) == [None]
    assert len(world.zookeeper.reads) == 1


def test_an_epoch_that_zookeeper_does_not_hold_is_refused_and_not_remembered() -> None:
    world = World()
    claim = world.claim(2**31 - 1)
    world.zookeeper.holds(5)
    assert isinstance(claim[0], ClusterAuthorizationFailed)
    assert world.claim(5) == [None]


def test_an_epoch_where_there_is_none_is_refused() -> None:
    world = World()
    claim = world.claim(1)
    world.zookeeper.reads[0].errback(NoNode(znodes.CONTROLLER_EPOCH))
    assert isinstance(claim[0], ClusterAuthorizationFailed)


def test_many_claims_make_one_read_at_a_time() -> None:
    world = World()
    claims = [world.claim(10 + n) for n in range(1000)]
    assert len(world.zookeeper.reads) == 1
    world.zookeeper.holds(5)
    assert len(world.zookeeper.reads) == 2
    world.zookeeper.holds(5)
    assert len(world.zookeeper.reads) == 2
    assert all(isinstance(claim[0], ClusterAuthorizationFailed) for claim in claims)


def test_a_claim_that_came_during_a_read_is_not_judged_by_that_read() -> None:
    world = World()
    first, second = world.claim(5), world.claim(6)
    world.zookeeper.holds(5)  # read before epoch 6 was written
    assert first == [None]
    assert second == []
    world.zookeeper.holds(6)
    assert second == [None]


def test_while_zookeeper_cannot_be_read_a_later_epoch_gets_no_answer() -> None:
    world = World()
    first, second = world.claim(5), world.claim(5)
    world.zookeeper.connected = False
    world.zookeeper.reads[0].errback(Disconnected())
    for _ in range(2):
        world.clock.advance(0.05)
        world.clock.advance(CONNECT_TIMEOUT)
    assert isinstance(first[0], RequestRefusedError)
    assert isinstance(second[0], RequestRefusedError)
