"""Transactional producers, and readers with read_committed.

A producer is a process of its own: it dies, sleeps and is replaced by another one under its transactional id. It uses
the protocol over real connections (`kclient.net.connection`), as Kafka's producer does: InitProducerId,
AddPartitionsToTxn, Produce, AddOffsetsToTxn, TxnOffsetCommit, EndTxn. Each answer goes to `transaction_rules.py`. A
part of all requests goes to a broker that was deposed as coordinator, or as leader, and does not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from kbroker.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordinator.placement import partition_for
from kclient.consumer.aborted import BatchVisibility
from kclient.errors import Address
from kclient.net.connection import Connection
from kclient.wire.batches import TRANSACTIONAL, iterate, parse
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError, for_code
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.records import Record, decode_columns, encode_batch
from kclient.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest
from kclient.wire.schema.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kclient.wire.schema.end_txn import EndTxnRequest
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.schema.init_producer_id import InitProducerIdRequest
from kclient.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kclient.wire.schema.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kclient.wire.versions import ApiKey
from tests.simulation.clock import EPOCH, Process
from tests.simulation.cluster_access import ClusterAccess
from tests.simulation.group_events import CLIENTS
from tests.simulation.network import Network
from tests.simulation.node import PORT
from tests.simulation.transaction_events import PARTITIONS
from tests.simulation.transaction_rules import GROUP, TOPIC, Transaction, offset_partition

TIMEOUT_MS = 5000
"""Of a transaction."""
LATE_SECONDS = (0.5, 9.0)
"""How long a producer waits in the midst of a transaction that is `late`."""
PAUSE = (0.05, 0.3)
CONNECT_SECONDS = 2.0
REQUEST_SECONDS = 3.0
PRODUCE_TIMEOUT_MS = 2000
READ_COMMITTED = 1

FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
"""Another producer has the transactional id, or the coordinator has aborted the transaction."""
ABORTABLE = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)
"""The producer aborts the transaction and goes on with another epoch (KIP-360). All other errors are retried."""


class Fenced(Exception):
    """The producer may not go on with its epoch."""


class Abort(Exception):
    """The transaction cannot be committed."""


class Work(NamedTuple):
    """A transaction that a producer is to run."""

    partitions: tuple[int, ...]
    batches: int
    has_offsets: bool
    ending: str

    @property
    def late(self) -> tuple[float, float] | None:
        """For how many seconds, at least and at most, the producer waits in the midst of it; None: it does not."""
        name, _, seconds = self.ending.partition("=")
        if name != "late":
            return None
        return (float(seconds), float(seconds)) if seconds else LATE_SECONDS


class Peer:
    """A process outside of the cluster."""

    def __init__(self, transactions: Transactions, name: str) -> None:
        self.transactions, self.name = transactions, name
        self.clients, self.rules = transactions.clients, transactions.rules
        self.rng = Random(transactions.rng.getrandbits(64))
        self.process = Process(self.clients.process.scheduler, name, self.rng)
        self._dial = transactions.network.dialler(self.process, CLIENTS)
        self._connections: dict[int, Connection] = {}

    def __repr__(self) -> str:
        return self.name

    async def pause(self, low: float, high: float) -> None:
        waiting: Deferred[None] = Deferred()
        self.process.callLater(self.rng.uniform(low, high), waiting.callback, None)
        await waiting

    async def ask(self, topic: str, partition: int, api: ApiKey, version: int, request: Any) -> Any:
        """Return the answer of the leader of a partition; KafkaError if there is none."""
        node = self.clients.leader(topic, partition, self.rng)
        if node is None:
            raise for_code(ErrorCode.LEADER_NOT_AVAILABLE)
        connection = self._connections.get(node)
        if connection is None or connection.closed is not None:
            connection = self._connections[node] = await self._dial(
                self.process,
                Address(f"node{node}", PORT),
                client_id=self.name,
                connect_timeout=CONNECT_SECONDS,
                request_timeout=REQUEST_SECONDS,
            )
        return await connection.request(api, version, request, timeout=REQUEST_SECONDS)


class TransactionalProducer(Peer):
    """One process under a transactional id."""

    def __init__(self, transactions: Transactions, id: str, number: int) -> None:
        super().__init__(transactions, f"{id}{number}")
        self.id = id
        self.producer: tuple[int, int] | None = None
        self.work: list[Work] = []
        self.busy = False
        self.over = False
        self._sequences: dict[int, int] = {}

    @property
    def is_current(self) -> bool:
        """Whether no other one was started under its transactional id."""
        return self.transactions.producers.get(self.id) is self

    @property
    def live(self) -> bool:
        return self.process.alive and not self.over

    def start(self) -> None:
        Deferred.fromCoroutine(self._run()).addErrback(self.clients.failed)

    async def _run(self) -> None:
        while not self.over:
            try:
                if self.producer is None:
                    self._take(await self._initialize())
                if not self.work:
                    await self.pause(0.05, 0.1)
                    continue
                self.busy = True
                await self._transact(self.work.pop(0))
            except Fenced:
                self.clients.trace(f"{self!r} is fenced")
                self.producer = None
                self.over = not self.is_current
            self.busy = False

    def _take(self, producer: tuple[int, int]) -> None:
        self.producer = producer
        self._sequences.clear()
        self.rules.initialized(producer)
        self.clients.trace(f"{self!r} is producer {producer[0]}, epoch {producer[1]}")

    # -- requests

    async def _coordinator(self, api: ApiKey, version: int, request: Any) -> Any:
        partition = partition_for(self.id, max(self.rules.partitions, 1))
        return await self.ask(TRANSACTIONS_TOPIC, partition, api, version, request)

    async def _until_done(self, attempt: Callable[[], Coroutine[Any, Any, ErrorCode]]) -> None:
        """Repeat *attempt* while its error may pass."""
        while True:
            try:
                error = await attempt()
            except KafkaError:
                error = ErrorCode.NETWORK_EXCEPTION
            if error is ErrorCode.NONE:
                return
            self.clients.trace(f"{self!r}: {error.name}")
            if error in FENCED:
                raise Fenced
            if error in ABORTABLE:
                raise Abort
            await self.pause(*PAUSE)

    async def _initialize(self, expected: tuple[int, int] = (-1, -1)) -> tuple[int, int]:
        request = InitProducerIdRequest(self.id, TIMEOUT_MS, *expected)
        found: list[tuple[int, int]] = []

        async def attempt() -> ErrorCode:
            answer = await self._coordinator(ApiKey.INIT_PRODUCER_ID, 4, request)
            found[:] = [(answer.producer_id, answer.producer_epoch)]
            return ErrorCode(answer.error_code)

        try:
            await self._until_done(attempt)
        except Abort:
            raise Fenced from None
        return found[0]

    async def _transact(self, work: Work) -> None:
        assert self.producer is not None
        transaction = self.rules.begins(self.id, self.producer)
        self.clients.trace(f"{self!r} begins {transaction}: {work}")
        try:
            for number, partition in enumerate(work.partitions):
                if number:
                    await self._wait(work)
                await self._until_done(partial(self._add, partition))
                for batch in range(work.batches):
                    await self._produce(transaction, partition, batch)
                if work.ending == "hasty" and partition == work.partitions[-1]:
                    self._produce_once(transaction, partition, work.batches)
                    await self.pause(0.0, 0.02)
                    raise Abort
            if work.has_offsets:
                await self._until_done(self._add_group)
                await self._until_done(lambda: self._commit_offset(transaction))
                transaction.has_offset = True
            await self._wait(work)
            await self._end(transaction, "abort" if work.ending == "abort" else "commit")
        except Abort:
            if transaction.asked is None:
                await self._give_up(transaction)
            else:
                self.clients.trace(f"{self!r}: the outcome of {transaction} is unknown")
                self.producer = None

    async def _wait(self, work: Work) -> None:
        """Be late, if the work is; not once all is healed: what is left has a time limit then."""
        if work.late is not None and not self.transactions.healed:
            await self.pause(*work.late)

    async def _give_up(self, transaction: Transaction) -> None:
        """Abort, and go on with the next epoch."""
        try:
            await self._end(transaction, "abort")
        except Abort:
            self.clients.trace(f"{self!r} had no open transaction")
        self._take(await self._initialize(transaction.producer))

    async def _add(self, partition: int) -> ErrorCode:
        assert self.producer is not None
        request = AddPartitionsToTxnRequest(
            self.id, *self.producer, [AddPartitionsToTxnTopic(TOPIC, [partition])]
        )
        answer = await self._coordinator(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
        part = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
        return ErrorCode(part.partition_error_code)

    async def _produce(self, transaction: Transaction, partition: int, batch: int) -> None:
        await self._until_done(self._batch(transaction, partition, batch))

    def _produce_once(self, transaction: Transaction, partition: int, batch: int) -> None:
        """Send a batch, and wait for no answer."""
        sending = Deferred.fromCoroutine(self._batch(transaction, partition, batch)())
        sending.addErrback(lambda failure: failure.trap(KafkaError) and None)
        sending.addErrback(self.clients.failed)

    def _batch(
        self, transaction: Transaction, partition: int, batch: int
    ) -> Callable[[], Coroutine[Any, Any, ErrorCode]]:
        """Return what sends the next batch to a partition."""
        assert self.producer is not None
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + 1
        value = f"{transaction.number}/{partition}/{batch}"
        now_ms = int((EPOCH + self.process.seconds()) * 1000)
        data = encode_batch(
            [Record(0, now_ms, value.encode(), value.encode(), ())],
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        request = ProduceRequest(
            -1,
            PRODUCE_TIMEOUT_MS,
            [ProduceTopic(TOPIC, [ProducePartition(partition, data)])],
            self.id,
        )

        async def attempt() -> ErrorCode:
            answer = await self.ask(TOPIC, partition, ApiKey.PRODUCE, 9, request)
            outcome = answer.topics[0].partitions[0]
            error = ErrorCode(outcome.error_code)
            if error is ErrorCode.NONE:
                crc = parse(data).crc
                self.clients.observer.acknowledged(TOPIC, partition, outcome.base_offset, crc)
                self.clients.acknowledged += 1
                transaction.acknowledged[value] = partition
                transaction.firsts.setdefault(partition, outcome.base_offset)
            return error

        return attempt

    async def _add_group(self) -> ErrorCode:
        assert self.producer is not None
        request = AddOffsetsToTxnRequest(self.id, *self.producer, GROUP)
        answer = await self._coordinator(ApiKey.ADD_OFFSETS_TO_TXN, 3, request)
        return ErrorCode(answer.error_code)

    async def _commit_offset(self, transaction: Transaction) -> ErrorCode:
        assert self.producer is not None
        offset = transaction.offset or self.rules.new_offset(transaction)
        part = TxnOffsetCommitRequestPartition(offset_partition(self.id), offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.id,
            group_id=GROUP,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            topics=[TxnOffsetCommitRequestTopic(TOPIC, [part])],
        )
        answer = await self.transactions.ask_group(self, ApiKey.TXN_OFFSET_COMMIT, 3, request)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def _end(self, transaction: Transaction, outcome: str) -> None:
        transaction.asked = outcome
        known_epoch = -1

        async def attempt() -> ErrorCode:
            nonlocal known_epoch
            known_epoch = self.rules.epoch_of(transaction.producer[0])
            request = EndTxnRequest(self.id, *transaction.producer, outcome == "commit")
            answer = await self._coordinator(ApiKey.END_TXN, 3, request)
            return ErrorCode(answer.error_code)

        await self._until_done(attempt)
        self.clients.trace(f"{self!r}: {transaction} is ended: {outcome}")
        self.rules.answered(transaction, known_epoch)


class Transactions:
    """All transactional producers, as a script moves them, and their readers."""

    def __init__(self, clients: ClusterAccess, network: Network) -> None:
        self.clients, self.network = clients, network
        self.rules = clients.observer.transactions
        self.rng = Random(clients.process._rng.getrandbits(64))
        self.producers: dict[str, TransactionalProducer] = {}
        """By transactional id: its newest producer."""
        self._all: list[TransactionalProducer] = []
        self._reader = Peer(self, "reader")
        self._positions: dict[int, int] = {}
        self._found: dict[int, list[str]] | None = None
        """By partition: what the last reader got; None before it began."""
        self._read_to_the_end: set[int] = set()
        self.healed = False
        self._judged = False
        for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            clients.topics.setdefault(topic, 0)
        clients.create(TOPIC, PARTITIONS)
        self._spawn(self._internal_topics())

    def _spawn(self, work: Any) -> None:
        Deferred.fromCoroutine(work).addErrback(self.clients.failed)

    async def _internal_topics(self) -> None:
        """Create the internal topics with all their replicas, when all brokers are known."""
        for kind, topic in enumerate((OFFSETS_TOPIC, TRANSACTIONS_TOPIC)):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[GROUP])
            while topic not in self.clients.observer.topics:
                for number, node in self.clients.nodes.items():
                    parts = node.parts if node.running else None
                    if parts is None or len(parts.metadata.brokers) < len(self.clients.nodes):
                        continue
                    try:
                        connection = await self.clients.connection(number, "transactions")
                        await connection.request(ApiKey.FIND_COORDINATOR, 4, request)
                    except KafkaError:
                        continue
                    break
                await self.clients.pause()

    # -- verbs of scripts

    def begin(self, id: str) -> None:
        """Start a producer under *id*, whatever became of the former one."""
        former = self.producers.get(id)
        made = self.producers[id] = TransactionalProducer(self, id, len(self._all) + 1)
        if former is not None and former.work and not self._is_working(former):
            made.work = former.work
        self._all.append(made)
        made.start()

    def transact(self, id: str, work: Work) -> None:
        producer = self.producers.get(id)
        if producer is not None:
            producer.work.append(work)

    def die(self, id: str) -> None:
        producer = self.producers.get(id)
        if producer is not None and producer.live:
            producer.process.kill()
            self.network.process_ended(producer.process)

    def freeze(self, id: str) -> None:
        producer = self.producers.get(id)
        if producer is not None and producer.live:
            producer.process.pause()

    def thaw(self) -> None:
        """Let all producers go on."""
        for producer in self._all:
            if producer.live:
                producer.process.resume()

    def read(self, partition: int) -> None:
        self._spawn(self._read_once(partition))

    def fetch_offsets(self) -> None:
        self._spawn(self._offsets_once())

    def heal(self) -> None:
        """Let everything go on, and have each transactional id show that it works."""
        self.healed = True
        self.thaw()
        for id, producer in list(self.producers.items()):
            if not producer.live:
                self.begin(id)
            self.producers[id].work.append(Work((0, 1), 1, True, "commit"))

    # -- what is still under way

    @property
    def unfinished(self) -> str | None:
        """Return what transactions still wait for."""
        for producer in self._all:
            if self._is_working(producer):
                return f"{producer!r} has transactions to make"
        missing = self.rules.not_settled()
        if missing is not None:
            return missing
        if self._found is None:
            self._found = {partition: [] for partition in range(PARTITIONS)}
            for partition in self._found:
                self._spawn(self._read_all(partition))
        if len(self._read_to_the_end) < PARTITIONS:
            return "the last reader has not read all"
        if not self._judged:
            self._judged = True
            self.rules.judge(self._found)
        return None

    @staticmethod
    def _is_working(producer: TransactionalProducer) -> bool:
        return producer.live and (bool(producer.work) or producer.busy)

    # -- the work

    async def ask_group(self, peer: Peer, api: ApiKey, version: int, request: Any) -> Any:
        """Return the answer of the coordinator of the group."""
        partition = partition_for(GROUP, max(self.rules.group_partitions, 1))
        return await peer.ask(OFFSETS_TOPIC, partition, api, version, request)

    async def _read_once(self, partition: int) -> None:
        if self.rules.is_lossy(partition):
            return
        try:
            found = await self._fetch(partition, self._positions.get(partition, 0))
        except KafkaError as error:
            self.clients.trace(f"the reader of {TOPIC}-{partition}: {error}")
            return
        self._positions[partition] = max(found[1], self._positions.get(partition, 0))
        self.clients.consumed += 1
        self.clients.trace(f"the reader of {TOPIC}-{partition} got {found}")

    async def _fetch(self, partition: int, position: int) -> tuple[list[str], int, bool]:
        """Return what read_committed shows from *position* on, the next position, and whether that is the end."""
        topic_id = self.clients.observer.topics.get(TOPIC)
        if topic_id is None:
            return [], position, False
        request = FetchRequest(
            500,
            1,
            [FetchTopic("", [FetchPartition(partition, position, 1 << 20, -1)], topic_id)],
            isolation_level=READ_COMMITTED,
        )
        answer = await self._reader.ask(TOPIC, partition, ApiKey.FETCH, 15, request)
        part = answer.topics[0].partitions[0]
        if part.error_code:
            raise for_code(ErrorCode(part.error_code))
        data, values = part.record_set, []
        visibility = BatchVisibility(part.aborted_transactions)
        for info in iterate(data):
            if not visibility.is_hidden(info, data) and info.base_offset >= position:
                values += [value.decode() for value in decode_columns(data, info).values if value]
            position = max(position, info.next_offset)
        self.rules.read(partition, values, part.last_stable_offset)
        return values, position, position == part.last_stable_offset == part.high_watermark

    async def _read_all(self, partition: int) -> None:
        assert self._found is not None
        position, is_end = 0, self.rules.is_lossy(partition)
        while not is_end:
            try:
                values, position, is_end = await self._fetch(partition, position)
            except KafkaError:
                await self._reader.pause(*PAUSE)
                continue
            self._found[partition] += values
        self._read_to_the_end.add(partition)

    async def _offsets_once(self) -> None:
        before = self.rules.fetch_begins()
        wanted = [OffsetFetchRequestTopics(TOPIC, list(range(PARTITIONS)))]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(GROUP, topics=wanted)], require_stable=True
        )
        try:
            answer = (await self.ask_group(self._reader, ApiKey.OFFSET_FETCH, 8, request)).groups[0]
        except KafkaError:
            return
        if answer.error_code:
            return
        for part in answer.topics[0].partitions:
            if not part.error_code:
                self.rules.fetch_ends(before, part.partition_index, part.committed_offset)
        self.clients.offsets_fetched()
