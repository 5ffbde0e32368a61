"""The conditional append: an extension in tagged fields, and batches that keep their offsets."""

from uuid import UUID

import pytest

from kclient.wire import batches, produce
from kclient.wire.errors import (
    CorruptMessage,
    InvalidRecord,
    MalformedMessage,
    MessageTooLarge,
)
from kclient.wire.leaders import LeaderIdAndEpoch
from kclient.wire.messages import decode_request_header
from kclient.wire.records import encode_batch
from tests.kit.record_batches import rebuilt, some_records

FLEXIBLE = range(9, 12)


def batch(base_offset, count=3, leader_epoch=4):
    return encode_batch(some_records(count), base_offset=base_offset, leader_epoch=leader_epoch)


def request_body(partition, version):
    request = produce.ProduceRequest(-1, 1000, [produce.ProduceTopic("t", [partition])])
    frame = b"".join(produce.encode_request(request, version, 7, "me"))
    return memoryview(frame[decode_request_header(frame)[1] :])


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("expected", [0, 1, 1 << 40])
def test_the_expected_log_end_travels_with_the_partition(version, expected):
    sent = produce.ProducePartition(3, b"RECORDS", expected, 0xFEDCBA98)
    found = produce.decode_request(request_body(sent, version), version).topics[0].partitions[0]
    assert found == sent


@pytest.mark.parametrize(
    "topics",
    [
        produce.CopiedTopics("kX3fWw5rQ0y1mZ2uH8bLcA", UUID(int=7)),
        produce.CopiedTopics("", UUID(int=7)),
        produce.CopiedTopics("kX3fWw5rQ0y1mZ2uH8bLcA", None),
        produce.NO_TOPICS,
    ],
)
def test_the_topic_ids_travel_with_the_condition(topics):
    sent = produce.ProducePartition(3, b"RECORDS", 5, 6, topics)
    found = produce.decode_request(request_body(sent, 11), 11).topics[0].partitions[0]
    assert found == sent


@pytest.mark.parametrize("version", range(3, 9))
def test_versions_without_tags_cannot_carry_it(version):
    with pytest.raises(ValueError, match="conditional append"):
        request_body(produce.ProducePartition(3, b"RECORDS", 5), version)


def test_an_ordinary_request_carries_no_tag():
    body = request_body(produce.ProducePartition(3, b"RECORDS"), 9)
    assert bytes(body).endswith(b"RECORDS\0\0\0")
    assert produce.decode_request(body, 9).topics[0].partitions[0].expected_log_end == -1


@pytest.mark.parametrize("version", FLEXIBLE)
def test_the_leaders_log_end_travels_with_the_refusal(version):
    outcome = produce.ProducePartitionResponse(3, 45, error_message="no", log_end_offset=17)
    if version >= 10:
        outcome.current_leader = LeaderIdAndEpoch(2, 9)
    response = produce.ProduceResponse([produce.ProduceTopicResponse("t", [outcome])])
    frame = memoryview(produce.encode_response(response, version, 7))
    assert produce.decode_response(frame, version)[1].topics[0].partitions == [outcome]


@pytest.mark.parametrize(
    "tagged",
    [
        b"\1\x90\x4e\x0c" + b"\xff" * 12,  # a negative offset
        b"\1\x90\x4e\x0b" + b"\0" * 11,  # cut short
        b"\1\x91\x4e\x0f" + b"\0" * 15,  # topic ids, cut short
        b"\1\x91\x4e\x12" + b"\0" * 16 + b"\xff\xfe",  # a topic id that is no text
    ],
)
def test_a_broken_expected_log_end_is_malformed(tagged):
    body = bytes(request_body(produce.ProducePartition(3, b"RECORDS"), 9))
    with pytest.raises(MalformedMessage):
        produce.decode_request(memoryview(body[:-3] + tagged + b"\0\0"), 9)


def test_copied_batches_may_be_many_and_leave_gaps():
    data = batch(5) + batch(20, 2) + batch(22)
    found = batches.check_copied(data, next_offset=5, max_batch_bytes=1000)
    assert [(info.base_offset, info.next_offset) for info in found] == [(5, 8), (20, 22), (22, 25)]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidRecord),
        (batch(4), InvalidRecord),
        (batch(5) + batch(7), InvalidRecord),
        (batch(5) + batch(5), InvalidRecord),
        (batch(5) + batch(8)[:-1], CorruptMessage),
        (batch(5) + batch(8)[:30], CorruptMessage),
        (batch(5)[:-1] + b"?", CorruptMessage),
        (rebuilt(batch(5), last_offset_delta=-1), InvalidRecord),
        (batch(5, 300), MessageTooLarge),
    ],
)
def test_batches_that_cannot_be_copied_are_refused(data, error):
    with pytest.raises(error):
        batches.check_copied(data, next_offset=5, max_batch_bytes=1000)


def test_what_only_brokers_may_write_is_copied():
    attributes = batches.CONTROL | batches.TRANSACTIONAL | batches.LOG_APPEND_TIME
    data = rebuilt(batch(5), attributes=attributes, producer_id=9, producer_epoch=0)
    assert batches.check_copied(data, next_offset=0, max_batch_bytes=1000)[0].is_control


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_new_leader_epoch_changes_nothing_else(kind):
    data = kind(batch(5) + batch(20))
    found = batches.check_copied(data, next_offset=5, max_batch_bytes=1000)
    stamped = batches.with_leader_epoch(data, found, 11)
    again = batches.check_copied(stamped, next_offset=5, max_batch_bytes=1000)
    assert [info.leader_epoch for info in again] == [11, 11]
    assert [info._replace(leader_epoch=4) for info in again] == found
    assert (data == stamped) == (kind is bytearray), "only what may be changed is changed in place"
