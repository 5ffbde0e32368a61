import struct
import subprocess
import sys
from uuid import UUID

import pytest

from kclient.wire import messages
from kclient.wire.errors import MalformedMessage, UnsupportedVersion
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
)
from kclient.wire.schema.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kclient.wire.schema.consumer_protocol_assignment import ConsumerProtocolAssignment
from kclient.wire.schema.consumer_protocol_subscription import ConsumerProtocolSubscription
from kclient.wire.schema.create_topics import CreatableTopicResult, CreateTopicsResponse
from kclient.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from kclient.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kclient.wire.schema.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from kclient.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kclient.wire.versions import ApiKey


def decode_request(frame):
    header, start = messages.decode_request_header(frame)
    return messages.decode_request(header, frame, start)


# --- headers


def test_a_request_begins_with_key_version_correlation_id_and_client_id():
    frame = messages.encode_request(RequestHeader(12, 0, 5, "me"), HeartbeatRequest("g", 2, "m"))
    assert frame == b"\0\x0c\0\0\0\0\0\5\0\2me\0\1g\0\0\0\2\0\1m"
    assert messages.decode_request_header(frame) == (RequestHeader(12, 0, 5, "me"), 12)


def test_a_flexible_request_has_tags_in_its_header_but_a_plain_client_id():
    frame = messages.encode_request(RequestHeader(12, 4, 5, None), HeartbeatRequest("g", 2, "m"))
    assert frame == b"\0\x0c\0\4\0\0\0\5\xff\xff\0\2g\0\0\0\2\2m\0\0"
    assert decode_request(frame) == HeartbeatRequest("g", 2, "m")


def test_unknown_tags_are_skipped_in_header_and_body():
    tags = b"\2\x00\3abc\x81\x01\1z"  # tags 0 and 129
    frame = b"\0\x0c\0\4\0\0\0\5\xff\xff" + tags + b"\2g\0\0\0\2\2m\0" + tags
    assert decode_request(frame) == HeartbeatRequest("g", 2, "m")


@pytest.mark.parametrize(
    "tags",
    [
        b"\2\1\0\1\0",  # the same tag twice
        b"\2\5\0\1\0",  # out of order
        b"\1\0\x09abc",  # past the end
        b"\xff\xff\xff\xff\x0f\0\0",  # four thousand million of them
        b"\xff\xff\xff\xff\xff\x01",  # a varint of six bytes
        b"",
    ],
)
def test_broken_tags_are_malformed(tags):
    with pytest.raises(MalformedMessage):
        decode_request(b"\0\x0c\0\4\0\0\0\5\xff\xff\0\2g\0\0\0\2\2m\0" + tags)
    with pytest.raises(MalformedMessage):
        messages.decode_request_header(b"\0\x0c\0\4\0\0\0\5\xff\xff" + tags)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\x0c\0\0",
        b"\0\x0c\0\0\0\0\0\5\xff\xfe",  # client id of -2 bytes
        b"\0\x0c\0\0\0\0\0\5\x7f\xffabc",
        b"\0\x0c\0\0\0\0\0\5\0\2\xff\xfe",  # not UTF-8
        b"\xff\xff\0\0\0\0\0\5\xff\xff",  # api key -1
        b"\x27\x0f\0\0\0\0\0\5\xff\xff",  # api key 9999
    ],
)
def test_a_broken_request_header_is_malformed(frame):
    with pytest.raises(MalformedMessage):
        messages.decode_request_header(frame)


def test_the_header_of_an_unsupported_version_is_decoded_for_the_response():
    frame = b"\0\x12\0\x63\0\0\0\5\0\2me" + b"whatever follows"
    header, _ = messages.decode_request_header(frame)
    assert header == RequestHeader(ApiKey.API_VERSIONS, 99, 5, "me")
    with pytest.raises(UnsupportedVersion, match="API_VERSIONS version 99: supported are 0-4"):
        messages.decode_request(header, frame, 12)


def test_the_answer_to_an_unknown_api_versions_version_is_of_version_0():
    answer = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(18, 0, 4)])
    frame = messages.encode_response(ApiKey.API_VERSIONS, 0, 5, answer)
    assert frame == b"\0\0\0\5\0\x23\0\0\0\1\0\x12\0\0\0\4"


def test_an_api_versions_response_has_no_tags_in_its_header():
    frame = messages.encode_response(ApiKey.API_VERSIONS, 3, 5, ApiVersionsResponse())
    assert frame == b"\0\0\0\5\0\0\1\0\0\0\0\0"
    assert messages.decode_response(ApiKey.API_VERSIONS, 3, frame) == (5, ApiVersionsResponse())


