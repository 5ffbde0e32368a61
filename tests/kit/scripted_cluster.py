"""Scripted brokers: they record a client's requests, and respond when the test calls for it.

The client's own `Cluster` (routing, metadata, repetitions) runs on them, with a `twisted.internet.task.Clock` for a
reactor and without a socket::

    scripted = ScriptedCluster({"t": 2})
    cluster = scripted.cluster(ConsumerConfig.load({}))
    ...
    asked = scripted.one(ApiKey.FETCH)     # the one Fetch that waits for an answer
    asked.answer(fetched("t", 0, batch))

Metadata and FindCoordinator are answered from the tables below; anything else waits, unless `answers` has a function
for it (message -> response, an exception to raise, or HELD to let it wait).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from kclient.errors import Address, Cause, ConnectError, ConnectionClosed
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import KafkaError
from kclient.wire.fetch import (
    FetchPartitionResponse,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
)
from kclient.wire.produce import (
    CONDITIONAL_APPEND,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from kclient.wire.records import Record, encode_batch
from kclient.wire.schema import (
    describe_configs,
    find_coordinator,
    incremental_alter_configs,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
)
from kclient.wire.versions import SUPPORTED, ApiKey

_NAMES = UUID(int=7)
_TOPIC = 2
"""The type of a config resource that is a topic."""
HELD = object()
"""What a function of `answers` returns to let a request wait after all."""


@dataclass(eq=False)
class PendingRequest:
    """A request, and its response once there is one."""

    api: ApiKey
    version: int
    message: Any
    node: int
    channel: str
    waiter: Deferred[Any] = field(default_factory=Deferred)

    @property
    def waits(self) -> bool:
        return not self.waiter.called

    def answer(self, response: Any) -> None:
        self.waiter.callback(response)

    def fail(self, problem: KafkaError | None = None) -> None:
        """Answer with *problem*, by default the loss of the connection."""
        self.waiter.errback(problem or ConnectionClosed("the connection was lost"))


@dataclass(eq=False)
class ScriptedConnection:
    """A connection that never closes."""

    scripted: ScriptedCluster
    node: int
    channel: str
    closed: Any = None
    request_timeout: float = 30.0
    in_flight: int = 0

    @property
    def address(self) -> Address:
        return Address(f"broker-{self.node}", 9092)

    @property
    def features(self) -> dict[str, int]:
        return self.scripted.features

    def version_for(self, api: int) -> int:
        return self.scripted.versions.get(ApiKey(api), SUPPORTED[ApiKey(api)].max)

    def request(
        self, api: int, version: int | None, message: Any, *, timeout: float | None = None
    ) -> Deferred[Any]:
        chosen = self.version_for(api) if version is None else version
        asked = PendingRequest(ApiKey(api), chosen, message, self.node, self.channel)
        self.scripted.requests.append(asked)
        if ApiKey(api) in self.scripted.answers:
            self.scripted.clock.callLater(0, self.scripted.answer, asked)
        return asked.waiter


class ScriptedCluster:
    """Brokers 1..n, topics with so many partitions each (partition p led by broker p % n + 1)."""

    def __init__(self, topics: Mapping[str, int] | None = None, *, brokers: int = 1) -> None:
        self.clock = Clock()
        self.brokers = list(range(1, brokers + 1))
        self.topics = dict(topics or {})
        self.topic_errors: dict[str, int] = {}
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}
        """(leader, leader epoch) where it is not the default: (p % n + 1, 0)."""
        self.with_topic_ids = True
        self.cluster_id = "scripted"
        self.features: dict[str, int] = {}
        self.coordinator = 1
        self.down: set[int] = set()
        self.versions: dict[ApiKey, int] = {}
        self.requests: list[PendingRequest] = []
        self.answers: dict[ApiKey, Callable[[Any], Any]] = {
            ApiKey.METADATA: self._metadata,
            ApiKey.FIND_COORDINATOR: self._coordinator,
        }
        self._connections: dict[tuple[int, str], ScriptedConnection] = {}

    def metrics(self) -> dict[str, float]:
        return {"connections": len(self._connections), "requests": len(self.requests)}

    # --- the test's side

    def attach(self, cluster: Cluster) -> Cluster:
        """Put a client's cluster on these brokers."""
        cluster.brokers = self  # type: ignore[assignment]
        return cluster

    def cluster(self, config: Any) -> Cluster:
        """Return a client's cluster on these brokers, its metadata fetched."""
        cluster = self.attach(Cluster(self.clock, config))
        cluster.want(self.topics)
        starting = Deferred.fromCoroutine(cluster.start())
        self.turn()
        now(starting)
        return cluster

    def waiting(self, api: ApiKey) -> list[PendingRequest]:
        """Return the requests of *api* without a response, the oldest first."""
        return [asked for asked in self.requests if asked.api is api and asked.waits]

    def one(self, api: ApiKey) -> PendingRequest:
        """Return the one request of *api* that waits."""
        found = self.waiting(api)
        assert len(found) == 1, f"{len(found)} of {api.name} wait, not one"
        return found[0]

    def count(self, api: ApiKey) -> int:
        """Return how many requests of *api* were received."""
        return sum(asked.api is api for asked in self.requests)

    def turn(self, seconds: float = 0.0) -> None:
        """Let time pass; what follows at once from what happens, follows."""
        self.clock.advance(seconds)

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        """Let *seconds* pass in small steps."""
        for _ in range(round(seconds / step)):
            self.turn(step)

    def answer(self, asked: PendingRequest) -> None:
        """Answer *asked* by the table, if it still waits."""
        if not asked.waits:
            return
        given = self.answers[asked.api](asked.message)
        if isinstance(given, Exception):
            asked.waiter.errback(given)
        elif given is not HELD:
            asked.waiter.callback(given)

    # --- the client's side: what Cluster calls on its Brokers

    def connection(self, node_id: int, address: Address, channel: str = "") -> Deferred[Any]:
        node = node_id if node_id > 0 else 1
        if node in self.down:
            return fail(ConnectError(address, Cause.REFUSED))
        return succeed(self._connection(node, channel))

    def ready(self, node_id: int, channel: str = "") -> ScriptedConnection | None:
        return None if node_id in self.down else self._connection(node_id, channel)

    def least_busy(self) -> tuple[int, ScriptedConnection] | None:
        up = [node for node in self.brokers if node not in self.down]
        return (up[0], self._connection(up[0], "")) if up else None

    def forget(self, keep: Callable[[int], bool]) -> None:
        pass

    def close(self) -> Deferred[None]:
        for asked in self.requests:
            if asked.waits:
                asked.fail()
        return succeed(None)

    def _connection(self, node: int, channel: str) -> ScriptedConnection:
        return self._connections.setdefault(
            (node, channel), ScriptedConnection(self, node, channel)
        )

    # --- what they know

    def leader(self, tp: TopicPartition) -> tuple[int, int]:
        default = (self.brokers[tp.partition % len(self.brokers)], 0)
        return self.leaders.get(tp, default)

    def topic_id(self, topic: str) -> UUID | None:
        return uuid5(_NAMES, topic) if self.with_topic_ids else None

    def _metadata(self, request: metadata.MetadataRequest) -> Any:
        wanted = self.topics if request.topics is None else [t.name or "" for t in request.topics]
        return metadata.MetadataResponse(
            brokers=[
                metadata.MetadataResponseBroker(node_id=n, host=f"broker-{n}", port=9092)
                for n in self.brokers
            ],
            cluster_id=self.cluster_id,
            controller_id=1,
            topics=[self._topic(name) for name in wanted],
        )

    def _topic(self, name: str) -> metadata.MetadataResponseTopic:
        error = self.topic_errors.get(name, 0 if name in self.topics else 3)
        partitions = []
        for number in range(self.topics.get(name, 0) if not error else 0):
            leader, epoch = self.leader(TopicPartition(name, number))
            partitions.append(
                metadata.MetadataResponsePartition(
                    partition_index=number, leader_id=leader, leader_epoch=epoch
                )
            )
        return metadata.MetadataResponseTopic(
            error_code=error, name=name, topic_id=self.topic_id(name), partitions=partitions
        )

    def _coordinator(self, request: find_coordinator.FindCoordinatorRequest) -> Any:
        (key,) = request.coordinator_keys
        found = find_coordinator.Coordinator(
            key=key, node_id=self.coordinator, host=f"broker-{self.coordinator}", port=9092
        )
        return find_coordinator.FindCoordinatorResponse(coordinators=[found])

    # --- answers to write down

    def fetched(
        self,
        *partitions: tuple[TopicPartition, FetchPartitionResponse],
        session_id: int = 0,
        error_code: int = 0,
    ) -> FetchResponse:
        """Return a Fetch response of these partitions; without a session unless it has an id."""
        topics: dict[str, list[FetchPartitionResponse]] = {}
        for tp, answer in partitions:
            topics.setdefault(tp.topic, []).append(answer)
        ids = {name: self.topic_id(name) for name in topics}
        return FetchResponse(
            [FetchTopicResponse("" if ids[n] else n, each, ids[n]) for n, each in topics.items()],
            error_code=error_code,
            session_id=session_id,
        )

    def topic_name(self, called: FetchTopic | ForgottenTopic) -> str:
        """Return the name of a topic as a Fetch calls it: by name, or by id."""
        return called.name or next(n for n in self.topics if self.topic_id(n) == called.topic_id)

    def serve_offsets(self, ends: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Answer ListOffsets: (start, end) of each partition; 0 to 0 where none is given."""

        def answer(request: list_offsets.ListOffsetsRequest) -> Any:
            topics = []
            for topic in request.topics:
                partitions = []
                for p in topic.partitions:
                    start, end = ends.get(TopicPartition(topic.name, p.partition_index), (0, 0))
                    offset = start if p.timestamp == -2 else end
                    partitions.append(
                        list_offsets.ListOffsetsPartitionResponse(
                            partition_index=p.partition_index, offset=offset
                        )
                    )
                topics.append(
                    list_offsets.ListOffsetsTopicResponse(name=topic.name, partitions=partitions)
                )
            return list_offsets.ListOffsetsResponse(topics=topics)

        self.answers[ApiKey.LIST_OFFSETS] = answer

    def serve_log_ends(self, end: int) -> None:
        """Answer conditional appends as the leaders of mirror topics: every log ends at *end*, elsewhere than asked."""

        def answer(request: ProduceRequest) -> ProduceResponse:
            return ProduceResponse(
                [
                    ProduceTopicResponse(
                        each.name,
                        [
                            ProducePartitionResponse(
                                p.index, ErrorCode.OFFSET_OUT_OF_RANGE, log_end_offset=end
                            )
                            for p in each.partitions
                        ],
                    )
                    for each in request.topics
                ]
            )

        self.features = {CONDITIONAL_APPEND: 1}
        self.answers[ApiKey.PRODUCE] = answer

    def serve_configs(
        self, overrides: dict[str, dict[str, str]], *, refused: Collection[str] = ()
    ) -> list[dict[str, str | None]]:
        """Answer requests that read and change the configs of topics from and into *overrides*, by topic.

        The names in *refused* are unknown to these brokers: a change with one of them is refused as a whole. Return the
        list of the changes that are accepted, to which later ones are added; None resets a config.
        """
        accepted: list[dict[str, str | None]] = []

        def described(name: str) -> Any:
            return describe_configs.DescribeConfigsResult(
                resource_type=_TOPIC,
                resource_name=name,
                configs=[
                    describe_configs.DescribeConfigsResourceResult(
                        name=key, value=value, config_source=1
                    )
                    for key, value in overrides.get(name, {}).items()
                ],
            )

        def altered(asked: incremental_alter_configs.AlterConfigsResource) -> Any:
            name = asked.resource_name
            answer = incremental_alter_configs.AlterConfigsResourceResponse(
                resource_type=_TOPIC, resource_name=name
            )
            if any(each.name in refused for each in asked.configs):
                answer.error_code = ErrorCode.INVALID_CONFIG
                return answer
            topic = overrides.setdefault(name, {})
            for each in asked.configs:
                topic.pop(each.name, None)
                if each.config_operation == 0:
                    topic[each.name] = each.value or ""
            accepted.append({each.name: topic.get(each.name) for each in asked.configs})
            return answer

        self.answers[ApiKey.DESCRIBE_CONFIGS] = lambda request: (
            describe_configs.DescribeConfigsResponse(
                results=[described(each.resource_name) for each in request.resources]
            )
        )
        self.answers[ApiKey.INCREMENTAL_ALTER_CONFIGS] = lambda request: (
            incremental_alter_configs.IncrementalAlterConfigsResponse(
                responses=[altered(each) for each in request.resources]
            )
        )
        return accepted

    def serve_commits(self, committed: dict[TopicPartition, int]) -> None:
        """Answer OffsetFetch and OffsetCommit from and into *committed*."""

        def fetch(request: offset_fetch.OffsetFetchRequest) -> Any:
            (group,) = request.groups
            topics = [
                offset_fetch.OffsetFetchResponseTopics(
                    name=topic.name,
                    partitions=[
                        offset_fetch.OffsetFetchResponsePartitions(
                            partition_index=n,
                            committed_offset=committed.get(TopicPartition(topic.name, n), -1),
                        )
                        for n in topic.partition_indexes
                    ],
                )
                for topic in group.topics or []
            ]
            answer = offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)
            return offset_fetch.OffsetFetchResponse(groups=[answer])

        def commit(request: offset_commit.OffsetCommitRequest) -> Any:
            for topic in request.topics:
                for p in topic.partitions:
                    committed[TopicPartition(topic.name, p.partition_index)] = p.committed_offset
            return commit_answer(request)

        self.answers[ApiKey.OFFSET_FETCH] = fetch
        self.answers[ApiKey.OFFSET_COMMIT] = commit


def commit_answer(request: offset_commit.OffsetCommitRequest, code: int = 0) -> Any:
    """Return the answer to *request* with error *code* for every partition."""
    return offset_commit.OffsetCommitResponse(
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    offset_commit.OffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=code
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def now(waiting: Deferred[Any]) -> Any:
    """Return the result that *waiting* has already; raise its error."""
    results: list[Any] = []
    waiting.addBoth(results.append)
    assert results, "it still waits"
    if isinstance(results[0], Failure):
        results[0].raiseException()
    return results[0]


def batch_of(
    base_offset: int, *values: bytes | None, leader_epoch: int = 0, **settings: Any
) -> bytes:
    """Return a record batch of *values*, its first record at *base_offset*."""
    numbers = itertools.count()
    records = [
        Record(n, 1_700_000_000_000 + n, None, v) for n, v in zip(numbers, values, strict=False)
    ]
    return encode_batch(
        records,
        codec=settings.pop("codec", 0),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        **settings,
    )


def part(partition: int, data: bytes = b"", **changes: Any) -> FetchPartitionResponse:
    """Return one partition's share of a Fetch response."""
    changes.setdefault("high_watermark", 1000)
    records = (memoryview(data),) if data else ()
    return FetchPartitionResponse(partition, records=records, records_size=len(data), **changes)
