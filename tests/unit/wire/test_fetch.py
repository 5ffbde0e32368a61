import struct
from uuid import UUID

import pytest

from kclient.wire import fetch
from kclient.wire.errors import MalformedMessage
from kclient.wire.leaders import LeaderIdAndEpoch, NodeEndpoint
from kclient.wire.messages import decode_request_header

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


class Slice:
    """A piece of a file, as far as the codec is to know."""

    def __init__(self, size):
        self.size = size


def request(**fields):
    partition = fetch.FetchPartition(3, 1000, 1 << 20, 4, 5, 6)
    topic = fetch.FetchTopic("orders", [partition], TOPIC_ID)
    return fetch.FetchRequest(500, 1, [topic], 1 << 25, **fields)


def body_of(message, version):
    frame = fetch.encode_request(message, version, 7, "me")
    return frame[decode_request_header(frame)[1] :]


def response(*partitions):
    return fetch.FetchResponse([fetch.FetchTopicResponse("orders", list(partitions), TOPIC_ID)])


def answer(index, *records, **fields):
    size = sum(fetch.part_size(part) for part in records)
    return fetch.FetchPartitionResponse(index, 0, 9, 9, 0, records, size, **fields)


def test_a_v4_request_has_kafkas_layout():
    assert body_of(request(), 4) == (
        struct.pack(">iiiib", -1, 500, 1, 1 << 25, 0)
        + b"\0\0\0\1\0\6orders\0\0\0\1"
        + struct.pack(">iqi", 3, 1000, 1 << 20)
    )


def test_a_v16_request_has_kafkas_layout():
    message = request(replica_id=2, replica_epoch=77, session_id=8, session_epoch=1, rack_id="r")
    message.forgotten = [fetch.ForgottenTopic("", [1, 2], TOPIC_ID)]
    assert body_of(message, 16) == (
        struct.pack(">iiibii", 500, 1, 1 << 25, 0, 8, 1)
        + b"\2" + TOPIC_ID.bytes + b"\2" + struct.pack(">iiqiqi", 3, 4, 1000, 5, 6, 1 << 20)
        + b"\0\0"
        + b"\2" + TOPIC_ID.bytes + b"\3" + struct.pack(">ii", 1, 2) + b"\0"
        + b"\2r"
        + b"\1\1\x0d" + struct.pack(">iqB", 2, 77, 0)
    )  # fmt: skip


def test_a_followers_directory_id_in_v17_is_passed_over():
    # kafka-replica-verification sends its newest version without negotiation.
    plain = body_of(request(rack_id="r"), 17)
    partition = struct.pack(">iiqiqi", 3, 4, 1000, 5, 6, 1 << 20)
    named = plain.replace(partition + b"\0", partition + b"\1\0\x10" + TOPIC_ID.bytes)
    assert len(named) == len(plain) + 18
    assert fetch.decode_request(memoryview(named), 17) == fetch.decode_request(
        memoryview(plain), 17
    )


def test_consumers_write_no_replica_state():
    assert body_of(request(), 16).endswith(b"\1\1\0")
    assert fetch.decode_request(memoryview(body_of(request(), 16)), 16).replica_id == -1


@pytest.mark.parametrize("version", fetch.VERSIONS)
def test_topics_go_by_name_up_to_v12_and_by_id_from_v13(version):
    (topic,) = fetch.decode_request(memoryview(body_of(request(), version)), version).topics
    assert (topic.name, topic.topic_id) == (("orders", None) if version < 13 else ("", TOPIC_ID))


def test_file_slices_travel_untouched_between_few_bytes():
    first, second = Slice(100_000), Slice(7)
    frame = fetch.encode_response(response(answer(0), answer(1, first, second), answer(2)), 16, 7)
    assert [type(part) for part in frame] == [bytes, Slice, Slice, bytes]
    assert frame[1:3] == [first, second]
    whole = b"".join(part if isinstance(part, bytes) else b"x" * part.size for part in frame)
    _, again = fetch.decode_response(memoryview(whole), 16)
    assert [part.records_size for part in again.topics[0].partitions] == [0, 100_007, 0]


def test_small_records_in_memory_join_the_bytes_around_them():
    small, large = b"s" * 100, b"l" * 5000
    frame = fetch.encode_response(response(answer(0, small), answer(1, large)), 12, 7)
    assert [type(part) for part in frame] == [bytes, bytes, bytes]
    assert frame[1] is large
    assert small in frame[0]


