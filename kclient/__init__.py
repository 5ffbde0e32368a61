"""A Kafka client library: wire protocol, producer, consumer, admin client. It does not depend on kbroker.

It has three APIs over the same clients. This one blocks, for programs with threads; `kclient.tx` returns Deferreds;
`kclient.aio` is for async/await. All names here are imported on first use::

    with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
        producer.send("orders", b"value", key="key").result()
    with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g"}, ["orders"]) as consumer:
        for record in consumer:
            print(record.offset, record.value)

Every error is a `KafkaError`. Settings have the names of Kafka's Java clients (`kclient.config`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kclient.admin.configs import ConfigResource as ConfigResource
    from kclient.admin.configs import ResourceType as ResourceType
    from kclient.admin.elections import ElectionType as ElectionType
    from kclient.blocking import AdminClient as AdminClient
    from kclient.blocking import Consumer as Consumer
    from kclient.blocking import Producer as Producer
    from kclient.consumer.client import RebalanceListener as RebalanceListener
    from kclient.errors import BootstrapError as BootstrapError
    from kclient.errors import ConfigError as ConfigError
    from kclient.errors import KafkaError as KafkaError
    from kclient.errors import KafkaTimeoutError as KafkaTimeoutError
    from kclient.errors import TransactionAborted as TransactionAborted
    from kclient.types import ConsumerGroupMetadata as ConsumerGroupMetadata
    from kclient.types import NewTopic as NewTopic
    from kclient.types import OffsetAndMetadata as OffsetAndMetadata
    from kclient.types import OffsetAndTimestamp as OffsetAndTimestamp
    from kclient.types import Record as Record
    from kclient.types import RecordMetadata as RecordMetadata
    from kclient.types import TopicPartition as TopicPartition

__version__ = "0.1.0"

_WHERE = {
    "AdminClient": "kclient.blocking",
    "BootstrapError": "kclient.errors",
    "ConfigError": "kclient.errors",
    "ConfigResource": "kclient.admin.configs",
    "Consumer": "kclient.blocking",
    "ConsumerGroupMetadata": "kclient.types",
    "ElectionType": "kclient.admin.elections",
    "KafkaError": "kclient.errors",
    "KafkaTimeoutError": "kclient.errors",
    "NewTopic": "kclient.types",
    "OffsetAndMetadata": "kclient.types",
    "OffsetAndTimestamp": "kclient.types",
    "Producer": "kclient.blocking",
    "RebalanceListener": "kclient.consumer.client",
    "Record": "kclient.types",
    "RecordMetadata": "kclient.types",
    "ResourceType": "kclient.admin.configs",
    "TopicPartition": "kclient.types",
    "TransactionAborted": "kclient.errors",
}

__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import kclient` alone stays cheap."""
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'kclient' has no attribute {name!r}")
    found = getattr(importlib.import_module(where), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return all public names, imported or not."""
    return sorted(__all__)
