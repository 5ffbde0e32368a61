"""The stage before the handler: what a request waits for, by the column `gate` of the table.

REGISTERED, for the controller's requests: until this broker is registered, and so knows its broker epoch (KIP-380). The
registration of the run before may still be in /brokers/ids while the listeners are open already; requests for it are
under way. Then the controller epoch of the request is checked against ZooKeeper (`ControllerEpochs`). A controller
writes its epoch to ZooKeeper before it sends any request (`controller_election`). So an epoch that ZooKeeper does not
hold, after a sync, does not exist. Its request is rejected before `ControllerFence` remembers the epoch: otherwise one
forged request would fence the real controller.

METADATA, for requests about the cluster: until the controller has sent the whole metadata, at most `METADATA_SECONDS`.
A broker listens before that. A consumer that received "unknown topic" then would rejoin its group, and one that looks
for its coordinator would have `__consumer_offsets` created. Kafka responds at once.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable
from enum import Enum, auto
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred

from kbroker.common.reactor import Clock
from kbroker.metadata.epoch_fences import Registration
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.network.service import RequestRefusedError
from kbroker.zk import znodes
from kbroker.zk.errors import NoNode, ZooKeeperError
from kbroker.zk.interface import Node, ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import ClusterAuthorizationFailed, RequestTimedOut

METADATA_SECONDS: Final = 2.0
"""Longest wait for the metadata; shorter than the request timeouts of clients."""


class Gate(Enum):
    """What the requests of an API wait for."""

    NONE = auto()
    REGISTERED = auto()
    METADATA = auto()


class Gates(Protocol):
    """Opens the gates of one broker."""

    def wait(self, gate: Gate, request: Any, /) -> Awaitable[object] | None:
        """Return what *request* waits for at *gate*; None: the gate is open."""


class ControllerEpochs:
    """The latest controller epoch read from ZooKeeper. A request with a later epoch than known causes a read.

    One read is in flight at a time, for any number of requests. While ZooKeeper cannot be read, a request of a later
    epoch is not answered (`RequestRefusedError`): the controller sends it again. After an error code the controller
    would not repeat the request.
    """

    def __init__(self, zookeeper: ZooKeeper, reconnect: Reconnect) -> None:
        self._zookeeper = zookeeper
        self._reconnect = reconnect
        self._known = 0
        self._waiting: list[Deferred[None]] | None = None
        """The requests that share the read in flight; None without a read."""

    def is_confirmed(self, claimed: int) -> bool:
        """Return whether controller epoch *claimed* or a later one was read already."""
        return claimed <= self._known

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


class BrokerGates:
    """The gates of a broker in a cluster."""

    def __init__(
        self,
        clock: Clock,
        broker_id: int,
        registration: Registration,
        controller_epochs: ControllerEpochs,
        metadata: MetadataCache,
    ) -> None:
        self._clock = clock
        self._broker_id = broker_id
        self._registration = registration
        self._controller_epochs = controller_epochs
        self._metadata = metadata

    def wait(self, gate: Gate, request: Any) -> Awaitable[object] | None:
        """Return what *request* waits for at *gate*; None: the gate is open."""
        if gate is Gate.REGISTERED:
            epoch = request.controller_epoch
            if self._registration.is_known and self._controller_epochs.is_confirmed(epoch):
                return None
            return self._registered(epoch)
        if gate is Gate.METADATA and not self._metadata.is_whole:
            return self._metadata.received_within(METADATA_SECONDS, self._clock, self._broker_id)
        return None

    async def _registered(self, controller_epoch: int) -> None:
        await self._registration.known()
        await self._controller_epochs.confirm(controller_epoch)
