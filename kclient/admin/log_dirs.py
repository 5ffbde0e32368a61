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
