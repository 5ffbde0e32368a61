"""An election that an operator requests (KIP-183, KIP-460): the partitions to elect, and the answer.

Theory of operation
===================
*Preferred*: the first replica shall lead. It can when it is alive and in the ISR. *Unclean*: a partition without a
leader gets one, out of the ISR if need be, whatever unclean.leader.election.enable is. The operator has decided that
the partition is worth more than its last records. A partition with a leader is not changed.

The state machine elects (`election.elect`, `preferred_leaders.elect_preferred`). A write that loses a race with the
leader's own ISR change is repeated. So the answer does not depend on what the leader did at that moment.

Invariant: a request takes leadership from a live leader only for the preferred replica, and only if that one is in the
ISR.

In: ElectionRequested, the tables   Out: partitions to elect, results   Owner: state_machine
"""

from __future__ import annotations

from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import ControllerContext
from kbroker.controller.core.effects import ElectionOutcome, ElectionResult
from kbroker.controller.core.events import ElectionRequested, ElectionType
from kbroker.controller.core.preferred_leaders import elect_preferred
from kclient.wire.interbroker import NO_LEADER

ATTEMPTS = 5
"""Lost races before a partition is given up."""


class RequestedElection:
    """One request, from its arrival until it is answered."""

    def __init__(self, event: ElectionRequested) -> None:
        self.election = event.election
        self.attempts_left = ATTEMPTS
        self._decided: dict[TopicPartition, ElectionResult] = {}
        self._requested = event.partitions
        self._isr_before: dict[TopicPartition, tuple[int, ...]] = {}

    def begin(self, context: ControllerContext) -> Steps[None]:
        """Find the partitions to elect."""
        requested = context.partitions() if self._requested is None else self._requested
        for partition in sorted(requested):
            yield
            outcome = self._at_once(context, partition)
            if outcome is not None:
                self._decided[partition] = ElectionResult(outcome)
                continue
            state = context.leader_and_isr.get(partition)
            self._isr_before[partition] = state.isr if state is not None else ()

    def _at_once(
        self, context: ControllerContext, partition: TopicPartition
    ) -> ElectionOutcome | None:
        """Return the outcome if it takes no election."""
        if partition[0] in context.deleting:
            return ElectionOutcome.BEING_DELETED
        if not context.replicas(partition):
            return ElectionOutcome.UNKNOWN
        return ElectionOutcome.NOT_NEEDED if self._is_led(context, partition) else None

    def _is_led(self, context: ControllerContext, partition: TopicPartition) -> bool:
        """Return whether *partition* has the requested leader."""
        state = context.leader_and_isr.get(partition)
        if state is None or state.leader == NO_LEADER:
            return False
        if self.election is ElectionType.PREFERRED:
            return state.leader == context.replicas(partition)[0]
        return context.is_online(state.leader, partition)

    def left(self, context: ControllerContext) -> Steps[list[TopicPartition]]:
        """Return the partitions that remain and can be elected; [] ends the request."""
        if not self.attempts_left:
            return []
        self.attempts_left -= 1
        left = []
        for partition in self._isr_before:
            yield
            if not self._is_led(context, partition) and self._can_be_led(context, partition):
                left.append(partition)
        return left

    def _can_be_led(self, context: ControllerContext, partition: TopicPartition) -> bool:
        if self.election is ElectionType.PREFERRED:
            return elect_preferred(context, partition) is not None
        return any(context.is_online(r, partition) for r in context.replicas(partition))

    def results(self, context: ControllerContext) -> Steps[dict[TopicPartition, ElectionResult]]:
        """Return the outcome of every partition, when nothing remains to be tried."""
        results = dict(self._decided)
        for partition, isr in self._isr_before.items():
            yield
            state = context.leader_and_isr.get(partition)
            if state is None or not self._is_led(context, partition):
                results[partition] = ElectionResult(ElectionOutcome.NOT_AVAILABLE)
                continue
            # A member of the ISR that may have lost its log is no better than a replica outside it (KIP-704).
            lost = isr if state.leader not in isr or state.leader_recovery_state else ()
            results[partition] = ElectionResult(ElectionOutcome.ELECTED, state.leader, lost)
        return results
