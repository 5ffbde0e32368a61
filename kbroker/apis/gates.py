"""The stage before the handler: what a request waits for, by the column `gate` of the table.

REGISTERED, for the controller's requests: until this broker is registered, and so knows its broker epoch (KIP-380). The
registration of the run before may still be in /brokers/ids while the listeners are open already; requests for it are
under way. Then the controller epoch of the request is checked against ZooKeeper (`metadata/controller_epochs.py`), so
that no fence rises to an epoch that does not exist.

METADATA, for requests about the cluster: until the controller has sent the whole metadata, at most `METADATA_SECONDS`.
A broker listens before that. A consumer that received "unknown topic" then would rejoin its group, and one that looks
for its coordinator would have `__consumer_offsets` created. Kafka responds at once.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable
from enum import Enum, auto
from typing import Any, Final, Protocol

from kbroker.common.reactor import Clock
from kbroker.metadata.broker_epoch import Registration
from kbroker.metadata.controller_epochs import ControllerEpochs
from kbroker.metadata.metadata_cache import MetadataCache

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
            return self._registered(request.controller_epoch)
        if gate is Gate.METADATA and not self._metadata.is_whole:
            return self._metadata.received_within(METADATA_SECONDS, self._clock, self._broker_id)
        return None

    async def _registered(self, controller_epoch: int) -> None:
        await self._registration.known()
        await self._controller_epochs.confirm(controller_epoch)
