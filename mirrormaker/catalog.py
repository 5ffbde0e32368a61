"""The topics of a cluster with their configs, and the changes that a plan makes to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from kclient.admin import configs, topics
from kclient.admin.configs import ConfigResource, ConfigSource, ResourceType
from kclient.errors import KafkaError, KafkaTimeoutError
from kclient.net.cluster import Cluster
from kclient.net.waiting import settled_by
from kclient.types import NewTopic
from kclient.wire.errors import ErrorCode, InvalidConfig, TopicAlreadyExists, for_code
from kclient.wire.schema.metadata import MetadataRequest, MetadataRequestTopic
from kclient.wire.versions import ApiKey
from mirrormaker.lineage import SOURCE_TOPIC_ID
from mirrormaker.topics import (
    CREATE_TIME,
    EFFECTIVE,
    MARK,
    PATH,
    PROMOTION,
    Creation,
    Plan,
    Topic,
    mark_of,
)

TIMEOUT = 15.0
"""Seconds for one administrative request, retries included."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What of a plan the target refused: topics by their name, and single configs by (topic, config)."""

    failed: Mapping[str, KafkaError]
    refused: Mapping[tuple[str, str], str]


UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
"""The topic was deleted meanwhile, or is not in the metadata of all brokers yet."""


class Catalog:
    """The topics of one cluster. Configs are cached until the caller requests them again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, Topic] = {}
        self.unreadable: dict[str, KafkaError] = {}
        """Topics of the last `topics` that exist, but with configs that could not be read."""
        cluster.want_all()

    async def names(self) -> Mapping[str, int]:
        """Return every topic with its number of partitions, from fresh metadata."""
        metadata = await self._cluster.refresh()
        return {
            name: len(topic.partitions)
            for name, topic in metadata.topics.items()
            if topic.partitions and not topic.error_code
        }

    async def topics(
        self, wanted: Iterable[str], *, present: Mapping[str, int], configs_too: bool
    ) -> dict[str, Topic]:
        """Return *wanted* as of now; *configs_too* also reads cached configs again. Raise KafkaError.

        *present* is what `names` returned just before. A topic with configs that cannot be read is as it was before, or
        in `unreadable`. One that was never read, and may be readable later, raises its error.
        """
        self.unreadable = {}
        chosen = [name for name in wanted if name in present]
        metadata = self._cluster.metadata
        new = [
            name
            for name in chosen
            if configs_too
            or name not in self._known
            or self._known[name].topic_id != metadata.topic_id(name)
        ]
        described = await self._describe(new)
        found = {}
        for name in chosen:
            answer = described.get(name)
            known = self._known.get(name)
            if answer is None or isinstance(answer, KafkaError):
                same = known is not None and known.topic_id == metadata.topic_id(name)
                if known is None or not same:
                    if answer is not None:
                        if answer.retriable and answer.code is not UNKNOWN:
                            raise answer  # the topic is there, and its configs will be readable
                        self.unreadable[name] = answer
                    continue
                overrides, effective = known.overrides, known.effective
            else:
                overrides, effective = answer
            partitions = metadata.topics[name].partitions.values()
            replicas = min((len(each.replicas) for each in partitions), default=0)
            found[name] = Topic(
                present[name], metadata.topic_id(name), overrides, effective, replicas
            )
        self._known = dict(found)
        return found

    async def _describe(
        self, names: Iterable[str]
    ) -> dict[str, tuple[dict[str, str], dict[str, str]] | KafkaError]:
        """Return overrides and effective configs of each topic, or why they cannot be read."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        answers = await configs.describe_configs(
            self._cluster, resources, names=None, documentation=False, timeout=TIMEOUT
        )
        found: dict[str, tuple[dict[str, str], dict[str, str]] | KafkaError] = {}
        for resource, entries in answers.items():
            if isinstance(entries, KafkaError):
                found[resource.name] = entries
                continue
            overrides = {
                entry.name: entry.value or ""
                for entry in entries.values()
                if entry.source is ConfigSource.TOPIC
            }
            effective = {name: entries[name].value or "" for name in EFFECTIVE if name in entries}
            found[resource.name] = (overrides, effective)
        return found

    def forget(self, topic: str) -> None:
        """Read the configs of *topic* again with the next `topics`."""
        self._known.pop(topic, None)

    async def overrides_of(self, topic: str) -> dict[str, str]:
        """Return the configs that are set on *topic* as of now. Raise KafkaError."""
        return (await self._configs_of(topic))[0]

    @property
    def topic_ids(self) -> frozenset[UUID]:
        """The ids of all topics in the last metadata; empty if the brokers send none."""
        known = self._cluster.metadata.topics.values()
        return frozenset(each.topic_id for each in known if each.topic_id is not None)

    async def topic_id_at_controller(self, topic: str) -> UUID | None:
        """Return the topic id of *topic* as of now at the controller; None if it does not exist.

        Raise KafkaError if the controller gives another answer, such as TOPIC_AUTHORIZATION_FAILED.
        """
        request = MetadataRequest(
            [MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        connection = await self._cluster.controller()
        response = await connection.request(ApiKey.METADATA, None, request)
        for found in response.topics:
            if found.name == topic and found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            if found.name == topic and found.topic_id is not None:
                return UUID(int=found.topic_id.int)
            if found.name == topic and found.error_code:
                raise for_code(found.error_code)(f"topic {topic}")
        raise KafkaTimeoutError(f"the controller answered nothing about the topic id of {topic}")

    async def partitions_at_controller(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of each of *topics* as of now at the controller; 0 if it does not exist.

        Raise KafkaError.
        """
        wanted = sorted(topics)
        request = MetadataRequest(
            [MetadataRequestTopic(name=name) for name in wanted], allow_auto_topic_creation=False
        )
        connection = await self._cluster.controller()
        response = await connection.request(ApiKey.METADATA, None, request)
        found = dict.fromkeys(wanted, 0)
        for topic in response.topics:
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise for_code(topic.error_code)(f"topic {topic.name} at the controller")
            if topic.name in found:
                found[topic.name] = len(topic.partitions)
        return found

    async def deleted(self, names: Iterable[str]) -> set[str]:
        """Return which of *names*, which the last metadata lack, do not exist: the controller does not know them.

        A broker that has just started answers before it knows the topics. So a topic is not among them if the
        controller has it, or cannot be asked.
        """
        answers = await settled_by(sorted(names), self.topic_id_at_controller)
        return {name for name, answer in answers.items() if answer is None}

    async def limit_of(self, topic: str) -> int:
        """Return the effective max.message.bytes of *topic* as of now; 0 if it is unknown. Raise KafkaError."""
        return int((await self._configs_of(topic))[1].get("max.message.bytes", 0))

    async def _configs_of(self, topic: str) -> tuple[dict[str, str], dict[str, str]]:
        answer = (await self._describe([topic]))[topic]
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    # --- changes

    async def mark(
        self,
        topic: str,
        source_id: str,
        topic_id: str,
        upstream: tuple[str, ...],
        compared: Mapping[str, str] | None = None,
    ) -> None:
        """Mark *topic* as a mirror (`mark_of`), in one change. Raise KafkaError.

        *compared* is the result of `compared_with`. A broker of an earlier release refuses it.
        """
        marks = {PATH: None, **mark_of(source_id, topic_id, upstream)}
        await self.change(topic, {**marks, **(compared or {})})

    async def fence(self, topic: str, source_id: str) -> None:
        """Mark *topic* as a mirror without a lineage, in one change: no producer can write. Raise KafkaError."""
        await self._alter(topic, {PATH: None, SOURCE_TOPIC_ID: None, MARK: source_id})

    async def promoted(self, topic: str, found: str) -> str:
        """Make *topic* writable, and store what its promotion *found* in the same change ("": nothing).

        Raise KafkaError. Return why it was not stored, if so: a broker of an earlier release refuses the setting.
        """
        problem = await self.change(topic, {MARK: "", PROMOTION: found or None})
        return problem if found else "too many partitions"

    async def change(self, topic: str, values: Mapping[str, str | None]) -> str:
        """Set configs of *topic* (None: reset them), in one change. Raise KafkaError; a refused change sets none.

        A broker of an earlier release refuses `PROMOTION`. Then the others are set without it, also in one change, and
        the reason is returned; else "".
        """
        try:
            await self._alter(topic, values)
        except KafkaError as problem:
            if PROMOTION not in values or problem.retriable:
                raise
            others = {name: value for name, value in values.items() if name != PROMOTION}
            if others:
                await self._alter(topic, others)
            return str(problem)
        return ""

    async def _alter(self, topic: str, values: Mapping[str, str | None]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answers = await configs.alter_configs(
            self._cluster, {resource: values}, validate_only=False, timeout=TIMEOUT
        )
        self._known.pop(topic, None)
        problem = answers[resource]
        if problem is not None:
            raise problem

    async def delete(self, topic: str) -> None:
        """Delete *topic*. Raise KafkaError."""
        answers = await topics.delete_topics(self._cluster, [topic], timeout=TIMEOUT)
        self._known.pop(topic, None)
        problem = answers[topic]
        if problem is not None:
            raise problem

    async def apply(self, plan: Plan, *, replication_factor: int) -> Applied:
        """Create topics, add partitions and set configs as in *plan*. Raise KafkaError to compare the topics again.

        A config that the target refuses does not keep the others from being set, nor the topic from being copied.
        """
        failed, reduced = await self._create(plan.create, replication_factor, validate_only=False)
        for name, problem in failed.items():
            if isinstance(problem, TopicAlreadyExists):
                raise KafkaTimeoutError(
                    f"{name} was created by another client, or the broker that was asked does not know it yet"
                )
        changes = {name: dict(each) for name, each in plan.set_configs.items()}
        changes |= {creation.name: dict(creation.optional) for creation in reduced}
        failed |= await self._add_partitions(plan, validate_only=False)
        refused = await self._set_configs(
            {name: each for name, each in changes.items() if name not in failed}
        )
        for (name, config), problem in refused.items():
            if problem.retriable or config in CREATE_TIME:
                failed[name] = problem
        return Applied(failed, {key: str(problem) for key, problem in refused.items()})

    async def validate(self, plan: Plan, *, replication_factor: int) -> Applied:
        """Return what `apply` would be refused; change nothing."""
        failed, reduced = await self._create(plan.create, replication_factor, validate_only=True)
        refused: dict[tuple[str, str], KafkaError] = {}
        for creation in reduced:
            for name, value in creation.optional.items():
                single = replace(creation, configs={**creation.needed, name: value})
                problem = (
                    await self._request([single], replication_factor, validate_only=True)
                ).get(creation.name)
                if isinstance(problem, InvalidConfig):
                    refused[creation.name, name] = problem
        failed |= await self._add_partitions(plan, validate_only=True)
        refused |= await self._set_configs(plan.set_configs, validate_only=True)
        return Applied(failed, {key: str(problem) for key, problem in refused.items()})

    async def _create(
        self, creations: Sequence[Creation], replication_factor: int, *, validate_only: bool
    ) -> tuple[dict[str, KafkaError], list[Creation]]:
        """Create topics, without their optional configs where the target refuses some of them.

        Return the errors by topic, and the creations that were tried without their optional configs.
        """
        failed = await self._request(creations, replication_factor, validate_only=validate_only)
        reduced = [
            each
            for each in creations
            if isinstance(failed.get(each.name), InvalidConfig) and each.optional
        ]
        for each in reduced:
            del failed[each.name]
        needed = [replace(each, configs=each.needed) for each in reduced]
        failed |= await self._request(needed, replication_factor, validate_only=validate_only)
        return failed, reduced

    async def _request(
        self, creations: Sequence[Creation], replication_factor: int, *, validate_only: bool
    ) -> dict[str, KafkaError]:
        """Send one CreateTopics; return the errors by topic."""
        if not creations:
            return {}
        new = [
            NewTopic(each.name, each.partitions, replication_factor, dict(each.configs))
            for each in creations
        ]
        answers = await topics.create_topics(
            self._cluster, new, validate_only=validate_only, timeout=TIMEOUT
        )
        return {name: each for name, each in answers.items() if isinstance(each, KafkaError)}

    async def _add_partitions(self, plan: Plan, *, validate_only: bool) -> dict[str, KafkaError]:
        if not plan.add_partitions:
            return {}
        added = await topics.create_partitions(
            self._cluster, plan.add_partitions, validate_only=validate_only, timeout=TIMEOUT
        )
        return {name: answer for name, answer in added.items() if answer is not None}

    async def set_config(self, topic: str, name: str, value: str) -> None:
        """Set one config. Raise KafkaError."""
        for problem in (await self._set_configs({topic: {name: value}})).values():
            raise problem

    async def _set_configs(
        self, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> dict[tuple[str, str], KafkaError]:
        """Set configs, together per topic, or one by one where the target refuses all; return those it refuses."""
        refused: dict[tuple[str, str], KafkaError] = {}
        rounds = [changes]
        for each in rounds:
            if not each:
                continue
            asked = {ConfigResource(ResourceType.TOPIC, name): each[name] for name in each}
            answers = await configs.alter_configs(
                self._cluster, asked, validate_only=validate_only, timeout=TIMEOUT
            )
            for resource, problem in answers.items():
                names = each[resource.name]
                self._known.pop(resource.name, None)
                if problem is None:
                    continue
                if len(names) > 1 and not problem.retriable:
                    rounds += [{resource.name: {name: names[name]}} for name in names]
                else:
                    refused |= {(resource.name, name): problem for name in names}
        return refused
