"""Whatever is queued leaves in order, however the socket takes it; nothing stays open or counted."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.log.disk import OS_DISK
from kbroker.log.slices import FileSlice, SegmentFile
from kbroker.network.plaintext_transport import PlaintextTransport
from kbroker.network.transport import UnsentMemory
from tests.kit.property_tests import examples
from tests.kit.socket_pairs import TestReactor

CONTENT = os.urandom(400_000)


class Silent:
    """A protocol that counts how often the queue ran empty."""

    def __init__(self) -> None:
        self.drains = 0

    def drained(self) -> None:
        self.drains += 1

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        pass


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("segment") / "log"
    path.write_bytes(CONTENT)
    return path


pieces = st.one_of(
    st.binary(max_size=200),
    st.integers(0, 120_000).map(bytes),
    st.tuples(st.integers(0, 300_000), st.integers(0, 90_000)),
)


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    groups=st.lists(st.lists(pieces, max_size=70), min_size=1, max_size=4),
    # Not less at a time: a schedule of single bytes would take a minute for what one of thousands tries, too.
    takes=st.lists(st.integers(1_000, 150_000), min_size=1, max_size=8),
)
def test_every_byte_leaves_once_and_in_order(
    segment: Path, groups: list[list[Any]], takes: list[int]
) -> None:
    client, server = socket.socketpair()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client.setblocking(False)
    reactor, protocol = TestReactor(), Silent()
    transport = PlaintextTransport(
        server, protocol, ("h", 1), None, 0, reactor, account=UnsentMemory()
    )
    transport.stopReading()
    file = SegmentFile(OS_DISK, str(segment), os.O_RDONLY)
    expected, slices, got = bytearray(), [], bytearray()
    for group in groups:
        parts: list[Any] = []
        for piece in group:
            if isinstance(piece, bytes):
                parts.append(piece)
                expected += piece
            else:
                start, size = piece
                parts.append(FileSlice(file, start, size))
                slices.append(parts[-1])
                expected += CONTENT[start : start + size]
        transport.send(parts)
        assert transport.unsent == len(expected) - transport.total_sent
        transport.flush()
    turn = 0
    while len(got) < len(expected):
        try:
            got += client.recv(takes[turn % len(takes)])
        except BlockingIOError:
            assert transport in reactor.writers, "nothing to read and no writer"
        turn += 1
        reactor.turn()
    reactor.turn()
    assert got == expected
    assert (transport.unsent, transport.unsent_memory) == (0, 0)
    assert transport not in reactor.writers
    assert all(part._file is None for part in slices)
    client.close()
    server.close()
