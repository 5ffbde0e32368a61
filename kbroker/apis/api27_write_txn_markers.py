"""WriteTxnMarkers (27): a transaction coordinator ends transactions in the partitions that this broker leads (KIP-98).

Versions served: 1. The leader appends a control batch, and responds when all in-sync replicas have it. After
request.timeout.ms it responds with REQUEST_TIMED_OUT, and the coordinator sends the marker again. A second marker is
appended, too, and ends nothing. The rules are in `kbroker.replica.core.leader_transactions`.

A tagged field of ours (10000) is the number of the transaction. So a late marker, of an earlier transaction of the same
producer epoch, is acknowledged without an effect.

A group's partition of `__consumer_offsets` gets no batch: the group coordinator applies or drops the pending offsets.
Its errors about the coordinator become NOT_LEADER_OR_FOLLOWER, as in Kafka: the sender retries at the leader.

Differs from Kafka: brokers may send any marker. Other principals with ALTER on the cluster (KIP-1037), as
`kafka-transactions abort` has, may send ABORT only. Kafka takes a COMMIT, too, which would make a part of a transaction
visible. Their ABORT ends the open transaction of the producer in its epoch, in the partitions that are named. It fences
neither the producer nor the coordinator: a later coordinator epoch than that of the last marker counts as that one.
Without an open transaction it is acknowledged and not appended. Partitions that take no records of
producers (mirrors, `__transaction_state`) acknowledge each marker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from twisted.internet.defer import Deferred, TimeoutError, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.apis.inter_broker_authorizer import InterBrokerAuthorizer
from kbroker.apis.request import RequestContext
from kbroker.common.gather import outcomes_of
from kbroker.common.internal_topics import INTERNAL_TOPICS, OFFSETS_TOPIC
from kbroker.replica.core.leader_transactions import UNKNOWN_NUMBER, EndTxnMarker
from kbroker.replica.purgatory import PendingPartition
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire.errors import ErrorCode, KafkaError, code_of
from kclient.wire.schema.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kclient.wire.versions import ApiKey

log = Logger()

_NO_COORDINATOR = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


class EndGroupTransaction(Protocol):
    """Ends a transaction in the groups of a partition of `__consumer_offsets` (the group coordinator)."""

    def __call__(
        self,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        number: int | None,
        /,
        *,
        is_commit: bool,
        sent_by_client: bool,
    ) -> Deferred[ErrorCode]:
        """Apply or drop the pending offsets; *number* None: of any transaction of the producer.

        A marker *sent_by_client* drops them only in the producer epoch that they have.
        """


class WriteTxnMarkers:
    """Appends markers. *may_alter_cluster* returns whether a principal has ALTER on the cluster."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        authorizer: InterBrokerAuthorizer,
        *,
        may_alter_cluster: Callable[[str], bool],
        end_group_transaction: EndGroupTransaction,
        request_timeout: float,
    ) -> None:
        """*request_timeout*: request.timeout.ms, in seconds."""
        self._replica_manager = replica_manager
        self._authorizer = authorizer
        self._may_alter_cluster = may_alter_cluster
        self._end_group_transaction = end_group_transaction
        self._request_timeout = request_timeout

    async def __call__(
        self, context: RequestContext, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        """Answer each partition of each marker."""
        sent_by_client = not self._authorizer.is_broker(context.peer)
        is_authorized = not sent_by_client or self._may_send(context, request)
        response = WriteTxnMarkersResponse()
        pending: list[PendingPartition] = []
        in_groups: list[Deferred[None]] = []
        share = context.turns.slice(clock_every=1)
        for sent in request.markers:
            marker = EndTxnMarker(
                sent.producer_id,
                sent.producer_epoch,
                sent.coordinator_epoch,
                sent.transaction_result,
                sent.transaction_number,
            )
            answer = WritableTxnMarkerResult(sent.producer_id)
            response.markers.append(answer)
            for topic in sent.topics:
                results: list[WritableTxnMarkerPartitionResult] = []
                answer.topics.append(WritableTxnMarkerTopicResult(topic.name, results))
                for index in topic.partition_indexes:
                    result = WritableTxnMarkerPartitionResult(index)
                    results.append(result)
                    if not is_authorized:
                        result.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                        continue
                    if share.is_over():
                        await share.next()
                    if topic.name == OFFSETS_TOPIC:
                        in_groups.append(self._end_in_groups(marker, result, sent_by_client))
                    elif topic.name not in INTERNAL_TOPICS:
                        self._append(
                            topic.name, marker, result, pending, sent_by_client=sent_by_client
                        )
        await self._replica_manager.purgatory.until_done(pending, self._request_timeout)
        await outcomes_of(in_groups)
        return response

    def _may_send(self, context: RequestContext, request: WriteTxnMarkersRequest) -> bool:
        """Return whether a client may send *request*: no number, which only a coordinator sends, and no COMMIT."""
        is_of_admin = all(
            not each.transaction_result and each.transaction_number == UNKNOWN_NUMBER
            for each in request.markers
        )
        if is_of_admin and self._may_alter_cluster(context.principal):
            return True
        return self._authorizer.authorize(context.peer, ApiKey.WRITE_TXN_MARKERS)

    def _append(
        self,
        topic: str,
        marker: EndTxnMarker,
        result: WritableTxnMarkerPartitionResult,
        pending: list[PendingPartition],
        *,
        sent_by_client: bool,
    ) -> None:
        """End the transaction in one partition; add it to *pending* if its replicas do not have the marker yet."""
        manager = self._replica_manager
        try:
            partition = manager.partition(topic, result.partition_index)
            offset = partition.end_transaction(
                marker, manager.now_ms(), sent_by_client=sent_by_client
            )
        except KafkaError as error:
            result.error_code = int(code_of(error))
            return
        if offset:
            check = partial(partition.is_committed, offset, partition.role.leader_epoch)
            pending.append(PendingPartition(partition.key, check, result))

    def _end_in_groups(
        self, marker: EndTxnMarker, result: WritableTxnMarkerPartitionResult, sent_by_client: bool
    ) -> Deferred[None]:
        """End the transaction in the groups of a partition of `__consumer_offsets`; never fails."""

        def ended(error: ErrorCode) -> None:
            is_elsewhere = error in _NO_COORDINATOR
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_elsewhere else error

        def failed(failure: Failure) -> None:
            if failure.check(TimeoutError):
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
                return
            log.failure(
                "a transaction could not be ended in the groups of {topic}-{index}",
                failure, topic=OFFSETS_TOPIC, index=result.partition_index,
            )  # fmt: skip
            result.error_code = ErrorCode.UNKNOWN_SERVER_ERROR

        ending = maybeDeferred(
            self._end_group_transaction,
            result.partition_index,
            marker.producer_id,
            marker.producer_epoch,
            None if marker.number == UNKNOWN_NUMBER else marker.number,
            is_commit=marker.is_commit,
            sent_by_client=sent_by_client,
        )
        ending.addTimeout(self._request_timeout, self._replica_manager.reactor)
        return ending.addCallback(ended).addErrback(failed)
