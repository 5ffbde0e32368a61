"""Limits of connections change while a broker runs, and stay after a restart."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from kclient import ConfigResource, ResourceType
from kclient.blocking import AdminClient
from kclient.wire.errors import InvalidConfig
from tests.kit.brokers import MakeCluster
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LIMIT = "max.connections.per.ip"
BROKER = ConfigResource(ResourceType.BROKER, "1")


def may_connect(port: int, count: int) -> bool:
    """Whether the broker keeps *count* connections more at a time."""
    with ExitStack() as opened:
        lines = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            for _ in range(count)
        ]
        lines[-1].settimeout(0.3)
        try:
            return lines[-1].recv(1) != b""
        except TimeoutError:
            return True
        except ConnectionError:
            return False


def test_a_dynamic_limit_counts_at_once_and_after_a_restart(broker_clusters: MakeCluster) -> None:
    cluster = broker_clusters(1)
    port = cluster[1].port
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        assert may_connect(port, 8)
        admin.alter_configs({BROKER: {LIMIT: "6"}})
        eventually("the limit", lambda: not may_connect(port, 8))
        with pytest.raises(InvalidConfig, match="0 lets no client connect"):
            admin.alter_configs({BROKER: {LIMIT: "0"}})
        with pytest.raises(InvalidConfig, match="names are not resolved"):
            admin.alter_configs({BROKER: {f"{LIMIT}.overrides": "localhost:9"}})
        admin.alter_configs({BROKER: {f"{LIMIT}.overrides": "127.0.0.1:20"}})
        eventually("the limit of the address", lambda: may_connect(port, 8))
        admin.alter_configs({BROKER: {f"{LIMIT}.overrides": None}})
        eventually("the limit of all", lambda: not may_connect(port, 8))
    cluster.restart(1)
    # The client connects first: a broker still counts the connections of `may_connect` when these have been closed.
    with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
        assert admin.describe_configs([BROKER])[BROKER][LIMIT].value == "6"
        eventually("the limit after the restart", lambda: not may_connect(port, 8))
        admin.alter_configs({BROKER: {LIMIT: None}})
        eventually("no limit", lambda: may_connect(port, 8))