@pytest.mark.parametrize("version", fetch.VERSIONS)
def test_a_consumer_gets_views_of_the_frame(version):
    parts = fetch.encode_response(response(answer(1, b"r" * 9000)), version, 7)
    frame = bytearray(b"".join(parts))
    _, again = fetch.decode_response(memoryview(frame), version)
    (partition,) = again.topics[0].partitions
    assert partition.record_set.obj is frame
    assert partition.record_set == b"r" * 9000


def test_no_records_are_an_empty_view():
    for version in (4, 12):
        frame = memoryview(b"".join(fetch.encode_response(response(answer(1)), version, 7)))
        assert fetch.decode_response(frame, version)[1].topics[0].partitions[0].record_set == b""


def test_null_records_are_no_records():
    frame = b"".join(fetch.encode_response(response(answer(1)), 4, 7))
    assert frame.endswith(b"\0\0\0\0")
    _, again = fetch.decode_response(memoryview(frame[:-4] + b"\xff" * 4), 4)
    assert again.topics[0].partitions[0].record_set == b""


def test_divergence_and_the_leader_travel_as_tags_from_v12():
    refused = answer(
        1, diverging_epoch=fetch.EpochEndOffset(3, 40), current_leader=LeaderIdAndEpoch(2, 9)
    )
    frame = b"".join(fetch.encode_response(response(refused), 12, 7))
    assert (
        b"\2\0\x0d" + struct.pack(">iqB", 3, 40, 0) + b"\1\x09" + struct.pack(">iiB", 2, 9, 0)
        in frame
    )
    for version in fetch.VERSIONS:
        frame = b"".join(fetch.encode_response(response(refused), version, 7))
        (again,) = fetch.decode_response(memoryview(frame), version)[1].topics[0].partitions
        known = version >= 12
        assert again.diverging_epoch == (refused.diverging_epoch if known else None)
        assert again.current_leader == (refused.current_leader if known else None)


def test_addresses_of_new_leaders_travel_from_v16():
    refused = response(answer(1))
    refused.node_endpoints = (NodeEndpoint(2, "b2", 9092), NodeEndpoint(3, "b3", 9093, "r"))
    for version in fetch.VERSIONS:
        frame = b"".join(fetch.encode_response(refused, version, 7))
        _, again = fetch.decode_response(memoryview(frame), version)
        assert again.node_endpoints == (refused.node_endpoints if version >= 16 else ())
        assert (b"b2" in frame) == (version >= 16)


def test_unknown_tagged_fields_are_skipped():
    body = body_of(request(), 13)
    assert body.endswith(b"\0\0\1\1\0")
    tagged = body[:-5] + b"\1\7\1x" + b"\1\7\0" + b"\1\1" + b"\2\2\0\x09\1x"
    assert fetch.decode_request(memoryview(tagged), 13) == fetch.decode_request(
        memoryview(body), 13
    )


def test_the_cluster_id_is_read():
    body = body_of(request(cluster_id="abc"), 12)
    assert fetch.decode_request(memoryview(body), 12).cluster_id == "abc"


@pytest.mark.parametrize(
    "tail",
    [
        b"\x7f\xff\xff\xff",
        b"\x80\0\0\0",
        b"\xff\xff\xff\xff",
        b"\0\0\0\1\0\1t\x7f\xff\xff\xff",
        b"\0\0\0\1\0\1t\xff\xff\xff\xff",
        b"\0\0\0\0" + b"\0\0\0\1\0\1t\x7f\xff\xff\xff",
    ],
)
def test_a_hostile_v7_request_is_malformed(tail):
    body = struct.pack(">iiiibii", -1, 0, 0, 0, 0, 0, -1) + tail
    with pytest.raises(MalformedMessage, match="Fetch request"):
        fetch.decode_request(memoryview(body), 7)


def test_hostile_sizes_in_a_response_are_malformed():
    frame = bytearray(b"".join(fetch.encode_response(response(answer(1, b"rec")), 11, 7)))
    for size in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe"):
        frame[-7:-3] = size
        with pytest.raises(MalformedMessage, match="Fetch response"):
            fetch.decode_response(memoryview(frame), 11)
