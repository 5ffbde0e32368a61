"""Reassignment plans: reads and writes the JSON files of Kafka's tool, and computes throttles. Pure.

The files are those of kafka-reassign-partitions:

    {"version": 1, "topics": [{"topic": "t"}]}                                                topics to move
    {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}        target replicas

A partition may have "log_dirs": the path of a log directory, or "any", for each of its replicas (KIP-113).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kclient.admin.assignment import Racks, assign_replicas
from kclient.types import TopicPartition

Plan = Mapping[TopicPartition, Sequence[int]]
"""The replicas of each partition, the preferred leader first."""

ANY_LOG_DIR = "any"

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
BROKER_THROTTLES = (LEADER_RATE, FOLLOWER_RATE, LOG_DIRS_RATE)
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
TOPIC_THROTTLES = (LEADER_REPLICAS, FOLLOWER_REPLICAS)


class PlanError(ValueError):
    """An invalid plan; the text has the place."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """An active reassignment: *replicas* are all current ones, with those being added and removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


# --- files


def read_topics(text: str) -> list[str]:
    """Parse a file of topics to move."""
    topics = [
        _get(entry, "topic", str, f"topics[{n}]")
        for n, entry in enumerate(_entries(text, "topics"))
    ]
    _reject_duplicates(topics, "topics")
    if not topics:
        raise PlanError("there are no topics to move")
    return topics


