import struct

import pytest

from kclient.wire import produce
from kclient.wire.batches import Buffer
from kclient.wire.errors import MalformedMessage
from kclient.wire.fields import uvarint
from kclient.wire.leaders import LeaderIdAndEpoch, NodeEndpoint
from kclient.wire.messages import decode_request_header
from kclient.wire.records import encode_batch
from tests.kit.record_batches import some_records

BATCH = encode_batch(some_records(3))


def one_partition(records: Buffer | None = BATCH, **fields):
    topic = produce.ProduceTopic("orders", [produce.ProducePartition(3, records)])
    return produce.ProduceRequest(-1, 30_000, [topic], **fields)


def body_of(request, version):
    frame = b"".join(produce.encode_request(request, version, 7, "me"))
    return frame[decode_request_header(frame)[1] :]


def test_a_v3_request_has_kafkas_layout():
    body = body_of(one_partition(b"RECORDS", transactional_id="tx"), 3)
    assert body == (
        b"\0\2tx"
        + struct.pack(">hi", -1, 30_000)
        + b"\0\0\0\1\0\6orders\0\0\0\1\0\0\0\3\0\0\0\7RECORDS"
    )


def test_a_v9_request_has_kafkas_layout():
    body = body_of(one_partition(b"RECORDS"), 9)
    assert body == b"\0" + struct.pack(">hi", -1, 30_000) + b"\2\7orders\2\0\0\0\3\x08RECORDS\0\0\0"


@pytest.mark.parametrize("version", produce.VERSIONS)
def test_records_are_views_of_the_frame(version):
    body = bytearray(body_of(one_partition(), version))
    records = produce.decode_request(memoryview(body), version).topics[0].partitions[0].records
    assert records.obj is body
    assert records == BATCH


def test_a_client_sends_records_as_they_are():
    pieces = produce.encode_request(one_partition(), 11, 7, "me")
    assert pieces[1] is BATCH
    assert [type(piece) for piece in pieces] == [bytes, bytes, bytes]


def test_absent_records_are_null_not_empty():
    for version in (3, 9):
        for records in (None, b""):
            body = memoryview(body_of(one_partition(records), version))
            assert produce.decode_request(body, version).topics[0].partitions[0].records == records


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "truncated"),
        (b"\xff\xfe", "string length -2"),
        (b"\xff\xff" + b"\0" * 6 + b"\x7f\xff\xff\xff", "array of 2147483647"),
        (b"\xff\xff" + b"\0" * 6 + b"\xff\xff\xff\xff", "array of -1"),
        (b"\xff\xff" + b"\0" * 6 + b"\x80\0\0\0", "array of -2147483648"),
        (b"\xff\xff" + b"\0" * 6 + b"\0\0\0\1\xff\xff" + b"\0" * 20, "null"),
        (b"\xff\xff" + b"\0" * 6 + b"\0\0\0\1\0\1\xff" + b"\0" * 20, "malformed"),
        (b"\xff\xff" + b"\0" * 6 + b"\0\0\0\1\x7f\xff" + b"a" * 20, "string of 32767 bytes"),
        (
            b"\xff\xff" + b"\0" * 6 + b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\x7f\xff\xff\xff",
            "records of 2147483647",
        ),
        (b"\xff\xff" + b"\0" * 6 + b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xfe", "length -2"),
    ],
)
def test_a_hostile_v3_request_is_malformed(body, why):
    with pytest.raises(MalformedMessage, match=f"Produce request.*{why}"):
        produce.decode_request(memoryview(body), 3)


@pytest.mark.parametrize(
    "body",
    [
        b"\0" + b"\0" * 6 + b"\xff\xff\xff\xff\x0f",  # 2^32 - 2 topics
        b"\0" + b"\0" * 6 + b"\x80\x80\x80\x80\x80\x01",  # a varint of 36 bits
        b"\0" + b"\0" * 6 + b"\0\0",  # null topics
        b"\0" + b"\0" * 6 + b"\1\1\0\x7f",  # a tag of 127 bytes
        b"\0" + b"\0" * 6 + b"\1\xff\xff\xff\xff\x0f",  # 2^32 - 1 tags
    ],
)
def test_a_hostile_v9_request_is_malformed(body):
    with pytest.raises(MalformedMessage):
        produce.decode_request(memoryview(body), 9)


@pytest.mark.long
def test_more_partitions_than_any_cluster_has_are_malformed():
    empty_topic, partition = b"\1\1\0", b"\0\0\0\0\0\0"
    body = b"\0" + b"\0" * 6 + uvarint(200_002) + empty_topic * 200_001 + b"\0"
    with pytest.raises(MalformedMessage, match="200001"):
        produce.decode_request(memoryview(body), 9)
    topic = b"\2t" + uvarint(100_002) + partition * 100_001 + b"\0"
    body = b"\0" + b"\0" * 6 + uvarint(3) + topic * 2 + b"\0"
    with pytest.raises(MalformedMessage, match="more than 200000 topics and partitions"):
        produce.decode_request(memoryview(body), 9)


def test_unknown_tagged_fields_are_skipped():
    body = body_of(one_partition(b"RECORDS"), 9)
    assert body.endswith(b"RECORDS\0\0\0")
    tagged = body[:-3] + b"\1\5\2ab" + b"\2\0\0\x09\1z" + b"\1\x80\1\0"
    assert produce.decode_request(memoryview(tagged), 9) == produce.decode_request(
        memoryview(body), 9
    )


def response(**fields):
    partition = produce.ProducePartitionResponse(3, 6, **fields)
    return produce.ProduceResponse([produce.ProduceTopicResponse("orders", [partition])])


def test_a_v11_response_has_kafkas_layout():
    frame = produce.encode_response(response(base_offset=5, log_start_offset=1), 11, 0x0A0B)
    assert frame == (
        b"\0\0\x0a\x0b\0" + b"\2\7orders\2" + struct.pack(">ihqqq", 3, 6, 5, -1, 1)
        + b"\1\0\0" + b"\0" + b"\0\0\0\0" + b"\0"
    )  # fmt: skip


def test_the_new_leader_travels_with_the_refusal_from_v10():
    refused = response(current_leader=LeaderIdAndEpoch(2, 9))
    refused.node_endpoints = (NodeEndpoint(2, "b2", 9092, "r"),)
    for version in produce.VERSIONS:
        frame = memoryview(produce.encode_response(refused, version, 7))
        _, again = produce.decode_response(frame, version)
        leader = again.topics[0].partitions[0].current_leader
        assert leader == (LeaderIdAndEpoch(2, 9) if version >= 10 else None)
        assert again.node_endpoints == (refused.node_endpoints if version >= 10 else ())
