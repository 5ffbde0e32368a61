"""The move of a log to another log directory (KIP-113): the next step, how far a copy is valid, what a start completes.

docs/design/alter-log-dirs.md has the steps, and a table of what a start finds after a crash in each of them. All
functions are pure.

Invariants:
1. A copy replaces the current log only with the same log start and end, and with a recovery point that is not below.
2. A start completes a replacement only on evidence: the name of the former log, or the number of moves.
3. A start never names a log for deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from kbroker.common.topic_partition import TopicPartition
from kbroker.log.core import directory_names
from kbroker.log.core.leader_epoch_cache import UNKNOWN_EPOCH, EpochEntry
from kbroker.log.core.partition_metadata_file import PartitionMetadata

LAST_BYTES: Final = 1 << 20
"""The most that the owner's thread copies, or syncs, in the turn of the replacement."""


class Step(Enum):
    """What a move does next."""

    OPEN = "open the copy, after a restart"
    TRUNCATE = "cut the copy"
    START_AGAIN = "empty the copy"
    COPY = "copy batches"
    PREPARE = "sync the copy and write its checkpoints"
    REPLACE = "put the copy in the place of the current log"
    WAIT = "nothing, for now"


class CurrentLog(NamedTuple):
    """The log that is in use."""

    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    may_be_replaced: bool
    """It lacks nothing that it once held, and an earlier move of it is on the disk."""


class FutureLog(NamedTuple):
    """The copy."""

    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    valid_below: int
    """At and above that offset it may have batches that were cut off the current log."""
    unsynced_bytes: int
    """Bytes that were copied since its last sync."""
    prepared_start: int | None
    """The log start offset in the checkpoints of its directory; None: they have no entries that may be used."""


def next_step(current: CurrentLog, copy: FutureLog | None, is_near: Callable[[], bool]) -> Step:
    """Return the next step of a move; *copy* is None while it is not open.

    *is_near*: less than `LAST_BYTES` are left to copy. It is called only where the end of the copy is within the
    current log.
    """
    if copy is None:
        return Step.OPEN
    if copy.log_end_offset > min(copy.valid_below, current.log_end_offset):
        return Step.TRUNCATE
    if (
        copy.log_end_offset < current.log_start_offset
        or copy.log_start_offset > current.log_start_offset
    ):
        return Step.START_AGAIN
    is_empty = copy.log_start_offset == copy.log_end_offset < current.log_end_offset
    # An empty copy may have to begin below: the first batch comes whole. That must not be after its checkpoints.
    if is_empty or not is_near():
        return Step.COPY
    is_behind = copy.recovery_point < current.recovery_point
    if copy.prepared_start != current.log_start_offset or (
        is_behind and copy.unsynced_bytes > LAST_BYTES
    ):
        return Step.PREPARE
    if current.may_be_replaced:
        return Step.REPLACE
    return Step.COPY if copy.log_end_offset < current.log_end_offset else Step.WAIT


def common_end(
    ours: Sequence[EpochEntry], our_end: int, theirs: Sequence[EpochEntry], their_end: int
) -> int:
    """Return the offset up to which two logs of a partition have records of the same leader epochs (KIP-101).

    Entries are those of a `LeaderEpochCache`. Records older than all entries agree.
    """
    end = min(our_end, their_end)
    boundaries = sorted({entry.start_offset for entry in (*ours, *theirs)})
    for offset in boundaries:
        if offset >= end:
            break
        if _epoch_at(ours, offset) != _epoch_at(theirs, offset):
            return offset
    return end


def _epoch_at(entries: Sequence[EpochEntry], offset: int) -> int:
    epochs = [entry.epoch for entry in entries if entry.start_offset <= offset]
    return epochs[-1] if epochs else UNKNOWN_EPOCH


# What a start finds


class HalfReplaced(NamedTuple):
    """A future log that is to get the name of the log that it replaced."""

    path: str
    """Of its log directory."""
    name: str
    partition: TopicPartition


def half_replaced(names: Mapping[str, Iterable[str]]) -> list[HalfReplaced]:
    """Return the future logs with a current log that was renamed already; *names* are those in each log directory."""
    current: set[TopicPartition] = set()
    futures: list[tuple[HalfReplaced, str]] = []
    replaced: dict[tuple[TopicPartition, str], set[str]] = {}
    for path, inside in names.items():
        for name in sorted(inside):
            partition = directory_names.parse_directory(name)
            if partition is not None:
                current.add(partition)
                continue
            parsed = directory_names.parse_moved(name)
            if parsed is None:
                continue
            if parsed.is_future:
                futures.append((HalfReplaced(path, name, parsed.partition), parsed.unique))
            else:
                replaced.setdefault((parsed.partition, parsed.unique), set()).add(path)
    return [
        each
        for each, unique in futures
        if each.partition not in current
        and replaced.get((each.partition, unique), set()) - {each.path}
    ]


class FoundTwice(NamedTuple):
    """A log of a partition that has another one in another directory."""

    metadata: PartitionMetadata
    directory_id: str | None
    """Of the log directory that it lies in."""


def newest(partition: TopicPartition, found: Mapping[str, FoundTwice]) -> str | None:
    """Return the directory of the log that replaced the others of *partition*; None where nothing shows that."""
    path = max(found, key=lambda each: found[each].metadata.moves)
    winner, directory_id = found[path]
    if winner.topic_id is None or winner.directory_id != directory_id or directory_id is None:
        return None
    for other, (metadata, _) in found.items():
        if metadata.topic_id != winner.topic_id or metadata.partition != partition[1]:
            return None
        if other != path and metadata.moves >= winner.moves:
            return None
    return path


def is_copy_of(
    partition: TopicPartition, copy: PartitionMetadata, current: PartitionMetadata
) -> bool:
    """Return whether a future log of *partition* may become the current one's copy again."""
    return (
        current.topic_id is not None
        and copy.topic_id == current.topic_id
        and copy.partition in (None, partition[1])
        and current.partition in (None, partition[1])
    )


# The throttle


class CopyRate:
    """Limits the bytes that all moves of a broker copy in a second (replica.alter.log.dirs.io.max.bytes.per.second)."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._available = bytes_per_second
        self._since_ms: int | None = None

    def limit(self, bytes_per_second: float) -> None:
        """Use another rate from now on."""
        self._rate = bytes_per_second
        self._available = min(self._available, bytes_per_second)

    def is_exceeded(self, now_ms: int) -> bool:
        """Return whether nothing may be copied at *now_ms*."""
        since_ms = now_ms if self._since_ms is None else self._since_ms
        self._since_ms = now_ms
        passed = max(0, now_ms - since_ms) / 1000  # the wall clock may be set back
        self._available = min(self._rate, self._available + self._rate * passed)
        return self._available <= 0

    def copied(self, size: int) -> None:
        """Handle the copy of *size* bytes. A copy may exceed the rate once; the next ones wait for that."""
        self._available -= size
