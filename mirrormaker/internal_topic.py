"""A topic with one partition that kmirror writes for itself or for programs: created, then appended to.

The topic is written by Produce, acknowledged by all in-sync replicas: any Kafka cluster has these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from kclient.admin import configs, topics
from kclient.admin.configs import ConfigResource, ResourceType
from kclient.errors import LeaderUnavailable
from kclient.net.cluster import Cluster
from kclient.types import NewTopic, TopicPartition
from kclient.wire.errors import KafkaError, MessageTooLarge, TopicAlreadyExists, for_code
from kclient.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from kclient.wire.records import Record, encode_batch
from kclient.wire.versions import ApiKey

TIMEOUT = 10.0
"""Seconds for one step: to create the topic, to read it, to write to it."""

CHANNEL = "internal"

BYTES_PER_BATCH = 100_000
"""Keys and values of `append_each` in one batch, or one record: below every usual max.message.bytes."""

T = TypeVar("T")

_COMPACT = "compact"
_ALL_IN_SYNC = -1
_LAST_VERSION_BY_NAME = 12


class InternalTopic:
    """The topic *name* of *cluster*; *replication_factor* -1 is the cluster's default.

    *compact_existing* also has a topic compacted that another client has created. With the cleanup policy *delete* old
    records are deleted after the cluster's default retention, or the topic's own.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        replication_factor: int,
        compact_existing: bool,
        cleanup_policy: Literal["compact", "delete"] = "compact",
    ) -> None:
        self._cluster = cluster
        self.name = name
        self._compact_existing = compact_existing
        self._configs = {"cleanup.policy": cleanup_policy, "message.timestamp.type": "CreateTime"}
        self._replication_factor = replication_factor
        self._is_created = False
        """Whether this process created the topic, or found it and checked its cleanup.policy."""

    async def create(self) -> None:
        """Create the topic if it does not exist. Raise KafkaError.

        A topic that is known needs no permission to create one.
        """
        existed = self.name in self._cluster.metadata.topics
        if self._is_created and existed:
            return
        if not existed:
            existed = await self._create()
        if existed and self._compact_existing:
            await self._compact()
        await self._cluster.partitions(self.name, timeout=TIMEOUT)
        self._is_created = True

    async def _create(self) -> bool:
        """Create the topic; return whether it existed already. Raise KafkaError."""
        new = NewTopic(self.name, 1, self._replication_factor, dict(self._configs))
        answers = await topics.create_topics(
            self._cluster, [new], validate_only=False, timeout=TIMEOUT
        )
        problem = answers[self.name]
        if isinstance(problem, KafkaError) and not isinstance(problem, TopicAlreadyExists):
            raise problem
        return isinstance(problem, TopicAlreadyExists)

    async def _compact(self) -> None:
        """Set cleanup.policy=compact on a topic of another client: with delete, entries would age out."""
        resource = ConfigResource(ResourceType.TOPIC, self.name)
        name = "cleanup.policy"
        described = (
            await configs.describe_configs(
                self._cluster, [resource], names=[name], documentation=False, timeout=TIMEOUT
            )
        )[resource]
        if isinstance(described, KafkaError):
            raise described
        if described[name].value == _COMPACT:
            return
        altered = await configs.alter_configs(
            self._cluster, {resource: {name: _COMPACT}}, validate_only=False, timeout=TIMEOUT
        )
        problem = altered[resource]
        if problem is not None:
            raise problem

    async def append_each(
        self, left: list[T], encode: Callable[[T], tuple[bytes, bytes]]
    ) -> KafkaError | None:
        """Append a record for each of *left*, and remove from it what all in-sync replicas have.

        *encode* returns key and value. The topic is created before the first one. Return the error that ended it.
        """
        most = BYTES_PER_BATCH
        while left:
            records = _first_records(left, encode, most)
            try:
                await self.create()
                await self.append(records)
            except MessageTooLarge as problem:
                if len(records) == 1:
                    return problem
                most //= 2
            except KafkaError as problem:
                return problem
            else:
                del left[: len(records)]
        return None

    async def append(self, records: Iterable[Record]) -> None:
        """Append *records* as one batch; return when all in-sync replicas have them. Raise KafkaError.

        After an error they may be appended or not: a record of a compacted topic may be appended again.
        """
        data = encode_batch(records)
        request = ProduceRequest(
            _ALL_IN_SYNC,
            int(TIMEOUT * 1000),
            [ProduceTopic(self.name, [ProducePartition(0, data)])],
        )

        async def attempt() -> None:
            response = await request_leader(self._cluster, self.name, ApiKey.PRODUCE, request)
            answer = response.topics[0].partitions[0]
            if answer.error_code:
                detail = f": {answer.error_message}" if answer.error_message else ""
                raise for_code(answer.error_code)(f"append to {self.name}{detail}")

        await self._cluster.retrying(attempt, timeout=TIMEOUT, what=f"writing to {self.name}")


class WriteReports:
    """Reports how the writes to the topic *what* go: each line once, until something changes."""

    def __init__(self, what: str, report: Callable[[str, str], None]) -> None:
        self._what = what
        self._report = report
        self._reported = ""
        self._dropped = 0

    def written(self, problem: KafkaError | None) -> None:
        """Handle the end of a write, by an error or with everything written."""
        text = "" if problem is None else f"cannot be written: {problem}"
        if text != self._reported:
            self._report(self._what, text or "is written again")
        self._reported = text

    def dropped(self, count: int, text: str) -> None:
        """Handle that *count* in all were dropped so far; *text* is the line for it."""
        if count > self._dropped:
            self._dropped = count
            self._report(self._what, text)


def _first_records(
    left: Iterable[T], encode: Callable[[T], tuple[bytes, bytes]], most: int
) -> list[Record]:
    """Return the first records of *left* with at most *most* bytes of keys and values, but at least one."""
    now, size = time.time_ns() // 1_000_000, 0
    records: list[Record] = []
    for each in left:
        key, value = encode(each)
        size += len(key) + len(value)
        if records and size > most:
            break
        records.append(Record(len(records), now, key, value))
    return records


async def request_leader(cluster: Cluster, topic: str, api_key: ApiKey, request: Any) -> Any:
    """Send *request* to the leader of partition 0 of *topic*; return the response. Raise KafkaError."""
    leader = cluster.metadata.leader(TopicPartition(topic, 0))
    if leader is None:
        await cluster.refresh()
        raise LeaderUnavailable(f"{topic} has no leader")
    connection = await cluster.connection(leader, CHANNEL)
    version = connection.version_for(api_key)
    if api_key == ApiKey.FETCH:
        version = min(_LAST_VERSION_BY_NAME, version)
    return await connection.request(api_key, version, request, timeout=TIMEOUT)
