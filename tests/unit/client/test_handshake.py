"""The first exchange on a connection: its outcome is the broker's APIs, or a ConnectError with the cause."""

from __future__ import annotations

import struct

from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.errors import Cause, ConnectError
from kclient.net.handshake import fetch_api_versions
from kclient.wire.errors import ErrorCode
from kclient.wire.schema.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from kclient.wire.versions import ApiKey, VersionRange
from tests.kit.scripted_broker import Outcome, ScriptedBroker


def handshake(broker: ScriptedBroker) -> Outcome:
    return Outcome(Deferred.fromCoroutine(fetch_api_versions(broker.connection, 2.5)))


def refused(outcome: Outcome, cause: Cause) -> str:
    assert isinstance(outcome.error, ConnectError)
    assert outcome.error.cause is cause
    return str(outcome.error)


def test_the_ranges_of_the_broker_are_kept() -> None:
    broker = ScriptedBroker()
    outcome = handshake(broker)
    ((header, request),) = broker.requests()
    assert (header.api_key, header.api_version) == (ApiKey.API_VERSIONS, 3)
    assert request.client_software_name == "kclient"
    feature = SupportedFeatureKey(name="metadata.version", min_version=1, max_version=2)
    broker.answer(
        header,
        ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=1, min_version=4, max_version=17)],
            supported_features=[feature],
        ),
    )
    assert outcome.value is None
    assert broker.connection.api_versions == {1: VersionRange(4, 17)}
    assert broker.connection.features == {"metadata.version": VersionRange(1, 2)}


def test_an_older_broker_is_asked_again_in_version_0() -> None:
    broker = ScriptedBroker()
    outcome = handshake(broker)
    ((header, _),) = broker.requests()
    # In version 0, whatever was asked for (KIP-511).
    broker.send(struct.pack(">ihi", header.correlation_id, ErrorCode.UNSUPPORTED_VERSION, 0))
    ((header, _),) = broker.requests()
    assert header.api_version == 0
    apis = [ApiVersion(api_key=0, min_version=0, max_version=5)]
    broker.answer(header, ApiVersionsResponse(api_keys=apis))
    assert outcome.value is None
    assert broker.connection.api_versions == {0: VersionRange(0, 5)}


def test_a_silent_address_is_described_with_the_time() -> None:
    broker = ScriptedBroker()
    outcome = handshake(broker)
    broker.clock.advance(2.4)
    assert not outcome.fired
    broker.clock.advance(0.2)
    text = refused(outcome, Cause.TIMEOUT)
    assert "accepted the connection and did not answer ApiVersions in 2.5 s" in text
    assert "a TLS port" in text
    assert broker.transport.aborted


def test_an_address_that_hangs_up_is_described() -> None:
    broker = ScriptedBroker()
    outcome = handshake(broker)
    broker.connection.connectionLost(Failure(error.ConnectionDone()))
    assert "before its ApiVersions response" in refused(outcome, Cause.CLOSED)


def test_a_broken_response_is_none_of_kafka() -> None:
    broker = ScriptedBroker()
    outcome = handshake(broker)
    ((header, _),) = broker.requests()
    broker.send(struct.pack(">i", header.correlation_id) + b"\xff")
    refused(outcome, Cause.NOT_KAFKA)
    assert broker.connection.closed is not None


def test_another_error_is_one_of_this_address() -> None:
    broker = ScriptedBroker()
    outcome = handshake(broker)
    ((header, _),) = broker.requests()
    broker.answer(header, ApiVersionsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert "to ApiVersions: CLUSTER_AUTHORIZATION_FAILED" in refused(outcome, Cause.ERROR)
    assert broker.connection.closed is not None
