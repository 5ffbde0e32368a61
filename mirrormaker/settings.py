"""Every setting of a mirror link: MirrorMaker 2's name, its type and default, one line of documentation.

Names are those of connect-mirror-maker.properties (KIP-382). Where the default differs from
MirrorMaker 2, the line gives the reason. `gap.policy`, `topic.deletion.*`, `fetch.max.bytes.per.second`, `alarm.*`,
`emit.evidence.*`, `emit.latency.*` and `target.offsets` exist only here; `exactly.once.source.support` is Kafka
Connect's (KIP-618).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from kclient.config import INT_MAX, LONG_MAX
from mirrormaker.link_state import GapPolicy
from mirrormaker.patterns import compiled
from mirrormaker.replication_policy import load_policy

_NEW_LINEAGE = GapPolicy.NEW_LINEAGE.value

Side = Literal["", "consumer", "producer"]

EXCLUDED_TOPICS = r".*[\-\.]internal, .*\.replica, __.*"
"""MirrorMaker 2's default. Internal topics are never mirrored, with any value."""

EXCLUDED_GROUPS = r"console-consumer-.*, connect-.*, __.*"
"""MirrorMaker 2's default."""

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


_MOST_REPLICAS = (1 << 15) - 1
"""CreateTopics carries a replication factor in 2 bytes."""


def number(minimum: int, most: int = LONG_MAX) -> Callable[[str], int]:
    """Return a reader of whole numbers from *minimum* to *most*, both included."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if value < minimum:
            raise ValueError(f"{value} is below {minimum}")
        if value > most:
            raise ValueError(f"{value} is above {most}")
        return value

    return read


def replicas(text: str) -> int:
    """Read a replication factor; -1 is the default of the cluster."""
    if text != "-1" and not re.fullmatch("0*[1-9][0-9]*", text):
        raise ValueError(f"{text!r} is neither -1 nor a positive number")
    return number(-1, _MOST_REPLICAS)(text)


def pattern_list(text: str) -> str:
    """Read a list of regular expressions, as text; its user compiles it."""
    compiled(text)
    return text


def replication_policy(text: str) -> str:
    """Read the class name of a replication policy; of one of MirrorMaker 2 the package is left out."""
    load_policy(text)
    return text if ":" in text else text.rpartition(".")[2]


def separator(text: str) -> str:
    """Read a separator that can be in the name of a topic; without one no source is found in a name."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        raise ValueError(
            f"{text!r} is not of letters, digits, '.', '_' and '-', as names of topics"
        )
    return text


TRUNCATIONS = frozenset({"truncate", "truncate-and-export", "truncate+export", "truncate-export"})


def gap_policy_name(text: str) -> str:
    """Read fail, skip or new-lineage. A policy that truncates is refused with the reason."""
    if text.lower() in TRUNCATIONS:
        raise ValueError(
            f"{text!r} is no policy: whenever the source loses its log, a running kmirror would remove acknowledged "
            "records of the target, which consumers may have read. kmirror truncate exports and removes them on request"
        )
    try:
        return GapPolicy(text.lower()).value
    except ValueError:
        names = ", ".join(each.value for each in GapPolicy)
        raise ValueError(f"{text!r} is not one of {names}") from None


def one_of(*values: str) -> Callable[[str], str]:
    """Return a reader of one of *values*."""

    def read(text: str) -> str:
        if text.lower() not in values:
            raise ValueError(f"{text!r} is not one of {', '.join(values)}")
        return text.lower()

    return read


