"""The hand-written codecs against kio's, which is generated from Kafka's own schemas."""

import datetime
import io
from contextlib import suppress
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from kclient.wire import fetch, produce
from kclient.wire.errors import MalformedMessage
from kclient.wire.messages import decode_request_header, decode_response_header
from tests.kit import produce_and_fetch_messages
from tests.kit.property_tests import examples

CORRELATION_ID = 0x01020304
CLIENT_ID = "cliente"


def joined(pieces):
    return bytes(pieces) if isinstance(pieces, bytes) else b"".join(pieces)


def request_bytes(api, version, message):
    """(frame, body) of a request."""
    frame = joined(api.encode_request(message, version, CORRELATION_ID, CLIENT_ID))
    header, body_offset = decode_request_header(frame)
    assert tuple(header) == (api.API_KEY, version, CORRELATION_ID, CLIENT_ID)
    return frame, frame[body_offset:]


def response_bytes(api, version, message):
    frame = joined(api.encode_response(message, version, CORRELATION_ID))
    correlation_id, body_offset = decode_response_header(api.API_KEY, version, frame)
    assert correlation_id == CORRELATION_ID
    return frame, frame[body_offset:]


def decoded_response(api, version, frame):
    correlation_id, response = api.decode_response(memoryview(frame), version)
    assert correlation_id == CORRELATION_ID
    return response


LAYOUTS = {produce: (3, 5, 8, 9, 11), fetch: (4, 5, 7, 9, 11, 12, 13, 16)}  # others are alike
CASES = [
    pytest.param(api, direction, version, id=f"{name}-{direction}-v{version}")
    for api, name in ((produce, "produce"), (fetch, "fetch"))
    for direction in ("request", "response")
    for version in LAYOUTS[api]
]
each_message = pytest.mark.parametrize(("api", "direction", "version"), CASES)


def strategy(api, direction, version):
    name = f"{api.__name__.rpartition('.')[2]}_{direction}s"
    return getattr(produce_and_fetch_messages, name)(version)


def kio_schema(api, direction, version):
    name = api.__name__.rpartition(".")[2]
    return load_entity_schema(name, version, EntityType[direction])


OUR_NAMES = {
    "topic": "name",
    "topic_data": "topics",
    "partition_data": "partitions",
    "responses": "topics",
    "partition_responses": "partitions",
    "forgotten_topics_data": "forgotten",
    "batch_index_error_message": "message",
    "max_wait": "max_wait_ms",
    "throttle_time": "throttle_time_ms",
    "timeout": "timeout_ms",
    "log_append_time": "log_append_time_ms",
}


def assert_same(ours, theirs):
    """Field by field: names matter, so that two swapped numbers are found out."""
    if is_dataclass(theirs):
        for field in fields(theirs):
            name = OUR_NAMES.get(field.name, field.name)
            their_value = getattr(theirs, field.name)
            if name == "partition_index":
                assert ours.partition == their_value
            elif name == "replica_state":
                assert (ours.replica_id, ours.replica_epoch) == (
                    their_value.replica_id,
                    their_value.replica_epoch,
                )
            elif name == "records" and not hasattr(ours, "index"):
                assert b"".join(ours.records) == bytes(their_value)
            elif name != "snapshot_id":  # only KRaft's controllers have snapshots
                assert_same(getattr(ours, name), their_value)
    elif isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for our_item, their_item in zip(ours, theirs, strict=True):
            assert_same(our_item, their_item)
    elif isinstance(theirs, datetime.timedelta):
        assert datetime.timedelta(milliseconds=ours) == theirs
    elif isinstance(theirs, datetime.datetime):
        assert ours == theirs.timestamp() * 1000
    else:
        assert ours == (-1 if theirs is None and isinstance(ours, int) else theirs)


def without_default_tags(message):
    """kio reads an absent tag as a struct of defaults; we read it as None. Make them alike."""
    for topic in message.topics:
        for partition in topic.partitions:
            if getattr(partition, "current_leader", 0) is None:
                partition.current_leader = produce_and_fetch_messages.LeaderIdAndEpoch()
            if getattr(partition, "diverging_epoch", 0) is None:
                partition.diverging_epoch = fetch.EpochEndOffset()
    return message


def encoded(api, direction, version, message):
    """(body alone, the bytes our decoder takes, our decoder)."""
    if direction == "request":
        _frame, body = request_bytes(api, version, message)
        return body, body, lambda data: api.decode_request(memoryview(data), version)
    frame, body = response_bytes(api, version, message)
    return body, frame, lambda data: decoded_response(api, version, data)


@each_message
@given(data=st.data())
@settings(max_examples=examples(12), deadline=None)
def test_kio_and_we_read_our_bytes_alike_and_kio_writes_the_same(api, direction, version, data):
    message = data.draw(strategy(api, direction, version))
    body, whole, decode = encoded(api, direction, version, message)
    assert decode(whole) == message
    schema = kio_schema(api, direction, version)
    theirs, size = entity_reader(schema)(body, 0)
    assert size == len(body)
    out = io.BytesIO()
    entity_writer(schema)(out, theirs)
    assert out.getvalue() == body
    assert_same(without_default_tags(message), theirs)


@each_message
@given(data=st.data())
@settings(max_examples=examples(8), deadline=None)
def test_cut_or_mutated_bytes_raise_nothing_but_malformed(api, direction, version, data):
    message = data.draw(strategy(api, direction, version))
    _body, whole, decode = encoded(api, direction, version, message)
    for cut in range(0, len(whole), 7):
        with pytest.raises(MalformedMessage):
            decode(whole[:cut])
    if direction == "request":  # librdkafka leaves bytes after some of its requests
        assert decode(whole + b"\0") == message
    else:
        with pytest.raises(MalformedMessage, match="1 bytes follow"):
            decode(whole + b"\0")
    places = st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=20)
    mutated = bytearray(whole)
    for at in data.draw(places):
        mutated[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
        with suppress(MalformedMessage):
            getattr(api, f"decode_{direction}")(memoryview(mutated), version)


@each_message
@given(noise=st.binary(max_size=80))
@settings(max_examples=examples(30), deadline=None)
def test_noise_raises_nothing_but_malformed(api, direction, version, noise):
    with suppress(MalformedMessage):
        getattr(api, f"decode_{direction}")(memoryview(noise), version)
