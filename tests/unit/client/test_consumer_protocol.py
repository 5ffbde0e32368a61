"""The consumer protocol: our encoding, and that of other clients and versions."""

import struct

import pytest

from kclient.consumer.protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kclient.types import TopicPartition
from kclient.wire.errors import MalformedMessage


def text(value):
    return struct.pack(">h", len(value)) + value.encode()


def array(*items):
    return struct.pack(">i", len(items)) + b"".join(items)


def number(value):
    return struct.pack(">i", value)


NO_DATA, EMPTY_DATA = number(-1), number(0)
OWNED = array(text("t") + array(number(0), number(2)))
PLACES = {TopicPartition("t", 0), TopicPartition("t", 2)}

# Version 0 as kafka-python 2 and aiokafka write it (user data empty), as librdkafka does (null), version 1 as Java
# 2.4, version 2 as Java 3.2, version 3 as Java 3.5 and us; at last one from the future.
WRITTEN = {
    "v0": (struct.pack(">h", 0) + array(text("t"), text("u")) + EMPTY_DATA, set(), -1),
    "v0 null": (struct.pack(">h", 0) + array(text("t"), text("u")) + NO_DATA, set(), -1),
    "v1": (struct.pack(">h", 1) + array(text("t"), text("u")) + NO_DATA + OWNED, PLACES, -1),
    "v2": (
        struct.pack(">h", 2) + array(text("t"), text("u")) + NO_DATA + OWNED + number(7),
        PLACES,
        7,
    ),
    "v3": (
        struct.pack(">h", 3)
        + array(text("t"), text("u"))
        + NO_DATA
        + OWNED
        + number(7)
        + text("rack"),
        PLACES,
        7,
    ),
    "v3 no rack": (
        struct.pack(">h", 3)
        + array(text("t"), text("u"))
        + NO_DATA
        + OWNED
        + number(7)
        + struct.pack(">h", -1),
        PLACES,
        7,
    ),
    "v9": (
        struct.pack(">h", 9)
        + array(text("t"), text("u"))
        + NO_DATA
        + OWNED
        + number(7)
        + text("rack")
        + b"whatever comes",
        PLACES,
        7,
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_subscriptions_of_every_version_are_read(name):
    data, owned, generation = WRITTEN[name]
    subscription = decode_subscription(data)
    assert subscription.topics == {"t", "u"}
    assert subscription.owned == owned
    assert subscription.generation == generation


def test_our_subscription_is_read_back():
    read = decode_subscription(encode_subscription({"u", "t"}, sorted(PLACES), 7))
    assert (read.topics, read.owned, read.generation) == ({"t", "u"}, PLACES, 7)


def test_our_subscription_is_what_java_writes():
    assert encode_subscription({"t", "u"}, sorted(PLACES), 7) == WRITTEN["v3 no rack"][0]


def test_kafka_python_reads_our_subscription_and_we_read_its():
    schema = pytest.importorskip("kafka.protocol.consumer.metadata")
    theirs = schema.ConsumerProtocolSubscription
    read = theirs.decode(encode_subscription({"t"}, sorted(PLACES), 7))
    assert list(read.topics) == ["t"]
    written = theirs(version=1, topics=["t"], user_data=b"", owned_partitions=[]).encode(version=1)
    assert decode_subscription(written).topics == {"t"}


def test_aiokafka_reads_our_messages_and_we_read_its():
    protocol = pytest.importorskip("aiokafka.coordinator.protocol")
    theirs = protocol.ConsumerProtocolMemberMetadata
    read = theirs.decode(encode_subscription({"t"}, [], -1))
    assert read.subscription == ["t"]
    assert decode_subscription(theirs(0, ["t"], b"").encode()).topics == {"t"}
    assignment = protocol.ConsumerProtocolMemberAssignment
    read = assignment.decode(encode_assignment(sorted(PLACES)))
    assert [(topic, list(numbers)) for topic, numbers in read.assignment] == [("t", [0, 2])]
    assert decode_assignment(assignment(0, [("t", [2, 0])], b"").encode()) == [
        TopicPartition("t", 2),
        TopicPartition("t", 0),
    ]


def test_an_assignment_is_read_back():
    places = [TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)]
    assert decode_assignment(encode_assignment(places)) == places


def test_no_bytes_are_no_partitions():
    assert decode_assignment(b"") == []


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\0\0\1", struct.pack(">hi", 0, 1 << 30)])
def test_what_is_no_subscription_is_malformed(data):
    with pytest.raises(MalformedMessage):
        decode_subscription(data)
