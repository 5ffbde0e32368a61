"""The ZooKeeper client of a broker, as a Protocol: kazoo implements it, and a simulation in tests.

Theory of operation
===================
All calls are made, and all Deferreds fire, on the reactor's thread. Requests are pipelined: they
are sent, and take effect, in the order they were made; nothing waits for an earlier answer.
The client retries nothing by itself: without a connection every request fails at once with
`Disconnected`; a request with a lost answer fails with `ConnectionLoss`.

Every write belongs to a session: the one current when the call was made or, through
`in_session`, the one of its decision. It is never executed in a later session: it fails with
`SessionExpired` instead.

The connected server answers reads and may be behind; `sync` first where that
matters (a new controller, a new coordinator).

The watches `watch_data` and `watch_children` stand: they hide ZooKeeper's one-shot watches. They are
armed and read again after every change and every reconnect, and call back on every *state* that they
have not reported yet. Several quick changes may be reported as one.

In: calls   Out: Deferreds, watch callbacks, session events   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from twisted.internet.defer import Deferred

ANY_VERSION = -1
"""A version condition that always holds."""


class Stat(NamedTuple):
    """ZooKeeper's own record of a znode; fields in the order of its wire format. Times in ms."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class Node(NamedTuple):
    """The content of a znode and its record."""

    data: bytes
    stat: Stat


class Children(NamedTuple):
    """The sorted names of a znode's children, and the record of the znode itself."""

    names: list[str]
    stat: Stat


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode; in a `multi` its result is the path created (a str)."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace the content if the version matches; in a `multi` its result is the new Stat."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a znode without children; in a `multi` its result is None."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Require that a znode exists with this version, else the whole `multi` fails."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


@dataclass(frozen=True, slots=True)
class Session:
    """One ZooKeeper session of ours.

    *timeout* is the negotiated one, in seconds: the server may have changed the requested one.
    """

    id: int
    timeout: float


@dataclass(frozen=True, slots=True)
class Connected:
    """Connected, in a new session (*is_new*) or again in the same one after a break.

    When it arrives every standing watch is being re-read already.
    """

    session: Session
    is_new: bool


@dataclass(frozen=True, slots=True)
class Suspended:
    """The connection is lost; the session may survive if it returns in time."""

    session: Session


@dataclass(frozen=True, slots=True)
class Lapsed:
    """Suspended for the whole session timeout: by the broker's own clock the session may have expired.

    ZooKeeper cannot notify a client without a connection. A component that acts in this session (controller,
    coordinator) must stop now. After a reconnect the server decides: `Connected(is_new=False)` if the session has
    survived, else `Expired`.
    """

    session: Session


@dataclass(frozen=True, slots=True)
class Expired:
    """The server has expired the session: its ephemeral znodes are gone."""

    session: Session


SessionEvent = Connected | Suspended | Lapsed | Expired


class Watch(Protocol):
    """A standing watch."""

    def cancel(self) -> None:
        """Call back no more; idempotent."""


class ZooKeeper(Protocol):
    """A ZooKeeper client. Paths are absolute inside the chroot. Errors: `kbroker.zk.errors`."""

    @property
    def session(self) -> Session | None:
        """The session while connected or suspended within its time; None otherwise."""

    @property
    def connected(self) -> bool:
        """Whether requests can be sent now."""

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        """Call *callback* on every session event, from now on, in the order of registration."""

    def in_session(self, session: Session) -> ZooKeeper:
        """Return this client with every request bound to *session*.

        Once another session is current its requests fail with `SessionExpired`.
        """

    def get(self, path: str) -> Deferred[Node]:
        """Read a znode, or fail with NoNode."""

    def get_all(self, paths: Sequence[str]) -> Deferred[list[Node | None]]:
        """Read some hundred znodes by one request; None for each that does not exist.

        Not a consistent snapshot: other clients may write between two of them.
        """

    def exists(self, path: str) -> Deferred[Stat | None]:
        """Read the record of a znode; None if there is none."""

    def children(self, path: str) -> Deferred[Children]:
        """List the children, or fail with NoNode."""

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> Deferred[str]:
        """Create a znode and answer its path. NodeExists, NoNode (parent missing).

        With *make_parents* missing parents are created empty and persistent.
        """

    def set(self, path: str, data: bytes, version: int) -> Deferred[Stat]:
        """Replace the content if the version matches. NoNode, BadVersion."""

    def delete(self, path: str, version: int = ANY_VERSION) -> Deferred[None]:
        """Delete a znode if the version matches. NoNode, BadVersion, NotEmpty."""

    def multi(self, operations: Sequence[Operation]) -> Deferred[list[str | Stat | None]]:
        """Do all operations or none, and answer one result for each.

        The error is that of the first operation that failed, with its *path* and *index*.
        """

    def sync(self, path: str) -> Deferred[None]:
        """Have the connected server catch up with the ensemble; later reads return all committed writes."""

    def watch_data(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Call back with the znode as it is now and after changes; None while there is none."""

    def watch_children(self, path: str, callback: Callable[[Children | None], None]) -> Watch:
        """Call back with the children as they are now and after changes; None: no such znode.

        Compares the znode's pzxid, so a child deleted and made again between two reads counts
        as a change although the names are equal.
        """
