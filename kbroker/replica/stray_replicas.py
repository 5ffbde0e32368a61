"""Replicas that this broker still has and that were moved away: deleted when the controller tells of all there is.

A broker that was down when a partition moved to others, or whose controller died before it could say so, never got
the StopReplica. Every new controller, and the controller after every start of this broker, tells all partitions with
their replicas (UpdateMetadata of type FULL): what is on our disks, of the same topic id, led by another broker, and
not assigned to us, is left over. It is given up as if StopReplica had come now, with its fences: a controller that
was deposed, and one that has not heard of our latest role, delete nothing.

Roles from before our last registration that were not confirmed since are given up, too, without touching the log: the
topic was deleted while the controller could not reach us and had us no longer among its replicas.

Logs of topics that the controller does not name stay: it may not have been able to read their znode (S25).

Owner: the reactor's thread
"""

from __future__ import annotations

from collections import Counter

from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.metadata.metadata_cache import MetadataCache, TopicMetadata
from kbroker.replica.become_leader_or_follower import PARTITIONS_LOGGED
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataRequest,
)

log = Logger()


class StrayReplicas:
    """What is left over on the disks of this broker."""

    def __init__(self, replica_manager: ReplicaManager, cache: MetadataCache) -> None:
        self._replica_manager = replica_manager
        self._cache = cache

    async def stop_recreated_topics(self, told: UpdateMetadataRequest) -> None:
        """Give up the roles of a deleted topic whose name *told* gives to another topic."""
        await self._replica_manager.state_changes.stop_recreated_topics(told)

    async def remove(self, told: UpdateMetadataRequest) -> None:
        """Delete what *told*, which the cache has taken in, does not assign to us; some in every turn."""
        await self._replica_manager.state_changes.stop_unconfirmed(told)
        await self._replica_manager.state_changes.stop_recreated_topics(told)
        topics: dict[str, StopReplicaTopicState] = {}
        for key in list(self._replica_manager.log_manager):
            topic = self._cache.topic(key[0])
            if topic is not None and self._is_stray(key, topic):
                state = topics.setdefault(key[0], StopReplicaTopicState(key[0]))
                epoch = topic.partitions[key[1]].leader_epoch
                state.partition_states.append(StopReplicaPartitionState(key[1], epoch, True))
        if not topics:
            return
        answer = await self._replica_manager.state_changes.stop_replicas(
            StopReplicaRequest(
                controller_id=told.controller_id,
                controller_epoch=told.controller_epoch,
                broker_epoch=told.broker_epoch,
                topic_states=list(topics.values()),
            )
        )
        if len(answer.partition_errors) > PARTITIONS_LOGGED:
            codes = Counter(ErrorCode(done.error_code).name for done in answer.partition_errors)
            log.warn(
                "deleting {count} partitions, which were moved to other brokers: {codes}",
                count=len(answer.partition_errors),
                codes=", ".join(f"{code} {number}" for code, number in codes.items()),
            )
            return
        for done in answer.partition_errors:
            log.warn(
                "deleting {topic}-{index}, which was moved to other brokers: {outcome}",
                topic=done.topic_name, index=done.partition_index,
                outcome=ErrorCode(done.error_code).name,
            )  # fmt: skip

    def _is_stray(self, key: TopicPartition, topic: TopicMetadata) -> bool:
        found = self._replica_manager.log_manager.get(*key)
        known = topic.partitions.get(key[1])
        if found is None or known is None or known.leader < 0:
            return False
        ours = self._replica_manager.broker_id
        whose = found.metadata
        return (
            whose.topic_id == topic.topic_id is not None
            and whose.partition in (None, key[1])
            and ours not in known.replicas
        )
