"""Offset commits of many concurrent groups, each with one commit in flight.

Uses the protocol over plain sockets, so that no client library is measured. Every response is checked.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from dataclasses import dataclass, field

from kclient.wire import messages
from kclient.wire.framing import framed
from kclient.wire.messages import RequestHeader
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kclient.wire.versions import ApiKey

_VERSION = 7
_LENGTH = struct.Struct(">i")


@dataclass
class _Group:
    """One group's connection and its remaining commits."""

    connection: socket.socket
    requests: list[bytes]
    sent_at: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        self.connection.sendall(self.requests.pop())

    def receive(self) -> None:
        (size,) = _LENGTH.unpack(_read(self.connection, 4))
        frame = _read(self.connection, size)
        self.latencies.append(time.perf_counter() - self.sent_at)
        _, response = messages.decode_response(ApiKey.OFFSET_COMMIT, _VERSION, frame)
        codes = {p.error_code for topic in response.topics for p in topic.partitions}
        if codes != {0}:
            raise RuntimeError(f"commits were rejected with {codes}")


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    return bytes(data)


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.settimeout(60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _request(group: str, topic: str, partitions: int, offset: int) -> bytes:
    committed = [OffsetCommitRequestPartition(p, offset, -1, "") for p in range(partitions)]
    request = OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic(topic, committed)])
    header = RequestHeader(ApiKey.OFFSET_COMMIT, _VERSION, offset, "bench")
    return framed(messages.encode_request(header, request))


def wait_for_coordinator(port: int, group: str) -> None:
    """Wait until the broker coordinates *group* and has loaded it."""
    deadline = time.monotonic() + 30
    with _connect(port) as connection:
        while time.monotonic() < deadline:
            header = RequestHeader(ApiKey.FIND_COORDINATOR, 2, 1, "bench")
            request = FindCoordinatorRequest(key=group)
            connection.sendall(framed(messages.encode_request(header, request)))
            (size,) = _LENGTH.unpack(_read(connection, 4))
            _, response = messages.decode_response(
                ApiKey.FIND_COORDINATOR, 2, _read(connection, size)
            )
            if response.error_code == 0:
                return
            time.sleep(0.1)
    raise RuntimeError(f"no coordinator for {group} after 30 s")


def commit(
    port: int, topic: str, prefix: str, groups: int, partitions: int, rounds: int
) -> tuple[float, float]:
    """Commit; return (offsets per second, 99th percentile of the commit latency in ms)."""
    everyone = [
        _Group(
            _connect(port),
            [_request(f"{prefix}-{number}", topic, partitions, n) for n in range(rounds, 0, -1)],
        )
        for number in range(groups)
    ]
    selector = selectors.DefaultSelector()
    for group in everyone:
        selector.register(group.connection, selectors.EVENT_READ, group)
    started = time.perf_counter()
    for group in everyone:
        group.send()
    busy = groups
    while busy:
        for key, _ in selector.select(60):
            group = key.data
            group.receive()
            if group.requests:
                group.send()
            else:
                busy -= 1
    elapsed = time.perf_counter() - started
    for group in everyone:
        selector.unregister(group.connection)
        group.connection.close()
    selector.close()
    latencies = sorted(latency for group in everyone for latency in group.latencies)
    rate = groups * partitions * rounds / elapsed
    return rate, latencies[int(len(latencies) * 0.99)] * 1000
