"""Writes to a target that renumbers offsets: performs the requests of `mirrormaker.transaction`.

All batches of a partition in a transaction use one connection, at most five requests in flight, as idempotence requires
(KIP-98). A Produce request has one batch of each partition: more are not allowed.

Without transactions at the target the same machine appends plain batches and commits its positions by OffsetCommit.

In: effects of the machine   Out: its events, lines for *report*   Owner: the reactor's thread
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kclient.errors import ClientError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.group_offsets import Generation, commit_offsets, committed_offsets
from kclient.net.transactions import FENCED, Transactions
from kclient.net.waiting import all_of
from kclient.types import ProducerIdAndEpoch, TopicPartition
from kclient.wire.errors import (
    DuplicateSequenceNumber,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    LeaderNotAvailable,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
    UnsupportedVersion,
)
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.versions import ApiKey
from mirrormaker.locator import Timers, kafka_error
from mirrormaker.offset_pairs import OffsetPair
from mirrormaker.position import Position, position_group, read_position
from mirrormaker.renumber import with_producer
from mirrormaker.settings import LinkSettings
from mirrormaker.transaction import (
    Aborted,
    AddPartitions,
    Batch,
    Committed,
    Effect,
    EndTransaction,
    Fenced,
    InitProducerId,
    Part,
    Produce,
    ReadPositions,
    StorePositions,
    TransactionMachine,
)

CHANNEL = "mirror"
TIMEOUT = 15.0
"""Seconds for one request to a coordinator, with its repetitions."""

MOST_IN_FLIGHT = 5
"""Batches of a producer that a broker remembers for each partition."""

STABLE_OFFSETS_VERSION = 7
"""OffsetFetch from this version on does not return an offset that an open transaction may replace (KIP-447)."""

ALL_IN_SYNC = -1
_NEEDED = (
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)
_PRODUCER_ERRORS = (
    *FENCED,
    DuplicateSequenceNumber,
    InvalidProducerIdMapping,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)
"""Errors about the producer, not about the records of the partition that has them."""


class TransactionAborted(ClientError, retriable=True):
    """A transaction was not committed, because of another partition or a coordinator."""


class MirrorFenced(ClientError):
    """The producer epoch of this process is not the latest any more."""

    hint = "another kmirror copies this direction; only one process may"


class NoTransactions(UnsupportedVersion):
    """The target's brokers do not support transactions."""

    hint = "exactly.once.source.support=disabled copies without them, each record at least once"


def check_transactions(connection: Connection) -> None:
    """Raise `NoTransactions` unless the broker supports what `TransactionMachine` needs."""
    versions = connection.api_versions
    missing = [key.name for key in _NEEDED if key not in versions]
    offset_fetch = versions.get(ApiKey.OFFSET_FETCH)
    if offset_fetch is None or offset_fetch.max < STABLE_OFFSETS_VERSION:
        missing.append(f"OFFSET_FETCH v{STABLE_OFFSETS_VERSION}")
    if missing:
        raise NoTransactions(
            f"the broker at {connection.address} does not serve {', '.join(missing)}"
        )


async def read_positions(
    cluster: Cluster, group: str, *, is_transactional: bool
) -> dict[TopicPartition, Position]:
    """Return all positions that are stored for *group*. Raise KafkaError while a transaction may replace one."""
    found = await committed_offsets(
        cluster, group, None, timeout=TIMEOUT, require_stable=is_transactional
    )
    return {tp: read_position(each) for tp, each in found.items()}


