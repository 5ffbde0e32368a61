"""Requests from this broker to the others: one connection to each, made by the first request.

A connection begins with this broker's proof (`broker_dial`). A request fails when the connection cannot be made or is
lost, or when its response does not arrive in time. Its sender decides about a retry. The next request makes a new
connection in place of a lost one.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.errors import Address, ConnectionClosed
from kclient.net.connection import Connection
from kclient.wire.versions import ApiKey

DialBroker = Callable[..., Awaitable[Connection]]
"""`BrokerDial`, or its counterpart without sockets."""


class ConnectFailed(NamedTuple):
    """The result of a failed attempt to connect: a value, so that every waiting request receives it."""

    failure: Failure


class BrokerConnections:
    """The connections to other brokers, and to this one: the controller sends to all alike."""

    def __init__(self, *, broker_id: int, request_timeout: float, dial: DialBroker) -> None:
        self._dial = dial
        self._client_id = f"broker-{broker_id}"
        self._request_timeout = request_timeout
        self._connections: dict[tuple[int, Address], Deferred[Connection | ConnectFailed]] = {}
        self._closed = False

    def __call__(
        self, broker_id: int, host: str, port: int, api: ApiKey, version: int, request: Any
    ) -> Deferred[Any]:
        """Send *request* to a broker's inter-broker listener and fire with its response."""
        address = Address(host, port)
        open_one = getattr(self._connections.get((broker_id, address)), "result", None)
        if isinstance(open_one, Connection) and not self._closed:
            return open_one.request(api, version, request)
        return Deferred.fromCoroutine(self._send(broker_id, address, api, version, request))

    async def _send(
        self, broker_id: int, address: Address, api: ApiKey, version: int, request: Any
    ) -> Any:
        connection = await self._connection(broker_id, address)
        return await connection.request(api, version, request)

    async def _connection(self, broker_id: int, address: Address) -> Connection:
        if self._closed:
            raise ConnectionClosed("this broker is shutting down")
        key = (broker_id, address)
        shared = self._connections.get(key)
        if shared is None:
            connecting: Deferred[Any] = Deferred.fromCoroutine(self._connect(key))
            shared = self._connections[key] = connecting.addErrback(ConnectFailed)
        # Each caller waits on a Deferred of its own: one that is cancelled must not stop the others.
        waiting: Deferred[Connection] = Deferred()

        def settled(result: Connection | ConnectFailed) -> Connection | ConnectFailed:
            if isinstance(result, ConnectFailed):
                if self._connections.get(key) is shared:
                    del self._connections[key]
                if not waiting.called:
                    waiting.errback(result.failure)
            elif not waiting.called:
                waiting.callback(result)
            return result

        shared.addCallback(settled)
        return await waiting

    async def _connect(self, key: tuple[int, Address]) -> Connection:
        connection = await self._dial(
            *key, client_id=self._client_id, request_timeout=self._request_timeout
        )
        connection.on_close(lambda _: self._remove(key))
        if self._closed:
            connection.close()
        return connection

    def _remove(self, key: tuple[int, Address]) -> None:
        self._connections.pop(key, None)

    def close(self) -> None:
        """Close every connection; requests without a response fail."""
        self._closed = True
        for shared in list(self._connections.values()):
            result = getattr(shared, "result", None)
            if result is not None and not isinstance(result, ConnectFailed):
                result.close()
            else:
                shared.cancel()
