"""A proxy for every connection of the cluster, which can cut, delay and reset each of them.

Theory of operation
===================
One thread, one selector. Each route listens on a port and leads to a target. The caller is known by the route, or, on
the inter-broker listener that all brokers call, by the client id of the first request (``broker-2-fetcher-0``).

Bytes flow in two directions, and each may be held. Then nothing is read. The sender's bytes wait as they do in a
network that loses packets, and flow on when it is healed. `reset` ends connections, and what was held is lost: held
replies that are reset are requests with an unknown outcome. A throttled direction reads so many bytes a second; a
delayed one delivers everything, in order, so much later. A connection that one end closes is closed at the other when
everything that was sent before has arrived, as TCP does it.

Owner: its own thread; the methods may be called from any.
"""

from __future__ import annotations

import re
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

_CALLER = re.compile(rb"broker-\d+")
_CHUNK = 65536
_TICK = 0.02


@dataclass(eq=False)
class _Side:
    """One socket of a connection."""

    socket: socket.socket
    connection: _Connection
    outgoing: bytearray = field(default_factory=bytearray)
    """Bytes for this socket."""
    late: deque[tuple[float, bytes]] = field(default_factory=deque)
    """Bytes for this socket that are still on their way, each with the time of its arrival."""
    events: int = 0
    may_read_at: float = 0.0
    finished: bool = False
    """Whether its peer has closed the connection: it sends nothing more."""
    ended: bool = False


@dataclass(eq=False)
class _Connection:
    """A caller's socket and the target's."""

    source: str
    target: str
    sides: list[_Side] = field(default_factory=list)
    known: bool = True
    first: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class _Route:
    source: str | None
    target: str
    address: tuple[str, int]


