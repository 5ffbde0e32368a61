"""The partitions that a simulated broker hosts."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.app.broker import Broker
from kbroker.common.topic_partition import TopicPartition
from kbroker.replica.partition import Partition


def hosted_by(broker: Broker) -> Mapping[TopicPartition, Partition]:
    """Return the partitions of *broker*; none before it has loaded its logs."""
    parts = broker.bootstrapped
    return parts.replica_manager.registry.partitions if parts is not None else {}
