"""What passes through the request pipeline: the context of a request, and the two kinds of handlers.

The context encodes the response, as in Kafka's RequestContext.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from kbroker.apis.budgets import RequestBudget
from kbroker.common.turns import Turns
from kbroker.network.service import Answer, Peer
from kbroker.quota.client_quota_manager import RequestQuota
from kclient.wire import messages
from kclient.wire.messages import RequestHeader
from kclient.wire.structs import fields_of
from kclient.wire.versions import ApiKey


@dataclass(slots=True)
class RequestContext:
    """What a handler knows about a request besides its body, and how its response is encoded."""

    header: RequestHeader
    peer: Peer
    budget: RequestBudget
    turns: Turns
    """Where a handler waits when its work does not fit in one turn of the reactor."""
    is_large: bool = False
    """Whether the request has more bytes than are decoded in the turn in which they arrive."""
    quota: RequestQuota | None = None
    """What the request uses of its client's quotas; None: there are none, or a broker sent it."""

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

    # -- the response --------------------------------------------------------------------------

    def encode(self, response: Any) -> Answer:
        """Encode *response*; None stays None: the request has no response."""
        if response is None:
            return None
        if self.quota is not None:
            self.quota.throttle_response(response)
        header = self.header
        return (
            messages.encode_response(
                header.api_key, header.api_version, header.correlation_id, response
            ),
        )

    async def encode_in_steps(self, response: object) -> Answer:
        """Encode a large response in as many turns as it takes."""
        if self.quota is not None:
            self.quota.throttle_response(response)
        header = self.header
        parts: list[bytes] = []
        share = self.turns.slice(clock_every=1)
        for _ in messages.encode_response_in_steps(
            header.api_key, header.api_version, header.correlation_id, response, parts
        ):
            if share.is_over():
                await share.next()
        return parts

    def encode_error(self, code: int, message: str | None) -> Answer:
        """Encode a response that is only an error code, and *message* if the response has a field for it."""
        response: Any = messages.response_class(self.header.api_key)()
        response.error_code = int(code)
        if hasattr(response, "error_message"):
            response.error_message = message
        return self.encode(response)

    def mutate(self, partitions: int, *, strict_since: int) -> None:
        """Count partitions that are created or deleted; ThrottlingQuotaExceeded from version *strict_since* on."""
        if self.quota is not None:
            self.quota.mutate(partitions, is_strict=self.header.api_version >= strict_since)

    @property
    def has_error_code(self) -> bool:
        """Whether the response has an error code for the whole request."""
        return _has_error_code(ApiKey(self.header.api_key), self.header.api_version)


@cache
def _has_error_code(api: ApiKey, version: int) -> bool:
    if messages.is_written_by_hand(api):
        return False
    return any(
        field.name == "error_code" and field.versions.has(version)
        for field in fields_of(messages.response_class(api))
    )


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
