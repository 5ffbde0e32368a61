"""The secret that the brokers of a cluster share, as ZooKeeper holds it: /cluster/inter_broker_secret.

The first broker that starts creates the znode. Every broker reads it before it listens, and watches it. An operator may
replace it at any time. When the znode is deleted every broker keeps what it has; the next broker that starts creates
another. `kbroker.security.core.broker_proof` explains its use.

In: the znode   Out: `BrokerProofs.learn`   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from twisted.logger import Logger

from kbroker.security.core.broker_proof import BrokerProofs
from kbroker.zk import znodes
from kbroker.zk.errors import NodeExists, NoNode, PoisonZnode
from kbroker.zk.interface import Node, Watch, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kbroker.zk.znodes.brokers import SECRET_BYTES

log = Logger()


class InterBrokerSecret:
    """Gives *proofs* the cluster's secret, and every later one."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        reconnect: Reconnect,
        proofs: BrokerProofs,
        *,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._proofs = proofs
        self._random_bytes = random_bytes
        self._watch: Watch | None = None

    async def start(self) -> None:
        """Read the secret, created if there is none, and watch it. PoisonZnode if it is unreadable."""
        self._proofs.learn(await self._reconnect.read(None, self._obtain))
        self._watch = self._zookeeper.watch_data(znodes.INTER_BROKER_SECRET, self._seen)

    def stop(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _obtain(self) -> bytes:
        zookeeper, path = self._zookeeper, znodes.INTER_BROKER_SECRET
        try:
            node = await zookeeper.get(path)
        except NoNode:
            proposal = znodes.encode_inter_broker_secret(self._random_bytes(SECRET_BYTES))
            with suppress(NodeExists):
                await zookeeper.create(path, proposal, make_parents=True)
            node = await zookeeper.get(path)
        return znodes.decode_inter_broker_secret(node.data)

    def _seen(self, node: Node | None) -> None:
        if node is None:
            log.warn("{path} is gone; the secret stays in use", path=znodes.INTER_BROKER_SECRET)
            return
        try:
            self._proofs.learn(znodes.decode_inter_broker_secret(node.data))
        except PoisonZnode as error:
            log.error("{error}; the secret before it stays in use", error=error)
