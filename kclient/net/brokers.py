"""The connections of one client: at most one per broker id and channel, opened on first use.

A channel separates requests that must not wait for each other. A Fetch that the broker holds delays every later request
on its connection. So consumers send requests to their group's coordinator on a channel of its own, as Kafka's client
does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, DeferredList

from kclient.config import CommonConfig
from kclient.errors import (
    Address,
    Cause,
    ClientClosed,
    ConnectError,
    ConnectionClosed,
    KafkaError,
)
from kclient.net.connection import Connection, Dial, connect
from kclient.net.waiting import SingleFlight, backoff, sleep


class Channel:
    """The connection to one broker for one purpose, with its reconnect backoff."""

    def __init__(
        self,
        reactor: Any,
        config: CommonConfig,
        node_id: int,
        address: Address,
        dial: Dial = connect,
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._dial = dial
        self.node_id = node_id
        self.address = address
        self.connection: Connection | None = None
        self._requests_before = 0
        """Requests on earlier connections."""
        self._failures = 0
        self._not_before = float("-inf")
        self._flight = SingleFlight(self._connect)

    @property
    def requests(self) -> int:
        """The number of requests that were sent."""
        now = 0 if self.connection is None else self.connection.requests
        return self._requests_before + now

    @property
    def ready(self) -> Connection | None:
        """The open connection, if there is one."""
        if self.connection is not None and self.connection.closed is None:
            return self.connection
        return None

    def get(self) -> Deferred[Connection]:
        """Fire with an open connection; fail with `ConnectError` if one attempt, after the backoff, fails."""
        return self._flight.join()

    def close(self, reason: KafkaError) -> Deferred[None] | None:
        """Close the connection, or cancel the attempt to open it; the Deferred fires when the socket is closed.

        All pending requests fail with *reason*. Return None if there is no socket.
        """
        self._flight.cancel(reason)
        connection = self.connection
        self._requests_before, self.connection = self.requests, None
        if connection is None:
            return None
        gone = connection.when_disconnected()
        connection.close(reason)
        return gone

    async def _connect(self) -> Connection:
        ready = self.ready
        if ready is not None:
            return ready
        wait = self._not_before - self._reactor.seconds()
        if wait > 0:
            await sleep(self._reactor, wait)
        config = self._config
        try:
            connection = await self._dial(
                self._reactor,
                self.address,
                client_id=config.client_id,
                connect_timeout=config.socket_connection_setup_timeout_ms / 1000,
                request_timeout=config.request_timeout_ms / 1000,
            )
        except ConnectError:
            self._failed()
            raise
        self._failures = 0
        connection.on_close(lambda _: self._failed())
        self._requests_before, self.connection = self.requests, connection
        return connection

    def _failed(self) -> None:
        wait = backoff(
            self._failures,
            self._config.reconnect_backoff_ms / 1000,
            self._config.reconnect_backoff_max_ms / 1000,
        )
        self._failures += 1
        self._not_before = self._reactor.seconds() + wait


class Brokers:
    """All channels of one client; *dial* opens their connections."""

    def __init__(self, reactor: Any, config: CommonConfig, dial: Dial = connect) -> None:
        self._reactor = reactor
        self._config = config
        self._dial = dial
        self._connections: dict[tuple[int, str], Channel] = {}
        self._closing: list[Deferred[None]] = []
        self._sweep: Any = None
        self._requests_before = 0
        """Requests on channels that are no longer used."""
        self.closed = False

    def connection(self, node_id: int, address: Address, channel: str = "") -> Deferred[Connection]:
        """Fire with an open connection to broker *node_id* at *address*."""
        if self.closed:
            raise ClientClosed("the client is closed")
        key = (node_id, channel)
        known = self._connections.get(key)
        if known is None or known.address != address:
            if known is not None:
                self._retire(known, _left(known))
            known = self._connections[key] = Channel(
                self._reactor, self._config, node_id, address, self._dial
            )
        if self._sweep is None:
            self._schedule_sweep()
        return known.get()

    def ready(self, node_id: int, channel: str = "") -> Connection | None:
        """Return the open connection to broker *node_id*, if there is one."""
        known = self._connections.get((node_id, channel))
        return None if known is None else known.ready

    def least_busy(self) -> tuple[int, Connection] | None:
        """Return the broker id and connection with the fewest unanswered requests, if any is open.

        Negative ids are bootstrap addresses; connections to known brokers are preferred.
        """
        best: tuple[tuple[bool, int], int, Connection] | None = None
        for (node_id, channel), known in self._connections.items():
            connection = known.ready
            if channel or connection is None:
                continue
            rank = (node_id < 0, connection.in_flight)
            if best is None or rank < best[0]:
                best = (rank, node_id, connection)
        return None if best is None else best[1:]

    def metrics(self) -> dict[str, float]:
        """Return the number of open connections, and of requests that were sent on all so far."""
        channels = self._connections.values()
        return {
            "connections": sum(channel.ready is not None for channel in channels),
            "requests": self._requests_before + sum(channel.requests for channel in channels),
        }

    def forget(self, keep: Callable[[int], bool]) -> None:
        """Close the connections to brokers for which *keep* returns False."""
        for key in [key for key in self._connections if not keep(key[0])]:
            channel = self._connections.pop(key)
            self._retire(channel, _left(channel))

    def close(self) -> Deferred[Any]:
        """Close all connections; fires when all sockets are closed."""
        self.closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for channel in self._connections.values():
            self._retire(channel, ClientClosed("the client was closed"))
        self._connections.clear()
        waiting, self._closing = self._closing, []
        return DeferredList(waiting)

    def _retire(self, channel: Channel, reason: KafkaError) -> None:
        gone = channel.close(reason)
        self._requests_before += channel.requests
        self._closing = [d for d in self._closing if not d.called]
        if gone is not None:
            self._closing.append(gone)

    def _schedule_sweep(self) -> None:
        if self._config.connections_max_idle_ms > 0:
            period = max(1.0, self._config.connections_max_idle_ms / 4000)
            self._sweep = self._reactor.callLater(period, self._close_idle)

    def _close_idle(self) -> None:
        oldest = self._reactor.seconds() - self._config.connections_max_idle_ms / 1000
        for key, channel in list(self._connections.items()):
            connection = channel.ready
            if connection and not connection.in_flight and connection.last_used < oldest:
                self._retire(self._connections.pop(key), _left(channel))
        self._schedule_sweep()


def _left(channel: Channel) -> ConnectionClosed:
    """Return the retriable error for requests to a broker address that is no longer used."""
    return ConnectionClosed(
        f"broker {channel.node_id} is no longer at {channel.address}; the connection was closed"
    )


def unreachable(node_id: int, problem: ConnectError) -> ConnectError:
    """Return *problem* with an explanation of why a broker's advertised address does not work."""
    if node_id < 0:
        return problem
    what = {
        Cause.DNS: "does not resolve",
        Cause.REFUSED: "refuses connections",
        Cause.TIMEOUT: "does not answer",
        Cause.UNREACHABLE: "is unreachable",
        Cause.NOT_KAFKA: "is not a Kafka port",
        Cause.CLOSED: "closes connections",
        Cause.ERROR: "answers with an error",
    }.get(problem.cause, problem.cause.value)
    explained = ConnectError(problem.address, problem.cause, problem.detail)
    explained.message = f"broker {node_id} advertises {problem.address}, which {what}"
    explained.hint = "if the broker is up, fix its advertised.listeners"
    return explained
