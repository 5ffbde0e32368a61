"""This broker's part in controlling the cluster: always a candidate, and the active controller while it is elected.

Each won `ControllerElection` makes an `ActiveController`, with a fresh state machine, queue and channels; a resignation
closes it. Nothing is carried into the next epoch (KAFKA-5310). An error of a handler ends the epoch. After a fenced
write or the loss of the session it resigns. After a bug it resigns and pauses before the next election.

In: session events, requests   Out: ZooKeeper writes, requests to brokers   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.channel_manager import (
    ChannelDependencies,
    ControllerChannelManager,
    OpenChannels,
    SendToBroker,
)
from kbroker.controller.controlled_shutdown import ControlledShutdowns
from kbroker.controller.controller_election import ControllerElection, ControllerEpoch
from kbroker.controller.controller_events import (
    ApiPartitionReassignment,
    ControlledShutdown,
    ElectionResults,
    ReassignmentResults,
    Remaining,
    ReplicaLeaderElection,
    Request,
    Startup,
)
from kbroker.controller.core.context import ControllerContext, ReplicaAssignment
from kbroker.controller.core.events import ElectionType
from kbroker.controller.core.reassignment import targets_of
from kbroker.controller.core.state_machine import ControllerStateMachine
from kbroker.controller.effect_performer import EffectPerformer
from kbroker.controller.event_manager import ControllerEventManager
from kbroker.controller.event_processor import ControllerEventProcessor
from kbroker.controller.event_sources import ControllerEventSources
from kbroker.controller.settings import ControllerSettings
from kbroker.controller.zk_client import ControllerMovedError, ControllerZkClient
from kbroker.zk.errors import ConnectionLoss, SessionExpired
from kbroker.zk.interface import ZooKeeper
from kbroker.zk.reconnect import Reconnect
from kclient.wire.errors import NotController

log = Logger()


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
        return self._active_controller().machine.context

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
        return targets_of(self.context)

    def _enqueue(self, request: Request) -> None:
        """Enqueue *request*; without an active controller its answer is NotController."""
        try:
            self._active_controller().queue.put(request)
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


class ActiveController:
    """One epoch of this broker as the active controller."""

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        settings: ControllerSettings,
        send: SendToBroker,
        zk: ControllerZkClient,
        epoch: ControllerEpoch,
        election: ControllerElection,
    ) -> None:
        self._election = election
        self.queue = ControllerEventManager(clock, settings.partitions_per_turn, self._failed)
        self.machine = ControllerStateMachine(
            settings.min_insync_replicas,
            partitions_per_step=settings.partitions_per_step,
            delete_topic_enable=settings.delete_topic_enable,
        )
        self._sources = ControllerEventSources(clock, zookeeper, settings, self.queue)
        channels = OpenChannels()
        self._shutdowns = ControlledShutdowns(
            clock, settings.leave_seconds, self.queue, self.machine, channels
        )
        self._channels = ControllerChannelManager(
            ChannelDependencies(clock, settings, send, epoch.number),
            channels,
            self.queue,
            acknowledged=self._shutdowns.complete_acknowledged,
            resign=election.resign_and_reelect,
        )
        performer = EffectPerformer(
            self.queue,
            self.machine,
            zk,
            self._channels,
            controller_epoch=epoch.number,
            delete_topic_enable=settings.delete_topic_enable,
            resign=election.resign_and_reelect,
        )
        self._processor = ControllerEventProcessor(
            clock,
            self.queue,
            self._sources,
            self.machine,
            zk,
            performer,
            self._shutdowns,
            unclean_leader_election=settings.unclean_leader_election,
            controller_epoch=epoch.number,
        )

    def open(self) -> None:
        """Read the cluster's state and begin to process events."""
        self.queue.put(Startup())
        self.queue.run(self.queue.process_events(self._processor.process))

    def close(self, reason: str) -> None:
        """End the epoch at once: process, write and send nothing any more. Idempotent."""
        if self.queue.is_closed:
            return
        self.machine.resign()
        self.queue.close(reason)
        self._sources.close()
        self._channels.close()
        self._shutdowns.close(reason)

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted: the cluster's state has been read, and the epoch has not ended."""
        return self._processor.is_ready and not self.queue.is_closed

    def _failed(self, failure: Failure) -> None:
        """End the epoch because of an error."""
        error = failure.value
        if isinstance(error, ControllerMovedError):
            self._election.resign_and_reelect(str(error))
        elif isinstance(error, SessionExpired | ConnectionLoss):
            self._election.resign_and_reelect(f"ZooKeeper: {error}")
        else:
            log.failure("the controller failed; resigning so that a fresh one takes over", failure)
            resigning = Deferred.fromCoroutine(self._election.resign_after_crash("internal error"))
            resigning.addErrback(lambda f: log.failure("could not resign properly", f))
