"""Listening sockets: who may connect, how many at a time and how fast; and the sweep over those connected.

Limits are Kafka's: max.connections, max.connections.per.ip (with overrides), max.connection.creation.rate and
connections.max.idle.ms. The inter-broker listener has a reserve: clients cannot take the last places from the other
brokers and the controller (S40), where they have a listener of their own.

Nor can they take the last file descriptors (`kbroker.log.open_files`).
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger

from kbroker.common.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.log import open_files
from kbroker.network.acceptor import RecordPort, listen
from kbroker.network.connection import Connection, Limits, escaped
from kbroker.network.core.request_memory import (
    LATE_SECONDS,
    TICK_SECONDS,
    RequestMemory,
    Reservation,
)
from kbroker.network.service import Peer, Service
from kbroker.network.transport import READ_SIZE, UnsentMemory

log = Logger()

FILES_EXPECTED = 4096
"""Open files below which even a small broker may run out."""

BROKER_RESERVE = 64
"""Connections beyond max.connections that only the inter-broker listener may use."""

SWEEP_SECONDS = 5.0
"""How often connections are looked over for those idle or stuck."""

LINES_PER_SECOND = 500
"""Log lines about refused requests, all connections together."""


class Quotas:
    """The places for connections, all listeners together."""

    def __init__(self, config: BrokerConfig) -> None:
        self._max = config.max_connections
        self._per_ip = config.max_connections_per_ip
        self._overrides = parse_overrides(config.max_connections_per_ip_overrides)
        self._rate = float(config.max_connection_creation_rate)
        self._tokens = self._rate
        self._refilled: float | None = None
        self.by_ip: Counter[str] = Counter()
        """Open connections by address."""
        self.total = 0
        """Open connections."""

    def refusal(self, host: str, between_brokers: bool, now: float) -> str | None:
        """Say why *host* may not connect now, or None and its place is taken."""
        if self._refilled is not None:
            self._tokens = min(self._rate, self._tokens + (now - self._refilled) * self._rate)
        self._refilled = now
        if self.total >= self._max + (BROKER_RESERVE if between_brokers else 0):
            return f"max.connections ({self._max}) reached"
        allowed = self._overrides.get(host, self._per_ip)
        if self.by_ip[host] >= allowed and not between_brokers:
            return f"max.connections.per.ip ({allowed}) reached for {host}"
        if self._tokens < 1 and not between_brokers:
            return f"max.connection.creation.rate ({self._rate:.0f}/s) exceeded"
        self._tokens -= 1
        self.total += 1
        self.by_ip[host] += 1
        return None

    def release(self, host: str) -> None:
        """Give the place of a connection from *host* back."""
        self.total -= 1
        self.by_ip[host] -= 1
        if self.by_ip[host] <= 0:
            del self.by_ip[host]


def parse_overrides(text: str) -> dict[str, int]:
    """Read max.connections.per.ip.overrides: host:count, comma separated; what is malformed is left out."""
    found = {}
    for item in text.split(","):
        host, _, count = item.strip().rpartition(":")
        if host and count.isdecimal():
            found[host.strip("[]")] = int(count)
    return found


class RefusalLog:
    """The lines about peers that were cut: at most so many per second, the rest counted (S40)."""

    def __init__(self, per_second: int = LINES_PER_SECOND) -> None:
        self._per_second = per_second
        self._second = -1
        self._written = 0
        self._dropped = 0

    def write(self, now: float, peer: Peer, cause: str) -> None:
        """Say that *peer* is cut because of *cause*, which may be anything it sent."""
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

    def __init__(self, endpoint: Endpoint, network: Network) -> None:
        self.endpoint = endpoint
        self._network = network
        self.reactor = network.reactor
        self.service = network.service
        self.scratch = network.scratch
        self.max_frame = network.config.socket_request_max_bytes
        self.close_timeout = network.config.kbroker_close_timeout_ms / 1000
        # Where clients and brokers share a listener nobody can tell them apart: no reserve.
        self._between_brokers = (
            len(network.config.endpoints) > 1
            and endpoint.listener == network.config.inter_broker_listener
        )
        self.memory = network.broker_memory if self._between_brokers else network.memory
        self.unsent = network.unsent
        self._unsent_max = network.config.kbroker_response_queue_max_bytes
        self._refusals = 0
        self._last_refusal_log = float("-inf")
        self.port: RecordPort | None = None

    def now(self) -> float:
        """Return the time, in seconds of a monotonic clock."""
        return self._network.clock()

    def admit(self, host: str, port: int, descriptor: int) -> Connection | None:
        """Accept or refuse the connection from *host* and *port*, whose socket has this *descriptor*."""
        now = self.now()
        wrong = no_descriptor_left(descriptor, self._between_brokers)
        if wrong is None:
            wrong = self._network.quotas.refusal(host, self._between_brokers, now)
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
        """Log that nobody can be accepted for the moment."""
        now = self.now()
        if now - self._last_refusal_log >= 1:
            log.error("cannot accept connections on {listener}: {error}; they wait",
                      listener=self.endpoint.listener, error=error)  # fmt: skip
            self._last_refusal_log = now

    def opened(self, connection: Connection) -> None:
        """Take a new connection in, with its socket's options set."""
        transport = connection.transport
        transport.account = self.unsent
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        self._network.set_buffers(transport.socket)
        self._network.connections[connection] = None

    def closed(self, connection: Connection) -> None:
        """Forget a connection that is lost."""
        self._network.connections.pop(connection, None)
        self._network.quotas.release(connection.peer.host)

    def refused(self, peer: Peer, cause: str) -> None:
        """Log that *peer* is cut because of what it sent."""
        self._network.refusals.write(self.now(), peer, cause)

    def watch_memory(self) -> None:
        """Have frames that wait for memory looked at from time to time."""
        self._network.watch_memory()

    @staticmethod
    def may_go_on(frames: Sequence[Reservation]) -> None:
        """Read the *frames* again that were granted memory."""
        for frame in frames:
            cast(Connection, frame.owner).go_on()

    def check_unsent(self) -> None:
        """Look at the memory of unsent answers after a connection was given some."""
        if self.unsent.bytes > self._unsent_max:
            self._network.abort_slowest_readers()


