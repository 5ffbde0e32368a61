"""How a topic goes: every replica deletes it and says so, then its znodes are removed.

Theory of operation
===================
`/admin/delete_topics/T` asks for it. The topic leaves the metadata at once; its replicas on live
brokers are told to stop and delete, with a leader epoch that overrides all others (KIP-570). Replicas
of dead brokers are *ineligible*: the deletion waits for them (S27), or the bytes of the old topic
would turn up under a new one of the same name. When the last replica confirmed, the znodes go.
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
    """Begin the deletion of *topics*; requests that cannot be honoured are dropped."""
    wanted = sorted(set(topics) - context.deleting)
    dropped = tuple(t for t in wanted if not enabled or t not in context.topics)
    effects: list[Effect] = [DeleteTopicDeletions(dropped)] if dropped else []
    for name in wanted:
        if name not in dropped:
            yield from _begin(context, name, request_batch)
            if _is_gone(context, name):
                effects.append(DeleteTopicZnodes(name))  # a topic without partitions
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
    """Tell the replica (OFFLINE) to delete, or mark it ineligible."""
    if context.is_online(replica, partition):
        context.move_replica(partition, replica, ReplicaState.DELETION_STARTED)
        request_batch.add_stop_replica(replica, partition, delete=True)
    else:
        context.move_replica(partition, replica, ReplicaState.DELETION_INELIGIBLE)


def on_broker_failure(context: ControllerContext, died: set[int]) -> None:
    """Replicas that were to delete on a broker that died have to be asked again."""
    for partition, replica in _replicas_on(context, died):
        if context.replica_states[partition, replica] is ReplicaState.DELETION_STARTED:
            context.move_replica(partition, replica, ReplicaState.DELETION_INELIGIBLE)


def on_broker_startup(
    context: ControllerContext, joined: set[int], request_batch: ControllerBrokerRequestBatch
) -> None:
    """Ask the brokers that came back to delete what they still hold."""
    for partition, replica in _replicas_on(context, joined):
        _try_again(context, partition, replica, request_batch)


def replicas_online(
    context: ControllerContext,
    broker_id: int,
    partitions: Iterable[TopicPartition],
    request_batch: ControllerBrokerRequestBatch,
) -> None:
    """Ask a broker to delete replicas that were offline, and are not any more."""
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
    """Note which replicas are gone; the znodes of topics that have none left go too."""
    touched: dict[str, None] = {}
    verdicts = [(p, ReplicaState.DELETION_SUCCESSFUL) for p in sorted(event.deleted)]
    verdicts += [(p, ReplicaState.DELETION_INELIGIBLE) for p in sorted(event.failed)]
    for partition, verdict in verdicts:
        key = (partition, event.broker_id)
        if context.replica_states.get(key) is ReplicaState.DELETION_STARTED:
            context.move_replica(partition, event.broker_id, verdict)
            touched[partition[0]] = None
    return [DeleteTopicZnodes(name) for name in touched if _is_gone(context, name)]


def _is_gone(context: ControllerContext, name: str) -> bool:
    return all(
        context.replica_states.get((partition, replica)) is ReplicaState.DELETION_SUCCESSFUL
        for partition in context.partitions_of(name)
        for replica in context.replicas(partition)
    )


def _replicas_on(
    context: ControllerContext, broker_ids: set[int]
) -> list[tuple[TopicPartition, int]]:
    """Replicas of topics being deleted that live on *broker_ids*."""
    return [
        (partition, replica)
        for name in sorted(context.deleting)
        for partition in context.partitions_of(name)
        for replica in context.replicas(partition)
        if replica in broker_ids
    ]