def test_other_flexible_responses_have_tags_in_their_header():
    frame = messages.encode_response(ApiKey.HEARTBEAT, 4, 5, HeartbeatResponse())
    assert frame == b"\0\0\0\5\0\0\0\0\0\0\0\0"


def test_unknown_apis_and_hand_written_ones_have_different_errors():
    with pytest.raises(UnsupportedVersion, match="api key 999 is unknown"):
        messages.decode_request(RequestHeader(999, 0, 1), b"", 0)
    with pytest.raises(LookupError, match=r"kclient\.wire\.produce"):
        messages.request_class(ApiKey.PRODUCE)


# --- bodies


def test_what_a_version_lacks_is_left_out_and_has_its_default_after_reading():
    request = ApiVersionsRequest("kclient", "1.0")
    old = messages.encode_request(RequestHeader(18, 2, 1), request)
    assert decode_request(old) == ApiVersionsRequest()
    assert decode_request(messages.encode_request(RequestHeader(18, 3, 1), request)) == request


def test_tagged_fields_are_written_only_if_they_differ_from_their_default():
    empty = messages.encode_response(ApiKey.API_VERSIONS, 3, 5, ApiVersionsResponse())
    response = ApiVersionsResponse(finalized_features_epoch=7, zk_migration_ready=True)
    frame = messages.encode_response(ApiKey.API_VERSIONS, 3, 5, response)
    assert frame == empty[:-1] + b"\2\1\x08\0\0\0\0\0\0\0\7\3\1\1"
    assert messages.decode_response(ApiKey.API_VERSIONS, 3, frame) == (5, response)


def test_the_number_of_a_transaction_travels_as_a_tag_of_ours():
    marker = WritableTxnMarker(7, 3, True, [WritableTxnMarkerTopic("t", [0])], 5, 9)
    frame = messages.encode_request(
        RequestHeader(ApiKey.WRITE_TXN_MARKERS, 1, 1), WriteTxnMarkersRequest([marker])
    )
    assert decode_request(frame).markers == [marker]
    result = AddPartitionsToTxnResult("x", [], transaction_number=9)
    for version in (4, 5):
        response = AddPartitionsToTxnResponse(results_by_transaction=[result])
        frame = messages.encode_response(ApiKey.ADD_PARTITIONS_TO_TXN, version, 1, response)
        _, found = messages.decode_response(ApiKey.ADD_PARTITIONS_TO_TXN, version, frame)
        assert found.results_by_transaction[0].transaction_number == 9
    assert AddPartitionsToTxnResult().transaction_number == -1
    assert WritableTxnMarker().transaction_number == -1


def test_a_tag_with_a_wrong_size_is_malformed():
    empty = messages.encode_response(ApiKey.API_VERSIONS, 3, 5, ApiVersionsResponse())
    for lie in (b"\1\1\x09" + bytes(9), b"\1\1\7" + bytes(8), b"\1\3\0"):
        with pytest.raises(MalformedMessage):
            messages.decode_response(ApiKey.API_VERSIONS, 3, empty[:-1] + lie)


def test_no_topics_and_all_topics_are_different_requests():
    header = RequestHeader(ApiKey.METADATA, 12, 1)
    for topics in ([], None):
        request = MetadataRequest(topics=topics)
        assert decode_request(messages.encode_request(header, request)) == request


def test_null_is_written_and_read_only_where_the_version_has_it():
    nameless = MetadataResponse(topics=[MetadataResponseTopic(name=None, topic_id=UUID(int=3))])
    frame = messages.encode_response(ApiKey.METADATA, 12, 1, nameless)
    assert messages.decode_response(ApiKey.METADATA, 12, frame)[1] == nameless
    with pytest.raises(ValueError, match="MetadataResponse v11 cannot be written"):
        messages.encode_response(ApiKey.METADATA, 11, 1, nameless)
    with pytest.raises(ValueError, match="MetadataRequest v0 cannot be written"):
        messages.encode_request(RequestHeader(3, 0, 1), MetadataRequest(topics=None))


