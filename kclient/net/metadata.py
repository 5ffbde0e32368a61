"""A snapshot of the cluster, built from Metadata responses. Pure and immutable.

Any thread may read a snapshot; a newer one replaces it as a whole. Leader epochs only rise. A response of a broker with
old metadata does not move a partition back to its former leader (KIP-320). It does so if the topic was deleted and
created again (another topic id, KIP-516).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from kclient.errors import Address
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode
from kclient.wire.schema.metadata import MetadataResponse, MetadataResponseTopic

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker as it advertises itself."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        """Its advertised address."""
        return Address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition: its leader (-1 if none), replicas and ISR as broker ids."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic; *error_code* is the reason if it has no partitions."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The metadata of one moment. *updated_at* is the client's monotonic clock in seconds."""

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    cluster_id: str | None = None
    controller_id: int = -1
    updated_at: float = float("-inf")
    version: int = 0
    response: MetadataResponse | None = field(default=None, compare=False, repr=False)
    """What this was made of, if it was one response for all topics and nothing has changed since."""

    def partitions(self, topic: str) -> list[int] | None:
        """Return the partition numbers of *topic* in order, None if the topic is unknown."""
        found = self.topics.get(topic)
        if found is None or found.error_code:
            return None
        return sorted(found.partitions)

    def partition(self, tp: TopicPartition) -> PartitionMetadata | None:
        """Return the metadata of one partition, None if unknown."""
        found = self.topics.get(tp.topic)
        return None if found is None else found.partitions.get(tp.partition)

    def leader(self, tp: TopicPartition) -> int | None:
        """Return the leader's broker id, None if there is none or it is unknown."""
        found = self.partition(tp)
        return None if found is None or found.leader == NO_LEADER else found.leader

    def leader_epoch(self, tp: TopicPartition) -> int:
        """Return the partition's leader epoch, -1 if unknown."""
        found = self.partition(tp)
        return -1 if found is None else found.leader_epoch

    def topic_id(self, topic: str) -> UUID | None:
        """Return the id of *topic* (KIP-516), None if it has none or is unknown."""
        found = self.topics.get(topic)
        return None if found is None else found.topic_id

    def matching(self, pattern: re.Pattern[str], *, internal: bool) -> set[str]:
        """Return the topics with a name that *pattern* matches as a whole; *internal*: internal ones, too."""
        return {
            name
            for name, topic in self.topics.items()
            if pattern.fullmatch(name) and (internal or not topic.is_internal)
        }

    def without(self, topics: Iterable[str]) -> ClusterMetadata:
        """Return a snapshot without *topics*."""
        kept = {name: topic for name, topic in self.topics.items() if name not in set(topics)}
        return replace(self, topics=kept, version=self.version + 1, response=None)

    def updated(self, response: MetadataResponse, *, now: float, complete: bool) -> ClusterMetadata:
        """Return the snapshot after *response*; *complete* if the response covers all topics."""
        # A connection returns a response that is equal to the one before as the same object.
        if complete and response is self.response:
            return replace(self, updated_at=now, version=self.version + 1)
        topics = {} if complete else dict(self.topics)
        for answer in response.topics:
            if answer.name is not None:
                topics[answer.name] = _topic(answer, self.topics.get(answer.name))
        return ClusterMetadata(
            brokers={
                b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers
            },
            topics=topics,
            cluster_id=response.cluster_id or self.cluster_id,
            controller_id=response.controller_id,
            updated_at=now,
            version=self.version + 1,
            response=response if complete else None,
        )

    def with_leader(self, tp: TopicPartition, leader: int, leader_epoch: int) -> ClusterMetadata:
        """Return a snapshot with the leader in an error response (KIP-951), if it is newer."""
        known = self.partition(tp)
        if known is None or leader_epoch <= known.leader_epoch or leader not in self.brokers:
            return self
        topic = self.topics[tp.topic]
        changed = replace(known, leader=leader, leader_epoch=leader_epoch)
        partitions = {**topic.partitions, tp.partition: changed}
        topics = {**self.topics, tp.topic: replace(topic, partitions=partitions)}
        return replace(self, topics=topics, version=self.version + 1, response=None)


def _topic(answer: MetadataResponseTopic, known: TopicMetadata | None) -> TopicMetadata:
    topic_id = answer.topic_id if answer.topic_id and answer.topic_id.int else None
    same = known is not None and known.topic_id == topic_id
    name = answer.name or ""
    if answer.error_code and same and known is not None and _passing(answer.error_code):
        return known
    partitions = {}
    for p in answer.partitions:
        old = known.partitions.get(p.partition_index) if same and known is not None else None
        if old is not None and 0 <= p.leader_epoch < old.leader_epoch:
            partitions[p.partition_index] = old
            continue
        partitions[p.partition_index] = PartitionMetadata(
            topic=name,
            partition=p.partition_index,
            leader=p.leader_id,
            leader_epoch=p.leader_epoch,
            replicas=tuple(p.replica_nodes),
            isr=tuple(p.isr_nodes),
            offline_replicas=tuple(p.offline_replicas),
            error_code=p.error_code,
        )
    return TopicMetadata(name, topic_id, answer.is_internal, partitions, answer.error_code)


def _passing(code: int) -> bool:
    """Return whether an error is temporary, so that the former metadata stay valid."""
    return code == ErrorCode.LEADER_NOT_AVAILABLE
