"""The APIs served: one file each, its number first. This file finds the handler of a request and calls it.

A handler is a callable made once, with just the collaborators it needs, when its API is first asked for, or when the
broker has served for a moment (`make_all`): so it starts fast, and what it runs is one version even if its package is
replaced on the disk meanwhile:

    class ListGroups:
        def __init__(self, coordinator: GroupCoordinator) -> None: ...
        async def __call__(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse: ...

It returns the response, a Deferred of it, or is a coroutine. A KafkaError it raises is answered by a response with that
top-level `error_code` where the response has one, else the connection is closed with one log line. The composition root
registers it: `{ApiKey.LIST_GROUPS: lazily("kbroker.apis.api16_list_groups:ListGroups", coordinator)}`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from inspect import iscoroutine
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.apis.budgets import BUDGETS
from kbroker.apis.inter_broker import SENDER_FIELDS, InterBrokerTrust
from kbroker.common.shared_turns import Turns, WithoutTurns
from kbroker.network.service import Answer, Peer, RequestRefusedError
from kclient.wire import messages
from kclient.wire.errors import (
    ErrorCode,
    KafkaError,
    ProtocolError,
    TooManyElements,
)
from kclient.wire.messages import RequestHeader
from kclient.wire.structs import fields_of
from kclient.wire.versions import SERVED, ApiKey, VersionRange

log = Logger()

_VERSIONS = {int(api): versions for api, versions in SERVED.items()}
_BUDGETS = {int(api): budget for api, budget in BUDGETS.items()}
_AT_ONCE = min(budget.at_once for budget in BUDGETS.values())
_WITHOUT_TURNS = WithoutTurns()


@dataclass(slots=True)
class RequestContext:
    """What a handler may know about a request besides its body."""

    header: RequestHeader
    peer: Peer
    turns: Turns = field(default=_WITHOUT_TURNS)
    """Where a handler waits that has more to do than fits in one turn of the reactor."""
    is_large: bool = False
    """Whether the request has more bytes than are decoded in the turn in which they arrive."""

    @property
    def max_elements(self) -> int:
        """How many elements the request may have (`kbroker.apis.budgets`)."""
        return _BUDGETS[self.header.api_key].max_elements

    @property
    def api_version(self) -> int:
        """The version the client chose, one that we serve."""
        return self.header.api_version

    @property
    def correlation_id(self) -> int:
        """The number the client knows its request by."""
        return self.header.correlation_id

    @property
    def client_id(self) -> str:
        """The client's name for itself; empty if it has none. Never to be trusted or logged unescaped."""
        return self.header.client_id or ""

    @property
    def listener(self) -> str:
        """Name of the listener the connection came in by."""
        return self.peer.listener

    @property
    def principal(self) -> str:
        """Whom the connection is authenticated as."""
        return self.peer.principal


class Handler(Protocol):
    """Answers the requests of one API: a response dataclass, a Deferred of one, or a coroutine."""

    def __call__(self, context: RequestContext, request: Any, /) -> Any:
        """Answer *request*."""


class RawHandler(Protocol):
    """Answers requests whose codec is written by hand: body in, parts of the whole response out.

    A Deferred it returns is cancelled when the connection dies (those of a `Handler` never are: what
    a client asked for and did not wait for is still done).
    """

    raw: bool

    def __call__(self, context: RequestContext, body: memoryview, /) -> Answer | Deferred[Answer]:
        """Answer the request whose *body* follows the header."""


Factory = Callable[[], "Handler | RawHandler"]


def lazily(where: str, *collaborators: object, **named: object) -> Factory:
    """Return a factory that imports *where* ("module:class") and gives it *collaborators* on first use."""

    def make() -> Handler:
        module, _, name = where.partition(":")
        made: Handler = getattr(import_module(module), name)(*collaborators, **named)
        return made

    return make


