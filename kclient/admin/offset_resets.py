"""Resets of committed offsets: which offset each partition of a group gets, and why. Pure.

The scenarios are those of kafka-consumer-groups --reset-offsets (KIP-122), with its rules:

    EARLIEST, LATEST   the start or the end of the log (the high watermark), plus a number; clipped to the log
    OFFSET, SHIFT      a number, or the committed offset plus a number; clipped to the log
    TIME               the first record at or after a time; the end of the log without such a record
    CURRENT            the committed offset as it is, not clipped; the end of the log without one

A reset commits an offset without leader epoch and metadata, as Kafka's tool does. A consumer that starts there does not
look for a truncated log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from kclient.types import TopicPartition

_SHOWN_CLIENT_IDS = 5


class ResetError(ValueError):
    """A reset that cannot be planned; nothing is changed."""


class Scenario(Enum):
    """The reference of new offsets."""

    EARLIEST = "earliest"
    LATEST = "latest"
    CURRENT = "current"
    OFFSET = "offset"
    SHIFT = "shift"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Target:
    """A scenario with its number: an offset, a count of offsets, or a time in milliseconds since the epoch."""

    scenario: Scenario
    number: int = 0


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The log of a partition: *start* <= *end*; *at_time* is the first record of TIME, None without one."""

    start: int
    end: int
    at_time: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The planned offset of a partition; *current* is the committed one, None without a commit.

    *reason* is why *new* is not what the target names, "" if it is.
    """

    group: str
    tp: TopicPartition
    current: int | None
    new: int
    log: LogOffsets
    reason: str = ""

    @property
    def change(self) -> int | None:
        """The distance from the committed offset; None without one."""
        return None if self.current is None else self.new - self.current


def plan_reset(
    group: str,
    targets: Mapping[TopicPartition, Target],
    committed: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, LogOffsets],
) -> list[OffsetChange]:
    """Return the change of every partition of *targets*, by topic and partition; raise `ResetError`."""
    changes = []
    for tp in sorted(targets):
        current = committed.get(tp)
        new, reason = _new_offset(group, tp, targets[tp], current, logs[tp])
        changes.append(OffsetChange(group, tp, current, new, logs[tp], reason))
    return changes


def _new_offset(
    group: str, tp: TopicPartition, target: Target, current: int | None, log: LogOffsets
) -> tuple[int, str]:
    match target.scenario:
        case Scenario.EARLIEST:
            return _clipped(tp, log.start + target.number, log)
        case Scenario.LATEST:
            return _clipped(tp, log.end + target.number, log)
        case Scenario.TIME:
            if log.at_time is not None:
                return log.at_time, ""
            return log.end, f"{tp} has no record at or after the time: set to its end, {log.end}"
        case Scenario.CURRENT:
            if current is not None:
                return current, ""
            return log.end, f"{tp} has no committed offset: set to its end, {log.end}"
        case Scenario.OFFSET:
            return _clipped(tp, target.number, log)
        case Scenario.SHIFT:
            if current is None:
                raise ResetError(
                    f"group {group!r} has no committed offset in {tp} to shift; leave the partition out, or give "
                    "--to-offset"
                )
            return _clipped(tp, current + target.number, log)


def _clipped(tp: TopicPartition, wanted: int, log: LogOffsets) -> tuple[int, str]:
    if wanted > log.end:
        return (
            log.end,
            f"offset {wanted} is higher than the latest offset of {tp}: set to {log.end}",
        )
    if wanted < log.start:
        return (
            log.start,
            f"offset {wanted} is lower than the earliest offset of {tp}: set to {log.start}",
        )
    return wanted, ""


def select_partitions(
    topics: Iterable[tuple[str, Collection[int] | None]], known: Mapping[str, Collection[int]]
) -> list[TopicPartition]:
    """Return the partitions of (topic, numbers; None: all), each once, in order.

    *known* are the partitions of each topic in the cluster. Raise `ResetError` for one that does not exist.
    """
    selected: set[TopicPartition] = set()
    for topic, numbers in topics:
        partitions = known.get(topic, ())
        missing = sorted(set(numbers or ()) - set(partitions))
        if not partitions or missing:
            listed = ", ".join(map(str, missing))
            raise ResetError(
                f"topic {topic!r} has no partition {listed}; its partitions are 0 to {max(partitions)}"
                if partitions
                else f"topic {topic!r} does not exist (check the name: kclient topic list)"
            )
        selected.update(
            TopicPartition(topic, n) for n in (partitions if numbers is None else numbers)
        )
    return sorted(selected)


def refusal(group: str, state: str, client_ids: Iterable[str]) -> str | None:
    """Return why the offsets of a group in *state* cannot be reset; None if they can.

    Members commit their own positions, so a reset below them would be undone. A Dead group does not exist: a reset
    creates it.
    """
    if state in ("Empty", "Dead"):
        return None
    ids = sorted(set(client_ids))
    listed = ", ".join(ids[:_SHOWN_CLIENT_IDS])
    more = f" and {len(ids) - _SHOWN_CLIENT_IDS} more" if len(ids) > _SHOWN_CLIENT_IDS else ""
    members = f"it has members (client ids: {listed}{more})" if ids else "its members rebalance"
    return (
        f"group {group!r} is in state {state}, {members}: stop its consumers, wait until "
        f"`kclient group describe {group} --state` shows Empty, and repeat"
    )
