"""The broker's ZooKeeper client (it implements `kbroker.zk.interface.ZooKeeper`), and its views bound to one session.

`ZooKeeperClient` keeps up a session (`session_state.py`) and sends each request in the current one. A
`SessionBoundClient` is a view of it: each request is executed in the session of the view or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo.protocol import serialization as wire
from twisted.internet.defer import Deferred, FirstError, fail, gatherResults, succeed
from twisted.python.failure import Failure

from kbroker.common.reactor import Reactor
from kbroker.zk import errors, requests
from kbroker.zk.interface import (
    ANY_VERSION,
    Children,
    Create,
    Delete,
    Node,
    Operation,
    Session,
    SessionEvent,
    SetData,
    Stat,
    Watch,
)
from kbroker.zk.session_state import SessionState


class ClientRequests:
    """The requests of a client; those with a *session_id* are executed in that session or not at all."""

    def __init__(self, state: SessionState, session_id: int | None) -> None:
        self._state = state
        self._session_id = session_id

    def get(self, path: str) -> Deferred[Node]:
        """Read a znode."""
        return self._send(wire.GetData(self._state.chroot + path, None), (path,), requests.to_node)

    def get_all(self, paths: Sequence[str]) -> Deferred[list[Node | None]]:
        """Read many znodes by one request; None for each that does not exist."""
        if not paths:
            return succeed([])
        if self._state.reads_one_by_one:
            return self._get_each(paths)
        message = requests.ReadMany([self._state.chroot + path for path in paths])
        read: Deferred[list[Node | None]] = self._send(message, paths, requests.to_nodes)
        return read.addErrback(self._too_old, paths[0])

    def _too_old(self, failure: Failure, path: str) -> Failure:
        """Read one by one from now on. The server closes the connection after such an answer, so this read is lost."""
        if not failure.check(errors.Unimplemented):
            return failure
        self._state.reads_one_by_one = True
        return Failure(errors.ConnectionLoss(path, "the server is older than 3.6"))

    def _get_each(self, paths: Sequence[str]) -> Deferred[list[Node | None]]:
        def missing(failure: Failure) -> None:
            failure.trap(errors.NoNode)

        reads = [self.get(path).addErrback(missing) for path in paths]
        return gatherResults(reads, consumeErrors=True).addErrback(_first_error)

    def exists(self, path: str) -> Deferred[Stat | None]:
        """Read the record of a znode."""
        message = wire.Exists(self._state.chroot + path, None)
        return self._send(message, (path,), requests.to_stat_or_none)

    def children(self, path: str) -> Deferred[Children]:
        """List the children."""
        message = wire.GetChildren2(requests.inside(self._state.chroot, path), None)
        return self._send(message, (path,), requests.to_children)

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
        operation = Create(path, data, ephemeral, sequential)
        created: Deferred[str] = self._write(operation, self._inside_path)
        if make_parents and path.count("/") > 1:
            created.addErrback(self._create_after_parents, operation)
        return created

    def _create_after_parents(self, failure: Failure, operation: Create) -> Deferred[str]:
        if not isinstance(failure.value, errors.NoNode):
            return fail(failure)
        parent = operation.path.rpartition("/")[0]

        def there(failure: Failure) -> str | Failure:
            return parent if isinstance(failure.value, errors.NodeExists) else failure

        made = self.create(parent, make_parents=True).addErrback(there)
        return made.addCallback(lambda _: self._write(operation, self._inside_path))

    def set(self, path: str, data: bytes, version: int) -> Deferred[Stat]:
        """Replace the content if the version matches."""
        return self._write(SetData(path, data, version), requests.to_stat)

    def delete(self, path: str, version: int = ANY_VERSION) -> Deferred[None]:
        """Delete a znode if the version matches."""
        return self._write(Delete(path, version), requests.to_none)

    def multi(self, operations: Sequence[Operation]) -> Deferred[list[str | Stat | None]]:
        """Do all operations or none."""
        if not operations:
            return succeed([])
        size = sum(map(requests.check_operation, operations))
        paths = [operation.path for operation in operations]
        if size > requests.MAX_REQUEST:
            return fail(errors.ZnodeTooLarge(paths[0], f"a multi of {size} bytes"))
        chroot = self._state.chroot
        messages = [requests.message_of(operation, chroot) for operation in operations]
        return self._send(wire.Transaction(messages), paths, self._state.results)

    def sync(self, path: str) -> Deferred[None]:
        """Have the connected server catch up with the ensemble."""
        message = wire.Sync(requests.inside(self._state.chroot, path))
        return self._send(message, (path,), requests.to_none)

    def _inside_path(self, path: str) -> str:
        return path.removeprefix(self._state.chroot)

    def _write(self, operation: Operation, convert: Callable[[Any], Any]) -> Deferred[Any]:
        size = requests.check_operation(operation)
        if size > requests.MAX_REQUEST:
            return fail(errors.ZnodeTooLarge(operation.path, f"{size} bytes"))
        message = requests.message_of(operation, self._state.chroot)
        return self._send(message, (operation.path,), convert)

    def _send(
        self, message: Any, paths: Sequence[str], convert: Callable[[Any], Any]
    ) -> Deferred[Any]:
        return self._state.send(message, paths, convert, self._session_id)


def _first_error(failure: Failure) -> Failure:
    """Unpack the failure of `gatherResults`."""
    error = failure.value
    return error.subFailure if isinstance(error, FirstError) else failure


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


class ZooKeeperClient(SessionState, ClientRequests):
    """Implements `kbroker.zk.interface.ZooKeeper`; its requests belong to the session of the moment."""

    def __init__(self, reactor: Reactor, connect: str, **options: Any) -> None:
        SessionState.__init__(self, reactor, connect, **options)
        ClientRequests.__init__(self, self, None)

    def in_session(self, session: Session) -> SessionBoundClient:
        """Return this client with every request bound to *session*."""
        return SessionBoundClient(self, session)
