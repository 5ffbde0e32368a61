"""Listeners and the addresses they advertise change while brokers run: clients get the new ones, none restarts."""

from __future__ import annotations

import socket

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient as ForeignAdmin

from kbroker.local.zookeeper import free_ports
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


def test_listeners_are_added_and_removed_while_clients_use_them(
    broker_clusters: MakeCluster,
) -> None:
    cluster = broker_clusters(2)
    extra = dict(zip((1, 2), free_ports(2), strict=True))
    plain = {number: f"PLAINTEXT://{cluster[number].address}" for number in (1, 2)}
    both = {number: f"{plain[number]},EXTRA://127.0.0.1:{extra[number]}" for number in (1, 2)}
    protocols = "PLAINTEXT:PLAINTEXT,EXTRA:PLAINTEXT"
    expected = {number: f"127.0.0.1:{port}" for number, port in extra.items()}
    addresses = {number: cluster[number].address for number in (1, 2)}

    def at_extra() -> dict[int, str]:
        foreign = ForeignAdmin({"bootstrap.servers": expected[1], "log_level": 0})
        return {n: f"{b.host}:{b.port}" for n, b in foreign.list_topics(timeout=10).brokers.items()}

    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:

        def alter(number: int, **settings: str | None) -> None:
            names = {name.replace("_", "."): value for name, value in settings.items()}
            admin.alter_configs({ConfigResource(ResourceType.BROKER, str(number)): names})

        for number in (1, 2):
            alter(
                number,
                listeners=both[number],
                advertised_listeners=both[number],
                listener_security_protocol_map=protocols,
            )
        eventually("both brokers at the new listener", lambda: at_extra() == expected)
        assert addresses_at(cluster, 1) == addresses
        with pytest.raises(InvalidConfig, match="cannot move while the broker runs"):
            alter(1, listeners=f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]},EXTRA://{expected[1]}")
        with pytest.raises(InvalidConfig, match="EXTRA is not in listeners"):
            alter(1, listeners=plain[1])
        with pytest.raises(InvalidConfig, match="listener OTHER has no protocol"):
            alter(1, listeners=f"{both[1]},OTHER://127.0.0.1:0")
        cluster.restart(2)
        eventually("the listeners of before the restart", lambda: at_extra() == expected)

        producer = Producer({"bootstrap.servers": expected[1], "log_level": 0})
        producer.produce("t", b"by the new listener")
        assert producer.flush(20) == 0
        taken = socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        alter(
            1,
            listeners=f"{both[1]},TAKEN://127.0.0.1:{port}",
            advertised_listeners=f"{both[1]},TAKEN://127.0.0.1:{port}",
            listener_security_protocol_map=f"{protocols},TAKEN:PLAINTEXT",
        )
        eventually(
            "the broker's line", lambda: f"127.0.0.1:{port} cannot be bound" in cluster[1].log
        )
        assert at_extra() == expected
        taken.close()

        alter(1, listeners=plain[1], advertised_listeners=plain[1])
        eventually("the end of the listener", lambda: not accepts(extra[1]))
        assert addresses_at(cluster, 2) == addresses


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except ConnectionRefusedError:
        return False
    return True