class TransactionalTarget:
    """Performs the effects of *machine* for the mirror of the cluster *source_id*.

    *committed* and *aborted* get the outcome of each transaction; *aborted* also the error of each partition, and the
    error of the transaction. *ready* is called when a transaction may begin. *report* gets (subject, event).
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: LinkSettings,
        machine: TransactionMachine,
        timers: Timers,
        *,
        source_id: Callable[[], str],
        ready: Callable[[], None],
        committed: Callable[[tuple[Part, ...]], None],
        aborted: Callable[
            [tuple[Part, ...], Mapping[TopicPartition, KafkaError], KafkaError], None
        ],
        report: Callable[[str, str], None],
        defect: Callable[[Failure], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._machine = machine
        self._timers = timers
        self._source_id = source_id
        self._ready = ready
        self._committed = committed
        self._aborted = aborted
        self._report = report
        self._defect = defect
        self._blamed: dict[TopicPartition, KafkaError] = {}
        self._problem: KafkaError = TransactionAborted("no error was reported")

    @property
    def group(self) -> str:
        """The group of the positions, and the transactional id."""
        return position_group(self._source_id())

    def start(self) -> None:
        """Begin: fence earlier processes, and read the positions."""
        self._perform(self._machine.start())

    def begin(self, parts: list[Part]) -> None:
        """Begin a transaction."""
        self._perform(self._machine.begin(parts, self._cluster.reactor.seconds()))

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, InitProducerId | ReadPositions):
                self._timers.later(effect.delay, partial(self._request, effect))
            elif isinstance(effect, AddPartitions | Produce | StorePositions | EndTransaction):
                self._request(effect)
            elif isinstance(effect, Committed):
                self._committed(effect.parts)
            elif isinstance(effect, Aborted):
                self._aborted(effect.parts, self._blamed, self._problem)
            elif isinstance(effect, Fenced):
                self._defect(Failure(MirrorFenced(f"{self.group}: {self._problem.message}")))
            else:
                self._ready()

    def _request(
        self,
        effect: InitProducerId
        | ReadPositions
        | AddPartitions
        | Produce
        | StorePositions
        | EndTransaction,
    ) -> None:
        """Send the request of *effect*, and give the machine its outcome."""
        event, answer = self._sent(effect)

        def ended(result: Any) -> None:
            if not isinstance(result, Failure):
                self._perform(event(result))
                return
            problem = kafka_error(result)
            self._problem = problem
            if problem.needs_metadata:
                self._cluster.update_soon()
            if self._machine.generation == effect.generation:
                self._report(f"transaction {self.group}", str(problem))
            fenced = isinstance(problem, FENCED)
            now = self._cluster.reactor.seconds()
            self._perform(self._machine.failed(effect.generation, now, fenced=fenced))

        Deferred.fromCoroutine(answer).addBoth(ended).addErrback(self._defect)

    def _sent(self, effect: Any) -> tuple[Callable[[Any], list[Effect]], Any]:
        """Return the machine's event for the answer to *effect*, and the coroutine of the request."""
        machine, generation = self._machine, effect.generation
        requests = Transactions(self._cluster, self.group, timeout=TIMEOUT)
        if isinstance(effect, InitProducerId):
            sent: Awaitable[Any] = requests.init_producer_id(self._settings.transaction_timeout_ms)
            return lambda producer: machine.initialized(generation, producer), sent
        if isinstance(effect, ReadPositions):
            sent = read_positions(
                self._cluster, self.group, is_transactional=machine.is_transactional
            )
            return lambda found: machine.positions_read(generation, found), sent
        producer = ProducerIdAndEpoch(*effect.producer)
        if isinstance(effect, AddPartitions):
            return lambda _: machine.added(generation), self._add(requests, producer, effect.tps)
        if isinstance(effect, Produce):
            return lambda found: machine.appended(generation, *found), self._append(effect)
        if isinstance(effect, StorePositions):
            return lambda _: machine.stored(generation), self._store(requests, producer, effect)
        return lambda _: machine.ended(generation), requests.end(producer, committed=True)

    async def _add(
        self,
        requests: Transactions,
        producer: ProducerIdAndEpoch,
        tps: tuple[TopicPartition, ...],
    ) -> None:
        if tps:
            await requests.add_partitions(producer, tps)
        await requests.add_offsets(producer, self.group)

    async def _store(
        self, requests: Transactions, producer: ProducerIdAndEpoch, effect: StorePositions
    ) -> None:
        offsets = {tp: position.committed() for tp, position in effect.positions.items()}
        if self._machine.is_transactional:
            await requests.commit_offsets(producer, self.group, offsets)
            return
        answers = await commit_offsets(
            self._cluster, self.group, offsets, Generation(), timeout=TIMEOUT
        )
        for problem in answers.values():
            if problem is not None:
                raise problem

    # --- records

    async def _append(
        self, effect: Produce
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, list[OffsetPair]]]:
        """Append all batches. Raise KafkaError.

        Return the offset behind each partition's last batch, and the base offsets of each batch on both sides.
        """
        self._blamed = {}
        by_leader: dict[int, list[tuple[Part, int]]] = defaultdict(list)
        for part, sequence in effect.parts:
            leader = self._cluster.metadata.leader(part.tp)
            if leader is None:
                raise LeaderNotAvailable(f"{part.tp} has no leader")
            by_leader[leader].append((part, sequence))
        ends: dict[TopicPartition, int] = {}
        pairs: dict[TopicPartition, list[OffsetPair]] = defaultdict(list)
        await all_of(
            self._append_to(leader, effect.producer, parts, ends, pairs)
            for leader, parts in by_leader.items()
        )
        return ends, pairs

    async def _append_to(
        self,
        leader: int,
        producer: tuple[int, int],
        parts: list[tuple[Part, int]],
        ends: dict[TopicPartition, int],
        pairs: dict[TopicPartition, list[OffsetPair]],
    ) -> None:
        connection = await self._cluster.connection(leader, CHANNEL)
        # Without sequence numbers a later batch could be appended before one that failed.
        most = min(MOST_IN_FLIGHT, self._settings.max_in_flight)
        most = most if self._machine.is_transactional else 1
        requests = iter(self._requests(parts))

        async def send_in_turn() -> None:
            for batches in requests:
                await self._send(connection, producer, batches, ends, pairs)

        await all_of(send_in_turn() for _ in range(most))

    def _requests(
        self, parts: list[tuple[Part, int]]
    ) -> Iterator[list[tuple[TopicPartition, Batch, int]]]:
        """Yield the batches of each request, with their sequence numbers: one of a partition, in its order."""
        left = [(part.tp, list(reversed(part.batches)), sequence) for part, sequence in parts]
        while left:
            room = self._settings.max_request_size
            request: list[tuple[TopicPartition, Batch, int]] = []
            remaining = []
            for tp, batches, sequence in left:
                batch = batches[-1]
                if request and len(batch.data) > room:
                    remaining.append((tp, batches, sequence))
                    continue
                batches.pop()
                room -= len(batch.data)
                request.append((tp, batch, sequence))
                if batches:
                    following = (sequence + batch.record_count) & 0x7FFFFFFF
                    remaining.append((tp, batches, following))
            left = remaining
            yield request

    async def _send(
        self,
        connection: Connection,
        producer: tuple[int, int],
        batches: list[tuple[TopicPartition, Batch, int]],
        ends: dict[TopicPartition, int],
        pairs: dict[TopicPartition, list[OffsetPair]],
    ) -> None:
        """Send one request; take the places of its batches, and raise the error of the first partition that has one."""
        transactional = self._machine.is_transactional
        topics: dict[str, list[ProducePartition]] = defaultdict(list)
        for tp, batch, sequence in batches:
            data = with_producer(
                batch.data,
                producer_id=producer[0],
                epoch=producer[1],
                sequence=sequence if transactional else -1,
                is_transactional=transactional,
            )
            topics[tp.topic].append(ProducePartition(tp.partition, data))
        timeout_ms = self._settings.request_timeout_ms
        request = ProduceRequest(
            ALL_IN_SYNC,
            timeout_ms,
            [ProduceTopic(name, partitions) for name, partitions in topics.items()],
            self.group if transactional else None,
        )
        response = await connection.request(
            ApiKey.PRODUCE, None, request, timeout=timeout_ms / 1000 + 5
        )
        counts = {tp: batch.record_count for tp, batch, _ in batches}
        sources = {tp: batch.source_offset for tp, batch, _ in batches}
        answered = set()
        for topic in response.topics:
            for each in topic.partitions:
                tp = TopicPartition(topic.name, each.index)
                answered.add(tp)
                if each.error_code:
                    problem = error_of(each.error_code, f"append to {tp}", each.error_message)
                    if not isinstance(problem, _PRODUCER_ERRORS):
                        self._blamed.setdefault(tp, problem)
                    raise problem
                ends[tp] = each.base_offset + counts.get(tp, 0)
                pairs[tp].append(OffsetPair(sources.get(tp, -1), each.base_offset))
        if answered != counts.keys():
            raise for_missing(counts.keys() - answered)


def for_missing(tps: Iterable[TopicPartition]) -> KafkaError:
    """Return the error of a response without some of the partitions of its request."""
    return LeaderNotAvailable(f"a response does not contain {', '.join(map(str, sorted(tps)))}")
