"""One epoch of this broker as the active controller: the parts of it, how they begin, fail, and end.

Each won election makes an `ActiveController`, with a fresh state machine, queue and channels; a resignation closes it.
Nothing is carried into the next epoch (KAFKA-5310). An error of a handler ends the epoch: a fenced write or the loss of
the session by a resignation, a bug by a resignation and a pause before the next election.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.channel_manager import ControllerChannelManager, SendToBroker
from kbroker.controller.controlled_shutdown import ControlledShutdowns
from kbroker.controller.controller_election import ControllerElection, ControllerEpoch
from kbroker.controller.controller_events import (
    Request,
    Startup,
)
from kbroker.controller.core.context import ControllerContext, ReplicaAssignment
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

log = Logger()


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
        self._queue = ControllerEventManager(clock, settings.partitions_per_turn, self._failed)
        self._machine = ControllerStateMachine(
            settings.min_insync_replicas, settings.partitions_per_step
        )
        self._sources = ControllerEventSources(clock, zookeeper, settings, self._queue)
        self._channels = ControllerChannelManager(
            clock, settings, send, epoch.number, self._queue, election.resign_and_reelect
        )
        self._shutdowns = ControlledShutdowns(
            clock, settings.leave_seconds, self._queue, self._machine, self._channels
        )
        performer = EffectPerformer(
            self._queue,
            self._machine,
            zk,
            self._channels,
            controller_epoch=epoch.number,
            delete_topic_enable=settings.delete_topic_enable,
            resign=election.resign_and_reelect,
        )
        self._processor = ControllerEventProcessor(
            clock,
            self._queue,
            self._sources,
            self._machine,
            zk,
            performer,
            self._shutdowns,
            settings,
            controller_epoch=epoch.number,
        )

    def open(self) -> None:
        """Read the cluster's state and begin to process events."""
        self._queue.put(Startup())
        self._queue.run(self._queue.process_events(self._processor.process))

    def close(self, reason: str) -> None:
        """End the epoch at once: process, write and send nothing any more. Idempotent."""
        if self._queue.is_closed:
            return
        self._machine.resign()
        self._queue.close(reason)
        self._sources.close()
        self._channels.close()
        self._shutdowns.close(reason)

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted: the cluster's state has been read, and the epoch has not ended."""
        return self._processor.is_ready and not self._queue.is_closed

    @property
    def context(self) -> ControllerContext:
        """The state machine's tables."""
        return self._machine.context

    def reassignments(self) -> Mapping[TopicPartition, ReplicaAssignment]:
        """Return the partitions that are being reassigned."""
        return targets_of(self._machine.context)

    def put(self, request: Request) -> None:
        """Enqueue a request; its `answer` fires when it has been processed."""
        self._queue.put(request)

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
