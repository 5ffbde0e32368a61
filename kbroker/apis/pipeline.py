"""The request pipeline: the `Service` of a broker, which passes each request through the stages of `kbroker.apis`.

A version that is not served closes the connection, as in Kafka. Only ApiVersions is answered then, in version 0 with
UNSUPPORTED_VERSION, so that the client can choose another version (KIP-35, KIP-511).

A request above its API's budget is refused. A large one is decoded, handled and encoded in turns of the reactor that
all large requests share (docs/design/large-requests.md).

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Mapping
from inspect import isawaitable, iscoroutine
from typing import Any, Protocol, runtime_checkable

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.apis.api_specs import API_SPECS, ApiSpec
from kbroker.apis.gates import Gate, Gates
from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.apis.request import AnyHandler, HandlerFactory, RequestContext
from kbroker.common.turns import Turns
from kbroker.network.service import Answer, Peer, RequestRefusedError
from kbroker.quota.client_quota_manager import RequestQuotas
from kclient.wire import messages
from kclient.wire.errors import ErrorCode, KafkaError, ProtocolError, TooManyElements
from kclient.wire.versions import SERVED, ApiKey

log = Logger()


@runtime_checkable
class VersionNegotiator(Protocol):
    """The handler of an API with a response to a version that is not served."""

    def unsupported_version(self) -> object:
        """Return that response, in version 0."""


class _Api:
    """An API with its handler, and its row of the table, ready for the hot path."""

    __slots__ = (
        "at_once",
        "budget",
        "first_version",
        "gate",
        "handler",
        "is_raw",
        "key",
        "last_version",
        "sender",
    )

    def __init__(self, spec: ApiSpec, handler: AnyHandler) -> None:
        self.key = spec.key
        self.first_version, self.last_version = spec.versions
        self.budget = spec.budget
        self.at_once = spec.budget.at_once
        self.gate = spec.gate
        self.sender = spec.broker_field
        self.handler: Any = handler
        self.is_raw: bool = getattr(handler, "raw", False)


class RequestPipeline:
    """Answers requests by *handlers*, which are made when they are first needed.

    *authorizer* decides which connections may send what is reserved to brokers, *gates* what a request waits for,
    *quotas* how long its client is throttled. Large requests wait for their turn among *turns*.
    """

    def __init__(
        self,
        handlers: Mapping[ApiKey, HandlerFactory],
        *,
        authorizer: InterBrokerAuthorizer,
        gates: Gates,
        quotas: RequestQuotas,
        turns: Turns,
    ) -> None:
        self._factories = handlers
        self._authorizer = authorizer
        self._gates = gates
        self._quotas = quotas
        self._turns = turns
        self._logged_at = -1
        self._apis: dict[int, _Api] = {}

    # -- handlers ------------------------------------------------------------------------------

    def handler(self, key: ApiKey) -> AnyHandler:
        """Return the handler of an API, made now if there is none yet."""
        handler: AnyHandler = (self._apis.get(key) or self._make(key)).handler
        return handler

    def make_handlers(self) -> Generator[None, None, None]:
        """Make all handlers that no request has needed yet, with their imports; yield after each (10 ms)."""
        for key in list(self._factories):
            try:
                if key not in self._apis:
                    self._make(key)
                if not messages.is_written_by_hand(key):
                    messages.request_class(key), messages.response_class(key)
            except Exception:
                log.failure("{api} cannot be served", api=key.name)
            yield

    def _make(self, key: ApiKey) -> _Api:
        factory = self._factories.get(key)
        if factory is None:
            raise RequestRefusedError(f"{key.name} is not served here")
        api = self._apis[key] = _Api(API_SPECS[key], factory())
        return api

    # -- decode --------------------------------------------------------------------------------

    def __call__(self, frame: memoryview, peer: Peer) -> Answer | Deferred[Answer]:
        """Answer one request frame; RequestRefusedError or MalformedMessage for those that get none."""
        header, body = messages.decode_request_header(frame)
        api = self._apis.get(header.api_key)
        if api is None:
            api = self._make(ApiKey(header.api_key))
        context = RequestContext(header, peer, api.budget, self._turns)
        if self._quotas.is_enabled and peer.broker_id < 0:
            context.quota = self._quotas.begin(peer, context.client_id, len(frame))
        if not api.first_version <= header.api_version <= api.last_version:
            return self._unsupported_version(context, api)
        if api.sender is not None and not self._authorizer.authorize(peer, header.api_key):
            return context.encode_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
        if len(frame) > api.at_once:
            if len(frame) > context.budget.max_bytes:
                excess = (
                    f"{len(frame)} bytes are more than the {context.budget.max_bytes} of a request"
                )
                return self._over_budget(context, excess)
            return self._in_turn(context, api, frame, body)
        return self._decode(context, api, frame, body)

    def _unsupported_version(self, context: RequestContext, api: _Api) -> Answer:
        if not isinstance(api.handler, VersionNegotiator):
            raise RequestRefusedError(
                f"{api.key.name} version {context.api_version} is not served, only {SERVED[api.key]}"
            )
        response = api.handler.unsupported_version()
        return (messages.encode_response(api.key, 0, context.correlation_id, response),)

    def _in_turn(
        self, context: RequestContext, api: _Api, frame: memoryview, body: int
    ) -> Deferred[Answer]:
        """Process a large request in a turn of its own; cancelling it cancels what its handler returned."""
        context.is_large = True
        if context.quota is not None:
            context.quota.waits()
        turn: Deferred[Any] = self._turns.next()
        return turn.addCallback(lambda _: self._decode(context, api, frame, body))

    def _decode(
        self, context: RequestContext, api: _Api, frame: memoryview, body: int
    ) -> Answer | Deferred[Answer]:
        """Decode the request from offset *body*, and handle it; a raw handler decodes the body itself."""
        try:
            if api.is_raw:
                return self._handle_raw(context, api, frame[body:])
            request = messages.decode_request(
                context.header, frame, body, max_elements=context.budget.max_elements
            )
        except TooManyElements as error:
            limit = f"more than the {error.limit} elements of a request ({error.message})"
            return self._over_budget(context, limit)
        if context.is_large:
            # Handling begins in another turn than decoding.
            turn: Deferred[Any] = self._turns.next()
            return turn.addCallback(lambda _: self._handle(context, api, request))
        return self._handle(context, api, request)

    def _over_budget(self, context: RequestContext, excess: str) -> Answer:
        """Refuse a request above its API's budget: log it, and answer if the response has a field for the error."""
        api = ApiKey(context.header.api_key)
        cause = f"{api.name} v{context.api_version}: {excess}"
        if not context.has_error_code:
            raise RequestRefusedError(cause)
        second = int(self._turns.now())
        if second != self._logged_at:  # at most one line a second
            self._logged_at = second
            log.warn("refused for {peer}: {cause}", peer=str(context.peer), cause=cause)
        return context.encode_error(ErrorCode.INVALID_REQUEST, cause)

    # -- authorize, gate, handle -----------------------------------------------------------------

    def _handle_raw(
        self, context: RequestContext, api: _Api, body: memoryview
    ) -> Answer | Deferred[Answer]:
        """Have a raw handler answer, behind its gate."""
        if api.gate is not Gate.NONE:
            opening = self._gates.wait(api.gate, body)
            if opening is not None:
                return Deferred.fromCoroutine(_behind(opening, api, context, body))
        answer: Answer | Deferred[Answer] = api.handler(context, body)
        if context.quota is not None:
            context.quota.waits()
        return answer

    def _handle(
        self, context: RequestContext, api: _Api, request: Any
    ) -> Answer | Deferred[Answer]:
        """Have the handler answer the decoded request, behind its gate, and encode the response."""
        if api.sender is not None:
            broker_id = getattr(request, api.sender)
            if not self._authorizer.authorize_as(context.peer, broker_id, api.key):
                return context.encode_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
        try:
            opening = None if api.gate is Gate.NONE else self._gates.wait(api.gate, request)
            if opening is not None:
                result: Any = _behind(opening, api, context, request)
            else:
                result = api.handler(context, request)
        except ProtocolError:
            raise
        except Exception:
            return self._failed(Failure(), context)
        if iscoroutine(result):
            result = Deferred.fromCoroutine(result)
        if isinstance(result, Deferred):
            return self._later(result, context)
        return context.encode(result)

    # -- encode --------------------------------------------------------------------------------

    def _later(self, result: Deferred[Any], context: RequestContext) -> Deferred[Answer]:
        """Return a Deferred of the encoded response; cancelling it does not cancel *result*."""
        if context.quota is not None and not result.called:
            context.quota.waits()
        answer: Deferred[Answer] = Deferred(lambda _cancelled: None)

        def succeed(encoded: Answer) -> None:
            if not answer.called:
                answer.callback(encoded)

        def fail(failure: Failure) -> None:
            if not answer.called:
                answer.errback(failure)

        def finish(response: Any) -> None:
            if answer.called:
                return
            try:
                if isinstance(response, Failure):
                    encoded = self._failed(response, context)
                elif response is not None and _takes_turns(context):
                    steps = Deferred.fromCoroutine(context.encode_in_steps(response))
                    steps.addCallbacks(succeed, fail)
                    return
                else:
                    encoded = context.encode(response)
            except Exception:
                fail(Failure())
            else:
                succeed(encoded)

        result.addBoth(finish)
        return answer

    def _failed(self, failure: Failure, context: RequestContext) -> Answer:
        """Answer a request after its handler raised, or raise RequestRefusedError."""
        error = failure.value
        api = ApiKey(context.header.api_key)
        if isinstance(error, RequestRefusedError | ProtocolError):
            raise error
        if isinstance(error, KafkaError):
            code = int(error.code)
        elif isinstance(error, CancelledError):
            raise RequestRefusedError(f"{api.name} was cancelled")
        else:
            code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
            log.failure(
                "{api} v{version} from {peer} failed",
                failure,
                api=api.name,
                version=context.api_version,
                peer=str(context.peer),
            )
        if not context.has_error_code:
            raise RequestRefusedError(f"{api.name}: {type(error).__name__}: {error}")
        message = str(error) if isinstance(error, KafkaError) else None
        return context.encode_error(code, message)


async def _behind(
    opening: Awaitable[object], api: _Api, context: RequestContext, request: Any
) -> Any:
    """Have the handler answer when its gate is open."""
    await opening
    answer = api.handler(context, request)
    return await answer if isawaitable(answer) else answer


def _takes_turns(context: RequestContext) -> bool:
    """Return whether the response may take longer to encode than one turn has."""
    return context.is_large or context.budget.answers_in_steps
