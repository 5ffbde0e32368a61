"""Clients: producers that repeat what was not answered, consumers, and an administrator.

They use the real protocol over real connections (`kclient.net.connection`). They choose a broker by its own state, so
that a deposed leader receives requests before it learns of its successor.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred, FirstError, gatherResults
from twisted.python.failure import Failure

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.coordinator.placement import partition_for
from kclient.errors import Address, ConnectError
from kclient.net.connection import Connection
from kclient.wire.batches import parse
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError
from kclient.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.records import Record, encode_batch
from kclient.wire.schema.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kclient.wire.schema.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kclient.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kclient.wire.schema.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kclient.wire.schema.elect_leaders import ElectLeadersRequest, TopicPartitions
from kclient.wire.schema.find_coordinator import FindCoordinatorRequest
from kclient.wire.versions import ApiKey
from tests.simulation.clock import EPOCH, Process
from tests.simulation.group_events import CLIENTS, GROUP
from tests.simulation.members import Groups
from tests.simulation.network import Network
from tests.simulation.node import PORT, Node
from tests.simulation.predicates import Observer
from tests.simulation.rejected_producer import RejectedProducer
from tests.simulation.transactional_producers import Transactions

PRODUCE_TIMEOUT_MS = 3000
PAUSE = (0.1, 0.5)
PRODUCER_IDS = 1000
MOVE_ATTEMPTS = 5
LARGE = 900
"""Bytes of a value that takes more than a page of the disk."""

PREFERRED, UNCLEAN = 0, 1
"""The type of election (KIP-460)."""

SETTINGS_OF = {
    "unclean": {"unclean.leader.election.enable": "true"},
    "flushed": {"flush.messages": "1"},
    "short": {"retention.bytes": "500", "segment.bytes": "400"},
    "compacted": {
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": "400",
    },
}
"""The settings of each kind of topic."""

ALREADY_THERE = (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE)
GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE)


class Clients:
    """All clients of the cluster."""

    def __init__(
        self,
        process: Process,
        network: Network,
        nodes: dict[int, Node],
        observer: Observer,
        trace: Any,
    ) -> None:
        self.process = process
        self.nodes = nodes
        self.observer = observer
        self.trace = trace
        self.rng: Random = Random(process._rng.getrandbits(64))
        self.topics: dict[str, int] = {}
        """The topics that are to exist, with their numbers of partitions."""
        self.compacted: set[str] = set()
        """The topics with records that have keys."""
        self.failure: Failure | None = None
        self.acknowledged = 0
        self.once_acknowledged: Callable[[], object] | None = None
        """Called once, with the next acknowledgement of acks=all."""
        self.consumed = 0
        self._producers = 0
        self._dial = network.dialler(process, CLIENTS)
        self._connections: dict[tuple[int, str], Connection] = {}
        self._writers: dict[tuple[str, int, str], Writer] = {}
        self._positions: dict[tuple[UUID, int], int] = {}
        self._administration: dict[str, bool] = {}
        """What is being done to a topic: whether it is to exist."""
        self._pending_deletes: set[UUID] = set()
        """Topics with a requested deletion; until they are gone no topic of that name can be created."""
        self.groups = Groups(self, network, CLIENTS)
        self._network = network
        self._transactions: Transactions | None = None

    # -- verbs of scripts

    def produce(self, topic: str, partition: int, kind: str, count: int) -> None:
        if topic not in self.topics or partition >= self.topics[topic]:
            return
        writer = self._writers.get((topic, partition, kind))
        if writer is None:
            writer = Writer(self, topic, partition, kind, self.new_producer())
            self._writers[topic, partition, kind] = writer
        writer.send(count)

    def misproduce(self, topic: str, partition: int, kind: str) -> None:
        """Send what a leader must reject: a batch behind a "gap", or of an "epoch" that is over."""
        if topic in self.topics and partition < self.topics[topic]:
            self._spawn(RejectedProducer(self, topic, partition, self.new_producer()).run(kind))

    def offsets_fetched(self) -> None:
        """Count an answer with committed offsets."""
        self.groups.fetched += 1

    def now_ms(self) -> int:
        """Return what a client's clock shows."""
        return int((EPOCH + self.process.seconds()) * 1000)

    def new_producer(self) -> int:
        """Return an unused producer id."""
        self._producers += 1
        return PRODUCER_IDS + self._producers

    def read(self, topic: str, partition: int, node: int) -> None:
        self._spawn(self._read(topic, partition, node))

    def create(self, topic: str, partitions: int, kinds: tuple[str, ...] = ()) -> None:
        if topic not in self._administration:
            losses = self.observer.losses
            # The request for a topic that exists is refused, and the settings stay as they are.
            if topic not in self.topics:
                for kind, topics in (("unclean", losses.unclean), ("flushed", losses.flushed)):
                    (topics.add if kind in kinds else topics.discard)(topic)
            self.observer.deletes |= "short" in kinds
            if "compacted" in kinds:
                self.compacted.add(topic)
            self.topics[topic] = partitions
            self._administration[topic] = True
            self._spawn(self._create(topic, partitions, kinds))

    def trim(self, topic: str, partition: int) -> None:
        """Delete the committed records of a partition (DeleteRecords), if it has a leader."""
        self.observer.deletes = True
        self._spawn(self._trim(topic, partition))

    def delete(self, topic: str) -> None:
        if topic in self.topics and topic not in self._administration:
            del self.topics[topic]
            self._administration[topic] = False
            if topic in self.observer.topics:
                self._pending_deletes.add(self.observer.topics[topic])
            for key in [key for key in self._writers if key[0] == topic]:
                self._writers.pop(key).stop()
            self._spawn(self._delete(topic))

    def move(self, topic: str, partition: int, replicas: list[int]) -> None:
        if topic in self.topics and topic not in self._administration:
            self._spawn(self._move(topic, partition, replicas))

    def begin_transactions(self) -> None:
        """Create the topics that transactions need."""
        if self._transactions is None:
            self._transactions = Transactions(self, self._network)

    @property
    def transactions(self) -> Transactions:
        """What transactional producers do; a script begins with them."""
        self.begin_transactions()
        assert self._transactions is not None
        return self._transactions

    def heal(self) -> None:
        """Let all groups and producers go on."""
        self.groups.heal()
        if self._transactions is not None:
            self._transactions.heal()

    def accept_loss(self, topic: str, partition: int) -> None:
        """Have the operator accept the loss of a partition's records."""
        self._spawn(self._accept_loss(topic, partition))

    def coordinate(self) -> None:
        """Create the offsets topic, if it is not there, when all brokers are known: with all its replicas."""
        if OFFSETS_TOPIC not in self.topics:
            self.topics[OFFSETS_TOPIC] = 0
            self._spawn(self._coordinate())

    def depute(self, group: str) -> None:
        """Have another broker coordinate a group: the next of its replicas is preferred, and elected."""
        if self.observer.groups.partitions:
            partition = partition_for(group, self.observer.groups.partitions)
            self._spawn(self._depute(OFFSETS_TOPIC, partition))

    def depute_partition(self, topic: str, partition: int) -> None:
        """Have another broker lead a partition: the next of its replicas is preferred, and elected."""
        if (topic, partition) in self.observer.replicas:
            self._spawn(self._depute(topic, partition))

    @property
    def unfinished(self) -> str | None:
        """What is still under way."""
        if self._administration:
            return f"topics are being created or deleted: {self._administration}"
        if self.groups.unfinished is not None:
            return self.groups.unfinished
        if self._transactions is not None and self._transactions.unfinished is not None:
            return self._transactions.unfinished
        for writer in self._writers.values():
            if writer.unfinished:
                return f"{writer} waits for {writer.unfinished} acknowledgements"
        return None

    # -- finding brokers

    def leader(self, topic: str, partition: int, rng: Random | None = None) -> int | None:
        """Return a broker that considers itself leader, mostly that of the newest epoch."""
        rng = rng or self.rng
        found = []
        for number, node in self.nodes.items():
            if not node.running or node.broker is None:
                continue
            replica = node.partitions.get((topic, partition))
            if replica is not None and replica.leader_state is not None:
                found.append((replica.role.leader_epoch, number))
        if not found:
            return None
        return max(found)[1] if rng.random() < 0.7 else rng.choice(sorted(found))[1]

    def controller(self) -> int | None:
        found = [
            number
            for number, node in self.nodes.items()
            if node.running and node.parts is not None and node.parts.controller.is_active
        ]
        return self.rng.choice(found) if found else None

    async def connection(self, node: int, channel: str) -> Connection:
        connection = self._connections.get((node, channel))
        if connection is None or connection.closed is not None:
            connection = await self._dial(
                self.process,
                Address(f"node{node}", PORT),
                client_id=channel,
                connect_timeout=3.0,
                request_timeout=4.0,
            )
            self._connections[node, channel] = connection
        return connection

    async def pause(self) -> None:
        waiting: Deferred[None] = Deferred()
        self.process.callLater(self.rng.uniform(*PAUSE), waiting.callback, None)
        await waiting

    def _spawn(self, work: Any) -> None:
        Deferred.fromCoroutine(work).addErrback(self.failed)

    def failed(self, failure: Failure) -> None:
        """Keep what a client found wrong until the end of the step."""
        if isinstance(failure.value, FirstError):
            failure = failure.value.subFailure
        self.failure = self.failure or failure

    # -- reading

    async def _read(self, topic: str, partition: int, node: int) -> None:
        topic_id = self.observer.topics.get(topic)
        if topic_id is None:
            return
        position = self._positions.get((topic_id, partition), 0)
        request = FetchRequest(
            500,
            1,
            [FetchTopic("", [FetchPartition(partition, position, 1 << 20, -1)], topic_id)],
        )
        try:
            connection = await self.connection(node, "consumer")
            response = await connection.request(ApiKey.FETCH, 15, request)
        except KafkaError:
            return
        for answered in response.topics:
            for part in answered.partitions:
                if not part.error_code:
                    self.observer.expired_leaders.served((topic_id, partition), topic, node)
                if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._positions[topic_id, partition] = max(part.log_start_offset, 0)
                if part.error_code or not part.record_set:
                    continue
                end = self.observer.consumed(topic_id, partition, memoryview(part.record_set))
                self.consumed += 1
                key = (topic_id, partition)
                self._positions[key] = max(self._positions.get(key, 0), end)

    # -- topics

    async def _create(self, topic: str, partitions: int, kinds: tuple[str, ...]) -> None:
        settings = {k: v for kind in kinds for k, v in SETTINGS_OF[kind].items()}
        configs = [CreatableTopicConfig(name=k, value=v) for k, v in settings.items()]
        wanted = CreatableTopic(
            name=topic, num_partitions=partitions, replication_factor=3, configs=configs
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=3000)
        await self._administer(topic, ApiKey.CREATE_TOPICS, 7, request, ALREADY_THERE)

    async def _trim(self, topic: str, partition: int) -> None:
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition, -1)])
            ],
            timeout_ms=3000,
        )
        leader = self.leader(topic, partition)
        if leader is None:
            return
        try:
            connection = await self.connection(leader, "admin")
            response = await connection.request(ApiKey.DELETE_RECORDS, 2, request)
            done = response.topics[0].partitions[0]
            self.trace(f"{topic}-{partition} begins at {done.low_watermark} ({done.error_code})")
        except KafkaError as error:
            self.trace(f"{topic}-{partition} is not trimmed: {error}")

    async def _delete(self, topic: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=3000)
        await self._administer(topic, ApiKey.DELETE_TOPICS, 6, request, GONE)

    async def _move(self, topic: str, partition: int, replicas: list[int]) -> None:
        """Request other replicas, a few times; the cluster must be whole afterwards with or without a response."""
        wanted = ReassignableTopic(
            name=topic, partitions=[ReassignablePartition(partition, replicas)]
        )
        request = AlterPartitionReassignmentsRequest(timeout_ms=3000, topics=[wanted])
        for _ in range(MOVE_ATTEMPTS):
            controller = self.controller()
            if controller is not None and topic in self.topics:
                try:
                    connection = await self.connection(controller, "admin")
                    api = ApiKey.ALTER_PARTITION_REASSIGNMENTS
                    response = await connection.request(api, 0, request)
                    code = response.error_code or response.responses[0].partitions[0].error_code
                    self.trace(f"moving {topic}-{partition}: {ErrorCode(code).name}")
                    if not code:
                        return
                except KafkaError as error:
                    self.trace(f"moving {topic}-{partition}: {error}")
            await self.pause()

    async def _coordinate(self) -> None:
        request = FindCoordinatorRequest(coordinator_keys=[GROUP])
        while OFFSETS_TOPIC not in self.observer.topics:
            for number, node in self.nodes.items():
                if not node.running or node.parts is None:
                    continue
                if len(node.parts.metadata.brokers) < len(self.nodes):
                    continue
                try:
                    connection = await self.connection(number, "admin")
                    await connection.request(ApiKey.FIND_COORDINATOR, 4, request)
                except KafkaError:
                    continue
                break
            await self.pause()

    async def _depute(self, topic: str, partition: int) -> None:
        first, *others = self.observer.replicas[topic, partition]
        wanted = ReassignableTopic(
            name=topic, partitions=[ReassignablePartition(partition, [*others, first])]
        )
        elect = ElectLeadersRequest(
            election_type=PREFERRED,
            topic_partitions=[TopicPartitions(topic=topic, partitions=[partition])],
            timeout_ms=3000,
        )
        move = AlterPartitionReassignmentsRequest(timeout_ms=3000, topics=[wanted])
        for api, version, request in (
            (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, move),
            (ApiKey.ELECT_LEADERS, 2, elect),
        ):
            controller = self.controller()
            if controller is None:
                return
            try:
                connection = await self.connection(controller, "admin")
                response = await connection.request(api, version, request)
                self.trace(f"{topic}-{partition}: {response}")
            except KafkaError as error:
                self.trace(f"{topic}-{partition}: {error}")

    async def _accept_loss(self, topic: str, partition: int) -> None:
        request = ElectLeadersRequest(
            election_type=UNCLEAN,
            topic_partitions=[TopicPartitions(topic=topic, partitions=[partition])],
            timeout_ms=3000,
        )
        while (topic, partition) in self.observer.losses.accepted_by_operator:
            controller = self.controller()
            if controller is not None:
                try:
                    connection = await self.connection(controller, "admin")
                    response = await connection.request(ApiKey.ELECT_LEADERS, 2, request)
                    self.trace(f"{topic}-{partition} may have an unclean election: {response}")
                except KafkaError as error:
                    self.trace(f"{topic}-{partition} may have an unclean election: {error}")
            await self.pause()

    async def _administer(
        self, topic: str, api: ApiKey, version: int, request: Any, enough: Any
    ) -> None:
        while True:
            controller = self.controller()
            if controller is not None:
                try:
                    connection = await self.connection(controller, "admin")
                    response = await connection.request(api, version, request)
                    found = (getattr(response, "topics", None) or response.responses)[0]
                    self.trace(f"{api.name} of {topic}: {ErrorCode(found.error_code).name}")
                    waits = found.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and (
                        self.observer.topics.get(topic) in (None, *self._pending_deletes)
                    )
                    if found.error_code in enough and not waits:
                        self._administration.pop(topic)
                        return
                except KafkaError as error:
                    self.trace(f"{api.name} of {topic}: {error}")
            await self.pause()