@pytest.mark.parametrize(
    ("version", "body", "message"),
    [
        (0, b"\xff\xff\xff\xff", r"MetadataRequest\.topics: null"),
        (1, b"\xff\xff\xff\xfe", r"MetadataRequest\.topics: negative size"),
        (0, b"\0\0\0\1\xff\xff", r"MetadataRequestTopic\.name: null"),
        (0, b"\0\0\0\1\0\3ab", r"MetadataRequestTopic\.name: 3 bytes"),
        (0, b"\0\0\0\1\0\1\xff", "can't decode byte 0xff"),
        (0, b"\0\0\0\1\0\3\xed\xa0\x80", "can't decode"),  # a surrogate
        (0, b"\x7f\xff\xff\xff\0\1a", r"MetadataRequest\.topics: 2147483647 elements"),
        (9, b"\xff\xff\xff\xff\x0f\2a\0\0\0\0", "elements"),
        (9, b"\xff\xff\xff\xff\x1f\2a\0\0\0\0", "more than 32 bits"),
        (9, b"\x80\x80\x80\x80\x80\1", "more than 32 bits"),
        (9, b"\2\0\0\0\0\0\0", r"MetadataRequestTopic\.name: null"),
    ],
)
def test_the_error_names_the_field_that_is_wrong(version, body, message):
    with pytest.raises(MalformedMessage, match=message):
        messages.decode_request(RequestHeader(ApiKey.METADATA, version, 1), body, 0)


def test_a_zero_uuid_is_none():
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=None, name="t")])
    frame = messages.encode_request(RequestHeader(ApiKey.METADATA, 12, 1), request)
    assert bytes(16) in frame
    assert decode_request(frame) == request


def test_special_timestamps_and_codes_newer_than_us_survive():
    partition = ListOffsetsPartition(partition_index=0, timestamp=-5)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic("t", [partition])])
    assert decode_request(messages.encode_request(RequestHeader(2, 9, 1), request)) == request
    response = HeartbeatResponse(throttle_time_ms=-1, error_code=999)
    frame = messages.encode_response(12, 4, 1, response)
    assert messages.decode_response(12, 4, frame) == (1, response)


def test_an_error_beside_withheld_configs_travels_as_a_tag():
    result = CreatableTopicResult("t", topic_config_error_code=29, configs=None)
    response = CreateTopicsResponse(topics=[result])
    frame = messages.encode_response(ApiKey.CREATE_TOPICS, 7, 1, response)
    assert messages.decode_response(ApiKey.CREATE_TOPICS, 7, frame) == (1, response)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (HeartbeatRequest(group_id="x" * 40_000), "HeartbeatRequest v4"),
        (HeartbeatRequest(generation_id=1 << 31), "HeartbeatRequest v4"),
        (HeartbeatRequest(group_id="\ud800"), "HeartbeatRequest v4"),
        (HeartbeatRequest(group_id=None), "HeartbeatRequest v4"),
        (HeartbeatResponse(), "expected a HeartbeatRequest, got a HeartbeatResponse"),
    ],
)
def test_what_cannot_be_written_is_a_value_error_that_names_the_message(request_, message):
    with pytest.raises(ValueError, match=message):
        messages.encode_request(RequestHeader(12, 4, 1), request_)


def test_a_request_of_too_many_elements_is_malformed_however_small_they_are():
    many = b"\0\0\0\7" + struct.pack(">i", 600_000) + bytes(1_200_000) + bytes(4)
    with pytest.raises(MalformedMessage, match="has more than 500000 elements"):
        messages.decode_request(RequestHeader(ApiKey.DELETE_TOPICS, 1, 1), many, 4)
    few = struct.pack(">i", 3) + bytes(6) + bytes(4)
    header = RequestHeader(ApiKey.DELETE_TOPICS, 1, 1)
    assert messages.decode_request(header, few, 0).topic_names == ["", "", ""]
    with pytest.raises(MalformedMessage, match="has more than 2 elements"):
        messages.decode_request(header, few, 0, max_elements=2)


# --- the consumer protocol


def test_a_subscription_carries_its_version_in_front():
    encoded = messages.encode_consumer_protocol(0, ConsumerProtocolSubscription(topics=["t"]))
    assert encoded == b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
    assert messages.decode_consumer_protocol(ConsumerProtocolSubscription, encoded) == (
        0,
        ConsumerProtocolSubscription(topics=["t"]),
    )


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\0\x7f\xff\xff\xff"])
def test_a_broken_assignment_is_malformed(data):
    with pytest.raises(MalformedMessage):
        messages.decode_consumer_protocol(ConsumerProtocolAssignment, data)


# --- cost


def test_importing_the_wire_imports_neither_kio_nor_twisted_nor_any_schema():
    program = (
        "import sys, kclient.wire.messages\n"
        "print([m for m in sys.modules if m.startswith(('kio', 'twisted', 'kclient.wire.schema'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
