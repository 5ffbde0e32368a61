"""Log directories, requested from each broker (KIP-113)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kclient.errors import KafkaError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.group_offsets import by_topic
from kclient.net.waiting import settled_by
from kclient.types import TopicPartition
from kclient.wire.schema.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from kclient.wire.schema.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from kclient.wire.versions import ApiKey


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica in a log directory.

    *size* in bytes. *offset_lag* is the distance of its log end below the high watermark, for a future replica below
    its current replica; -1 if unknown.
    """

    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory with its replicas; *error* if it failed. Sizes are in bytes, -1 if unknown."""

    path: str
    replicas: Mapping[TopicPartition, ReplicaInfo]
    total_bytes: int = -1
    usable_bytes: int = -1
    error: KafkaError | None = None

    @property
    def size(self) -> int:
        """Bytes of all replicas in the response."""
        return sum(replica.size for replica in self.replicas.values())


LogDirs = dict[str, LogDir]
"""A broker's directories by path."""


async def describe_log_dirs(
    cluster: Cluster,
    brokers: Iterable[int],
    *,
    tps: Iterable[TopicPartition] | None,
    timeout: float,
) -> dict[int, LogDirs | KafkaError]:
    """Request the directories of each of *brokers*, with all replicas or those of *tps*."""
    topics = (
        None if tps is None else [DescribableLogDirTopic(*each) for each in by_topic(tps).items()]
    )
    request = DescribeLogDirsRequest(topics)

    async def one(node: int) -> LogDirs:
        async def attempt() -> LogDirs:
            response = await cluster.request(node, ApiKey.DESCRIBE_LOG_DIRS, request)
            if response.error_code:
                raise error_of(response.error_code, f"log directories of broker {node}")
            return {result.log_dir: _log_dir(node, result) for result in response.results}

        what = f"log directories of broker {node}"
        return await cluster.retrying(attempt, timeout=timeout, what=what)

    return await settled_by(brokers, one)


LogDirMoves = Mapping[int, Mapping[TopicPartition, str]]
"""By broker: the path of a log directory for each of its replicas."""


async def alter_replica_log_dirs(
    cluster: Cluster, moves: LogDirMoves, *, timeout: float
) -> dict[int, dict[TopicPartition, KafkaError | None] | KafkaError]:
    """Ask each broker of *moves* to move its replicas; return the errors of the replicas, or that of the broker."""

    async def one(node: int) -> dict[TopicPartition, KafkaError | None]:
        paths: dict[str, list[TopicPartition]] = {}
        for tp, path in moves[node].items():
            paths.setdefault(path, []).append(tp)
        request = AlterReplicaLogDirsRequest(
            [
                AlterReplicaLogDir(
                    path, [AlterReplicaLogDirTopic(*each) for each in by_topic(tps).items()]
                )
                for path, tps in paths.items()
            ]
        )

        async def attempt() -> dict[TopicPartition, KafkaError | None]:
            response = await cluster.request(node, ApiKey.ALTER_REPLICA_LOG_DIRS, request)
            return {
                TopicPartition(topic.topic_name, each.partition_index): error_of(
                    each.error_code, f"{topic.topic_name}-{each.partition_index} on broker {node}"
                )
                if each.error_code
                else None
                for topic in response.results
                for each in topic.partitions
            }

        what = f"moves between log directories of broker {node}"
        return await cluster.retrying(attempt, timeout=timeout, what=what)

    return await settled_by(moves, one)


def _log_dir(node: int, found: DescribeLogDirsResult) -> LogDir:
    return LogDir(
        found.log_dir,
        {
            TopicPartition(topic.name, p.partition_index): ReplicaInfo(
                p.partition_size, p.offset_lag, p.is_future_key
            )
            for topic in found.topics
            for p in topic.partitions
        },
        found.total_bytes,
        found.usable_bytes,
        error_of(found.error_code, f"{found.log_dir} of broker {node}")
        if found.error_code
        else None,
    )
