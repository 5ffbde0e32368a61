"""Settings of a topic's log: topic-level names, and the broker-level names they default to.

A topic's value is: its own (`/config/topics/T`), else the broker-level synonym (`retention.ms` <- `log.retention.ms`,
`.minutes`, `.hours`), else Kafka's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from kbroker.config.setting import (
    INT_MAX,
    LONG_MAX,
    ConfigError,
    ConfigType,
    Setting,
    Value,
    at_least,
    between,
    define,
    each_of,
    one_of,
    one_or_between,
    parse_all,
    settings_of,
    throttled_replicas,
)

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
LONG, DOUBLE, LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST

WEEK_MS = 7 * 24 * 3600 * 1000
DAY_MS = 24 * 3600 * 1000
LZ4_FAST = 9
"""compression.lz4.level, the default: the fast compressor, as in Kafka. All others are levels of LZ4 HC."""
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
POLICIES = ("compact", "delete")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Every setting of one topic, resolved. Sizes in bytes, times in milliseconds."""

    cleanup_policy: tuple[str, ...] = define(
        LIST,
        ("delete",),
        "What happens to old segments: delete, compact or both.",
        each_of(*POLICIES),
        synonyms=("log.cleanup.policy",),
    )
    compression_type: str = define(
        STRING,
        "producer",
        "Codec of the log: batches with another one are compressed again; producer: kept as they are.",
        one_of(*CODECS),
        synonyms=("compression.type",),
    )
    compression_gzip_level: int = define(
        INT,
        -1,
        "Level of compression.type=gzip: 1 (fastest) to 9; -1: 6.",
        one_or_between(-1, 1, 9),
        synonyms=("compression.gzip.level",),
    )
    compression_lz4_level: int = define(
        INT,
        LZ4_FAST,
        "Level of compression.type=lz4: 1 to 17; 9 is the fast compressor, as in Kafka.",
        between(1, 17),
        synonyms=("compression.lz4.level",),
    )
    compression_zstd_level: int = define(
        INT,
        3,
        "Level of compression.type=zstd: -131072 (fastest) to 22.",
        between(-131_072, 22),
        synonyms=("compression.zstd.level",),
    )
    delete_retention_ms: int = define(
        LONG,
        DAY_MS,
        "How long a compacted topic keeps a tombstone after the first round that meets it (KIP-534).",
        at_least(0),
        synonyms=("log.cleaner.delete.retention.ms",),
    )
    file_delete_delay_ms: int = define(
        LONG,
        60_000,
        "Wait between dropping a segment from the log and unlinking its files.",
        at_least(0),
        synonyms=("log.segment.delete.delay.ms",),
    )
    flush_messages: int = define(
        LONG,
        LONG_MAX,
        "Records appended before a forced fsync.",
        at_least(1),
        synonyms=("log.flush.interval.messages",),
    )
    flush_ms: int = define(
        LONG,
        LONG_MAX,
        "Longest time a record stays unflushed.",
        at_least(0),
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    index_interval_bytes: int = define(
        INT,
        4096,
        "Bytes of log between two entries of the offset index.",
        at_least(0),
        synonyms=("log.index.interval.bytes",),
    )
    max_compaction_lag_ms: int = define(
        LONG,
        LONG_MAX,
        "Age of a record from which its log is compacted whatever its dirty ratio is (KIP-354).",
        at_least(1),
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    )
    max_message_bytes: int = define(
        INT,
        1024 * 1024 + 12,
        "Largest batch accepted, as sent (compressed).",
        at_least(0),
        synonyms=("message.max.bytes",),
    )
    message_downconversion_enable: bool = define(
        BOOLEAN,
        True,
        "Accepted, no effect: message format v2 is served as it is.",
        synonyms=("log.message.downconversion.enable",),
    )
    message_format_version: str = define(
        STRING,
        "3.0-IV1",
        "Accepted, no effect: the log holds message format v2.",
        synonyms=("log.message.format.version",),
    )
    message_timestamp_after_max_ms: int = define(
        LONG,
        LONG_MAX,
        "How far ahead of the broker's clock a record's CreateTime may be.",
        at_least(0),
        synonyms=("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms: int = define(
        LONG,
        LONG_MAX,
        "How far behind the broker's clock a record's CreateTime may be.",
        at_least(0),
        synonyms=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_difference_max_ms: int = define(
        LONG,
        LONG_MAX,
        "Deprecated (KIP-937): the default of message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
        at_least(0),
        synonyms=("log.message.timestamp.difference.max.ms",),
    )
    message_timestamp_type: str = define(
        STRING,
        "CreateTime",
        "The clock that stamps records: the producer's (CreateTime) or the broker's.",
        one_of(*TIMESTAMP_TYPES),
        synonyms=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio: float = define(
        DOUBLE,
        0.5,
        "Share of dirty bytes above which a log is compacted.",
        between(0, 1),
        synonyms=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms: int = define(
        LONG,
        0,
        "Age below which a record is not compacted.",
        at_least(0),
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    )
    min_insync_replicas: int = define(
        INT,
        1,
        "In-sync replicas without which acks=all is refused.",
        at_least(1),
        synonyms=("min.insync.replicas",),
    )
    preallocate: bool = define(
        BOOLEAN,
        False,
        "Reserve the disk space of a whole segment at its first append (Linux).",
        synonyms=("log.preallocate",),
    )
    remote_storage_enable: bool = define(
        BOOLEAN,
        False,
        "Refused if true: tiered storage is not supported.",
        lambda value: "asks for tiered storage, which is not supported" if value else None,
    )
    remote_log_copy_disable: bool = define(
        BOOLEAN, False, "Accepted, no effect: tiered storage is not supported."
    )
    remote_log_delete_on_disable: bool = define(
        BOOLEAN, False, "Accepted, no effect: tiered storage is not supported."
    )
    local_retention_bytes: int = define(
        LONG, -2, "Accepted, no effect: tiered storage is not supported.", at_least(-2)
    )
    local_retention_ms: int = define(
        LONG, -2, "Accepted, no effect: tiered storage is not supported.", at_least(-2)
    )
    retention_bytes: int = define(
        LONG,
        -1,
        "Size beyond which a partition drops its oldest segments; -1: no bound.",
        synonyms=("log.retention.bytes",),
    )
    retention_ms: int = define(
        LONG,
        WEEK_MS,
        "Age beyond which segments are dropped; -1: never.",
        at_least(-1),
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    )
    segment_bytes: int = define(
        INT,
        1024**3,
        "Size at which a segment is rolled.",
        at_least(14),
        synonyms=("log.segment.bytes",),
    )
    segment_index_bytes: int = define(
        INT,
        10 * 1024 * 1024,
        "Size of an offset index that forces a roll.",
        at_least(4),
        synonyms=("log.index.size.max.bytes",),
    )
    segment_jitter_ms: int = define(
        LONG,
        0,
        "Largest amount taken off segment.ms, another one for each segment: it spreads rolls.",
        at_least(0),
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    )
    segment_ms: int = define(
        LONG,
        WEEK_MS,
        "Age at which a segment is rolled even if it is small.",
        at_least(1),
        synonyms=("log.roll.ms", "log.roll.hours"),
    )
    unclean_leader_election_enable: bool = define(
        BOOLEAN,
        False,
        "Elect a replica out of the ISR when none in it is alive: loses records.",
        synonyms=("unclean.leader.election.enable",),
    )
    leader_replication_throttled_replicas: tuple[str, ...] = define(
        LIST,
        (),
        "Replicas with throttled followers: PARTITION:LEADER'S BROKER, or * (KIP-73).",
        throttled_replicas,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = define(
        LIST,
        (),
        "Replicas throttled as followers: PARTITION:BROKER, or * (KIP-73).",
        throttled_replicas,
    )

    kbroker_mirror_source_cluster_id: str = define(
        STRING,
        "",
        "Marks a mirror: id of the source cluster, set by kmirror. Only kmirror may append to a marked topic.",
    )

    kbroker_mirror_source_path: str = define(
        STRING,
        "",
        "Ids of the clusters that records of a mirror came through before the source. Brokers do not use it.",
    )
    kbroker_mirror_source_topic_id: str = define(
        STRING,
        "",
        "Topic id at the source of the records of a mirror, set by kmirror. Records of another one are rejected.",
    )
    kbroker_mirror_promotion: str = define(
        STRING,
        "",
        "What kmirror promote found when it made this mirror writable, as JSON. Brokers do not use it.",
    )

    @property
    def is_promoted_mirror(self) -> bool:
        """Whether the topic was a mirror, and is writable now: kmirror leaves its other settings."""
        return not self.kbroker_mirror_source_cluster_id and bool(
            self.kbroker_mirror_source_topic_id or self.kbroker_mirror_promotion
        )

    @property
    def compacted(self) -> bool:
        """Whether old records are compacted by key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether old segments are deleted by retention."""
        return "delete" in self.cleanup_policy

    @cached_property
    def max_segment_ms(self) -> int:
        """How long a segment is active: a record in the active segment is not compacted."""
        if self.compacted:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @cached_property
    def flushes_appends(self) -> bool:
        """Whether an append may have to be synced before it is acknowledged."""
        return self.flush_messages < LONG_MAX or self.flush_ms < LONG_MAX

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's clock stamps the records."""
        return self.message_timestamp_type == "LogAppendTime"

    @cached_property
    def timestamp_bounds(self) -> tuple[int, int]:
        """How far (ms) a record's CreateTime may be before and after the broker's clock; LONG_MAX is no bound.

        message.timestamp.difference.max.ms replaces each bound that is not set (KIP-937).
        """
        before, after = self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms
        either = self.message_timestamp_difference_max_ms
        return either if before == LONG_MAX else before, either if after == LONG_MAX else after

    def overridden(self, overrides: Mapping[str, str]) -> LogConfig:
        """Return this configuration with a topic's own settings; ConfigError lists what is wrong."""
        values, problems = parse_topic(overrides)
        if problems:
            raise ConfigError(problems)
        return replace(self, **values)  # type: ignore[arg-type]  # checked by their Setting


TOPIC_SETTINGS: Final[dict[str, Setting]] = settings_of(LogConfig)
"""Every topic-level setting, by Kafka's name."""


def parse_topic(overrides: Mapping[str, str]) -> tuple[dict[str, Value], list[str]]:
    """Parse a topic's own settings: (attribute -> value, problems). Unknown names are problems."""
    values, problems = parse_all(TOPIC_SETTINGS, overrides)
    problems += [
        f"{name}: unknown topic setting" for name in overrides if name not in TOPIC_SETTINGS
    ]
    if "cleanup_policy" in values and not values["cleanup_policy"]:
        problems.append("cleanup.policy: must name delete, compact or both")
    low, high = values.get("min_compaction_lag_ms"), values.get("max_compaction_lag_ms")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        problems.append("min.compaction.lag.ms: is above max.compaction.lag.ms")
    return values, problems


__all__ = ["INT_MAX", "LONG_MAX", "TOPIC_SETTINGS", "LogConfig", "parse_topic"]
