"""Expiring the previous session: a crash of the broker costs no session timeout.

A broker killed with `kill -9` leaves its ephemeral znodes (its registration, perhaps /controller) until its session
expires, 18 s by default. Until then the cluster counts it as live, and its next start would have to wait. So a broker
keeps the id and password of its session in a file of its log directory. The process that holds the lock of that
directory is the next run of the same broker. So it can only ever end the session of its own previous run.

The password is valid for that one session only. The file is readable by its owner alone.
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
from kbroker.zk.client import ZooKeeperClient
from kbroker.zk.connection import Connection, ConnectionState, Inbox
from kbroker.zk.session_state import quiet_logger

FILE = "zookeeper-session"

log = Logger()


class PreviousSession:
    """The file that holds the id and password of the broker's session."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE

    def remember(self, client: ZooKeeperClient) -> None:
        """Write the current session to the file. A failure only makes the next start after a crash slower."""
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
            log.warn("cannot store the ZooKeeper session in {path}: {why}", path=new, why=error)

    def forget(self) -> None:
        """Remove the file: the session was closed."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def expire(self, reactor: Reactor, hosts: str, timeout: float) -> Deferred[None]:
        """Close the stored session, if there is one, within *timeout* seconds; never fails."""
        ended: Deferred[None] = Deferred()
        credentials = self._read(hosts)
        if credentials is None:
            ended.callback(None)
        else:
            _Expiry(reactor, hosts, credentials, timeout, ended).start()
        return ended

    def _read(self, hosts: str) -> tuple[int, bytes] | None:
        try:
            value: Any = json.loads(self._path.read_text(encoding="ascii"))
            if set(hosts.split(",")).isdisjoint(value["hosts"].split(",")):
                return None  # another ensemble: this session id means nothing there
            return int(value["id"]), bytes.fromhex(value["password"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


class _Expiry:
    """Resumes a session and closes it. In place of an expired one ZooKeeper opens a new session, closed as well."""

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
        """Close the session as soon as it is established."""
        if state.connected:
            connection.end_session()

    def connection_ended(self, connection: Connection, error: BaseException | None) -> None:
        """Finish: the session is closed."""
        connection.close()
        self._finish()

    def _finish(self) -> None:
        if self._timer.active():
            self._timer.cancel()
            self._connection.client._stopped.set()
        if not self._ended.called:
            self._ended.callback(None)