def _setting(name: str, default: Any, read: Callable[[str], Any], doc: str, side: Side = "") -> Any:
    return field(default=default, metadata={"name": name, "read": read, "doc": doc, "side": side})


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """The settings of one direction, ``A->B.name``, or of all directions, ``name``."""

    enabled: bool = _setting("enabled", False, boolean, "Whether this direction is mirrored.")
    topics: str = _setting("topics", ".*", pattern_list, "Regular expressions of topics to mirror.")
    topics_exclude: str = _setting(
        "topics.exclude", EXCLUDED_TOPICS, pattern_list, "Topics not to mirror; wins over topics."
    )
    replication_policy: str = _setting(
        "replication.policy.class",
        "IdentityReplicationPolicy",
        replication_policy,
        "How topics are named at the target; MODULE:CLASS is one of yours. Identity, not Default: records keep their "
        "offsets here, so a consumer can move to the other cluster with the same topic names and offsets.",
    )
    separator: str = _setting(
        "replication.policy.separator",
        ".",
        separator,
        "What is between the source alias and the topic in a name; not with IdentityReplicationPolicy.",
    )
    refresh_topics: bool = _setting(
        "refresh.topics.enabled",
        True,
        boolean,
        "Whether the mirror looks for new topics and partitions. If not, it still compares those that it has.",
    )
    refresh_interval: int = _setting(
        "refresh.topics.interval.seconds",
        5,
        number(1),
        "How often it compares the topics, at least: it does so, too, when it compares configs or ACLs. MirrorMaker 2 "
        "waits 10 minutes; one Metadata request costs little.",
    )
    sync_configs: bool = _setting(
        "sync.topic.configs.enabled", True, boolean, "Whether topic configs follow the source's."
    )
    sync_configs_interval: int = _setting(
        "sync.topic.configs.interval.seconds",
        60,
        number(1),
        "How often they are compared. MirrorMaker 2 waits 10 minutes.",
    )
    sync_acls: str = _setting(
        "sync.topic.acls.enabled",
        "report",
        one_of("report", "true", "false"),
        "Whether ACLs about reading mirrored topics are copied. report: they are reported. MirrorMaker 2: true.",
    )
    sync_acls_interval: int = _setting(
        "sync.topic.acls.interval.seconds", 600, number(1), "How often they are compared."
    )
    excluded_configs: str = _setting(
        "config.properties.exclude", EXCLUDED_CONFIGS, pattern_list, "Topic configs not to copy."
    )
    topic_deletion_policy: str = _setting(
        "topic.deletion.policy",
        "keep",
        one_of("keep", "delete"),
        "What happens to the mirror of a source topic that was deleted: keep or delete.",
    )
    topic_deletion_delay: int = _setting(
        "topic.deletion.delay.seconds",
        3600,
        number(1),
        "With the policy delete: how long the source topic must be gone before its mirror is deleted.",
    )
    replication_factor: int = _setting(
        "replication.factor",
        -1,
        replicas,
        "Of topics that kmirror creates; -1 is the target's default.replication.factor (MirrorMaker 2: 2).",
    )
    target_offsets: str = _setting(
        "target.offsets",
        "keep",
        one_of("keep", "renumber"),
        "keep: records have the same offsets at the target, a kbroker cluster. renumber: the target assigns offsets, "
        "as Apache Kafka does.",
    )
    exactly_once: str = _setting(
        "exactly.once.source.support",
        "enabled",
        one_of("enabled", "disabled"),
        "With target.offsets=renumber: enabled copies in transactions of the target; disabled without, at least once "
        "(Kafka Connect: disabled).",
    )
    gap_policy: str = _setting(
        "gap.policy",
        "fail",
        gap_policy_name,
        "When the source deleted records before they were copied: fail stops the partition. skip writes the gap into "
        "the ledger at the target, then continues. new-lineage copies a topic that was created again to another "
        "target topic, lineage.<topic id>.<name>, and stops at other gaps.",
    )
    groups: str = _setting(
        "groups",
        ".*",
        pattern_list,
        "Regular expressions of consumer groups to copy the offsets of.",
    )
    groups_exclude: str = _setting(
        "groups.exclude", EXCLUDED_GROUPS, pattern_list, "Groups not to copy; wins over groups."
    )
    refresh_groups: bool = _setting(
        "refresh.groups.enabled", True, boolean, "Whether the mirror looks for new groups."
    )
    refresh_groups_interval: int = _setting(
        "refresh.groups.interval.seconds",
        60,
        number(1),
        "How often it looks for them. MirrorMaker 2 waits 10 minutes; one ListGroups per broker costs little.",
    )
    sync_group_offsets: bool = _setting(
        "sync.group.offsets.enabled",
        False,
        boolean,
        "Whether committed offsets are copied to groups without members at the target.",
    )
    sync_group_offsets_interval: int = _setting(
        "sync.group.offsets.interval.seconds", 60, number(1), "How often they are copied."
    )
    emit_checkpoints: bool = _setting(
        "emit.checkpoints.enabled",
        False,
        boolean,
        "Whether checkpoints are emitted, for MirrorMaker 2's client library (there: true). "
        "kmirror itself needs none.",
    )
    emit_checkpoints_interval: int = _setting(
        "emit.checkpoints.interval.seconds", 60, number(1), "How often they are emitted."
    )
    checkpoints_replication_factor: int = _setting(
        "checkpoints.topic.replication.factor",
        -1,
        replicas,
        "Of the topic of checkpoints; -1 is the target's default.replication.factor (MirrorMaker 2: 3).",
    )
    emit_heartbeats: bool = _setting(
        "emit.heartbeats.enabled",
        False,
        boolean,
        "Whether heartbeats are emitted and mirrored, for MirrorMaker 2's client library (there: true). "
        "They are written to the source, too.",
    )
    emit_heartbeats_interval: int = _setting(
        "emit.heartbeats.interval.seconds", 1, number(1), "How often they are emitted."
    )
    heartbeats_replication_factor: int = _setting(
        "heartbeats.topic.replication.factor",
        -1,
        replicas,
        "Of the topics of heartbeats; -1 is the cluster's default.replication.factor (MirrorMaker 2: 3).",
    )
    emit_evidence: bool = _setting(
        "emit.evidence.enabled",
        False,
        boolean,
        "Whether digests of what was copied are written to the target, with which kaudit finds the log that changed.",
    )
    emit_evidence_interval: int = _setting(
        "emit.evidence.interval.seconds",
        60,
        number(1),
        "How often they are written: a kill loses those since the last time.",
    )
    emit_latency: bool = _setting(
        "emit.latency.enabled",
        False,
        boolean,
        "Whether the target gets how long the copies took, per topic, for kaudit latency.",
    )
    emit_latency_interval: int = _setting(
        "emit.latency.interval.seconds",
        60,
        number(1),
        "How often these latencies are written: a kill loses those since the last time.",
    )
    alarm_no_progress: int = _setting(
        "alarm.no.progress.seconds",
        60,
        number(0),
        "Seconds without progress of a partition, with lag or without answers, to an alarm; 0: no alarm.",
    )
    alarm_lag: int = _setting(
        "alarm.lag.records",
        0,
        number(0),
        "Records of lag of a partition to an alarm, and the default of status --max-lag; 0: no alarm.",
    )
    buffer_memory: int = _setting(
        "buffer.memory",
        64 << 20,
        number(1 << 20),
        "Bytes of fetched records that the target has not acknowledged.",
    )
    fetch_max_bytes: int = _setting(
        "fetch.max.bytes", 16 << 20, number(1, INT_MAX), "Bytes of one fetch.", "consumer"
    )
    max_partition_fetch_bytes: int = _setting(
        "max.partition.fetch.bytes",
        4 << 20,
        number(1, INT_MAX),
        "Bytes of one partition in a fetch.",
        "consumer",
    )
    fetch_max_rate: int = _setting(
        "fetch.max.bytes.per.second",
        0,
        number(0),
        "Bytes of records that this direction fetches per second, on average; 0: no limit.",
        "consumer",
    )
    fetch_max_wait_ms: int = _setting(
        "fetch.max.wait.ms",
        500,
        number(0, INT_MAX),
        "How long a fetch waits for records.",
        "consumer",
    )
    transaction_timeout_ms: int = _setting(
        "transaction.timeout.ms",
        60_000,
        number(1000, INT_MAX),
        "With target.offsets=renumber: milliseconds after which the target aborts a transaction.",
        "producer",
    )
    transaction_max_bytes: int = _setting(
        "transaction.max.bytes",
        16 << 20,
        number(1),
        "With target.offsets=renumber: bytes of records after which no more are added to a transaction.",
        "producer",
    )
    linger_ms: int = _setting(
        "linger.ms",
        100,
        number(0),
        "With target.offsets=renumber: how long records are collected before a transaction begins.",
        "producer",
    )
    max_request_size: int = _setting(
        "max.request.size", 8 << 20, number(1, INT_MAX), "Bytes of one append request.", "producer"
    )
    max_in_flight: int = _setting(
        "max.in.flight.requests.per.connection",
        4,
        number(1, INT_MAX),
        "Unanswered append requests per broker.",
        "producer",
    )
    request_timeout_ms: int = _setting(
        "request.timeout.ms",
        30_000,
        number(1, INT_MAX),
        "Milliseconds after which an unanswered append counts as failed.",
        "producer",
    )

    @property
    def comparison_interval(self) -> int:
        """Seconds between two comparisons of the topics: configs and ACLs are compared with them, each when it is due.

        Marks are configs: so the interval of configs holds without ``sync.topic.configs.enabled``, too.
        """
        acls = () if self.sync_acls == "false" else (self.sync_acls_interval,)
        return min(self.refresh_interval, self.sync_configs_interval, *acls)

    @property
    def renumbers(self) -> bool:
        """Whether the target assigns offsets."""
        return self.target_offsets == "renumber"

    @property
    def is_transactional(self) -> bool:
        """Whether records are copied in transactions of the target."""
        return self.renumbers and self.exactly_once == "enabled"

    @property
    def guarantee(self) -> str:
        """What holds for the records at the target, for operators."""
        if not self.renumbers:
            return "exactly once, at the same offsets"
        if self.is_transactional:
            return (
                "exactly once for consumers with isolation.level=read_committed, at other offsets"
            )
        return "at least once, at other offsets: an error or a kill can repeat records"


