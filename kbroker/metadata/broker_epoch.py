"""The registration of this broker: which controller requests it fences, and which broker epoch its fetches carry.

A controller request carries the broker epoch (the czxid of our registration) that it is meant for (KIP-380). A request
for an earlier registration is rejected, also when that registration is over and there is no other yet. A request for a
later registration than the known one proves that it exists: the controller may learn of it before this broker (S9).

In: registrations, the end of a session   Out: verdicts, and the first moment at which the broker epoch is known
Owner: replica.replica_manager
"""

from __future__ import annotations

from twisted.internet.defer import Deferred


class Registration:
    """The last registration of this broker."""

    def __init__(self) -> None:
        self.broker_epoch = -1
        """Its czxid; -1 before the first registration."""
        self.is_expired = False
        """Whether the session of that registration is over, and there is no other yet."""
        self.is_cut_off = False
        """Whether the session may be over, and another broker may have been elected (S11)."""
        self.is_leaving = False
        """Whether a controlled shutdown has begun."""
        self._waiting: list[Deferred[None]] = []

    def registered(self, broker_epoch: int) -> bool:
        """Record a registration; return whether it differs from the last one."""
        is_another = self.broker_epoch not in (-1, broker_epoch)
        self.broker_epoch = broker_epoch
        self.is_expired = self.is_cut_off = False
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.callback(None)
        return is_another

    def known(self) -> Deferred[None]:
        """Fire once this broker has registered for the first time."""
        known: Deferred[None] = Deferred()
        if self.broker_epoch >= 0:
            known.callback(None)
        else:
            self._waiting.append(known)
        return known

    @property
    def lowest_accepted(self) -> int:
        """The lowest broker epoch of a controller request that this broker executes."""
        return self.broker_epoch + 1 if self.is_expired else self.broker_epoch

    def is_behind(self, broker_epoch: int) -> bool:
        """Return whether a request that passed the fences is for a later registration than the known one."""
        return broker_epoch > self.broker_epoch > -1

    @property
    def epoch_to_join_by(self) -> int:
        """The broker epoch in our fetches; -1 while shutting down or unregistered: then no leader adds us to an ISR.

        A broker that shuts down follows until the end without joining. No ISR then names a broker that is gone
        (KAFKA-14140).
        """
        return -1 if self.is_leaving or self.is_expired else self.broker_epoch
