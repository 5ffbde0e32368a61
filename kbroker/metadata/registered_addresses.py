"""The IP addresses of registered brokers: accepted as an identity while broker proofs are not required.

For a rolling upgrade from a version without proofs (`kbroker.inter.broker.proof.required=false`,
docs/design/inter-broker-trust.md). The registrations in /brokers/ids are read at the start and after each change of the
list. The hosts of their inter-broker listener are resolved by the reactor's resolver, outside its thread. A host that
cannot be resolved is ignored.

In: the children of /brokers/ids   Out: broker ids by IP address   Owner: the reactor's thread
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.ip_address import plain_address
from kbroker.zk import znodes
from kbroker.zk.errors import PoisonZnode, ZooKeeperError
from kbroker.zk.interface import Children, Watch, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import KafkaError

log = Logger()

Resolve = Callable[[str], Awaitable[list[str]]]
"""From a host to its IP addresses; KafkaError if there are none."""


class RegisteredAddresses:
    """Which brokers are registered at an address, by their endpoint of *listener*."""

    def __init__(
        self, zookeeper: ZooKeeper, reconnect: Reconnect, listener: str, resolve: Resolve
    ) -> None:
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._listener = listener
        self._resolve = resolve
        self._brokers: Mapping[str, Collection[int]] = {}
        self._watch: Watch | None = None
        self._reading = False
        self._changed = False

    def brokers_at(self, ip: str) -> Collection[int]:
        """Return the ids of the brokers that are registered at *ip*."""
        return self._brokers.get(_plain(ip), ())

    async def start(self) -> None:
        """Read the registrations, and watch them."""
        await self._reconnect.read(None, self._read)
        self._watch = self._zookeeper.watch_children(znodes.BROKER_IDS, self._have_brokers)

    def stop(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _have_brokers(self, _children: Children | None) -> None:
        """Read the registrations again; a change during a read causes one more."""
        self._changed = True
        if not self._reading:
            Deferred.fromCoroutine(self._read_changes()).addErrback(
                lambda failure: log.failure("reading the registered brokers failed", failure)
            )

    async def _read_changes(self) -> None:
        self._reading = True
        try:
            while self._changed:
                self._changed = False
                await self._reconnect.read(None, self._read)
        except (ZooKeeperError, KafkaError) as error:
            # The watch calls again after the reconnect if the list has changed meanwhile.
            log.warn("cannot read the registered brokers: {error}", error=error)
        finally:
            self._reading = False

    async def _read(self) -> None:
        names = (await self._zookeeper.children(znodes.BROKER_IDS)).names
        ids = [int(name) for name in names if name.isdecimal()]
        nodes = await self._zookeeper.get_all([znodes.broker_path(each) for each in ids])
        found: dict[str, set[int]] = defaultdict(set)
        for broker_id, node in zip(ids, nodes, strict=True):
            for host in () if node is None else self._hosts(broker_id, node.data):
                for ip in await self._resolved(host):
                    found[_plain(ip)].add(broker_id)
        self._brokers = dict(found)

    def _hosts(self, broker_id: int, data: bytes) -> list[str]:
        try:
            endpoints = znodes.decode_broker(broker_id, data).endpoints
        except PoisonZnode as error:
            log.warn("{error}", error=error)
            return []
        return [each.host for each in endpoints if each.listener == self._listener]

    async def _resolved(self, host: str) -> list[str]:
        try:
            return await self._resolve(host)
        except KafkaError as error:
            log.warn("cannot resolve the registered host {host}: {error}", host=host, error=error)
            return []


def _plain(ip: str) -> str:
    """Return *ip* as `plain_address` does; what is no address as it is."""
    try:
        return plain_address(ip)
    except ValueError:
        return ip
