"""What makes events by itself: the controller's watches in ZooKeeper, and its periodic timer.

Watches report the latest content only. A registration is watched because its broker may alter the endpoints in it.
Several ISR change notifications within `ISR_CHANGES_SECONDS` become one event.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from kbroker.common.reactor import Clock
from kbroker.controller.controller_events import (
    BrokerChange,
    IsrChangeNotification,
    LogDirEventNotification,
    TopicChange,
    TopicDeletion,
    ZkPreferredElection,
    ZkReassignment,
)
from kbroker.controller.core.events import PreferredLeaderElectionDue
from kbroker.controller.event_manager import ControllerEventManager
from kbroker.controller.settings import ControllerSettings
from kbroker.zk import znodes
from kbroker.zk.interface import Children, Node, Watch, ZooKeeper

log = Logger()

ISR_CHANGES_SECONDS = 0.1
"""Between two IsrChangeNotification events (Kafka's leaders announce their changes every 2.5 s): what joins one by one
is processed together."""


class ControllerEventSources:
    """The watches and the periodic timer of one controller epoch."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        settings: ControllerSettings,
        queue: ControllerEventManager,
    ) -> None:
        self._clock = clock
        self._zookeeper = zookeeper
        self._settings = settings
        self._queue = queue
        self._watches: list[Watch] = []
        self._topic_watches: dict[str, Watch] = {}
        self._broker_watches: dict[str, Watch] = {}
        self._broker_names: tuple[str, ...] = ()
        self._isr_changes: tuple[str, ...] | None = None
        """Children of /isr_change_notification that wait for the next event."""
        self._isr_changes_enqueued = -ISR_CHANGES_SECONDS

    def open(self) -> None:
        """Enqueue what the znodes hold now, and every change from now on."""
        children, data = self._zookeeper.watch_children, self._zookeeper.watch_data
        self._watches = [
            children(znodes.BROKER_IDS, self._brokers_changed),
            children(znodes.TOPICS, self._topics_changed),
            children(znodes.DELETE_TOPICS, self._deletions_changed),
            children(znodes.ISR_CHANGES, self._isr_notified),
            children(znodes.LOG_DIR_EVENTS, self._log_dir_notified),
            data(znodes.PREFERRED_REPLICA_ELECTION, self._preferred_election_changed),
            data(znodes.REASSIGN_PARTITIONS, self._reassignment_changed),
        ]
        self._schedule_preferred_election()

    def close(self) -> None:
        """Cancel the watches."""
        for watch in [
            *self._watches,
            *self._topic_watches.values(),
            *self._broker_watches.values(),
        ]:
            watch.cancel()

    # -- watches -----------------------------------------------------------------------------

    def _brokers_changed(self, children: Children | None) -> None:
        if self._queue.is_closed or children is None:
            return
        self._broker_names = tuple(children.names)
        self._queue.put(BrokerChange(self._broker_names))
        for name in sorted(self._broker_watches.keys() - set(children.names)):
            self._broker_watches.pop(name).cancel()
        for name in sorted(set(children.names) - self._broker_watches.keys()):
            if name.isdecimal():
                path = znodes.broker_path(int(name))
                self._broker_watches[name] = self._zookeeper.watch_data(path, self._broker_modified)

    def _broker_modified(self, node: Node | None) -> None:
        # A new registration is an event of the list of brokers; only a later version has other endpoints.
        if node is not None and node.stat.version > 0:
            self._queue.put(BrokerChange(self._broker_names))

    def _topics_changed(self, children: Children | None) -> None:
        if self._queue.is_closed or children is None:
            return
        names = set(children.names)
        for name in sorted(names - self._topic_watches.keys()):
            try:
                path = znodes.topic_path(name)
            except ValueError as error:
                log.error("skipped a child of /brokers/topics: {error}", error=error)
                continue
            self._topic_watches[name] = self._zookeeper.watch_data(path, self._topic_changed(name))
        vanished = frozenset(self._topic_watches.keys() - names)
        for name in sorted(vanished):
            self._topic_watches.pop(name).cancel()
        if vanished:
            self._queue.put(TopicChange(vanished=vanished))

    def _topic_changed(self, name: str) -> Callable[[Node | None], None]:
        def changed(node: Node | None) -> None:
            if node is not None:
                self._queue.put(TopicChange({name: node}))

        return changed

    def _deletions_changed(self, children: Children | None) -> None:
        names = frozenset(children.names) if children is not None else frozenset()
        self._queue.put(TopicDeletion(names))

    def _isr_notified(self, children: Children | None) -> None:
        if children is None or not children.names:
            return
        is_scheduled = self._isr_changes is not None
        self._isr_changes = tuple(children.names)
        if not is_scheduled:
            wait = self._isr_changes_enqueued + ISR_CHANGES_SECONDS - self._clock.seconds()
            self._clock.callLater(max(wait, 0), self._enqueue_isr_changes)

    def _enqueue_isr_changes(self) -> None:
        names, self._isr_changes = self._isr_changes, None
        self._isr_changes_enqueued = self._clock.seconds()
        if names is not None:
            self._queue.put(IsrChangeNotification(names))

    def _log_dir_notified(self, children: Children | None) -> None:
        if children is not None and children.names:
            self._queue.put(LogDirEventNotification(tuple(children.names)))

    def _preferred_election_changed(self, node: Node | None) -> None:
        if node is not None:
            self._queue.put(ZkPreferredElection(node))

    def _reassignment_changed(self, node: Node | None) -> None:
        self._queue.put(ZkReassignment(node is not None))

    # -- timer -------------------------------------------------------------------------------

    def _schedule_preferred_election(self) -> None:
        seconds = self._settings.rebalance_seconds
        if seconds is not None and not self._queue.is_closed:
            self._clock.callLater(seconds, self._preferred_election_due)

    def _preferred_election_due(self) -> None:
        self._queue.put(PreferredLeaderElectionDue(self._settings.imbalance_percentage))
        self._schedule_preferred_election()
