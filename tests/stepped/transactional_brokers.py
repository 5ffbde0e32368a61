"""Transaction coordinators of several brokers over the simulated ZooKeeper, and partitions that take markers.

Each broker is a process of its own on one virtual clock: it can be killed, or paused while another broker takes over.
A deposed coordinator is not informed. The leaders log the markers that they acknowledge, by the rules of
docs/design/transactions.md for late markers. The test decides which requests and responses are lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from uuid import UUID, uuid4

from twisted.internet.defer import Deferred

from kbroker.common.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.common.leader_and_isr import LeaderAndIsr
from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.transaction.core.records import decode_metadata
from kbroker.coordinator.transaction.core.states import (
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from kbroker.coordinator.transaction.producer_id_manager import ProducerIdManager
from kbroker.coordinator.transaction.transaction_coordinator import (
    TransactionCoordinator,
    TransactionLimits,
)
from kbroker.metadata.metadata_cache import MetadataCache
from kbroker.zk import znodes
from kclient.errors import ConnectionClosed
from kclient.net.waiting import as_deferred
from kclient.wire.error_codes import ErrorCode
from kclient.wire.interbroker import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from kclient.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kclient.wire.versions import ApiKey
from tests.simulation.clock import Process
from tests.simulation.zk_connection import ZkConnection, client_of
from tests.stepped.zookeeper import SteppedZooKeeper, outcome_of

LISTENER = "PLAINTEXT"
LIMITS = TransactionLimits()
TIMEOUT_MS = 60_000
ROUND_TRIP = 0.01


@dataclass
class LoggedMarker:
    """A marker in the log of a partition."""

    producer: ProducerIdAndEpoch
    number: int
    is_commit: bool
    coordinator_epoch: int


class CoordinatingBroker:
    """A process with a session and a coordinator; without *wait* its session begins later."""

    def __init__(self, cluster: TransactionalBrokers, broker_id: int, *, wait: bool = True) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.process = Process(cluster.scheduler, f"broker-{broker_id}", Random(broker_id))
        self.connections: list[ZkConnection] = []
        self.zk = client_of(cluster.ensemble, self.process, broker_id, self.connections)
        self.no_successor_at = float("-inf")
        self.coordinator = TransactionCoordinator(
            self.process,
            self.zk,
            broker_id=broker_id,
            limits=cluster.limits,
            now_ms=lambda: cluster.now_ms,
            producer_ids=ProducerIdManager(self.zk, broker_id),
            metadata=cluster.metadata,
            listener=LISTENER,
            send=self._send,
            no_successor_at=lambda _partition, _epoch: self.no_successor_at,
            is_alone=lambda _partition, _epoch: False,
        )
        connecting = as_deferred(self.zk.start(10))
        self.coordinator.start()
        if wait:
            cluster.done(connecting)

    def lose_next_reply(self) -> None:
        """Have ZooKeeper do the next write, and lose its answer with the connection."""
        self.connections[-1].lose_next_reply = True

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        for connection in self.connections:
            connection.process_died()

    def _send(
        self, broker_id: int, host: str, port: int, api: ApiKey, version: int, request: Any
    ) -> Deferred[Any]:
        assert (host, port, api, version) == (
            "leader",
            9000 + broker_id,
            ApiKey.WRITE_TXN_MARKERS,
            1,
        )
        answer: Deferred[Any] = Deferred()
        self.cluster.receive(self, broker_id, request, answer)
        return answer

    # --- requests: each returns the result, or the error code

    def init(
        self,
        name: str = "x",
        *,
        timeout_ms: int = TIMEOUT_MS,
        expected: ProducerIdAndEpoch | None = None,
    ) -> Any:
        return self.ask(self.coordinator.init_producer_id(name, timeout_ms, expected))

    def add(self, producer: Any, *partitions: TopicPartition, name: str = "x") -> ErrorCode:
        return self.error(self.coordinator.add_partitions(name, producer, partitions))

    def add_group(self, producer: Any, group: str, name: str = "x") -> ErrorCode:
        return self.error(self.coordinator.add_offsets(name, producer, group))

    def end(self, producer: Any, *, commit: bool = True, name: str = "x") -> ErrorCode:
        return self.error(self.coordinator.end(name, producer, is_commit=commit))

    def verify(self, producer: Any, *partitions: TopicPartition, name: str = "x") -> Any:
        return self.ask(self.coordinator.verify(name, producer, partitions))

    def state(self, name: str = "x") -> TransactionState | ErrorCode:
        found = self.ask(self.coordinator.describe(name))
        return found if isinstance(found, ErrorCode) else found.state

    def ask(self, request: Awaitable[Any]) -> Any:
        """Return the result of a request, or the code of its KafkaError."""
        return self.cluster.done(self.begin(request))

    def begin(self, request: Awaitable[Any]) -> Deferred[Any]:
        """Begin a request; its Deferred has the result, or the code of its KafkaError."""
        return Deferred.fromCoroutine(outcome_of(request))

    def error(self, request: Awaitable[None]) -> ErrorCode:
        """Return the error code of a request."""
        return self.ask(request) or ErrorCode.NONE


class TransactionalBrokers(SteppedZooKeeper):
    """The cluster: *coordinators* partitions of __transaction_state, topics "t" and "u", 3 of __consumer_offsets.

    Broker 3 leads all partitions that take markers.
    """

    def __init__(self, *, coordinators: int = 1, limits: TransactionLimits = LIMITS) -> None:
        super().__init__()
        self.limits = limits
        self.now_ms = 1_000_000
        self.metadata = MetadataCache("cluster")
        self.leader = 3
        self.epochs = dict.fromkeys(range(coordinators), -1)
        self.topics: dict[str, int] = {}
        self.create_topic(TRANSACTIONS_TOPIC, coordinators)
        self.create_topic(OFFSETS_TOPIC, 3)
        self.create_topic("t", 2)
        self.create_topic("u", 1)
        for partition in self.epochs:
            self.ensemble.put(
                znodes.partition_state_path(TRANSACTIONS_TOPIC, partition),
                znodes.encode_partition_state(LeaderAndIsr(9, 0, (9,), 1)),
            )

        self.logs: dict[TopicPartition, list[LoggedMarker]] = {}
        """The markers that each partition acknowledged."""
        self._last: dict[tuple[TopicPartition, int], LoggedMarker] = {}
        """By partition and producer id."""
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        """The requests that were sent: coordinator and content."""
        self.error_of: Callable[[TopicPartition, WritableTxnMarker], ErrorCode] = (
            lambda _partition, _marker: ErrorCode.NONE
        )
        self.takes_requests = True
        self.loses_responses = False
        self.held: list[Callable[[], None]] | None = None
        """Requests that are delayed in the network, while it is a list."""

    # --- topics

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic in ZooKeeper and in the metadata."""
        self.topics[name] = partitions
        assignment = znodes.TopicAssignment(
            uuid4(), {p: znodes.ReplicaAssignment((1, 2)) for p in range(partitions)}
        )
        self.ensemble.put(znodes.topic_path(name), znodes.encode_topic(assignment))
        self.update_metadata()

    def delete_topic(self, name: str) -> None:
        """Delete a topic from ZooKeeper and from the metadata."""
        self.forget_topic(name)
        self.ensemble.remove(znodes.topic_path(name))

    def forget_topic(self, name: str) -> None:
        """Have the metadata cache not know a topic, for example because it is behind."""
        self.topics.pop(name)
        self.update_metadata()

    def update_metadata(self) -> None:
        """Send the whole metadata."""
        self.metadata.update(
            UpdateMetadataRequest(
                controller_id=1,
                controller_epoch=1,
                type=2,
                live_brokers=[
                    UpdateMetadataBroker(
                        n, [UpdateMetadataEndpoint(9000 + n, "leader", LISTENER, 0)], None
                    )
                    for n in (1, 2, 3, 4)
                ],
                topic_states=[
                    UpdateMetadataTopicState(
                        name,
                        UUID(int=1 + number),
                        [
                            UpdateMetadataPartitionState(
                                p, 1, self.leader, 0, [self.leader], 0, [self.leader], []
                            )
                            for p in range(count)
                        ],
                    )
                    for number, (name, count) in enumerate(self.topics.items())
                ],
            )
        )

    # --- brokers

    def broker(self, broker_id: int = 1, *partitions: int) -> CoordinatingBroker:
        """Start a broker that coordinates *partitions*, by default all of them."""
        broker = CoordinatingBroker(self, broker_id)
        self.lead(broker, *(partitions or self.epochs))
        return broker

    def lead(self, broker: CoordinatingBroker, *partitions: int) -> None:
        """Make *broker* the leader of partitions of __transaction_state; the former one is not informed."""
        for partition in partitions:
            self.elect(broker.broker_id, partition)
            broker.coordinator.on_election(partition, self.epochs[partition])
        self.run(lambda: all(s.loaded for s in broker.coordinator._shards.partitions.values()))

    def elect(self, broker_id: int, partition: int = 0) -> None:
        """Write the election of a leader."""
        self.epochs[partition] += 1
        state = LeaderAndIsr(broker_id, self.epochs[partition], (broker_id,), 1)
        self.write(
            znodes.partition_state_path(TRANSACTIONS_TOPIC, partition),
            znodes.encode_partition_state(state),
        )

    def change_isr(self, partition: int = 0) -> None:
        """Write the state of the partition again, with the same leader: its version grows."""
        path = znodes.partition_state_path(TRANSACTIONS_TOPIC, partition)
        self.write(path, self.ensemble.tree[path].data)

    def stored(self, name: str = "x") -> TransactionMetadata | None:
        """Return what ZooKeeper has of a transactional id."""
        path = znodes.transactional_id_path(name)
        node = self.ensemble.tree.get(path)
        return None if node is None else decode_metadata(path, node.data)

    # --- the leaders of partitions

    def receive(
        self,
        sender: CoordinatingBroker,
        broker_id: int,
        request: WriteTxnMarkersRequest,
        answer: Deferred[Any],
    ) -> None:
        """Take a request as broker *broker_id*."""
        self.requests.append((sender.broker_id, request))

        def handle() -> None:
            if not self.takes_requests:
                self._reply(sender, answer, ConnectionClosed("lost"))
                return
            response = self.handle(broker_id, request)
            self._reply(
                sender, answer, ConnectionClosed("lost") if self.loses_responses else response
            )

        if self.held is not None:
            self.held.append(handle)
        else:
            self.scheduler.after(ROUND_TRIP, handle)

    def _reply(self, sender: CoordinatingBroker, answer: Deferred[Any], result: Any) -> None:
        fire = answer.errback if isinstance(result, Exception) else answer.callback
        sender.process.arrives(self.scheduler.now, fire, result)

    def handle(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Log the markers of *request*."""
        return WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    marker.producer_id,
                    [
                        WritableTxnMarkerTopicResult(
                            topic.name,
                            [
                                WritableTxnMarkerPartitionResult(
                                    p, int(self._log((topic.name, p), marker, broker_id))
                                )
                                for p in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def _log(self, key: TopicPartition, marker: WritableTxnMarker, broker_id: int) -> ErrorCode:
        if broker_id != self.leader or key[1] >= self.topics.get(key[0], 0):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        error = self.error_of(key, marker)
        if error is not ErrorCode.NONE:
            return error
        log = self.logs.setdefault(key, [])
        last = self._last.get((key, marker.producer_id))
        if last is not None and last.coordinator_epoch > marker.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if last is not None and last.producer.epoch > marker.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        log.append(
            LoggedMarker(
                ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
                marker.transaction_number,
                marker.transaction_result,
                marker.coordinator_epoch,
            )
        )
        self._last[key, marker.producer_id] = log[-1]
        return ErrorCode.NONE

    def outcomes(self, number: int) -> dict[TopicPartition, set[bool]]:
        """Return by partition whether transaction *number* was committed; one value, if all is well."""
        found: dict[TopicPartition, set[bool]] = {}
        for key, log in self.logs.items():
            for marker in log:
                if marker.number == number:
                    found.setdefault(key, set()).add(marker.is_commit)
        return found

    # --- time

    def pass_time(self, seconds: float) -> None:
        """Make every call that is due in so many seconds; the wall clock goes with it."""
        self.now_ms += int(seconds * 1000)
        super().pass_time(seconds)


def with_limits(**changes: Any) -> TransactionLimits:
    """Return other limits than the defaults."""
    return replace(LIMITS, **changes)


def names_of(partitions: Iterable[TopicPartition]) -> list[str]:
    """Return partitions as text."""
    return sorted(f"{topic}-{partition}" for topic, partition in partitions)
