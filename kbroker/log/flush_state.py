"""How much of one log is on disk, and what the next sync has to cover.

Theory of operation
===================
The log reports what it writes: appends, truncations, partition.metadata. `begin` collects what is not synced into a
`FlushWork`, which runs in a pool; `finish` moves the recovery point. Appends that wait for a sync (flush.messages,
flush.ms) are in `PendingFlush`, which exists once such an append was made.

A truncation is not synced either: until the files behind it are, a power loss may bring back what was cut off.

Invariants:
1. Everything below recovery_point was synced before it moved.
2. A work that began before a truncation does not move the recovery point.
3. held_at is that of the pending flush; None without one.

In: what the log wrote, works that ended   Out: `FlushWork`, whether a sync is due   Owner: `UnifiedLog`
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.config.log import LogConfig
from kbroker.log.core.leader_epoch_cache import FILE_NAME
from kbroker.log.core.partition_metadata_file import PARTITION_METADATA
from kbroker.log.disk import Disk
from kbroker.log.flush_work import DirectoryName, FlushWork
from kbroker.log.log_loader import LoadedLog
from kbroker.log.log_segment import LogSegment
from kbroker.log.pending_flush import PendingFlush


class FlushState:
    """The recovery point of the log in *directory*, and everything of it that is not synced."""

    __slots__ = (
        "_cut_at",
        "_directory",
        "_disk",
        "_epochs",
        "_is_confirmed",
        "_is_new",
        "_last_work",
        "_metadata_dirty",
        "_name",
        "_pending",
        "_producers",
        "_segments",
        "held_at",
        "is_identity_of_this_run",
        "recovery_point",
        "truncations",
    )

    def __init__(self, disk: Disk, directory: str, loaded: LoadedLog) -> None:
        self._disk = disk
        self._directory = directory
        self._segments = loaded.segments
        self._epochs = loaded.epochs
        self._producers = loaded.producers
        self.recovery_point = loaded.recovery_point
        """Everything below is on the disk itself, not only in the page cache."""
        self.truncations = 0
        self.held_at: int | None = None
        """The log end offset that counts as this replica's copy while appends wait for a sync; None: all counts."""
        self._pending: PendingFlush | None = None
        self._metadata_dirty = False
        self.is_identity_of_this_run = True
        """Whether partition.metadata was written by this run of the broker."""
        self._cut_at: int | None = None
        """The lowest offset of a truncation that is not synced: a power loss may bring back what was behind it."""
        self._is_new = True
        """Until the first flush a power loss may take the directory itself."""
        self._is_confirmed = True
        """Whether the recovery point is that of this log, and not of one that was in its place before."""
        self._last_work: FlushWork | None = None
        self._name = DirectoryName()

    def opened_clean(self) -> None:
        """Handle an existing log that was closed cleanly: all of it is synced."""
        self._is_new = False

    def opened_unclean(self, *, has_metadata: bool) -> None:
        """Handle an existing log that was not closed cleanly.

        Recovery, or the last run of the broker, may have cut the log without a sync. A process that was killed may
        have written partition.metadata without a sync. If the directory was exchanged with another one meanwhile, the
        recovery point is not that of this log; then no role begins on it.
        """
        self._cut_at = self.recovery_point
        self._metadata_dirty = has_metadata
        self.is_identity_of_this_run = False
        self._is_confirmed = False

    def moved_to(self, directory: str) -> None:
        """Handle the rename of the directory: works that are to run yet must not write into its successor.

        The next sync covers the new name.
        """
        self._directory = directory
        self._is_new = True
        self._name.given_up()
        self._name = DirectoryName()

    def metadata_written(self) -> None:
        """Have the next sync cover partition.metadata."""
        self._metadata_dirty = self.is_identity_of_this_run = True

    # Truncation

    def cut(self, offset: int) -> None:
        """Handle a truncation to *offset*, before it begins."""
        self.truncations += 1
        self._cut_at = offset if self._cut_at is None else min(self._cut_at, offset)

    def emptied(self) -> None:
        """Handle the log beginning again: until that is synced a power loss may bring back all that was there."""
        self.recovery_point = 0

    def truncated(self, offset: int) -> None:
        """Handle the log ending at *offset* now: batches are not split, so this may be below the offset of `cut`."""
        if self._cut_at is not None:
            self._cut_at = min(self._cut_at, offset)
        self.recovery_point = min(self.recovery_point, offset)
        if self._pending is not None:
            self._pending.truncated(offset)
            self.held_at = self._pending.held_at

    # Appends that wait for a sync: each returns whether one is due

    def appended(self, base_offset: int, end_offset: int, config: LogConfig, now_ms: int) -> bool:
        """Handle an append under flush.messages or flush.ms."""
        pending = self._appends()
        due = pending.appended(base_offset, end_offset, self.recovery_point, config, now_ms)
        self.held_at = pending.held_at
        return due

    def role_began(self, end_offset: int, config: LogConfig) -> bool:
        """Handle the begin of a role: the log is that of its partition, so the recovery point is its own.

        Under flush.messages or flush.ms records that an earlier run of the broker did not sync wait, too.
        """
        self._is_confirmed = True
        if not config.flushes_appends:
            return False
        pending = self._appends()
        due = pending.opened(end_offset, self.recovery_point, config)
        self.held_at = pending.held_at
        return due

    def began_again(self, former_end: int, offset: int) -> bool:
        """Handle the log beginning again at *offset*, where *former_end* counted before."""
        pending = self._appends()
        due = pending.truncated_fully(former_end, offset)
        self.held_at = pending.held_at
        return due

    def _appends(self) -> PendingFlush:
        pending = self._pending
        if pending is None:
            pending = self._pending = PendingFlush()
        return pending

    # Syncs

    @property
    def is_identity_due(self) -> bool:
        """Whether partition.metadata was written since the last sync of it began."""
        return self._metadata_dirty

    def begin_identity(self) -> FlushWork:
        """Return the work of syncing partition.metadata and its name; the caller has the directory's name synced."""
        work = FlushWork(
            self._disk,
            self._directory,
            files=[],
            others=[f"{self._directory}/{PARTITION_METADATA}"],
            epochs=None,
            up_to=0,
            truncations=self.truncations,
            new_directory=False,
            name=self._name,
            after=self._last_work,
        )
        self._last_work = work
        self._metadata_dirty = False
        return work

    def begin(self, log_end_offset: int, *, sealed_only: bool) -> FlushWork | None:
        """Return the work of syncing what is not on the disk, or None when nothing is. Raise OSError.

        *sealed_only* leaves the active segment out. Of a log that is not confirmed all files are synced.
        """
        up_to = self._segments.active.base_offset if sealed_only else log_end_offset
        epochs = self._epochs
        segments = self._segments.to_flush(
            self.recovery_point, self._cut_at, sealed_only=sealed_only
        )
        dirty = (
            epochs.dirty or self._metadata_dirty or (self._cut_at is not None and bool(segments))
        )
        dirty = dirty or (self._producers.unsynced and not sealed_only) or not self._is_confirmed
        # A work that has not finished may have failed.
        dirty = dirty or (self._last_work is not None and not sealed_only)
        if up_to <= self.recovery_point and not dirty:
            return None
        for segment in segments:
            segment.write_indexes()
        work = FlushWork(
            self._disk,
            self._directory,
            files=[segment.file for segment in segments],
            others=[*self._unconfirmed_files(), *self._small_files(segments)],
            epochs=(f"{self._directory}/{FILE_NAME}", epochs.encode()) if epochs.dirty else None,
            up_to=up_to,
            truncations=self.truncations,
            new_directory=self._is_new,
            name=self._name,
            after=self._last_work,
        )
        self._last_work = work
        epochs.saved()
        self._metadata_dirty = self._is_new = False
        self._is_confirmed = True
        if not sealed_only:
            self._cut_at = None
        return work

    def _unconfirmed_files(self) -> list[str]:
        """Return all files of a log that is not confirmed: by path, for there may be too many to keep them open."""
        if self._is_confirmed:
            return []
        paths = [f"{self._directory}/{name}" for name in self._disk.listdir(self._directory)]
        return [path for path in sorted(paths) if not self._disk.is_dir(path)]

    def _small_files(self, segments: Sequence[LogSegment]) -> list[str]:
        paths = [
            index.path
            for segment in segments
            for index in (segment.offset_index, segment.time_index)
        ]
        transactions = [segment.transaction_index for segment in segments]
        paths += [index.path for index in transactions if len(index) or index.has_file]
        paths += self._producers.take_unsynced()
        if self._metadata_dirty:
            paths.append(f"{self._directory}/{PARTITION_METADATA}")
        return paths

    def finish(self, work: FlushWork, log_end_offset: int) -> None:
        """Move the recovery point after *work* has run; not if the log was cut meanwhile."""
        if self._last_work is work:
            self._last_work = None
        if work.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, min(work.up_to, log_end_offset))
        if self._pending is not None:
            self._pending.synced(self.recovery_point)
            self.held_at = self._pending.held_at
