"""The registration of this broker: which controller requests it fences, and which broker epoch its fetches carry.

A controller request carries the broker epoch (the czxid of our registration) that it is meant for (KIP-380). A request
for an earlier registration is rejected, also when that registration is over and there is no other yet. A request for a
later registration than the known one proves that it exists: the controller may learn of it before this broker (S9).

In: registrations, the end of a session   Out: verdicts   Owner: replica.replica_manager
"""

from __future__ import annotations


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

    def registered(self, broker_epoch: int) -> bool:
        """Record a registration; return whether it differs from the last one."""
        is_another = self.broker_epoch not in (-1, broker_epoch)
        self.broker_epoch = broker_epoch
        self.is_expired = False
        return is_another

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
