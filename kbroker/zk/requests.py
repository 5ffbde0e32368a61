"""One request to ZooKeeper: operations to kazoo's messages, and answers to this package's types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kazoo import exceptions as kazoo_errors
from kazoo.protocol import serialization as wire
from kazoo.security import OPEN_ACL_UNSAFE
from twisted.internet.defer import Deferred

from kbroker.zk import errors
from kbroker.zk.connection import Inbox
from kbroker.zk.interface import Check, Children, Create, Delete, Node, Operation, SetData, Stat

MAX_REQUEST = 1_000_000
"""Bytes; ZooKeeper's `jute.maxbuffer` is 1,048,575 with everything around them."""

_EPHEMERAL, _SEQUENTIAL = 1, 2

_KINDS: dict[type[Exception], type[errors.ZooKeeperError]] = {
    kazoo_errors.NoNodeError: errors.NoNode,
    kazoo_errors.NodeExistsError: errors.NodeExists,
    kazoo_errors.BadVersionError: errors.BadVersion,
    kazoo_errors.NotEmptyError: errors.NotEmpty,
    kazoo_errors.NoChildrenForEphemeralsError: errors.NoChildrenForEphemerals,
    kazoo_errors.NoAuthError: errors.AccessDenied,
    kazoo_errors.AuthFailedError: errors.AccessDenied,
    kazoo_errors.UnimplementedError: errors.Unimplemented,
    kazoo_errors.ConnectionLoss: errors.ConnectionLoss,
    kazoo_errors.ConnectionClosedError: errors.ConnectionLoss,
    kazoo_errors.SessionExpiredError: errors.SessionExpired,
    # The session went to another server while this one held the request: it was not executed.
    kazoo_errors.SessionMovedError: errors.Disconnected,
}


def our_error(error: Exception, path: str, index: int | None = None) -> errors.ZooKeeperError:
    """Translate one of kazoo's errors."""
    kind = _KINDS.get(type(error))
    if kind is not None:
        return kind(path, index=index)
    return errors.RequestRefused(path, f"{type(error).__name__} {error}".strip(), index)


@dataclass(frozen=True, slots=True)
class ReadMany:
    """Read many znodes by one request (ZooKeeper's multiRead, since 3.6), which kazoo does not have.

    As a multi: a header and a request for each znode. Each is answered by itself: with what it holds, or an error.
    """

    paths: Sequence[str]

    type: ClassVar[int] = 22
    watcher: ClassVar[None] = None

    def serialize(self) -> bytes:
        """Return the request's body."""
        header = wire.MultiHeader(wire.GetData.type, False, -1).serialize()
        body = bytearray()
        for path in self.paths:
            body += header
            body += wire.GetData(path, None).serialize()
        body += wire.MultiHeader(-1, True, -1).serialize()
        return bytes(body)

    @staticmethod
    def deserialize(body: bytes, offset: int) -> tuple[Any, ...]:
        """Return a (data, stat) or one of kazoo's errors for each. Called on the connection thread."""
        found: list[Any] = []
        while True:
            header, offset = wire.MultiHeader.deserialize(body, offset)
            if header.done:
                return tuple(found)
            if header.type == wire.GetData.type:
                data, offset = wire.read_buffer(body, offset)
                found.append((data, wire.stat_struct.unpack_from(body, offset)))
                offset += wire.stat_struct.size
            else:
                (code,) = wire.int_struct.unpack_from(body, offset)
                offset += wire.int_struct.size
                found.append(kazoo_errors.EXCEPTIONS[code]())


