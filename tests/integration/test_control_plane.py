"""control.plane.listener.name: controllers send to a listener of its own, and brokers get it one at a time."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import KafkaError, KafkaException

from kbroker.local.zookeeper import free_ports
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually

ESTABLISHED = "01"


def connections_to(port: int) -> int:
    """Return how many connections the listener of *port* has."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == ESTABLISHED for row in rows)


def give_control_plane(cluster: Cluster, broker_id: int, port: int) -> None:
    """Restart the broker with a control plane listener on *port*."""
    cluster.terminate(broker_id)
    cluster.start(
        broker_id,
        listeners=f"PLAINTEXT://{cluster[broker_id].address},CONTROL://127.0.0.1:{port}",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT",
        control_plane_listener_name="CONTROL",
        inter_broker_listener_name="PLAINTEXT",
    )


def create(cluster: Cluster, topic: str, replicas: list[int]) -> None:
    """Create a topic. A client may have the controller from before a restart, which refuses the request."""

    def created() -> bool:
        try:
            Observer(cluster).create(topic, [replicas])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_CONTROLLER:
                raise
            return False
        return True

    eventually(f"topic {topic}", created)


def test_the_controller_sends_to_the_control_plane_listener_of_brokers_that_have_one(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(2)
    create(cluster, "before", [1, 2])
    ports = dict(zip((1, 2), free_ports(2), strict=True))
    give_control_plane(cluster, 1, ports[1])
    create(cluster, "between", [1, 2])  # one broker has no such listener
    give_control_plane(cluster, 2, ports[2])
    create(cluster, "after", [2, 1])
    for port in ports.values():
        eventually("a connection of the controller", lambda port=port: connections_to(port) == 1)
    cluster.kill(1)
    Observer(cluster).in_sync("after", 0, (2,))
