"""Reassignments: other replicas for a partition, without losing a committed record (KIP-455).

Theory of operation
===================
A reassignment is a state in ZooKeeper: the topic's znode has all replicas, old and new, those that are *adding* and
those that are *removing*. The next step follows from that and the partition's state alone. So a new controller
continues without knowing how far the previous one came, and nothing is kept here but the writes that are unanswered.
With the original replicas {1,2,3} and the target {4,5,6}:

    replicas        adding   removing  leader  ISR
    1,2,3                              1       1,2,3
    4,5,6,1,2,3     4,5,6    1,2,3     1       1,2,3           begun: the new ones follow
    4,5,6,1,2,3     4,5,6    1,2,3     1       1,2,3,4,5,6     the leader took them into the ISR
    4,5,6                              4       4,5,6           completed in one step, old ones deleted

Every step is a *change* of a partition's replicas, in one order. First its state: leader epoch + 1, an ISR without the
replicas that are removed, and a leader that stays. Then the topic's znode. Then the requests to brokers, with a
deletion for each removed replica. The state is first because its write is conditional. If the leader changed the ISR
meanwhile, the step is decided again before anything irreversible was done. Until it gets its request the old leader
cannot change the ISR back, as it does not know the new epoch.

A reassignment is complete when all target replicas are in the ISR and one of them is alive to lead. Cancelling it is a
change like another: back to the original replicas, at once. No change removes the last members of an ISR. Only they
have every committed record. (KRaft rejects that, too; Kafka's ZooKeeper controller goes on without a leader).

A topic's znode has the replicas of all its partitions and is written whole. So it is not written for each partition
that could be completed. They wait for each other until they are a fourth of the topic's partitions that are being
reassigned. They also wait no longer when something else is written to the znode, or at ReassignmentsDue, which is to
follow soon while some are `held_back`. So thousands of partitions take some dozen writes.

Kafka sends the removed replicas their deletion before it writes the topic's znode, as a reminder for the next
controller. Here it is sent afterwards. Its broker may be down, or the controller may fail. A replica that misses it is
found by the full UpdateMetadata of every new controller and every start of a broker (`replica/stray_replicas.py`).

Invariants
----------
1. A replica leaves the assignment only when it is in no ISR that ZooKeeper may hold.
2. A change never leaves an ISR empty, nor a partition without a leader that had one.
3. Replicas are deleted only after the znode without them was written.
4. A request is answered only after it was written, and then it is completed: by this controller or the next.
5. A partition of a topic that is being deleted is not reassigned: all its replicas, old and new, are deleted.

In: ReassignmentRequested, outcomes of writes, the tables   Out: writes, requests to brokers, answers   Owner:
state_machine
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import ControllerContext, ReplicaAssignment
from kbroker.controller.core.effects import (
    AnswerReassignment,
    ReassignmentOutcome,
    ReassignmentResult,
    StateWrite,
    WriteAssignments,
)
from kbroker.controller.core.events import AssignmentsWritten, ReassignmentRequested, StatesWritten
from kbroker.controller.core.request_batch import ControllerBrokerRequestBatch
from kbroker.controller.core.states import ReplicaState
from kclient.wire.interbroker import NO_LEADER

ATTEMPTS = 5
"""Races with the leader's own writes that a request may lose before it is rejected."""

CHANGES_AT_ONCE = 500
"""The most changes of one round: the first of thousands need not wait until all are written and sent."""

PART_OF_WHAT_MOVES = 4
"""A fourth of a topic's partitions that are being reassigned, or more, is completed at once."""

_ACCEPTED = ReassignmentResult(ReassignmentOutcome.ACCEPTED)


class RejectedError(Exception):
    """The change cannot be made now; the text is the reason."""


@dataclass(slots=True)
class _Change:
    """A partition that is being changed to *wanted*."""

    wanted: ReplicaAssignment
    state_out: bool = False
    """Whether the unanswered write is of this change: an election may have to write the same partition first."""
    state_written: bool = False
    races_lost: int = 0


