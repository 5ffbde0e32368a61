"""Topics that are created, get more partitions, or vanish, as their znodes show.

Theory of operation
===================
TopicsChanged carries topics that are new or changed, and the names of topics without a znode. A new partition gets its
first state: its first live replica leads, all live replicas are the ISR. A known partition keeps its replicas whatever
the znode holds: only `reassignment` changes them. A topic with another id is another topic: the old one is removed
first. A topic with znodes that were removed by hand is removed, too, and the brokers stop serving it. The orderly way
is `topic_deletion`: a topic that is being deleted does not grow, nor come back, until its znodes are gone.

Invariants: 1. the replicas of a known partition are not changed here; 2. a name with another topic id starts without
the states and replicas of its predecessor.

In: TopicsChanged, the tables   Out: the tables, `writes`   Owner: state_machine
"""

from __future__ import annotations

from dataclasses import replace

from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import ControllerContext, Topic
from kbroker.controller.core.events import TopicsChanged
from kbroker.controller.core.reassignment import Reassignments
from kbroker.controller.core.state_writes import StateWrites


def on_topics_changed(
    context: ControllerContext,
    event: TopicsChanged,
    writes: StateWrites,
    reassignments: Reassignments,
) -> Steps[None]:
    """Update the topics; elect first leaders of their new partitions."""
    for name in sorted(event.vanished):
        yield from _remove_topic(context, name, writes, reassignments)
    created: list[TopicPartition] = []
    for topic in event.topics:
        reassignments.topic_changed(topic.name)
        known = context.topics.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id:
            yield from _remove_topic(context, topic.name, writes, reassignments)
            known = None
        if topic.name in context.deleting:
            continue
        created += yield from _add_partitions(context, topic, known)
    writes.request_batch.new_partitions |= set(created)
    yield from writes.evaluate(context, created)


def _add_partitions(
    context: ControllerContext, topic: Topic, known: Topic | None
) -> Steps[list[TopicPartition]]:
    """Add the partitions of *topic* that are not known; known ones keep their replicas."""
    if known is not None:
        # Only a reassignment changes the replicas of a known partition, never the znode's content.
        assignment = {**topic.assignment, **known.assignment}
        topic = replace(topic, assignment=assignment, being_reassigned=known.being_reassigned)
    context.topics[topic.name] = topic
    fresh = [
        (topic.name, index)
        for index in sorted(topic.assignment)
        if known is None or index not in known.assignment
    ]
    for partition in fresh:
        yield
        context.load(partition, None)
    return fresh


def _remove_topic(
    context: ControllerContext, name: str, writes: StateWrites, reassignments: Reassignments
) -> Steps[None]:
    """Remove a topic without znodes; brokers are sent its end, so that they stop serving it."""
    reassignments.topic_changed(name)
    if name not in context.topics:
        return
    if name not in context.deleting:
        # The znodes were removed by hand, not by the controller.
        context.deleting.add(name)
        writes.request_batch.metadata |= set(context.partitions_of(name))
        yield from writes.take_requests(context)
    context.remove_topic(name)
