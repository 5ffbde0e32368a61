"""The socket server: the listeners of a broker, their connections, and the sweep that closes idle and stuck ones.

A `Listener` is one endpoint. It accepts within the connection quotas and makes a `Connection` for each. All listeners
share the memory of requests and of unsent responses. connections.max.idle.ms is Kafka's.

Owner: the reactor's thread
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger

from kbroker.common.endpoint import Endpoint
from kbroker.config import KafkaConfig
from kbroker.network.acceptor import Acceptor, listen
from kbroker.network.connection import Connection, Limits, escaped
from kbroker.network.connection_quotas import (
    ConnectionQuotas,
    no_descriptor_left,
    raise_file_limit,
)
from kbroker.network.core.request_memory import (
    LATE_SECONDS,
    TICK_SECONDS,
    RequestMemory,
    Reservation,
)
from kbroker.network.plaintext_transport import READ_SIZE
from kbroker.network.service import Peer, Service
from kbroker.network.transport import UnsentMemory

log = Logger()

SWEEP_SECONDS = 5.0
"""Time between two sweeps over the connections."""

LINES_PER_SECOND = 500
"""Log lines about refused requests, all connections together."""


class RefusalLog:
    """The log lines about connections closed for what the peer sent: a bounded number per second (S40)."""

    def __init__(self, per_second: int = LINES_PER_SECOND) -> None:
        self._per_second = per_second
        self._second = -1
        self._written = 0
        self._dropped = 0

    def write(self, now: float, peer: Peer, cause: str) -> None:
        """Log that the connection of *peer* is closed because of *cause*, which may have bytes that the peer sent."""
        if int(now) != self._second:
            if self._dropped:
                log.warn("closed {count} more connections in a second", count=self._dropped)
            self._second, self._written, self._dropped = int(now), 0, 0
        if self._written == self._per_second:
            self._dropped += 1
            return
        self._written += 1
        log.info(
            "closing {peer} on {listener}: {cause}",
            peer=str(peer),
            listener=peer.listener,
            cause=escaped(cause),
        )


class Listener(ServerFactory):
    """One endpoint and its connections."""

    noisy = False

    def __init__(self, endpoint: Endpoint, server: SocketServer) -> None:
        self.endpoint = endpoint
        self._server = server
        self.reactor = server.reactor
        self.service = server.service
        self.scratch = server.scratch
        self.max_frame = server.config.socket_request_max_bytes
        self.close_timeout = server.config.kbroker_close_timeout_ms / 1000
        # No reserve on a listener of clients and brokers: nothing distinguishes their connections.
        self._between_brokers = (
            len(server.config.endpoints) > 1 and endpoint.listener in server.config.broker_listeners
        )
        self.memory = server.broker_memory if self._between_brokers else server.memory
        self.unsent = server.unsent
        self._unsent_max = server.config.kbroker_response_queue_max_bytes
        self._refusals = 0
        self._last_refusal_log = float("-inf")
        self.port: Acceptor | None = None

    def stop_listening(self) -> None:
        """Accept no more connections; those open stay."""
        if self.port is not None and self.port.connected:
            self.port.stopListening()

    def now(self) -> float:
        """Return the time, in seconds of a monotonic clock."""
        return self._server.clock()

    def admit(self, host: str, port: int, descriptor: int) -> Connection | None:
        """Accept or refuse the connection from *host* and *port*; *descriptor* is that of its socket."""
        now = self.now()
        wrong = no_descriptor_left(descriptor, self._between_brokers)
        if wrong is None:
            wrong = self._server.quotas.refusal(host, self._between_brokers, now)
        if wrong is not None:
            self._refusals += 1
            if now - self._last_refusal_log >= 1:
                log.warn(
                    "refused {count} connection(s) on {listener}, the last from {host}: {cause}",
                    count=self._refusals, listener=self.endpoint.listener, host=host, cause=wrong,
                )  # fmt: skip
                self._refusals, self._last_refusal_log = 0, now
            return None
        return Connection(self, Peer(host, port, self.endpoint.listener))

    def cannot_accept(self, error: OSError) -> None:
        """Log that no connection can be accepted for now."""
        now = self.now()
        if now - self._last_refusal_log >= 1:
            log.error("cannot accept connections on {listener}: {error}; they wait",
                      listener=self.endpoint.listener, error=error)  # fmt: skip
            self._last_refusal_log = now

    def opened(self, connection: Connection) -> None:
        """Add a new connection, and set the options of its socket."""
        transport = connection.transport
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        self._server.set_buffers(transport.getHandle())
        self._server.connections[connection] = None

    def closed(self, connection: Connection) -> None:
        """Remove a connection that is lost."""
        self._server.connections.pop(connection, None)
        self._server.quotas.release(connection.peer.host)

    def refused(self, peer: Peer, cause: str) -> None:
        """Log that the connection of *peer* is closed because of what it sent."""
        self._server.refusals.write(self.now(), peer, cause)

    def watch_memory(self) -> None:
        """Check the frames that wait for memory, until none waits."""
        self._server.watch_memory()

    @staticmethod
    def may_proceed(frames: Sequence[Reservation]) -> None:
        """Continue to read *frames*: memory was allocated to them."""
        for frame in frames:
            cast(Connection, frame.owner).proceed()

    def check_unsent(self) -> None:
        """Abort the slowest readers if the unsent responses use too much memory."""
        if self.unsent.bytes > self._unsent_max:
            self._server.abort_slowest_readers()


class SocketServer:
    """The listeners of a broker, and what they share."""

    def __init__(
        self,
        reactor: Any,
        config: KafkaConfig,
        service: Service,
        *,
        clock: Callable[[], float] = time.monotonic,
        scratch: bytearray | None = None,
    ) -> None:
        self.reactor = reactor
        self.config = config
        self.service = service
        self.clock = clock
        limit, largest = config.queued_max_request_bytes, config.socket_request_max_bytes
        self.memory = RequestMemory(limit, largest)
        self.broker_memory = RequestMemory(limit, largest)
        """That of the inter-broker listener, where clients have another one."""
        self.unsent = UnsentMemory()
        """Of all connections."""
        self.scratch = bytearray(READ_SIZE) if scratch is None else scratch
        """What a read goes into; servers of one thread may share it."""
        self.quotas = ConnectionQuotas(config)
        self.refusals = RefusalLog()
        self.connections: dict[Connection, None] = {}
        """Those open, the oldest first."""
        self.listeners: list[Listener] = []
        idle = config.connections_max_idle_ms
        self._limits = Limits(
            idle=idle / 1000 if idle >= 0 else float("inf"),
            write_stall=config.kbroker_write_stall_timeout_ms / 1000,
        )
        self._sweep_call: Any = None
        self._swept_at = self.clock()
        self._memory_call: Any = None

    def start(self, endpoints: tuple[Endpoint, ...] | None = None) -> tuple[Endpoint, ...]:
        """Listen at the configured endpoints; return them with the ports that were bound.

        Raise CannotListenError if one cannot be bound; then none listens.
        """
        raise_file_limit(self.config.max_connections)
        try:
            bound = [
                self.add_listener(endpoint)
                for endpoint in (self.config.endpoints if endpoints is None else endpoints)
            ]
        except Exception:
            self.stop_listening()
            raise
        if self._sweep_call is None:
            self._schedule()
        return tuple(bound)

    def add_listener(self, endpoint: Endpoint) -> Endpoint:
        """Listen at *endpoint*, too; return it with the port that was bound. CannotListenError."""
        listener = Listener(endpoint, self)
        listener.port = listen(
            self.reactor,
            endpoint.host,
            endpoint.port,
            listener,
            self.config.socket_listen_backlog_size,
        )
        self.listeners.append(listener)
        return replace(endpoint, port=listener.port.getHost().port)

    def remove_listener(self, name: str) -> None:
        """Stop listening at the listener *name*, and close its connections within kbroker.close.timeout.ms."""
        for listener in [each for each in self.listeners if each.endpoint.listener == name]:
            self.listeners.remove(listener)
            listener.stop_listening()
        for connection in [each for each in self.connections if each.peer.listener == name]:
            connection.close()

    def stop_listening(self) -> None:
        """Accept no more connections; those open stay."""
        for listener in self.listeners:
            listener.stop_listening()
        self.listeners.clear()

    def stop(self) -> None:
        """Stop listening and close every connection, within kbroker.close.timeout.ms."""
        self.stop_listening()
        if self._sweep_call is not None:
            self._sweep_call.cancel()
            self._sweep_call = None
        if self._memory_call is not None:
            self._memory_call.cancel()
            self._memory_call = None
        for connection in list(self.connections):
            connection.close()

    def set_buffers(self, socket: Any) -> None:
        """Set the sizes of the kernel's buffers, where they are configured."""
        import socket as names

        for option, size in (
            (names.SO_SNDBUF, self.config.socket_send_buffer_bytes),
            (names.SO_RCVBUF, self.config.socket_receive_buffer_bytes),
        ):
            if size >= 0:
                socket.setsockopt(names.SOL_SOCKET, option, size)

    def abort_slowest_readers(self) -> None:
        """Abort connections until the unsent responses of all are 1/8 below kbroker.response.queue.max.bytes.

        The one with the largest product of unsent bytes and time goes first; a single connection may exceed the limit.
        This visits all connections, so it must not run for each response.
        """
        now = self.clock()
        enough = self.config.kbroker_response_queue_max_bytes * 7 // 8
        holders = [each for each in self.connections if each.transport.unsent_memory]
        holders.sort(key=lambda each: each.byte_seconds_unsent(now))
        while len(holders) > 1 and self.unsent.bytes > enough:
            slowest = holders.pop()
            log.warn("aborting {peer}: it does not read {bytes} bytes, and memory for responses is used up",
                     peer=str(slowest.peer), bytes=slowest.transport.unsent_memory)  # fmt: skip
            slowest.abort()

    def sweep(self) -> None:
        """Close the connections that are idle or stuck."""
        now = self.clock()
        for connection in list(self.connections):
            connection.check(now, self._limits)

    def watch_memory(self) -> None:
        """Check the frames that wait for memory every 0.1 s, until none waits."""
        if self._memory_call is None:
            self._memory_call = self.reactor.callLater(TICK_SECONDS, self._check_memory)

    def _check_memory(self) -> None:
        self._memory_call = None
        now = self.clock()
        for memory in (self.memory, self.broker_memory):
            allocated, slow = memory.tick(now)
            for frame in slow:
                cast(Connection, frame.owner).too_slow(now)
            Listener.may_proceed(allocated)
        if self.memory.waiting or self.broker_memory.waiting:
            self.watch_memory()

    @property
    def _sweep_seconds(self) -> float:
        return min(SWEEP_SECONDS, self._limits.write_stall / 4, max(self._limits.idle / 4, 0.05))

    def _schedule(self) -> None:
        self._swept_at = self.clock()
        self._sweep_call = self.reactor.callLater(self._sweep_seconds, self._swept)

    def _swept(self) -> None:
        late = self.clock() - self._swept_at - self._sweep_seconds
        if late > LATE_SECONDS:
            self.memory.forgive(late)
            self.broker_memory.forgive(late)
        self.sweep()
        self._schedule()