class Reassignments:
    """The changes of the event that is being processed. There is none when it has settled."""

    def __init__(self) -> None:
        self._queue: dict[TopicPartition, ReplicaAssignment] = {}
        """Requested changes that have not begun."""
        self._changes: dict[TopicPartition, _Change] = {}
        self._writing: WriteAssignments | None = None
        self._is_requested = False
        """Whether a request waits for its answer."""
        self._requested: frozenset[TopicPartition] = frozenset()
        self._results: dict[TopicPartition, ReassignmentResult] = {}
        self._lost: set[TopicPartition] = set()
        """Partitions without a state znode: their topic's watch reports what became of it."""
        self._due = False
        """Whether the next round holds nothing back."""
        self.held_back = 0
        """The number of partitions that could be completed and wait for others of their topic."""

    @property
    def is_writing(self) -> bool:
        """Whether a WriteAssignments awaits its AssignmentsWritten."""
        return self._writing is not None

    # -- requests ---------------------------------------------------------------------------

    def request(self, context: ControllerContext, event: ReassignmentRequested) -> Steps[None]:
        """Check a request and queue its changes; `answer` returns the outcome."""
        self._is_requested, self._results = True, {}
        self._requested = frozenset(event.targets)
        for partition, target in event.targets.items():
            yield
            result = self._request(context, partition, target)
            if result is not None:
                self._results[partition] = result

    def _request(
        self, context: ControllerContext, partition: TopicPartition, target: Sequence[int] | None
    ) -> ReassignmentResult | None:
        """Return the answer for one partition if there is nothing to change, else queue the change."""
        if not context.replicas(partition) or partition[0] in context.deleting:
            return ReassignmentResult(ReassignmentOutcome.UNKNOWN, "there is no such partition")
        now = context.assignment(partition)
        if target is None:
            if not now.is_being_reassigned:
                return ReassignmentResult(
                    ReassignmentOutcome.NOTHING_TO_CANCEL, "it is not being reassigned"
                )
            target = now.origin_replicas
        wanted = now.reassign_to(target)
        try:
            _check(context, target)
            if wanted == now:
                return _ACCEPTED
            _check_alive(context, wanted)
            if is_complete(context, partition, wanted):
                wanted = ReplicaAssignment(wanted.target_replicas)
            state_for(context, partition, wanted)
        except RejectedError as error:
            return ReassignmentResult(ReassignmentOutcome.INVALID, str(error))
        self._queue[partition] = wanted
        return None

    def answer(self) -> AnswerReassignment | None:
        """Return the answer to the request, once, when all of it has been written."""
        if not self._is_requested or self._queue:
            return None
        answer = AnswerReassignment(self._results)
        self._is_requested, self._requested, self._results = False, frozenset(), {}
        return answer

    # -- the steps ---------------------------------------------------------------------------

    def state_writes(self, context: ControllerContext) -> Steps[list[StateWrite]]:
        """Return the states to be written before anything else."""
        while True:
            if not self._changes:
                yield from self._begin_round(context)
            writes = yield from self._states_of_round(context)
            if writes or self._changes or not self._queue:
                return writes

    def _states_of_round(self, context: ControllerContext) -> Steps[list[StateWrite]]:
        writes = []
        for partition, change in list(self._changes.items()):
            yield
            if change.state_written:
                continue
            current = context.leader_and_isr.get(partition)
            if current is None:
                change.state_written = True  # it never had a leader, and has no records
                continue
            try:
                state = state_for(context, partition, change.wanted)
            except RejectedError as error:
                self._drop(partition, ReassignmentOutcome.INVALID, str(error))
                continue
            change.state_out = True
            writes.append(StateWrite(partition, state, current.zk_version))
        return writes

    def due(self) -> None:
        """Complete in the next round all that could be completed, however few they are."""
        self._due = True

    def _begin_round(self, context: ControllerContext) -> Steps[None]:
        """Begin queued changes, and complete the reassignments with a target that is in sync, if they are enough."""
        for partition in list(self._queue)[:CHANGES_AT_ONCE]:
            self._changes[partition] = _Change(self._queue.pop(partition))
        written = {name for name, _ in self._changes}
        complete: list[tuple[TopicPartition, tuple[int, ...]]] = []
        moving: Counter[str] = Counter()
        for partition in context.being_reassigned:
            yield
            moving[partition[0]] += 1
            if (
                partition not in self._changes
                and partition not in self._queue
                and partition not in self._lost
                and partition[0] not in context.deleting
                and is_complete(context, partition, now := context.assignment(partition))
            ):
                complete.append((partition, now.target_replicas))
                if len(complete) == CHANGES_AT_ONCE:
                    break
        ended = Counter(name for (name, _), _ in complete)
        at_once = self._due or len(complete) >= CHANGES_AT_ONCE
        self._due, self.held_back = False, 0
        for partition, target in sorted(complete):
            name = partition[0]
            if at_once or name in written or ended[name] * PART_OF_WHAT_MOVES >= moving[name]:
                self._changes[partition] = _Change(ReplicaAssignment(target))
            else:
                self.held_back += 1

    def states_written(self, event: StatesWritten) -> None:
        """Take note of the states that were written; a change with a write that lost a race is decided again."""
        for partition, change in list(self._changes.items()):
            ours, change.state_out = change.state_out, False
            if not ours:
                continue
            if partition in event.versions:
                change.state_written = True
            elif partition in event.conflicts:
                change.races_lost += 1
                if event.conflicts[partition] is None:
                    self._lost.add(partition)
                    self._drop(partition, ReassignmentOutcome.UNKNOWN, "its state znode is gone")
                elif change.races_lost == ATTEMPTS or partition not in self._requested:
                    self._drop(
                        partition, ReassignmentOutcome.INVALID, "its ISR changes all the time"
                    )

    def assignment_writes(self, context: ControllerContext) -> WriteAssignments | None:
        """Return the topics' znodes to be written, when all states are."""
        if not self._changes:
            return None
        self._writing = WriteAssignments(
            {name: context.topics[name].topic_id for name, _ in self._changes},
            {partition: change.wanted for partition, change in self._changes.items()},
        )
        return self._writing

    def assignments_written(
        self,
        context: ControllerContext,
        event: AssignmentsWritten,
        request_batch: ControllerBrokerRequestBatch,
    ) -> Steps[list[TopicPartition]]:
        """Adopt the replicas that were written; return the partitions that changed."""
        self._writing = None
        changes, self._changes = self._changes, {}
        known = {}
        for partition, change in changes.items():
            if partition[0] in event.gone or partition[0] not in context.topics:
                self._lost.add(partition)
                self._answer_with(
                    partition, ReassignmentResult(ReassignmentOutcome.UNKNOWN, "its topic is gone")
                )
                continue
            known[partition] = change.wanted
            self._answer_with(partition, _ACCEPTED)
        before = {partition: context.replicas(partition) for partition in known}
        context.assign(known)
        for partition, replicas in before.items():
            yield
            _replace_replicas(context, partition, replicas, request_batch)
        return list(known)

    def topic_changed(self, name: str) -> None:
        """Consider the partitions of a topic again that was read from ZooKeeper."""
        self._lost = {partition for partition in self._lost if partition[0] != name}

    # -- answers -----------------------------------------------------------------------------

    def _drop(self, partition: TopicPartition, outcome: ReassignmentOutcome, why: str) -> None:
        del self._changes[partition]
        self._answer_with(partition, ReassignmentResult(outcome, why))

    def _answer_with(self, partition: TopicPartition, result: ReassignmentResult) -> None:
        if partition in self._requested:
            self._results.setdefault(partition, result)


