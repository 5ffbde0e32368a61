"""S40: a flood of connections on a broker that may open 256 files.

Broker 1 has a listener for clients, which are many and hostile, and another for brokers. It must go on accepting, keep
room for its brokers and its log, and be as before when the flood is over.
"""

from __future__ import annotations

import itertools
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.integration.test_hostile_input import eventually as soon
from tests.integration.test_hostile_input import honest
from tests.integration.test_replicated_topics import check_acknowledged, until_progress
from tests.kit.brokers import Broker, Cluster, MakeCluster
from tests.kit.replicated import Observer
from tests.kit.writers import LibrdkafkaWriter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ALL = [1, 2, 3]
FILES = 256
CONNECTS = 20_000
AT_ONCE = 250
_NO_LINGER = struct.pack("ii", 1, 0)


def call(broker: Broker) -> socket.socket:
    """Begin to connect; a refusal arrives later. The socket ends with a reset, which leaves no TIME_WAIT."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    line.setblocking(False)
    line.connect_ex(("127.0.0.1", broker.port))
    return line


def is_open(line: socket.socket) -> bool:
    """Whether the broker has not closed this connection."""
    try:
        return line.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def files_of(broker: Broker) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


@contextmanager
def crowd(broker: Broker) -> Iterator[None]:
    """Take every place that clients can have: silent ones, and some that send a header by a byte a second."""
    lines = [call(broker) for _ in range(2 * FILES)]
    ending = threading.Event()

    def dribble() -> None:
        header = itertools.cycle(struct.pack(">ihhih", 1000, 3, 1, 1, 900) + b"x" * 900)
        while not ending.wait(1.0):
            byte = bytes([next(header)])
            for line in lines[::4]:
                with suppress(OSError):
                    line.send(byte)

    thread = threading.Thread(target=dribble, daemon=True)
    thread.start()
    try:
        assert soon(lambda: not all(map(is_open, lines)), 20), "no client was refused"
        assert sum(map(is_open, lines)) > FILES // 4, "clients have a good part of the files"
        yield
    finally:
        ending.set()
        thread.join()
        for line in lines:
            line.close()


def flood(broker: Broker) -> None:
    """Connect very often."""
    for _ in range(CONNECTS // AT_ONCE):
        lines = [call(broker) for _ in range(AT_ONCE)]
        for line in lines:
            line.close()


def listeners_of(broker: Broker) -> str:
    """Return where a broker listens; the kit's port is the clients' one."""
    return f"CLIENTS://{broker.address},BROKERS://127.0.0.2:{broker.port}"


@pytest.fixture
def cluster(broker_clusters: MakeCluster) -> Cluster:
    """Three brokers with a listener for each other; the first may open few files."""
    cluster = broker_clusters(
        3,
        {
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
            "zookeeper.session.timeout.ms": "3000",
            "replica.lag.time.max.ms": "3000",
        },
        start=False,
    )
    for broker in (cluster[2], cluster[1], cluster[3]):  # the first one governs
        cluster.start(broker.broker_id, listeners=listeners_of(broker))
    resource.prlimit(cluster[1].pid, resource.RLIMIT_NOFILE, (FILES, FILES))
    return cluster


def test_s40_a_flood_of_connections_takes_nothing_from_brokers_and_ends_without_a_trace(
    cluster: Cluster,
) -> None:
    victim, observer = cluster[1], Observer(cluster)
    observer.create("t", [[1, 2, 3], [2, 3, 1]], {"min.insync.replicas": "2"})
    writer = LibrdkafkaWriter("t", 2, "all", cluster.bootstrap, idempotence=True)
    writer.start()
    until_progress([writer], 100)
    files = files_of(victim)

    with crowd(victim):
        # The controller goes, its successor calls on broker 1; a broker that is back follows it.
        cluster.kill(2)
        observer.led_by_another("t", 1, 2, 30)
        cluster.start(2, listeners=listeners_of(cluster[2]))
        for index in range(2):
            observer.in_sync("t", index, ALL, 30)
        until_progress([writer], 50, 40)
        before = writer.count
        flood(victim)
        assert writer.count > before + 20, "no client was served meanwhile"
        until_progress([writer], 50, 40)
        assert files_of(victim) < FILES
    assert soon(lambda: files_of(victim) <= files + 10, 20), "connections are left over"
    honest(victim)

    writer.finish()
    check_acknowledged(cluster, writer)
