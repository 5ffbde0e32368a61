"""Session-bound requests: a view of a client with requests that are executed in one session or not at all."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.zk.client_requests import ClientRequests
from kbroker.zk.interface import Children, Node, Session, SessionEvent, Watch
from kbroker.zk.session_state import SessionState


class SessionBoundClient(ClientRequests):
    """Requests that fail with `SessionExpired` once another session is current."""

    def __init__(self, state: SessionState, session: Session) -> None:
        super().__init__(state, session.id)

    @property
    def session(self) -> Session | None:
        """The session it is bound to; None once another session is current."""
        current = self._state.session
        return current if current is not None and current.id == self._session_id else None

    @property
    def connected(self) -> bool:
        """Whether requests can be sent now."""
        return self._state.connected and self.session is not None

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        """Call *callback* on every session event, also of later sessions."""
        self._state.on_session(callback)

    def in_session(self, session: Session) -> SessionBoundClient:
        """Bind to another session."""
        return SessionBoundClient(self._state, session)

    def watch_data(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Watch the content of a znode, also in later sessions."""
        return self._state.watch_data(path, callback)

    def watch_children(self, path: str, callback: Callable[[Children | None], None]) -> Watch:
        """Watch the children of a znode, also in later sessions."""
        return self._state.watch_children(path, callback)
