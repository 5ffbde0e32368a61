"""Which brokers are registered at an address: read again after each change, resolved, in one spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from kbroker.common.endpoint import Endpoint
from kbroker.metadata.registered_addresses import RegisteredAddresses
from kbroker.zk import znodes
from kbroker.zk.interface import Children, Node
from kbroker.zk.reconnect import Reconnect
from kclient.errors import Address, Cause, ConnectError

HOSTS = {"one": ["10.0.0.1", "fd00::1"], "two": ["::ffff:10.0.0.2"], "127.0.0.1": ["127.0.0.1"]}


class InMemoryZooKeeper:
    """/brokers/ids, with its watch."""

    connected = True
    session = None

    def __init__(self) -> None:
        self.nodes: dict[int, bytes | None] = {}
        self.fire: Callable[[Children | None], None] = lambda _: None
        self.reads = 0

    def register(self, broker_id: int, host: str, listener: str = "PLAINTEXT") -> None:
        endpoint = Endpoint(listener, "PLAINTEXT", host, 9092)
        outside = Endpoint("OUTSIDE", "PLAINTEXT", "127.0.0.1", 9093)
        registration = znodes.BrokerInfo(broker_id, (endpoint, outside))
        self.nodes[broker_id] = znodes.encode_broker(registration)

    def on_session(self, _callback: object) -> None:
        pass

    def children(self, _path: str) -> Deferred[Any]:
        self.reads += 1
        stat: Any = None
        return succeed(Children([str(each) for each in self.nodes], stat))

    def get_all(self, paths: list[str]) -> Deferred[Any]:
        stat: Any = None
        data = [self.nodes[int(path.rpartition("/")[2])] for path in paths]
        return succeed([None if each is None else Node(each, stat) for each in data])

    def watch_children(self, _path: str, callback: Callable[[Children | None], None]) -> Any:
        self.fire = callback
        return None


async def resolve(host: str) -> list[str]:
    if host not in HOSTS:
        raise ConnectError(Address(host, 0), Cause.DNS)
    return HOSTS[host]


def addresses(zookeeper: InMemoryZooKeeper) -> RegisteredAddresses:
    made: Any = zookeeper
    found = RegisteredAddresses(made, Reconnect(made, Clock()), "PLAINTEXT", resolve)
    Deferred.fromCoroutine(found.start())
    return found


def test_brokers_are_found_by_every_address_of_their_inter_broker_host() -> None:
    zookeeper = InMemoryZooKeeper()
    zookeeper.register(1, "one")
    zookeeper.register(2, "two")
    zookeeper.register(3, "one")
    found = addresses(zookeeper)
    assert set(found.brokers_at("10.0.0.1")) == set(found.brokers_at("fd00:0::1")) == {1, 3}
    assert set(found.brokers_at("10.0.0.2")) == set(found.brokers_at("::ffff:10.0.0.2")) == {2}
    assert not found.brokers_at("10.0.0.3")
    assert not found.brokers_at("127.0.0.1"), "the endpoint of another listener"


def test_loopback_counts_for_a_broker_that_is_registered_there() -> None:
    zookeeper = InMemoryZooKeeper()
    zookeeper.register(1, "127.0.0.1")
    assert set(addresses(zookeeper).brokers_at("127.0.0.1")) == {1}


def test_what_is_unreadable_gone_or_not_resolved_counts_for_nothing() -> None:
    zookeeper = InMemoryZooKeeper()
    zookeeper.register(1, "unknown")
    zookeeper.register(2, "two")
    zookeeper.nodes |= {3: b"poison", 4: None}
    found = addresses(zookeeper)
    assert set(found.brokers_at("10.0.0.2")) == {2}


def test_every_change_of_the_list_is_read() -> None:
    zookeeper = InMemoryZooKeeper()
    found = addresses(zookeeper)
    zookeeper.register(1, "one")
    assert not found.brokers_at("10.0.0.1")
    zookeeper.fire(None)
    assert set(found.brokers_at("10.0.0.1")) == {1}
    del zookeeper.nodes[1]
    zookeeper.fire(None)
    assert not found.brokers_at("10.0.0.1")
    assert zookeeper.reads == 3
