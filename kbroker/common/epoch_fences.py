"""The fences of controller epoch and broker epoch: which requests of a controller come too late.

In: epochs of requests   Out: verdicts   Owner: the reactor's thread
"""

from __future__ import annotations


class ControllerFence:
    """Refuses requests of a controller that a later request of a controller has overtaken.

    Requests of a lower controller epoch than the highest known are refused (KAFKA-1188). A controller numbers its
    requests, has one on its way to a broker at a time, and sends it again by another connection if no answer came. The
    first copy may still arrive, after requests with higher numbers: leader epochs fence a late LeaderAndIsr, but a
    late StopReplica that deletes, or a late full UpdateMetadata, would undo what came since.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._sender = (-1, -1)
        """Controller epoch, and broker epoch that the requests are meant for."""
        self._number = -1

    def admits(self, controller_epoch: int) -> bool:
        """Say whether a controller of *controller_epoch* may still give orders, and remember it."""
        if controller_epoch < self.epoch:
            return False
        self.epoch = controller_epoch
        return True

    def is_overtaken(self, controller_epoch: int, broker_epoch: int, number: int) -> bool:
        """Return whether a request with a higher *number* arrived before this one; remember *number* if not.

        The highest number again is a request that was sent again: it is handled again. -1 is not numbered.
        """
        if number < 0:
            return False
        sent = ((controller_epoch, broker_epoch), number)
        if sent < (self._sender, self._number):
            return True
        self._sender, self._number = sent
        return False


def fences_broker(request_epoch: int, broker_epoch: int) -> bool:
    """Say whether a request was meant for an earlier life of this broker (KIP-380).

    One for a *newer* life than known is accepted: the controller may have seen our registration
    before its answer reached us (S9). -1 is unknown, on either side.
    """
    return -1 < request_epoch < broker_epoch
