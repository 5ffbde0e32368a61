"""How an elected controller takes over: load the tables, elect missing leaders, send everything to every broker.

Theory of operation
===================
All states were read before (BecameController). `initialize_context` loads the tables and sends every broker the live
brokers, and nothing else. So a broker knows every address before it gets a leader to follow (KAFKA-4443). Requested
topic deletions begin next. Then `startup` has two rounds:

1. Partitions without a live leader get one. That is written, and sent to the brokers.
2. All other partitions are evaluated: their ISR may have dead members. Every replica is sent its partition's state,
   changed or not, since the previous controller may have failed between a write and its requests.

So a partition without a leader does not wait for those with one. (Kafka sends all partitions at once, and those that it
changed a second time.)

Invariants: 1. every broker has been sent every partition, with what the first round wrote, by the end of that round;
2. every replica is sent its partition's state by a LeaderAndIsr of this epoch.

In: BecameController, the tables   Out: the tables, `writes`   Owner: state_machine
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
    """Load what was read; send the live brokers to every broker before anything else."""
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
    """Elect, write and send: partitions without a live leader first."""
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
            writes.request_batch.add_partition(context, partition)  # also where nothing was written
    yield from writes.take_requests(context)
    yield from _send_leader_and_isr(context, done, writes)


def _send_leader_and_isr(
    context: ControllerContext, done: Iterable[TopicPartition], writes: StateWrites
) -> Steps[None]:
    """Evaluate all partitions but *done*, and send their state to their replicas."""
    but = frozenset(done)
    rest = [partition for partition in context.partitions() if partition not in but]
    for partition in rest:
        yield
        if partition in context.leader_and_isr:
            writes.request_batch.add_leader_and_isr(context, partition)
    yield from writes.evaluate(context, rest)
