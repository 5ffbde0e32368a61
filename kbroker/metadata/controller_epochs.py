"""Which controller epochs exist: a request that claims a later one than known is checked against /controller_epoch.

A controller writes its epoch to ZooKeeper before it sends anything (`controller_election`). So an epoch that ZooKeeper
does not hold, after a sync, is none, and a request of it is refused before any fence rises. One read is under way at a
time, whatever the number of claims; an epoch that is known costs nothing.

While ZooKeeper cannot be read a request of a later epoch is not answered (`RequestRefusedError`): the controller sends
it again. An error code would be an answer, and the controller would not repeat the request.

In: claimed epochs   Out: verdicts   Owner: the reactor's thread
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
    """The latest controller epoch that ZooKeeper was seen to hold."""

    def __init__(self, zookeeper: ZooKeeper, reconnect: Reconnect) -> None:
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._known = 0
        self._waiting: list[Deferred[None]] | None = None
        """Those that share the read under way; None while there is none."""

    async def confirm(self, claimed: int) -> None:
        """Return if ZooKeeper holds controller epoch *claimed* or a later one.

        ClusterAuthorizationFailed if it does not, RequestRefusedError if it cannot be read.
        """
        if claimed > self._known and self._waiting is not None:
            await self._read()  # this one began before the claim, and may have missed its epoch
        if claimed > self._known:
            await self._read()
        if claimed > self._known:
            raise ClusterAuthorizationFailed(
                f"controller epoch {claimed} does not exist, {self._known} is the latest"
            )

    async def _read(self) -> None:
        """Read the epoch, or wait for the read that is under way."""
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
