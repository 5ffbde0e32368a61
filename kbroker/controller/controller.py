"""This broker's part in controlling the cluster: always a candidate, and the active controller while it is elected.

Each won `ControllerElection` makes an `ActiveController`, which a resignation closes.

In: session events, requests   Out: ZooKeeper writes, requests to brokers   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from twisted.internet.defer import Deferred

from kbroker.common.reactor import Clock
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.active_controller import ActiveController
from kbroker.controller.channel_manager import SendToBroker
from kbroker.controller.controller_election import ControllerElection, ControllerEpoch
from kbroker.controller.controller_events import (
    ApiPartitionReassignment,
    ControlledShutdown,
    ElectionResults,
    ReassignmentResults,
    Remaining,
    ReplicaLeaderElection,
    Request,
)
from kbroker.controller.core.context import ControllerContext, ReplicaAssignment
from kbroker.controller.core.events import ElectionType
from kbroker.controller.settings import ControllerSettings
from kbroker.controller.zk_client import ControllerZkClient
from kbroker.zk.interface import ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import NotController


class KafkaController:
    """A candidate for the controller of the cluster, and the active controller while it is elected."""

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
        self._active: ActiveController | None = None
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
        """Take part in elections from now on."""
        self._election.start()

    def stop(self) -> None:
        """Resign and take part in no election any more; /controller is ephemeral and goes with the session."""
        self._election.stop()

    async def resign(self) -> None:
        """Resign and delete /controller. Unless stopped, this broker takes part in the election that follows."""
        await self._election.resign("asked to")

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller and has read the cluster's state."""
        return self._active is not None and self._active.is_ready

    @property
    def epoch(self) -> ControllerEpoch | None:
        """The epoch in which this broker is the controller, if it is."""
        return self._election.epoch

    @property
    def controller_id(self) -> int | None:
        """The broker that holds /controller, as last seen."""
        return self._election.controller_id

    @property
    def context(self) -> ControllerContext:
        """The controller's tables. NotController."""
        return self._active_controller().context

    def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> Deferred[Remaining]:
        """Move leadership off *broker_id*; answers the partitions it still leads (RF > 1).

        NotController, BrokerNotAvailable, StaleBrokerEpoch.
        """
        request = ControlledShutdown(broker_id, broker_epoch)
        self._enqueue(request)
        return request.answer

    def elect_leaders(
        self, election: ElectionType, partitions: frozenset[TopicPartition] | None
    ) -> Deferred[ElectionResults]:
        """Elect leaders, for all partitions with None; answers the outcome for each. NotController."""
        request = ReplicaLeaderElection(election, partitions)
        self._enqueue(request)
        return request.answer

    def reassign(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> Deferred[ReassignmentResults]:
        """Reassign partitions to other replicas; None cancels a reassignment. NotController."""
        request = ApiPartitionReassignment(targets)
        self._enqueue(request)
        return request.answer

    def reassignments(self) -> Mapping[TopicPartition, ReplicaAssignment]:
        """Return the partitions that are being reassigned. NotController."""
        return self._active_controller().reassignments()

    def _enqueue(self, request: Request) -> None:
        """Enqueue *request*; without an active controller its answer is NotController."""
        try:
            self._active_controller().put(request)
        except NotController as error:
            request.answer.errback(error)

    def _active_controller(self) -> ActiveController:
        """Return the active controller that has read the cluster's state; NotController without one."""
        if self._active is not None and self._active.is_ready:
            return self._active
        other = self._election.controller_id
        raise NotController(
            f"broker {self._settings.broker_id} is not the controller"
            + (f"; broker {other} is" if other is not None and other >= 0 else "")
        )

    def _elected(self, epoch: ControllerEpoch) -> None:
        zk = ControllerZkClient(
            self._zookeeper,
            self._reconnect,
            epoch,
            self._clock,
            new_topic_id=self._new_topic_id,
            partitions_per_turn=self._settings.partitions_per_turn,
        )
        self._active = ActiveController(
            self._clock, self._zookeeper, self._settings, self._send, zk, epoch, self._election
        )
        self._active.open()

    def _resigned(self, reason: str) -> None:
        active, self._active = self._active, None
        if active is not None:
            active.close(reason)
