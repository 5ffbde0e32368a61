"""The topics of a cluster with their configs, and the changes that a plan makes to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kclient.admin import configs, topics
from kclient.admin.configs import ConfigResource, ConfigSource, ResourceType
from kclient.errors import KafkaError
from kclient.net.cluster import Cluster
from kclient.types import NewTopic
from kclient.wire.errors import TopicAlreadyExists
from mirrormaker.topics import EFFECTIVE, Plan, Topic, mark_of

TIMEOUT = 15.0
"""Seconds for one administrative request, retries included."""


class Catalog:
    """The topics of one cluster. Configs are cached until the caller requests them again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, Topic] = {}
        cluster.want_all()

    async def names(self) -> Mapping[str, int]:
        """Return every topic with its number of partitions, from fresh metadata."""
        metadata = await self._cluster.refresh()
        return {
            name: len(topic.partitions)
            for name, topic in metadata.topics.items()
            if topic.partitions and not topic.error_code
        }

    async def topics(self, wanted: Iterable[str], *, configs_too: bool) -> dict[str, Topic]:
        """Return *wanted* as of now; *configs_too* also reads cached configs again. Raise KafkaError."""
        present = await self.names()
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
            if name in new and name not in described:
                continue  # deleted between the two requests
            overrides, effective = described.get(name) or (
                self._known[name].overrides,
                self._known[name].effective,
            )
            found[name] = Topic(present[name], metadata.topic_id(name), overrides, effective)
        self._known = found
        return found

    async def _describe(
        self, names: Iterable[str]
    ) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        answers = await configs.describe_configs(
            self._cluster, resources, names=None, documentation=False, timeout=TIMEOUT
        )
        found = {}
        for resource, entries in answers.items():
            if isinstance(entries, KafkaError):
                if entries.retriable:  # deleted, or not in the metadata of all brokers yet
                    continue
                raise entries
            overrides = {
                entry.name: entry.value or ""
                for entry in entries.values()
                if entry.source is ConfigSource.TOPIC
            }
            effective = {name: entries[name].value or "" for name in EFFECTIVE if name in entries}
            found[resource.name] = (overrides, effective)
        return found

    # --- changes

    async def mark(self, topic: str, source_id: str, topic_id: str) -> None:
        """Mark *topic* as a mirror of *topic_id* in the cluster *source_id*, in one change. Raise KafkaError."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        answers = await configs.alter_configs(
            self._cluster,
            {resource: mark_of(source_id, topic_id)},
            validate_only=False,
            timeout=TIMEOUT,
        )
        self._known.pop(topic, None)
        problem = answers[resource]
        if problem is not None:
            raise problem

    async def apply(self, plan: Plan, *, replication_factor: int) -> dict[str, KafkaError]:
        """Create topics, add partitions and set configs as in *plan*; return the errors by target topic."""
        failed: dict[str, KafkaError] = {}
        if plan.create:
            new = [
                NewTopic(c.name, c.partitions, replication_factor, dict(c.configs))
                for c in plan.create
            ]
            created = await topics.create_topics(
                self._cluster, new, validate_only=False, timeout=TIMEOUT
            )
            failed |= {
                name: answer
                for name, answer in created.items()
                if isinstance(answer, KafkaError) and not isinstance(answer, TopicAlreadyExists)
            }
        if plan.add_partitions:
            added = await topics.create_partitions(
                self._cluster, plan.add_partitions, validate_only=False, timeout=TIMEOUT
            )
            failed |= {name: answer for name, answer in added.items() if answer is not None}
        if plan.set_configs:
            changes = {
                ConfigResource(ResourceType.TOPIC, name): each
                for name, each in plan.set_configs.items()
            }
            altered = await configs.alter_configs(
                self._cluster, changes, validate_only=False, timeout=TIMEOUT
            )
            failed |= {r.name: answer for r, answer in altered.items() if answer is not None}
            for name in plan.set_configs:
                self._known.pop(name, None)
        return failed
