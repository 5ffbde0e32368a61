"""A connection to a broker begins with the proof; a refused proof ends it."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kbroker.network.broker_dial import BrokerDial
from kclient.errors import Address, ConnectionClosed
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import ClusterAuthorizationFailed
from kclient.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kclient.wire.versions import ApiKey
from tests.kit.inter_broker import proofs_of


class ScriptedConnection:
    """Remembers what was asked, and why it was closed."""

    def __init__(self) -> None:
        self.asked: list[tuple[ApiKey, int, ApiVersionsRequest, Deferred[Any]]] = []
        self.reason: Exception | None = None

    def request(self, api: ApiKey, version: int, message: Any) -> Deferred[Any]:
        self.asked.append((api, version, message, Deferred()))
        return self.asked[-1][3]

    def close(self, reason: Exception | None = None) -> None:
        self.reason = reason


def dialled() -> ScriptedConnection:
    """Connect broker 1 to broker 2."""
    connection = ScriptedConnection()

    async def dial(*_given: object, **_options: object) -> Any:
        return connection

    connect = BrokerDial(Clock(), dial, proofs_of(1))
    arrived = Deferred.fromCoroutine(
        connect(2, Address("there", 9092), client_id="broker-1", request_timeout=1.0)
    )
    assert arrived.result is connection  # type: ignore[comparison-overlap]  # scripted
    return connection


def test_the_proof_for_that_broker_is_the_first_request_and_is_not_waited_for() -> None:
    ((api, version, request, answer),) = dialled().asked
    assert (api, version, answer.called) == (ApiKey.API_VERSIONS, 3, False)
    assert proofs_of(2).verify(request.broker_proof) == 1
    assert proofs_of(3).verify(request.broker_proof) is None


def test_a_refused_proof_closes_the_connection_and_an_accepted_one_does_not() -> None:
    accepted, refused = dialled(), dialled()
    accepted.asked[0][3].callback(ApiVersionsResponse())
    assert accepted.reason is None
    error = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    refused.asked[0][3].callback(ApiVersionsResponse(error_code=error))
    assert isinstance(refused.reason, ClusterAuthorizationFailed)


def test_a_connection_that_is_lost_before_the_answer_is_no_error_of_ours() -> None:
    dialled().asked[0][3].errback(ConnectionClosed("gone"))
