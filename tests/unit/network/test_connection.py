"""Connections: order, backpressure, limits and ends."""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import globalLogPublisher

from kbroker.common.endpoint import Endpoint
from kbroker.log import open_files
from kbroker.log.disk import OS_DISK
from kbroker.log.slices import FileSlice, SegmentFile
from kbroker.network.acceptor import ACCEPT_PAUSE, listen
from kbroker.network.connection import FRAMES_PER_TURN
from kbroker.network.service import HeldResponse, Peer, RequestRefusedError
from kbroker.network.socket_server import Listener, RefusalLog, no_descriptor_left
from kclient.wire.errors import MalformedMessage
from tests.kit.socket_pairs import Line, close_all, make


def echo(frame: memoryview, _peer: object) -> list[bytes]:
    return [bytes(frame)]


@pytest.fixture(autouse=True)
def _sockets() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is logged, as text."""
    found: list[str] = []

    def observe(event: Any) -> None:
        found.append(event["log_format"].format(**event) if event.get("log_format") else "")

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)


def test_answers_leave_in_the_order_of_the_requests() -> None:
    _, _, connect = make(echo)
    line = connect()
    line.send(*[str(n).encode() for n in range(300)])
    assert [line.receive() for _ in range(300)] == [str(n).encode() for n in range(300)]


def test_a_pipelined_request_waits_until_the_one_before_is_answered() -> None:
    asked: list[bytes] = []
    waiting: list[Deferred[Any]] = []

    def service(frame: memoryview, _peer: object) -> Deferred[Any]:
        asked.append(bytes(frame))
        waiting.append(Deferred())
        return waiting[-1]

    reactor, _, connect = make(service)
    line = connect()
    line.send(b"a", b"b")
    assert asked == [b"a"]
    waiting[0].callback([b"A"])
    reactor.turn()
    assert asked == [b"a", b"b"]
    waiting[1].callback([b"B"])
    assert [line.receive(), line.receive()] == [b"A", b"B"]


@pytest.mark.parametrize("is_later", [True, False])
def test_a_throttled_connection_is_muted_after_its_response(is_later: bool) -> None:
    asked: list[bytes] = []
    waiting: Deferred[Any] = Deferred()

    def service(frame: memoryview, peer: Peer) -> Any:
        asked.append(bytes(frame))
        if len(asked) == 1:
            peer.throttle_seconds = 5.0
            return waiting if is_later else [b"A"]
        return [bytes(frame)]

    reactor, network, connect = make(service)
    line, other = connect(), connect()
    line.send(b"a", b"b")
    waiting.callback([b"A"])
    assert line.receive() == b"A"
    line.send(b"c")
    other.send(b"d")
    assert other.receive() == b"d"
    network.sweep()
    reactor.advance(4.9)
    for each in (line, other):
        each.connection.proceed()  # as when there is memory again
    reactor.turn()
    assert asked == [b"a", b"d"]
    reactor.advance(0.1)
    assert [line.receive(), line.receive()] == [b"b", b"c"]
    line.send(b"e")
    assert line.receive() == b"e"


def test_a_muted_connection_does_not_read_and_leaves_nothing_when_it_ends() -> None:
    def service(_frame: memoryview, peer: Peer) -> Any:
        peer.throttle_seconds = 5.0

    reactor, _, connect = make(service)
    line = connect()
    line.send(b"a")
    calls = len(reactor.getDelayedCalls())
    line.connection.proceed()  # as when there is memory again
    assert line.transport not in reactor.readers
    line.transport.abortConnection()
    reactor.turn()
    assert len(reactor.getDelayedCalls()) < calls
    reactor.advance(5.0)


@pytest.mark.parametrize("together", [True, False])
def test_a_held_response_is_sent_when_another_request_arrives(together: bool) -> None:
    held: list[HeldResponse[Any]] = []

    def service(frame: memoryview, _peer: object) -> Any:
        if bytes(frame) != b"a":
            return echo(frame, None)
        held.append(HeldResponse(lambda _: None, lambda: held[0].callback([b"nothing new"])))
        return held[0]

    reactor, _, connect = make(service)
    line = connect()
    if together:
        line.send(b"a", b"b", b"c")
    else:
        line.send(b"a")
        assert not held[0].called
        line.send(b"b", b"c")
    reactor.turn()
    assert [line.receive() for _ in range(3)] == [b"nothing new", b"b", b"c"]
    assert line.transport in reactor.readers


def test_reading_pauses_when_more_comes_while_a_request_is_answered() -> None:
    waiting: list[Deferred[Any]] = []

    def service(_frame: memoryview, _peer: object) -> Deferred[Any]:
        waiting.append(Deferred())
        return waiting[-1]

    reactor, _, connect = make(service)
    line = connect()
    line.send(b"a")
    assert line.transport in reactor.readers
    line.send(b"b")
    assert line.transport not in reactor.readers
    waiting[0].callback(None)
    waiting[1].callback([b"B"])
    assert line.receive() == b"B"
    assert line.transport in reactor.readers


def test_none_is_no_response() -> None:
    _, _, connect = make(lambda frame, _peer: None if frame[0] == 0 else [bytes(frame)])
    line = connect()
    line.send(b"\0", b"\1")
    assert line.receive() == b"\1"


def test_file_slices_are_sent_between_bytes_and_released(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    content = os.urandom(3_000_000)
    path.write_bytes(content)
    file = SegmentFile(OS_DISK, str(path), os.O_RDONLY)
    slices = [FileSlice(file, 10, 2_000_000), FileSlice(file, 2_000_010, 999_000)]
    _, _, connect = make(lambda _frame, _peer: [b"head", slices[0], b"between", slices[1], b"end"])
    line = connect()
    line.send(b"go")
    assert (
        line.receive()
        == b"head" + content[10:2_000_010] + b"between" + content[2_000_010:2_999_010] + b"end"
    )
    with pytest.raises(ValueError, match="released"):
        slices[0].fileno()


def test_slices_are_released_when_the_connection_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(5_000_000))
    part = FileSlice(SegmentFile(OS_DISK, str(path), os.O_RDONLY), 0, 5_000_000)
    reactor, _, connect = make(lambda _frame, _peer: [b"head", part])
    line = connect()
    line.send(b"go")
    assert line.transport.unsent > 0
    line.client.close()
    reactor.turn()
    reactor.turn()
    with pytest.raises(ValueError, match="released"):
        part.fileno()


def test_a_slice_of_a_truncated_file_ends_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    part = FileSlice(SegmentFile(OS_DISK, str(path), os.O_RDONLY), 0, 10)
    _, _, connect = make(lambda _frame, _peer: [b"head", part])
    line = connect()
    line.send(b"go")
    line.client.recv(100)
    assert line.closed()


def test_a_peer_that_does_not_read_is_not_served_further() -> None:
    served = []

    def service(_frame: memoryview, _peer: object) -> list[bytes]:
        served.append(1)
        return [bytes(1_000_000)]

    _, _, connect = make(service)
    line = connect()
    line.send(*[b"x"] * 50)
    assert len(served) < 5
    assert len([line.receive() for _ in range(50)]) == 50


def test_a_peer_that_reads_nothing_for_too_long_is_aborted(lines: list[str]) -> None:
    reactor, network, connect = make(
        lambda _frame, _peer: [bytes(5_000_000)], {"kbroker.write.stall.timeout.ms": "1000"}
    )
    line = connect()
    line.send(b"x")
    network.sweep()
    reactor.advance(1.5)
    network.sweep()
    reactor.turn()
    assert not line.transport.connected
    assert any("it read none" in text for text in lines)


def test_an_idle_connection_is_closed() -> None:
    reactor, network, connect = make(echo, {"connections.max.idle.ms": "1000"})
    line = connect()
    line.send(b"x")
    line.receive()
    network.sweep()
    reactor.advance(0.9)
    network.sweep()
    assert not line.closed()
    reactor.advance(0.2)
    network.sweep()
    assert line.closed()


def test_a_connection_is_not_idle_while_its_requests_wait_for_their_turn() -> None:
    reactor, network, connect = make(echo, {"connections.max.idle.ms": "1000"})
    line = connect()
    count = 3 * FRAMES_PER_TURN
    line.send(*[str(n).encode() for n in range(count)])
    assert line.receive() == b"0"
    assert line.transport.unsent == 0
    reactor.advance(1.5)  # the processor was another's
    network.sweep()
    assert [line.receive() for _ in range(1, count)] == [str(n).encode() for n in range(1, count)]
    reactor.advance(0.9)  # after the last response, not after the last request
    network.sweep()
    assert not line.closed()
    for _ in range(2):
        reactor.advance(1.1)
        network.sweep()
    assert line.closed()


def test_a_connection_is_not_idle_while_it_is_muted() -> None:
    def service(frame: memoryview, peer: Peer) -> list[bytes]:
        peer.throttle_seconds = 5.0
        return [bytes(frame)]

    reactor, network, connect = make(service, {"connections.max.idle.ms": "1000"})
    line = connect()
    line.send(b"a")
    assert line.receive() == b"a"
    line.send(b"b")
    for _ in range(4):
        reactor.advance(1.2)
        network.sweep()
    reactor.advance(0.3)
    assert line.receive() == b"b"


def test_a_response_that_took_long_is_activity() -> None:
    waiting: Deferred[Any] = Deferred()
    reactor, network, connect = make(
        lambda _frame, _peer: waiting, {"connections.max.idle.ms": "1000"}
    )
    line = connect()
    line.send(b"a")
    reactor.advance(3.0)
    network.sweep()
    waiting.callback([b"A"])
    assert line.receive() == b"A"
    network.sweep()
    reactor.advance(0.9)
    network.sweep()
    assert not line.closed()


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (struct.pack(">i", -1), "-1 bytes"),
        (struct.pack(">i", 2**31 - 1), "2147483647 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
    ],
)
def test_an_impossible_frame_closes_the_connection_with_one_line(
    sent: bytes, cause: str, lines: list[str]
) -> None:
    reactor, _, connect = make(echo)
    line = connect()
    line.client.sendall(sent)
    reactor.turn()
    assert line.closed()
    assert len(lines) == 1
    assert "10.0.0.1:1234" in lines[0]
    assert cause in lines[0]


def test_frames_before_an_impossible_one_are_still_answered() -> None:
    reactor, _, connect = make(echo)
    line = connect()
    line.client.sendall(struct.pack(">i", 1) + b"a" + struct.pack(">i", -5))
    reactor.turn()
    assert line.receive() == b"a"
    assert line.closed()


@pytest.mark.parametrize(
    "error", [MalformedMessage("bad\nthing\x1b[31m"), RequestRefusedError("no")]
)
def test_a_refused_request_closes_the_connection_with_one_escaped_line(
    error: Exception, lines: list[str]
) -> None:
    def service(_frame: memoryview, _peer: object) -> None:
        raise error

    _, _, connect = make(service)
    line = connect()
    line.send(b"x", b"y")
    assert line.closed()
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert "\x1b" not in lines[0]


def test_an_answer_that_is_awaited_is_cancelled_when_the_connection_dies() -> None:
    cancelled = []
    _, network, connect = make(lambda _frame, _peer: Deferred(cancelled.append))
    line = connect()
    line.send(b"x")
    assert network.memory.used == 5
    line.client.close()
    line.reactor.turn()
    assert len(cancelled) == 1
    assert network.memory.used == 0
    assert network.quotas.total == 0


def push(line: Line, data: bytes) -> bytes:
    """Send what the broker takes of *data*; return the rest."""
    line.client.setblocking(False)
    rest = memoryview(data)
    idle = 0
    while idle < 3:
        idle += 1
        with suppress(BlockingIOError):
            if rest:
                rest = rest[line.client.send(rest) :]
                idle = 0
        line.reactor.turn()
    line.client.settimeout(2)
    return bytes(rest)


def pump(line: Line, seconds: float) -> None:
    """Let time pass as on a broker that is not late."""
    for _ in range(round(seconds * 10)):
        line.reactor.advance(0.1)
        line.reactor.turn()


def frame_of(size: int) -> bytes:
    return struct.pack(">i", size) + bytes(size)


LITTLE_MEMORY = {
    "queued.max.request.bytes": "4000000",
    "socket.request.max.bytes": "3000000",
    "message.max.bytes": "1000",
}


@pytest.mark.parametrize("kept", [True, False])
def test_memory_of_a_request_is_counted_while_its_handler_keeps_it(kept: bool) -> None:
    asked: list[Any] = []
    waiting: list[Deferred[Any]] = []

    def service(frame: memoryview, _peer: object) -> Deferred[Any]:
        asked.append(frame[10:20] if kept else len(frame))
        waiting.append(Deferred())
        return waiting[-1]

    _, network, connect = make(service, LITTLE_MEMORY)
    line = connect()
    assert push(line, frame_of(2_000_000)) == b""
    assert network.memory.used == (2_000_000 if kept else 0)
    waiting[0].callback([b"done"])
    assert line.receive() == b"done"
    assert network.memory.used == 0


def test_a_client_that_pipelines_large_requests_holds_one_and_the_next() -> None:
    asked: list[memoryview] = []
    waiting: list[Deferred[Any]] = []

    def service(frame: memoryview, _peer: object) -> Deferred[Any]:
        asked[:] = [frame]
        waiting.append(Deferred())
        return waiting[-1]

    _, network, connect = make(service)
    line = connect()
    rest = frame_of(2_000_000) * 6
    for number in range(6):
        rest = push(line, rest)
        assert network.memory.used <= 4_300_000
        waiting[number].callback([b"done"])
        assert line.receive() == b"done"
    assert rest == b""
    assert network.memory.used == 0


def test_a_large_frame_waits_for_memory_and_then_arrives() -> None:
    asked: list[memoryview] = []
    waiting: list[Deferred[Any]] = []

    def service(frame: memoryview, _peer: object) -> Deferred[Any]:
        asked.append(frame)
        waiting.append(Deferred())
        size = len(frame)
        waiting[-1].addCallback(lambda _: [str(size).encode()])
        return waiting[-1]

    _, network, connect = make(service, LITTLE_MEMORY)
    lines = [connect() for _ in range(3)]
    frame = frame_of(2_500_000)
    assert [bool(push(line, frame)) for line in lines[:2]] == [False, False]
    rest = push(lines[2], frame)
    assert (len(waiting), network.memory.waiting) == (2, 1)
    assert rest
    del asked[0]
    waiting[0].callback(None)
    assert lines[0].receive() == b"2500000"
    assert push(lines[2], rest) == b""
    asked.clear()
    for each, line in zip(waiting[1:], lines[1:], strict=True):
        each.callback(None)
        assert line.receive() == b"2500000"
    assert network.memory.used == 0


def test_announced_frames_use_no_memory_and_delay_no_other() -> None:
    _, network, connect = make(lambda frame, _peer: [str(len(frame)).encode()])
    drips = [connect() for _ in range(10)]
    for line in drips:
        push(line, struct.pack(">i", 90 << 20) + b"x")
    assert network.memory.used < 200_000
    honest = connect()
    assert push(honest, frame_of(50 << 20)) == b""
    assert honest.receive() == str(50 << 20).encode()
    assert all(line.transport.connected for line in drips)


def test_a_frame_that_stalls_while_another_waits_for_memory_is_closed(lines: list[str]) -> None:
    _, network, connect = make(lambda frame, _peer: [str(len(frame)).encode()], LITTLE_MEMORY)
    stalled = [connect() for _ in range(3)]
    for line in stalled:
        push(line, frame_of(2_900_000)[:1_900_000])
    pump(stalled[0], 4)
    assert all(line.transport.connected for line in stalled)
    honest = connect()
    rest = push(honest, frame_of(2_900_000))
    assert network.memory.waiting >= 1
    pump(honest, 2)
    assert [text for text in lines if "behind 65536 bytes/s and holds" in text]
    assert push(honest, rest) == b""
    assert honest.receive() == b"2900000"


def test_a_frame_is_not_closed_for_the_time_in_which_the_broker_stood_still() -> None:
    reactor, network, connect = make(lambda _frame, _peer: [b"done"], LITTLE_MEMORY)
    lines = [connect() for _ in range(4)]
    rests = [push(line, frame_of(2_900_000)[:1_900_000]) for line in lines]
    assert network.memory.waiting
    reactor.advance(60)
    pump(lines[0], 2)
    assert all(line.transport.connected for line in lines)
    assert any(rests)


@pytest.mark.long
def test_frames_behind_a_request_that_waits_are_counted_and_read_in_small_pieces() -> None:
    _, network, connect = make(
        lambda _frame, _peer: Deferred(), {"queued.max.request.bytes": str(100 << 20)}
    )
    lines = [connect() for _ in range(200)]
    for line in lines:
        push(line, frame_of(100) * 2400)
    assert (12 << 20) < network.memory.used < (16 << 20)


def test_inter_broker_frames_do_not_wait_for_what_clients_hold() -> None:
    _, network, connect = make(
        lambda frame, _peer: [str(len(frame)).encode()],
        {
            **LITTLE_MEMORY,
            "listeners": "PLAINTEXT://h:1,BROKERS://h:2",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
        },
    )
    for _ in range(3):
        push(connect(), frame_of(2_900_000)[:1_900_000])
    assert network.memory.waiting
    listener = Listener(Endpoint("BROKERS", "PLAINTEXT", "", 0), network)
    broker = Line(network.reactor, network, listener, 3)
    assert push(broker, frame_of(2_900_000)) == b""
    assert broker.receive() == b"2900000"


def test_too_many_connections_from_one_address_are_refused(lines: list[str]) -> None:
    _, _, connect = make(echo, {"max.connections.per.ip": "2"})
    open_lines = [connect() for _ in range(3)]
    assert [line.refused for line in open_lines] == [False, False, True]
    assert "max.connections.per.ip" in lines[0]
    open_lines[0].client.close()
    open_lines[0].reactor.turn()
    assert not connect().refused


def test_limits_of_connections_change_while_connections_are_open() -> None:
    _, network, connect = make(echo, {"max.connections.per.ip": "2"})
    two = [connect() for _ in range(2)]
    network.quotas.configure(network.config.with_values({"max.connections.per.ip": "3"}))
    assert [connect().refused for _ in range(2)] == [False, True]
    network.quotas.configure(network.config.with_values({"max.connections.per.ip": "1"}))
    assert connect().refused
    assert not any(line.refused for line in two)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_an_ipv4_peer_of_an_ipv6_listener_has_its_ipv4_address() -> None:
    """The kernel calls it ::ffff:127.0.0.1; the limit of 127.0.0.1 is its limit, as in Kafka."""
    limits = {"max.connections.per.ip": "1", "max.connections.per.ip.overrides": "127.0.0.1:2"}
    reactor, network, _ = make(echo, limits)
    listener = Listener(Endpoint("PLAINTEXT", "PLAINTEXT", "::", 0), network)
    port = listen(reactor, "::", 0, listener, 10)  # type: ignore[arg-type]
    address = ("127.0.0.1", port.getHost().port)
    with socket.create_connection(address, 2), socket.create_connection(address, 2):
        reactor.turn()
        hosts = [connection.peer.host for connection in network.connections]
        for connection in list(network.connections):
            connection.transport.abortConnection()
    port.stopListening()
    reactor.turn()
    assert hosts == ["127.0.0.1", "127.0.0.1"]


def test_connections_beyond_the_rate_are_refused() -> None:
    reactor, _, connect = make(echo, {"max.connection.creation.rate": "2"})
    assert [connect().refused for _ in range(3)] == [False, False, True]
    reactor.advance(1)
    assert not connect().refused


def test_the_last_descriptors_are_not_for_clients(lines: list[str]) -> None:
    most, reserve = open_files.limit(), open_files.reserve()
    descriptors = iter([most - reserve - 1, most - reserve])
    _, _, connect = make(echo, descriptor=lambda: next(descriptors))
    assert [connect().refused for _ in range(2)] == [False, True]
    assert f"may open {most} files" in lines[0]


def test_brokers_have_half_of_the_last_descriptors_and_files_the_rest() -> None:
    most, half = open_files.limit(), open_files.reserve() // 2
    assert no_descriptor_left(most - half - 1, between_brokers=True) is None
    assert no_descriptor_left(most - half, between_brokers=True) is not None


def test_without_a_descriptor_connections_wait_and_the_reactor_rests(lines: list[str]) -> None:
    reactor, network, _ = make(echo)
    listener = Listener(Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 0), network)
    port = listen(reactor, "127.0.0.1", 0, listener, 10)  # type: ignore[arg-type]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(("127.0.0.1", port.getHost().port), 2) as client:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            reactor.turn()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert "cannot accept connections" in "".join(lines)
        assert port not in reactor.readers, "epoll would report it without end"
        reactor.turn()
        assert not network.connections
        reactor.advance(ACCEPT_PAUSE)
        reactor.turn()
        (connection,) = network.connections
        assert connection.peer.port == client.getsockname()[1]
    for reader in list(reactor.readers):
        reactor.removeReader(reader)
    connection.transport.abortConnection()
    port.stopListening()
    reactor.turn()
    assert not reactor.readers


def test_a_close_has_a_deadline() -> None:
    reactor, _, connect = make(
        lambda frame, _peer: [bytes(5_000_000)], {"kbroker.close.timeout.ms": "1000"}
    )
    line = connect()
    line.send(b"x")
    line.connection.close()
    reactor.turn()
    assert line.transport.connected
    reactor.advance(1.1)
    reactor.turn()
    assert not line.transport.connected


def test_a_flood_of_refusals_does_not_flood_the_log(lines: list[str]) -> None:
    def service(_frame: memoryview, _peer: object) -> None:
        raise RequestRefusedError("no")

    reactor, network, connect = make(service)
    network.refusals = RefusalLog(per_second=3)
    for _ in range(10):
        connect().send(b"x")
    assert len(lines) == 3
    reactor.advance(1)
    connect().send(b"x")
    assert lines[3] == "closed 7 more connections in a second"
    assert len(lines) == 5


def test_unread_responses_cost_their_own_connections_and_no_other(
    lines: list[str],
) -> None:
    _, network, connect = make(
        lambda frame, _peer: [bytes(60_000 if frame[0] else 200_000)],
        {"kbroker.response.queue.max.bytes": "1048576"},
    )
    stalled = []
    for _ in range(30):
        line = connect()
        line.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        line.send(b"\1")
        line.reactor.advance(0.1)
        stalled.append(line)
    honest = connect()
    for _ in range(3):
        honest.send(b"\0")
        assert len(honest.receive()) == 200_000
    left = sum(line.transport.unsent_memory for line in stalled if line.transport.connected)
    assert 500_000 < left <= 1048576
    assert sum(not line.transport.connected for line in stalled) == len(
        [text for text in lines if "memory for responses is used up" in text]
    )
    assert not stalled[0].transport.connected, "the connection with the oldest response goes first"
    assert stalled[-1].transport.connected
    for line in stalled:
        if line.transport.connected:
            line.transport.abortConnection()
    assert network.unsent.bytes == 0
