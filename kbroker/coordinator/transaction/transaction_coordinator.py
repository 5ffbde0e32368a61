"""The transaction coordinator: InitProducerId, the requests of a transaction, its end, timeouts (KIP-98, KIP-360).

`transaction_shards` holds the transactional ids of this broker; the decisions are those of `core/transaction.py`.
`transaction_writer` stores each step before its response, and `marker_channel_manager` sends the markers. The design is
docs/design/transactions.md.

An answer from memory is confirmed first (`kbroker.coordinator.shard_fence`): it is correct as if the coordinator had
read ZooKeeper after the request arrived.

A producer often begins its next transaction while the markers of the last one are under way. Kafka refuses that with
CONCURRENT_TRANSACTIONS, and clients retry after 20 ms or more. Here such a request first waits for a moment
(`COMPLETE_WAIT`): most markers take less.

Errors: all requests raise KafkaError. PRODUCER_FENCED is for the handlers to translate for old clients.

Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.gather import outcomes_of
from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.reactor import Clock
from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import WorkerTurns
from kbroker.coordinator.placement import partition_for
from kbroker.coordinator.shard_fence import LeadershipConfirmer
from kbroker.coordinator.transaction.core.states import (
    PREPARED,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from kbroker.coordinator.transaction.core.transaction import (
    Decision,
    Marker,
    Refuse,
    Transaction,
    Verified,
    Write,
)
from kbroker.coordinator.transaction.marker_channel_manager import (
    Send,
    TransactionMarkerChannelManager,
)
from kbroker.coordinator.transaction.producer_id_manager import ProducerIdManager
from kbroker.coordinator.transaction.transaction_shards import TransactionShard, TransactionShards
from kbroker.coordinator.transaction.transactional_id import TransactionalId
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.zk.errors import ZooKeeperError
from kbroker.zk.interface import ZooKeeper
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidGroupId,
    InvalidTransactionTimeout,
    KafkaError,
    NotCoordinator,
    TransactionalIdNotFound,
    for_code,
)

log = Logger()

MAX_GROUP_ID: Final = 1024
"""Characters of a group id, as the group coordinator accepts it."""

SWEPT_PER_TURN: Final = 1000
"""Transactional ids that are looked at in one turn of the reactor."""

COMPLETE_WAIT: Final = 0.1
"""Seconds that a request waits for the markers of the transaction before."""

NEVER_MS: Final = 2**63
"""An idle time after which no transactional id expires."""


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Settings of the coordinator; those without `_ms` in seconds."""

    max_timeout_ms: int = 900_000
    """`transaction.max.timeout.ms`"""
    id_expiration_ms: int = 604_800_000
    """`transactional.id.expiration.ms`"""
    abort_interval: float = 10.0
    """`transaction.abort.timed.out.transaction.cleanup.interval.ms`"""
    expire_interval: float = 3600.0
    """`transaction.remove.expired.transaction.cleanup.interval.ms`"""


class TransactionDescription(NamedTuple):
    """A transactional id, as DescribeTransactions and ListTransactions have it."""

    name: str
    state: TransactionState
    metadata: TransactionMetadata


