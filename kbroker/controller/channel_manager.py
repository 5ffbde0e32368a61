"""The controller's channels to all live brokers (Kafka's ControllerChannelManager).

The state machine's effects add requests to the channels' queues. `send_pending` then has the channels send, one after
the other, each in a turn of the reactor of its own. A channel has one request in flight, and sends its next one when
that is acknowledged, without the event queue. So a slow broker delays no other. A request to a broker that cannot be
reached is sent again until the broker answers or its registration is gone (S20). What a response reports is an event
(`LeaderAndIsrAcked`, `StopReplicaAcked`).

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.common.turns import WorkerTurns
from kbroker.controller.controller_events import Acknowledged
from kbroker.controller.core import effects as fx
from kbroker.controller.core.broker_request_queue import BrokerRequestQueue, PendingRequest
from kbroker.controller.core.context import Broker
from kbroker.controller.core.control_requests import event_for, request_for
from kbroker.controller.event_manager import ControllerEventManager
from kbroker.controller.settings import ControllerSettings
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import BrokerNotAvailable, ClusterAuthorizationFailed
from kclient.wire.versions import ApiKey

log = Logger()

RESEND_SECONDS = 0.1
"""Pause before a request is sent again after its connection failed."""


class SendToBroker(Protocol):
    """Sends one request to a broker's inter-broker listener: `kbroker.network.broker_connections`."""

    def __call__(
        self, broker_id: int, host: str, port: int, api: ApiKey, version: int, request: Any
    ) -> Deferred[Any]:
        """Return the response; fail with the connection."""


@dataclass(frozen=True, slots=True)
class ChannelDependencies:
    """What every channel of one controller epoch sends with."""

    clock: Clock
    settings: ControllerSettings
    send: SendToBroker
    controller_epoch: int


class OpenChannels:
    """The open channels of one controller epoch by broker, and what the brokers have acknowledged."""

    def __init__(self) -> None:
        self.by_broker: dict[int, ControllerChannel] = {}
        """`ControllerChannelManager` changes it."""

    @property
    def leaders_acknowledged(self) -> bool:
        """Whether every broker that can be reached has acknowledged every LeaderAndIsr."""
        return all(channel.leaders_acknowledged for channel in self.by_broker.values())

    def is_drained(self, leaving: Collection[int]) -> bool:
        """Return whether every broker that can be reached, but the *leaving*, has acknowledged every request.

        Requests to the leaving brokers do not count: these lead nothing any more, and are about to stop.
        """
        return all(c.is_drained for id, c in self.by_broker.items() if id not in leaving)


class ControllerChannelManager:
    """Opens and closes *channels*, one for each live broker, and sends the requests of one controller epoch.

    Events of responses go into *queue*. *acknowledged* is called after every response. *resign* is called when a broker
    knows a later controller epoch.
    """

    def __init__(
        self,
        dependencies: ChannelDependencies,
        channels: OpenChannels,
        queue: ControllerEventManager,
        *,
        acknowledged: Callable[[], None],
        resign: Callable[[str], None],
    ) -> None:
        self._dependencies = dependencies
        self._channels = channels.by_broker
        self._queue = queue
        self._acknowledged = acknowledged
        self._resign = resign
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

    def close(self) -> None:
        """Send nothing any more."""
        self._closed = True
        for channel in self._channels.values():
            channel.close()

    # -- what channels report ----------------------------------------------------------------

    def response_received(self, channel: ControllerChannel, event: Acknowledged | None) -> None:
        """Enqueue what a broker reported, if anything; let *channel* send its next request."""
        if event is not None:
            self._queue.put(event)
        self._acknowledged()
        self._to_send[channel] = None
        self._send_in_turns()

    def controller_moved(self, broker_id: int) -> None:
        """Resign: a broker knows a later controller epoch."""
        self._resign(f"broker {broker_id} knows a later controller epoch")

    def channel_failed(self, failure: Failure) -> None:
        """End the epoch because of a bug in sending a request or in handling a response."""
        self._queue.failed(failure)

    # ----------------------------------------------------------------------------------------

    def _open(self, broker: Broker) -> None:
        old = self._channels.pop(broker.broker_id, None)
        if old is not None:
            old.close()
        self._channels[broker.broker_id] = ControllerChannel(
            self._dependencies, broker, self, self._request_numbers
        )

    def _send_in_turns(self) -> None:
        if not self._is_sending:
            self._is_sending = True
            Deferred.fromCoroutine(self._send_all()).addErrback(self.channel_failed)

    async def _send_all(self) -> None:
        # A turn for each request that has a partition.
        turns = WorkerTurns(self._dependencies.clock, 0)
        try:
            while self._to_send and not self._closed:
                channel = next(iter(self._to_send))
                del self._to_send[channel]
                # Also after the last: what is to be sent in this turn has to wait for the next.
                await turns.done(channel.send_next())
        finally:
            self._is_sending = False


