"""The switchboard: what is held waits, what is reset is lost, and callers are known by their first request."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kbroker.testing.switchboard.board import Switchboard
from kbroker.testing.switchboard.remote import RemoteSwitchboard

SOON, NEVER = 10.0, 0.2


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture(params=[Switchboard, RemoteSwitchboard], ids=["here", "in a process of its own"])
def board(request: pytest.FixtureRequest) -> Iterator[Switchboard]:
    board = request.param()
    yield board
    board.close()


def call(port: int, first: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), SOON)
    connection.sendall(first)
    return connection


def received(connection: socket.socket, size: int, timeout: float = SOON) -> bytes:
    """Read *size* bytes; fewer at the end of the connection or of the time."""
    deadline = time.monotonic() + timeout
    found = b""
    with suppress(TimeoutError):
        while len(found) < size and (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            piece = connection.recv(size - len(found))
            if not piece:
                break
            found += piece
    return found


def request_of(client: bytes) -> bytes:
    body = struct.pack(">hhih", 18, 3, 1, len(client)) + client
    return struct.pack(">i", len(body)) + body


def test_bytes_flow_both_ways(board: Switchboard, echo: Echo) -> None:
    with call(board.route("a", "b", echo.port), b"hello") as connection:
        assert received(connection, 5) == b"hello"


@pytest.mark.parametrize("direction", [("a", "b"), ("b", "a")])
def test_what_is_held_waits_and_flows_on_when_healed(
    board: Switchboard, echo: Echo, direction: tuple[str, str]
) -> None:
    with call(board.route("a", "b", echo.port), b"1") as connection:
        assert received(connection, 1) == b"1"
        board.hold(direction)
        board.settle()
        connection.sendall(b"2")
        assert received(connection, 1, NEVER) == b""
        board.heal()
        assert received(connection, 1) == b"2"


def test_what_is_reset_is_lost(board: Switchboard, echo: Echo) -> None:
    with call(board.route("a", "b", echo.port), b"1") as connection:
        assert received(connection, 1) == b"1"
        board.hold(("b", "a"))
        board.settle()
        connection.sendall(b"2")
        board.reset("a", "b")
        board.heal()
        with suppress(ConnectionError):
            assert received(connection, 1) == b""


def test_other_connections_do_not_notice(board: Switchboard, echo: Echo) -> None:
    board.cut("a", "b")
    board.settle()
    with call(board.route("c", "b", echo.port), b"x") as connection:
        assert received(connection, 1) == b"x"


def test_a_broker_is_known_by_its_first_request(board: Switchboard, echo: Echo) -> None:
    port = board.route(None, "broker-1", echo.port)
    board.cut("broker-1", "broker-2")
    board.settle()
    two, three = request_of(b"broker-2-fetcher-0"), request_of(b"broker-3")
    with call(port, two) as cut, call(port, three) as free:
        assert received(free, len(three)) == three
        assert received(cut, 1, NEVER) == b""
        board.heal()
        assert received(cut, len(two)) == two


def test_a_throttled_direction_takes_its_time(board: Switchboard, echo: Echo) -> None:
    board.throttle("a", "b", 100_000)
    board.settle()
    with call(board.route("a", "b", echo.port), bytes(60_000)) as connection:
        assert len(received(connection, 60_000, NEVER)) < 60_000
        board.heal()
        assert received(connection, 1) == b"\0"


def test_a_target_that_does_not_listen_is_a_closed_connection(board: Switchboard) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        port = board.route("a", "b", unused.getsockname()[1])
        with suppress(ConnectionError), call(port) as connection:
            assert received(connection, 1) == b""


def test_what_is_delayed_arrives_in_order_and_later(echo: Echo, board: Switchboard) -> None:
    port = board.route("a", "b", echo.port)
    with call(port, b"1") as connection:
        assert connection.recv(1) == b"1"
        board.delay("b", "a", 0.3)
        board.settle()
        began = time.monotonic()
        connection.sendall(b"23")
        time.sleep(0.05)
        connection.sendall(b"45")
        with connection.makefile("rb") as stream:
            assert stream.read(4) == b"2345"
        assert 0.3 <= time.monotonic() - began < SOON
        connection.sendall(b"6")
        board.heal()
        assert connection.recv(1) == b"6"


def test_a_delay_that_ends_lets_arrive_what_it_held_before_what_comes_later(
    echo: Echo, board: Switchboard
) -> None:
    port = board.route("a", "b", echo.port)
    with call(port, b"1") as connection:
        assert connection.recv(1) == b"1"
        board.delay_only(("a", "b", 60.0), ("b", "a", 0.1))
        board.settle()
        connection.sendall(b"23")
        time.sleep(0.05)
        began = time.monotonic()
        board.delay_only(("b", "a", 0.3))
        board.settle()
        connection.sendall(b"4")
        with connection.makefile("rb") as stream:
            assert stream.read(3) == b"234"
        assert 0.25 <= time.monotonic() - began < SOON
        board.delay_only()
        board.settle()
        connection.sendall(b"5")
        assert connection.recv(1) == b"5"


def test_an_answer_arrives_whole_if_its_sender_closes_at_once(board: Switchboard) -> None:
    """ZooKeeper does so with a session that has expired: without the answer its client never opens another one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = board.route("broker-1", "zookeeper", server.getsockname()[1])
        board.delay("zookeeper", "broker-1", 0.3)  # the end of the connection overtakes the answer
        board.settle()
        with call(port, b"connect") as caller:
            served, _ = server.accept()
            with served:
                assert received(served, 7) == b"connect"
                served.sendall(b"expired")
            assert received(caller, 7) == b"expired"
            assert received(caller, 1) == b"", "the connection ends behind it"
