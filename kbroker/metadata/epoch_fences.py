"""The fences of controller epoch and broker epoch: which requests of a controller arrive too late.

All fences of a broker compare an epoch of a request with the latest one, and differ in where the latest epoch is kept:

- controller epoch: one number per broker, which every accepted request may raise: `ControllerFence`;
- broker epoch: the broker's own `Registration`. `ControllerFence.check` applies both, in this order, to every request
  of a controller;
- leader epoch: one number per partition, inside the state that it protects (`kbroker.replica.core.role`), because the
  role, the log and the epoch change together;
- the coordinator of a group fences its own writes, not requests: only ZooKeeper knows a later leader
  (`kbroker.coordinator.shard_fence`).

A common abstraction would be the one comparison `<`; the rules around it (equal epochs, unknown epochs, what is
remembered) differ for each. So there is one fence per kind of epoch, and no base class.

In: epochs of requests, registrations, the end of a session   Out: verdicts, and the first moment at which the broker
epoch is known   Owner: the reactor's thread
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred

from kclient.wire.errors import InvalidUpdateVersion, StaleBrokerEpoch, StaleControllerEpoch


class ControllerRequest(Protocol):
    """The epochs of LeaderAndIsr, StopReplica and UpdateMetadata."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    request_number: int


class ControllerFence:
    """Rejects requests of a deposed controller, and requests that a later one of the same controller has overtaken.

    Requests with a lower controller epoch than the highest known are rejected (KAFKA-1188). A controller numbers its
    requests. It has one in flight to a broker, and sends it again by another connection if the answer is missing. The
    first copy may still arrive after requests with higher numbers. Leader epochs fence a late LeaderAndIsr, but a late
    StopReplica that deletes, or a late full UpdateMetadata, would undo the later requests.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._sender = (-1, -1)
        """Controller epoch and broker epoch of the last numbered request."""
        self._number = -1

    def check(
        self, request: ControllerRequest, broker_epoch: int, *, check_number: bool = True
    ) -> None:
        """Let *request* pass all fences, and remember its epoch and number, or raise what rejects it.

        *broker_epoch* is the lowest that this broker accepts. Without *check_number* a later request may have arrived.
        StaleBrokerEpoch, StaleControllerEpoch, InvalidUpdateVersion.
        """
        if fences_broker(request.broker_epoch, broker_epoch):
            raise StaleBrokerEpoch(
                f"meant for broker epoch {request.broker_epoch}, not {broker_epoch}"
            )
        if not self.admits(request.controller_epoch):
            raise StaleControllerEpoch(
                f"controller epoch {request.controller_epoch} of broker {request.controller_id} is "
                f"over, {self.epoch} is known"
            )
        number = request.request_number
        if check_number and self.is_overtaken(
            request.controller_epoch, request.broker_epoch, number
        ):
            raise InvalidUpdateVersion(f"a later request arrived before request {number}")

    def admits(self, controller_epoch: int) -> bool:
        """Return whether *controller_epoch* is the highest so far; remember it if so."""
        if controller_epoch < self.epoch:
            return False
        self.epoch = controller_epoch
        return True

    def is_overtaken(self, controller_epoch: int, broker_epoch: int, number: int) -> bool:
        """Return whether a request with a higher *number* arrived before this one; remember *number* if not.

        The highest number again is a repeated request: it is handled again. -1 is not numbered.
        """
        if number < 0:
            return False
        sent = ((controller_epoch, broker_epoch), number)
        if sent < (self._sender, self._number):
            return True
        self._sender, self._number = sent
        return False


def fences_broker(request_epoch: int, broker_epoch: int) -> bool:
    """Return whether a request is for an earlier registration of this broker (KIP-380).

    A later epoch than known is accepted: the controller may have read the registration before its answer reached the
    broker (S9). -1 is unknown, on either side.
    """
    return -1 < request_epoch < broker_epoch


class Registration:
    """The last registration of this broker: which controller requests it fences, which broker epoch its fetches carry.

    A controller request carries the broker epoch (the czxid of our registration) that it is meant for (KIP-380). A
    request for an earlier registration is rejected, also when that registration is over and there is no other yet. A
    request for a later registration than the known one proves that it exists: the controller may learn of it before
    this broker (S9).
    """

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

    @property
    def is_known(self) -> bool:
        """Whether this broker has registered."""
        return self.broker_epoch >= 0

    def known(self) -> Deferred[None]:
        """Fire once this broker has registered for the first time."""
        known: Deferred[None] = Deferred()
        if self.is_known:
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
