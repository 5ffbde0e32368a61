"""A view of a client whose requests belong to one session (rule K4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from kbroker.zk.interface import (
    ANY_VERSION,
    Children,
    Node,
    Operation,
    Session,
    SessionEvent,
    Stat,
    Watch,
)

if TYPE_CHECKING:
    from kbroker.zk.session import ZooKeeperSession


class BoundSession:
    """A client whose requests are executed in one session or not at all."""

    def __init__(self, client: ZooKeeperSession, session: Session) -> None:
        self._client = client
        self._bound = session

    @property
    def session(self) -> Session | None:
        """The session it is bound to, if that is still the current one."""
        current = self._client.session
        return current if current is not None and current.id == self._bound.id else None

    @property
    def connected(self) -> bool:
        """Whether requests can be sent now."""
        return self._client.connected and self.session is not None

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        """Call *callback* on every session event, also of later sessions."""
        self._client.on_session(callback)

    def in_session(self, session: Session) -> BoundSession:
        """Bind to another session."""
        return BoundSession(self._client, session)

    def get(self, path: str) -> Deferred[Node]:
        """Read a znode."""
        return self._client.get(path, tag=self._bound.id)

    def get_all(self, paths: Sequence[str]) -> Deferred[list[Node | None]]:
        """Read many znodes by one request."""
        return self._client.get_all(paths, tag=self._bound.id)

    def exists(self, path: str) -> Deferred[Stat | None]:
        """Read the record of a znode."""
        return self._client.exists(path, tag=self._bound.id)

    def children(self, path: str) -> Deferred[Children]:
        """List the children."""
        return self._client.children(path, tag=self._bound.id)

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> Deferred[str]:
        """Create a znode."""
        return self._client.create(
            path,
            data,
            ephemeral=ephemeral,
            sequential=sequential,
            make_parents=make_parents,
            tag=self._bound.id,
        )

    def set(self, path: str, data: bytes, version: int) -> Deferred[Stat]:
        """Replace the content if the version matches."""
        return self._client.set(path, data, version, tag=self._bound.id)

    def delete(self, path: str, version: int = ANY_VERSION) -> Deferred[None]:
        """Delete a znode if the version matches."""
        return self._client.delete(path, version, tag=self._bound.id)

    def multi(self, operations: Sequence[Operation]) -> Deferred[list[str | Stat | None]]:
        """Do all operations or none."""
        return self._client.multi(operations, tag=self._bound.id)

    def sync(self, path: str) -> Deferred[None]:
        """Let our server catch up with the ensemble."""
        return self._client.sync(path, tag=self._bound.id)

    def watch_data(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Watch the content of a znode, also in later sessions."""
        return self._client.watch_data(path, callback)

    def watch_children(self, path: str, callback: Callable[[Children | None], None]) -> Watch:
        """Watch the children of a znode, also in later sessions."""
        return self._client.watch_children(path, callback)
