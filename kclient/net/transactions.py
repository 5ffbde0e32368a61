"""The requests of a transactional producer to its coordinator, and of its offsets to the group's (KIP-98).

InitProducerId v0-5, AddPartitionsToTxn v0-3, AddOffsetsToTxn v0-4, TxnOffsetCommit v0-4, EndTxn v0-4.
AddPartitionsToTxn v4+ is for brokers only.

The functions send one request and raise its error. Kafka's rules for what follows are in
`kclient/producer/transaction_manager.py`. `Transactions` has other rules, for a mirror. It repeats a request after an
error response that lets it succeed later (CONCURRENT_TRANSACTIONS, another coordinator). It never repeats one after a
lost answer. The first request may arrive later, in the midst of the next transaction of the same epoch. Then
`AnswerLost` is raised, and the caller has to request a new epoch (KIP-890 has the cases).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from twisted.internet.defer import CancelledError

from kclient.errors import ClientError, ConnectionClosed, KafkaTimeoutError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.coordinators import KeyType
from kclient.net.group_offsets import by_topic
from kclient.types import (
    NO_PRODUCER,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from kclient.wire.errors import ErrorCode, InvalidProducerEpoch, KafkaError, ProducerFenced
from kclient.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kclient.wire.schema.end_txn import EndTxnRequest
from kclient.wire.schema.init_producer_id import InitProducerIdRequest
from kclient.wire.schema.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kclient.wire.versions import ApiKey

T = TypeVar("T")

CHANNEL = "transaction"
_LAST_VERSION_OF_CLIENTS = 3
"""Of AddPartitionsToTxn; with v4 brokers add and verify several transactions in one request (KIP-890)."""

_COORDINATOR_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_AGAIN = (
    *_COORDINATOR_MOVED,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)

FENCED = (ProducerFenced, InvalidProducerEpoch)
"""The errors after which the producer epoch is not the latest any more."""


class AnswerLost(ClientError):
    """A coordinator did not answer, or not finally: it may have handled the request, or handle it later."""


async def init_producer_id(
    connection: Connection,
    transactional_id: str,
    transaction_timeout_ms: int,
    current: ProducerIdAndEpoch = NO_PRODUCER,
) -> ProducerIdAndEpoch:
    """Request a producer id and a new epoch; with *current* (v3+) only if it is still the latest (KIP-360)."""
    request = InitProducerIdRequest(transactional_id, transaction_timeout_ms, *current)
    response = await connection.request(ApiKey.INIT_PRODUCER_ID, None, request)
    _check(response.error_code, transactional_id)
    return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)


async def add_partitions(
    connection: Connection,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    tps: Iterable[TopicPartition],
) -> None:
    """Add partitions to the transaction, and begin it with the first ones: all of them, or none."""
    topics = [AddPartitionsToTxnTopic(*topic) for topic in by_topic(sorted(tps)).items()]
    request = AddPartitionsToTxnRequest(transactional_id, *producer, topics)
    version = connection.version_for(ApiKey.ADD_PARTITIONS_TO_TXN)
    response = await connection.request(
        ApiKey.ADD_PARTITIONS_TO_TXN, min(version, _LAST_VERSION_OF_CLIENTS), request
    )
    for topic in response.results_by_topic_v3_and_below:
        for each in topic.results_by_partition:
            if each.partition_error_code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                about = f"{topic.name}-{each.partition_index} in "
                _check(each.partition_error_code, transactional_id, about)


async def add_offsets(
    connection: Connection, transactional_id: str, producer: ProducerIdAndEpoch, group: str
) -> None:
    """Add the offsets of *group* to the transaction, and begin it if nothing is in it yet."""
    request = AddOffsetsToTxnRequest(transactional_id, *producer, group)
    response = await connection.request(ApiKey.ADD_OFFSETS_TO_TXN, None, request)
    _check(response.error_code, transactional_id)


async def commit_transactional_offsets(
    connection: Connection,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    member: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> None:
    """Send *offsets* to the coordinator of the group, which commits them with the transaction.

    The group refuses them if *member* is not in the generation any more (v3+, KIP-447). Raise the first error that is
    not retriable, else the first one.
    """
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for tp, each in sorted(offsets.items()):
        epoch = -1 if each.leader_epoch is None else each.leader_epoch
        topics.setdefault(tp.topic, []).append(
            TxnOffsetCommitRequestPartition(tp.partition, each.offset, epoch, each.metadata)
        )
    request = TxnOffsetCommitRequest(
        transactional_id,
        member.group_id,
        *producer,
        member.generation_id,
        member.member_id,
        member.group_instance_id,
        [TxnOffsetCommitRequestTopic(*topic) for topic in topics.items()],
    )
    response = await connection.request(ApiKey.TXN_OFFSET_COMMIT, None, request)
    problems = [
        error_of(
            each.error_code,
            f"offset of group {member.group_id!r} in {topic.name}-{each.partition_index}, "
            f"transaction {transactional_id!r}",
        )
        for topic in response.topics
        for each in topic.partitions
        if each.error_code
    ]
    if problems:
        raise min(problems, key=lambda problem: problem.retriable)


async def end_transaction(
    connection: Connection, transactional_id: str, producer: ProducerIdAndEpoch, *, committed: bool
) -> None:
    """Commit or abort the transaction."""
    request = EndTxnRequest(transactional_id, *producer, committed)
    response = await connection.request(ApiKey.END_TXN, None, request)
    _check(response.error_code, transactional_id)


def _check(code: int, transactional_id: str, about: str = "") -> None:
    if code:
        raise error_of(code, f"{about}transaction {transactional_id!r}")


class Transactions:
    """The requests of one transactional id, repeated only where no request can arrive late.

    *timeout* is in seconds, for one request with its repetitions.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, *, timeout: float) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._timeout = timeout

    async def init_producer_id(self, transaction_timeout_ms: int) -> ProducerIdAndEpoch:
        """Fence earlier producers, end their transaction, and return the producer id with a new epoch."""
        return await self._send_to_coordinator(
            lambda connection: init_producer_id(connection, self._id, transaction_timeout_ms)
        )

    async def add_partitions(
        self, producer: ProducerIdAndEpoch, tps: Iterable[TopicPartition]
    ) -> None:
        """Add partitions to the transaction, and begin it with the first ones."""
        chosen = list(tps)
        await self._send_to_coordinator(
            lambda connection: add_partitions(connection, self._id, producer, chosen)
        )

    async def add_offsets(self, producer: ProducerIdAndEpoch, group: str) -> None:
        """Add the offsets of *group* to the transaction."""
        await self._send_to_coordinator(
            lambda connection: add_offsets(connection, self._id, producer, group)
        )

    async def commit_offsets(
        self,
        producer: ProducerIdAndEpoch,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Commit *offsets* for *group*, which has no members, when the transaction is committed."""
        outside = ConsumerGroupMetadata(group)
        await self._send(
            group,
            KeyType.GROUP,
            lambda connection: commit_transactional_offsets(
                connection, self._id, producer, outside, offsets
            ),
        )

    async def end(self, producer: ProducerIdAndEpoch, *, committed: bool) -> None:
        """Commit or abort the transaction."""
        await self._send_to_coordinator(
            lambda connection: end_transaction(connection, self._id, producer, committed=committed)
        )

    async def _send_to_coordinator(self, send: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._send(self._id, KeyType.TRANSACTION, send)

    async def _send(self, key: str, kind: KeyType, send: Callable[[Connection], Awaitable[T]]) -> T:
        """Await send(connection to the coordinator of *key*); repeat it after errors in `_AGAIN` only."""

        async def attempt() -> T:
            connection = await self._cluster.coordinator(key, kind, channel=CHANNEL)
            try:
                return await send(connection)
            except CancelledError:  # out of time: another broker may coordinate meanwhile
                self._cluster.coordinators.forget(key, kind)
                raise
            except (ConnectionClosed, KafkaTimeoutError) as problem:
                self._cluster.coordinators.forget(key, kind)
                raise AnswerLost(f"transaction {self._id!r}: {problem.message}") from problem
            except KafkaError as problem:
                if problem.code in _COORDINATOR_MOVED:
                    self._cluster.coordinators.forget(key, kind)
                if problem.retriable and problem.code not in _AGAIN:
                    raise AnswerLost(f"transaction {self._id!r}: {problem.message}") from problem
                raise

        what = f"coordinator of {kind.name.lower()} {key!r}"
        return await self._cluster.retrying(attempt, timeout=self._timeout, what=what)