# -- rules -----------------------------------------------------------------------------------


def is_complete(
    context: ControllerContext, partition: TopicPartition, assignment: ReplicaAssignment
) -> bool:
    """Return whether *assignment* can be replaced by its target replicas."""
    state = context.leader_and_isr.get(partition)
    if state is None:
        return False
    for replica in assignment.replicas:  # a hot loop over every reassignment: most end here
        if replica not in state.isr and replica not in assignment.removing:
            return False
    target = assignment.target_replicas
    if not target:
        return False
    try:
        state_for(context, partition, ReplicaAssignment(target))
    except RejectedError:
        return False
    return any(context.is_online(r, partition) for r in target)


def state_for(
    context: ControllerContext, partition: TopicPartition, wanted: ReplicaAssignment
) -> LeaderAndIsr:
    """Return the state *partition* must be in before its replicas are *wanted*.

    RejectedError if no such state keeps what was committed, and a leader if there is one. LeaderAndIsr(-1, ...) of
    a partition that never had a state is never written.
    """
    current = context.leader_and_isr.get(partition)
    if current is None:
        return LeaderAndIsr(NO_LEADER, 0, (), context.controller_epoch)
    isr = tuple(r for r in current.isr if r in wanted.replicas)
    if not isr:
        raise RejectedError(
            f"only {_brokers(current.isr)} are in sync: without them committed records are lost"
        )
    isr_epoch_by_member = current.isr_epoch_by_member
    eligible_replicas = [
        r
        for r in wanted.replicas
        if r in isr
        and context.is_online(r, partition)
        and context.holds(r, partition, isr_epoch_by_member[r])
    ]
    # The sort is stable: in their order, those that shut down last.
    eligible_replicas.sort(key=lambda r: r in context.shutting_down)
    if current.leader in eligible_replicas:
        leader = current.leader
    elif eligible_replicas:
        leader = eligible_replicas[0]
    elif context.is_online(current.leader, partition):
        raise RejectedError(
            f"of {_brokers(isr)}, which would be left in sync, none is alive to take over from the"
            f" leader {current.leader}"
        )
    else:
        leader = NO_LEADER
    return replace(
        current,
        leader=leader,
        leader_epoch=current.leader_epoch + 1,
        isr=isr,
        controller_epoch=context.controller_epoch,
        isr_epochs=tuple(isr_epoch_by_member[r] for r in isr) if current.isr_epochs else (),
        elr=tuple((r, isr_epoch) for r, isr_epoch in current.elr if r in wanted.replicas),
    )


