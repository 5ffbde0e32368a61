"""Every setting of a mirror link once: MirrorMaker 2's name, its type and default, one line of doc.

Names are those of connect-mirror-maker.properties (KIP-382). Where the default differs from
MirrorMaker 2 the line says why. `gap.policy` is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from mirrormaker.patterns import compiled
from mirrormaker.words import GapPolicy

Side = Literal["", "consumer", "producer"]

EXCLUDED_TOPICS = r".*[\-\.]internal, .*\.replica, __.*"
"""MirrorMaker 2's; internal topics are never mirrored, whatever this says."""

EXCLUDED_CONFIGS = (
    r"follower\.replication\.throttled\.replicas, leader\.replication\.throttled\.replicas, "
    r"message\.timestamp\.difference\.max\.ms, message\.timestamp\.type, "
    r"unclean\.leader\.election\.enable, min\.insync\.replicas"
)


def boolean(text: str) -> bool:
    """Read true or false."""
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return lowered == "true"


def number(minimum: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from *minimum* on."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if value < minimum:
            raise ValueError(f"{value} is below {minimum}")
        return value

    return read


def pattern_list(text: str) -> str:
    """Read a list of regular expressions, as text; it is compiled where it is used."""
    compiled(text)
    return text


def replication_policy(text: str) -> str:
    """Read the class name of a replication policy, with or without its package."""
    name = text.rpartition(".")[2]
    if name not in ("IdentityReplicationPolicy", "DefaultReplicationPolicy"):
        raise ValueError(
            f"{text!r} is not known; there are IdentityReplicationPolicy and DefaultReplicationPolicy"
        )
    return name


def gap_policy_name(text: str) -> str:
    """Read fail or skip."""
    try:
        return GapPolicy(text.lower()).value
    except ValueError:
        raise ValueError(f"{text!r} is neither fail nor skip") from None


def _setting(name: str, default: Any, read: Callable[[str], Any], doc: str, side: Side = "") -> Any:
    return field(default=default, metadata={"name": name, "read": read, "doc": doc, "side": side})


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """What may be set for one direction, ``A->B.name``, or for all of them, ``name``."""

    enabled: bool = _setting("enabled", False, boolean, "Whether this direction is mirrored.")
    topics: str = _setting("topics", ".*", pattern_list, "Regular expressions of topics to mirror.")
    topics_exclude: str = _setting(
        "topics.exclude", EXCLUDED_TOPICS, pattern_list, "Topics not to mirror; wins over topics."
    )
    replication_policy: str = _setting(
        "replication.policy.class",
        "IdentityReplicationPolicy",
        replication_policy,
        "How topics are named at the target. Identity, not Default: records keep their offsets here, so "
        "a consumer moves to the other cluster with its topic names and its offsets as they are.",
    )
    separator: str = _setting(
        "replication.policy.separator", ".", str, "Between source alias and topic (Default policy)."
    )
    refresh_topics: bool = _setting(
        "refresh.topics.enabled", True, boolean, "Whether new topics and partitions are looked for."
    )
    refresh_interval: int = _setting(
        "refresh.topics.interval.seconds",
        5,
        number(1),
        "How often. MirrorMaker 2 waits 10 minutes; one Metadata request costs little.",
    )
    sync_configs: bool = _setting(
        "sync.topic.configs.enabled", True, boolean, "Whether topic configs follow the source's."
    )
    sync_configs_interval: int = _setting(
        "sync.topic.configs.interval.seconds", 60, number(1), "How often they are compared."
    )
    excluded_configs: str = _setting(
        "config.properties.exclude", EXCLUDED_CONFIGS, pattern_list, "Topic configs not to copy."
    )
    replication_factor: int = _setting(
        "replication.factor",
        -1,
        number(-1),
        "Of topics created; -1 is the target's default.replication.factor (MirrorMaker 2: 2).",
    )
    gap_policy: str = _setting(
        "gap.policy",
        "fail",
        gap_policy_name,
        "When the source deleted what was not copied yet: fail stops that partition, skip goes on.",
    )
    buffer_memory: int = _setting(
        "buffer.memory", 64 << 20, number(1 << 20), "Bytes fetched and not acknowledged yet."
    )
    fetch_max_bytes: int = _setting(
        "fetch.max.bytes", 16 << 20, number(1), "Bytes of one fetch.", "consumer"
    )
    max_partition_fetch_bytes: int = _setting(
        "max.partition.fetch.bytes", 4 << 20, number(1), "Bytes of one partition in it.", "consumer"
    )
    fetch_max_wait_ms: int = _setting(
        "fetch.max.wait.ms", 500, number(0), "How long a fetch waits for records.", "consumer"
    )
    max_request_size: int = _setting(
        "max.request.size", 8 << 20, number(1), "Bytes of one append request.", "producer"
    )
    max_in_flight: int = _setting(
        "max.in.flight.requests.per.connection",
        4,
        number(1),
        "Append requests that a broker may owe answers to.",
        "producer",
    )
    request_timeout_ms: int = _setting(
        "request.timeout.ms",
        30_000,
        number(1),
        "An append unanswered for this long is lost.",
        "producer",
    )


NOT_DONE = frozenset(
    [
        "groups",
        "groups.exclude",
        "refresh.groups.enabled",
        "refresh.groups.interval.seconds",
        "sync.group.offsets.enabled",
        "sync.group.offsets.interval.seconds",
        "sync.topic.acls.enabled",
        "sync.topic.acls.interval.seconds",
        "emit.heartbeats.enabled",
        "emit.heartbeats.interval.seconds",
    ]
)
"""Settings of MirrorMaker 2 whose work is not done here (yet)."""

NOT_NEEDED = frozenset(
    [
        "checkpoints.topic.replication.factor",
        "config.storage.replication.factor",
        "consumer.poll.timeout.ms",
        "dedicated.mode.enable.internal.rest",
        "emit.checkpoints.enabled",
        "emit.checkpoints.interval.seconds",
        "emit.offset-syncs.enabled",
        "group.filter.class",
        "heartbeats.topic.replication.factor",
        "offset-syncs.topic.location",
        "offset-syncs.topic.replication.factor",
        "offset.lag.max",
        "offset.storage.replication.factor",
        "offset.translate.method",
        "status.storage.replication.factor",
        "tasks.max",
        "topic.filter.class",
    ]
)
"""Settings of MirrorMaker 2 that have no meaning where offsets stay the same and no Connect runs."""


def link_settings() -> dict[str, Any]:
    """Return the dataclass field of every link setting, by its dotted name."""
    return {f.metadata["name"]: f for f in fields(LinkSettings)}
