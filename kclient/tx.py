"""The Twisted API: every call returns a Deferred, to be awaited or given callbacks."""

from __future__ import annotations

from kclient.admin.client import AdminClient, ClusterDescription
from kclient.admin.configs import ConfigEntry, ConfigResource, ConfigSource, ResourceType
from kclient.admin.groups import GroupDescription, GroupListing, GroupMember
from kclient.consumer.client import Consumer, RebalanceListener
from kclient.producer.producer import Producer
from kclient.types import (
    CloseResult,
    ColumnsMetadata,
    ConsumerGroupMetadata,
    NewTopic,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Record,
    RecordMetadata,
    TopicPartition,
)

__all__ = [
    "AdminClient",
    "CloseResult",
    "ClusterDescription",
    "ColumnsMetadata",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "Consumer",
    "ConsumerGroupMetadata",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "ResourceType",
    "TopicPartition",
]
