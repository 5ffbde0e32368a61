"""Ending the ZooKeeper session of our own former self, so that a crash costs no session timeout.

A broker killed with `kill -9` leaves its ephemeral znodes (its registration, perhaps /controller)
for as long as its session lives: up to 18 s by default in which the cluster believes in it, and
its next start would have to wait. So a broker keeps the id and password of its session in a file
of its log directory. Whoever holds that directory's lock *is* the next incarnation, and may end
the session of the one before: no other broker's session can ever be hit.

The password lets its holder act within that one session only, and dies with it; the file is
readable by its owner alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.reactor import Reactor
from kbroker.zk.connection import Connection, ConnectionState, Inbox
from kbroker.zk.session import ZooKeeperSession, quiet_logger

FILE = "zookeeper-session"

log = Logger()


class PreviousSession:
    """The file that remembers our session."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE

    def remember(self, client: ZooKeeperSession) -> None:
        """Write down the current session. A failure costs only time after the next crash."""
        credentials = client.credentials
        if credentials is None:
            return
        value = {"id": credentials[0], "password": credentials[1].hex(), "hosts": client.hosts}
        new = self._path.with_suffix(".tmp")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                json.dump(value, file)
            new.replace(self._path)
        except OSError as error:
            log.warn("cannot remember the ZooKeeper session in {path}: {why}", path=new, why=error)

    def forget(self) -> None:
        """Remove the file: the session was ended properly."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def end(self, reactor: Reactor, hosts: str, timeout: float) -> Deferred[None]:
        """End the remembered session, if there is one; bounded, and never fails."""
        ended: Deferred[None] = Deferred()
        credentials = self._read(hosts)
        if credentials is None:
            ended.callback(None)
        else:
            _Undertaker(reactor, hosts, credentials, timeout, ended).start()
        return ended

    def _read(self, hosts: str) -> tuple[int, bytes] | None:
        try:
            value: Any = json.loads(self._path.read_text(encoding="ascii"))
            if set(hosts.split(",")).isdisjoint(value["hosts"].split(",")):
                return None  # another ensemble: our numbers mean nothing there
            return int(value["id"]), bytes.fromhex(value["password"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


class _Undertaker:
    """Resumes a session only to end it; a session that expired already becomes a new, empty one."""

    def __init__(
        self,
        reactor: Reactor,
        hosts: str,
        credentials: tuple[int, bytes],
        timeout: float,
        ended: Deferred[None],
    ) -> None:
        self._ended = ended
        self._timer = reactor.callLater(timeout, self._finish)
        self._connection = Connection(
            hosts,
            session_timeout=max(timeout, 1.0),
            resume=credentials,
            logger=quiet_logger(),
            inbox=Inbox(reactor),
            listener=self,
        )

    def start(self) -> None:
        """Connect."""
        self._connection.open()

    def connection_state(self, connection: Connection, state: ConnectionState) -> None:
        """End whatever session we are in as soon as we are in one."""
        if state.connected:
            connection.end_session()

    def connection_ended(self, connection: Connection, error: BaseException | None) -> None:
        """Be done: the session is gone."""
        connection.close()
        self._finish()

    def _finish(self) -> None:
        if self._timer.active():
            self._timer.cancel()
            self._connection.client._stopped.set()
        if not self._ended.called:
            self._ended.callback(None)
