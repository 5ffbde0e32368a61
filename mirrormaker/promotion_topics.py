"""The topics that a promotion is about, of both clusters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kclient.types import TopicPartition
from mirrormaker.catalog import Catalog
from mirrormaker.config import FlowConfig
from mirrormaker.patterns import compiled
from mirrormaker.promotion import Stage
from mirrormaker.promotion_record import Opened, opened
from mirrormaker.topics import Selection, Topic


class PromotedTopics:
    """Selects the topics of a flow that match the regular expressions of a command, as the setting ``topics``."""

    def __init__(self, config: FlowConfig, topics: str) -> None:
        self._wanted = compiled(topics)
        self._selection = Selection(config.source, config.target, config.settings)

    def selects(self, name: str) -> bool:
        """Return whether the source topic *name* is selected. Each cluster has its own heartbeats."""
        return (
            self._wanted.fullmatch(name) is not None
            and self._selection.wants(name)
            and not self._selection.is_heartbeats(name)
        )

    def selects_copy(self, copy: str) -> bool:
        """Return whether the target topic *copy* is that of a source topic that is selected."""
        name = self._selection.named_after(copy)
        return name is not None and self.selects(name)

    def target_name(self, name: str) -> str:
        """Return the name at the target of the source topic *name*."""
        return self._selection.target_name(name)


@dataclass(frozen=True, slots=True)
class Roles:
    """The selected topics of both clusters, by name."""

    source_id: str
    target_id: str
    source_topics: Catalog
    target_topics: Catalog
    source: Mapping[str, Topic]
    target: Mapping[str, Topic]
    stages: Mapping[str, Stage]

    @property
    def left(self) -> list[str]:
        """The topics that are not promoted yet."""
        return [
            name for name, stage in self.stages.items() if stage in (Stage.MIRRORED, Stage.FENCED)
        ]

    @property
    def opened(self) -> dict[str, Opened]:
        """What promotions of earlier commands found, by topic; none for topics that do not state it."""
        found = {
            name: opened(self.target[name], self.source_id)
            for name, stage in self.stages.items()
            if stage is Stage.PROMOTED
        }
        return {name: each for name, each in found.items() if each is not None}

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of the topics that are not promoted yet."""
        return partitions_of(self.left, self.source)


def flow_back(config: FlowConfig) -> str:
    """Return the name of the flow of the other direction."""
    return f"{config.target}->{config.source}"


def partitions_of(names: Iterable[str], topics: Mapping[str, Topic]) -> list[TopicPartition]:
    """Return the partitions of the *topics* with these *names*."""
    return [TopicPartition(name, n) for name in names for n in range(topics[name].partitions)]
