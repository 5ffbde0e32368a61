"""Requests of clients on their way to the request pipeline, some of them with a fault."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from kbroker.network.service import Answer, Peer, RequestRefusedError, Service
from kbroker.testing.request_faults.error_response import (
    OF_A_SESSION,
    NoPlaceError,
    error_response,
    names_no_partitions,
)
from kbroker.testing.request_faults.fault import RequestFault
from kbroker.testing.request_faults.plan import FaultPlan
from kclient.wire import messages
from kclient.wire.error_codes import ErrorCode
from kclient.wire.messages import RequestHeader
from kclient.wire.versions import SERVED, ApiKey


class FaultyService:
    """A `Service` that has the faults of *plan*, and *service* for what has none.

    Requests on *inter_broker_listener* have none: a network partition is the fault for those.
    """

    def __init__(
        self,
        service: Service,
        plan: FaultPlan,
        reactor: Any,
        broker: int,
        inter_broker_listener: str,
    ) -> None:
        self._service = service
        self._plan = plan
        self._reactor = reactor
        self._broker = broker
        self._inter_broker_listener = inter_broker_listener

    def __call__(self, frame: memoryview, peer: Peer) -> Answer | Deferred[Answer]:
        """Answer one request frame, as the service or as its fault has it."""
        if peer.listener == self._inter_broker_listener:
            return self._service(frame, peer)
        header, body = messages.decode_request_header(frame)
        fault = self._plan.claim(header.api_key, self._broker, header.client_id or "")
        if fault is None:
            return self._service(frame, peer)
        return Deferred.fromCoroutine(self._faulty(fault, header, body, frame, peer))

    async def _faulty(
        self, fault: RequestFault, header: RequestHeader, body: int, frame: memoryview, peer: Peer
    ) -> Answer:
        """Answer a request with a fault. A connection that ends during its delay ends the request, too."""
        if fault.delay:
            await deferLater(self._reactor, fault.delay)
        if fault.lost == "request":
            raise RequestRefusedError("the test asked for lost requests")
        if fault.error and _is_served(header):
            return await self._error(fault, header, body, frame, peer)
        answer = await self._handle(frame, peer)
        if fault.lost == "response":
            raise RequestRefusedError("the test asked for lost responses")
        return answer

    async def _handle(self, frame: memoryview, peer: Peer) -> Answer:
        answer = self._service(frame, peer)
        return await answer if isinstance(answer, Deferred) else answer

    async def _error(
        self, fault: RequestFault, header: RequestHeader, body: int, frame: memoryview, peer: Peer
    ) -> Answer:
        code = ErrorCode(fault.error)
        if header.api_key == ApiKey.METADATA:
            return _metadata_with(code, header, await self._handle(frame, peer))
        if (
            header.api_key == ApiKey.FETCH
            and code not in OF_A_SESSION
            and names_no_partitions(header, frame[body:])
        ):
            # As from a broker that evicted the session: the next request names all partitions, and gets the error.
            self._plan.give_back(fault)
            code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        try:
            answer = error_response(header, frame, body, code)
        except NoPlaceError as error:
            raise RequestRefusedError(f"{error}; the test asked for {code.name}") from None
        if answer is None:
            raise RequestRefusedError(
                f"the test asked for {code.name}, and acks=0 has no response for it"
            )
        return answer


def _is_served(header: RequestHeader) -> bool:
    return header.api_version in SERVED[ApiKey(header.api_key)]


def _metadata_with(code: ErrorCode, header: RequestHeader, answer: Answer) -> Answer:
    """Return *answer* with *code* for every topic: without its brokers, a client would know of none."""
    assert answer is not None
    frame = memoryview(b"".join(bytes(part) for part in answer))  # type: ignore[arg-type]
    _, response = messages.decode_response(header.api_key, header.api_version, frame)
    for topic in response.topics:
        topic.error_code, topic.partitions = int(code), []
    return (
        messages.encode_response(
            header.api_key, header.api_version, header.correlation_id, response
        ),
    )
