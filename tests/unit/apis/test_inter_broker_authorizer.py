"""The stage that refuses what is reserved to brokers: by API, by sender, by listener, with few lines of log."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.apis.api18_api_versions import ApiVersions
from kbroker.apis.api_specs import API_SPECS
from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.network.service import Peer, RequestRefusedError
from kclient.wire import messages
from kclient.wire.error_codes import ErrorCode
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.versions import SERVED, ApiKey
from tests.kit.inter_broker import authorizer_of, introduction, proofs_of
from tests.kit.request_pipelines import open_pipeline
from tests.unit.apis.kit import ApiBroker, joined

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

BETWEEN_BROKERS = {spec.key: spec.broker_field for spec in API_SPECS.values() if spec.broker_field}
"""The APIs that only brokers may use, and the field with the sender's id."""


class Counted:
    """A handler that counts its requests and answers as brokers do."""

    def __init__(self, api: ApiKey) -> None:
        self._api = api
        self.count = 0

    def __call__(self, _context: object, _request: object) -> Any:
        self.count += 1
        return messages.response_class(self._api)()


class Receiver:
    """The pipeline of broker 1, which serves one order and ApiVersions."""

    def __init__(self, api: ApiKey, listener: str | None = "INTERNAL") -> None:
        self.api = api
        self.handler = Counted(api)
        authorizer = authorizer_of(1, listener)
        self.pipeline = open_pipeline(
            {
                api: lambda: self.handler,
                ApiKey.API_VERSIONS: lambda: ApiVersions(SERVED, authorizer),
            },
            authorizer,
        )

    def order(self, peer: Peer, sender: int) -> int:
        """Send the order in the name of broker *sender*; return the error code."""
        request = messages.request_class(self.api)()
        setattr(request, BETWEEN_BROKERS[self.api], sender)
        return self.ask(peer, self.api, SERVED[self.api].max, request)

    def present(self, peer: Peer, proof: bytes) -> int:
        return self.ask(peer, ApiKey.API_VERSIONS, 3, introduction(proof))

    def ask(self, peer: Peer, api: ApiKey, version: int, request: object) -> int:
        frame = messages.encode_request(RequestHeader(api, version, 7, "c"), request)
        answer = joined(self.pipeline(memoryview(frame), peer))
        error: int = messages.decode_response(api, version, answer)[1].error_code
        return error


def peer(listener: str = "INTERNAL") -> Peer:
    return Peer("10.0.0.9", 1234, listener)


@pytest.fixture(params=list(BETWEEN_BROKERS), ids=lambda api: api.name)
def receiver(request: pytest.FixtureRequest) -> Receiver:
    return Receiver(request.param)


def test_a_controller_request_without_a_proof_is_refused(receiver: Receiver) -> None:
    assert receiver.order(peer(), 2) == REFUSED
    assert receiver.handler.count == 0


def test_a_controller_request_after_a_proof_is_accepted_from_that_broker_only(
    receiver: Receiver,
) -> None:
    connection = peer()
    assert receiver.present(connection, proofs_of(2).make(1)) == 0
    assert receiver.order(connection, 3) == REFUSED
    assert receiver.handler.count == 0
    assert receiver.order(connection, 2) == 0
    assert receiver.handler.count == 1
    assert receiver.order(peer(), 2) == REFUSED  # the proof is the connection's, not the broker's


def test_a_wrong_proof_is_refused_and_the_connection_stays_a_client(receiver: Receiver) -> None:
    connection = peer()
    assert receiver.present(connection, proofs_of(2).make(3)) == REFUSED
    assert receiver.order(connection, 2) == REFUSED


def test_a_proof_on_a_listener_for_clients_is_ignored(receiver: Receiver) -> None:
    outside = peer("EXTERNAL")
    assert receiver.present(outside, proofs_of(2).make(1)) == REFUSED
    assert receiver.order(outside, 2) == REFUSED


def test_the_body_of_an_unauthorized_request_is_not_decoded(receiver: Receiver) -> None:
    api = receiver.api
    header = messages.encode_request_header(RequestHeader(api, SERVED[api].max, 7, "c"))
    answer = receiver.pipeline(memoryview(bytes(header) + b"\xff" * 64), peer())
    response = messages.decode_response(api, SERVED[api].max, joined(answer))[1]
    assert response.error_code == REFUSED


def test_while_proofs_are_not_required_the_address_of_a_registered_broker_will_do() -> None:
    registered = {"10.0.0.9": {2, 3}}
    authorizer = InterBrokerAuthorizer(
        proofs_of(1), ("INTERNAL",), lambda: 0.0, lambda ip: registered.get(ip, ())
    )
    inside = peer()
    assert authorizer.authorize(inside, ApiKey.STOP_REPLICA)
    assert authorizer.authorize_as(inside, 2, ApiKey.FETCH)
    elsewhere = Peer("10.0.0.8", 1, "INTERNAL")
    outside = peer("EXTERNAL")
    proved = peer()
    assert authorizer.authenticate(proved, proofs_of(3).make(1))
    assert authorizer.authorize_as(proved, 3, ApiKey.FETCH)
    for sender, broker_id in ((inside, 4), (elsewhere, 2), (outside, 2), (proved, 2)):
        with pytest.raises(RequestRefusedError, match="no such broker is registered"):
            authorizer.authorize_as(sender, broker_id, ApiKey.FETCH)
    for sender in (elsewhere, outside):
        with pytest.raises(RequestRefusedError, match="no such broker is registered"):
            authorizer.authorize(sender, ApiKey.STOP_REPLICA)


def test_every_api_between_brokers_names_its_sender() -> None:
    for api, field in BETWEEN_BROKERS.items():
        assert hasattr(messages.request_class(api)(), field)
        assert hasattr(messages.response_class(api)(), "error_code")


@pytest.mark.parametrize("proved", [-1, 3])
def test_a_replica_id_that_was_not_proved_is_refused_in_list_offsets(
    broker: ApiBroker, proved: int
) -> None:
    broker.fill(1)
    asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    request = ListOffsetsRequest(2, 0, [ListOffsetsTopic("t", [asked])])
    sender = Peer("10.0.0.1", 1, "PLAINTEXT", broker_id=proved)
    answer = broker.ask(2, 6, request, peer=sender).topics[0].partitions[0]
    assert (answer.error_code, answer.offset) == (REFUSED, -1)


def test_of_many_refused_requests_one_a_second_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    lines: list[dict[str, Any]] = []
    authorizer = InterBrokerAuthorizer(proofs_of(1), None, lambda: now[0], None)
    from twisted.logger import globalLogPublisher

    globalLogPublisher.addObserver(lines.append)
    try:
        for _ in range(1000):
            assert not authorizer.authorize(peer(), ApiKey.STOP_REPLICA)
        now[0] = 1.0
        assert not authorizer.authorize_as(peer(), 2, ApiKey.FETCH)
    finally:
        globalLogPublisher.removeObserver(lines.append)
    assert len(lines) == 2
    assert "999" in lines[1]["more"]
