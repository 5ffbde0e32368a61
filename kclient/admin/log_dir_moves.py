"""The replicas of a plan with log directories: where they are, in the words of Kafka's tool. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kclient.admin.log_dirs import LogDirs
from kclient.errors import KafkaError
from kclient.types import TopicPartition

LogDirPlan: TypeAlias = Mapping[int, Mapping[TopicPartition, str]]
"""By broker: the paths of the log directories that its replicas are to be in."""


@dataclass(frozen=True, slots=True)
class LogDirProgress:
    """A replica of a plan with log directories."""

    tp: TopicPartition
    broker: int
    wanted: str
    current: str | None
    """The path of the directory with the replica; None if no directory of that broker has it."""
    future: str | None
    """The path of the directory to which it is being copied."""
    has_offline_dirs: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the replica is where it should be."""
        return self.current == self.wanted and self.future is None

    @property
    def is_active(self) -> bool:
        """Whether the replica is being copied to another directory."""
        return self.future is not None

    def __str__(self) -> str:
        replica = f"{self.tp}-{self.broker}"
        if self.current is None and self.has_offline_dirs:
            return (
                f"Partition {self.tp} is not found in any live log dir on broker {self.broker}. There is likely an"
                " offline log directory on the broker."
            )
        if self.current is None:
            return f"Partition {self.tp} cannot be found in any live log directory on broker {self.broker}."
        if self.future == self.wanted:
            return f"Reassignment of replica {replica} is still in progress."
        if self.future is not None:
            return (
                f"Partition {self.tp} on broker {self.broker} is being moved to log dir {self.future} instead of"
                f" {self.wanted}."
            )
        if self.is_done:
            return f"Reassignment of replica {replica} completed successfully."
        return (
            f"Partition {self.tp} on broker {self.broker} is not being moved from log dir {self.current} to"
            f" {self.wanted}."
        )


def log_dir_progress(
    plan: LogDirPlan, found: Mapping[int, LogDirs | KafkaError]
) -> list[LogDirProgress]:
    """Compare *plan* with what the brokers described; a broker that did not answer has no replicas."""
    progress = []
    for broker, wanted in sorted(plan.items()):
        dirs = found.get(broker)
        known = {} if dirs is None or isinstance(dirs, KafkaError) else dirs
        for tp, path in sorted(wanted.items()):
            places = {
                each.replicas[tp].is_future: each.path
                for each in known.values()
                if tp in each.replicas
            }
            offline = any(each.error is not None for each in known.values())
            progress.append(
                LogDirProgress(tp, broker, path, places.get(False), places.get(True), offline)
            )
    return progress
