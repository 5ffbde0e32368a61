"""Rounds of state writes: evaluate partitions, write the states that should change, adopt the outcome.

Theory of operation
===================
Every event comes down to partitions that may need another state. They are *evaluated*: `election` decides the state of
each, and all states that should change are written together (WriteStates). The outcome then updates the tables. A write
that lost a race returns what the znode holds. That state is adopted and evaluated again (KAFKA-2729: never retry with a
stale version). This adds a write to the same round. Requests to brokers are collected meanwhile in `request_batch`,
other effects in `effects`.

A large event has a second round (`then`). The first is for partitions without a live leader: it is written, and the
brokers get their requests. The second is for all others, which have a leader all the while. `failover`,
`broker_changes`, `topic_changes` and `replica_events` decide what their rounds contain. After the last round the
machine takes the requests.

Invariants
----------
1. At most one WriteStates is unanswered; it holds every partition with an unknown outcome.
2. The tables, and requests to brokers, hold states that were read or written, never states that are only wanted.
3. The next round begins when no write of this one is unanswered.
4. A data-loss warning is logged once, until it is another or none.

In: partitions to evaluate, StatesWritten, the tables   Out: `effects`, `request_batch`, the tables   Owner:
state_machine
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core import data_loss
from kbroker.controller.core.context import ControllerContext
from kbroker.controller.core.effects import (
    CheckUncleanElection,
    Effect,
    StateWrite,
    WarnOfDataLoss,
    WriteStates,
)
from kbroker.controller.core.election import candidates_of, elect, elect_first
from kbroker.controller.core.events import StatesWritten
from kbroker.controller.core.preferred_leaders import elect_preferred
from kbroker.controller.core.request_batch import ControllerBrokerRequestBatch
from kclient.wire.interbroker import NO_LEADER, RECOVERING


class StateWrites:
    """The rounds of one event after another."""

    def __init__(self, min_insync_replicas: Callable[[str], int]) -> None:
        self._min_insync_replicas = min_insync_replicas
        """A topic's min.insync.replicas, as far as known: leaders decide with it what is committed (KIP-966)."""
        self.request_batch = ControllerBrokerRequestBatch()
        """Requests to brokers that leave when this round, or the event, has settled."""
        self.effects: list[Effect] = []
        """The effects, in order, since the machine last returned them."""
        self._writing: dict[TopicPartition, StateWrite] = {}
        self._then: Callable[[ControllerContext], Steps[None]] | None = None
        self._reported: dict[TopicPartition, WarnOfDataLoss] = {}

    @property
    def is_writing(self) -> bool:
        """Whether a WriteStates awaits its outcome."""
        return bool(self._writing)

    # -- rounds ------------------------------------------------------------------------------

    def then(self, work: Callable[[ControllerContext], Steps[None]]) -> None:
        """Begin the next round with *work* when the writes of this one have settled."""
        self._then = work

    def run_next(self, context: ControllerContext) -> Steps[None]:
        """Begin the remaining rounds, until one has a write that is unanswered."""
        while self._then is not None and not self._writing:
            work, self._then = self._then, None
            yield from work(context)

    def take_requests(self, context: ControllerContext) -> Steps[None]:
        """Turn the collected requests to brokers into effects."""
        self.effects += yield from self.request_batch.take_effects(context)

    # -- evaluation -----------------------------------------------------------------------

    def evaluate(
        self,
        context: ControllerContext,
        partitions: Iterable[TopicPartition],
        *,
        unclean: bool = False,
    ) -> Steps[None]:
        """Elect leaders of *partitions*; write the states that should change."""
        leaderless: set[str] = set()
        writes = []
        for partition in partitions:
            yield
            if partition[0] in context.deleting:
                continue
            current = context.leader_and_isr.get(partition)
            replicas, candidates = context.replicas(partition), candidates_of(context, partition)
            if current is None:
                wanted = elect_first(replicas, candidates, context.controller_epoch)
            else:
                wanted = elect(
                    replicas,
                    current,
                    candidates,
                    shutting_down=context.shutting_down,
                    unclean=unclean,
                    min_insync_replicas=min(self._min_insync_replicas(partition[0]), len(replicas)),
                    controller_epoch=context.controller_epoch,
                )
                if (wanted or current).leader == NO_LEADER and any(
                    map(candidates.online, replicas)
                ):
                    leaderless.add(partition[0])
                self._report(context, partition, current, wanted or current)
            if wanted is None:
                context.update_states(partition)
            else:
                expected = None if current is None else current.zk_version
                writes.append(StateWrite(partition, wanted, expected))
        self.write(writes)
        if leaderless and not unclean:
            self.effects.append(CheckUncleanElection(tuple(sorted(leaderless))))

    def elect_preferred(
        self, context: ControllerContext, partitions: Iterable[TopicPartition]
    ) -> Steps[None]:
        """Elect the preferred replicas of *partitions* where they can lead and do not."""
        writes = []
        for partition in partitions:
            yield
            wanted = elect_preferred(context, partition)
            if wanted is not None:
                expected = context.leader_and_isr[partition].zk_version
                writes.append(StateWrite(partition, wanted, expected))
        self.write(writes)

    def write(self, writes: Iterable[StateWrite]) -> None:
        """Write *writes* together, if there are any."""
        self._writing.update((write.partition, write) for write in writes)
        if self._writing:
            self.effects.append(WriteStates(tuple(self._writing.values())))

    def _report(
        self,
        context: ControllerContext,
        partition: TopicPartition,
        before: LeaderAndIsr,
        after: LeaderAndIsr,
    ) -> None:
        """Log once that replicas may lack records they should have."""
        warning = data_loss.warning_for(context, partition, before, after)
        if warning is None:
            self._reported.pop(partition, None)
        elif self._reported.get(partition) != warning:
            self._reported[partition] = warning
            self.effects.append(warning)

    # -- outcomes ----------------------------------------------------------------------------

    def states_written(self, context: ControllerContext, event: StatesWritten) -> Steps[str | None]:
        """Adopt the outcomes of the writes; return how it is known that a newer controller exists, if one does."""
        again: list[TopicPartition] = []
        writing, self._writing = self._writing, {}
        for partition, write in writing.items():
            yield
            if partition in event.versions:
                state = replace(write.state, zk_version=event.versions[partition])
            else:
                found = event.conflicts.get(partition)
                if found is None:
                    # The znode, or its whole topic, is gone: the topic's own watch reports that.
                    context.update_states(partition)
                    continue
                if found.controller_epoch > context.controller_epoch:
                    return (
                        f"{partition[0]}-{partition[1]} was written by controller epoch "
                        f"{found.controller_epoch}, ours is {context.controller_epoch}"
                    )
                state = found
                again.append(partition)
            context.leader_and_isr[partition] = state
            if state.leader != NO_LEADER:
                for replica in context.replicas(partition):
                    context.log_ends.get(replica, {}).pop(partition, None)
            if state.leader_recovery_state == RECOVERING:
                context.incomplete.get(state.leader, set()).discard(partition)
            self.request_batch.add_partition(context, partition)
            context.update_states(partition)
        yield from self.evaluate(context, again)
        return None


def partitions_without_live_leader(
    context: ControllerContext, partitions: Iterable[TopicPartition]
) -> Steps[list[TopicPartition]]:
    """Return those of *partitions* without a live leader."""
    unled = []
    for partition in partitions:
        yield
        state = context.leader_and_isr.get(partition)
        if state is None or not context.is_online(state.leader, partition):
            unled.append(partition)
    return unled
