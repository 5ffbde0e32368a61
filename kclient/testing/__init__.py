"""Tests of programs that use Kafka: what was acknowledged against what is consumed; waits for states of a cluster.

Everything here needs only the addresses of brokers, of any Kafka, and takes the records of any client library::

    acked = Acknowledged()
    acked.track(producer.send("orders", b"1"), b"1")          # kclient, kafka-python, aiokafka
    producer.produce("orders", b"2", on_delivery=acked.on_delivery)            # confluent-kafka
    with Observer("localhost:9092") as observer:
        observer.wait_isr("orders")
        observer.assert_acked_equals_consumed(acked)

Clusters to be killed and partitioned, and the pytest plugin, are in kbroker.testing: they run brokers, which this
package does not have. All names here are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kclient.testing.acknowledged import Acknowledged as Acknowledged
    from kclient.testing.acknowledged import (
        assert_acked_equals_consumed as assert_acked_equals_consumed,
    )
    from kclient.testing.observer import Observer as Observer

_WHERE = {
    "Acknowledged": "kclient.testing.acknowledged",
    "Observer": "kclient.testing.observer",
    "assert_acked_equals_consumed": "kclient.testing.acknowledged",
}

_OF_KBROKER = ("KafkaCluster",)

__all__ = ["Acknowledged", "Observer", "assert_acked_equals_consumed"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _OF_KBROKER:
        raise ImportError(
            f"kclient.testing has no {name}, because it starts brokers: from kbroker.testing import {name}"
        )
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'kclient.testing' has no attribute {name!r}")
    found = getattr(importlib.import_module(where), name)
    globals()[name] = found
    return found
