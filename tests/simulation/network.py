"""The network between brokers and from clients: the real protocols on both ends, and between them bytes that take time.

A connection keeps the order of what is sent in one direction; connections do not keep step with each other. A
link that is blocked loses nothing for good, as TCP does not: what was sent arrives once it is open again,
unless the connection was given up. The end that closes a connection receives nothing more; what it had sent may still
arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from kbroker.common.endpoint import Endpoint
from kbroker.config import KafkaConfig
from kbroker.log.slices import FileSlice
from kbroker.network.plaintext_transport import READ_SIZE
from kbroker.network.socket_server import Listener, SocketServer
from kclient.errors import Address, Cause, ConnectError
from kclient.net.connection import Connection
from tests.simulation.clock import Process, Scheduler

LATENCY = (0.0003, 0.004)
SLOW_LATENCY = (0.02, 0.6)
SYN_SECONDS = (1.0, 3.0)
"""Seconds from one SYN without an answer to the next."""

SCRATCH = bytearray(READ_SIZE)
"""Of all servers: nothing stays in it from one step to the next."""

CONNECTION_DONE = Failure(ConnectionDone())


class Host:
    """Where a process is: its name on the network and the process that runs there now."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.process: Process | None = None
        self.listeners: dict[int, Listener] = {}
        """By port."""


class Network:
    """Every host, every connection, and the faults between them."""

    def __init__(self, scheduler: Scheduler, rng: Random) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.hosts: dict[str, Host] = {}
        self.links: list[Link] = []
        self._blocked: set[tuple[int, int]] = set()
        self._slow: set[tuple[int, int]] = set()
        self.arrived: dict[tuple[int, int], float] = {}
        """By (source, target): when a message last reached its target."""

    def host(self, node: int) -> Host:
        return self.hosts.setdefault(f"node{node}", Host(node))

    # -- faults

    def block(self, source: int, target: int) -> None:
        """Let nothing pass from *source* to *target*."""
        self._blocked.add((source, target))

    def unblock(self, source: int, target: int) -> None:
        self._blocked.discard((source, target))
        for link in list(self.links):
            if {link.caller, link.callee} == {source, target}:
                link.send_waiting()

    def stall(self, source: int, target: int, caller: int | None = None) -> None:
        """Let nothing pass for a while in the connections that there are, or in those of one *caller*; new ones work.

        So it is where segments were lost: TCP sends them again, later each time, whatever became of the sender.
        """
        for link in self.links:
            if caller in (None, link.caller):
                link.stall(source, target)

    def unstall(self) -> None:
        """Let what was stalled arrive."""
        for link in list(self.links):
            link.unstall()

    def heal(self) -> None:
        self._slow.clear()
        self.unstall()
        for source, target in sorted(self._blocked):
            self.unblock(source, target)

    def slow(self, source: int, target: int, slow: bool = True) -> None:
        (self._slow.add if slow else self._slow.discard)((source, target))

    def blocked(self, source: int, target: int) -> bool:
        return (source, target) in self._blocked

    def cut(self, one: int, other: int) -> None:
        """Break every connection between two nodes (a reset); what is under way is lost."""
        for link in list(self.links):
            if {link.caller, link.callee} == {one, other}:
                link.reset()

    def process_ended(self, process: Process) -> None:
        """Close the other ends of the connections of a process that ended."""
        for link in list(self.links):
            link.process_ended(process)

    def machine_vanished(self, process: Process) -> None:
        for link in list(self.links):
            link.machine_vanished(process)

    def machine_returned(self, node: int) -> None:
        """Reset the connections from before the machine lost its power."""
        for link in list(self.links):
            if node in (link.caller, link.callee) and link.is_dead:
                link.reset()

    def latency(self, source: int, target: int) -> float:
        low, high = SLOW_LATENCY if (source, target) in self._slow else LATENCY
        return low + (high - low) * self.rng.random()

    # -- dialling

    def dialler(self, process: Process, node: int) -> Callable[..., Any]:
        """Return what stands for `kclient.net.connection.connect` in *process*."""

        async def dial(
            _reactor: Any,
            address: Address,
            *,
            client_id: str | None = "kclient",
            connect_timeout: float = 10.0,
            request_timeout: float = 30.0,
            negotiate_versions: bool = False,
        ) -> Connection:
            give_up_at = process.seconds() + connect_timeout
            host = self.hosts.get(address.host)
            if host is None:
                raise ConnectError(address, Cause.DNS)
            tries = iter(SYN_SECONDS)
            while True:
                there, back = self.latency(node, host.node), self.latency(host.node, node)
                if not self.blocked(node, host.node) and not self.blocked(host.node, node):
                    break
                pause = next(tries, connect_timeout)
                left = give_up_at - process.seconds()
                await _later(process, min(pause, left))
                if pause >= left:
                    raise ConnectError(address, Cause.TIMEOUT)
            await _later(process, there + back)
            listener = host.listeners.get(address.port)
            server = host.process
            if listener is None or server is None or not server.alive:
                raise ConnectError(address, Cause.REFUSED)
            connection = Connection(
                process, address, client_id=client_id, request_timeout=request_timeout
            )
            link = Link(self, process, node, server, host.node)
            link.open(connection, listener)
            return connection

        return dial

    def socket_server(self, host: Host) -> Callable[..., SocketServer]:
        """Return what stands for `kbroker.network.socket_server.SocketServer` on *host*."""

        def make(process: Process, config: KafkaConfig, service: Any) -> SocketServer:
            return _SocketServer(process, config, service, host)

        return make


