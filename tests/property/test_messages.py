"""Every message of the wire: round trips, hostile bytes."""

import contextlib
import tracemalloc
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kclient.wire import messages
from kclient.wire.errors import MalformedMessage
from kclient.wire.messages import RequestHeader
from kclient.wire.versions import SUPPORTED
from tests.kit.property_tests import examples
from tests.kit.wire_messages import (
    APIS,
    CONSUMER_PROTOCOL,
    SEEDS,
    body,
    structs,
    supported_messages,
    versions_of,
)

BY_KEY = {int(api) for api in APIS}
each_api = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name.lower())
each_direction = pytest.mark.parametrize("direction", ["request", "response"])


def encode(api, direction, version, message):
    if direction == "request":
        return messages.encode_request(RequestHeader(api, version, 7, "me"), message)
    return messages.encode_response(api, version, 7, message)


def decode(api, direction, version, frame):
    if direction == "request":
        header, start = messages.decode_request_header(frame)
        return messages.decode_request(header, frame, start)
    return messages.decode_response(api, version, frame)[1]


@each_direction
@each_api
@given(seed=SEEDS)
@settings(max_examples=examples(4), deadline=None)
def test_a_message_survives_the_wire_in_every_version_and_no_cut_of_it_does(api, direction, seed):
    rng = Random(seed)
    for version, message in supported_messages(api, direction, seed):
        frame = encode(api, direction, version, message)
        assert decode(api, direction, version, frame) == message
        assert decode(api, direction, version, memoryview(frame)) == message

        start = len(frame) - len(body(api, direction, version, message))
        ends = range(start, len(frame))
        for end in rng.sample(ends, min(len(ends), 25)):
            with pytest.raises(MalformedMessage):
                decode(api, direction, version, frame[:end])
        if direction == "request":  # librdkafka's Metadata has bytes left over
            assert decode(api, direction, version, frame + b"\0") == message
        else:
            with pytest.raises(MalformedMessage, match="1 bytes too many"):
                decode(api, direction, version, frame + b"\0")


@pytest.mark.parametrize("cls", CONSUMER_PROTOCOL)
@given(version=st.integers(0, 3), seed=SEEDS)
@settings(deadline=None)
def test_the_consumer_protocol_survives_and_ignores_what_newer_versions_add(cls, version, seed):
    message = structs(cls, version)(Random(seed))
    encoded = messages.encode_consumer_protocol(version, message)
    assert messages.decode_consumer_protocol(cls, encoded) == (version, message)
    if version == 3:
        newer = b"\0\x09" + encoded[2:] + b"what version 9 adds"
        assert messages.decode_consumer_protocol(cls, newer) == (9, message)


@given(st.binary(max_size=200))
@example(b"")
@example(b"\0\0\0\x0c\x7f\xff\0\0\0\0\0\0")
@settings(max_examples=examples(300), deadline=None)
def test_random_bytes_are_a_request_or_malformed(frame):
    with contextlib.suppress(MalformedMessage):
        header, start = messages.decode_request_header(frame)
        if header.api_key in BY_KEY and header.api_version in SUPPORTED[header.api_key]:
            messages.decode_request(header, frame, start)


@each_direction
@each_api
@given(data=st.data())
@settings(max_examples=examples(12), deadline=None)
def test_random_bytes_are_a_body_or_malformed(api, direction, data):
    version = data.draw(st.sampled_from(list(versions_of(api))))
    frame = bytes(4) + data.draw(st.binary(max_size=60))
    with contextlib.suppress(MalformedMessage):
        if direction == "request":
            messages.decode_request(RequestHeader(api, version, 0), frame, 4)
        else:
            messages.decode_response(api, version, frame)


@each_direction
@each_api
@given(seed=SEEDS)
@settings(max_examples=examples(4), deadline=None)
def test_a_mutated_message_is_a_message_or_malformed(api, direction, seed):
    rng = Random(seed)
    for version, message in supported_messages(api, direction, seed):
        frame = bytearray(encode(api, direction, version, message))
        start = len(frame) - len(body(api, direction, version, message))
        for _ in range(rng.randint(1, 4)):
            mutate(frame, rng.randint(start, max(start, len(frame))), rng)
        with contextlib.suppress(MalformedMessage):
            decode(api, direction, version, memoryview(bytes(frame)))


def mutate(frame, at, rng):
    match rng.choice(["flip", "cut", "insert", "huge"]):
        case "flip" if at < len(frame):
            frame[at] ^= rng.randint(1, 255)
        case "cut":
            del frame[at:]
        case "insert":
            frame[at:at] = rng.randbytes(rng.randint(1, 5))
        case "huge":
            frame[at : at + 5] = b"\x7f\xff\xff\xff\x0f"


@each_direction
@each_api
def test_a_huge_count_allocates_nothing(api, direction):
    tracemalloc.start()
    for version in versions_of(api):
        for huge in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f"):
            for place in range(8):
                frame = bytes(4 + place) + huge + bytes(20)
                with contextlib.suppress(MalformedMessage):
                    if direction == "request":
                        messages.decode_request(RequestHeader(api, version, 0), frame, 4)
                    else:
                        messages.decode_response(api, version, frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20  # compiling the readers is all that takes memory
