"""The log lines about rounds of compaction: what each round gained, and what is set aside.

Owner: the reactor's thread
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from kbroker.common.topic_partition import TopicPartition
from kbroker.log.cleaning_round import CleaningRound
from kclient.wire.errors import KafkaError

log = Logger(namespace="kbroker.cleaner")

_MIB: Final = 1 << 20


class CompactionLogLines:
    """Logs how rounds end (`RoundListener`)."""

    def cleaned(self, key: TopicPartition, cleaning: CleaningRound, seconds: float) -> None:
        """Log what a round gained."""
        log.info(
            "compacted {topic}-{partition} up to offset {offset}: {before:.2f} MiB to {after:.2f} MiB in {s:.1f} s",
            topic=key[0],
            partition=key[1],
            offset=cleaning.clean_below,
            before=cleaning.bytes_before / _MIB,
            after=cleaning.bytes_after / _MIB,
            s=seconds,
        )

    def round_failed(self, key: TopicPartition, why: KafkaError) -> None:
        """Log that a round is repeated."""
        log.warn(
            "the compaction of {topic}-{partition} ended early and begins again after log.cleaner.backoff.ms: {why}",
            topic=key[0],
            partition=key[1],
            why=why.message,
        )

    def set_aside(self, key: TopicPartition, why: KafkaError) -> None:
        """Log that a partition is not compacted any more."""
        log.error(
            "{topic}-{partition} is served, but not compacted until this broker restarts: {why}",
            topic=key[0],
            partition=key[1],
            why=why.message,
        )
