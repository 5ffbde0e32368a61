"""TxnOffsetCommit (28), versions 0-4: keep the offsets of a group until the transaction ends (KIP-98).

v1 throttle time only; v2 leader epochs (KIP-320); v3 flexible, and member id, generation and instance id, which are
checked as those of OffsetCommit (KIP-447); v4 TRANSACTION_ABORTABLE (KIP-890), which earlier versions get as
INVALID_TXN_STATE. v5 is Kafka 4's, for clients that do not send AddOffsetsToTxn; it is not served.

Differs from Kafka: a partition that does not exist is refused like a topic that does not, and so is a negative offset.
Each request is verified with the transaction coordinator, not only the first one of a transaction, and also where
transaction.partition.verification.enable is false.
"""

from kbroker.apis.committed_partitions import known_partitions
from kbroker.apis.request import RequestContext
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.transactional_offsets import TransactionalCommit, Verify
from kbroker.metadata.metadata_cache import MetadataCache
from kclient.wire.errors import ErrorCode, KafkaError
from kclient.wire.schema.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)


class TxnOffsetCommit:
    """Answers TxnOffsetCommit. *metadata* knows which partitions exist, *verify* asks the transaction coordinator."""

    def __init__(
        self, coordinator: GroupCoordinator, metadata: MetadataCache, verify: Verify
    ) -> None:
        self._coordinator = coordinator
        self._metadata = metadata
        self._verify = verify

    async def __call__(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse:
        """Answer when the offsets are pending in ZooKeeper."""
        response = TxnOffsetCommitResponse()
        topics = response.topics
        commits, answers = await known_partitions(
            request.topics,
            self._metadata,
            context.turns.slice(),
            add_topic=lambda name, found: topics.append(TxnOffsetCommitResponseTopic(name, found)),
            answer_to=TxnOffsetCommitResponsePartition,
        )
        transaction = TransactionalCommit(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id,
        )
        try:
            errors = await self._coordinator.commit_in_transaction(
                request.group_id, commits, transaction, self._verify
            )
        except KafkaError as failure:
            errors = [failure.code] * len(commits)
        for answer, error in zip(answers, errors, strict=True):
            answer.error_code = _for_version(error, context.api_version)
        return response


def _for_version(error: ErrorCode, version: int) -> ErrorCode:
    """Return *error* as a client of *version* knows it."""
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < 4:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < 2:
        # Producers before 2.0 do not retry it.
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error
