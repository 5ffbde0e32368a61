"""DescribeLogDirs (35): which replicas are in which log directory, how large, and how far behind (KIP-113, KIP-827).

Versions served: 1-4 (v2 flexible, v3 top-level error code, v4 total and usable bytes of the file system).

A broker answers for itself only. No topics (null) means all; a directory without any of the requested ones is listed
all the same. `partition_size` counts the bytes of the segments, without indexes. `offset_lag` is how far the log end is
below the high watermark as this replica knows it, 0 for a leader. A log that moves to another directory (KIP-113) has a
copy there (is_future_key), with its offset_lag below the log end of the current log. A failed directory has
KAFKA_STORAGE_ERROR, no topics, and -1 for its space.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection

from kbroker.apis.request import RequestContext
from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import Slice
from kbroker.log.unified_log import UnifiedLog
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

UNKNOWN_BYTES = -1
UNKNOWN_LAG = -1

Space = tuple[int, int]
"""Total and usable bytes of a file system."""


class DescribeLogDirs:
    """Answers DescribeLogDirs. *space_of* queries the file systems in a thread, where one may hang."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        space_of: Callable[[Collection[str]], Awaitable[dict[str, Space]]],
    ) -> None:
        self._replica_manager = replica_manager
        self._space_of = space_of

    async def __call__(
        self, context: RequestContext, request: DescribeLogDirsRequest
    ) -> DescribeLogDirsResponse:
        """Answer with every directory, the failed ones with an error."""
        space = await self._space_of(self._replica_manager.log_manager.online)
        return await self._answer(_wanted(request), space, context.turns.slice())

    async def _answer(
        self, wanted: Collection[TopicPartition] | None, space: dict[str, Space], share: Slice
    ) -> DescribeLogDirsResponse:
        log_manager = self._replica_manager.log_manager
        results = {
            path: DescribeLogDirsResult(
                log_dir=path,
                total_bytes=space.get(path, (UNKNOWN_BYTES, UNKNOWN_BYTES))[0],
                usable_bytes=space.get(path, (UNKNOWN_BYTES, UNKNOWN_BYTES))[1],
            )
            for path in log_manager.online
        }
        topics: dict[tuple[str, str], DescribeLogDirsTopic] = {}

        def topic_in(path: str, name: str) -> DescribeLogDirsTopic:
            topic = topics.get((path, name))
            if topic is None:
                topic = topics[path, name] = DescribeLogDirsTopic(name)
                results[path].topics.append(topic)
            return topic

        for key in sorted(log_manager if wanted is None else wanted):
            if share.is_over():
                await share.next()
            path, log = log_manager.directory_of(*key), log_manager.get(*key)
            if path is None or log is None or path not in results:
                continue
            topic_in(path, key[0]).partitions.append(self._partition(key, log))
            move = log_manager.moves.get(key)
            if move is not None and move.target.path in results:
                end, size = (move.log.log_end_offset, move.log.size) if move.log else (0, 0)
                topic_in(move.target.path, key[0]).partitions.append(
                    DescribeLogDirsPartition(key[1], size, max(0, log.log_end_offset - end), True)
                )
        failed = [
            DescribeLogDirsResult(int(ErrorCode.KAFKA_STORAGE_ERROR), path)
            for path in log_manager.offline
        ]
        return DescribeLogDirsResponse(results=[*results.values(), *failed])

    def _partition(self, key: TopicPartition, log: UnifiedLog) -> DescribeLogDirsPartition:
        mark = self._replica_manager.high_watermark(key)
        lag = UNKNOWN_LAG if mark is None else max(0, mark - log.log_end_offset)
        return DescribeLogDirsPartition(key[1], log.size, lag)


def spaces(paths: Collection[str]) -> dict[str, Space]:
    """Ask the file system of each path for its space; those that do not answer are left out. May block."""
    found = {}
    for path in paths:
        try:
            answer = os.statvfs(path)
        except OSError:
            continue
        found[path] = (answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize)
    return found


def _wanted(request: DescribeLogDirsRequest) -> set[TopicPartition] | None:
    if request.topics is None:
        return None
    return {(topic.topic, number) for topic in request.topics for number in topic.partitions}
