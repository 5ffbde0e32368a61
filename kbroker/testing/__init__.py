"""Clusters for tests: real brokers that a test kills, pauses, restarts and cuts from each other; a pytest plugin.

    with KafkaCluster(brokers=3) as cluster:
        topic = cluster.create_topic("orders")
        ...                                # any client of any library, on cluster.bootstrap
        cluster.kill(cluster.leader(topic))
        cluster.wait_leader(topic)
        cluster.assert_acked_equals_consumed(acked)

The plugin (`kbroker.testing.plugin`) is loaded by every pytest run where kbroker is installed, and with it this module:
it imports nothing. All names here are imported on first use; those of kclient.testing are here, too.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kbroker.testing.cluster import ZOOKEEPER as ZOOKEEPER
    from kbroker.testing.cluster import KafkaCluster as KafkaCluster
    from kclient.testing import Acknowledged as Acknowledged
    from kclient.testing import Observer as Observer
    from kclient.testing import assert_acked_equals_consumed as assert_acked_equals_consumed

_WHERE = {
    "Acknowledged": "kclient.testing",
    "KafkaCluster": "kbroker.testing.cluster",
    "Observer": "kclient.testing",
    "ZOOKEEPER": "kbroker.testing.cluster",
    "assert_acked_equals_consumed": "kclient.testing",
}

__all__ = ["ZOOKEEPER", "Acknowledged", "KafkaCluster", "Observer", "assert_acked_equals_consumed"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    import importlib

    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'kbroker.testing' has no attribute {name!r}")
    found = getattr(importlib.import_module(where), name)
    globals()[name] = found
    return found
