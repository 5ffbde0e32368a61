"""The controller's channels to all live brokers (Kafka's ControllerChannelManager).

The state machine's effects add requests to the channels; `send_pending` then has the channels send, one after the
other, each in a turn of the reactor of its own. A channel sends its next request when the one before is acknowledged,
without the event queue: a slow broker delays no other. What a response reports is an event (`LeaderAndIsrAcked`,
`StopReplicaAcked`).

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine
from itertools import count
from typing import Any, Protocol

from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.common.turns import WorkerTurns
from kbroker.controller.controller_channel import (
    ControllerChannel,
    ControllerSettings,
    SendToBroker,
)
from kbroker.controller.core import effects as fx
from kbroker.controller.core.context import Broker
from kbroker.controller.core.events import Event


class ResponseReceiver(Protocol):
    """What the channels report to: the active controller."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* beside the event queue."""

    def response_received(self, event: Event | None) -> None:
        """Take the *event* of a response, if it has one."""

    def controller_moved(self, broker_id: int) -> None:
        """Take note that a broker knows a later controller epoch."""

    def failed(self, failure: Failure) -> None:
        """Take note of a bug."""


class ControllerChannelManager:
    """The channels of one controller epoch, one for each live broker."""

    def __init__(
        self,
        clock: Clock,
        settings: ControllerSettings,
        send: SendToBroker,
        controller_epoch: int,
        receiver: ResponseReceiver,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._send = send
        self._controller_epoch = controller_epoch
        self._receiver = receiver
        self._channels: dict[int, ControllerChannel] = {}
        self._request_numbers = count()
        """Of the requests to all brokers in this epoch."""
        self._to_send: dict[ControllerChannel, None] = {}
        """Channels that wait for a turn to send their next request."""
        self._is_sending = False
        self._closed = False

    def perform(
        self,
        effect: fx.OpenChannel
        | fx.CloseChannel
        | fx.SendLeaderAndIsr
        | fx.SendUpdateMetadata
        | fx.SendStopReplica,
    ) -> None:
        """Open or close a channel, or add a request to channels."""
        match effect:
            case fx.OpenChannel():
                self._open(effect.broker)
            case fx.CloseChannel():
                self._channels.pop(effect.broker_id).close()
            case fx.SendLeaderAndIsr():
                self._channels[effect.broker_id].queue.leader_and_isr(
                    effect.partitions, effect.live_leaders
                )
            case fx.SendUpdateMetadata():
                for broker_id in effect.broker_ids:
                    self._channels[broker_id].queue.update_metadata(
                        effect.partitions,
                        effect.live_brokers,
                        full=effect.full,
                        alone=effect.before_leaders,
                    )
            case fx.SendStopReplica():
                self._channels[effect.broker_id].queue.stop_replica(effect.stops)

    def send_pending(self) -> None:
        """Have every channel send its next request, unless one is unanswered."""
        for channel in self._channels.values():
            self._to_send[channel] = None
        self._send_in_turns()

    def is_drained(self, leaving: Collection[int]) -> bool:
        """Return whether every broker that can be reached, but the *leaving*, has acknowledged every request.

        Requests to the leaving brokers do not count: where the controller's own broker leaves, they wait behind the
        very request that it waits for.
        """
        return all(c.is_drained for id, c in self._channels.items() if id not in leaving)

    def close(self) -> None:
        """Send nothing any more."""
        self._closed = True
        for channel in self._channels.values():
            channel.close()

    # -- what channels report ----------------------------------------------------------------

    def response_received(self, channel: ControllerChannel, event: Event | None) -> None:
        """Pass the *event* of a response on; let *channel* send its next request."""
        self._receiver.response_received(event)
        self._to_send[channel] = None
        self._send_in_turns()

    def controller_moved(self, broker_id: int) -> None:
        """Pass on that a broker knows a later controller epoch."""
        self._receiver.controller_moved(broker_id)

    def channel_failed(self, failure: Failure) -> None:
        """Pass a bug on."""
        self._receiver.failed(failure)

    # ----------------------------------------------------------------------------------------

    def _open(self, broker: Broker) -> None:
        old = self._channels.pop(broker.broker_id, None)
        if old is not None:
            old.close()
        self._channels[broker.broker_id] = ControllerChannel(
            self._clock,
            self._settings,
            self._send,
            self._controller_epoch,
            broker,
            self,
            self._request_numbers,
        )

    def _send_in_turns(self) -> None:
        if not self._is_sending:
            self._is_sending = True
            self._receiver.run(self._send_all())

    async def _send_all(self) -> None:
        turns = WorkerTurns(self._clock, 0)  # a turn for each request that has a partition
        try:
            while self._to_send and not self._closed:
                channel = next(iter(self._to_send))
                del self._to_send[channel]
                # Also after the last: what is to be sent in this turn has to wait for the next.
                await turns.done(channel.send_next())
        finally:
            self._is_sending = False