class TransactionCoordinator:
    """Coordinates transactions for *broker_id*. *now_ms* is the wall clock, for what is written.

    *send* sends requests to the *listener* of brokers. *no_successor_at* and *is_alone* are those of the group
    coordinator, for partitions of ``__transaction_state``.
    """

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        *,
        broker_id: int,
        limits: TransactionLimits,
        now_ms: Callable[[], int],
        producer_ids: ProducerIdManager,
        metadata: MetadataCache,
        listener: str,
        send: Send,
        no_successor_at: Callable[[int, int], float],
        is_alone: Callable[[int, int], bool],
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._now_ms = now_ms
        self._producer_ids = producer_ids
        self._metadata = metadata
        self._markers = TransactionMarkerChannelManager(
            clock, zookeeper, metadata, listener, send, self._acknowledged
        )
        self._shards = TransactionShards(
            clock,
            zookeeper,
            broker_id=broker_id,
            confirmer=LeadershipConfirmer(clock, no_successor_at, is_alone),
            on_stored=self._stored,
        )
        self._write = self._shards.writer.write
        self._completing: dict[TransactionalId, list[Deferred[None]]] = {}
        """Requests that wait for the end of a decided transaction."""
        self._timers: dict[str, Any] = {}
        self._stopped = False
        self.on_leadership = self._shards.on_leadership
        self.on_election = self._shards.on_election
        self.on_resignation = self._shards.on_resignation

    def start(self) -> None:
        """Begin to abort transactions beyond their timeout, and to expire transactional ids."""
        self._again("abort", self._limits.abort_interval, self.abort_timed_out)
        self._again("expire", self._limits.expire_interval, self.expire_ids)

    def stop(self) -> None:
        """Unload all shards; the producers find the next coordinator."""
        self._stopped = True
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        self._markers.stop()
        self._shards.stop()

    # --- producers ----------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None = None
    ) -> ProducerIdAndEpoch:
        """Handle InitProducerId: fence the former producer; return the new producer id and epoch.

        *expected* is the producer that continues after an error (KIP-360). InvalidRequest, InvalidTransactionTimeout,
        ConcurrentTransactions (also while an open transaction is aborted), ProducerFenced.
        """
        shard = self._shards.locate(transactional_id)
        if not 0 < timeout_ms <= self._limits.max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"the transaction timeout is {timeout_ms} ms, not 1 to {self._limits.max_timeout_ms} ms"
                " (transaction.max.timeout.ms)"
            )
        new_producer_id = -1
        id = shard.ids.get(transactional_id)
        while new_producer_id < 0 and (id is None or id.machine.needs_producer_id()):
            new_producer_id = await self._producer_ids.next()
            shard = self._shards.locate(transactional_id)
            id = shard.ids.get(transactional_id)
        id = self._shards.add(shard, transactional_id)
        decision = id.machine.init_producer_id(
            timeout_ms, self._now_ms(), new_producer_id, expected
        )
        return (await self._outcome(id, decision)).producer

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> None:
        """Handle AddPartitionsToTxn. InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions."""
        await self._decide(
            transactional_id,
            lambda machine: machine.add(producer, self._now_ms(), partitions=partitions),
        )

    async def add_offsets(
        self, transactional_id: str, producer: ProducerIdAndEpoch, group_id: str
    ) -> None:
        """Handle AddOffsetsToTxn. InvalidGroupId; else as `add_partitions`."""
        if not group_id or len(group_id) > MAX_GROUP_ID:
            raise InvalidGroupId
        await self._decide(
            transactional_id,
            lambda machine: machine.add(producer, self._now_ms(), groups=[group_id]),
        )

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, is_commit: bool
    ) -> None:
        """Handle EndTxn: returns when the decision is stored. As `add_partitions`; InvalidTxnState."""
        await self._decide(
            transactional_id,
            lambda machine: machine.end(producer, self._now_ms(), is_commit=is_commit),
        )

    # --- brokers ------------------------------------------------------------------------------

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> list[Verified]:
        """Return whether each of *partitions* is in the open transaction (KIP-890), and the transaction's number.

        A partition of ``__consumer_offsets`` is if it has a group of the transaction.
        """
        shard = self._shards.locate(transactional_id)
        id = shard.ids.get(transactional_id)
        machine = id.machine if id is not None else Transaction(None)
        groups = self._groups_of(machine)
        answers = [machine.verify(producer, groups.get(each, each)) for each in partitions]
        await shard.fence.confirm()
        return answers

    def _groups_of(self, machine: Transaction) -> dict[TopicPartition, str]:
        """Return a group of the transaction for each partition of ``__consumer_offsets`` that has one."""
        topic = self._metadata.topic(OFFSETS_TOPIC)
        if machine.stored is None or not machine.stored.groups:
            return {}
        if topic is None or not topic.partitions:
            raise CoordinatorNotAvailable(f"{OFFSETS_TOPIC} is not known here yet")
        count = len(topic.partitions)
        return {(OFFSETS_TOPIC, partition_for(g, count)): g for g in machine.stored.groups}

    # --- administration -----------------------------------------------------------------------

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """Return a transactional id. TransactionalIdNotFound."""
        await self._shards.locate(transactional_id).fence.confirm()
        id = self._shards.locate(transactional_id).ids.get(transactional_id)
        description = _describe(id) if id is not None else None
        if description is None:
            raise TransactionalIdNotFound
        return description

    def group_partitions(self, groups: Collection[str]) -> list[TopicPartition]:
        """Return the partitions of ``__consumer_offsets`` of *groups*, none while the topic is not known."""
        topic = self._metadata.topic(OFFSETS_TOPIC)
        if topic is None or not topic.partitions:
            return []
        count = len(topic.partitions)
        return [(OFFSETS_TOPIC, p) for p in sorted({partition_for(g, count) for g in groups})]

    async def list_transactions(self) -> list[TransactionDescription]:
        """Return the transactional ids that this broker coordinates.

        CoordinatorLoadInProgress while some are not loaded; CoordinatorNotAvailable if a shard cannot be confirmed. A
        shard that another broker leads now is left out.
        """
        shards = list(self._shards.partitions.values())
        if not all(shard.loaded for shard in shards):
            raise CoordinatorLoadInProgress
        for outcome in await outcomes_of([shard.fence.confirm() for shard in shards]):
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotCoordinator):
                raise outcome
        found = []
        turns = WorkerTurns(self._clock, SWEPT_PER_TURN)
        for shard in shards:
            if not shard.fence.resigned:
                for id in list(shard.ids.values()):
                    description = _describe(id)
                    if description is not None:
                        found.append(description)
                    await turns.done()
        return found

    # --- decisions ----------------------------------------------------------------------------

    async def _decide(
        self, transactional_id: str, request: Callable[[Transaction], Decision]
    ) -> None:
        id = self._find(transactional_id)
        decision = request(id.machine)
        if decision == Refuse(ErrorCode.CONCURRENT_TRANSACTIONS) and _is_prepared(id):
            await self._until_complete(id)
            id = self._find(transactional_id)
            decision = request(id.machine)
        await self._outcome(id, decision)

    def _find(self, transactional_id: str) -> TransactionalId:
        """Return a transactional id; one that does not exist is refused by its machine, and not kept."""
        shard = self._shards.locate(transactional_id)
        known = shard.ids.get(transactional_id)
        return known if known is not None else TransactionalId(shard.fence, transactional_id)

    async def _until_complete(self, id: TransactionalId) -> None:
        """Wait until the transaction is complete, for at most `COMPLETE_WAIT`."""
        waiting: Deferred[None] = Deferred()
        self._completing.setdefault(id, []).append(waiting)
        timer = self._clock.callLater(COMPLETE_WAIT, self._completed, id)
        await waiting
        if timer.active():
            timer.cancel()

    def _completed(self, id: TransactionalId) -> None:
        for waiting in self._completing.pop(id, []):
            waiting.callback(None)

    def _stored(self, id: TransactionalId, markers: Collection[Marker]) -> None:
        """Handle a new stored state."""
        self._markers.add(id, markers)
        if id in self._completing and not _is_prepared(id):
            self._completed(id)

    async def _outcome(self, id: TransactionalId, decision: Decision) -> TransactionMetadata:
        """Return what is stored once *decision* is; raise its error."""
        if isinstance(decision, Write):
            await self._write(id, decision)
        else:
            await id.fence.confirm()
        if isinstance(decision, Refuse):
            raise for_code(decision.error)
        if isinstance(decision, Write) and decision.error is not ErrorCode.NONE:
            raise for_code(decision.error)
        return decision.metadata

    def _acknowledged(self, id: TransactionalId, marker: Marker) -> None:
        """Handle the acknowledgement of a marker; write the Complete state after the last one."""
        write = id.machine.acknowledged(marker, self._now_ms())
        if write is not None:
            self._write_unasked(id, write)

    def _write_unasked(self, id: TransactionalId, write: Write) -> None:
        """Write a step without a request: an outcome that is unknown is read, and the step comes again."""
        self._write(id, write).addErrback(self._not_written, id, write)

    def _not_written(self, failure: Failure, id: TransactionalId, write: Write) -> None:
        if failure.check(KafkaError) is None:
            log.failure("{id!r} could not be written", failure=failure, id=id.name)
        else:
            log.info(
                "{id!r} is not yet {state}: {error}",
                id=id.name,
                state=write.metadata.state.value,
                error=failure.value,
            )

    # --- time ---------------------------------------------------------------------------------

    def _again(self, name: str, seconds: float, sweep: Callable[[], Any]) -> None:
        """Do *sweep* after *seconds*, and so on."""

        def now() -> None:
            sweeping: Deferred[Any] = Deferred.fromCoroutine(sweep())
            sweeping.addErrback(self._sweep_failed)
            sweeping.addBoth(lambda _: self._again(name, seconds, sweep))

        if not self._stopped:
            self._timers[name] = self._clock.callLater(seconds, now)

    def _sweep_failed(self, failure: Failure) -> None:
        if failure.check(ZooKeeperError) is None:
            log.failure("transactional ids could not be swept", failure=failure)

    async def abort_timed_out(self) -> None:
        """Abort the transactions beyond their timeout; load transactional ids with znodes that were repaired."""
        await self._sweep(NEVER_MS)
        await self._shards.read_poison_again()

    async def expire_ids(self) -> None:
        """Delete the transactional ids that were not used for `transactional.id.expiration.ms`."""
        await self._sweep(self._limits.id_expiration_ms)

    async def _sweep(self, idle_ms: int) -> None:
        turns = WorkerTurns(self._clock, SWEPT_PER_TURN)
        for shard in list(self._shards.partitions.values()):
            if not shard.loaded:
                continue
            for id in list(shard.ids.values()):
                if self._stopped or not _is_writable(shard):
                    break
                write = id.machine.expire(self._now_ms(), idle_ms)
                if write is not None:
                    log.info(
                        "transactional id {id!r}: {what}",
                        id=id.name,
                        what="expired"
                        if write.metadata.state is TransactionState.DEAD
                        else f"the transaction is aborted after {write.metadata.timeout_ms} ms",
                    )
                    self._write_unasked(id, write)
                await turns.done()


def _is_prepared(id: TransactionalId) -> bool:
    stored = id.machine.stored
    return stored is not None and stored.state in PREPARED


def _is_writable(shard: TransactionShard) -> bool:
    return not shard.fence.resigned and shard.fence.zookeeper_answers


def _describe(id: TransactionalId) -> TransactionDescription | None:
    """Return what is reported of *id*; None if it is not stored."""
    state, stored = id.machine.state, id.machine.stored
    if state is None or stored is None:
        return None
    return TransactionDescription(id.name, state, stored)
