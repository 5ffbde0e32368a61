"""Checks that the controller epoch of a request exists: a later epoch than known is looked up in /controller_epoch.

A controller writes its epoch to ZooKeeper before it sends any request (`controller_election`). So an epoch that
ZooKeeper does not hold, after a sync, does not exist. Its request is rejected before `ControllerFence` remembers the
epoch: otherwise one forged request would fence the real controller. One read is in flight at a time, for any number of
requests; a known epoch needs none.

While ZooKeeper cannot be read, a request of a later epoch is not answered (`RequestRefusedError`): the controller sends
it again. After an error code the controller would not repeat the request.

In: epochs of requests   Out: errors   Owner: the reactor's thread
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from kbroker.network.service import RequestRefusedError
from kbroker.zk import znodes
from kbroker.zk.errors import NoNode, ZooKeeperError
from kbroker.zk.interface import Node, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import ClusterAuthorizationFailed, RequestTimedOut


class ControllerEpochs:
    """The latest controller epoch read from ZooKeeper."""

    def __init__(self, zookeeper: ZooKeeper, reconnect: Reconnect) -> None:
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._known = 0
        self._waiting: list[Deferred[None]] | None = None
        """The requests that share the read in flight; None without a read."""

    async def confirm(self, claimed: int) -> None:
        """Return if ZooKeeper holds controller epoch *claimed* or a later one.

        ClusterAuthorizationFailed if it does not, RequestRefusedError if it cannot be read.
        """
        if claimed > self._known and self._waiting is not None:
            await self._read()  # a read that began before the request may have missed its epoch
        if claimed > self._known:
            await self._read()
        if claimed > self._known:
            raise ClusterAuthorizationFailed(
                f"controller epoch {claimed} does not exist, {self._known} is the latest"
            )

    async def _read(self) -> None:
        """Read the epoch, or wait for the read in flight."""
        if self._waiting is not None:
            shared: Deferred[None] = Deferred()
            self._waiting.append(shared)
            await shared
            return
        self._waiting = []
        refused: RequestRefusedError | None = None
        try:
            node = await self._reconnect.read(None, self._synced)
            self._known = max(self._known, znodes.decode_controller_epoch(node.data))
        except NoNode:
            pass
        except (ZooKeeperError, RequestTimedOut) as error:
            refused = RequestRefusedError(f"the controller epoch cannot be checked: {error}")
        waiting, self._waiting = self._waiting, None
        for each in waiting:
            if refused is None:
                each.callback(None)
            else:
                each.errback(refused)
        if refused is not None:
            raise refused

    async def _synced(self) -> Node:
        await self._zookeeper.sync(znodes.CONTROLLER_EPOCH)
        return await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
