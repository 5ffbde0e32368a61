"""A scripted transaction coordinator: it answers every request without an error, except those that a test lists."""

from __future__ import annotations

from typing import Any

from kclient.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from kclient.wire.schema.add_offsets_to_txn import AddOffsetsToTxnResponse
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kclient.wire.schema.end_txn import EndTxnResponse
from kclient.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kclient.wire.schema.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kclient.wire.versions import ApiKey
from tests.kit.scripted_cluster import ScriptedCluster


class ScriptedTransactionCoordinator:
    """Answers the requests of a transactional producer at *scripted*, its batches too.

    The next requests of an API have the errors in `codes`, one after the other. Each InitProducerId raises the epoch.
    """

    def __init__(self, scripted: ScriptedCluster) -> None:
        self.codes: dict[ApiKey, list[int]] = {}
        self.epoch = -1
        scripted.answers[ApiKey.INIT_PRODUCER_ID] = self._init
        scripted.answers[ApiKey.ADD_PARTITIONS_TO_TXN] = self._add
        scripted.answers[ApiKey.ADD_OFFSETS_TO_TXN] = lambda _: AddOffsetsToTxnResponse(
            0, self._code(ApiKey.ADD_OFFSETS_TO_TXN)
        )
        scripted.answers[ApiKey.TXN_OFFSET_COMMIT] = self._commit_offsets
        scripted.answers[ApiKey.END_TXN] = lambda _: EndTxnResponse(0, self._code(ApiKey.END_TXN))
        scripted.answers[ApiKey.PRODUCE] = self._produce

    def _code(self, api: ApiKey) -> int:
        codes = self.codes.get(api)
        return int(codes.pop(0)) if codes else 0

    def _init(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        code = self._code(ApiKey.INIT_PRODUCER_ID)
        self.epoch += not code
        return InitProducerIdResponse(0, code, 7, self.epoch)

    def _add(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        code = self._code(ApiKey.ADD_PARTITIONS_TO_TXN)
        return AddPartitionsToTxnResponse(
            0,
            [
                AddPartitionsToTxnTopicResult(
                    topic.name,
                    [AddPartitionsToTxnPartitionResult(p, code) for p in topic.partitions],
                )
                for topic in request.v3_and_below_topics
            ],
        )

    def _commit_offsets(self, request: Any) -> TxnOffsetCommitResponse:
        code = self._code(ApiKey.TXN_OFFSET_COMMIT)
        return TxnOffsetCommitResponse(
            0,
            [
                TxnOffsetCommitResponseTopic(
                    topic.name,
                    [
                        TxnOffsetCommitResponsePartition(p.partition_index, code)
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )

    def _produce(self, request: ProduceRequest) -> ProduceResponse:
        code = self._code(ApiKey.PRODUCE)
        return ProduceResponse(
            [
                ProduceTopicResponse(
                    topic.name,
                    [
                        ProducePartitionResponse(p.index, error_code=code, base_offset=0)
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
