"""One thread with kazoo's implementation of ZooKeeper's protocol; the reactor's thread handles every result.

kazoo's layers above its connection (callback threads, recipes, retries, one wake-up byte and three system calls per
request) are left out. They block, reorder, or hide results. Its protocol, its reconnecting and its pings remain.

- Every result, watch event and change of state passes through one `Inbox`, in the order in which the connection
  received them. The reactor's thread handles them.
- Every request carries its session. The connection thread checks it before it writes to the socket, after the last
  moment at which the session can change. A request of an expired session is rejected, never sent in the next one.
- Queued requests leave in one write, and all received answers are read together. kazoo's loop costs about 150 us per
  request. It blocks its caller when a few hundred wake-up bytes fill the socket pair, and makes four system calls per
  answer. At each of these it may lose the interpreter to the reactor for 5 ms.
- The connection thread is woken once, after the reactor's current work. The first of a thousand requests would wake it.
  Then it would compete for the interpreter with the code that queues the others, at 5 ms for each switch. Of the
  results, a bounded number is handled in every turn.

Owner: the connection thread; `enqueue`, `end_session` and the Inbox are for the reactor's thread.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, ConnectionLoss, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import AUTH_XID, ConnectionHandler
from kazoo.protocol.serialization import Auth, CloseInstance, Connect, int_struct
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from twisted.logger import Logger

log = Logger()

MAX_WRITE = 512 * 1024
"""Bytes of requests joined into one write."""

MESSAGES_PER_TURN = 200
"""Results and events handled in one turn of the reactor."""

READ_SIZE = 64 * 1024
"""Bytes requested in one read."""


class FromThreads(Protocol):
    """The reactor's call for other threads, and one for its own."""

    def callFromThread(self, callable: Callable[..., Any], *args: Any) -> Any:  # noqa: N802
        """Run *callable* on the reactor's thread."""

    def callLater(self, delay: float, callable: Callable[..., Any]) -> Any:  # noqa: N802
        """Run *callable* after *delay* seconds. For the reactor's own thread."""


class Inbox:
    """A queue into the reactor's thread that wakes the reactor once for many messages."""

    def __init__(self, reactor: FromThreads) -> None:
        self._reactor = reactor
        self._messages: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._awake = False

    def push(self, handle: Callable[..., None], *arguments: Any) -> None:
        """Have ``handle(*arguments)`` called on the reactor's thread. Called by any thread."""
        self._messages.append((handle, arguments))
        if not self._awake:
            self._awake = True
            self._reactor.callFromThread(self._drain)

    def behind(self, call: Callable[[], None]) -> None:
        """Make *call* after the reactor's current work. For the reactor's own thread."""
        self._reactor.callLater(0, call)

    def _drain(self) -> None:
        # First lower the flag: a later append either wakes the reactor again or is handled below.
        self._awake = False
        messages = self._messages
        for _ in range(min(len(messages), MESSAGES_PER_TURN)):
            handle, arguments = messages.popleft()
            try:
                handle(*arguments)
            except Exception:
                log.failure("a message from the ZooKeeper connection could not be handled")
        if messages and not self._awake:
            self._awake = True
            self._reactor.callFromThread(self._drain)


class Request(Protocol):
    """The part of a request in flight that the connection uses, besides its bytes."""

    session_id: int
    """The session in which it must be executed."""

    abandoned: bool
    """Its caller does not wait any more: it is not sent if it is still queued."""

    def set(self, value: Any) -> None:
        """Take the answer. Called on the connection thread."""

    def set_exception(self, error: Exception) -> None:
        """Take the error. Called on the connection thread."""


class Listener(Protocol):
    """Handles the events of a connection, on the reactor's thread."""

    def connection_state(self, connection: Connection, state: ConnectionState) -> None:
        """Handle a change of state."""

    def connection_ended(self, connection: Connection, error: BaseException | None) -> None:
        """Handle the end of the thread: this connection never reconnects."""


