"""Requests from this broker to the others: one connection to each, made when there is something to say.

A connection begins with this broker's proof (`broker_dial`). A request
fails when its connection cannot be had or is lost, or when its answer does not come in time; whoever
sent it decides whether to send it again. A connection that is lost is made anew by the next request.

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
"""`BrokerDial`, or what stands for it where there are no sockets: called as it is."""


class NotHad(NamedTuple):
    """Why there is no connection: a value, for everybody who waits is to have it, and nobody need wait any more."""

    failure: Failure


class Peers:
    """The connections to other brokers, and to ourselves: the controller speaks to all alike."""

    def __init__(self, *, broker_id: int, request_timeout: float, dial: DialBroker) -> None:
        self._dial = dial
        self._client_id = f"broker-{broker_id}"
        self._request_timeout = request_timeout
        self._connections: dict[tuple[int, Address], Deferred[Connection | NotHad]] = {}
        self._closed = False

    def __call__(
        self, broker_id: int, host: str, port: int, api: ApiKey, version: int, request: Any
    ) -> Deferred[Any]:
        """Send *request* to a broker's inter-broker listener and fire with its response."""
        return Deferred.fromCoroutine(
            self._ask(broker_id, Address(host, port), api, version, request)
        )

    async def _ask(
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
            shared = self._connections[key] = connecting.addErrback(NotHad)
        # Each caller waits on a Deferred of its own: one that is cancelled must not stop the others.
        waiting: Deferred[Connection] = Deferred()

        def settled(result: Connection | NotHad) -> Connection | NotHad:
            if isinstance(result, NotHad):
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
        connection.on_close(lambda _: self._forget(key))
        if self._closed:
            connection.close()
        return connection

    def _forget(self, key: tuple[int, Address]) -> None:
        self._connections.pop(key, None)

    def close(self) -> None:
        """Close every connection; what waits for an answer fails."""
        self._closed = True
        for shared in list(self._connections.values()):
            result = getattr(shared, "result", None)
            if result is not None and not isinstance(result, NotHad):
                result.close()
            else:
                shared.cancel()
