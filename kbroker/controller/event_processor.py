"""What the controller does about each kind of event (the `process*` methods of Kafka's KafkaController).

A handler reads from ZooKeeper what the event needs. It gives the state machine a fact (`core/events.py`) by
`EffectPerformer.handle`, and answers the request, if the event is one. It ends when all that has been performed.

In: events of the queue   Out: facts for the state machine, answers   Owner: the reactor's thread
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias

from twisted.logger import Logger

from kbroker.common.reactor import Clock
from kbroker.common.turns import WorkerTurns
from kbroker.controller import controller_events as ev
from kbroker.controller.admin_requests import ZkAdminRequests
from kbroker.controller.controlled_shutdown import ControlledShutdowns
from kbroker.controller.core import effects as fx
from kbroker.controller.core import events, state_change_log
from kbroker.controller.core.context import Topic
from kbroker.controller.core.state_machine import ControllerStateMachine
from kbroker.controller.effect_performer import EffectPerformer
from kbroker.controller.event_manager import ControllerEventManager
from kbroker.controller.event_sources import ControllerEventSources
from kbroker.controller.unclean_election import UncleanElection
from kbroker.controller.zk_client import ControllerZkClient
from kbroker.zk import znodes
from kbroker.zk.errors import PoisonZnode
from kbroker.zk.interface import Node

log = Logger()

REASSIGNMENTS_SECONDS = 1.0
"""How long a reassignment that could be completed waits for others of its topic, as all are written in one znode."""

EventHandler: TypeAlias = Callable[[Any, WorkerTurns], Awaitable[None]]


class ControllerEventProcessor:
    """The event handlers of one controller epoch."""

    def __init__(
        self,
        clock: Clock,
        queue: ControllerEventManager,
        sources: ControllerEventSources,
        machine: ControllerStateMachine,
        zk: ControllerZkClient,
        performer: EffectPerformer,
        shutdowns: ControlledShutdowns,
        *,
        unclean_leader_election: Callable[[], bool],
        controller_epoch: int,
    ) -> None:
        self._clock = clock
        self._queue = queue
        self._sources = sources
        self._machine = machine
        self._zk = zk
        self._performer = performer
        self._shutdowns = shutdowns
        self._controller_epoch = controller_epoch
        self._zk_requests = ZkAdminRequests(performer, machine, zk)
        self._unclean = UncleanElection(clock, queue, zk, unclean_leader_election)
        self._deletions: frozenset[str] = frozenset()
        """Children of /admin/delete_topics, as of the last event."""
        self._completion_scheduled = False
        self.is_ready = False
        """Whether the cluster's state has been read."""
        self._handlers: dict[type[Any], EventHandler] = {
            ev.Startup: self._startup,
            ev.BrokerChange: self._broker_change,
            ev.TopicChange: self._topic_change,
            ev.TopicDeletion: self._topic_deletion,
            ev.IsrChangeNotification: self._isr_change,
            ev.LogDirEventNotification: self._log_dir_failure,
            ev.ZkPreferredElection: self._zk_preferred_election,
            ev.ZkReassignment: self._zk_reassignment,
            ev.UncleanElectionCheck: self._unclean_election_check,
            ev.ControlledShutdown: self._controlled_shutdown,
            ev.ReplicaLeaderElection: self._replica_leader_election,
            ev.ApiPartitionReassignment: self._api_reassignment,
            events.LeaderAndIsrAcked: self._fact,
            events.StopReplicaAcked: self._fact,
            events.PreferredLeaderElectionDue: self._fact,
            events.ReassignmentsDue: self._reassignments_due,
            events.TopicZnodesDeleted: self._topic_znodes_deleted,
        }

    async def process(self, event: ev.ControllerEvent, turns: WorkerTurns) -> None:
        """Process *event* to its end."""
        await self._handlers[type(event)](event, turns)
        if self._performer.assignments_written:
            self._performer.assignments_written = False
            await self._zk_requests.maybe_remove_from_zk_reassignment()
        if self._machine.held_back and not self._completion_scheduled:
            self._completion_scheduled = True
            self._clock.callLater(REASSIGNMENTS_SECONDS, self._complete_reassignments)
        self._shutdowns.complete_acknowledged()

    async def _fact(self, fact: events.Event, turns: WorkerTurns) -> None:
        await self._performer.handle(fact, turns)

    # -- failover ----------------------------------------------------------------------------

    async def _startup(self, _event: ev.Startup, turns: WorkerTurns) -> None:
        read = await self._performer.unless_ended(self._zk.read_all())
        self.is_ready = True
        self._deletions = read.deletions
        log.info(
            "controller epoch {epoch}: begins with live brokers {brokers}, {topics} topics, {partitions} partitions",
            epoch=self._controller_epoch, brokers=",".join(map(str, sorted(read.brokers))) or "none",
            topics=len(read.topics), partitions=len(read.leader_and_isr),
        )  # fmt: skip
        self._sources.open()
        await self._performer.handle(read, turns)

    # -- brokers and replicas ----------------------------------------------------------------

    async def _broker_change(self, event: ev.BrokerChange, turns: WorkerTurns) -> None:
        brokers = await self._performer.unless_ended(self._zk.read_brokers(event.names))
        changes = state_change_log.broker_change_line(self._machine.context.brokers, brokers)
        if changes is not None:
            log.info(
                "controller epoch {epoch}: {changes}", epoch=self._controller_epoch, changes=changes
            )
        await self._performer.handle(events.BrokersChanged(brokers), turns)

    async def _isr_change(self, event: ev.IsrChangeNotification, turns: WorkerTurns) -> None:
        read = self._zk.read_isr_changes(event.names)
        states, paths = await self._performer.unless_ended(read)
        await self._performer.handle(events.IsrChanged(states), turns)
        self._queue.run(self._zk.delete_paths(paths))

    async def _log_dir_failure(self, event: ev.LogDirEventNotification, turns: WorkerTurns) -> None:
        read = self._zk.read_log_dir_events(event.names)
        brokers, paths = await self._performer.unless_ended(read)
        if brokers:
            log.info(
                "controller epoch {epoch}: a log directory failed at broker {brokers}",
                epoch=self._controller_epoch, brokers=",".join(map(str, sorted(brokers))),
            )  # fmt: skip
            await self._performer.handle(events.LogDirsFailed(brokers), turns)
        self._queue.run(self._zk.delete_paths(paths))

    async def _controlled_shutdown(self, event: ev.ControlledShutdown, turns: WorkerTurns) -> None:
        fact = events.ControlledShutdownRequested(event.broker_id, event.broker_epoch, event.left)
        answer = await self._performer.handle(fact, turns)
        if isinstance(answer, fx.ContinueControlledShutdown):
            self._shutdowns.step_taken(
                replace(event, broker_epoch=answer.broker_epoch, left=answer.left)
            )
        elif isinstance(answer, fx.AnswerControlledShutdown):
            self._shutdowns.answer(event.answer, answer)

    # -- topics ------------------------------------------------------------------------------

    async def _topic_change(self, event: ev.TopicChange, turns: WorkerTurns) -> None:
        fresh = []
        for name, node in event.changed.items():
            topic = await self._performer.unless_ended(self._read_topic(name, node))
            if topic is not None and self._is_changed(topic):
                fresh.append(topic)
            await self._performer.unless_ended(
                turns.done(len(topic.assignment) if topic is not None else 1)
            )
        if fresh or event.vanished:
            await self._performer.handle(events.TopicsChanged(tuple(fresh), event.vanished), turns)
        if self._deletions:
            # A request to delete a topic may have been read before the topic. Requests are read again: that which is
            # known here may be for an earlier topic of the name, which was deleted with it.
            self._deletions = await self._performer.unless_ended(self._zk.read_deletions())
            await self._request_deletions(turns)

    async def _read_topic(self, name: str, node: Node) -> Topic | None:
        try:
            topic = self._zk.decode_topic(name, znodes.decode_topic(name, node.data))
        except PoisonZnode:
            topic = None
        # Reading it reports a znode that cannot be decoded, and adds an id to a topic without one.
        return topic or await self._zk.read_topic(name)

    def _is_changed(self, topic: Topic) -> bool:
        known = self._machine.context.topics.get(topic.name)
        return (
            known is None
            or topic.topic_id != known.topic_id
            or topic.assignment != known.assignment
        )

    async def _topic_deletion(self, event: ev.TopicDeletion, turns: WorkerTurns) -> None:
        self._deletions = event.names
        await self._request_deletions(turns)

    async def _request_deletions(self, turns: WorkerTurns) -> None:
        if self._deletions:
            await self._performer.handle(events.TopicDeletionRequested(self._deletions), turns)

    async def _topic_znodes_deleted(
        self, event: events.TopicZnodesDeleted, turns: WorkerTurns
    ) -> None:
        await self._performer.handle(event, turns)
        await self._zk_requests.maybe_remove_from_zk_reassignment()

    # -- elections ---------------------------------------------------------------------------

    async def _unclean_election_check(
        self, event: ev.UncleanElectionCheck, turns: WorkerTurns
    ) -> None:
        check = self._unclean.allowed(event, self._machine.context)
        for name in await self._performer.unless_ended(check):
            await self._performer.handle(events.UncleanElectionEnabled(name), turns)

    async def _replica_leader_election(
        self, event: ev.ReplicaLeaderElection, turns: WorkerTurns
    ) -> None:
        fact = events.ElectionRequested(event.election, event.partitions)
        answer = await self._performer.handle(fact, turns)
        if isinstance(answer, fx.AnswerElection):
            for (topic, index), result in answer.results.items():
                if result.lost_isr:
                    log.warn(
                        "UNCLEAN ELECTION requested by an operator: {topic}-{index} is led by broker {leader}, which"
                        " was not in its ISR {isr}; committed records that only those had are lost",
                        topic=topic, index=index, leader=result.leader, isr=list(result.lost_isr),
                    )  # fmt: skip
            event.answer.callback(answer.results)

    async def _zk_preferred_election(
        self, event: ev.ZkPreferredElection, turns: WorkerTurns
    ) -> None:
        await self._zk_requests.elect_preferred(event.node, turns)

    # -- reassignments -----------------------------------------------------------------------

    async def _api_reassignment(
        self, event: ev.ApiPartitionReassignment, turns: WorkerTurns
    ) -> None:
        await self._zk_requests.replace(event.targets.keys())
        answer = await self._performer.handle(events.ReassignmentRequested(event.targets), turns)
        if isinstance(answer, fx.AnswerReassignment):
            rejected = {p: result.why for p, result in sorted(answer.results.items()) if result.why}
            for line in state_change_log.outcome_lines(rejected):
                log.info("did not reassign {line}", line=line)
            event.answer.callback(answer.results)

    async def _zk_reassignment(self, event: ev.ZkReassignment, turns: WorkerTurns) -> None:
        node = None
        if event.exists:
            read = self._zk.read_admin_znode(znodes.REASSIGN_PARTITIONS)
            node = await self._performer.unless_ended(read)
        await self._zk_requests.reassign(node, turns)

    def _complete_reassignments(self) -> None:
        self._completion_scheduled = False
        self._queue.put(events.ReassignmentsDue())

    async def _reassignments_due(self, event: events.ReassignmentsDue, turns: WorkerTurns) -> None:
        if self._machine.held_back:
            await self._performer.handle(event, turns)
