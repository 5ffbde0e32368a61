"""A broker's whole configuration: server.properties and overrides, checked together, every problem listed at once.

Kafka's names and defaults. What is not known is a warning with the nearest name, so that a file written for Kafka
starts a broker here. What is known and cannot be honoured safely (an authorizer, KRaft) is a problem. No operator is to
rely on a protection that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from kbroker.config import properties
from kbroker.config.broker_settings import BrokerSettings
from kbroker.config.checks import check_listeners, check_numbers, check_together
from kbroker.config.log import LogConfig
from kbroker.config.setting import (
    ConfigError,
    Setting,
    attribute,
    parse_all,
    settings_of,
    show_value,
)
from kbroker.config.unsupported import classify, honoured

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class KafkaConfig(BrokerSettings):
    """Settings that passed all checks: `config.log_segment_bytes` is log.segment.bytes."""

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> KafkaConfig:
        """Read server.properties at *path*, then `key=value` *overrides*; ConfigError lists all problems."""
        found = properties.read(Path(path))
        if found.problems and not found.values:
            raise ConfigError(found.problems)  # That settings are missing is no other problem.
        given = dict(found.values)
        problems = list(found.problems)
        for override in overrides:
            key, equals, value = override.partition("=")
            if not equals or not key.strip():
                problems.append(f"--override {override!r}: is not key=value")
                continue
            given[key.strip()] = value
        return cls._build(given, problems, list(found.warnings))

    @classmethod
    def of(cls, given: Mapping[str, str]) -> KafkaConfig:
        """Build a configuration from keys and values as text; ConfigError lists all problems."""
        return cls._build(dict(given), [], [])

    @classmethod
    def _build(cls, given: dict[str, str], problems: list[str], warnings: list[str]) -> KafkaConfig:
        values, wrong = parse_all(BROKER_SETTINGS, given)
        problems += wrong
        more_warnings, refusals = classify(given, BROKER_SETTINGS)
        warnings += more_warnings
        problems += refusals
        config = cls(**values, given=given, warnings=tuple(warnings))  # type: ignore[arg-type]
        problems += check_together(config)
        if problems:
            raise ConfigError(problems)
        return config

    # -- derived -----------------------------------------------------------------------------

    @cached_property
    def log_defaults(self) -> LogConfig:
        """What a topic without settings of its own has."""
        return LogConfig(
            cleanup_policy=self.log_cleanup_policy,
            compression_type=self.compression_type,
            compression_gzip_level=self.compression_gzip_level,
            compression_lz4_level=self.compression_lz4_level,
            compression_zstd_level=self.compression_zstd_level,
            delete_retention_ms=self.log_cleaner_delete_retention_ms,
            file_delete_delay_ms=self.log_segment_delete_delay_ms,
            flush_messages=self.log_flush_interval_messages,
            flush_ms=first(self.log_flush_interval_ms, self.log_flush_scheduler_interval_ms),
            index_interval_bytes=self.log_index_interval_bytes,
            max_compaction_lag_ms=self.log_cleaner_max_compaction_lag_ms,
            max_message_bytes=self.message_max_bytes,
            message_downconversion_enable=self.log_message_downconversion_enable,
            message_format_version=self.log_message_format_version,
            message_timestamp_after_max_ms=self.log_message_timestamp_after_max_ms,
            message_timestamp_before_max_ms=self.log_message_timestamp_before_max_ms,
            message_timestamp_difference_max_ms=self.log_message_timestamp_difference_max_ms,
            message_timestamp_type=self.log_message_timestamp_type,
            min_cleanable_dirty_ratio=self.log_cleaner_min_cleanable_ratio,
            min_compaction_lag_ms=self.log_cleaner_min_compaction_lag_ms,
            min_insync_replicas=self.min_insync_replicas,
            preallocate=self.log_preallocate,
            retention_bytes=self.log_retention_bytes,
            retention_ms=self._retention_ms(),
            segment_bytes=self.log_segment_bytes,
            segment_index_bytes=self.log_index_size_max_bytes,
            segment_jitter_ms=(
                self.log_roll_jitter_ms
                if self.log_roll_jitter_ms >= 0
                else self.log_roll_jitter_hours * HOUR_MS
            ),
            segment_ms=self.log_roll_ms if self.log_roll_ms > 0 else self.log_roll_hours * HOUR_MS,
            unclean_leader_election_enable=self.unclean_leader_election_enable,
        )

    def _retention_ms(self) -> int:
        minutes = self.log_retention_minutes
        chosen = first(
            self.log_retention_ms,
            None if minutes is None else minutes * MINUTE_MS,
            self.log_retention_hours * HOUR_MS,
        )
        return chosen if chosen >= 0 else -1

    def with_values(self, given: Mapping[str, str]) -> KafkaConfig:
        """Return this configuration with more settings, the dynamic ones of `/config/brokers`; ConfigError.

        What cannot change is not checked again: a log directory that fails must not undo the dynamic settings.
        """
        together = {**self.given, **given}
        values, problems = parse_all(BROKER_SETTINGS, together)
        config = type(self)(
            **values,  # type: ignore[arg-type]
            given=together,
            warnings=self.warnings,
            between_brokers=self.inter_broker_listener,
        )
        problems += check_listeners(config) + check_numbers(config)
        if problems:
            raise ConfigError(problems)
        return config

    @property
    def honoured(self) -> list[str]:
        """The names of the given settings that have an effect, in their order."""
        return honoured(self.given, BROKER_SETTINGS)

    def shown(self, name: str) -> str | None:
        """Return the value of setting *name* as text; None when it is unset or secret."""
        setting = BROKER_SETTINGS[name]
        return None if setting.sensitive else show_value(getattr(self, attribute(name)))


def first(*values: int | None) -> int:
    """Return the first value that is set; the last one always is."""
    return next(value for value in values if value is not None)


BROKER_SETTINGS: Final[dict[str, Setting]] = settings_of(KafkaConfig)
"""Every broker-level setting that has a meaning here, by Kafka's name."""
