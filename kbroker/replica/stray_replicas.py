"""Stray replicas: logs here of partitions that are assigned to other brokers; a full UpdateMetadata deletes them.

A broker that was down during a reassignment, or that has a controller which died before its StopReplica, never received
the StopReplica. Every new controller sends all partitions with their replicas (UpdateMetadata of type FULL), and the
controller does so after every start of this broker. A log of the same topic id that another broker leads, and that is
not assigned to this broker, is a stray. It is deleted as if its StopReplica had arrived, with the same fences. A fenced
controller, and one that does not know our latest role, delete nothing. While the partition has no leader, a stray waits
for the UpdateMetadata that names one: it may be the last log with the records. With the deletion of its topic it is
deleted, too: the controller sends the StopReplica of the deletion to the assigned replicas only.

Roles from before our last registration that were not confirmed since are stopped, too. Their logs stay. The topic was
deleted while the controller could not reach this broker and no longer counted it among the replicas.

Logs of topics that the controller does not name stay: it may not have been able to read their znodes (S25). If a topic
has no znode, it was deleted, and this broker stops hosting it. The StopReplica was lost with a controller that could
not reach this broker.

Owner: the reactor's thread
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias
from uuid import UUID

from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.metadata.metadata_cache import MetadataCache, PartitionMetadata
from kbroker.replica.become_leader_or_follower import PARTITIONS_LOGGED
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import RequestTimedOut
from kclient.wire.interbroker import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataRequest,
)

log = Logger()

DeletedOf: TypeAlias = Callable[[Collection[str]], Awaitable[set[str]]]
"""`AdminManager.deleted_of`: those of the topics with these names that have no znode."""


class StrayReplicas:
    """Deletes the stray replicas of this broker."""

    def __init__(
        self, replica_manager: ReplicaManager, cache: MetadataCache, deleted_of: DeletedOf
    ) -> None:
        self._replica_manager = replica_manager
        self._cache = cache
        self._deleted_of = deleted_of
        self.waiting: set[TopicPartition] = set()
        """Strays of partitions that have no leader."""

    async def remove(self, request: UpdateMetadataRequest) -> None:
        """Delete the replicas that *request*, which the cache has applied, does not assign to this broker."""
        await self._replica_manager.state_changes.stop_unconfirmed(request)
        await self._replica_manager.state_changes.stop_recreated_topics(request)
        self.waiting = {key for key in self._replica_manager.log_manager if self._is_stray(key)}
        await self._delete_led(request, self.waiting)
        await self._delete_with_topics(request)
        await self._stop_deleted_topics(request)

    async def remove_led(self, request: UpdateMetadataRequest) -> None:
        """Delete the strays that wait for the leader of their partition, if *request* names it."""
        if self.waiting:
            names = {topic.topic_name for topic in request.topic_states}
            found = {key for key in self.waiting if key[0] in names and self._is_stray(key)}
            await self._delete_led(request, found)
        await self._delete_with_topics(request)

    async def _delete_with_topics(self, request: UpdateMetadataRequest) -> None:
        """Delete the strays of the topics that *request* deletes."""
        topics: dict[str, StopReplicaTopicState] = {}
        for topic in request.topic_states:
            for state in topic.partition_states:
                if state.leader == LEADER_DURING_DELETE and self._is_assigned_to_others(
                    (topic.topic_name, state.partition_index), topic.topic_id, state.replicas
                ):
                    stops = topics.setdefault(
                        topic.topic_name, StopReplicaTopicState(topic.topic_name)
                    )
                    stops.partition_states.append(
                        StopReplicaPartitionState(state.partition_index, EPOCH_DURING_DELETE, True)
                    )
        await self._stop(request, topics)

    async def _stop_deleted_topics(self, request: UpdateMetadataRequest) -> None:
        """Stop hosting topics that neither the controller nor ZooKeeper has."""
        hosted = self._replica_manager.registry.partitions
        unnamed = {key: partition for key, partition in hosted.items() if self._known(key) is None}
        if unnamed:
            with suppress(RequestTimedOut):  # cut off from ZooKeeper: with the next full update
                gone = await self._deleted_of({topic for topic, _ in unnamed})
                await self._replica_manager.state_changes.stop_deleted_topics(
                    request, [partition for key, partition in unnamed.items() if key[0] in gone]
                )

    async def _delete_led(
        self, request: UpdateMetadataRequest, strays: Iterable[TopicPartition]
    ) -> None:
        topics: dict[str, StopReplicaTopicState] = {}
        for key in sorted(strays):
            known = self._known(key)
            if known is not None and known.leader >= 0:
                self.waiting.discard(key)
                state = topics.setdefault(key[0], StopReplicaTopicState(key[0]))
                state.partition_states.append(
                    StopReplicaPartitionState(key[1], known.leader_epoch, True)
                )
        await self._stop(request, topics)

    async def _stop(
        self, request: UpdateMetadataRequest, topics: dict[str, StopReplicaTopicState]
    ) -> None:
        if not topics:
            return
        answer = await self._replica_manager.state_changes.stop_replicas(
            StopReplicaRequest(
                controller_id=request.controller_id,
                controller_epoch=request.controller_epoch,
                broker_epoch=request.broker_epoch,
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

    def _known(self, key: TopicPartition) -> PartitionMetadata | None:
        topic = self._cache.topic(key[0])
        return topic.partitions.get(key[1]) if topic is not None else None

    def _is_stray(self, key: TopicPartition) -> bool:
        """Return whether there is a log of this partition, which is assigned to other brokers."""
        topic, known = self._cache.topic(key[0]), self._known(key)
        if topic is None or known is None:
            return False
        return self._is_assigned_to_others(key, topic.topic_id, known.replicas)

    def _is_assigned_to_others(
        self, key: TopicPartition, topic_id: UUID | None, replicas: Sequence[int]
    ) -> bool:
        """Return whether there is a log of this partition of that topic here, and *replicas* are other brokers."""
        found = self._replica_manager.log_manager.get(*key)
        return (
            found is not None
            and found.metadata.topic_id == topic_id is not None
            and found.metadata.partition in (None, key[1])
            and self._replica_manager.broker_id not in replicas
        )