class PendingRequest:
    """A request in flight; its Deferred fires once, on the reactor's thread."""

    __slots__ = (
        "_convert",
        "_done",
        "_inbox",
        "_outstanding",
        "_paths",
        "abandoned",
        "deferred",
        "session_id",
    )

    def __init__(
        self,
        session_id: int,
        paths: Sequence[str],
        convert: Callable[[Any], Any],
        inbox: Inbox,
        outstanding: dict[PendingRequest, None],
    ) -> None:
        self.session_id = session_id
        self.abandoned = False
        self.deferred: Deferred[Any] = Deferred(self._cancelled)
        self._paths = paths
        self._convert = convert
        self._done = False
        self._inbox = inbox
        self._outstanding = outstanding
        outstanding[self] = None

    def set(self, value: Any) -> None:
        """Take the answer. Called on the connection thread."""
        self._inbox.push(self._finish, value)

    def set_exception(self, error: Exception) -> None:
        """Take the error. Called on the connection thread."""
        self._inbox.push(self._finish, error)

    def fail(self, kind: type[errors.ZooKeeperError]) -> None:
        """Give up waiting."""
        self.abandoned = True
        self._finish(kind(self._paths[0] if self._paths else ""))

    def _cancelled(self, _deferred: Deferred[Any]) -> None:
        self.abandoned = True
        self._done = True
        self._outstanding.pop(self, None)

    def _finish(self, value: Any) -> None:
        if self._done:
            return
        self._done = True
        self._outstanding.pop(self, None)
        if isinstance(value, errors.ZooKeeperError):
            self.deferred.errback(value)
            return
        if isinstance(value, Exception):
            self.deferred.errback(our_error(value, self._paths[0] if self._paths else ""))
            return
        if isinstance(value, list) and (failed := self._failure_in(value)) is not None:
            self.deferred.errback(failed)
            return
        try:
            result = self._convert(value)
        except errors.ZooKeeperError as error:
            self.deferred.errback(error)
            return
        self.deferred.callback(result)

    def _failure_in(self, results: list[Any]) -> errors.ZooKeeperError | None:
        """Find the operation that made a multi fail: the errors of the others only report the rollback."""
        failures = [(i, r) for i, r in enumerate(results) if isinstance(r, Exception)]
        if not failures:
            return None
        undone = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
        index, cause = next(((i, r) for i, r in failures if not isinstance(r, undone)), failures[0])
        return our_error(cause, self._paths[index] if index < len(self._paths) else "", index)


def message_of(operation: Operation, chroot: str) -> Any:
    """Make kazoo's message of an operation."""
    path = chroot + operation.path
    if isinstance(operation, SetData):
        return wire.SetData(path, operation.data, operation.version)
    if isinstance(operation, Create):
        flags = _EPHEMERAL * operation.ephemeral | _SEQUENTIAL * operation.sequential
        return wire.Create(path, operation.data, OPEN_ACL_UNSAFE, flags)
    if isinstance(operation, Delete):
        return wire.Delete(path, operation.version)
    return wire.CheckVersion(path, operation.version)


def check_operation(operation: Operation) -> int:
    """Return the size of *operation* in bytes. UnsafeName for a path that makes ZooKeeper close the connection."""
    path = operation.path
    if (
        not path.startswith("/")
        or "\0" in path
        or "//" in path
        or (path.endswith("/") and path != "/")
    ):
        raise errors.UnsafeName(f"not a path of a znode: {path!r:.200}")
    size = 3 * len(path) if not path.isascii() else len(path)
    if not isinstance(operation, (Delete, Check)):
        size += len(operation.data)
    return size + 64


def to_node(answer: tuple[bytes | None, tuple[int, ...]]) -> Node:
    """Convert the answer of a read; a null znode is an empty one."""
    data, stat = answer
    return Node(data or b"", Stat(*stat))


def to_nodes(answer: tuple[Any, ...]) -> list[Node | None]:
    """Convert the answer of a `ReadMany`; None for a znode that does not exist. Raises any other error."""
    nodes: list[Node | None] = []
    for each in answer:
        if isinstance(each, kazoo_errors.NoNodeError):
            nodes.append(None)
        elif isinstance(each, Exception):
            raise our_error(each, "", len(nodes))
        else:
            nodes.append(to_node(each))
    return nodes


def to_children(answer: tuple[list[str], tuple[int, ...]]) -> Children:
    """Convert the answer of a listing."""
    names, stat = answer
    return Children(sorted(names), Stat(*stat))


def to_stat(answer: tuple[int, ...]) -> Stat:
    """Convert a record."""
    return Stat(*answer)


def to_stat_or_none(answer: tuple[int, ...] | None) -> Stat | None:
    """Convert the record of a znode that may not exist."""
    return None if answer is None else Stat(*answer)


def to_none(_answer: Any) -> None:
    """Convert an empty answer."""


def inside(chroot: str, path: str) -> str:
    """Join chroot and path; the root of the chroot is the chroot itself."""
    return chroot if chroot and path == "/" else chroot + path


def results_without(chroot: str) -> Callable[[list[Any]], list[str | Stat | None]]:
    """Make the converter of a multi's results."""

    def convert(results: list[Any]) -> list[str | Stat | None]:
        return [
            r.removeprefix(chroot)
            if isinstance(r, str)
            else Stat(*r)
            if isinstance(r, tuple)
            else None
            for r in results
        ]

    return convert
