"""The listeners of a running broker, as its dynamic configuration has them (KIP-226): some are added, some removed.

A listener that stays keeps its address (`kbroker.config.checks.check_listener_changes`). New listeners are bound before
they are advertised, and removed ones are advertised no more before their connections close. So clients that are sent
away find another address.

In: configurations   Out: calls of the socket server, endpoints to advertise   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from kbroker.common.endpoint import Endpoint
from kbroker.config import KafkaConfig

log = Logger(namespace="kbroker.broker")


class Listening(Protocol):
    """What it needs of a socket server."""

    def add_listener(self, endpoint: Endpoint) -> Endpoint:
        """Listen at *endpoint*; return it with the port that was bound. CannotListenError."""
        ...

    def remove_listener(self, name: str) -> None:
        """Stop listening at the listener *name*, and close its connections."""
        ...


class DynamicListeners:
    """The *bound* endpoints of *server*, by name of the listener."""

    def __init__(self, server: Listening, bound: Iterable[Endpoint]) -> None:
        self._server = server
        self._bound = {endpoint.listener: endpoint for endpoint in bound}

    def advertised(self, config: KafkaConfig) -> tuple[Endpoint, ...]:
        """Return what *config* advertises, of the listeners that are bound; port 0 is the port that was bound."""
        return tuple(
            replace(endpoint, port=endpoint.port or self._bound[endpoint.listener].port)
            for endpoint in config.advertised
            if endpoint.listener in self._bound
        )

    def add(self, config: KafkaConfig) -> None:
        """Bind the listeners that *config* has in addition. One that cannot be bound is logged and left out."""
        for endpoint in config.endpoints:
            if endpoint.listener in self._bound:
                continue
            try:
                self._bound[endpoint.listener] = self._server.add_listener(endpoint)
            except (CannotListenError, OSError) as error:
                log.error(
                    "listeners: {endpoint} cannot be bound, and is not advertised: {error}. Remove it from listeners,"
                    " free the port, and add it again",
                    endpoint=str(endpoint),
                    error=str(error),
                )
            else:
                log.info("listening at {endpoint}", endpoint=str(self._bound[endpoint.listener]))

    def remove(self, config: KafkaConfig) -> None:
        """Close the listeners that *config* no longer has."""
        for name in self._bound.keys() - {endpoint.listener for endpoint in config.endpoints}:
            log.info("no longer listening at {endpoint}", endpoint=str(self._bound.pop(name)))
            self._server.remove_listener(name)
