"""The consumer protocol inside JoinGroup and SyncGroup: subscriptions and assignments.

Brokers do not parse these bytes. Versions: 0 topics and user data · 1 owned partitions (KIP-429) · 2 generation
(KIP-792) · 3 rack (KIP-881). This client writes version 3 of subscriptions and version 0 of assignments, to
which later versions add nothing. It reads every version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kclient.consumer.assignors import Subscription
from kclient.types import TopicPartition
from kclient.wire.messages import decode_consumer_protocol, encode_consumer_protocol
from kclient.wire.schema import consumer_protocol_assignment as assignment_schema
from kclient.wire.schema import consumer_protocol_subscription as subscription_schema

PROTOCOL_TYPE = "consumer"


def encode_subscription(
    topics: Iterable[str], owned: Iterable[TopicPartition], generation: int
) -> bytes:
    """Return a member's subscription as JoinGroup metadata."""
    message = subscription_schema.ConsumerProtocolSubscription(
        topics=sorted(topics),
        owned_partitions=[
            subscription_schema.TopicPartition(topic, numbers)
            for topic, numbers in _by_topic(owned)
        ],
        generation_id=generation,
    )
    return encode_consumer_protocol(3, message)


def decode_subscription(data: bytes) -> Subscription:
    """Parse a member's subscription; raise MalformedMessage if it is none."""
    _, message = decode_consumer_protocol(subscription_schema.ConsumerProtocolSubscription, data)
    owned = {
        TopicPartition(each.topic, number)
        for each in message.owned_partitions
        for number in each.partitions
    }
    return Subscription(frozenset(message.topics), frozenset(owned), message.generation_id)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return one member's assignment."""
    message = assignment_schema.ConsumerProtocolAssignment(
        assigned_partitions=[
            assignment_schema.TopicPartition(topic, numbers)
            for topic, numbers in _by_topic(partitions)
        ]
    )
    return encode_consumer_protocol(0, message)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Parse an assignment; empty bytes are an empty assignment."""
    if not data:
        return []
    _, message = decode_consumer_protocol(assignment_schema.ConsumerProtocolAssignment, data)
    return [
        TopicPartition(each.topic, number)
        for each in message.assigned_partitions
        for number in each.partitions
    ]


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    grouped: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        grouped[topic].append(number)
    return sorted(grouped.items())
