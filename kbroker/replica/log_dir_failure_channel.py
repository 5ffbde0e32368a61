"""Tells the controller that a log directory of this broker failed, by a znode below /log_dir_event_notification.

The controller then orders all our replicas anew, and learns from the answers which of them are offline (KIP-112).
Nothing else would tell it: the broker lives, and a leader without its log would be nobody's to replace. When the last
directory fails the broker ends, and its session tells. Written again every second until ZooKeeper has it.

Owner: the reactor's thread
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.zk import znodes
from kbroker.zk.errors import ZooKeeperError
from kbroker.zk.interface import ZooKeeper

RETRY_SECONDS: Final = 1.0


class LogDirFailureChannel:
    """The news of one broker."""

    def __init__(self, reactor: Any, zookeeper: ZooKeeper, broker_id: int) -> None:
        self._reactor = reactor
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._untold = 0
        """Failures since the last znode that is known to be there."""
        self._telling = False
        self._stopped = False

    def report(self) -> None:
        """Report that a directory failed."""
        self._untold += 1
        self._write()

    def stop(self) -> None:
        """Write nothing any more."""
        self._stopped = True

    def _write(self) -> None:
        if self._telling or self._stopped or not self._untold:
            return
        self._telling, telling = True, self._untold
        creating = self._zookeeper.create(
            znodes.LOG_DIR_EVENT_PREFIX,
            znodes.encode_log_dir_event(self._broker_id),
            sequential=True,
        )
        creating.addCallbacks(lambda _: self._told(telling), self._not_told)

    def _told(self, count: int) -> None:
        self._telling = False
        self._untold -= (
            count  # those that failed meanwhile may have come after the controller looked
        )
        self._write()

    def _not_told(self, failure: Any) -> None:
        failure.trap(ZooKeeperError)
        self._telling = False
        if not self._stopped:
            self._reactor.callLater(RETRY_SECONDS, self._write)
