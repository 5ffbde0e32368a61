"""Brokers that fail, start, or ask to shut down: what their partitions need.

Theory of operation
===================
The registrations that were read are compared with the tables (`changes`). A broker with another epoch has restarted: it
failed and then started (KIP-380). Its previous registration is first taken out of every ISR; when that has settled and
its requests have left, the machine processes the start (`BrokersJoined`).

*Failure*: all that was known of the broker is dropped. Its partitions are evaluated in two rounds: first those without
a live leader, which are written and sent, then those that lost a follower. *Start*: the broker is sent all partitions,
and those it leads and follows. Its partitions are evaluated, as some may have waited for it. Topic deletions that
waited for it continue. *Controlled shutdown*: the broker counts as failed wherever another replica can lead. The
partitions that it leads are evaluated first, in steps of some hundred (docs/design/controlled-shutdown.md), then all.
When these have settled, its followers are stopped, so that they do not rejoin an ISR. The answer has the partitions
that it still leads; the broker asks again until there are none. Partitions with one replica are left out, since no
other replica can lead them.

Invariants: 1. a broker in the tables has a channel, and no other has; 2. nothing that was reported under one broker
epoch counts for the next; 3. a broker is shutting down until its registration is gone; 4. every step of a controlled
shutdown leaves fewer partitions to the later ones.

In: BrokersChanged, ControlledShutdownRequested, the tables   Out: the tables, `writes`   Owner: state_machine
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core import topic_deletion
from kbroker.controller.core.context import Broker, ControllerContext
from kbroker.controller.core.effects import (
    AnswerControlledShutdown,
    CloseChannel,
    ContinueControlledShutdown,
    OpenChannel,
    ShutdownOutcome,
)
from kbroker.controller.core.events import BrokersChanged, ControlledShutdownRequested
from kbroker.controller.core.state_writes import StateWrites, partitions_without_live_leader


@dataclass(frozen=True, slots=True)
class BrokersJoined:
    """The second half of BrokersChanged, when the failures have settled."""

    brokers: tuple[Broker, ...]


def changes(
    context: ControllerContext, event: BrokersChanged, writes: StateWrites
) -> tuple[set[int], BrokersJoined | None]:
    """Return the brokers that failed and those to start; update the endpoints of the others."""
    died, joined = set(), []
    for broker_id, known in context.brokers.items():
        present = event.brokers.get(broker_id)
        if present is None or present.epoch != known.epoch:
            died.add(broker_id)
    for broker_id, present in sorted(event.brokers.items()):
        if broker_id not in context.brokers or broker_id in died:
            joined.append(present)
        elif present != context.brokers[broker_id]:
            # The same registration with other endpoints (KAFKA-3334's dynamic listeners).
            context.brokers[broker_id] = present
            writes.request_batch.brokers_changed = True
    return died, BrokersJoined(tuple(joined)) if joined else None


def on_broker_failure(
    context: ControllerContext, died: set[int], writes: StateWrites
) -> Steps[None]:
    """Elect other leaders, and remove the brokers that *died* from every ISR."""
    for broker_id in sorted(died):
        del context.brokers[broker_id]
        context.shutting_down.discard(broker_id)
        context.replicas_on_offline_dirs.pop(broker_id, None)
        context.incomplete.pop(broker_id, None)
        context.log_ends.pop(broker_id, None)
        writes.effects.append(CloseChannel(broker_id))
    writes.request_batch.brokers_changed = True
    topic_deletion.on_broker_failure(context, died)
    touched = context.partitions_on(died)
    unled = yield from partitions_without_live_leader(context, touched)
    if not unled:
        yield from _shrink(context, touched, writes)
        return
    writes.then(lambda context: _shrink_the_rest(context, touched, unled, writes))
    yield from _shrink(context, unled, writes)


def _shrink_the_rest(
    context: ControllerContext,
    touched: Iterable[TopicPartition],
    done: Iterable[TopicPartition],
    writes: StateWrites,
) -> Steps[None]:
    yield from writes.take_requests(context)
    but = frozenset(done)
    yield from _shrink(context, [p for p in touched if p not in but], writes)


def _shrink(
    context: ControllerContext, touched: Collection[TopicPartition], writes: StateWrites
) -> Steps[None]:
    # Their offline replicas changed even where neither leader nor ISR does.
    writes.request_batch.metadata |= set(touched)
    yield from writes.evaluate(context, touched)


def on_broker_startup(
    context: ControllerContext, event: BrokersJoined, writes: StateWrites
) -> Steps[None]:
    """Send the new brokers everything; elect leaders of partitions that waited for them."""
    ids = {b.broker_id for b in event.brokers}
    for broker in event.brokers:
        context.brokers[broker.broker_id] = broker
        writes.effects.append(OpenChannel(broker))
    writes.request_batch.brokers_changed = True
    writes.request_batch.full_metadata_to |= ids
    touched = context.partitions_on(ids)
    for partition in touched:
        yield
        for broker_id in ids.intersection(context.replicas(partition)):
            writes.request_batch.leader_and_isr.setdefault(broker_id, set()).add(partition)
    writes.request_batch.metadata |= set(touched)
    yield from writes.evaluate(context, touched)
    topic_deletion.on_broker_startup(context, ids, writes.request_batch)


def controlled_shutdown(
    context: ControllerContext,
    event: ControlledShutdownRequested,
    writes: StateWrites,
    partitions_per_step: int,
) -> Steps[None]:
    """Move leadership off the broker, one step per event; answer when all steps have settled."""
    broker = context.brokers.get(event.broker_id)
    if broker is None:
        outcome = ShutdownOutcome.BROKER_NOT_AVAILABLE
    elif event.broker_epoch != broker.epoch:
        # Also an unknown epoch: a delayed request of an earlier process would keep its next one out of every ISR.
        outcome = ShutdownOutcome.STALE_BROKER_EPOCH
    else:
        if event.broker_id not in context.shutting_down:
            context.shutting_down.add(event.broker_id)
            # Leaders add it to no ISR any more (KAFKA-14140).
            writes.request_batch.brokers_changed = True
        left = event.left
        if left is None:
            left = yield from _replicated(context, event.broker_id, only_led=True)
        step, left = left[:partitions_per_step], left[partitions_per_step:]
        if step:
            following = ContinueControlledShutdown(event.broker_id, broker.epoch, left)
            writes.then(lambda context: _continue(following, writes))
        else:
            # Also those of earlier steps: their new leaders may have changed the ISR since.
            step = yield from _replicated(context, event.broker_id)
            writes.then(lambda context: _shutdown_settled(context, event, writes))
        yield from writes.evaluate(context, step)
        return
    writes.effects.append(AnswerControlledShutdown(outcome))


def _replicated(
    context: ControllerContext, broker_id: int, *, only_led: bool = False
) -> Steps[tuple[TopicPartition, ...]]:
    """Return the partitions with more than one replica of which the broker has one, or those that it leads."""
    found: list[TopicPartition] = []
    for partition in context.partitions_on([broker_id]):
        yield
        if len(context.replicas(partition)) > 1:
            state = context.leader_and_isr.get(partition)
            if not only_led or (state is not None and state.leader == broker_id):
                found.append(partition)
    return tuple(found)


def _continue(following: ContinueControlledShutdown, writes: StateWrites) -> Steps[None]:
    yield
    writes.effects.append(following)


def _shutdown_settled(
    context: ControllerContext, event: ControlledShutdownRequested, writes: StateWrites
) -> Steps[None]:
    """Stop the followers on the broker, so that they do not rejoin an ISR, and answer."""
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
            writes.request_batch.add_stop_replica(event.broker_id, partition, delete=False)
    writes.effects.append(AnswerControlledShutdown(ShutdownOutcome.MOVED, tuple(sorted(remaining))))
