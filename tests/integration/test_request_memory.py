"""Connections that drip or stall in the middle of large requests, on a real broker with Kafka's limits (S41).

docs/design/request-memory.md lists their effects.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from kclient.wire import produce
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from tests.integration.test_hostile_input import INT, connect, framed, honest, memory_of
from tests.kit.brokers import Broker, MakeCluster
from tests.kit.logs import batch_of
from tests.kit.replicated import Observer
from tests.kit.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MIB = 1 << 20
ANNOUNCED = 90 * MIB
DRIPS = 8


@pytest.fixture
def broker(broker_clusters: MakeCluster) -> Broker:
    cluster = broker_clusters(1, {"message.max.bytes": str(60 * MIB)}, forked=False)
    Observer(cluster).create("t", [[1]])
    return cluster[1]


def produced(broker: Broker, size: int, *, pieces: int = 1, seconds: float = 0.0) -> float:
    """Produce one batch of *size* bytes, in *pieces* over *seconds*; return how long the answer took."""
    batch = batch_of(1000, value=bytes(size))
    body = ProduceRequest(1, 30_000, [ProduceTopic("t", [ProducePartition(0, batch)])])
    frame = memoryview(framed(b"".join(produce.encode_request(body, 9, 1, "honest"))))
    with connect(broker) as line:
        line.settimeout(60)
        begun = time.monotonic()
        step = -(-len(frame) // pieces)
        for number in range(pieces):
            line.sendall(frame[number * step : (number + 1) * step])
            wait = begun + seconds * (number + 1) / pieces - time.monotonic()
            if wait > 0 and pieces > 1:
                time.sleep(wait)
        with line.makefile("rb") as file:
            (length,) = INT.unpack(file.read(4))
            answer = produce.decode_response(memoryview(file.read(length)), 9)[1]
        assert answer.topics[0].partitions[0].error_code == 0
        return time.monotonic() - begun


@contextmanager
def dripping(
    broker: Broker, sent_at_once: int, count: int = DRIPS
) -> Iterator[list[socket.socket]]:
    """Hold connections that announce 90 MiB, send *sent_at_once* of it and then a byte a second."""
    ending = threading.Event()
    lines = [connect(broker) for _ in range(count)]
    content = bytes(sent_at_once)

    def drip() -> None:
        for line in lines:
            line.settimeout(1)
            with suppress(OSError):
                line.sendall(INT.pack(ANNOUNCED) + content)
        while not ending.wait(1.0):
            for line in lines:
                with suppress(OSError):
                    line.send(b"x")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        ending.set()
        thread.join()
        for line in lines:
            line.close()


def test_connections_that_drip_do_not_delay_the_requests_of_others(broker: Broker) -> None:
    produced(broker, 300_000)
    memory = memory_of(broker)
    with dripping(broker, 1000) as lines:
        time.sleep(1)
        slow: list[float] = []
        link = threading.Thread(  # an honest one of 1 Mbit/s
            target=lambda: slow.append(produced(broker, MIB, pieces=64, seconds=8.4))
        )
        link.start()
        times = []
        for _ in range(20):
            times += [
                produced(broker, 300_000),
                produced(broker, 900_000),
                produced(broker, 2 * MIB),
            ]
            honest(broker)
        assert sorted(times)[len(times) // 2] < 0.25
        assert max(times) < 2
        assert produced(broker, 50 * MIB) < 10
        link.join()
        assert slow
        assert slow[0] < 12
        assert (memory_of(broker) - memory) / 1e6 < 256
        for line in lines:
            line.setblocking(False)
            with pytest.raises(BlockingIOError):  # memory was never short
                line.recv(1)
    assert " ERROR " not in broker.log


def test_requests_that_stall_near_their_end_are_closed_when_another_needs_their_memory(
    broker: Broker,
) -> None:
    produced(broker, 300_000)
    with dripping(broker, 85 * MIB, 4):
        eventually("memory to be used", lambda: memory_of(broker) > 250e6, 30)
        times = [produced(broker, 900_000) for _ in range(10)]
        assert max(times) < 2, "the reserve is for requests up to 1 MiB"
        assert produced(broker, 50 * MIB) < 15
    closed = [line for line in broker.log.splitlines() if "bytes/s and holds" in line]
    assert 1 <= len(closed) <= 4
    assert f"its request of {ANNOUNCED} bytes" in closed[0]
    honest(broker)
