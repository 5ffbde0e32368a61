"""Topics: create, delete, add partitions. All requests go to the controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kclient.arguments import config_text
from kclient.errors import ConfigError, KafkaError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.types import NewTopic
from kclient.wire.errors import ErrorCode, NotController, UnsupportedVersion
from kclient.wire.schema.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kclient.wire.schema.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kclient.wire.schema.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kclient.wire.versions import ApiKey

_FIRST_WITH_TOPIC_IDS = 6
"""The first version of DeleteTopics that takes topic ids."""

TopicsToCreate = Mapping[str, Mapping[str, Any]] | Iterable[NewTopic | str] | NewTopic | str


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A created topic; -1 and None if the broker is too old to return a value."""

    name: str
    topic_id: UUID | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] | None = None


def new_topics(topics: TopicsToCreate) -> list[NewTopic]:
    """Convert the accepted forms of topics to NewTopics."""
    if isinstance(topics, str | NewTopic):
        topics = [topics]
    if isinstance(topics, Mapping):
        try:
            return [NewTopic(name, **options) for name, options in topics.items()]
        except TypeError as problem:
            raise ConfigError(f"create_topics: {problem}") from None
    wanted = [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]
    for topic in wanted:
        if not isinstance(topic, NewTopic):
            raise TypeError(
                f"create_topics: {topic!r} is no kclient.NewTopic; "
                'create_topics({"orders": {"num_partitions": 6}}) will do, too'
            )
    return wanted


async def at_controller(
    cluster: Cluster, send: Callable[[Connection], Awaitable[Any]], *, timeout: float, what: str
) -> Any:
    """Await send(connection to the controller); find the new controller if it has moved."""

    async def attempt() -> Any:
        connection = await cluster.controller()
        try:
            return await send(connection)
        except NotController:
            await cluster.refresh()
            raise

    return await cluster.retrying(attempt, timeout=timeout, what=what)


def raise_if_moved(codes: Iterable[int]) -> None:
    """Raise NotController if any of *codes* is NOT_CONTROLLER: then nothing was changed."""
    if ErrorCode.NOT_CONTROLLER in codes:
        raise NotController("the controller moved")


async def create_topics(
    cluster: Cluster, topics: TopicsToCreate, *, validate_only: bool, timeout: float
) -> dict[str, CreatedTopic | KafkaError]:
    """Create *topics*; they exist when this returns, but may have no leaders for a moment."""
    wanted = new_topics(topics)
    request = CreateTopicsRequest(
        topics=[_creatable(topic) for topic in wanted],
        timeout_ms=int(timeout * 1000),
        validate_only=validate_only,
    )

    async def send(connection: Connection) -> Any:
        response = await connection.request(
            ApiKey.CREATE_TOPICS, None, request, timeout=timeout + 1
        )
        raise_if_moved(t.error_code for t in response.topics)
        return response

    response = await at_controller(cluster, send, timeout=timeout, what="creating topics")
    answers: dict[str, CreatedTopic | KafkaError] = {}
    for t in response.topics:
        if t.error_code:
            answers[t.name] = error_of(t.error_code, f"topic {t.name!r}", t.error_message)
        else:
            configs = None if t.configs is None else {c.name: c.value for c in t.configs}
            answers[t.name] = CreatedTopic(
                t.name, t.topic_id, t.num_partitions, t.replication_factor, configs
            )
    return answers


async def delete_topics(
    cluster: Cluster, names: Iterable[str], *, timeout: float
) -> dict[str, KafkaError | None]:
    """Delete topics by name; brokers delete their logs soon after."""
    wanted = list(names)
    request = DeleteTopicsRequest(
        topic_names=wanted,
        topics=[DeleteTopicState(name=name) for name in wanted],
        timeout_ms=int(timeout * 1000),
    )

    async def send(connection: Connection) -> Any:
        response = await connection.request(
            ApiKey.DELETE_TOPICS, None, request, timeout=timeout + 1
        )
        raise_if_moved(t.error_code for t in response.responses)
        return response

    response = await at_controller(cluster, send, timeout=timeout, what="deleting topics")
    return _problems(response.responses)


async def delete_topic_id(cluster: Cluster, topic_id: UUID, *, timeout: float) -> None:
    """Delete the topic with this id (KIP-516): a later topic of the same name stays. Raise KafkaError.

    It is no error if there is no such topic: an earlier attempt may have deleted it.
    """
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=int(timeout * 1000)
    )

    async def send(connection: Connection) -> Any:
        if connection.version_for(ApiKey.DELETE_TOPICS) < _FIRST_WITH_TOPIC_IDS:
            raise UnsupportedVersion(f"{connection.address} does not delete topics by id")
        response = await connection.request(
            ApiKey.DELETE_TOPICS, None, request, timeout=timeout + 1
        )
        raise_if_moved(t.error_code for t in response.responses)
        return response

    what = f"deleting topic id {topic_id}"
    response = await at_controller(cluster, send, timeout=timeout, what=what)
    for answer in response.responses:
        if answer.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_ID):
            raise error_of(answer.error_code, what, answer.error_message)


async def create_partitions(
    cluster: Cluster,
    totals: Mapping[str, int],
    assignments: Mapping[str, Iterable[Iterable[int]]] | None = None,
    *,
    validate_only: bool,
    timeout: float,
) -> dict[str, KafkaError | None]:
    """Increase topics to a total number of partitions; keys may move to other partitions.

    *assignments* are the brokers of each new partition of a topic; for a topic without them the controller chooses.
    """
    chosen = assignments or {}
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=[CreatePartitionsAssignment(list(ids)) for ids in chosen[name]]
                if name in chosen
                else None,
            )
            for name, count in totals.items()
        ],
        timeout_ms=int(timeout * 1000),
        validate_only=validate_only,
    )

    async def send(connection: Connection) -> Any:
        response = await connection.request(
            ApiKey.CREATE_PARTITIONS, None, request, timeout=timeout + 1
        )
        raise_if_moved(t.error_code for t in response.results)
        return response

    response = await at_controller(cluster, send, timeout=timeout, what="adding partitions")
    return _problems(response.results)


def _problems(topics: Iterable[Any]) -> dict[str, KafkaError | None]:
    """Return the error of each of *topics* in a response."""
    return {
        t.name: error_of(t.error_code, f"topic {t.name!r}", t.error_message)
        if t.error_code
        else None
        for t in topics
    }


def _creatable(topic: NewTopic) -> CreatableTopic:
    assigned = topic.replica_assignment
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assigned else topic.num_partitions,
        replication_factor=-1 if assigned else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=p, broker_ids=list(ids))
            for p, ids in (assigned or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=name, value=config_text(value))
            for name, value in (topic.configs or {}).items()
        ],
    )
