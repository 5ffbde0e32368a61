"""Our registration, as far as the replicas go by it: whose orders count, and under which broker epoch we ask.

An order names the broker epoch (the czxid of our registration) that it is meant for (KIP-380). One for an earlier life
of ours is refused, also when that life is over and there is no other yet. One for a later life than we know of says
that we are registered: the controller may have seen that before we did (S9).

In: registrations, the end of a session   Out: verdicts   Owner: replica.replica_manager
"""

from __future__ import annotations

from kbroker.common.epoch_fences import fences_broker


class Registration:
    """The last registration of this broker."""

    def __init__(self) -> None:
        self.broker_epoch = -1
        """Its czxid; -1 before the first."""
        self.is_expired = False
        """Whether the session of that registration is over, and there is no other yet."""
        self.is_cut_off = False
        """Whether the session may be over, and another broker may have been elected (S11)."""
        self.is_leaving = False
        """Whether a controlled shutdown has begun."""

    def registered(self, broker_epoch: int) -> bool:
        """Take note of our registration; say whether it is another one than the last."""
        is_another = self.broker_epoch not in (-1, broker_epoch)
        self.broker_epoch = broker_epoch
        self.is_expired = False
        return is_another

    def refuses(self, broker_epoch: int) -> bool:
        """Say whether an order for *broker_epoch* was meant for a life of ours that is over."""
        over = self.broker_epoch + 1 if self.is_expired else self.broker_epoch
        return fences_broker(broker_epoch, over)

    def is_behind(self, broker_epoch: int) -> bool:
        """Say whether an order that is not refused knows of a later registration than we do."""
        return broker_epoch > self.broker_epoch > -1

    @property
    def epoch_to_join_by(self) -> int:
        """The broker epoch by which our fetches ask for a place in the ISR; -1 when we are about to go.

        Who follows until the end, but joins no more, leaves nobody with an ISR that he is missing from
        (KAFKA-14140).
        """
        return -1 if self.is_leaving or self.is_expired else self.broker_epoch
