"""This broker's part in governing the cluster: a candidate always, the controller sometimes.

Each win of the `ControllerElection` opens a `ControllerEventManager`, which the end of the term closes.

In: session events, watches, answers   Out: ZooKeeper writes, requests to brokers
Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from twisted.internet.defer import Deferred, maybeDeferred

from kbroker.common.reactor import Clock
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.admin_requests import ElectionResults, ReassignmentResults
from kbroker.controller.controller_channel import ControllerSettings, SendToBroker
from kbroker.controller.controller_election import ControllerElection, ControllerEpoch
from kbroker.controller.core.context import Assignment, ControllerContext
from kbroker.controller.core.events import ElectionType
from kbroker.controller.event_manager import ControllerEventManager
from kbroker.controller.zk_client import ControllerZkClient
from kbroker.zk.interface import ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import NotController

__all__ = ["ControllerSettings", "KafkaController", "SendToBroker"]


class KafkaController:
    """This broker's part in governing the cluster: a candidate always, the controller sometimes."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        settings: ControllerSettings,
        send: SendToBroker,
        *,
        now_ms: Callable[[], int],
        new_topic_id: Callable[[], UUID],
        reconnect: Reconnect | None = None,
    ) -> None:
        self._clock = clock
        self._zookeeper = zookeeper
        self._settings = settings
        self._send = send
        self._new_topic_id = new_topic_id
        self._reconnect = reconnect or Reconnect(zookeeper, clock)
        self._event_manager: ControllerEventManager | None = None
        self._election = ControllerElection(
            clock,
            zookeeper,
            self._reconnect,
            settings.broker_id,
            now_ms=now_ms,
            on_elected=self._elected,
            on_resignation=self._resigned,
        )

    def start(self) -> None:
        """Stand for election from now on."""
        self._election.start()

    def stop(self) -> None:
        """Leave event_manager for good, without touching ZooKeeper: the ephemeral goes with the session."""
        self._election.stop()

    async def resign(self) -> None:
        """Free the event_manager; it is contested again at once, by this broker too unless stopped."""
        await self._election.resign("asked to")

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller and has read what it governs."""
        return self._event_manager is not None and self._event_manager.is_ready

    @property
    def epoch(self) -> ControllerEpoch | None:
        """The present term, if this broker is the controller."""
        return self._election.epoch

    @property
    def controller_id(self) -> int | None:
        """Who holds /controller, as far as known here."""
        return self._election.controller_id

    @property
    def context(self) -> ControllerContext:
        """The tables of the present term. NotController when there is none."""
        return self._active_event_manager().context

    def controlled_shutdown(
        self, broker_id: int, broker_epoch: int
    ) -> Deferred[tuple[tuple[str, int], ...]]:
        """Move leadership off *broker_id*; answers the partitions it still leads (RF > 1).

        NotController, BrokerNotAvailable, StaleBrokerEpoch.
        """
        return maybeDeferred(
            lambda: self._active_event_manager().controlled_shutdown(broker_id, broker_epoch)
        )

    def elect_leaders(
        self, election: ElectionType, partitions: frozenset[TopicPartition] | None
    ) -> Deferred[ElectionResults]:
        """Have leaders elected, of all partitions with None; answers what became of each. NotController."""
        return maybeDeferred(
            lambda: self._active_event_manager().admin_requests.elect(election, partitions)
        )

    def reassign(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> Deferred[ReassignmentResults]:
        """Have partitions moved to other replicas, None: have it called off. NotController."""
        return maybeDeferred(lambda: self._active_event_manager().admin_requests.reassign(targets))

    def reassignments(self) -> Mapping[TopicPartition, Assignment]:
        """Return the reassignments that are under way. NotController."""
        return self._active_event_manager().admin_requests.reassignments()

    def _active_event_manager(self) -> ControllerEventManager:
        """Return the event_manager that has read what it governs; NotController without one."""
        if self._event_manager is not None and self._event_manager.is_ready:
            return self._event_manager
        other = self._election.controller_id
        raise NotController(
            f"broker {self._settings.broker_id} is not the controller"
            + (f"; broker {other} is" if other is not None and other >= 0 else "")
        )

    def _elected(self, epoch: ControllerEpoch) -> None:
        store = ControllerZkClient(
            self._zookeeper,
            self._reconnect,
            epoch,
            self._clock,
            new_topic_id=self._new_topic_id,
            partitions_per_turn=self._settings.partitions_per_turn,
        )
        self._event_manager = ControllerEventManager(
            self._clock, self._zookeeper, self._settings, self._send, store, epoch, self._election
        )
        self._event_manager.open()

    def _resigned(self, reason: str) -> None:
        event_manager, self._event_manager = self._event_manager, None
        if event_manager is not None:
            event_manager.close(reason)