def no_descriptor_left(descriptor: int, between_brokers: bool) -> str | None:
    """Say why a connection may not keep its *descriptor*, or None: the last ones are not for everybody."""
    if not (open_files.is_scarce if between_brokers else open_files.is_reserved)(descriptor):
        return None
    return (
        f"the process may open {open_files.limit()} files, and {open_files.reserve()} of them are"
        " not for connections"
    )


def raise_file_limit(connections: int) -> None:
    """Let the process have as many open files as the system allows it; warn if that is little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (soft, resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft < min(connections, FILES_EXPECTED):
        log.warn(
            "this process may open {soft} files; a broker needs one per connection and three per"
            " segment: raise `ulimit -n`",
            soft=soft,
        )


class Network:
    """All listeners of a broker, and what they share."""

    def __init__(
        self,
        reactor: Any,
        config: BrokerConfig,
        service: Service,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reactor = reactor
        self.config = config
        self.service = service
        self.clock = clock
        limit, largest = config.queued_max_request_bytes, config.socket_request_max_bytes
        self.memory = RequestMemory(limit, largest)
        self.broker_memory = RequestMemory(limit, largest)
        """Of the inter-broker listener, where clients have another: they cannot take it from the brokers."""
        self.unsent = UnsentMemory()
        """Of all connections."""
        self.scratch = bytearray(READ_SIZE)
        self.quotas = Quotas(config)
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
        """Listen at the configured endpoints; return them with the ports that they really have.

        Raise CannotListenError, with nothing left listening, where one cannot be had.
        """
        raise_file_limit(self.config.max_connections)
        bound = []
        try:
            for endpoint in self.config.endpoints if endpoints is None else endpoints:
                listener = Listener(endpoint, self)
                listener.port = listen(
                    self.reactor,
                    endpoint.host,
                    endpoint.port,
                    listener,
                    self.config.socket_listen_backlog_size,
                )
                self.listeners.append(listener)
                bound.append(
                    Endpoint(endpoint.listener, endpoint.security_protocol, endpoint.host,
                             listener.port.getHost().port)
                )  # fmt: skip
        except Exception:
            self.stop_listening()
            raise
        if self._sweep_call is None:
            self._schedule()
        return tuple(bound)

    def stop_listening(self) -> None:
        """Accept no more connections; those open stay."""
        for listener in self.listeners:
            if listener.port is not None and listener.port.connected:
                listener.port.stopListening()
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
        """Abort connections until the unsent answers of all are 1/8 below kbroker.response.queue.max.bytes.

        Those that have left most untaken for longest go first; a single connection may exceed the limit. All
        connections are looked at, so this is not to happen with each answer.
        """
        now = self.clock()
        enough = self.config.kbroker_response_queue_max_bytes * 7 // 8
        holders = [each for each in self.connections if each.transport.unsent_memory]
        holders.sort(key=lambda each: each.untaken(now))
        while len(holders) > 1 and self.unsent.bytes > enough:
            slowest = holders.pop()
            log.warn("aborting {peer}: it leaves {bytes} bytes untaken, and memory for answers is used up",
                     peer=str(slowest.peer), bytes=slowest.transport.unsent_memory)  # fmt: skip
            slowest.abort()

    def sweep(self) -> None:
        """Close the connections that are idle or stuck."""
        now = self.clock()
        for connection in list(self.connections):
            connection.check(now, self._limits)

    def watch_memory(self) -> None:
        """Look at the frames that wait for memory until none does."""
        if self._memory_call is None:
            self._memory_call = self.reactor.callLater(TICK_SECONDS, self._look_at_memory)

    def _look_at_memory(self) -> None:
        self._memory_call = None
        now = self.clock()
        for memory in (self.memory, self.broker_memory):
            granted, slow = memory.tick(now)
            for frame in slow:
                cast(Connection, frame.owner).too_slow(now)
            Listener.may_go_on(granted)
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
