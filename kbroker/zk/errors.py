"""The errors of ZooKeeper requests.

kazoo's exceptions do not leave `kbroker.zk`; its callers get these, and the simulated ZooKeeper raises them too. The
one distinction that matters for safety is the outcome of a write:

- `NoNode`, `NodeExists`, `BadVersion`, `NotEmpty`, ...: ZooKeeper refused, nothing was written;
- `Disconnected`, `SessionExpired`: it was never sent (see the classes), nothing was written;
- `ConnectionLoss` itself: it was sent and no answer came. It may or may not have been applied,
  and only a read decides (compare `ephemeral_owner`, or value and version).
"""

from __future__ import annotations


class ZooKeeperError(Exception):
    """A request that failed; *path* is its znode, or empty.

    *index* is the position of the operation that failed inside a `multi`, else None.
    """

    def __init__(self, path: str = "", reason: str = "", index: int | None = None) -> None:
        self.path = path
        self.reason = reason
        self.index = index
        super().__init__(path, reason, index)

    def __str__(self) -> str:
        where = f" {self.path}" if self.path else ""
        nth = f" (operation {self.index} of a multi)" if self.index is not None else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{type(self).__name__}{where}{nth}{why}"


class NoNode(ZooKeeperError):
    """The znode, or the parent of the one to create, does not exist."""


class NodeExists(ZooKeeperError):
    """The znode to create is there already."""


class BadVersion(ZooKeeperError):
    """A conditional write or check met another version: another client wrote in between."""


class NotEmpty(ZooKeeperError):
    """The znode to delete has children."""


class NoChildrenForEphemerals(ZooKeeperError):
    """An ephemeral znode cannot have children."""


class AccessDenied(ZooKeeperError):
    """The znode's ACL forbids it, or ZooKeeper refused the credentials."""


class ZnodeTooLarge(ZooKeeperError):
    """More bytes than ZooKeeper accepts (`jute.maxbuffer`, 1 MiB): refused before sending.

    ZooKeeper answers such a request by closing the connection, again on every retry.
    """


class RequestRefused(ZooKeeperError):
    """ZooKeeper refused for a reason without a class of its own; *reason* has its text."""


class Unimplemented(ZooKeeperError):
    """The server's version does not have this kind of request; it closes the connection."""


class ConnectionLoss(ZooKeeperError):
    """The connection broke before the answer: the outcome of a write is UNKNOWN."""


class Disconnected(ConnectionLoss):
    """There is no connection now: the request was not sent, and a write was not done.

    Retriable: wait for the session's `Connected` event, re-read, decide again.
    """


class SessionExpired(ZooKeeperError):
    """The session in which this was decided is over; the request was not executed.

    Our ephemeral znodes are gone or going. Decisions of the old session must be made again.
    """


class CannotConnect(ZooKeeperError):
    """No ZooKeeper server answered within `zookeeper.connection.timeout.ms`."""


class PoisonZnode(ZooKeeperError):
    """A znode with invalid content: wrong JSON, missing or ill-typed field (S25).

    The reader logs it once, names the path, and goes on without that znode.
    """


class UnsafeName(ValueError):
    """A topic or another name that must not become part of a path."""
