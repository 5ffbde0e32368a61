"""The controller: one machine that keeps every partition led by a live replica, if there is one.

Theory of operation
===================
Events are taken one at a time, as by Kafka's controller thread. Handling one moves states in the
tables and collects two things: partitions whose state should change (asked of `election`, written by
one WriteStates) and announcements (LeaderAndIsr, UpdateMetadata, StopReplica). While a write is under
way further events wait in a queue; the announcements leave when the writes have settled, so nobody
hears of a state that ZooKeeper does not hold. A write that lost a race returns with what the znode
holds: the machine adopts it and asks the election again (KAFKA-2729: never retry with a stale version).
A broker that bounced died and then joined: it is first taken out of every ISR. Where no member of the ISR lives
the topic's setting is asked for (AskUncleanElection); until it is known to allow more, nobody leads.
A new controller, and one that lost a broker, writes and announces in two rounds: first what nobody leads who lives,
then everything else, which is led all the while.
When an event has settled the reassignments are looked at (`reassignment`): the next step of each is written likewise.
An event is worked on in steps of a partition or less (`work`), so that thousands of partitions hold nobody up; its
effects leave together when all steps are done, and the next event begins only then. `handle` takes all steps at once.

Invariants
----------
1. A leader is a member of its ISR; an ISR is a subset of the replicas.
2. Leader epochs of a partition only grow.
3. Nothing is announced that was not written; nothing at all after Resigned.
4. At rest, a partition whose ISR has an online member is led by one.
5. At most one WriteStates or WriteAssignments is unanswered.
6. A topic's znodes go only after every replica confirmed its deletion, once.
7. What comes out does not depend on how the steps were spread over time.

In: kbroker.controller.events   Out: kbroker.controller.effects   Owner: runtime.controller (reactor)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from kbroker.controller import deletion, doubts, events
from kbroker.controller.announcements import Announcements
from kbroker.controller.context import (
    GRANT_VOID,
    NO_LEADER,
    Broker,
    ControllerContext,
    LeaderAndIsr,
    Start,
    Topic,
    TopicPartition,
)
from kbroker.controller.effects import (
    AnswerControlledShutdown,
    AnswerElection,
    AskUncleanElection,
    CloseChannel,
    Effect,
    OpenChannel,
    ReportDoubt,
    Resign,
    SendUpdateMetadata,
    ShutdownVerdict,
    StateWrite,
    WriteStates,
)
from kbroker.controller.election import (
    RECOVERING,
    elect,
    elect_first,
    electorate_of,
    with_the_longest_log,
)
from kbroker.controller.preferred import elect_preferred, misplaced
from kbroker.controller.reassignment import Reassignments
from kbroker.controller.requested_election import RequestedElection
from kbroker.controller.states import PartitionState, ReplicaState
from kbroker.controller.steps import Steps, at_once


@dataclass(frozen=True, slots=True)
class _BrokersJoined:
    """The second half of BrokersChanged, once the deaths have settled."""

    brokers: tuple[Broker, ...]


class Controller:
    """The controller's decisions. Feed events to `handle` or `work`, perform what they return, in order."""

    def __init__(self, min_insync_replicas: Callable[[str], int] = lambda _topic: 1) -> None:
        self._min_insync_replicas = min_insync_replicas
        """A topic's min.insync.replicas, as far as known: leaders decide what it means (KIP-966)."""
        self._doubted: dict[TopicPartition, ReportDoubt] = {}
        self._context: ControllerContext | None = None
        self._waiting: deque[Any] = deque()
        self._writing: dict[TopicPartition, StateWrite] = {}
        self._reassignments = Reassignments()
        self._said = Announcements()
        self._out: list[Effect] = []
        self._afterwards: Callable[[ControllerContext], Steps[None]] | None = None
        """What is left to do of an event when its writes have settled."""
        self._working = False
        self._delete_topic_enable = True
        self._resigned = False
        self._rules: dict[type[Any], Callable[[ControllerContext, Any], Steps[None]]] = {
            events.BrokersChanged: self._brokers_changed,
            _BrokersJoined: self._brokers_joined,
            events.TopicsChanged: self._topics_changed,
            events.TopicDeletionRequested: self._deletion_requested,
            events.TopicZnodesDeleted: self._topic_znodes_deleted,
            events.IsrChanged: self._isr_changed,
            events.LogDirsFailed: self._log_dirs_failed,
            events.LeaderAndIsrAcked: self._leader_and_isr_acked,
            events.StopReplicaAcked: self._stop_replica_acked,
            events.ControlledShutdownRequested: self._controlled_shutdown,
            events.UncleanElectionEnabled: self._unclean_election_enabled,
            events.RebalanceDue: self._rebalance_due,
            events.ReassignmentsDue: self._reassignments_due,
            events.ElectionRequested: self._election_requested,
            events.ReassignmentRequested: self._reassignment_requested,
        }

    @property
    def context(self) -> ControllerContext:
        """The tables (to look at). RuntimeError before BecameController."""
        if self._context is None:
            raise RuntimeError("not the controller yet")
        return self._context

    @property
    def is_resigned(self) -> bool:
        """Whether the machine has fallen silent for good."""
        return self._resigned

    @property
    def is_writing(self) -> bool:
        """Whether a WriteStates or WriteAssignments awaits its outcome."""
        return bool(self._writing) or self._reassignments.is_writing

    @property
    def held_back(self) -> int:
        """How many reassignments could be completed and wait for others, or for ReassignmentsDue."""
        return self._reassignments.held_back

    def handle(self, event: events.Event) -> list[Effect]:
        """Take *event*; the effects to perform now, in order."""
        return at_once(self.work(event))

    def work(self, event: events.Event) -> Steps[list[Effect]]:
        """Take *event* in steps; the result is what `handle` returns.

        One event at a time; only Resigned may come between the steps of another, which then comes to nothing.
        """
        if isinstance(event, events.Resigned):
            self._resigned = True
        if self._resigned:
            return []
        if self._working:
            raise RuntimeError(f"{type(event).__name__} came before another event was done with")
        self._working = True
        try:
            for _ in self._take(event):
                yield
                if self.is_resigned:  # Resigned came meanwhile: nothing comes out any more
                    return []
        finally:
            self._working = False
        effects, self._out = self._out, []
        return effects

    def _take(self, event: events.Event) -> Steps[None]:
        if isinstance(event, events.BecameController):
            yield from self._became_controller(event)
        elif isinstance(event, events.StatesWritten):
            self._reassignments.states_written(event)
            yield from self._states_written(self.context, event)
        elif isinstance(event, events.AssignmentsWritten):
            yield from self._assignments_written(self.context, event)
        else:
            self._waiting.append(event)
        yield from self._settle()
        while self._waiting and not self.is_writing and not self._resigned:
            queued = self._waiting.popleft()
            yield from self._rules[type(queued)](self.context, queued)
            yield from self._settle()

    # -- taking office -----------------------------------------------------------------------

    def _became_controller(self, event: events.BecameController) -> Steps[None]:
        self._delete_topic_enable = event.delete_topic_enable
        context = self._context = ControllerContext(
            event.controller_epoch, brokers=dict(event.brokers), topics=dict(event.topics)
        )
        for partition in context.partitions():
            yield
            self._load_partition(context, partition, event.leader_and_isr.get(partition))
        self._out += [OpenChannel(context.brokers[b]) for b in sorted(context.brokers)]
        # Brokers learn where everyone is before they are told whom to follow (KAFKA-4443); everything else they hear
        # once, when it is decided. (Kafka tells all partitions at once, and those that it changed again.)
        self._said.brokers_changed = True
        everyone = yield from self._said.take(context)
        self._out += [
            replace(effect, before_leaders=True)
            if isinstance(effect, SendUpdateMetadata)
            else effect
            for effect in everyone
        ]
        self._said.everything_to |= context.brokers.keys()
        if event.deletions:
            asked = events.TopicDeletionRequested(event.deletions)
            yield from self._deletion_requested(context, asked)
        unled = yield from self._unled(context, context.partitions())
        if unled:
            # Who has no leader is served first, and announced; what else is to be written and told follows.
            self._afterwards = lambda context: self._take_over_the_rest(
                context, dict.fromkeys(unled)
            )
            yield from self._evaluate(context, unled)
        else:
            yield from self._confirm(context, {})

    def _unled(
        self, context: ControllerContext, partitions: Iterable[TopicPartition]
    ) -> Steps[list[TopicPartition]]:
        """List those of *partitions* that nobody leads who lives."""
        unled = []
        for partition in partitions:
            yield
            state = context.leader_and_isr.get(partition)
            if state is None or not context.is_online(state.leader, partition):
                unled.append(partition)
        return unled

    def _take_over_the_rest(
        self, context: ControllerContext, done: dict[TopicPartition, None]
    ) -> Steps[None]:
        for partition in done:
            yield
            if partition in context.leader_and_isr:
                self._said.announce(context, partition)  # also of those where nothing was written
        self._out += yield from self._said.take(context)
        yield from self._confirm(context, done)

    def _confirm(self, context: ControllerContext, but: dict[TopicPartition, None]) -> Steps[None]:
        """Tell the replicas of all partitions but these what their state is, once it is what it should be."""
        rest = [partition for partition in context.partitions() if partition not in but]
        for partition in rest:
            yield
            if partition in context.leader_and_isr:
                self._said.confirm(context, partition)
        yield from self._evaluate(context, rest)

    def _load_partition(
        self, context: ControllerContext, partition: TopicPartition, state: LeaderAndIsr | None
    ) -> None:
        context.move_partition(partition, PartitionState.NEW)
        for replica in context.replicas(partition):
            context.move_replica(partition, replica, ReplicaState.NEW)
        if state is not None:
            context.leader_and_isr[partition] = state
            self._place(context, partition)

    # -- brokers -----------------------------------------------------------------------------

    def _brokers_changed(
        self, context: ControllerContext, event: events.BrokersChanged
    ) -> Steps[None]:
        died, joined = set(), []
        for broker_id, known in context.brokers.items():
            present = event.brokers.get(broker_id)
            if present is None or present.epoch != known.epoch:
                died.add(broker_id)
        for broker_id, present in sorted(event.brokers.items()):
            if broker_id not in context.brokers or broker_id in died:
                joined.append(present)
            elif present != context.brokers[broker_id]:
                # The same incarnation with other endpoints (KAFKA-3334's dynamic listeners).
                context.brokers[broker_id] = present
                self._said.brokers_changed = True
        if joined:
            self._waiting.appendleft(_BrokersJoined(tuple(joined)))
        if died:
            yield from self._brokers_died(context, died)

    def _brokers_died(self, context: ControllerContext, died: set[int]) -> Steps[None]:
        for broker_id in sorted(died):
            del context.brokers[broker_id]
            context.shutting_down.discard(broker_id)
            context.failed_dirs.pop(broker_id, None)
            context.incomplete.pop(broker_id, None)
            context.log_ends.pop(broker_id, None)
            self._out.append(CloseChannel(broker_id))
        self._said.brokers_changed = True
        deletion.brokers_died(context, died)
        touched = context.partitions_on(died)
        unled = yield from self._unled(context, touched)
        if not unled:
            yield from self._shrink(context, touched)
            return
        self._afterwards = lambda context: self._shrink_the_rest(context, touched, unled)
        yield from self._shrink(context, unled)

    def _shrink_the_rest(
        self,
        context: ControllerContext,
        touched: Iterable[TopicPartition],
        done: Iterable[TopicPartition],
    ) -> Steps[None]:
        self._out += yield from self._said.take(context)
        but = frozenset(done)
        yield from self._shrink(context, [p for p in touched if p not in but])

    def _shrink(
        self, context: ControllerContext, touched: Collection[TopicPartition]
    ) -> Steps[None]:
        # Their offline replicas changed even where neither leader nor ISR does.
        self._said.metadata |= set(touched)
        yield from self._evaluate(context, touched)

    def _brokers_joined(self, context: ControllerContext, event: _BrokersJoined) -> Steps[None]:
        ids = {b.broker_id for b in event.brokers}
        for broker in event.brokers:
            context.brokers[broker.broker_id] = broker
            self._out.append(OpenChannel(broker))
        self._said.brokers_changed = True
        self._said.everything_to |= ids
        touched = context.partitions_on(ids)
        for partition in touched:
            yield
            for broker_id in ids.intersection(context.replicas(partition)):
                self._said.leader_and_isr.setdefault(broker_id, set()).add(partition)
        self._said.metadata |= set(touched)
        yield from self._evaluate(context, touched)
        deletion.brokers_joined(context, ids, self._said)

    def _controlled_shutdown(
        self, context: ControllerContext, event: events.ControlledShutdownRequested
    ) -> Steps[None]:
        broker = context.brokers.get(event.broker_id)
        if broker is None:
            verdict = ShutdownVerdict.BROKER_NOT_AVAILABLE
        elif event.broker_epoch not in (-1, broker.epoch):
            verdict = ShutdownVerdict.STALE_BROKER_EPOCH
        else:
            context.shutting_down.add(event.broker_id)
            self._said.brokers_changed = True  # leaders take it into no ISR any more (KAFKA-14140)
            self._afterwards = lambda context: self._shutdown_settled(context, event)
            touched = [
                p for p in context.partitions_on([event.broker_id]) if len(context.replicas(p)) > 1
            ]
            yield from self._evaluate(context, touched)
            return
        self._out.append(AnswerControlledShutdown(event.request_id, verdict))

    def _shutdown_settled(
        self, context: ControllerContext, event: events.ControlledShutdownRequested
    ) -> Steps[None]:
        """Stop the replicas that follow, so that they do not rejoin the ISR, and answer."""
        remaining: list[TopicPartition] = []
        for partition in context.partitions_on([event.broker_id]):
            yield
            if len(context.replicas(partition)) == 1:
                continue
            state = context.leader_and_isr.get(partition)
            if state is None:
                continue
            if state.leader == event.broker_id:
                remaining.append(partition)
            else:
                self._said.stop(event.broker_id, partition, delete=False)
        self._out.append(
            AnswerControlledShutdown(
                event.request_id, ShutdownVerdict.MOVED, tuple(sorted(remaining))
            )
        )

    # -- topics ------------------------------------------------------------------------------

    def _topics_changed(
        self, context: ControllerContext, event: events.TopicsChanged
    ) -> Steps[None]:
        for name in sorted(event.vanished):
            yield from self._forget(context, name)
        created: list[TopicPartition] = []
        for topic in event.topics:
            self._reassignments.topic_changed(topic.name)
            known = context.topics.get(topic.name)
            if known is not None and known.topic_id != topic.topic_id:
                yield from self._forget(context, topic.name)
                known = None
            if topic.name in context.deleting:
                continue
            created += yield from self._grow(context, topic, known)
        self._said.new_partitions |= set(created)
        yield from self._evaluate(context, created)

    def _grow(
        self, context: ControllerContext, topic: Topic, known: Topic | None
    ) -> Steps[list[TopicPartition]]:
        """Take in *topic*'s partitions that are not known yet; a known one keeps its replicas."""
        if known is not None:
            # Replicas of known partitions move by reassignment, never because a znode says so.
            assignment = {**topic.assignment, **known.assignment}
            topic = replace(topic, assignment=assignment, moving=known.moving)
        context.topics[topic.name] = topic
        fresh = [
            (topic.name, index)
            for index in sorted(topic.assignment)
            if known is None or index not in known.assignment
        ]
        for partition in fresh:
            yield
            self._load_partition(context, partition, None)
        return fresh

    def _forget(self, context: ControllerContext, name: str) -> Steps[None]:
        """Drop a topic whose znodes vanished; brokers are told so that they stop serving it."""
        self._reassignments.topic_changed(name)
        if name not in context.topics:
            return
        if name not in context.deleting:
            # Somebody removed the znodes by hand, past the controller.
            context.deleting.add(name)
            self._said.metadata |= set(context.partitions_of(name))
            self._out += yield from self._said.take(context)
        context.forget_topic(name)

    def _deletion_requested(
        self, context: ControllerContext, event: events.TopicDeletionRequested
    ) -> Steps[None]:
        self._out += yield from deletion.request(
            context, event.topics, self._said, enabled=self._delete_topic_enable
        )

    def _topic_znodes_deleted(
        self, context: ControllerContext, event: events.TopicZnodesDeleted
    ) -> Steps[None]:
        yield
        if event.topic in context.deleting:
            context.forget_topic(event.topic)

    def _stop_replica_acked(
        self, context: ControllerContext, event: events.StopReplicaAcked
    ) -> Steps[None]:
        yield
        broker = context.brokers.get(event.broker_id)
        if broker is not None and broker.epoch == event.broker_epoch:
            self._out += deletion.replicas_stopped(context, event)

    def _unclean_election_enabled(
        self, context: ControllerContext, event: events.UncleanElectionEnabled
    ) -> Steps[None]:
        if event.topic not in context.topics or event.topic in context.deleting:
            return
        yield from self._evaluate(context, context.partitions_of(event.topic), unclean=True)

    def _rebalance_due(self, context: ControllerContext, event: events.RebalanceDue) -> Steps[None]:
        yield from self._elect_preferred(context, (yield from misplaced(context, event.percentage)))

    def _elect_preferred(
        self, context: ControllerContext, partitions: Iterable[TopicPartition]
    ) -> Steps[None]:
        for partition in partitions:
            yield
            wanted = elect_preferred(context, partition)
            if wanted is not None:
                expected = context.leader_and_isr[partition].zk_version
                self._writing[partition] = StateWrite(partition, wanted, expected)
        if self._writing:
            self._out.append(WriteStates(tuple(self._writing.values())))

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
            self._out.append(AnswerElection(asked.request_id, results))
            return
        self._afterwards = lambda context: self._go_on_electing(context, asked)
        if asked.election is events.ElectionType.PREFERRED:
            yield from self._elect_preferred(context, left)
        else:
            yield from self._evaluate(context, left, unclean=True)

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
        changed = yield from self._reassignments.assignments_written(context, event, self._said)
        for partition in changed:
            yield
            self._place(context, partition)
        # A partition that could not be led may have got replicas that can.
        yield from self._evaluate(context, changed)
        if not self._writing:
            self._out += yield from self._said.take(context)  # now, for another round may follow

    def _go_on_reassigning(self, context: ControllerContext) -> Steps[None]:
        """Write what the next step of the reassignments needs, or answer who asked for them."""
        for write in (yield from self._reassignments.state_writes(context)):
            self._writing[write.partition] = write
        if self._writing:
            self._out.append(WriteStates(tuple(self._writing.values())))
            return
        assignments = self._reassignments.assignment_writes(context)
        answer = self._reassignments.answer() if assignments is None else assignments
        if answer is not None:
            self._out.append(answer)

    # -- partition states --------------------------------------------------------------------

    def _isr_changed(self, context: ControllerContext, event: events.IsrChanged) -> Steps[None]:
        doubtful = []
        for partition, state in event.states.items():
            yield
            known = context.leader_and_isr.get(partition)
            if known is None or partition[0] in context.deleting:
                continue
            if state.zk_version > known.zk_version:
                context.leader_and_isr[partition] = state
                self._said.metadata.add(partition)
                for replica, granted in state.grants.items():
                    if replica not in known.isr and granted == context.epoch_of(replica):
                        # It has caught up anew, whatever it lacked.
                        context.incomplete.get(replica, set()).discard(partition)
                    elif not context.holds(replica, partition, granted):
                        doubtful.append(partition)
                    if replica in context.shutting_down:
                        doubtful.append(partition)  # its leader did not know (KAFKA-14140)
        yield from self._evaluate(context, dict.fromkeys(doubtful))

    def _log_dirs_failed(
        self, context: ControllerContext, event: events.LogDirsFailed
    ) -> Steps[None]:
        """Order all replicas there anew: the answers name those that are offline (KIP-112)."""
        ids = event.brokers & context.brokers.keys()
        for partition in context.partitions_on(ids):
            yield
            for broker_id in ids.intersection(context.replicas(partition)):
                self._said.leader_and_isr.setdefault(broker_id, set()).add(partition)

    def _leader_and_isr_acked(
        self, context: ControllerContext, event: events.LeaderAndIsrAcked
    ) -> Steps[None]:
        broker = context.brokers.get(event.broker_id)
        if broker is None or broker.epoch != event.broker_epoch:
            return
        failed = context.failed_dirs.setdefault(event.broker_id, set())
        fresh = [
            p
            for p in sorted(event.storage_errors - failed)
            if event.broker_id in context.replicas(p) and p[0] not in context.deleting
        ]
        failed.update(fresh)
        self._said.metadata |= set(fresh)
        lacking = [
            p
            for p in sorted(event.incomplete)
            if event.broker_id in context.replicas(p) and p[0] not in context.deleting
        ]
        context.incomplete.setdefault(event.broker_id, set()).update(lacking)
        ends = {
            p: end
            for p, end in sorted(event.log_ends.items())
            if event.broker_id in context.replicas(p) and p[0] not in context.deleting
        }
        context.log_ends.setdefault(event.broker_id, {}).update(ends)
        # Only a replica that stands for its place now, or the last end to be known, changes who leads; each evaluation
        # of the others asks ZooKeeper for settings.
        known = [
            p
            for p in ends
            if self._stands(context, p, broker) or self._longest_log(context, p) != NO_LEADER
        ]
        yield from self._evaluate(context, dict.fromkeys([*fresh, *lacking, *known]))

    @staticmethod
    def _stands(context: ControllerContext, partition: TopicPartition, broker: Broker) -> bool:
        """Say whether a replica's own log, and not its broker's registration, stands for its place."""
        current = context.leader_and_isr.get(partition)
        if current is None:
            return False
        places = {**dict(current.elr), **current.grants}
        granted = places.get(broker.broker_id, GRANT_VOID)
        is_known = broker.start is not Start.PARTIAL and broker.keeps(granted)
        return not is_known and context.holds(broker.broker_id, partition, granted)

    @staticmethod
    def _longest_log(context: ControllerContext, partition: TopicPartition) -> int:
        current = context.leader_and_isr.get(partition)
        if current is None:
            return NO_LEADER
        electorate = electorate_of(context, partition)
        return with_the_longest_log(context.replicas(partition), current, electorate)

    def _evaluate(
        self,
        context: ControllerContext,
        candidates: Iterable[TopicPartition],
        *,
        unclean: bool = False,
    ) -> Steps[None]:
        """Ask the election about *candidates*; write what should change, place the rest."""
        leaderless: set[str] = set()
        for partition in candidates:
            yield
            if partition[0] in context.deleting:
                continue
            current = context.leader_and_isr.get(partition)
            replicas, electorate = context.replicas(partition), electorate_of(context, partition)
            if current is None:
                wanted = elect_first(replicas, electorate, context.controller_epoch)
            else:
                wanted = elect(
                    replicas,
                    current,
                    electorate,
                    shutting_down=context.shutting_down,
                    unclean=unclean,
                    min_insync_replicas=min(self._min_insync_replicas(partition[0]), len(replicas)),
                    controller_epoch=context.controller_epoch,
                )
                if (wanted or current).leader == NO_LEADER and any(
                    map(electorate.online, replicas)
                ):
                    leaderless.add(partition[0])
                self._report(context, partition, current, wanted or current)
            if wanted is None:
                self._place(context, partition)
            else:
                expected = None if current is None else current.zk_version
                self._writing[partition] = StateWrite(partition, wanted, expected)
        if self._writing:
            self._out.append(WriteStates(tuple(self._writing.values())))
        if leaderless and not unclean:
            self._out.append(AskUncleanElection(tuple(sorted(leaderless))))

    def _report(
        self,
        context: ControllerContext,
        partition: TopicPartition,
        before: LeaderAndIsr,
        after: LeaderAndIsr,
    ) -> None:
        """Have the operator told, once, of replicas that may lack what they should have."""
        doubt = doubts.of(context, partition, before, after)
        if doubt is None:
            self._doubted.pop(partition, None)
        elif self._doubted.get(partition) != doubt:
            self._doubted[partition] = doubt
            self._out.append(doubt)

    def _states_written(
        self, context: ControllerContext, event: events.StatesWritten
    ) -> Steps[None]:
        again: list[TopicPartition] = []
        writing, self._writing = self._writing, {}
        for partition, write in writing.items():
            yield
            if partition in event.versions:
                state = replace(write.state, zk_version=event.versions[partition])
            else:
                found = event.conflicts.get(partition)
                if found is None:
                    # The znode, or its whole topic, is gone: the topic's own watch will say so.
                    self._place(context, partition)
                    continue
                if found.controller_epoch > context.controller_epoch:
                    self._resign(
                        f"{partition[0]}-{partition[1]} was written by controller epoch "
                        f"{found.controller_epoch}, ours is {context.controller_epoch}"
                    )
                    return
                state = found
                again.append(partition)
            context.leader_and_isr[partition] = state
            if state.leader != NO_LEADER:
                for replica in context.replicas(partition):
                    context.log_ends.get(replica, {}).pop(partition, None)
            if state.leader_recovery_state == RECOVERING:
                context.incomplete.get(state.leader, set()).discard(partition)
            self._said.announce(context, partition)
            self._place(context, partition)
        yield from self._evaluate(context, again)

    def _place(self, context: ControllerContext, partition: TopicPartition) -> None:
        """Bring the state tables in line with what is known of *partition*."""
        state = context.leader_and_isr.get(partition)
        if state is None:
            return
        led = state.leader != NO_LEADER and context.is_online(state.leader, partition)
        context.move_partition(partition, PartitionState.ONLINE if led else PartitionState.OFFLINE)
        for replica in context.replicas(partition):
            online = context.is_online(replica, partition)
            context.move_replica(
                partition, replica, ReplicaState.ONLINE if online else ReplicaState.OFFLINE
            )

    # -- the end of an event -----------------------------------------------------------------

    def _settle(self) -> Steps[None]:
        """Let the announcements go, unless writes are under way."""
        if self._context is None:
            return
        while self._afterwards is not None and not self._writing and not self._resigned:
            afterwards, self._afterwards = self._afterwards, None
            yield from afterwards(self._context)
        if not self.is_writing and not self._resigned:
            yield from self._go_on_reassigning(self._context)
        if self.is_writing or self._resigned:
            return
        self._out += yield from self._said.take(self._context)

    def _resign(self, reason: str) -> None:
        self._resigned = True
        self._writing = {}
        self._out = [Resign(reason)]
