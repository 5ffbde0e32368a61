"""How a controller takes over: it looks at everything, serves who has no leader, then tells everybody everything once.

Theory of operation
===================
All states were read before (BecameController). `initialize_context` takes them into the tables and has the brokers
told at once who lives where, and nothing else: a broker learns where everyone is before it is told whom to follow
(KAFKA-4443). Deletions that were asked for begin next. Then `startup`, in two rounds:

1. partitions that nobody leads who lives get leaders; that is written and announced;
2. all others are evaluated too (their ISR may hold the dead), and whatever came of it their replicas are told their
   state: the predecessor may have died between a write and its announcement.

Nobody without a leader waits until everybody who has one was confirmed. (Kafka tells all partitions at once, and those
that it changed again.)

Invariants: 1. every broker is told of every partition, with what the first round wrote, by the end of that round;
2. every replica is told its partition's state by a LeaderAndIsr of this epoch.

In: BecameController, the tables   Out: the tables, `writes`   Owner: machine
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import ControllerContext
from kbroker.controller.core.effects import OpenChannel, SendUpdateMetadata
from kbroker.controller.core.events import BecameController
from kbroker.controller.core.state_writes import StateWrites, partitions_without_live_leader


def initialize_context(
    context: ControllerContext, event: BecameController, writes: StateWrites
) -> Steps[None]:
    """Take in what was read; say to the brokers, before anything else, who lives."""
    for partition in context.partitions():
        yield
        context.load(partition, event.leader_and_isr.get(partition))
    writes.effects += [OpenChannel(context.brokers[b]) for b in sorted(context.brokers)]
    writes.request_batch.brokers_changed = True
    everyone = yield from writes.request_batch.take_effects(context)
    writes.effects += [
        replace(effect, before_leaders=True) if isinstance(effect, SendUpdateMetadata) else effect
        for effect in everyone
    ]
    writes.request_batch.full_metadata_to |= context.brokers.keys()


def startup(context: ControllerContext, writes: StateWrites) -> Steps[None]:
    """Have everything led, written and told, those first who have no leader."""
    unled = yield from partitions_without_live_leader(context, context.partitions())
    if unled:
        writes.then(lambda context: _others(context, unled, writes))
        yield from writes.evaluate(context, unled)
    else:
        yield from _send_leader_and_isr(context, (), writes)


def _others(
    context: ControllerContext, done: list[TopicPartition], writes: StateWrites
) -> Steps[None]:
    for partition in done:
        yield
        if partition in context.leader_and_isr:
            writes.request_batch.add_partition(
                context, partition
            )  # also of those where nothing was written
    yield from writes.take_requests(context)
    yield from _send_leader_and_isr(context, done, writes)


def _send_leader_and_isr(
    context: ControllerContext, done: Iterable[TopicPartition], writes: StateWrites
) -> Steps[None]:
    """Tell the replicas of all partitions but these what their state is, once it is what it should be."""
    but = frozenset(done)
    rest = [partition for partition in context.partitions() if partition not in but]
    for partition in rest:
        yield
        if partition in context.leader_and_isr:
            writes.request_batch.add_leader_and_isr(context, partition)
    yield from writes.evaluate(context, rest)
