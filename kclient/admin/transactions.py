"""Transactions and producers, for operators (KIP-664): described, listed, ended by hand; hanging ones are found.

DescribeProducers v0 and WriteTxnMarkers v1 go to leaders, DescribeTransactions v0 and InitProducerId to coordinators,
ListTransactions v0-1 to every broker (v1: by duration, KIP-994).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kclient.errors import KafkaError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.coordinators import KeyType
from kclient.net.group_offsets import by_topic, retry_coordinator
from kclient.net.leader_requests import request_leaders_retrying
from kclient.net.transactions import init_producer_id
from kclient.net.waiting import all_of, settled_by
from kclient.types import ProducerIdAndEpoch, TopicPartition
from kclient.wire.errors import TransactionalIdNotFound, UnsupportedVersion
from kclient.wire.schema import describe_producers as producers_wire
from kclient.wire.schema import describe_transactions as describe_wire
from kclient.wire.schema import list_transactions as list_wire
from kclient.wire.schema import write_txn_markers as markers_wire
from kclient.wire.versions import ApiKey

_FENCING_TIMEOUT_MS = 60_000
"""Transaction timeout in the InitProducerId of `fence_producers`; the producer id is not used afterwards."""

_BY_DURATION = 1


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer in the log of a partition. *last_timestamp* is in milliseconds since the epoch.

    *coordinator_epoch* is that of its last marker, None without one. *transaction_start_offset* is None without an open
    transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None = None
    transaction_start_offset: int | None = None


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id that a coordinator has."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator describes it. Times are in milliseconds.

    *partitions* are those of the open transaction, groups as partitions of ``__consumer_offsets``; *start_time_ms* is
    None if no transaction is open.
    """

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in the log of a partition. *transactional_id* is None if no coordinator has its id."""

    tp: TopicPartition
    producer: ProducerState
    transactional_id: str | None = None


async def describe_producers(
    cluster: Cluster, tps: Iterable[TopicPartition], *, broker: int | None = None, timeout: float
) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
    """Return the producers that the leader of each partition knows, or that *broker* knows in its replica."""

    async def send(
        leader: int, wanted: Mapping[TopicPartition, None]
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | KafkaError]:
        topics = [producers_wire.TopicRequest(*each) for each in by_topic(wanted).items()]
        request = producers_wire.DescribeProducersRequest(topics)
        response = await cluster.request(leader, ApiKey.DESCRIBE_PRODUCERS, request)
        answers: dict[TopicPartition, tuple[ProducerState, ...] | KafkaError] = {}
        for topic in response.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                if p.error_code:
                    answers[tp] = error_of(p.error_code, tp, p.error_message)
                else:
                    answers[tp] = tuple(map(_producer, p.active_producers))
        return answers

    wanted = dict.fromkeys(tps)
    what = "describing producers"
    if broker is not None:
        return await cluster.retrying(lambda: send(broker, wanted), timeout=timeout, what=what)
    return await request_leaders_retrying(cluster, wanted, send, timeout=timeout, what=what)


async def describe_transactions(
    cluster: Cluster, transactional_ids: Iterable[str], *, timeout: float
) -> dict[str, TransactionDescription | KafkaError]:
    """Return state, producer and partitions of each transactional id."""

    async def one(name: str) -> TransactionDescription:
        async def send(connection: Connection) -> TransactionDescription:
            request = describe_wire.DescribeTransactionsRequest([name])
            response = await connection.request(ApiKey.DESCRIBE_TRANSACTIONS, None, request)
            (found,) = response.transaction_states
            if found.error_code:
                raise error_of(found.error_code, f"transactional id {name!r}")
            known = cluster.coordinators.known(name, KeyType.TRANSACTION)
            return _description(found, known[0] if known else -1)

        return await retry_coordinator(
            cluster,
            name,
            send,
            kind=KeyType.TRANSACTION,
            timeout=timeout,
            what=f"describing transactional id {name!r}",
        )

    return await settled_by(transactional_ids, one)


async def list_transactions(
    cluster: Cluster,
    *,
    states: Iterable[str],
    producer_ids: Iterable[int],
    open_for_ms: int | None,
    timeout: float,
) -> list[TransactionListing]:
    """Return the transactional ids of every coordinator, by name; each argument that is given limits them.

    Raise if a broker does not answer, because the list would be incomplete, or does not know *open_for_ms* (KIP-994).
    """
    await cluster.retrying(cluster.start, timeout=timeout, what="listing transactions")
    duration = -1 if open_for_ms is None else open_for_ms
    request = list_wire.ListTransactionsRequest(list(states), list(producer_ids), duration)

    async def one(node: int) -> list[TransactionListing]:
        async def attempt() -> list[TransactionListing]:
            connection = await cluster.connection(node)
            version = connection.version_for(ApiKey.LIST_TRANSACTIONS)
            if open_for_ms is not None and version < _BY_DURATION:
                raise UnsupportedVersion(f"broker {node} cannot list transactions by duration")
            response = await connection.request(ApiKey.LIST_TRANSACTIONS, version, request)
            if response.error_code:
                raise error_of(response.error_code, f"transactions of broker {node}")
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise KafkaError(f"broker {node} does not know the state {unknown}")
            return [
                TransactionListing(
                    each.transactional_id, each.producer_id, each.transaction_state, node
                )
                for each in response.transaction_states
            ]

        what = f"transactions of broker {node}"
        return await cluster.retrying(attempt, timeout=timeout, what=what)

    results = await all_of(one(node) for node in sorted(cluster.metadata.brokers))
    return sorted((each for found in results for each in found), key=lambda e: e.transactional_id)


async def abort_transaction(
    cluster: Cluster,
    tp: TopicPartition,
    producer: ProducerIdAndEpoch,
    *,
    coordinator_epoch: int,
    timeout: float,
) -> None:
    """Append an ABORT marker to one partition, without the coordinator of the transaction.

    It is for hanging transactions. An abort of one partition of a transaction that is committed later loses records.
    """

    async def send(
        leader: int, wanted: Mapping[TopicPartition, None]
    ) -> dict[TopicPartition, KafkaError | None]:
        marker = markers_wire.WritableTxnMarker(
            *producer,
            transaction_result=False,
            topics=[
                markers_wire.WritableTxnMarkerTopic(*each) for each in by_topic(wanted).items()
            ],
            coordinator_epoch=coordinator_epoch,
        )
        request = markers_wire.WriteTxnMarkersRequest([marker])
        response = await cluster.request(leader, ApiKey.WRITE_TXN_MARKERS, request)
        return {
            TopicPartition(topic.name, p.partition_index): error_of(
                p.error_code, f"marker of producer id {producer.producer_id} in {tp}"
            )
            if p.error_code
            else None
            for result in response.markers
            for topic in result.topics
            for p in topic.partitions
        }

    answers = await request_leaders_retrying(
        cluster, {tp: None}, send, timeout=timeout, what=f"aborting a transaction in {tp}"
    )
    answer = answers[tp]
    if isinstance(answer, KafkaError):
        raise answer


async def fence_producers(
    cluster: Cluster, transactional_ids: Iterable[str], *, timeout: float
) -> dict[str, ProducerIdAndEpoch | KafkaError]:
    """Raise the epoch of each transactional id: its producer fails, and its open transaction is aborted."""

    async def one(name: str) -> ProducerIdAndEpoch:
        return await retry_coordinator(
            cluster,
            name,
            lambda connection: init_producer_id(connection, name, _FENCING_TIMEOUT_MS),
            kind=KeyType.TRANSACTION,
            timeout=timeout,
            what=f"fencing the producer of {name!r}",
        )

    return await settled_by(transactional_ids, one)


async def find_hanging_transactions(
    cluster: Cluster,
    tps: Iterable[TopicPartition],
    *,
    older_than_ms: int,
    now_ms: int,
    broker: int | None = None,
    timeout: float,
) -> list[OpenTransaction]:
    """Return the transactions in the logs of *tps* that no coordinator will end; raise the first error.

    The logs are those of the leaders, or the replicas of *broker*.

    Only those without a record since *older_than_ms* milliseconds are examined: it must not be below the brokers'
    transaction.max.timeout.ms. Then a transaction of a coordinator has been ended, or is about to be.
    """
    producers = await describe_producers(cluster, tps, broker=broker, timeout=timeout)
    old = []
    for tp, found in sorted(producers.items()):
        if isinstance(found, KafkaError):
            raise found
        old += [
            OpenTransaction(tp, each)
            for each in found
            if each.transaction_start_offset is not None
            and now_ms - each.last_timestamp >= older_than_ms
        ]
    if not old:
        return []
    ids = {each.producer.producer_id for each in old}
    listed = await list_transactions(
        cluster, states=(), producer_ids=sorted(ids), open_for_ms=None, timeout=timeout
    )
    names = {each.producer_id: each.transactional_id for each in listed}
    described = await describe_transactions(cluster, sorted(names.values()), timeout=timeout)
    for answer in described.values():
        if isinstance(answer, KafkaError) and not isinstance(answer, TransactionalIdNotFound):
            raise answer
    return hanging(old, names, described)


def hanging(
    candidates: Iterable[OpenTransaction],
    names: Mapping[int, str],
    described: Mapping[str, TransactionDescription | KafkaError],
) -> list[OpenTransaction]:
    """Return the candidates that are not in the open transaction of their coordinator.

    *names* are the transactional ids by producer id.
    """
    found = []
    for each in candidates:
        name = names.get(each.producer.producer_id)
        known = None if name is None else described[name]
        is_known = (
            isinstance(known, TransactionDescription)
            and known.producer_id == each.producer.producer_id
            and each.tp in known.partitions
        )
        if not is_known:
            found.append(OpenTransaction(each.tp, each.producer, name))
    return found


def _producer(found: producers_wire.ProducerState) -> ProducerState:
    return ProducerState(
        found.producer_id,
        found.producer_epoch,
        found.last_sequence,
        found.last_timestamp,
        found.coordinator_epoch if found.coordinator_epoch >= 0 else None,
        found.current_txn_start_offset if found.current_txn_start_offset >= 0 else None,
    )


def _description(found: Any, coordinator: int) -> TransactionDescription:
    started = found.transaction_start_time_ms
    return TransactionDescription(
        found.transactional_id,
        coordinator,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        found.transaction_timeout_ms,
        started if started >= 0 else None,
        tuple(sorted(TopicPartition(t.topic, p) for t in found.topics for p in t.partitions)),
    )