class ControllerChannel:
    """One broker's channel: one request at a time, sent again until it is answered (S20)."""

    def __init__(
        self,
        dependencies: ChannelDependencies,
        broker: Broker,
        owner: ControllerChannelManager,
        request_numbers: Iterator[int],
    ) -> None:
        self.queue = BrokerRequestQueue(dependencies.settings.partitions_per_turn, request_numbers)
        self._dependencies = dependencies
        self._broker = broker
        self._owner = owner
        self._out: Deferred[Any] | None = None
        self._closed = False
        self._failures = 0

    @property
    def is_drained(self) -> bool:
        """Whether the broker has acknowledged every request, or cannot be reached."""
        return self.queue.is_idle or self._failures > 0

    @property
    def leaders_acknowledged(self) -> bool:
        """Whether the broker has acknowledged every LeaderAndIsr, or cannot be reached."""
        return not self.queue.has_leader_and_isr or self._failures > 0

    def send_next(self) -> int:
        """Send the next request unless one is unanswered; return how many partitions it has."""
        pending = None if self._closed else self.queue.next_request()
        if pending is None:
            return 0
        self._transmit(pending)
        return pending.size

    def close(self) -> None:
        """Send nothing any more."""
        self._closed = True
        if self._out is not None:
            self._out.cancel()

    def _transmit(self, pending: PendingRequest) -> None:
        if self._closed:
            return
        settings = self._dependencies.settings
        api, version, request = request_for(
            pending,
            controller_id=settings.broker_id,
            controller_epoch=self._dependencies.controller_epoch,
            broker=self._broker,
            listener=settings.inter_broker_listener,
            is_extended=settings.is_extended,
        )
        out = self._out = self._request(api, version, request)
        out.addCallbacks(
            self._have_response,
            self._have_failure,
            callbackArgs=(pending,),
            errbackArgs=(pending,),
        )
        out.addErrback(self._owner.channel_failed)

    def _request(self, api: ApiKey, version: int, request: Any) -> Deferred[Any]:
        settings = self._dependencies.settings
        registered = {each.listener: each for each in self._broker.endpoints}
        # During a rolling restart that adds a control plane listener, some brokers have none yet.
        endpoint = registered.get(settings.control_plane_listener)
        endpoint = endpoint or registered.get(settings.inter_broker_listener)
        if endpoint is None:
            name = settings.inter_broker_listener
            return fail(BrokerNotAvailable(f"it registered no listener {name}"))
        return self._dependencies.send(
            self._broker.broker_id, endpoint.host, endpoint.port, api, version, request
        )

    def _have_response(self, response: Any, pending: PendingRequest) -> None:
        self._out = None
        if self._closed:
            return
        if response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._owner.controller_moved(self._broker.broker_id)
            return
        if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # It does not know our secret or our epoch yet, and did nothing: send the request again.
            refused = ClusterAuthorizationFailed("it does not accept this broker as the controller")
            self._have_failure(Failure(refused), pending)
            return
        if self._failures:
            log.info("broker {id} answers again", id=self._broker.broker_id)
            self._failures = 0
        if response.error_code not in (ErrorCode.NONE, ErrorCode.STALE_BROKER_EPOCH):
            log.warn(
                "broker {id} answered {request} with error {code}",
                id=self._broker.broker_id,
                request=type(pending).__name__.removeprefix("Pending"),
                code=response.error_code,
            )
        self.queue.answered()
        self._owner.response_received(self, event_for(pending, response, self._broker))

    def _have_failure(self, failure: Failure, pending: PendingRequest) -> None:
        self._out = None
        if self._closed or isinstance(failure.value, CancelledError):
            return
        self._failures += 1
        if self._failures == 1:
            log.warn(
                "cannot reach broker {id}: {why}; trying until it answers or its session ends",
                id=self._broker.broker_id,
                why=failure.getErrorMessage(),
            )
        self._dependencies.clock.callLater(RESEND_SECONDS, self._transmit, pending)
