"""How a topic is deleted: every replica deletes its log and confirms it, then the znodes are deleted.

Theory of operation
===================
`/admin/delete_topics/T` requests it. The topic leaves the metadata at once. Its replicas on live brokers get a
StopReplica with delete, with a leader epoch that is above all others (KIP-570). Replicas on dead brokers are
*ineligible*: the deletion waits for them (S27). The old topic's records would otherwise turn up under a new topic of
the same name. When the last replica has confirmed, the znodes are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.common.steps import Steps
from kbroker.common.topic_partition import TopicPartition
from kbroker.controller.core.context import ControllerContext
from kbroker.controller.core.effects import DeleteTopicDeletions, DeleteTopicZnodes, Effect
from kbroker.controller.core.events import StopReplicaAcked
from kbroker.controller.core.request_batch import ControllerBrokerRequestBatch
from kbroker.controller.core.states import PartitionState, ReplicaState


def request(
    context: ControllerContext,
    topics: Iterable[str],
    request_batch: ControllerBrokerRequestBatch,
    *,
    enabled: bool,
) -> Steps[list[Effect]]:
    """Begin the deletion of *topics*; requests that cannot be fulfilled are removed."""
    wanted = sorted(set(topics) - context.deleting)
    dropped = tuple(t for t in wanted if not enabled or t not in context.topics)
    effects: list[Effect] = [DeleteTopicDeletions(dropped)] if dropped else []
    for name in wanted:
        if name not in dropped:
            yield from _begin(context, name, request_batch)
            if _is_gone(context, name):
                effects.append(_delete_znodes(context, name))  # a topic without partitions
    return effects


def _begin(
    context: ControllerContext, name: str, request_batch: ControllerBrokerRequestBatch
) -> Steps[None]:
    context.deleting.add(name)
    for partition in context.partitions_of(name):
        yield
        request_batch.metadata.add(partition)
        context.move_partition(partition, PartitionState.OFFLINE)
        context.move_partition(partition, PartitionState.NON_EXISTENT)
        for replica in context.replicas(partition):
            context.move_replica(partition, replica, ReplicaState.OFFLINE)
            _try_replica(context, partition, replica, request_batch)


def _try_replica(
    context: ControllerContext,
    partition: TopicPartition,
    replica: int,
    request_batch: ControllerBrokerRequestBatch,
) -> None:
    """Send a StopReplica with delete to the replica (OFFLINE), or mark it ineligible."""
    if context.is_online(replica, partition):
        context.move_replica(partition, replica, ReplicaState.DELETION_STARTED)
        request_batch.add_stop_replica(replica, partition, delete=True)
    else:
        context.move_replica(partition, replica, ReplicaState.DELETION_INELIGIBLE)


def on_broker_failure(context: ControllerContext, died: set[int]) -> None:
    """Mark replicas ineligible that had not confirmed their deletion when their broker died."""
    for partition, replica in _replicas_on(context, died):
        if context.replica_states[partition, replica] is ReplicaState.DELETION_STARTED:
            context.move_replica(partition, replica, ReplicaState.DELETION_INELIGIBLE)


def on_broker_startup(
    context: ControllerContext, joined: set[int], request_batch: ControllerBrokerRequestBatch
) -> None:
    """Send the brokers that are back a StopReplica for what they still hold."""
    for partition, replica in _replicas_on(context, joined):
        _try_again(context, partition, replica, request_batch)


def replicas_online(
    context: ControllerContext,
    broker_id: int,
    partitions: Iterable[TopicPartition],
    request_batch: ControllerBrokerRequestBatch,
) -> None:
    """Send a broker a StopReplica for replicas that were offline, and are not any more."""
    for partition in partitions:
        if partition[0] in context.deleting:
            _try_again(context, partition, broker_id, request_batch)


def _try_again(
    context: ControllerContext,
    partition: TopicPartition,
    replica: int,
    request_batch: ControllerBrokerRequestBatch,
) -> None:
    if context.replica_states[partition, replica] is ReplicaState.DELETION_INELIGIBLE:
        context.move_replica(partition, replica, ReplicaState.OFFLINE)
        _try_replica(context, partition, replica, request_batch)


def replicas_stopped(context: ControllerContext, event: StopReplicaAcked) -> list[Effect]:
    """Update the replicas that were deleted; delete the znodes of topics with no replica left."""
    touched: dict[str, None] = {}
    verdicts = [(p, ReplicaState.DELETION_SUCCESSFUL) for p in sorted(event.deleted)]
    verdicts += [(p, ReplicaState.DELETION_INELIGIBLE) for p in sorted(event.failed)]
    for partition, verdict in verdicts:
        key = (partition, event.broker_id)
        if context.replica_states.get(key) is ReplicaState.DELETION_STARTED:
            context.move_replica(partition, event.broker_id, verdict)
            touched[partition[0]] = None
    return [_delete_znodes(context, name) for name in touched if _is_gone(context, name)]


def _delete_znodes(context: ControllerContext, name: str) -> Effect:
    return DeleteTopicZnodes(name, context.topics[name].topic_id)


def _is_gone(context: ControllerContext, name: str) -> bool:
    return all(
        context.replica_states.get((partition, replica)) is ReplicaState.DELETION_SUCCESSFUL
        for partition in context.partitions_of(name)
        for replica in context.replicas(partition)
    )


def _replicas_on(
    context: ControllerContext, broker_ids: set[int]
) -> list[tuple[TopicPartition, int]]:
    """Return the replicas on *broker_ids* of topics that are being deleted."""
    return [
        (partition, replica)
        for name in sorted(context.deleting)
        for partition in context.partitions_of(name)
        for replica in context.replicas(partition)
        if replica in broker_ids
    ]
