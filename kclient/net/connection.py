"""A connection to one broker: sends requests and matches responses to them in order.

Theory of operation
===================
`connect` resolves the address, tries each of its IP addresses, and requests the broker's ApiVersions (KIP-511): version
3 or above first. A broker without it answers in version 0 with UNSUPPORTED_VERSION, and gets a request in version 0.
Then `request` sends at once, up to *max_in_flight* unanswered requests, and queues further ones. A request without a
response within its timeout closes the connection, as in Kafka's client. Responses come in order, so no later one can
arrive either.

Invariants: 1. every returned Deferred fires exactly once, at the latest when the connection ends. 2. no response
reaches another request than its own. 3. after the end nothing is sent.
Owner: the reactor's thread.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet import error
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Protocol

from kclient.errors import (
    Address,
    Cause,
    ConnectError,
    ConnectionClosed,
    KafkaTimeoutError,
)
from kclient.net.codecs import decode_response, encode_request
from kclient.net.dial import connect_to_ip, explain, resolve
from kclient.net.handshake import fetch_api_versions
from kclient.net.pending import PendingRequest, PendingRequests
from kclient.net.transport import PartsClient
from kclient.wire.errors import (
    KafkaError,
    ProtocolError,
)
from kclient.wire.framing import FrameReader
from kclient.wire.versions import SUPPORTED, ApiKey, VersionRange, negotiate

if TYPE_CHECKING:
    from kclient.wire.batches import Buffer

DEFAULT_MAX_FRAME = 128 << 20
"""The largest response in bytes: above fetch.max.bytes (50 MiB) and one oversized batch."""

_TRUSTED = 16 << 20
"""Bytes that are allocated for a response as soon as its length is known."""

_JOIN_BELOW = 16384
_LENGTH = struct.Struct(">i")


KEPT_METADATA = 2
"""Metadata responses of a connection that later ones are compared with: of all topics, and of some."""

LARGEST_KEPT_METADATA = 4 << 20
"""In bytes: some 150,000 partitions."""

_CORRELATION_ID = 4
"""Its size in bytes: the rest of two responses may be equal."""


class Connection(Protocol):
    """A connection to one broker; `connect` creates it.

    *api_versions* are the version ranges of the broker's APIs, *features* its supported features (KIP-584). *closed* is
    the reason why the connection ended, or None.
    """

    def __init__(
        self,
        reactor: Any,
        address: Address,
        *,
        client_id: str | None = "kclient",
        request_timeout: float = 30.0,
        max_in_flight: int = 100,
        max_frame: int = DEFAULT_MAX_FRAME,
    ) -> None:
        self._reactor = reactor
        self.address = address
        self.client_id = client_id
        self.request_timeout = request_timeout
        self.max_in_flight = max_in_flight
        self.api_versions: Mapping[int, VersionRange] = {}
        self.features: Mapping[str, VersionRange] = {}
        self.closed: KafkaError | None = None
        self.last_used = 0.0
        self.requests = 0
        self.transport_ready: Deferred[Any] | None = None
        self._frames = FrameReader(max_frame, first_growth=_TRUSTED)
        self._pending = PendingRequests()
        self._queued: deque[tuple[int, int, Any, float, Deferred[Any]]] = deque()
        self._unsent: deque[tuple[float, Deferred[None]]] = deque()
        """Requests without a response that the kernel does not have yet, each with its deadline in seconds."""
        self._timer: IDelayedCall | None = None
        self._on_close: list[Callable[[Connection], None]] = []
        self._gone: list[Deferred[None]] = []
        self._answers = 0
        self._metadata: deque[tuple[int, bytes, Any]] = deque(maxlen=KEPT_METADATA)
        """The version, the encoded body and the decoded one of the last Metadata responses."""

    # --- for callers

    def __repr__(self) -> str:
        return f"<Connection {self.address} in_flight={len(self._pending)}>"

    @property
    def in_flight(self) -> int:
        """The number of requests that are sent and unanswered."""
        return len(self._pending)

    def version_for(self, api_key: int) -> int:
        """Return the highest version that both sides support.

        Raise UnsupportedVersion with both ranges if there is none. Before ApiVersions is known the broker is assumed to
        support the client's versions.
        """
        api = ApiKey(api_key)
        ours = SUPPORTED.get(api)
        if not self.api_versions:
            return negotiate(api, ours, ours)
        return negotiate(api, ours, self.api_versions.get(api_key))

    def request(
        self, api_key: int, version: int | None, message: Any, *, timeout: float | None = None
    ) -> Deferred[Any]:
        """Send *message* and fire with the response.

        *version* None takes the highest common version. *timeout* is in seconds, request_timeout if None. Fails with
        `ConnectionClosed` or `KafkaTimeoutError` without a response (the broker may have handled the request),
        `UnsupportedVersion`, or `ProtocolError`. Cancelling drops the response; it does not revoke the request.
        """
        if self.closed is not None:
            return fail(self._closed_error())
        try:
            chosen = self.version_for(api_key) if version is None else version
        except KafkaError as problem:
            return fail(problem)
        waiter: Deferred[Any] = Deferred()
        allowed = self.request_timeout if timeout is None else timeout
        if len(self._pending) >= self.max_in_flight or self._queued:
            self._queued.append((api_key, chosen, message, allowed, waiter))
        else:
            self._send(api_key, chosen, message, allowed, waiter)
        return waiter

    def send(self, api_key: int, version: int | None, message: Any) -> Deferred[None]:
        """Send a request without a response (Produce with acks=0); fire when the kernel has all of it.

        Fails as `request` does: a request that the kernel has only in part is lost with its connection.
        """
        if self.closed is not None:
            return fail(self._closed_error())
        try:
            chosen = self.version_for(api_key) if version is None else version
            correlation_id = self._pending.next_correlation_id()
            parts = encode_request(api_key, chosen, correlation_id, self.client_id, message)
        except Exception as problem:  # as in `_send`
            return fail(problem)
        now = self.last_used = self._reactor.seconds()
        self.requests += 1
        self._write(parts)
        transport: Any = self.transport
        if not isinstance(transport, PartsClient):
            return succeed(None)
        handed_over = transport.when_sent()
        if handed_over.called:
            return handed_over
        waiter: Deferred[None] = Deferred()
        deadline = now + self.request_timeout
        self._unsent.append((deadline, waiter))
        handed_over.addCallback(lambda _: self._sent())
        if self._timer is None or self._timer.getTime() > deadline:
            self._arm(deadline)
        return waiter

    def close(self, reason: KafkaError | None = None) -> None:
        """Close the connection; every pending request fails with *reason*.

        Requests without a response reach the broker, as far as they are sent and nothing else is pending.
        """
        is_idle = self.closed is None and not self._pending and not self._queued
        self._lost(
            reason or ConnectionClosed(f"connection to {self.address} was closed by the client")
        )
        transport: Any = self.transport
        if is_idle and isinstance(transport, PartsClient):
            transport.end()
        elif transport is not None:
            transport.abortConnection()

    def on_close(self, callback: Callable[[Connection], None]) -> None:
        """Call *callback* with this connection when it ends, or at once if it has ended."""
        if self.closed is not None:
            callback(self)
        else:
            self._on_close.append(callback)

    def when_disconnected(self) -> Deferred[None]:
        """Fire once the socket is closed."""
        gone: Deferred[None] = Deferred()
        if self.transport is None:
            gone.callback(None)
        else:
            self._gone.append(gone)
        return gone

    # --- for the transport

    def connectionMade(self) -> None:  # noqa: N802 (Twisted's name)
        """Set socket options and notify the dialler."""
        transport: Any = self.transport
        if hasattr(transport, "setTcpNoDelay"):
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)
        self.last_used = self._reactor.seconds()
        ready, self.transport_ready = self.transport_ready, None
        if ready is not None:
            ready.callback(self)

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next received bytes."""
        return self._frames.get_buffer(65536)

    def buffer_updated(self, count: int) -> None:
        """Handle *count* received bytes."""
        try:
            frames = self._frames.buffer_updated(count)
        except ProtocolError as problem:
            self.close(self._not_kafka(problem))
            return
        self._frames_received(frames)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 (Twisted's name)
        """Handle bytes from a transport with its own buffer."""
        try:
            frames = self._frames.feed(data)
        except ProtocolError as problem:
            self.close(self._not_kafka(problem))
            return
        self._frames_received(frames)

    def connectionLost(self, reason: Any = None) -> None:  # noqa: N802 (Twisted's name)
        """Fail all pending requests."""
        self.transport = None
        clean = reason is None or reason.check(error.ConnectionDone) is not None
        detail = "the broker closed it" if clean else reason.getErrorMessage()
        self._lost(
            ConnectionClosed(f"connection to {self.address} was lost while waiting: {detail}")
        )
        gone, self._gone = self._gone, []
        for waiter in gone:
            waiter.callback(None)

    # --- inside

    def _send(
        self, api_key: int, version: int, message: Any, timeout: float, waiter: Deferred[Any]
    ) -> None:
        correlation_id = self._pending.next_correlation_id()
        try:
            parts = encode_request(api_key, version, correlation_id, self.client_id, message)
        except (
            Exception
        ) as problem:  # this version cannot encode the message: a mistake of the caller only
            waiter.errback(problem)
            return
        now = self._reactor.seconds()
        entry = PendingRequest(api_key, version, correlation_id, now, now + timeout, waiter)
        waiter._canceller = lambda _: _give_up(entry)
        self._pending.sent(entry)
        self.requests += 1
        self.last_used = now
        self._write(parts)
        if self._timer is None or self._timer.getTime() > entry.deadline:
            self._arm(entry.deadline)

    def _write(self, parts: Sequence[Buffer]) -> None:
        transport: Any = self.transport
        size = sum(len(part) for part in parts)
        if size > _JOIN_BELOW and isinstance(transport, PartsClient):
            transport.writeSequence((_LENGTH.pack(size), *parts))
        else:
            transport.write(b"".join((_LENGTH.pack(size), *parts)))

    def _frames_received(self, frames: list[memoryview]) -> None:
        for frame in frames:
            if self.closed is not None:
                return
            try:
                entry = self._pending.answered(frame)
            except ProtocolError as problem:
                self.close(self._not_kafka(problem))
                return
            self._answers += 1
            waiter = entry.waiter
            if waiter is None:
                continue
            try:
                response = self._decode(entry, frame)
            except ProtocolError as problem:
                problem.message = (
                    f"{ApiKey(entry.api_key).name} v{entry.version} response of {self.address}: "
                    f"{problem.message}"
                )
                waiter.errback(problem)
                self.close(problem)
                return
            waiter.callback(response)
        while self._queued and self.closed is None and len(self._pending) < self.max_in_flight:
            api_key, version, message, timeout, waiter = self._queued.popleft()
            if not waiter.called:
                self._send(api_key, version, message, timeout, waiter)
        if not self._pending and not self._unsent and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._frames.broken is not None and self.closed is None:
            self.close(self._not_kafka(self._frames.broken))

    def _decode(self, entry: PendingRequest, frame: memoryview) -> Any:
        version = entry.version
        if entry.api_key == ApiKey.API_VERSIONS and bytes(frame[4:6]) == b"\x00\x23":
            version = 0  # UNSUPPORTED_VERSION: the response has version 0 (KIP-511)
        if entry.api_key == ApiKey.METADATA:
            return self._decode_metadata(version, frame)
        return decode_response(entry.api_key, version, frame)

    def _decode_metadata(self, version: int, frame: memoryview) -> Any:
        """Return the response of before if this one is equal: 1,000 partitions take 10 ms to decode.

        A response is never changed, so that it may be returned again.
        """
        body = frame[_CORRELATION_ID:]
        for kept in self._metadata:
            if kept[0] == version and kept[1] == body:
                return kept[2]
        response = decode_response(ApiKey.METADATA, version, frame)
        if len(body) <= LARGEST_KEPT_METADATA:
            self._metadata.append((version, bytes(body), response))
        return response

    def _sent(self) -> None:
        """Report the oldest request of `send` that waits: the kernel has it."""
        if self._unsent:
            self._unsent.popleft()[1].callback(None)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, deadline - self._reactor.seconds())
        self._timer = self._reactor.callLater(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        late = self._pending.expired(self._reactor.seconds())
        if late is not None:
            waited = self._reactor.seconds() - late.sent_at
            name = ApiKey(late.api_key).name
            self.close(
                KafkaTimeoutError(
                    f"{self.address} did not answer {name} v{late.version} in {waited:.1f} s"
                )
            )
            return
        if self._unsent and self._unsent[0][0] <= self._reactor.seconds():
            self.close(
                KafkaTimeoutError(
                    f"{self.address} did not take a request in {self.request_timeout:g} s"
                )
            )
            return
        deadlines = [deadline for deadline, _ in self._unsent]
        earliest = self._pending.earliest_deadline()
        if earliest is not None:
            deadlines.append(earliest)
        if deadlines:
            self._arm(min(deadlines))

    def _not_kafka(self, problem: ProtocolError) -> KafkaError:
        if self._answers:
            return problem
        return ConnectError(self.address, Cause.NOT_KAFKA, problem.message)

    def _closed_error(self) -> KafkaError:
        reason = self.closed
        assert reason is not None
        return ConnectionClosed(f"not connected to {self.address}: {reason}")

    def _lost(self, reason: KafkaError) -> None:
        """End once: keep the reason, stop the timer, fail pending requests, call the listeners."""
        if self.closed is not None:
            return
        self.closed = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiters = [entry.waiter for entry in self._pending.take_all()]
        waiters += [queued[-1] for queued in self._queued]
        waiters += [waiter for _, waiter in self._unsent]
        self._queued.clear()
        self._unsent.clear()
        callbacks, self._on_close = self._on_close, []
        for waiter in waiters:
            if waiter is not None and not waiter.called:
                waiter.errback(reason)
        for callback in callbacks:
            callback(self)


def _give_up(entry: PendingRequest) -> None:
    """Let the answer pass when it comes; the caller no longer waits for it."""
    entry.waiter = None


async def connect(
    reactor: Any,
    address: Address,
    *,
    client_id: str | None = "kclient",
    connect_timeout: float = 10.0,
    request_timeout: float = 30.0,
    max_in_flight: int = 100,
    max_frame: int = DEFAULT_MAX_FRAME,
    negotiate_versions: bool = True,
) -> Connection:
    """Connect to *address* within *connect_timeout* seconds, ApiVersions included.

    Raise `ConnectError` with the address and the cause. Use ``Deferred.fromCoroutine`` to get a Deferred.
    """
    give_up_at = reactor.seconds() + connect_timeout
    ips = await _within(reactor, resolve(reactor, address), connect_timeout, address, Cause.DNS)
    last: ConnectError | None = None
    for index, ip in enumerate(ips):
        left = give_up_at - reactor.seconds()
        if left <= 0:
            break
        connection = Connection(
            reactor,
            address,
            client_id=client_id,
            request_timeout=request_timeout,
            max_in_flight=max_in_flight,
            max_frame=max_frame,
        )
        share = left / (len(ips) - index)
        try:
            await connect_to_ip(reactor, ip, address.port, connection, timeout=share)
        except CancelledError:
            raise
        except Exception as problem:
            last = explain(address, problem, share)
            continue
        if negotiate_versions:
            await fetch_api_versions(connection, max(0.1, give_up_at - reactor.seconds()))
        return connection
    raise last or ConnectError(address, Cause.TIMEOUT, f"no answer in {connect_timeout:g} s")


Dial = Callable[..., Awaitable[Connection]]
"""The type of `connect`; simulations pass another function, without sockets."""


async def _within(
    reactor: Any, waiting: Deferred[Any], timeout: float, address: Address, cause: Cause
) -> Any:
    """Wait at most *timeout* seconds for *waiting*; then raise a `ConnectError` of *cause*."""
    waiting.addTimeout(timeout, reactor)
    try:
        return await waiting
    except CancelledError:
        raise
    except KafkaError:
        raise
    except DeferredTimeoutError as problem:
        raise ConnectError(address, cause, f"no answer in {timeout:g} s") from problem
    except Exception as problem:
        raise ConnectError(address, cause, str(problem)) from problem