class Switchboard:
    """Routes from ports of ours to addresses."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._held: frozenset[tuple[str, str]] = frozenset()
        self._rates: dict[tuple[str, str], int] = {}
        self._delays: dict[tuple[str, str], float] = {}
        self._todo: deque[Callable[[], None]] = deque()
        self._waking, self._woken = socket.socketpair()
        self._waking.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._ending = False
        self._listeners: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, name="switchboard", daemon=True)
        self._thread.start()

    # -- routes and faults ---------------------------------------------------------------------

    def route(self, source: str | None, target: str, port: int) -> int:
        """Listen for *source* (None: the caller names itself) and lead to *port*; return our port."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        listener.setblocking(False)
        self._listeners.append(listener)
        route = _Route(source, target, ("127.0.0.1", port))
        self._soon(lambda: self._selector.register(listener, selectors.EVENT_READ, route) and None)
        return int(listener.getsockname()[1])

    def hold(self, *directions: tuple[str, str]) -> None:
        """Let nothing through from the first to the second of each pair."""
        self._soon(lambda: self._set_held(self._held | set(directions)))

    def cut(self, one: str, *others: str) -> None:
        """Hold both directions between *one* and each of *others*."""
        self.hold(*((one, other) for other in others), *((other, one) for other in others))

    def hold_only(self, *directions: tuple[str, str]) -> None:
        """Hold exactly these directions: others flow again."""
        self._soon(lambda: self._set_held(frozenset(directions)))

    def throttle(self, source: str, target: str, bytes_per_second: int) -> None:
        """Let so many bytes through, per connection."""
        self._soon(lambda: self._rates.update({(source, target): bytes_per_second}))

    def delay(self, source: str, target: str, seconds: float) -> None:
        """Let what is sent from now on arrive so many seconds later."""
        self._soon(lambda: self._delays.update({(source, target): seconds}))

    def delay_only(self, *delays: tuple[str, str, float]) -> None:
        """Have exactly these delays (from, to, seconds); what others held back arrives now."""

        def change() -> None:
            self._delays = {(source, target): seconds for source, target, seconds in delays}
            for connection in list(self._connections):
                for side, other in zip(connection.sides, reversed(connection.sides), strict=True):
                    if self._direction(side) not in self._delays:
                        _let_arrive(other)
                self._watch(connection)

        self._soon(change)

    def reset(self, one: str, other: str) -> None:
        """End every connection between the two, with what is on its way."""

        def end() -> None:
            for connection in list(self._connections):
                if {connection.source, connection.target} == {one, other}:
                    self._close(connection)

        self._soon(end)

    def heal(self) -> None:
        """Let everything flow again."""

        def free() -> None:
            self._rates.clear()
            self._delays.clear()
            self._set_held(frozenset())
            for connection in self._connections:
                for side in connection.sides:
                    side.may_read_at = 0.0
                    _let_arrive(side)

        self._soon(free)

    def settle(self) -> None:
        """Wait until what was asked for before is so."""
        done = threading.Event()
        self._soon(done.set)
        done.wait(5)

    def close(self) -> None:
        """End everything."""
        self._ending = True
        self._wake()
        self._thread.join(5)
        for connection in list(self._connections):
            self._close(connection)
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        self._waking.close()
        self._woken.close()

    # -- the thread ----------------------------------------------------------------------------

    def _soon(self, action: Callable[[], None]) -> None:
        self._todo.append(action)
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full: it wakes without this byte
            self._waking.send(b"w")

    def _set_held(self, directions: frozenset[tuple[str, str]] | set[tuple[str, str]]) -> None:
        self._held = frozenset(directions)

    def _run(self) -> None:
        while not self._ending:
            if self._todo or self._rates or self._delays:
                while self._todo:
                    self._todo.popleft()()
                for connection in list(self._connections):
                    self._deliver(connection)
                    self._watch(connection)
            # Only what is throttled or delayed goes on without an event.
            for key, events in self._selector.select(
                _TICK if self._rates or self._delays else None
            ):
                if key.data is None:
                    self._woken.recv(4096)
                elif isinstance(key.data, _Route):
                    self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
                elif key.data.connection in self._connections:
                    self._handle(key.data, events)

    def _accept(self, listener: socket.socket, route: _Route) -> None:
        with suppress(OSError):
            caller, _ = listener.accept()
            caller.setblocking(False)
            target = socket.socket()
            target.setblocking(False)
            target.connect_ex(route.address)
            connection = _Connection(route.source or "?", route.target, known=bool(route.source))
            connection.sides = [_Side(caller, connection), _Side(target, connection)]
            for one in (caller, target):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.add(connection)
            self._watch(connection)

    def _handle(self, side: _Side, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                sent = side.socket.send(side.outgoing) if side.outgoing else 0
                del side.outgoing[:sent]
            if events & selectors.EVENT_READ:
                self._read(side)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._close(side.connection)
            return
        if side.connection in self._connections:
            self._watch(side.connection)

    def _read(self, side: _Side) -> None:
        connection = side.connection
        other = connection.sides[1 - connection.sides.index(side)]
        rate = self._rates.get(self._direction(side))
        size = _CHUNK if rate is None else max(1, int(rate * _TICK * 2))
        data = side.socket.recv(size)
        if not data:
            side.finished = True  # `_watch` closes when what was read before has arrived
            return
        if rate is not None:
            side.may_read_at = time.monotonic() + len(data) / rate
        if not connection.known:
            connection.first += data
            if not self._know(connection):
                return
            data, connection.first = bytes(connection.first), bytearray()
        delay = self._delays.get(self._direction(side))
        if delay is None:
            other.outgoing += data
        else:
            other.late.append((time.monotonic() + delay, bytes(data)))

    def _deliver(self, connection: _Connection) -> None:
        now = time.monotonic()
        for side in connection.sides:
            while side.late and side.late[0][0] <= now:
                side.outgoing += side.late.popleft()[1]

    def _know(self, connection: _Connection) -> bool:
        """Find the caller from the header of its first request."""
        first = connection.first
        if len(first) < 14:
            return False
        (size,) = struct.unpack_from(">h", first, 12)
        if len(first) < 14 + max(0, size):
            return False
        match = _CALLER.match(first[14 : 14 + max(0, size)])
        connection.source = match[0].decode() if match else "client"
        connection.known = True
        return True

    def _direction(self, side: _Side) -> tuple[str, str]:
        """Whence and whither what is read from *side* flows."""
        connection = side.connection
        pair = (connection.source, connection.target)
        return pair if side is connection.sides[0] else (pair[1], pair[0])

    def _watch(self, connection: _Connection) -> None:
        """Wait for the events of both sides, or close if a side has finished and all it sent has arrived."""
        one, two = connection.sides
        for side, other in ((one, two), (two, one)):
            if side.finished and not other.outgoing and not other.late:
                self._close(connection)
                return
        now = time.monotonic()
        for side, other in zip(connection.sides, reversed(connection.sides), strict=True):
            events = 0
            held = connection.known and self._direction(side) in self._held
            if (
                not held
                and not side.finished
                and len(other.outgoing) < 4 * _CHUNK
                and side.may_read_at <= now
            ):
                events |= selectors.EVENT_READ
            arriving_held = connection.known and self._direction(other) in self._held
            if side.outgoing and not arriving_held:
                events |= selectors.EVENT_WRITE
            if events == side.events:
                continue
            if not side.events:
                self._selector.register(side.socket, events, side)
            elif events:
                self._selector.modify(side.socket, events, side)
            else:
                self._selector.unregister(side.socket)
            side.events = events

    def _close(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        for side in connection.sides:
            if side.events:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(side.socket)
                side.events = 0
            if not side.ended:
                side.ended = True
                side.socket.close()


def _let_arrive(side: _Side) -> None:
    """Have all that is on its way to *side* arrive now, before what comes later."""
    side.outgoing += b"".join(data for _, data in side.late)
    side.late.clear()