def _check(context: ControllerContext, target: Sequence[int]) -> None:
    """Raise RejectedError for a list that cannot be one of replicas."""
    if not target:
        raise RejectedError("the list of replicas is empty")
    if len(set(target)) != len(target):
        raise RejectedError(f"a broker is named more than once: {list(target)[:100]}")
    if min(target) < 0:
        raise RejectedError(f"{min(target)} is no broker id")


def _check_alive(context: ControllerContext, wanted: ReplicaAssignment) -> None:
    """Raise RejectedError for new replicas on brokers that are not alive."""
    dead = [r for r in wanted.adding if r not in context.brokers]
    if dead:
        raise RejectedError(
            f"{_brokers(dead)} are not alive; alive are {_brokers(sorted(context.brokers))}"
        )


def _brokers(ids: Sequence[int]) -> str:
    return "brokers " + ", ".join(map(str, ids[:100]))


def _replace_replicas(
    context: ControllerContext,
    partition: TopicPartition,
    before: Sequence[int],
    request_batch: ControllerBrokerRequestBatch,
) -> None:
    """Update the tables for replicas that were *before* the change, and send it to every broker."""
    now = context.replicas(partition)
    for replica in now:
        if replica not in before:
            context.move_replica(partition, replica, ReplicaState.NEW)
    for replica in before:
        if replica not in now:
            _remove(context, partition, replica, request_batch)
    request_batch.add_partition(context, partition)


def _remove(
    context: ControllerContext,
    partition: TopicPartition,
    replica: int,
    request_batch: ControllerBrokerRequestBatch,
) -> None:
    """Send *replica* its deletion, and remove it from the tables."""
    for state in (
        ReplicaState.OFFLINE,
        ReplicaState.DELETION_STARTED,
        ReplicaState.DELETION_SUCCESSFUL,
        ReplicaState.NON_EXISTENT,
    ):
        context.move_replica(partition, replica, state)
    context.replicas_on_offline_dirs.get(replica, set()).discard(partition)
    context.incomplete.get(replica, set()).discard(partition)
    request_batch.leader_and_isr.get(replica, set()).discard(partition)
    request_batch.add_stop_replica(replica, partition, delete=True)


def targets_of(context: ControllerContext) -> Mapping[TopicPartition, ReplicaAssignment]:
    """Return the partitions that are being reassigned, sorted."""
    return {
        partition: context.assignment(partition) for partition in sorted(context.being_reassigned)
    }
