"""Topics that are created, grow, or vanish, as their znodes say.

Theory of operation
===================
TopicsChanged carries what was read of topics that are new or not as they were, and the names of those whose znodes are
gone. A partition that was not known gets its first state: its first live replica leads, all live ones are the ISR. A
known partition keeps its replicas whatever the znode says now: they move by reassignment alone (`reassignment`).
A topic under another id is another topic: the old one is forgotten first. Forgotten is also a topic whose znodes
somebody removed by hand; then the brokers are told that it is gone, so that they stop serving it. The orderly way is
`topic_deletion`: what is being deleted does not grow, nor come back, until its znodes are gone.

Invariants: 1. replicas of a known partition are not changed here; 2. a name under another id begins
anew: without the states and replicas of its predecessor.

In: TopicsChanged, the tables   Out: the tables, `writes`   Owner: machine
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
    """Take in topics as they are now; have their new partitions led."""
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
    """Take in *topic*'s partitions that are not known yet; a known one keeps its replicas."""
    if known is not None:
        # Replicas of known partitions move by reassignment, never because a znode says so.
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
    """Drop a topic whose znodes vanished; brokers are told so that they stop serving it."""
    reassignments.topic_changed(name)
    if name not in context.topics:
        return
    if name not in context.deleting:
        # Somebody removed the znodes by hand, past the controller.
        context.deleting.add(name)
        writes.request_batch.metadata |= set(context.partitions_of(name))
        yield from writes.take_requests(context)
    context.remove_topic(name)
