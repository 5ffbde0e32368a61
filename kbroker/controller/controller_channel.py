"""The controller's channel to one broker: one request at a time, sent again until it is answered (S20).

Pending requests wait in a `BrokerRequestQueue`. `send_next` sends one when the channel manager has a turn for it. A
request to a broker that cannot be reached is sent again until the broker answers or its registration is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.controller.core.broker_request_queue import BrokerRequestQueue, PendingRequest
from kbroker.controller.core.context import Broker
from kbroker.controller.core.control_requests import event_for, request_for
from kbroker.controller.core.events import Event
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
        """Answer the response, or fail when the connection does."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The part of the broker's configuration that the controller uses."""

    broker_id: int
    inter_broker_listener: str
    delete_topic_enable: bool = True
    rebalance_seconds: float | None = None
    """leader.imbalance.check.interval.seconds; None: no preferred leader election by itself."""
    imbalance_percentage: int = 10
    leave_seconds: float = 3.0
    """How long a broker that leads nothing any more waits for the other brokers to acknowledge that."""
    unclean_leader_election: Callable[[], bool] = lambda: False
    """unclean.leader.election.enable of topics without a setting of their own."""
    min_insync_replicas: Callable[[str], int] = lambda _topic: 1
    """A topic's min.insync.replicas."""
    is_extended: bool = True
    """Whether inter.broker.protocol.version allows our extensions of requests."""
    partitions_per_turn: int = 500
    """The most partitions in one turn of the reactor, and in one request: some 10 ms."""


class ChannelOwner(Protocol):
    """What a channel reports to: the `ControllerChannelManager`."""

    def response_received(self, channel: ControllerChannel, event: Event | None) -> None:
        """Take the *event* of a response, if it has one; *channel* may have a next request to send."""

    def controller_moved(self, broker_id: int) -> None:
        """Take note that a broker knows a later controller epoch."""

    def channel_failed(self, failure: Failure) -> None:
        """Take note of a bug in handling a response."""


class ControllerChannel:
    """One broker's channel: one request at a time, sent again until it is answered (S20)."""

    def __init__(
        self,
        clock: Clock,
        settings: ControllerSettings,
        send: SendToBroker,
        controller_epoch: int,
        broker: Broker,
        owner: ChannelOwner,
        request_numbers: Iterator[int] | None = None,
    ) -> None:
        self.queue = BrokerRequestQueue(settings.partitions_per_turn, request_numbers)
        self._clock = clock
        self._settings = settings
        self._send = send
        self._controller_epoch = controller_epoch
        self._broker = broker
        self._owner = owner
        self._out: Deferred[Any] | None = None
        self._closed = False
        self._failures = 0

    @property
    def is_drained(self) -> bool:
        """Whether the broker has acknowledged every request, or cannot be reached."""
        return self.queue.is_idle or self._failures > 0

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
        api, version, request = request_for(
            pending,
            controller_id=self._settings.broker_id,
            controller_epoch=self._controller_epoch,
            broker=self._broker,
            listener=self._settings.inter_broker_listener,
            is_extended=self._settings.is_extended,
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
        name = self._settings.inter_broker_listener
        endpoint = next((e for e in self._broker.endpoints if e.listener == name), None)
        if endpoint is None:
            return fail(BrokerNotAvailable(f"it registered no listener {name}"))
        return self._send(
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
        self._clock.callLater(RESEND_SECONDS, self._transmit, pending)
