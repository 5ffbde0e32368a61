"""Our ZooKeeper client: every request of the `ZooKeeper` interface, on top of `SessionLife`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo.protocol import serialization as wire
from twisted.internet.defer import Deferred, FirstError, fail, gatherResults, succeed
from twisted.python.failure import Failure

from kbroker.common.reactor import Reactor
from kbroker.zk import errors, requests
from kbroker.zk.bound import BoundSession
from kbroker.zk.interface import (
    ANY_VERSION,
    Children,
    Create,
    Delete,
    Node,
    Operation,
    Session,
    SetData,
    Stat,
    Watch,
)
from kbroker.zk.life import SessionLife, parse_connect, quiet_logger
from kbroker.zk.watches import ChildrenWatch, DataWatch, StandingWatch


class ZooKeeperSession(SessionLife):
    """A ZooKeeper client that implements `kbroker.zk.interface.ZooKeeper`."""

    _reads_one_by_one = False
    """Whether a server turned out to be older than 3.6, which cannot be asked for many znodes at once."""

    def in_session(self, session: Session) -> BoundSession:
        """Return this client with every request bound to *session*."""
        return BoundSession(self, session)

    def get(self, path: str, *, tag: int | None = None) -> Deferred[Node]:
        """Read a znode."""
        return self._send(wire.GetData(self.chroot + path, None), (path,), requests.to_node, tag)

    def get_all(
        self, paths: Sequence[str], *, tag: int | None = None
    ) -> Deferred[list[Node | None]]:
        """Read many znodes by one request; None for each that does not exist."""
        if not paths:
            return succeed([])
        if self._reads_one_by_one:
            return self._get_each(paths, tag)
        message = requests.ReadMany([self.chroot + path for path in paths])
        read: Deferred[list[Node | None]] = self._send(message, paths, requests.to_nodes, tag)
        return read.addErrback(self._too_old, paths[0])

    def _too_old(self, failure: Failure, path: str) -> Failure:
        """Ask otherwise from now on. The server hangs up after such an answer, so this read is lost."""
        if not failure.check(errors.Unimplemented):
            return failure
        self._reads_one_by_one = True
        return Failure(errors.ConnectionLoss(path, "the server is older than 3.6"))

    def _get_each(self, paths: Sequence[str], tag: int | None) -> Deferred[list[Node | None]]:
        def missing(failure: Failure) -> None:
            failure.trap(errors.NoNode)

        reads = [self.get(path, tag=tag).addErrback(missing) for path in paths]
        return gatherResults(reads, consumeErrors=True).addErrback(_first_error)

    def exists(self, path: str, *, tag: int | None = None) -> Deferred[Stat | None]:
        """Read the record of a znode."""
        message = wire.Exists(self.chroot + path, None)
        return self._send(message, (path,), requests.to_stat_or_none, tag)

    def children(self, path: str, *, tag: int | None = None) -> Deferred[Children]:
        """List the children."""
        message = wire.GetChildren2(_inside(self.chroot, path), None)
        return self._send(message, (path,), requests.to_children, tag)

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
        tag: int | None = None,
    ) -> Deferred[str]:
        """Create a znode."""
        operation = Create(path, data, ephemeral, sequential)
        created: Deferred[str] = self._write(operation, self._inside_path, tag)
        if make_parents and path.count("/") > 1:
            created.addErrback(self._create_after_parents, operation, tag)
        return created

    def _create_after_parents(
        self, failure: Failure, operation: Create, tag: int | None
    ) -> Deferred[str]:
        if not isinstance(failure.value, errors.NoNode):
            return fail(failure)
        parent = operation.path.rpartition("/")[0]

        def there(failure: Failure) -> str | Failure:
            return parent if isinstance(failure.value, errors.NodeExists) else failure

        made = self.create(parent, make_parents=True, tag=tag).addErrback(there)
        return made.addCallback(lambda _: self._write(operation, self._inside_path, tag))

    def set(
        self, path: str, data: bytes, version: int, *, tag: int | None = None
    ) -> Deferred[Stat]:
        """Replace the content if the version matches."""
        return self._write(SetData(path, data, version), requests.to_stat, tag)

    def delete(
        self, path: str, version: int = ANY_VERSION, *, tag: int | None = None
    ) -> Deferred[None]:
        """Delete a znode if the version matches."""
        return self._write(Delete(path, version), requests.to_none, tag)

    def multi(
        self, operations: Sequence[Operation], *, tag: int | None = None
    ) -> Deferred[list[str | Stat | None]]:
        """Do all operations or none."""
        if not operations:
            return succeed([])
        size = sum(map(requests.check_operation, operations))
        paths = [operation.path for operation in operations]
        if size > requests.MAX_REQUEST:
            return fail(errors.ZnodeTooLarge(paths[0], f"a multi of {size} bytes"))
        chroot = self.chroot
        messages = [requests.message_of(operation, chroot) for operation in operations]
        return self._send(wire.Transaction(messages), paths, self._results, tag)

    def sync(self, path: str, *, tag: int | None = None) -> Deferred[None]:
        """Let our server catch up with the ensemble."""
        message = wire.Sync(_inside(self.chroot, path))
        return self._send(message, (path,), requests.to_none, tag)

    def watch_data(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Watch the content of a znode."""
        return self._watch(DataWatch(self, self._inbox, path, callback, self._forget_watch))

    def watch_children(self, path: str, callback: Callable[[Children | None], None]) -> Watch:
        """Watch the children of a znode."""
        return self._watch(ChildrenWatch(self, self._inbox, path, callback, self._forget_watch))

    def _watch(self, watch: StandingWatch[Any]) -> Watch:
        self._watches[watch] = None
        if self._connected:
            watch.refresh()
        return watch

    def _forget_watch(self, watch: StandingWatch[Any]) -> None:
        self._watches.pop(watch, None)

    # --- reads with watches, for kbroker.zk.watches ---

    def get_armed(self, path: str, fired: Callable[[Any], None]) -> Deferred[Node]:
        """Read a znode and leave a one-shot watch."""
        return self._send(wire.GetData(self.chroot + path, fired), (path,), requests.to_node)

    def exists_armed(self, path: str, fired: Callable[[Any], None]) -> Deferred[Stat | None]:
        """Read a znode's record and leave a one-shot watch."""
        message = wire.Exists(self.chroot + path, fired)
        return self._send(message, (path,), requests.to_stat_or_none)

    def children_armed(self, path: str, fired: Callable[[Any], None]) -> Deferred[Children]:
        """List children and leave a one-shot watch."""
        message = wire.GetChildren2(_inside(self.chroot, path), fired)
        return self._send(message, (path,), requests.to_children)

    # --- sending ---

    def _inside_path(self, path: str) -> str:
        return path.removeprefix(self.chroot)

    def _write(
        self, operation: Operation, convert: Callable[[Any], Any], tag: int | None
    ) -> Deferred[Any]:
        size = requests.check_operation(operation)
        if size > requests.MAX_REQUEST:
            return fail(errors.ZnodeTooLarge(operation.path, f"{size} bytes"))
        message = requests.message_of(operation, self.chroot)
        return self._send(message, (operation.path,), convert, tag)


def _first_error(failure: Failure) -> Failure:
    """Unpack what `gatherResults` failed with."""
    error = failure.value
    return error.subFailure if isinstance(error, FirstError) else failure


def _inside(chroot: str, path: str) -> str:
    """Join chroot and path; the root of the chroot is the chroot itself."""
    return chroot if chroot and path == "/" else chroot + path


__all__ = ["Reactor", "ZooKeeperSession", "parse_connect", "quiet_logger"]
