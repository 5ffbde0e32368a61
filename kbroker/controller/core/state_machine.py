"""The controller's state machine: every partition has a live leader, if it has a replica that can lead.

Theory of operation
===================
The machine processes one event at a time, as Kafka's controller thread does. An event changes the tables and collects
two things. One is the partitions that need another state, which `election` decides and one WriteStates writes. The
other is requests to brokers (LeaderAndIsr, UpdateMetadata, StopReplica). The requests leave when the writes have
settled, so no broker learns of a state that ZooKeeper does not hold. That is one *round* of writes (`state_writes`).
Partitions without a leader are in the first round of an event, partitions with a leader in a second one.

When an event has settled, `reassignment` decides the next step of each reassignment, which is written likewise.
An event is processed in steps of a partition or less (`process`), so that an event of thousands of partitions does not
block the reactor. Its effects are returned together after the last step.

This module has the order, and the table of handlers: `failover` (an epoch begins), `broker_changes`, `topic_changes`,
`topic_deletion`. The others are `replica_events` (what brokers report of replicas), `requested_election`,
`preferred_leaders` and `reassignment`. Each changes the tables (`context`) and gives its partitions to the writes.
Where no member of the ISR is alive the topic's setting is read (CheckUncleanElection); without its permission the
partition stays without a leader.

Invariants
----------
1. A leader is a member of its ISR; an ISR is a subset of the replicas.
2. Leader epochs of a partition only grow.
3. Requests to brokers carry written states only; after `resign` there is no effect at all.
4. At rest, a partition with an online member in its ISR has a leader.
5. At most one WriteStates or WriteAssignments is unanswered. Another event is rejected until then.
6. A topic's znodes are deleted only after every replica confirmed its deletion, once.
7. The effects do not depend on how the steps were spread over time.

In: kbroker.controller.core.events   Out: kbroker.controller.core.effects   Owner: effect_performer (reactor)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from kbroker.common.steps import Steps
from kbroker.controller.core import (
    broker_changes,
    events,
    failover,
    replica_events,
    topic_changes,
    topic_deletion,
)
from kbroker.controller.core.context import ControllerContext
from kbroker.controller.core.effects import AnswerElection, Effect, Resign
from kbroker.controller.core.preferred_leaders import imbalanced_partitions
from kbroker.controller.core.reassignment import Reassignments
from kbroker.controller.core.requested_election import RequestedElection
from kbroker.controller.core.state_writes import StateWrites

EventHandler: TypeAlias = Callable[[ControllerContext, Any], Steps[None]]
"""Handles one kind of event."""


class ControllerStateMachine:
    """The controller's decisions: events to `process`, effects to perform in order."""

    def __init__(
        self,
        min_insync_replicas: Callable[[str], int],
        *,
        partitions_per_step: int,
        delete_topic_enable: bool,
    ) -> None:
        """Begin with empty tables; a controlled shutdown moves *partitions_per_step* leaders at a time."""
        self._context: ControllerContext | None = None
        self._joined: broker_changes.BrokersJoined | None = None
        """Brokers that join when the failure of their predecessors has settled."""
        self._writes = StateWrites(min_insync_replicas)
        self._reassignments = Reassignments()
        self._working = False
        self._delete_topic_enable = delete_topic_enable
        self._resigned = False
        self._handlers: dict[type[Any], EventHandler] = {
            events.BrokersChanged: self._brokers_changed,
            events.TopicsChanged: self._topics_changed,
            events.TopicDeletionRequested: self._deletion_requested,
            events.TopicZnodesDeleted: self._topic_znodes_deleted,
            events.IsrChanged: self._with_writes(replica_events.isr_changed),
            events.LogDirsFailed: self._with_writes(replica_events.log_dirs_failed),
            events.LeaderAndIsrAcked: self._with_writes(replica_events.leader_and_isr_acked),
            events.StopReplicaAcked: self._stop_replica_acked,
            events.ControlledShutdownRequested: self._with_writes(
                partial(broker_changes.controlled_shutdown, partitions_per_step=partitions_per_step)
            ),
            events.UncleanElectionEnabled: self._unclean_election_enabled,
            events.PreferredLeaderElectionDue: self._rebalance_due,
            events.ReassignmentsDue: self._reassignments_due,
            events.ElectionRequested: self._election_requested,
            events.ReassignmentRequested: self._reassignment_requested,
        }

    def _with_writes(
        self, part: Callable[[ControllerContext, Any, StateWrites], Steps[None]]
    ) -> EventHandler:
        return lambda context, event: part(context, event, self._writes)

    @property
    def context(self) -> ControllerContext:
        """The tables, to be read only. RuntimeError before BecameController."""
        if self._context is None:
            raise RuntimeError("not the controller yet")
        return self._context

    @property
    def is_resigned(self) -> bool:
        """Whether `resign` was called."""
        return self._resigned

    @property
    def is_writing(self) -> bool:
        """Whether a WriteStates or WriteAssignments awaits its outcome."""
        return self._writes.is_writing or self._reassignments.is_writing

    @property
    def held_back(self) -> int:
        """The number of reassignments that could be completed and wait for others, or for ReassignmentsDue."""
        return self._reassignments.held_back

    def resign(self) -> None:
        """Return no effect any more, also from an event that is being processed."""
        self._resigned = True

    def process(self, event: events.Event) -> Steps[list[Effect]]:
        """Process *event* in steps; return the effects to perform, in order.

        RuntimeError for an event that comes between the steps of another, or while a write is unanswered.
        """
        if self._resigned:
            return []
        is_outcome = isinstance(event, events.StatesWritten | events.AssignmentsWritten)
        if self._working or self.is_writing != is_outcome:
            raise RuntimeError(f"{type(event).__name__} came out of turn")
        self._working = True
        try:
            for _ in self._take(event):
                yield
                if self.is_resigned:
                    return []
        finally:
            self._working = False
        effects, self._writes.effects = self._writes.effects, []
        return effects

    def _take(self, event: events.Event) -> Steps[None]:
        if isinstance(event, events.BecameController):
            yield from self._became_controller(event)
        elif isinstance(event, events.StatesWritten):
            self._reassignments.states_written(event)
            successor = yield from self._writes.states_written(self.context, event)
            if successor is not None:
                self._resign(successor)
        elif isinstance(event, events.AssignmentsWritten):
            yield from self._assignments_written(self.context, event)
        else:
            yield from self._handlers[type(event)](self.context, event)
        yield from self._settle()
        if self._joined is not None and not self.is_writing and not self._resigned:
            joined, self._joined = self._joined, None
            yield from broker_changes.on_broker_startup(self.context, joined, self._writes)
            yield from self._settle()

    # -- failover ---------------------------------------------------------------------------

    def _became_controller(self, event: events.BecameController) -> Steps[None]:
        context = self._context = ControllerContext(
            event.controller_epoch, brokers=dict(event.brokers), topics=dict(event.topics)
        )
        yield from failover.initialize_context(context, event, self._writes)
        if event.deletions:
            asked = events.TopicDeletionRequested(event.deletions)
            yield from self._deletion_requested(context, asked)
        yield from failover.startup(context, self._writes)

    # -- brokers -----------------------------------------------------------------------------

    def _brokers_changed(
        self, context: ControllerContext, event: events.BrokersChanged
    ) -> Steps[None]:
        died, joined = broker_changes.changes(context, event, self._writes)
        self._joined = joined
        if died:
            yield from broker_changes.on_broker_failure(context, died, self._writes)

    # -- topics ------------------------------------------------------------------------------

    def _topics_changed(
        self, context: ControllerContext, event: events.TopicsChanged
    ) -> Steps[None]:
        yield from topic_changes.on_topics_changed(
            context, event, self._writes, self._reassignments
        )

    def _deletion_requested(
        self, context: ControllerContext, event: events.TopicDeletionRequested
    ) -> Steps[None]:
        self._writes.effects += yield from topic_deletion.request(
            context, event.topics, self._writes.request_batch, enabled=self._delete_topic_enable
        )

    def _topic_znodes_deleted(
        self, context: ControllerContext, event: events.TopicZnodesDeleted
    ) -> Steps[None]:
        yield
        topic = context.topics.get(event.topic)
        if topic is not None and topic.topic_id == event.topic_id:
            context.remove_topic(event.topic)

    def _stop_replica_acked(
        self, context: ControllerContext, event: events.StopReplicaAcked
    ) -> Steps[None]:
        yield
        broker = context.brokers.get(event.broker_id)
        if broker is not None and broker.epoch == event.broker_epoch:
            self._writes.effects += topic_deletion.replicas_stopped(context, event)

    def _unclean_election_enabled(
        self, context: ControllerContext, event: events.UncleanElectionEnabled
    ) -> Steps[None]:
        if event.topic not in context.topics or event.topic in context.deleting:
            return
        yield from self._writes.evaluate(context, context.partitions_of(event.topic), unclean=True)

    def _rebalance_due(
        self, context: ControllerContext, event: events.PreferredLeaderElectionDue
    ) -> Steps[None]:
        yield from self._writes.elect_preferred(
            context, (yield from imbalanced_partitions(context, event.percentage))
        )

    def _election_requested(
        self, context: ControllerContext, event: events.ElectionRequested
    ) -> Steps[None]:
        asked = RequestedElection(event)
        yield from asked.begin(context)
        yield from self._go_on_electing(context, asked)

    def _go_on_electing(self, context: ControllerContext, asked: RequestedElection) -> Steps[None]:
        left = yield from asked.left(context)
        if not left:
            results = yield from asked.results(context)
            self._writes.effects.append(AnswerElection(results))
            return
        self._writes.then(lambda context: self._go_on_electing(context, asked))
        if asked.election is events.ElectionType.PREFERRED:
            yield from self._writes.elect_preferred(context, left)
        else:
            yield from self._writes.evaluate(context, left, unclean=True)

    # -- reassignments -----------------------------------------------------------------------

    def _reassignment_requested(
        self, context: ControllerContext, event: events.ReassignmentRequested
    ) -> Steps[None]:
        yield from self._reassignments.request(context, event)

    def _reassignments_due(
        self, _context: ControllerContext, _event: events.ReassignmentsDue
    ) -> Steps[None]:
        yield
        self._reassignments.due()

    def _assignments_written(
        self, context: ControllerContext, event: events.AssignmentsWritten
    ) -> Steps[None]:
        changed = yield from self._reassignments.assignments_written(
            context, event, self._writes.request_batch
        )
        for partition in changed:
            yield
            context.update_states(partition)
        # A partition without a leader may have new replicas that can lead.
        yield from self._writes.evaluate(context, changed)
        if not self._writes.is_writing:
            yield from self._writes.take_requests(context)  # now: another round may follow

    def _go_on_reassigning(self, context: ControllerContext) -> Steps[None]:
        """Write what the next step of the reassignments needs, or answer the request."""
        self._writes.write((yield from self._reassignments.state_writes(context)))
        if self._writes.is_writing:
            return
        assignments = self._reassignments.assignment_writes(context)
        answer = self._reassignments.answer() if assignments is None else assignments
        if answer is not None:
            self._writes.effects.append(answer)

    # -- the end of an event -----------------------------------------------------------------

    def _settle(self) -> Steps[None]:
        """Release the requests to brokers, unless writes are unanswered."""
        if self._context is None or self._resigned:
            return
        yield from self._writes.run_next(self._context)
        if not self.is_writing:
            yield from self._go_on_reassigning(self._context)
        if not self.is_writing:
            yield from self._writes.take_requests(self._context)

    def _resign(self, reason: str) -> None:
        self._resigned = True
        self._writes.effects = [Resign(reason)]
