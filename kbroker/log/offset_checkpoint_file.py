"""Checkpoint files of a log directory: one offset per partition, in Kafka's text format.

``recovery-point-offset-checkpoint`` has the offset below which everything was synced. ``replication-offset-checkpoint``
has the high watermarks. ``log-start-offset-checkpoint`` has where logs begin that DeleteRecords shortened, in two
copies. ``cleaner-offset-checkpoint`` has where the dirty part of compacted logs begins. Version 0: a line with the
version, a line with the number of entries, then ``topic partition offset`` per line. Pure: bytes in, bytes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kbroker.common.topic_partition import TopicPartition
from kclient.wire.errors import CorruptMessage

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
LOG_START_OFFSETS_COPY: Final = "log-start-offset-checkpoint-copy"
"""The same, written before it: the lower offset of the two counts. Kafka does not know this file."""

CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"


class LogStarts(NamedTuple):
    """Log start offsets of a checkpoint."""

    accepted: dict[TopicPartition, int]
    refused: dict[TopicPartition, int]
    """Entries of the checkpoint that are not accepted."""


def accepted_log_starts(
    checkpoint: Mapping[TopicPartition, int],
    copy: Mapping[TopicPartition, int] | None,
    high_watermarks: Mapping[TopicPartition, int],
) -> LogStarts:
    """Return the log start offsets that are accepted: none above the one in a second file.

    One bad line hides records, and has followers delete theirs. The second file is the *copy*. Where there is none
    (Kafka, or an earlier version, wrote here last) it is the checkpoint of high watermarks, above which no log begins.
    """
    accepted, refused = {}, {}
    for key, offset in checkpoint.items():
        most = high_watermarks.get(key, 0) if copy is None else copy.get(key, 0)
        if offset <= most:
            accepted[key] = offset
            continue
        refused[key] = offset
        if copy is not None and key in copy:
            accepted[key] = most
    return LogStarts(accepted, refused)


class FoundLog(NamedTuple):
    """What the start found of a log, beside the high watermark of its directory's checkpoint."""

    log_end: int
    recovery_point: int
    has_topic_id: bool


def accepted_high_watermarks(
    checkpoint: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, FoundLog],
    *,
    after_power_loss: bool,
    by_kbroker: bool,
) -> dict[TopicPartition, int]:
    """Return the high watermarks that are accepted for the *logs* of one directory.

    - An entry without a log in the directory is of a log that is gone. Another directory may have a later log of that
      partition: the entry does not concern it.
    - A high watermark above the log end is wrong, or the log was cut: it does not show what of the rest is committed.
    - After a power loss a cut that was not synced may be undone. Below the high watermark may then lie what was cut,
      and not the committed records that replaced it. What the recovery point covers is there.
    - Each log that kbroker made (*by_kbroker*) had a topic id. One that lost it may be another partition's:
      directories may have been exchanged since.
    """
    accepted = {}
    for key, log in logs.items():
        mark = checkpoint.get(key)
        if mark is None:
            continue
        if mark > log.log_end or (by_kbroker and not log.has_topic_id):
            mark = 0
        accepted[key] = min(mark, log.recovery_point) if after_power_loss else mark
    return accepted


def encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the content of a checkpoint file."""
    lines = ["0", str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return ("\n".join(lines) + "\n").encode("ascii")


def decode(content: bytes) -> dict[TopicPartition, int]:
    """Read the content of a checkpoint file; raise CorruptMessage when it makes no sense."""
    try:
        version, count, *lines = content.decode("ascii").split("\n")
        if int(version) != 0:
            raise CorruptMessage(f"version {version} is not known")
        rows = [line.split() for line in lines if line.strip()]
        offsets = {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
        expected = int(count)
    except (ValueError, UnicodeDecodeError) as error:
        raise CorruptMessage(f"not a checkpoint: {error}") from error
    if expected != len(offsets) or len(rows) != len(offsets):
        raise CorruptMessage(f"{expected} entries announced, {len(rows)} found")
    for (topic, partition), offset in offsets.items():
        if partition < 0 or offset < 0:
            raise CorruptMessage(f"{topic} {partition} {offset}: neither number may be negative")
    return offsets