class Dispatcher:
    """The `Service` of a broker: decodes a request, calls its API's handler, encodes the response.

    Versions outside those served close the connection, as Kafka's do, except ApiVersions, which is
    answered in version 0 with error 35 so that the client can try again (KIP-35, KIP-511). *trust* decides
    which connections may send what is reserved to brokers.

    A request above its API's budget is refused, a large one waits for its turn among *turns*.
    """

    def __init__(
        self,
        factories: Mapping[ApiKey, Factory],
        *,
        trust: InterBrokerTrust,
        turns: Turns = _WITHOUT_TURNS,
    ) -> None:
        self._factories = dict(factories)
        self._trust = trust
        self._turns = turns
        self._logged_at = -1
        self._handlers: dict[int, Handler | RawHandler] = {}

    def register(self, api: ApiKey, factory: Factory) -> None:
        """Serve *api*, too."""
        self._factories[api] = factory
        self._handlers.pop(api, None)

    @property
    def served(self) -> dict[ApiKey, VersionRange]:
        """The APIs that have a handler, with the versions advertised."""
        return {api: versions for api, versions in SERVED.items() if api in self._factories}

    def __call__(self, frame: memoryview, peer: Peer) -> Answer | Deferred[Answer]:
        """Answer one request frame; RequestRefusedError or MalformedMessage for those that get none."""
        header, body_offset = messages.decode_request_header(frame)
        handler = self._handlers.get(header.api_key)
        if handler is None:
            handler = self._make(ApiKey(header.api_key))
        context = RequestContext(header, peer, self._turns)
        if header.api_version not in _VERSIONS[header.api_key]:
            return self._unsupported(context)
        if header.api_key in SENDER_FIELDS and not self._trust.admits(peer, header.api_key):
            return self._with_error(context, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
        size = len(frame)
        if size > _AT_ONCE:
            budget = _BUDGETS[header.api_key]
            if size > budget.max_bytes:
                return self._over_budget(
                    context, f"{size} bytes are more than the {budget.max_bytes} of a request"
                )
            if size > budget.at_once and self._turns is not _WITHOUT_TURNS:
                return self._in_turn(context, handler, frame, body_offset)
        return self._handle(context, handler, frame, body_offset)

    def _in_turn(
        self, context: RequestContext, handler: Handler | RawHandler, frame: memoryview, body: int
    ) -> Deferred[Answer]:
        """Handle a large request in a turn of its own; cancelled with what its handler returned."""
        context.is_large = True
        turn: Deferred[Any] = self._turns.next()
        return turn.addCallback(lambda _: self._handle(context, handler, frame, body))

    def _handle(
        self, context: RequestContext, handler: Handler | RawHandler, frame: memoryview, body: int
    ) -> Answer | Deferred[Answer]:
        """Decode the request whose body begins at *body*, call its handler, encode the response."""
        header = context.header
        try:
            if getattr(handler, "raw", False):
                return handler(context, frame[body:])
            request = messages.decode_request(
                header, frame, body, max_elements=_BUDGETS[header.api_key].max_elements
            )
        except TooManyElements as error:
            return self._too_many(context, error)
        if context.is_large:
            # The handler's work begins in another turn than that of the decoding.
            turn: Deferred[Any] = self._turns.next()
            return turn.addCallback(lambda _: self._call(context, handler, request))
        return self._call(context, handler, request)

    def _call(
        self, context: RequestContext, handler: Handler | RawHandler, request: Any
    ) -> Answer | Deferred[Answer]:
        """Have *handler* answer the decoded request, and encode its response."""
        header = context.header
        if header.api_key in SENDER_FIELDS:
            sender = getattr(request, SENDER_FIELDS[header.api_key])
            if not self._trust.admits_as(context.peer, sender, header.api_key):
                return self._with_error(context, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
        try:
            result = handler(context, request)
        except ProtocolError:
            raise
        except Exception:
            return self._failed(Failure(), context)
        if iscoroutine(result):
            result = Deferred.fromCoroutine(result)
        if isinstance(result, Deferred):
            return self._later(result, context)
        return self._encode(result, context)

    def _too_many(self, context: RequestContext, error: TooManyElements) -> Answer:
        """Refuse a request for its number of elements."""
        excess = f"more than the {error.limit} elements of a request ({error.message})"
        return self._over_budget(context, excess)

    def _over_budget(self, context: RequestContext, excess: str) -> Answer:
        """Refuse a request that has more than its API's budget: log it, and answer if there is a field for it."""
        api = ApiKey(context.header.api_key)
        cause = f"{api.name} v{context.api_version}: {excess}"
        if not _has_error_code(api, context.api_version):
            raise RequestRefusedError(cause)
        second = int(self._turns.now())
        if second != self._logged_at:  # one line a second, however many requests
            self._logged_at = second
            log.warn("refused for {peer}: {cause}", peer=str(context.peer), cause=cause)
        return self._with_error(context, ErrorCode.INVALID_REQUEST, cause)

    def make_all(self) -> Generator[None, None, None]:
        """Make the handlers that nobody has asked for, with all that they import; yield after each (10 ms)."""
        for api in list(self._factories):
            try:
                if api not in self._handlers:
                    self._make(api)
                if not messages.is_written_by_hand(api):
                    messages.request_class(api), messages.response_class(api)
            except Exception:
                log.failure("{api} cannot be served", api=api.name)
            yield

    def _make(self, api: ApiKey) -> Handler | RawHandler:
        """Make the handler of an API that is asked for the first time."""
        factory = self._factories.get(api)
        if factory is None:
            raise RequestRefusedError(f"{api.name} is not served here")
        handler = self._handlers[api] = factory()
        return handler

    def _unsupported(self, context: RequestContext) -> Answer:
        header = context.header
        api = ApiKey(header.api_key)
        if api is not ApiKey.API_VERSIONS:
            raise RequestRefusedError(
                f"{api.name} version {header.api_version} is not served, only {SERVED[api]}"
            )
        response = messages.response_class(api)()
        response.error_code = int(ErrorCode.UNSUPPORTED_VERSION)  # type: ignore[attr-defined]
        handler = self._handlers[api]
        supported = getattr(handler, "supported", None)
        if supported is not None:
            response.api_keys = supported(0)  # type: ignore[attr-defined]
        return (messages.encode_response(api, 0, header.correlation_id, response),)

    def _later(self, result: Deferred[Any], context: RequestContext) -> Deferred[Answer]:
        """Return a Deferred of the encoded answer; cancelling it does not cancel *result*."""
        answer: Deferred[Answer] = Deferred(lambda _cancelled: None)

        def give(encoded: Answer) -> None:
            if not answer.called:
                answer.callback(encoded)

        def fail(failure: Failure) -> None:
            if not answer.called:
                answer.errback(failure)

        def finish(value: Any) -> None:
            if answer.called:
                return
            try:
                if isinstance(value, Failure):
                    encoded = self._failed(value, context)
                elif value is not None and self._is_large(context):
                    steps = Deferred.fromCoroutine(encode_in_steps(context, value))
                    steps.addCallbacks(give, fail)
                    return
                else:
                    encoded = self._encode(value, context)
            except Exception:
                fail(Failure())
            else:
                give(encoded)

        result.addBoth(finish)
        return answer

    def _is_large(self, context: RequestContext) -> bool:
        """Tell whether the answer may take longer to encode than may be done at once."""
        return context.is_large or _BUDGETS[context.header.api_key].answers_in_steps

    def _encode(self, response: Any, context: RequestContext) -> Answer:
        if response is None:
            return None
        header = context.header
        return (
            messages.encode_response(
                header.api_key, header.api_version, header.correlation_id, response
            ),
        )

    def _failed(self, failure: Failure, context: RequestContext) -> Answer:
        """Answer a request whose handler raised, or raise RequestRefusedError."""
        error = failure.value
        api = ApiKey(context.header.api_key)
        if isinstance(error, RequestRefusedError | ProtocolError):
            raise error
        if isinstance(error, KafkaError):
            code = int(error.code)
        elif isinstance(error, CancelledError):
            raise RequestRefusedError(f"{api.name} was given up")
        else:
            code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
            log.failure(
                "{api} v{version} from {peer} failed",
                failure,
                api=api.name,
                version=context.api_version,
                peer=str(context.peer),
            )
        if not _has_error_code(api, context.api_version):
            raise RequestRefusedError(f"{api.name}: {type(error).__name__}: {error}")
        text = str(error) if isinstance(error, KafkaError) else None
        return self._with_error(context, code, text)

    def _with_error(self, context: RequestContext, code: int, text: str | None) -> Answer:
        """Encode an answer that is nothing but an error."""
        response: Any = messages.response_class(context.header.api_key)()
        response.error_code = int(code)
        if hasattr(response, "error_message"):
            response.error_message = text
        return self._encode(response, context)


async def encode_in_steps(context: RequestContext, response: object) -> Answer:
    """Encode a large answer in as many turns as it takes."""
    header = context.header
    parts: list[bytes] = []
    share = context.turns.slice(clock_every=1)
    for _ in messages.encode_response_in_steps(
        header.api_key, header.api_version, header.correlation_id, response, parts
    ):
        if share.is_over():
            await share.next()
    return parts


@cache
def _has_error_code(api: ApiKey, version: int) -> bool:
    """Tell whether the response of that version has an error code for the whole request."""
    if messages.is_written_by_hand(api):
        return False
    return any(
        field.name == "error_code" and field.versions.has(version)
        for field in fields_of(messages.response_class(api))
    )


__all__ = [
    "Dispatcher",
    "Factory",
    "Handler",
    "RawHandler",
    "RequestContext",
    "encode_in_steps",
    "lazily",
]