class ConnectionState:
    """A snapshot taken on the connection thread when its state changed."""

    __slots__ = ("connected", "expired", "password", "received_at", "session_id", "timeout")

    def __init__(
        self,
        *,
        connected: bool,
        expired: bool,
        session_id: int,
        password: bytes,
        timeout: float,
        received_at: float,
    ) -> None:
        self.connected = connected
        self.expired = expired
        self.session_id = session_id
        self.password = password
        self.timeout = timeout
        self.received_at = received_at


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threading without its two callback threads, and with a cheap select."""

    def __init__(self, connect_timeout: float) -> None:
        super().__init__()
        self._connect_timeout = connect_timeout

    def start(self) -> None:
        """Start nothing: callbacks only push into the Inbox, so they run on the connection thread."""
        self._running = True

    def stop(self) -> None:
        """Stop nothing."""
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        """Run a watch callback on the connection thread."""
        callback.func(*callback.args)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect to one server, leaving time for the others."""
        kwargs["timeout"] = min(kwargs.get("timeout") or 1e9, self._connect_timeout)
        return super().create_connection(*args, **kwargs)

    def select(
        self, readers: list[Any], writers: list[Any], _errors: list[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait with poll(2): kazoo creates and closes an epoll object for every call."""
        poll = select.poll()
        by_descriptor = {}
        for sources, event in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for source in sources:
                descriptor = source.fileno()
                if descriptor < 0:
                    raise ValueError("the socket is closed")
                by_descriptor[descriptor] = source
                poll.register(descriptor, event)
        ready = [
            by_descriptor[fd] for fd, _ in poll.poll(None if timeout is None else timeout * 1000)
        ]
        return [s for s in ready if s in readers], [s for s in ready if s in writers], []


class Connection(ConnectionHandler):  # type: ignore[misc]
    """One kazoo client and its thread, from `open` to `Listener.connection_ended`.

    *resume* is the id and password of a session to continue, *last_zxid* the last transaction seen in it.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout: float,
        resume: tuple[int, bytes] | None,
        logger: Any,
        inbox: Inbox,
        listener: Listener,
        is_stalled: Callable[[], bool] = lambda: False,
        last_zxid: int = 0,
    ) -> None:
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_jitter=0.3, max_delay=1.0)
        count = hosts.count(",") + 1
        client = KazooClient(
            hosts=hosts,
            timeout=session_timeout,
            client_id=resume,
            handler=_Handler(connect_timeout=session_timeout / 3 / count),
            connection_retry=retry,
            logger=logger,
            randomize_hosts=True,
        )
        client.last_zxid = last_zxid
        super().__init__(client, client._conn_retry.copy(), logger=logger)
        client._connection = self
        client.add_listener(self._state_changed)
        self._xid: int
        self._inbox = inbox
        self._listener = listener
        self._is_stalled = is_stalled
        self._timeout = session_timeout
        self._identity: tuple[int, bytes] = resume or (0, b"")
        self._received_at = time.monotonic()
        self.last_zxid = last_zxid
        """The last transaction seen, when the state changed last: kazoo forgets it at the end of the thread."""
        self._wake_pending = False
        self._wake_planned = False
        self._unread = bytearray()
        """Bytes received and not parsed yet: the answers after the expected one."""

    # --- the reactor's side ---

    def open(self) -> None:
        """Start the thread; it connects, and reconnects until `end_session`."""
        self.client.start_async()

    @property
    def live(self) -> bool:
        """Whether requests can be sent now."""
        return bool(self.client._live.is_set())

    def enqueue(self, message: Any, request: Request) -> None:
        """Queue a request; it is answered through *request*, or never if the connection ends."""
        self.client._queue.append((message, request))
        if not self._wake_planned:
            self._wake_planned = True
            self._inbox.behind(self._wake)

    def end_session(self) -> None:
        """End the session and the thread; `Listener.connection_ended` follows, if ZooKeeper answers."""
        self.client._stopped.set()
        self.client._queue.append((CloseInstance, None))
        self._wake_pending = False
        self._wake()

    def _wake(self) -> None:
        self._wake_planned = False
        if not self._wake_pending:
            self._wake_pending = True
            wake = self._write_sock
            if wake is not None:
                try:
                    wake.send(b"\0")
                except OSError:
                    return

    # --- the connection thread's side ---

    def _state_changed(self, state: str) -> None:
        self.last_zxid = self.client.last_zxid
        session_id, password = self._identity
        snapshot = ConnectionState(
            connected=state == KazooState.CONNECTED,
            expired=self.client._state == KeeperState.EXPIRED_SESSION,
            session_id=session_id,
            password=password,
            timeout=self._timeout,
            received_at=self._received_at,
        )
        self._inbox.push(self._listener.connection_state, self, snapshot)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        result = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect) and result[0].time_out > 0:
            answer = result[0]
            self._timeout = answer.time_out / 1000.0
            self._identity = (answer.session_id, answer.passwd)
            self._received_at = time.monotonic()
        return result

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        """Connect to one server; start a new session if the ensemble lost the history of the old one.

        A server rejects a client that has seen a newer transaction than the server. That is right for a server that
        lags, and endless for an ensemble that was wiped or restored (kazoo#42). The leader decides: if its last
        transaction is older than the client's, the client's transaction is lost.
        """
        self._drop_if_stalled()
        self._unread.clear()
        try:
            return super()._connect(host, hostip, port)
        except ConnectionDropped:
            cut_off = time.monotonic() - self._received_at
            if cut_off > self._timeout and _has_lost_history(hostip, port, self.client.last_zxid):
                log.error(
                    "the ZooKeeper server {host}:{port} has lost transactions that this broker has seen: it was "
                    "wiped or restored. Starting a new session",
                    host=host,
                    port=port,
                )
                self.client.last_zxid = 0
                self.client._reset_session()
            raise

    def _send_ping(self, connect_timeout: float) -> None:
        self._drop_if_stalled()
        super()._send_ping(connect_timeout)

    def _drop_if_stalled(self) -> None:
        """Keep no session alive for a stalled reactor (S36).

        This thread would continue to ping, and the cluster would count a broker as live that answers no request.
        Without pings the session expires, and other brokers take over.
        """
        if self._is_stalled():
            raise ConnectionDropped("the reactor is stalled")

    def _read_socket(self, read_timeout: float) -> Any:
        """Handle the received answer, and all answers after it: select does not report bytes that are read already."""
        while True:
            result = super()._read_socket(read_timeout)
            self._received_at = time.monotonic()
            if result is not None or not self._has_answer():
                return result

    def _has_answer(self) -> bool:
        unread = self._unread
        return len(unread) >= 4 and len(unread) - 4 >= int_struct.unpack_from(unread)[0]

    def _read(self, length: int, timeout: float) -> bytes:
        unread = self._unread
        while len(unread) < length:
            wanted = max(length - len(unread), READ_SIZE)
            with self._socket_error_handling():
                if not self.handler.select([self._socket], [], [], timeout)[0]:
                    raise self.handler.timeout_exception("socket time-out during read")
                part = self._socket.recv(wanted)
            if not part:
                raise ConnectionDropped("socket connection broken")
            unread += part
        taken = bytes(unread[:length])
        del unread[:length]
        return taken

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Send all queued requests; reject those of another session."""
        self._read_sock.recv(4096)
        # Lower the flag before reading the queue: a later request sends another wake-up byte.
        self._wake_pending = False
        client = self.client
        output = bytearray()
        while client._queue:
            message, request = client._queue.popleft()
            if request is not None:
                if request.abandoned:
                    request.set_exception(ConnectionLoss())
                    continue
                if request.session_id != self._identity[0]:
                    request.set_exception(SessionExpiredError())
                    continue
            if message.type == Auth.type:
                xid = AUTH_XID
            else:
                xid = self._xid = (self._xid % 2147483647) + 1
            body = message.serialize()
            output += int_struct.pack(len(body) + 8)
            output += int_struct.pack(xid)
            output += int_struct.pack(message.type)
            output += body
            client._pending.append((message, request, xid))
            if len(output) > MAX_WRITE:
                self._write(bytes(output), connect_timeout)
                output.clear()
        if output:
            self._write(bytes(output), connect_timeout)

    def zk_loop(self) -> None:
        """Run the thread, and report its end however it comes."""
        error: BaseException | None = None
        try:
            super().zk_loop()
        except InterruptedError:
            pass  # stopped while waiting to reconnect
        except Exception as unexpected:
            error = unexpected
        self._inbox.push(self._listener.connection_ended, self, error)


def _has_lost_history(host: str, port: int, last_zxid: int) -> bool:
    """Return whether this server leads an ensemble with a last transaction before *last_zxid*."""
    try:
        with socket.create_connection((host, port), 1.0) as asked:
            asked.settimeout(1.0)
            asked.sendall(b"srvr")
            answer = b""
            while part := asked.recv(65536):
                answer += part
    except OSError:
        return False
    text = answer.decode(errors="replace")
    zxid = re.search(r"^Zxid: 0x([0-9a-f]{1,16})$", text, re.MULTILINE)
    leads = re.search(r"^Mode: (leader|standalone)$", text, re.MULTILINE)
    return zxid is not None and leads is not None and int(zxid[1], 16) < last_zxid
