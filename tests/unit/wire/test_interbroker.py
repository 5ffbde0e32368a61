"""Golden bytes, written by Kafka 3.9's own message classes (see tests/compat/test_wire_against_kafka.py)."""

import pytest

from kclient.wire import messages
from kclient.wire.interbroker import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from kclient.wire.messages import RequestHeader
from kclient.wire.versions import ApiKey
from tests.kit.wire_messages import INTER_BROKER, MESSAGES, body, everything_set, versions_of

GOLDEN = {
    (ApiKey.LEADER_AND_ISR, "request"): (
        "00000003010000000300000000000000040102027300000000000000000000000000000000020000000300000003"
        "00000003000000030200000003000000030200000003020000000302000000030101000002000000030273000000"
        "030000"
    ),
    (
        ApiKey.LEADER_AND_ISR,
        "response",
    ): "0002020000000000000000000000000000000002000000030002000000",
    (ApiKey.STOP_REPLICA, "request"): (
        "000000030100000003000000000000000402027302000000030000000301000000"
    ),
    (ApiKey.STOP_REPLICA, "response"): "00020202730000000300020000",
    (ApiKey.UPDATE_METADATA, "request"): (
        "00000003010000000300000000000000040202730000000000000000000000000000000002000000030000000300"
        "0000030000000302000000030000000302000000030200000003000002000000030200000003027302730002000273"
        "0001000101"
    ),
    (ApiKey.UPDATE_METADATA, "response"): "000200",
    (ApiKey.CONTROLLED_SHUTDOWN, "request"): "00000003000000000000000400",
    (ApiKey.CONTROLLED_SHUTDOWN, "response"): "0002020273000000030000",
}


@pytest.mark.parametrize(("which", "golden"), GOLDEN.items(), ids=str)
def test_inter_broker_messages_are_kafkas_to_the_byte(which, golden):
    api, direction = which
    version = max(versions_of(api))
    message = everything_set(MESSAGES[which], version, ours=False)
    assert body(api, direction, version, message).hex() == golden


@pytest.mark.parametrize("api", INTER_BROKER)
def test_inter_broker_requests_go_through_the_ordinary_functions(api):
    for version in versions_of(api):
        request = everything_set(MESSAGES[api, "request"], version)
        frame = messages.encode_request(RequestHeader(api, version, 3, "1"), request)
        header, start = messages.decode_request_header(frame)
        assert messages.decode_request(header, frame, start) == request


def test_a_broker_without_a_rack_has_none():
    endpoint = UpdateMetadataEndpoint(9092, "localhost", "PLAINTEXT", 0)
    request = UpdateMetadataRequest(live_brokers=[UpdateMetadataBroker(1, [endpoint])])
    frame = messages.encode_request(RequestHeader(ApiKey.UPDATE_METADATA, 8, 3), request)
    header, start = messages.decode_request_header(frame)
    assert messages.decode_request(header, frame, start).live_brokers[0].rack is None
