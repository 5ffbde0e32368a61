"""Leader epochs: at which offset each leader of the partition began to write (KIP-101, KIP-279).

The list shows which leader wrote which offsets, and so where the logs of two replicas diverge. A follower asks the
leader for the end of its own last epoch and truncates what lies behind.

The file ``leader-epoch-checkpoint`` is written when the log is flushed or closed, before the recovery point moves
(KAFKA-16541). Entries that a crash loses lie above the recovery point, where recovery reads them from the batches
again. What comes and goes between two flushes costs no write: a leader of an idle partition that follows again changes
nothing.

Invariants:
1. Epochs and start offsets grow strictly from entry to entry.
2. No entry starts at or behind the log end offset, except the one of a leader that has not written.

Owner: the thread that owns the log. Pure: the file's content goes in and out as bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from kclient.wire.errors import CorruptMessage

FILE_NAME: Final = "leader-epoch-checkpoint"
UNKNOWN_EPOCH: Final = -1
UNKNOWN_OFFSET: Final = -1


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of the first record it wrote."""

    epoch: int
    start_offset: int


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch


def _start(entry: EpochEntry) -> int:
    return entry.start_offset


class LeaderEpochCache:
    """The leader epochs of one log."""

    __slots__ = ("_entries", "_in_file", "latest")

    def __init__(self, entries: tuple[EpochEntry, ...] = ()) -> None:
        self._entries = list(entries)
        self._in_file = list(entries)
        self.latest = self._entries[-1].epoch if self._entries else UNKNOWN_EPOCH
        """The newest epoch, or -1."""

    @property
    def dirty(self) -> bool:
        """Whether the file differs."""
        return self._entries != self._in_file

    def saved(self) -> None:
        """Handle a write of the present entries to the file."""
        self._in_file = list(self._entries)

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that *epoch* writes from *start_offset* on; the latest epoch is not moved onwards.

        Entries that contradict go, as in Kafka. A later epoch, or one that starts there or behind, never wrote a record
        that is still in the log.
        """
        if epoch < 0:
            return
        entries = self._entries
        if entries and epoch == self.latest and start_offset >= entries[-1].start_offset:
            return
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        self.latest = epoch

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote *offset*, or -1 when that is older than every entry."""
        at = bisect_right(self._entries, offset, key=_start)
        return self._entries[at - 1].epoch if at else UNKNOWN_EPOCH

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Answer OffsetForLeaderEpoch: the largest epoch <= *epoch*, and the offset it ends at.

        (-1, -1) when *epoch* is newer than any here or there is none; an epoch older than all
        ends where the oldest starts (KIP-279).
        """
        if epoch < 0 or not self._entries or epoch > self.latest:
            return UNKNOWN_EPOCH, UNKNOWN_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        at = bisect_right(self._entries, epoch, key=_epoch)
        if at == 0:
            return epoch, self._entries[0].start_offset
        return self._entries[at - 1].epoch, self._entries[at].start_offset

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or behind *end_offset*: the log was cut off there."""
        while self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()
        self.latest = self._entries[-1].epoch if self._entries else UNKNOWN_EPOCH

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that have records before *start_offset* only.

        The epoch that wrote *start_offset* stays and starts there.
        """
        at = bisect_right(self._entries, start_offset, key=_start) - 1
        if at < 0 or (at == 0 and self._entries[0].start_offset == start_offset):
            return
        self._entries[: at + 1] = [EpochEntry(self._entries[at].epoch, start_offset)]

    def take_over(self, entries: Iterable[EpochEntry]) -> None:
        """Have *entries* instead: those of another log with the same records."""
        self._entries = list(entries)
        self.latest = self._entries[-1].epoch if self._entries else UNKNOWN_EPOCH

    def clear(self) -> None:
        """Remove every entry."""
        self._entries.clear()
        self.latest = UNKNOWN_EPOCH

    def encode(self) -> bytes:
        """Return the content of the checkpoint file."""
        lines = ["0", str(len(self._entries))]
        lines += [f"{entry.epoch} {entry.start_offset}" for entry in self._entries]
        return ("\n".join(lines) + "\n").encode("ascii")


def decode(content: bytes) -> LeaderEpochCache:
    """Read the content of a checkpoint file; raise CorruptMessage when it makes no sense."""
    try:
        version, count, *lines = content.decode("ascii").split("\n")
        if int(version) != 0:
            raise CorruptMessage(f"version {version} of {FILE_NAME} is not known")
        rows = [line.split() for line in lines if line.strip()]
        entries = tuple(EpochEntry(int(epoch), int(start)) for epoch, start in rows)
        expected = int(count)
    except (ValueError, UnicodeDecodeError) as error:
        raise CorruptMessage(f"{FILE_NAME} cannot be read: {error}") from error
    if expected != len(entries):
        raise CorruptMessage(f"{FILE_NAME} announces {expected} entries and holds {len(entries)}")
    for earlier, later in pairwise(entries):
        if later.epoch <= earlier.epoch or later.start_offset <= earlier.start_offset:
            raise CorruptMessage(f"{FILE_NAME}: {later} does not follow {earlier}")
    if entries and (entries[0].epoch < 0 or entries[0].start_offset < 0):
        raise CorruptMessage(f"{FILE_NAME}: {entries[0]} is negative")
    return LeaderEpochCache(entries)
