"""AlterReplicaLogDirs (34): moves replicas of this broker between its log directories (KIP-113).

Versions served: 1-2 (v2 flexible).

The answer comes when the move has begun; DescribeLogDirs shows its progress (is_future_key, offset_lag). A replica that
has no log yet gets REPLICA_NOT_AVAILABLE. When it is created, it begins in that directory, if the broker is not
restarted before. A request for the directory that holds the log, or its copy, changes nothing; one for another
directory ends the move. A directory that is none of log.dirs has LOG_DIR_NOT_FOUND; one that is offline, or a move
while any is offline, KAFKA_STORAGE_ERROR. How a log is moved: docs/design/alter-log-dirs.md.

Differs from Kafka: a start completes a move that a crash interrupted, in place of refusing two logs of a partition.
DeleteRecords does not wait for the copy.
"""

from __future__ import annotations

from twisted.logger import Logger

from kbroker.apis.request import RequestContext
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError, NotLeaderOrFollower, code_of
from kclient.wire.schema.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

log = Logger()


class AlterReplicaLogDirs:
    """Answers AlterReplicaLogDirs."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager

    async def __call__(
        self, context: RequestContext, request: AlterReplicaLogDirsRequest
    ) -> AlterReplicaLogDirsResponse:
        """Begin the moves, some partitions in every turn of the reactor."""
        share = context.turns.slice()
        results: dict[str, AlterReplicaLogDirTopicResult] = {}
        for directory in request.dirs:
            for topic in directory.topics:
                result = results.get(topic.name)
                if result is None:
                    result = results[topic.name] = AlterReplicaLogDirTopicResult(topic.name)
                for number in topic.partitions:
                    if share.is_over():
                        await share.next()
                    code = self._alter(topic.name, number, directory.path)
                    result.partitions.append(AlterReplicaLogDirPartitionResult(number, int(code)))
        return AlterReplicaLogDirsResponse(results=list(results.values()))

    def _alter(self, topic: str, partition: int, path: str) -> ErrorCode:
        try:
            self._replica_manager.alter_replica_log_dir(topic, partition, path)
        except NotLeaderOrFollower:
            return ErrorCode.REPLICA_NOT_AVAILABLE  # that of Kafka for this API
        except KafkaError as error:
            log.warn("{topic}-{number} is not moved to {path}: {error}",
                     topic=topic, number=partition, path=path, error=error)  # fmt: skip
            return code_of(error)
        return ErrorCode.NONE
