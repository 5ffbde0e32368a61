"""Settings of the log directories, and the broker-wide defaults of every topic's log."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.config.log import CODECS, DAY_MS, LZ4_FAST, POLICIES, TIMESTAMP_TYPES
from kbroker.config.setting import (
    LONG_MAX,
    ConfigType,
    at_least,
    between,
    define,
    each_of,
    one_of,
    one_or_between,
)

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
LONG, DOUBLE, LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """Directories, sweeps and defaults of topics. Kafka's null is -1 here: the next synonym counts."""

    log_dir: str = define(STRING, "/tmp/kafka-logs", "Log directory, where log.dirs is not set.")
    log_dirs: tuple[str, ...] = define(LIST, (), "Log directories, comma separated.")
    num_recovery_threads_per_data_dir: int = define(
        INT,
        2,
        "Threads that recover the logs of one directory at start (Kafka: 1). A change counts from the next start.",
        at_least(1),
        dynamic=True,
    )
    log_dir_failure_timeout_ms: int = define(
        LONG, 30_000, "Accepted, no effect: a failed directory is reported at once.", at_least(1)
    )
    log_retention_check_interval_ms: int = define(
        LONG, 300_000, "How often old segments are looked for.", at_least(1)
    )
    log_flush_scheduler_interval_ms: int = define(
        LONG, LONG_MAX, "How often logs are looked at for flush.ms."
    )
    log_flush_offset_checkpoint_interval_ms: int = define(
        INT, 60_000, "Longest time between two writes of the recovery points.", at_least(0)
    )
    log_flush_start_offset_checkpoint_interval_ms: int = define(
        INT,
        60_000,
        "Longest time between two writes of the log start offsets.",
        at_least(0),
    )
    log_segment_bytes: int = define(
        INT, 1024**3, "Default of segment.bytes.", at_least(14), dynamic=True
    )
    log_roll_ms: int = define(LONG, -1, "Default of segment.ms; -1: log.roll.hours.", dynamic=True)
    log_roll_hours: int = define(INT, 168, "Default of segment.ms, in hours.", at_least(1))
    log_roll_jitter_ms: int = define(
        LONG, -1, "Default of segment.jitter.ms; -1: log.roll.jitter.hours.", dynamic=True
    )
    log_roll_jitter_hours: int = define(
        INT, 0, "Default of segment.jitter.ms, in hours.", at_least(0)
    )
    log_retention_ms: int | None = define(
        LONG, None, "Default of retention.ms; -1: keep for ever.", at_least(-1), dynamic=True
    )
    log_retention_minutes: int | None = define(
        INT, None, "Default of retention.ms in minutes, where log.retention.ms is not set."
    )
    log_retention_hours: int = define(
        INT, 168, "Default of retention.ms in hours, where neither of those is set."
    )
    log_retention_bytes: int = define(LONG, -1, "Default of retention.bytes.", dynamic=True)
    log_cleanup_policy: tuple[str, ...] = define(
        LIST, ("delete",), "Default of cleanup.policy.", each_of(*POLICIES), dynamic=True
    )
    log_index_size_max_bytes: int = define(
        INT, 10 * 1024 * 1024, "Default of segment.index.bytes.", at_least(4), dynamic=True
    )
    log_index_interval_bytes: int = define(
        INT, 4096, "Default of index.interval.bytes.", at_least(0), dynamic=True
    )
    log_flush_interval_messages: int = define(
        LONG, LONG_MAX, "Default of flush.messages.", at_least(1), dynamic=True
    )
    log_flush_interval_ms: int | None = define(
        LONG, None, "Default of flush.ms.", at_least(0), dynamic=True
    )
    log_segment_delete_delay_ms: int = define(
        LONG, 60_000, "Default of file.delete.delay.ms.", at_least(0), dynamic=True
    )
    log_preallocate: bool = define(BOOLEAN, False, "Default of preallocate.", dynamic=True)
    log_message_timestamp_type: str = define(
        STRING,
        "CreateTime",
        "Default of message.timestamp.type.",
        one_of(*TIMESTAMP_TYPES),
        dynamic=True,
    )
    log_message_timestamp_difference_max_ms: int = define(
        LONG,
        LONG_MAX,
        "Default of message.timestamp.difference.max.ms.",
        at_least(0),
        dynamic=True,
    )
    log_message_timestamp_before_max_ms: int = define(
        LONG, LONG_MAX, "Default of message.timestamp.before.max.ms.", at_least(0), dynamic=True
    )
    log_message_timestamp_after_max_ms: int = define(
        LONG, LONG_MAX, "Default of message.timestamp.after.max.ms.", at_least(0), dynamic=True
    )
    log_message_downconversion_enable: bool = define(
        BOOLEAN, True, "Accepted, no effect: message format v2 is served as it is.", dynamic=True
    )
    log_message_format_version: str = define(
        STRING, "3.0-IV1", "Accepted, no effect: the log holds message format v2."
    )
    message_max_bytes: int = define(
        INT, 1024 * 1024 + 12, "Default of max.message.bytes.", at_least(0), dynamic=True
    )
    compression_type: str = define(
        STRING,
        "producer",
        "Default of compression.type.",
        one_of(*CODECS),
        dynamic=True,
    )
    compression_gzip_level: int = define(
        INT, -1, "Default of compression.gzip.level.", one_or_between(-1, 1, 9), dynamic=True
    )
    compression_lz4_level: int = define(
        INT, LZ4_FAST, "Default of compression.lz4.level.", between(1, 17), dynamic=True
    )
    compression_zstd_level: int = define(
        INT, 3, "Default of compression.zstd.level.", between(-131_072, 22), dynamic=True
    )
    log_cleaner_delete_retention_ms: int = define(
        LONG, DAY_MS, "Default of delete.retention.ms.", at_least(0), dynamic=True
    )
    log_cleaner_min_compaction_lag_ms: int = define(
        LONG, 0, "Default of min.compaction.lag.ms.", at_least(0), dynamic=True
    )
    log_cleaner_max_compaction_lag_ms: int = define(
        LONG, LONG_MAX, "Default of max.compaction.lag.ms.", at_least(1), dynamic=True
    )
    log_cleaner_min_cleanable_ratio: float = define(
        DOUBLE, 0.5, "Default of min.cleanable.dirty.ratio.", between(0, 1), dynamic=True
    )