class _SocketServer(SocketServer):
    """A broker's listeners, without sockets."""

    def __init__(self, process: Process, config: KafkaConfig, service: Any, host: Host) -> None:
        super().__init__(process, config, service, clock=process.seconds, scratch=SCRATCH)
        self._host = host

    def start(self, endpoints: tuple[Endpoint, ...] | None = None) -> tuple[Endpoint, ...]:
        for endpoint in self.config.endpoints:
            listener = Listener(endpoint, self)
            self.listeners.append(listener)
            self._host.listeners[endpoint.port] = listener
        return self.config.endpoints

    def stop_listening(self) -> None:
        super().stop_listening()
        self._host.listeners.clear()

    def set_buffers(self, socket: Any) -> None:
        pass


class Link:
    """One connection: two directions, each in order."""

    def __init__(
        self, network: Network, client: Process, caller: int, server: Process, callee: int
    ) -> None:
        self.network = network
        self.caller, self.callee = caller, callee
        self._client, self._server = client, server
        self._up = _Direction(self, caller, callee, server)
        self._down = _Direction(self, callee, caller, client)

    def open(self, connection: Connection, listener: Listener) -> None:
        self.network.links.append(self)
        self._near = _ClientEnd(self._client, self._up, connection)
        self._down.receiver = self._near
        connection.transport = self._near  # type: ignore[assignment]
        connection.connectionMade()
        self._up.send(lambda: self._accept(listener))

    def _accept(self, listener: Listener) -> None:
        protocol = listener.admit(f"10.0.0.{self.caller}", 1000, descriptor=3)
        if protocol is None:
            self._down.finish()
            return
        end = _ServerEnd(self._server, self._down, protocol)
        self._up.receiver = end
        protocol.transport = end
        protocol.connectionMade()

    @property
    def is_dead(self) -> bool:
        return self._up.dropped and self._down.dropped

    def send_waiting(self) -> None:
        self._up.send_waiting()
        self._down.send_waiting()

    def stall(self, source: int, target: int) -> None:
        for direction in (self._up, self._down):
            direction.stalled |= direction.is_from_to(source, target)

    def unstall(self) -> None:
        if self._up.stalled or self._down.stalled:
            self._up.stalled = self._down.stalled = False
            self.send_waiting()

    def reset(self) -> None:
        """Lose what is in flight and close both ends."""
        self.forget()
        for direction in (self._up, self._down):
            direction.dropped = True
            receiver, process = direction.receiver, direction.process
            if receiver is not None:
                process.arrives(self.network.scheduler.now, receiver.lost)

    def process_ended(self, process: Process) -> None:
        """The kernel closes the end of the process: what it had sent arrives, then the end of the stream."""
        if process is self._server:
            self._up.dropped = True
            self._down.finish()
        elif process is self._client:
            self._down.dropped = True
            self._up.finish()

    def machine_vanished(self, process: Process) -> None:
        """Let a machine that lost its power send nothing; its peers wait."""
        if process in (self._client, self._server):
            self._up.dropped = self._down.dropped = True

    def forget(self) -> None:
        if self in self.network.links:
            self.network.links.remove(self)