NOT_APPLICABLE = frozenset(
    [
        "config.storage.replication.factor",
        "consumer.poll.timeout.ms",
        "dedicated.mode.enable.internal.rest",
        "emit.offset-syncs.enabled",
        "group.filter.class",
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
"""Settings of MirrorMaker 2 without meaning here: offsets stay the same, and Connect does not run."""


DEPRECATED = {
    "topics.exclude": "topics.blacklist",
    "groups.exclude": "groups.blacklist",
    "config.properties.exclude": "config.properties.blacklist",
}
"""Names of MirrorMaker 2 before KIP-629, by the present one, which wins."""


def link_settings() -> dict[str, Any]:
    """Return the dataclass field of every link setting, by its dotted name."""
    return {f.metadata["name"]: f for f in fields(LinkSettings)}


def refused_with_renumber(settings: LinkSettings) -> list[tuple[str, str]]:
    """Return the enabled settings that cannot be with target.offsets=renumber, with the reason."""
    if not settings.enabled or not settings.renumbers:
        return []
    marks = "the target's topics do not state which source topic they are a mirror of"
    headers = "the headers of the target's batches are other ones than those of the source"
    used = [
        ("topic.deletion.policy=delete", settings.topic_deletion_policy == "delete", marks),
        ("emit.evidence.enabled=true", settings.emit_evidence, headers),
        (f"gap.policy={_NEW_LINEAGE}", settings.gap_policy == _NEW_LINEAGE, marks),
    ]
    return [(name, reason) for name, is_used, reason in used if is_used]


def contradictions(settings: LinkSettings) -> list[str]:
    """Return which enabled settings cannot be together, with the reason."""
    both = settings.gap_policy == _NEW_LINEAGE and settings.topic_deletion_policy == "delete"
    if not settings.enabled or not both:
        return []
    return [
        f"gap.policy={_NEW_LINEAGE}: cannot be with topic.deletion.policy=delete, which deletes the earlier copy"
    ]
