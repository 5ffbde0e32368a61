"""Metadata (3): live brokers, topics and their leaders.

Versions served: 0 to 12. v0 asks for all topics by an empty list, later versions by null. v1 controller id, rack,
is_internal; v2 cluster id; v4 allow_auto_topic_creation; v5 offline replicas; v7 leader epochs; v8-10 authorized
operations (KIP-430); v10 topic ids; v12 look-up by topic id.

Differs from Kafka: the response waits for the leaders of an automatically created topic, for 1 s at most. Automatic
creation has a budget: a request for 100,000 unknown topics does not create 100,000 topics. A broker that has not
received the whole metadata answers LEADER_NOT_AVAILABLE for a topic that it does not know, which clients retry. It
creates none. Kafka answers UNKNOWN_TOPIC_OR_PARTITION, or INVALID_REPLICATION_FACTOR because it knows no broker.

The response for all topics is encoded once per listener, version and state of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.apis.authorized_operations import (
    ALL_CLUSTER_OPERATIONS,
    ALL_TOPIC_OPERATIONS,
    NOT_REQUESTED,
)
from kbroker.apis.request import RequestContext
from kbroker.common.internal_topics import INTERNAL_TOPICS, OFFSETS_TOPIC
from kbroker.common.turns import for_each
from kbroker.metadata.admin_manager import AdminManager
from kbroker.metadata.core.topic_rules import is_topic_name
from kbroker.metadata.metadata_cache import MetadataCache, PartitionMetadata, TopicMetadata
from kbroker.metadata.topic_placement import NewTopic
from kbroker.network.service import Answer
from kclient.wire import messages
from kclient.wire.errors import ErrorCode, KafkaError, TopicAlreadyExists
from kclient.wire.schema.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kclient.wire.versions import ApiKey

log = Logger()

BY_ID_VERSION: Final = 12
"""The first version in which topics are found by id."""

AUTO_CREATE_SECONDS: Final = 1.0
"""Longest wait for the leaders of a topic that a request created."""
AUTO_CREATE_BURST: Final = 100
"""Topics that requests may create at once."""
AUTO_CREATE_PER_SECOND: Final = 10.0
"""And how fast that budget grows again."""


class Budget:
    """A number of things that may be done, growing with time up to *burst*."""

    def __init__(self, burst: float, per_second: float, monotonic: Callable[[], float]) -> None:
        self._burst = burst
        self._per_second = per_second
        self._monotonic = monotonic
        self._left = burst
        self._at = monotonic()

    def take(self) -> bool:
        """Use up one, if there is one."""
        now = self._monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Metadata:
    """Answers Metadata."""

    raw = True

    def __init__(
        self,
        cache: MetadataCache,
        admin_manager: AdminManager,
        auto_create: Callable[[], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._admin_manager = admin_manager
        self._auto_create = auto_create
        self._budget = Budget(AUTO_CREATE_BURST, AUTO_CREATE_PER_SECOND, monotonic)

    def __call__(self, context: RequestContext, body: memoryview) -> Answer | Deferred[Answer]:
        """Answer the request; *body* follows its header."""
        version, listener = context.api_version, context.listener
        request: MetadataRequest = messages.decode_request(
            context.header, body, 0, max_elements=context.budget.max_elements
        )
        wants_all = request.topics is None or (version == 0 and not request.topics)
        asks_operations = (
            request.include_cluster_authorized_operations
            or request.include_topic_authorized_operations
        )
        if wants_all and not asks_operations and context.quota is None:
            encoded: bytes = self._cache.parts(
                ("all", version, listener),
                lambda: self._encode_body(version, self._describe_all(request, listener)),
            )
            return (self._header(context), encoded)
        if wants_all:
            response = self._describe_all(request, listener)
            return Deferred.fromCoroutine(context.encode_in_steps(response))
        wanted = request.topics or []
        if version >= BY_ID_VERSION:
            # Java's Admin sends an id with the name "". The id decides, as in Kafka.
            wanted = [t if t.topic_id is None else replace(t, name=None) for t in wanted]
        if context.is_large:
            return Deferred.fromCoroutine(self._in_slices(context, request, wanted))
        missing = self._missing(request, wanted)
        if missing:
            return Deferred.fromCoroutine(self._create_first(context, request, wanted, missing))
        return context.encode(self._describe(request, listener, wanted, version))

    # -- encoding ----------------------------------------------------------------------------

    def _header(self, context: RequestContext) -> bytes:
        return bytes(
            messages.encode_response_header(
                ApiKey.METADATA, context.api_version, context.correlation_id
            )
        )

    def _encode_body(self, version: int, response: MetadataResponse) -> bytes:
        whole = messages.encode_response(ApiKey.METADATA, version, 0, response)
        return whole[len(messages.encode_response_header(ApiKey.METADATA, version, 0)) :]

    # -- describing --------------------------------------------------------------------------

    def _describe_all(self, request: MetadataRequest, listener: str) -> MetadataResponse:
        topics = [self._known(topic, listener) for topic in self._cache.topics.values()]
        return self._response(request, listener, topics)

    def _describe(
        self,
        request: MetadataRequest,
        listener: str,
        wanted: Iterable[MetadataRequestTopic],
        version: int,
    ) -> MetadataResponse:
        seen: dict[tuple[UUID | None, str | None], None] = dict.fromkeys(
            (t.topic_id, t.name) for t in wanted
        )
        topics = [self._one(topic_id, name, listener, version) for topic_id, name in seen]
        return self._response(request, listener, topics)

    def _response(
        self, request: MetadataRequest, listener: str, topics: list[MetadataResponseTopic]
    ) -> MetadataResponse:
        if request.include_topic_authorized_operations:
            topics = [
                replace(topic, topic_authorized_operations=ALL_TOPIC_OPERATIONS)
                if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID
                else topic
                for topic in topics
            ]
        cluster = request.include_cluster_authorized_operations
        return MetadataResponse(
            brokers=self._cache.parts(("brokers", listener), lambda: self._brokers(listener)),
            cluster_id=self._cache.cluster_id,
            controller_id=self._cache.live_controller_id,
            topics=topics,
            cluster_authorized_operations=ALL_CLUSTER_OPERATIONS if cluster else NOT_REQUESTED,
        )

    def _brokers(self, listener: str) -> list[MetadataResponseBroker]:
        """List the brokers that can be reached the way the client came in."""
        return [
            MetadataResponseBroker(broker.broker_id, *broker.endpoints[listener], broker.rack)
            for broker in self._cache.brokers.values()
            if listener in broker.endpoints
        ]

    def _one(
        self, topic_id: UUID | None, name: str | None, listener: str, version: int
    ) -> MetadataResponseTopic:
        if name is None:
            if version < BY_ID_VERSION:
                return _error(ErrorCode.INVALID_REQUEST, "", topic_id)
            by_id = self._cache.topic_by_id(topic_id) if topic_id is not None else None
            if by_id is None:
                return _error(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
            return self._known(by_id, listener)
        topic = self._cache.topic(name)
        if topic is not None:
            return self._known(topic, listener)
        if not is_topic_name(name):
            return _error(ErrorCode.INVALID_TOPIC_EXCEPTION, name)
        if not self._cache.is_whole:
            return _error(ErrorCode.LEADER_NOT_AVAILABLE, name)
        return _error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)

    def _known(self, topic: TopicMetadata, listener: str) -> MetadataResponseTopic:
        described: MetadataResponseTopic = self._cache.parts(
            ("topic", listener, topic.name), lambda: self._build(topic, listener)
        )
        return described

    def _build(self, topic: TopicMetadata, listener: str) -> MetadataResponseTopic:
        made = topic.answers.setdefault(listener, {})
        led = {b.broker_id for b in self._cache.brokers.values() if listener in b.endpoints}
        partitions: list[MetadataResponsePartition] = []
        for index, known in sorted(topic.partitions.items()):
            kept = made.get(index)
            if kept is not None and kept[0] is known and known.leader in led:
                partitions.append(kept[1])
                continue
            partitions.append(self._partition(known, listener))
            if known.leader in led:  # else it is another one when that broker comes
                made[index] = known, partitions[-1]
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=partitions,
        )

    def _partition(self, known: PartitionMetadata, listener: str) -> MetadataResponsePartition:
        error, leader = ErrorCode.NONE, known.leader
        if leader not in self._cache.brokers:
            error, leader = ErrorCode.LEADER_NOT_AVAILABLE, -1
        elif self._cache.address(leader, listener) is None:
            error, leader = ErrorCode.LISTENER_NOT_FOUND, -1
        return MetadataResponsePartition(
            error_code=int(error),
            partition_index=known.partition,
            leader_id=leader,
            leader_epoch=known.leader_epoch,
            replica_nodes=list(known.replicas),
            isr_nodes=list(known.isr),
            offline_replicas=list(known.offline_replicas),
        )

    # -- automatic creation ------------------------------------------------------------------

    def _missing(
        self, request: MetadataRequest, wanted: Iterable[MetadataRequestTopic]
    ) -> list[str]:
        """List the unknown topics that may be created now."""
        if not request.allow_auto_topic_creation or not self._auto_create():
            return []
        if not self._cache.is_whole:
            return []
        unknown = dict.fromkeys(
            t.name
            for t in wanted
            if t.name is not None and self._cache.topic(t.name) is None and is_topic_name(t.name)
        )
        missing: list[str] = []
        for name in unknown:
            if not self._budget.take():
                log.warn(
                    "not creating {n} more requested topics: too many at once",
                    n=len(unknown) - len(missing),
                )
                break
            missing.append(name)
        return missing

    async def _in_slices(
        self,
        context: RequestContext,
        request: MetadataRequest,
        wanted: Sequence[MetadataRequestTopic],
    ) -> Answer:
        """Answer a request for many topics; begin in another turn than that in which it was decoded."""
        await context.turns.next()
        missing = self._missing(request, wanted)
        return await self._create_first(context, request, wanted, missing)

    async def _create_first(
        self,
        context: RequestContext,
        request: MetadataRequest,
        wanted: Sequence[MetadataRequestTopic],
        missing: list[str],
    ) -> Answer:
        """Create the topics that are *missing*, then answer for all that are *wanted*."""
        outcomes = await for_each(context.turns, missing, self._create)
        failed = dict(zip(missing, outcomes, strict=True))
        share = context.turns.slice()
        topics = []
        for topic_id, name in dict.fromkeys((t.topic_id, t.name) for t in wanted):
            if share.is_over():
                await share.next()
            topic = self._one(topic_id, name, context.listener, context.api_version)
            if name in failed and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                topic.error_code = int(failed[name] or ErrorCode.LEADER_NOT_AVAILABLE)
            topics.append(topic)
        response = self._response(request, context.listener, topics)
        return await context.encode_in_steps(response)

    async def _create(self, name: str) -> ErrorCode | None:
        """Create topic *name* and wait a moment for its leaders; the error it is answered with."""
        try:
            if name == OFFSETS_TOPIC:
                await self._admin_manager.create_offsets_topic()
            elif name in INTERNAL_TOPICS:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                await self._admin_manager.create(NewTopic(name))
        except TopicAlreadyExists:
            pass
        except KafkaError as error:
            log.info("topic {name} is not created: {why}", name=name, why=error)
            if error.code is ErrorCode.INVALID_TOPIC_EXCEPTION:
                return ErrorCode.INVALID_TOPIC_EXCEPTION
            if error.code is ErrorCode.INVALID_REPLICATION_FACTOR:
                return ErrorCode.INVALID_REPLICATION_FACTOR
            return ErrorCode.LEADER_NOT_AVAILABLE
        await self._admin_manager.until_led(name, [0], AUTO_CREATE_SECONDS)
        return None


def _error(
    code: ErrorCode, name: str | None, topic_id: UUID | None = None
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=int(code),
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
    )
