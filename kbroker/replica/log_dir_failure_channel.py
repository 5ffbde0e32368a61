"""LogDirFailureChannel: reports failed log directories to the controller, by znodes below /log_dir_event_notification.

The controller then sends LeaderAndIsr for all replicas of this broker, and the responses name the offline ones
(KIP-112). No other signal exists while the broker is alive. When the last directory fails the broker stops, and the end
of its session is the signal. A failed write is repeated every second until ZooKeeper has the znode.

Owner: the reactor's thread
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.zk import znodes
from kbroker.zk.errors import ZooKeeperError
from kbroker.zk.interface import ZooKeeper

RETRY_SECONDS: Final = 1.0


class LogDirFailureChannel:
    """The failures of one broker."""

    def __init__(self, reactor: Any, zookeeper: ZooKeeper, broker_id: int) -> None:
        self._reactor = reactor
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._unreported = 0
        """Failures since the last znode that is known to exist."""
        self._writing = False
        self._stopped = False

    def report(self) -> None:
        """Report that a directory failed."""
        self._unreported += 1
        self._write()

    def stop(self) -> None:
        """Report nothing more."""
        self._stopped = True

    def _write(self) -> None:
        if self._writing or self._stopped or not self._unreported:
            return
        self._writing, writing = True, self._unreported
        creating = self._zookeeper.create(
            znodes.LOG_DIR_EVENT_PREFIX,
            znodes.encode_log_dir_event(self._broker_id),
            sequential=True,
        )
        creating.addCallbacks(lambda _: self._reported(writing), self._not_reported)

    def _reported(self, count: int) -> None:
        self._writing = False
        self._unreported -= (
            count  # those that failed meanwhile may have come after the controller looked
        )
        self._write()

    def _not_reported(self, failure: Any) -> None:
        failure.trap(ZooKeeperError)
        self._writing = False
        if not self._stopped:
            self._reactor.callLater(RETRY_SECONDS, self._write)
