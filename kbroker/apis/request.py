"""What passes through the request pipeline: the context of a request, and the two kinds of handlers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from kbroker.apis.budgets import RequestBudget
from kbroker.common.turns import Turns, WithoutTurns
from kbroker.network.service import Answer, Peer
from kclient.wire.messages import RequestHeader

WITHOUT_TURNS = WithoutTurns()


@dataclass(slots=True)
class RequestContext:
    """What a handler knows about a request besides its body."""

    header: RequestHeader
    peer: Peer
    budget: RequestBudget
    turns: Turns = field(default=WITHOUT_TURNS)
    """Where a handler waits when its work does not fit in one turn of the reactor."""
    is_large: bool = False
    """Whether the request has more bytes than are decoded in the turn in which they arrive."""

    @property
    def api_version(self) -> int:
        """The version of the request; one that is served."""
        return self.header.api_version

    @property
    def correlation_id(self) -> int:
        """The client's number of the request."""
        return self.header.correlation_id

    @property
    def client_id(self) -> str:
        """The client's name for itself; empty if it has none. Untrusted: escape it in log lines."""
        return self.header.client_id or ""

    @property
    def listener(self) -> str:
        """Name of the listener that accepted the connection."""
        return self.peer.listener

    @property
    def principal(self) -> str:
        """The authenticated principal of the connection."""
        return self.peer.principal


class Handler(Protocol):
    """Answers the requests of one API: a response dataclass, a Deferred of one, or a coroutine."""

    def __call__(self, context: RequestContext, request: Any, /) -> Any:
        """Answer *request*."""


class RawHandler(Protocol):
    """Answers requests with a codec of its own: body in, parts of the whole response out.

    The pipeline cancels its Deferred when the connection is lost. It never cancels that of a `Handler`: a request
    that was begun is completed, even if its client does not wait for the response.
    """

    raw: bool

    def __call__(self, context: RequestContext, body: memoryview, /) -> Answer | Deferred[Answer]:
        """Answer the request; *body* follows its header."""


AnyHandler = Handler | RawHandler

HandlerFactory = Callable[[], AnyHandler]
"""Makes the handler of an API when its first request arrives."""