class _Direction:
    """What goes one way."""

    def __init__(self, link: Link, source: int, target: int, process: Process) -> None:
        self._link = link
        self._source, self._target = source, target
        self._direction = (source, target)
        self.process = process
        """Where it arrives."""
        self.receiver: _End | None = None
        self.dropped = False
        """Whether nothing arrives any more."""
        self.stalled = False
        """Whether nothing arrives for now."""
        self._waiting: list[Callable[[], None]] = []
        self._last = 0.0
        self._finished = False

    def is_from_to(self, source: int, target: int) -> bool:
        return (source, target) == (self._source, self._target)

    def send(self, arrive: Callable[[], None]) -> None:
        if self.dropped or self._finished:
            return
        self._waiting.append(arrive)
        self.send_waiting()

    def data(self, data: bytes) -> None:
        def arrive() -> None:
            if self.receiver is not None:
                self.receiver.received(data)

        self.send(arrive)

    def finish(self) -> None:
        """Send the end."""

        def arrive() -> None:
            if self.receiver is not None:
                self.receiver.lost()
            self._link.forget()

        self.send(arrive)
        self._finished = True

    def send_waiting(self) -> None:
        """Send what waits, unless the direction is blocked or stalled."""
        network = self._link.network
        if not self._waiting or self.stalled or network.blocked(self._source, self._target):
            return
        waiting, self._waiting = self._waiting, []
        for arrive in waiting:
            when = network.scheduler.now + network.latency(self._source, self._target)
            self._last = max(self._last, when)
            self.process.arrives(self._last, self._arrived, arrive)

    def _arrived(self, arrive: Callable[[], None]) -> None:
        if not self.dropped:
            network = self._link.network
            network.arrived[self._direction] = network.scheduler.now
            arrive()


class _End:
    """A transport: writes into one direction, is read by a protocol."""

    connected = True
    disconnecting = False
    unsent = 0
    unsent_memory = 0
    total_sent = 0

    def __init__(self, process: Process, out: _Direction) -> None:
        self._process = process
        self._out = out

    def setTcpNoDelay(self, _on: bool) -> None:  # noqa: N802
        pass

    setTcpKeepAlive = setTcpNoDelay  # noqa: N815

    def getHandle(self) -> None:  # noqa: N802
        """Return the socket; there is none."""

    def abortConnection(self) -> None:  # noqa: N802
        self._out.finish()
        if self.connected:
            self._process.callLater(0, self.lost)

    loseConnection = abortConnection  # noqa: N815

    def received(self, data: bytes) -> None:
        raise NotImplementedError

    def lost(self) -> None:
        raise NotImplementedError


class _ClientEnd(_End):
    def __init__(self, process: Process, out: _Direction, protocol: Connection) -> None:
        super().__init__(process, out)
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        self._out.data(data)

    def writeSequence(self, parts: Any) -> None:  # noqa: N802
        self._out.data(b"".join(parts))

    def received(self, data: bytes) -> None:
        if self.connected:
            self._protocol.dataReceived(data)

    def lost(self) -> None:
        if self.connected:
            self.connected = False
            self._protocol.connectionLost(CONNECTION_DONE)


class _ServerEnd(_End):
    """The `kbroker.network.transport.Transport` of a connection in the simulation."""

    def __init__(self, process: Process, out: _Direction, protocol: Any) -> None:
        super().__init__(process, out)
        self._protocol = protocol
        self._queue: list[bytes] = []
        self._stopped = False
        self._unread: list[bytes] = []

    def send(self, parts: Any) -> None:
        for part in parts:
            if isinstance(part, FileSlice):
                data = part.read()
                part.release()
                if len(data) < part.size:  # cut off under the slice: the promise cannot be kept
                    self._queue.clear()
                    self.abortConnection()
                    return
            else:
                data = bytes(part)
            self._queue.append(data)

    def flush(self) -> None:
        if self._queue and self.connected:
            queue, self._queue = self._queue, []
            self._out.data(b"".join(queue))

    def stopReading(self) -> None:  # noqa: N802
        self._stopped = True

    def startReading(self) -> None:  # noqa: N802
        self._stopped = False
        while self._unread and not self._stopped and self.connected:
            self._take(self._unread.pop(0))

    def received(self, data: bytes) -> None:
        if self._stopped:
            self._unread.append(data)
        elif self.connected:
            self._take(data)

    def _take(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self.connected:
            buffer = self._protocol.get_buffer()
            assert len(buffer), "requests of the simulation do not wait for memory"
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            self._protocol.buffer_updated(count)

    def lost(self) -> None:
        if self.connected:
            self.connected = False
            self._queue.clear()
            self._protocol.connectionLost(CONNECTION_DONE)


def _later(process: Process, seconds: float) -> Deferred[None]:
    passed: Deferred[None] = Deferred()
    process.callLater(seconds, passed.callback, None)
    return passed
