"""advertised.listeners is altered while the broker runs: clients of all brokers get the new address, none restarts."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient as ForeignAdmin

from kclient import ConfigResource, ResourceType
from kclient.blocking import AdminClient
from kclient.errors import KafkaError
from kclient.wire.errors import InvalidConfig, InvalidRequest
from tests.kit.brokers import Cluster, MakeCluster
from tests.kit.operators import znodes_of
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

NAME = "advertised.listeners"
SECOND = ConfigResource(ResourceType.BROKER, "2")


def addresses_at(cluster: Cluster, broker_id: int) -> dict[int, str]:
    """Return host:port of each broker in a Metadata response of *broker_id*."""
    foreign = ForeignAdmin({"bootstrap.servers": cluster[broker_id].address, "log_level": 0})
    return {n: f"{b.host}:{b.port}" for n, b in foreign.list_topics(timeout=10).brokers.items()}


def test_clients_of_all_brokers_get_the_new_address_and_no_broker_registers_again(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(2)
    port = cluster[2].port
    with (
        AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin,
        znodes_of(cluster) as zookeeper,
    ):

        def advertise(value: str | None) -> None:
            admin.alter_configs({SECOND: {NAME: value}})

        entries = admin.describe_configs([SECOND])[SECOND]
        assert not isinstance(entries, KafkaError)
        assert not entries[NAME].read_only
        epoch = zookeeper.exists("/brokers/ids/2").czxid
        new = f"localhost:{port}"
        advertise(f"PLAINTEXT://{new}")
        eventually(
            "the new address", lambda: {addresses_at(cluster, n)[2] for n in (1, 2)} == {new}
        )
        assert zookeeper.exists("/brokers/ids/2").czxid == epoch
        for wrong in (
            "PLAINTEXT://0.0.0.0:1",
            "OTHER://localhost:1",
            f"PLAINTEXT://{new},nonsense",
        ):
            with pytest.raises(InvalidConfig):
                advertise(wrong)
        with pytest.raises(InvalidRequest, match="at default cluster level"):
            admin.alter_configs(
                {ConfigResource(ResourceType.BROKER, ""): {NAME: f"PLAINTEXT://{new}"}}
            )
        cluster.restart(2)
        eventually("the address after a restart", lambda: addresses_at(cluster, 1)[2] == new)
        epoch = zookeeper.exists("/brokers/ids/2").czxid
        advertise(None)
        old = f"127.0.0.1:{port}"
        eventually("the address of server.properties", lambda: addresses_at(cluster, 1)[2] == old)
        assert zookeeper.exists("/brokers/ids/2").czxid == epoch
