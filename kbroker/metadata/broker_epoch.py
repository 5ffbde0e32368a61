"""This broker's epoch: the czxid of its last registration (KIP-380).

In: registrations   Out: the epoch, and the first moment at which it is known   Owner: the reactor's thread
"""

from __future__ import annotations

from twisted.internet.defer import Deferred


class BrokerEpoch:
    """The epoch of the last registration, also while there is none; None before the first."""

    def __init__(self) -> None:
        self.value: int | None = None
        self._waiting: list[Deferred[None]] = []

    def registered(self, broker_epoch: int) -> None:
        """Record the registration with *broker_epoch*."""
        self.value = broker_epoch
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)

    def known(self) -> Deferred[None]:
        """Fire once this broker has registered for the first time."""
        known: Deferred[None] = Deferred()
        if self.value is not None:
            known.callback(None)
        else:
            self._waiting.append(known)
        return known
