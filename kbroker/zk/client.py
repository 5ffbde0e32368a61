"""The broker's ZooKeeper client."""

from __future__ import annotations

from typing import Any

from kbroker.common.reactor import Reactor
from kbroker.zk.client_requests import ClientRequests
from kbroker.zk.interface import Session
from kbroker.zk.session_bound import SessionBoundClient
from kbroker.zk.session_state import SessionState


class ZooKeeperClient(SessionState, ClientRequests):
    """Implements `kbroker.zk.interface.ZooKeeper`; its requests belong to the session of the moment."""

    def __init__(self, reactor: Reactor, connect: str, **options: Any) -> None:
        SessionState.__init__(self, reactor, connect, **options)
        ClientRequests.__init__(self, self, None)

    def in_session(self, session: Session) -> SessionBoundClient:
        """Return this client with every request bound to *session*."""
        return SessionBoundClient(self, session)