def gather(work: list[Any]) -> Deferred[list[Any]]:
    """Do it all at once."""
    return gatherResults([Deferred.fromCoroutine(each) for each in work], consumeErrors=True)


class Writer:
    """A producer of one partition: batches in order, up to four in flight, repeated until answered.

    Kinds: `idempotent` (acks=all), `all` (acks=all, not repeated after an error), `large` (the same, of records that
    span pages of the disk), `one` and `one-large` (acks=1).
    """

    def __init__(
        self, clients: Clients, topic: str, partition: int, kind: str, number: int
    ) -> None:
        self._clients = clients
        self._topic, self._partition, self._kind = topic, partition, kind
        self._number = number
        self._next = 0
        self._sequence = 0
        self._wanted = 0
        self._unanswered = 0
        self._is_lost = False
        """Whether a leader lacks the batches before: they went with an accepted loss."""
        self._is_known = False
        """Whether a batch of this producer id was acknowledged."""
        self._has_gap = False
        """Whether its first batch was refused, and one behind it was appended."""
        self._in_flight = clients.rng.choice((1, 2, 4))
        self._stopped = False
        self._busy = False

    def __repr__(self) -> str:
        return f"the {self._kind} producer of {self._topic}-{self._partition}"

    @property
    def unfinished(self) -> int:
        return self._wanted + self._unanswered if self._kind == "idempotent" else 0

    def send(self, count: int) -> None:
        self._wanted += count
        if not self._busy:
            self._busy = True
            Deferred.fromCoroutine(self._run()).addErrback(self._clients.failed)

    def stop(self) -> None:
        """Give up: the topic is to be deleted."""
        self._stopped = True
        self._wanted = 0

    async def _run(self) -> None:
        window: list[tuple[int, bytes]] = []
        while (self._wanted or window) and not self._stopped:
            while self._wanted and len(window) < self._in_flight:
                window.append(self._batch())
                self._wanted -= 1
            answers = await self._offer_all([batch for _, batch in window])
            if self._kind != "idempotent":
                window.clear()
                continue
            self._look_for_gap(answers)
            window = [entry for entry, done in zip(window, answers, strict=True) if not done]
            self._unanswered = len(window)
            if self._is_lost:
                window = self._new_producer(window)
            if window:
                await self._clients.pause()
        self._unanswered = 0
        self._busy = False

    def _look_for_gap(self, answers: list[bool]) -> None:
        """Note that a leader took the sequence behind a refused one for the producer's first.

        Kafka's does so, too, for a producer that it does not know: the ISR may grow between two batches in flight.
        The refused batch can never be appended then. Kafka's producer gives it up and goes on with another epoch.
        """
        refused = answers.index(False) if False in answers else len(answers)
        self._has_gap |= not self._is_known and any(answers[refused:])
        self._is_known |= any(answers)

    def _new_producer(self, window: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Go on with another producer id, as clients do: the outcome of the last requests is unknown."""
        self._is_lost = self._is_known = self._has_gap = False
        self._number = self._clients.new_producer()
        self._sequence = 0
        return [self._batch(count) for count, _ in window]

    def _batch(self, count: int = 0) -> tuple[int, bytes]:
        """Return the next batch, and of how many records it is."""
        numbers: dict[str, Any] = {}
        count = count or self._clients.rng.choice((1, 1, 1, 3))
        if self._kind == "idempotent":
            numbers = {
                "producer_id": self._number,
                "producer_epoch": 0,
                "base_sequence": self._sequence,
            }
        self._sequence += count
        self._next += 1
        now_ms = self._clients.now_ms()
        value = b"%d/%d" % (self._number, self._next)
        if self._kind in ("large", "one-large"):
            value = value.ljust(LARGE, b".")
        records = [Record(n, now_ms, self._key(n, value), value, ()) for n in range(count)]
        return count, encode_batch(records, **numbers)

    def _key(self, number: int, value: bytes) -> bytes | None:
        """Return a key that no other record has where one is needed."""
        return b"%d/%b" % (number, value) if self._topic in self._clients.compacted else None

    async def _offer_all(self, window: list[bytes]) -> list[bool]:
        """Send them once, all by one connection; which are acknowledged."""
        clients = self._clients
        leader = clients.leader(self._topic, self._partition)
        try:
            if leader is not None:
                connection = await clients.connection(leader, self._kind)
                return await gather([self._offer(leader, connection, each) for each in window])
        except ConnectError:
            pass
        return [False] * len(window)

    async def _offer(self, leader: int, connection: Connection, batch: bytes) -> bool:
        clients = self._clients
        acks = 1 if self._kind in ("one", "one-large") else -1
        request = ProduceRequest(
            acks,
            PRODUCE_TIMEOUT_MS,
            [ProduceTopic(self._topic, [ProducePartition(self._partition, batch)])],
        )
        try:
            response = await connection.request(ApiKey.PRODUCE, 9, request)
        except KafkaError:
            return False
        outcome = response.topics[0].partitions[0]
        if outcome.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return True
        if outcome.error_code:
            clients.trace(f"{self!r}: broker {leader}: {ErrorCode(outcome.error_code).name}")
            if outcome.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._is_lost = self._has_gap or clients.observer.has_lost(
                    self._topic, self._partition
                )
            if outcome.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
                clients.nodes[leader].fatal.append(
                    f"Produce answered UNKNOWN_SERVER_ERROR: {outcome}"
                )
            return False
        topic_id = clients.observer.topics.get(self._topic)
        if topic_id is not None:
            clients.observer.expired_leaders.served(
                (topic_id, self._partition), self._topic, leader
            )
        if acks == -1 and not self._stopped:
            clients.observer.acknowledged(
                self._topic, self._partition, outcome.base_offset, parse(batch).crc
            )
            clients.acknowledged += 1
            then, clients.once_acknowledged = clients.once_acknowledged, None
            if then is not None:
                then()
        return True