def read_plan(text: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Parse a file of partitions and their replicas; nothing may be empty or duplicate."""
    plan: dict[TopicPartition, tuple[int, ...]] = {}
    named: list[TopicPartition] = []
    for n, entry in enumerate(_entries(text, "partitions")):
        place = f"partitions[{n}]"
        topic = _get(entry, "topic", str, place)
        tp = TopicPartition(topic, _get(entry, "partition", int, place))
        replicas = _list(entry, "replicas", int, place)
        if not replicas:
            raise PlanError(f"{place}: the replica list of {tp} is empty")
        if "log_dirs" in entry:
            _check_log_dirs(_list(entry, "log_dirs", str, place), replicas, tp, place)
        _reject_duplicates(replicas, f"the replicas of {tp}")
        named.append(tp)
        plan[tp] = tuple(replicas)
    _reject_duplicates(named, "partitions")
    if not plan:
        raise PlanError("there are no partitions to reassign")
    return plan


def read_log_dirs(text: str) -> dict[int, dict[TopicPartition, str]]:
    """Return the log directories in a file that `read_plan` accepts: by broker, the paths for its replicas."""
    paths: dict[int, dict[TopicPartition, str]] = {}
    for entry in _entries(text, "partitions"):
        tp = TopicPartition(entry["topic"], entry["partition"])
        for broker, path in zip(entry["replicas"], entry.get("log_dirs", ()), strict=False):
            if path != ANY_LOG_DIR:
                paths.setdefault(broker, {})[tp] = path
    return paths


def plan_as_json(plan: Plan) -> str:
    """Write *plan* in the format of Kafka's tool, which `read_plan` reads."""
    partitions = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "replicas": list(replicas),
            "log_dirs": [ANY_LOG_DIR] * len(replicas),
        }
        for tp, replicas in sorted(plan.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"))


def _entries(text: str, name: str) -> list[dict[str, Any]]:
    try:
        content = json.loads(text)
    except ValueError as problem:
        raise PlanError(f"invalid JSON: {problem}") from None
    if not isinstance(content, dict):
        raise PlanError(f"expected a JSON object, found {_kind(content)}")
    version = content.get("version", 1)
    if type(version) is not int or version != 1:
        raise PlanError(f"version {version!r} is unknown, only 1 is supported")
    return _list(content, name, dict, "")


def _list(content: Mapping[str, Any], name: str, kind: type, place: str) -> list[Any]:
    path = f"{place}.{name}" if place else name
    found = _get(content, name, list, place)
    for n, item in enumerate(found):
        _check(item, kind, f"{path}[{n}]")
    return list(found)


def _get(content: Mapping[str, Any], name: str, kind: type, place: str) -> Any:
    path = f"{place}.{name}" if place else name
    if name not in content:
        raise PlanError(f"{path} is missing")
    return _check(content[name], kind, path)


def _check(value: Any, kind: type, path: str) -> Any:
    if type(value) is not kind:  # True is not a number
        raise PlanError(f"{path}: expected {_NAMES[kind]}, found {_kind(value)}")
    return value


_NAMES = {int: "a number", str: "a string", list: "a list", dict: "an object"}


def _kind(value: Any) -> str:
    shown = json.dumps(value)
    return f"{_NAMES.get(type(value), 'something else')}: {shown[:60]}"


def _reject_duplicates(things: Iterable[object], what: str) -> None:
    twice = [str(thing) for thing, count in Counter(things).items() if count > 1]
    if twice:
        raise PlanError(f"{what}: {', '.join(twice)} more than once")


def _check_log_dirs(
    log_dirs: list[str], replicas: list[int], tp: TopicPartition, place: str
) -> None:
    if len(log_dirs) != len(replicas):
        raise PlanError(
            f"{place}: {tp} has {len(replicas)} replicas, but {len(log_dirs)} log directories"
        )
    for path in log_dirs:
        if path != ANY_LOG_DIR and not path.startswith("/"):
            raise PlanError(
                f'{place}: the log directory {path!r} of {tp} is neither an absolute path nor "{ANY_LOG_DIR}"'
            )


# --- validation


def check_plan(plan: Plan, current: Plan, live: Iterable[int]) -> None:
    """Raise PlanError for partitions that are missing in *current*, and for brokers that are not live."""
    unknown = [str(tp) for tp in sorted(plan) if tp not in current]
    if unknown:
        raise PlanError(f"there is no partition {', '.join(unknown)}")
    absent = sorted({broker for replicas in plan.values() for broker in replicas} - set(live))
    if absent:
        raise PlanError(
            f"there is no live broker {', '.join(map(str, absent))}; the live brokers are "
            f"{', '.join(map(str, sorted(live)))}"
        )


def propose(
    current: Plan,
    brokers: Sequence[int],
    racks: Racks,
    *,
    start_index: int,
    replication_factor: int | None = None,
) -> dict[TopicPartition, tuple[int, ...]]:
    """Assign every topic of *current* evenly to *brokers*, with its own replication factor or the given one.

    Raise InvalidAssignmentError if there are too few brokers.
    """
    topics: dict[str, list[TopicPartition]] = {}
    for tp in sorted(current):
        topics.setdefault(tp.topic, []).append(tp)
    proposed = {}
    for tps in topics.values():
        factor = replication_factor or len(current[tps[0]])
        assigned = assign_replicas(brokers, len(tps), factor, start_index=start_index, racks=racks)
        for tp, replicas in zip(tps, assigned.values(), strict=True):
            proposed[tp] = replicas
    return proposed


# --- throttles


@dataclass(frozen=True, slots=True)
class Throttles:
    """The settings that throttle only the replicas that move (KIP-73)."""

    topics: Mapping[str, Mapping[str, str]]
    """Settings by topic."""
    brokers: frozenset[int]
    """Brokers that need the rate."""


def throttles_of(
    plan: Plan, current: Plan, under_way: Mapping[TopicPartition, Reassignment]
) -> Throttles:
    """Return the throttles for *plan* and *under_way*: sources are throttled as leaders, added ones as followers."""
    moves: dict[TopicPartition, tuple[set[int], set[int]]] = {
        tp: (set(each.replicas) - set(each.adding), set(each.adding))
        for tp, each in under_way.items()
    }
    for tp, replicas in plan.items():
        sources = moves[tp][0] if tp in moves else set(current[tp])
        moves[tp] = (sources, set(replicas) - sources)
    topics: dict[str, dict[str, list[str]]] = {}
    for tp, (sources, added) in sorted(moves.items()):
        lists = topics.setdefault(tp.topic, {LEADER_REPLICAS: [], FOLLOWER_REPLICAS: []})
        lists[LEADER_REPLICAS] += [f"{tp.partition}:{broker}" for broker in sorted(sources)]
        lists[FOLLOWER_REPLICAS] += [f"{tp.partition}:{broker}" for broker in sorted(added)]
    return Throttles(
        {
            topic: {name: ",".join(items) for name, items in lists.items()}
            for topic, lists in topics.items()
        },
        frozenset(broker for sources, added in moves.values() for broker in sources | added),
    )


# --- progress


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one partition of a plan."""

    tp: TopicPartition
    wanted: tuple[int, ...]
    replicas: tuple[int, ...]
    """The current replicas; empty if the partition does not exist."""
    under_way: bool

    @property
    def is_done(self) -> bool:
        """Whether the replicas are as planned."""
        return not self.under_way and self.replicas == self.wanted

    def __str__(self) -> str:
        if self.under_way:
            return f"Reassignment of partition {self.tp} is still in progress."
        if self.is_done:
            return f"Reassignment of partition {self.tp} is completed."
        return (
            f"There is no active reassignment of partition {self.tp}, but replica set is "
            f"{','.join(map(str, self.replicas))} rather than {','.join(map(str, self.wanted))}."
        )


def progress_of(
    plan: Plan, current: Plan, under_way: Mapping[TopicPartition, Reassignment]
) -> list[Progress]:
    """Compare *plan* with the current replicas."""
    return [
        Progress(tp, tuple(wanted), tuple(current.get(tp, ())), tp in under_way)
        for tp, wanted in sorted(plan.items())
    ]


@dataclass(frozen=True, slots=True)
class Copied:
    """Bytes in the replicas being added, and the bytes that they need."""

    done: int
    total: int


def copied_of(moving: Reassignment, sizes: Mapping[int, int]) -> Copied:
    """Compare the replicas that *moving* adds with the largest other one; *sizes* in bytes, by broker."""
    added = set(moving.adding)
    whole = max(
        (sizes.get(broker, 0) for broker in moving.replicas if broker not in added), default=0
    )
    done = sum(min(sizes.get(broker, 0), whole) for broker in added)
    return Copied(done, whole * len(added))
