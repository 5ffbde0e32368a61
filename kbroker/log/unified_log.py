"""One partition's log, the whole of it: opened, flushed, truncated, retained, closed.

Appends and reads are in `local_log`; this is what the broker does to a log beside them.

Invariants (1 and 2 are those of `local_log`):
3. recovery_point <= log_end_offset, and everything below it was synced before it moved.
4. log_start_offset <= log_end_offset; nothing at or above the offset a caller protects is deleted.
5. Offsets go back by `truncate_to` and `truncate_fully_and_start_at` only.

Owner: one thread (the reactor's) calls everything here. Slow work comes out as plain objects
(`FlushWork`, paths to unlink) that run in a pool; their results come back to the owner. `open` runs
in a pool, before anybody else has the log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from uuid import UUID

from kbroker.config.log import LogConfig
from kbroker.log import retention
from kbroker.log.disk import OS_DISK, Buffer, Disk, replace_file
from kbroker.log.flush_work import FlushWork
from kbroker.log.identity import (
    PARTITION_METADATA,
    PartitionMetadata,
    encode_partition_metadata,
)
from kbroker.log.leader_epoch_cache import FILE_NAME, LeaderEpochCache
from kbroker.log.local_log import (
    EMPTY,
    NO_LOG_APPEND_TIME,
    AppendResult,
    LocalLog,
    LogSlice,
)
from kbroker.log.log_loader import LoadedLog, load
from kbroker.log.log_segment import BASE_OFFSET, LogSegment
from kbroker.log.pending_flush import PendingFlush
from kbroker.log.producer_state_manager import ProducerStateManager
from kclient.wire.batches import BatchInfo, with_leader_epoch
from kclient.wire.errors import KafkaStorageError, OffsetOutOfRange, RecordListTooLarge

__all__ = ["EMPTY", "AppendResult", "LogSlice", "UnifiedLog"]


class UnifiedLog(LocalLog):
    """The log of one partition in *directory*."""

    __slots__ = (
        "_cut_at",
        "_is_new",
        "_last_work",
        "_metadata_dirty",
        "_on_flush_due",
        "_on_truncate",
        "_pending_flush",
        "_truncations",
        "held_at",
        "metadata",
        "missing_below",
        "notes",
        "recovery_point",
    )

    def __init__(self, disk: Disk, directory: str, config: LogConfig, loaded: LoadedLog) -> None:
        super().__init__(disk, directory, config, loaded)
        self.recovery_point = loaded.recovery_point
        """Everything below is on the disk itself, not only in the page cache."""
        self.notes = loaded.notes
        """What recovery found and did."""
        self.missing_below = loaded.missing_below
        """Set when the log ended before its recovery point: synced records are gone (S8)."""
        self.metadata = loaded.metadata
        """Whose log it is (partition.metadata); without a topic id before an order has named it."""
        self._metadata_dirty = False
        # Where a truncation that is not synced cut the log: what was behind may come back.
        self._cut_at: int | None = None
        self._is_new = True  # until the first flush a power loss may take the directory itself
        self._truncations = 0
        self._last_work: FlushWork | None = None
        self._on_truncate: Callable[[], None] | None = None
        self._on_flush_due: Callable[[], None] | None = None
        self._pending_flush: PendingFlush | None = None
        self.held_at: int | None = None
        """The log end offset that counts as this replica's copy while appends wait for a sync; None: all counts."""

    @property
    def topic_id(self) -> UUID | None:
        """The topic's id, or None before an order has named it."""
        return self.metadata.topic_id

    @classmethod
    def open(
        cls,
        directory: str,
        config: LogConfig,
        *,
        now_ms: int,
        disk: Disk = OS_DISK,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
    ) -> UnifiedLog:
        """Open the log of an existing *directory*, and recover it unless it was closed *clean*.

        Slow: runs in a pool. Raise what `recovery.load` raises.
        """
        loaded = load(
            disk,
            directory,
            config,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            now_ms=now_ms,
        )
        log = cls(disk, directory, config, loaded)
        log._is_new = not clean
        if not clean:  # recovery, or a former life of the broker, may have cut the log and not have synced the cut
            log._cut_at = loaded.recovery_point
        # A process that was killed may have written partition.metadata and not have synced it.
        log._metadata_dirty = not clean and loaded.metadata.topic_id is not None
        return log

    @classmethod
    def create(
        cls,
        directory: str,
        config: LogConfig,
        metadata: PartitionMetadata,
        *,
        now_ms: int,
        disk: Disk = OS_DISK,
    ) -> UnifiedLog:
        """Begin the log of an empty *directory*. Quick: nothing is synced. Raise OSError."""
        segment = LogSegment.create(disk, directory, 0, now_ms)
        segment.close()  # idle partitions keep no file open
        producers = ProducerStateManager(disk, directory)
        loaded = LoadedLog([segment], 0, 0, 0, LeaderEpochCache(), metadata, producers)
        log = cls(disk, directory, config, loaded)
        if metadata.topic_id is not None:
            log.assign(metadata)
        return log

    def assign(self, metadata: PartitionMetadata) -> None:
        """Write whose log it is to partition.metadata (KAFKA-10545). Raise KafkaStorageError."""
        path = f"{self.directory}/{PARTITION_METADATA}"
        try:
            replace_file(self._disk, path, encode_partition_metadata(metadata), durable=False)
        except OSError as error:
            raise self._fence(error) from error
        self.metadata = metadata
        self._metadata_dirty = True  # synced with the next flush

    def on_truncate(self, callback: Callable[[], None]) -> None:
        """Have *callback* called after a truncation, before anything is appended."""
        self._on_truncate = callback

    # Appends that wait for a sync (flush.messages, flush.ms)

    def on_flush_due(self, callback: Callable[[], None]) -> None:
        """Have *callback* called when an append waits for a sync."""
        self._on_flush_due = callback

    def hold_unflushed(self) -> None:
        """Have records that were not synced count after a sync, if flush.messages or flush.ms asks for one."""
        if self.config.flushes_appends and self._pending().opened(
            self.log_end_offset, self.recovery_point, self.config
        ):
            self._ask_for_flush()

    def _flush_if_due(self, base_offset: int, now_ms: int) -> None:
        if self._pending().appended(
            base_offset, self.log_end_offset, self.recovery_point, self.config, now_ms
        ):
            self._ask_for_flush()

    def _pending(self) -> PendingFlush:
        pending = self._pending_flush
        if pending is None:
            pending = self._pending_flush = PendingFlush()
        return pending

    def _ask_for_flush(self) -> None:
        self.held_at = self._pending().held_at
        if self._on_flush_due is not None:
            self._on_flush_due()

    def append_copied(
        self,
        buf: Buffer,
        batches: Sequence[BatchInfo],
        leader_epoch: int,
        now_ms: int,
        *,
        start_offset: int,
    ) -> AppendResult:
        """Append checked *batches*, all of *buf*, at the offsets they have, stamped as this leader's.

        They are in order and begin at the log end or beyond; an empty log that ends before
        *start_offset* begins there anew. Raise as `append_as_leader`: none of them is in the log
        then, or (rarely, when the disk fails at a roll) the first ones.
        """
        if self._failure is not None:
            raise self._fenced()
        largest = max(info.size for info in batches)
        if largest > self.config.segment_bytes:
            raise RecordListTooLarge(
                f"a batch of {largest} bytes does not fit a segment of"
                f" {self.config.segment_bytes} bytes",
                hint="raise segment.bytes of the topic",
            )
        base_offset = batches[0].base_offset
        if self.log_start_offset == self.log_end_offset < start_offset:
            self.truncate_fully_and_start_at(start_offset, now_ms)
        try:
            self.producers.before_copy(base_offset)
        except OSError as error:
            raise self._fence(error) from error
        view = memoryview(with_leader_epoch(buf, batches, leader_epoch))
        if leader_epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        self._append_all(view, batches, now_ms, leader_epoch)
        return AppendResult(
            base_offset, self.log_end_offset - 1, NO_LOG_APPEND_TIME, self.log_start_offset
        )

    # Cutting

    def truncate_to(self, offset: int) -> int:
        """Remove every batch that reaches to *offset* or beyond; return the new log end offset.

        That is *offset*, or less: batches are not split (a follower could not take half of one),
        and a gap at the end is no end. The log start offset never stays behind the end. Raise
        KafkaStorageError when the disk fails.
        """
        if offset >= self.log_end_offset:
            return self.log_end_offset
        if offset <= self._segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return offset
        if self._failure is not None:
            raise self._fenced()
        self._cut(offset)
        try:
            while self._active.base_offset > offset:
                self._drop_active()
            found = self._active.locate(offset)
            if found is not None:
                self._active.truncate(found.position, min(offset, found.info.base_offset))
            offset = self._active.find_end()
        except OSError as error:
            raise self._fence(error) from error
        self.log_start_offset = min(self.log_start_offset, offset)
        self._ends_at(offset)
        return offset

    def truncate_fully_and_start_at(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything and begin anew at *offset*, below or above what was there."""
        if self._failure is not None:
            raise self._fenced()
        self._cut(offset)
        try:
            self._replace_all(offset, now_ms)
            self.producers.begun_anew()
        except OSError as error:
            raise self._fence(error) from error
        self.log_start_offset = offset
        # Until this is synced a power loss may bring back all that was there, below *offset*, too.
        self.recovery_point = 0
        self.leader_epochs.clear()
        self._ends_at(offset)

    def _replace_all(self, offset: int, now_ms: int) -> None:
        """Put an empty segment at *offset* in the place of all segments. Raise OSError.

        It is created before the others are deleted, oldest first: a power loss in between leaves a log that ends where
        the old one did, or at *offset*. An empty directory would be a log that ends at 0.
        """
        former = self._segments[:]
        same = next((one for one in former if one.base_offset == offset), None)
        if same is None:
            self._active = LogSegment.create(self._disk, self.directory, offset, now_ms)
            self._segments.append(self._active)
        for segment in former:
            if segment is not same:
                self._segments.remove(segment)
                self._unlink(segment)
        if same is not None:
            same.replace_file()
            self._active = LogSegment.create(self._disk, self.directory, offset, now_ms)
            self._segments[:] = [self._active]

    def _cut(self, offset: int) -> None:
        self._truncations += 1
        self._cut_at = offset if self._cut_at is None else min(self._cut_at, offset)

    def _drop_active(self) -> None:
        self._unlink(self._segments.pop())
        self._active = self._segments[-1]

    def _unlink(self, segment: LogSegment) -> None:
        for path in segment.mark_deleted():
            self._disk.unlink(path)

    def _ends_at(self, offset: int) -> None:
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.leader_epochs.truncate_from_end(offset)
        if self._pending_flush is not None:
            self._pending_flush.truncated(offset)
            self.held_at = self._pending_flush.held_at
        try:
            self.producers.truncated(offset, self._segments)
        except OSError as error:
            raise self._fence(error) from error
        if self._on_truncate is not None:
            self._on_truncate()

    # Retention

    def advance_log_start(self, offset: int) -> bool:
        """Hide everything below *offset* (DeleteRecords); return whether that is news.

        Raise OffsetOutOfRange beyond the log end. Whole segments below go with the next
        `delete_old_segments`.
        """
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.directory} ends at {self.log_end_offset}; it cannot start at {offset}"
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        return True

    def delete_old_segments(self, now_ms: int, *, up_to_offset: int | None = None) -> list[str]:
        """Drop the oldest segments that retention is done with; return the files to unlink.

        Nothing at or above *up_to_offset* (the high watermark) goes. The files are renamed to
        ``.deleted`` here, which is quick; unlinking them, which may not be, is for the pool, after
        file.delete.delay.ms. The log start offset follows. Raise KafkaStorageError.
        """
        if self._failure is not None:
            return []
        limit = self.log_end_offset if up_to_offset is None else up_to_offset
        count = retention.deletable(
            self._segments,
            self.config,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            up_to_offset=limit,
            now_ms=now_ms,
            modified_ms=self._disk.modified_ms,
        )
        if not count:
            return []
        if count == len(self._segments):
            self.roll(now_ms)
        doomed = self._segments[:count]
        del self._segments[:count]
        self.advance_log_start(self._segments[0].base_offset)
        self.producers.segments_deleted([one.base_offset for one in doomed], self.log_start_offset)
        try:
            return [path for segment in doomed for path in segment.mark_deleted()]
        except OSError as error:
            raise self._fence(error) from error

    # Keeping

    def start_flush(self, *, sealed_only: bool = False) -> FlushWork | None:
        """Return the work of syncing what is not on the disk, or None when nothing is.

        *sealed_only* leaves the active segment out. The caller has `FlushWork.run` run in a pool
        and then calls `finish_flush`, or `flush_failed` with its error. Raise KafkaStorageError.
        """
        up_to = self._active.base_offset if sealed_only else self.log_end_offset
        epochs = self.leader_epochs
        first = bisect_right(self._segments, self.recovery_point, key=BASE_OFFSET) - 1
        if self._cut_at is not None:
            first = min(first, bisect_left(self._segments, self._cut_at, key=BASE_OFFSET) - 1)
        segments = self._segments[max(first, 0) : -1 if sealed_only else None]
        dirty = epochs.dirty or self._metadata_dirty or (self._cut_at is not None and segments)
        dirty = dirty or (self.producers.unsynced and not sealed_only)
        if up_to <= self.recovery_point and not dirty:
            return None
        try:
            for segment in segments:
                segment.write_indexes()
            work = FlushWork(
                self._disk,
                self.directory,
                files=[segment.file for segment in segments],
                others=self._small_files(segments),
                epochs=(f"{self.directory}/{FILE_NAME}", epochs.encode()) if epochs.dirty else None,
                up_to=up_to,
                truncations=self._truncations,
                new_directory=self._is_new,
                after=self._last_work,
            )
        except OSError as error:
            raise self._fence(error) from error
        self._last_work = work
        epochs.saved()
        self._metadata_dirty = self._is_new = False
        if not sealed_only:
            self._cut_at = None
        return work

    def _small_files(self, segments: Sequence[LogSegment]) -> list[str]:
        paths = [
            index.path
            for segment in segments
            for index in (segment.offset_index, segment.time_index)
        ]
        paths += self.producers.take_unsynced()
        if self._metadata_dirty:
            paths.append(f"{self.directory}/{PARTITION_METADATA}")
        return paths

    def finish_flush(self, work: FlushWork) -> None:
        """Move the recovery point after *work* has run; not if the log was cut meanwhile."""
        if self._last_work is work:
            self._last_work = None
        if work.truncations == self._truncations:
            self.recovery_point = max(self.recovery_point, min(work.up_to, self.log_end_offset))
        if self._pending_flush is not None:
            self._pending_flush.synced(self.recovery_point)
            self.held_at = self._pending_flush.held_at

    def flush_failed(self, error: BaseException) -> None:
        """Fence the log after a failed `FlushWork.run`: a sync is never tried again (S15)."""
        self._fence(
            error if isinstance(error, OSError) else OSError(f"cannot be synced: {error!r}")
        )

    def flush(self) -> None:
        """Sync everything now. Slow: for the pool, tests and shutdown. Raise KafkaStorageError."""
        if self._failure is not None:
            raise self._fenced()
        work = self.start_flush()
        if work is None:
            return
        try:
            work.run()
        except OSError as error:
            raise self._fence(error) from error
        self.finish_flush(work)

    def close(self, *, clean: bool = True) -> bool:
        """Let go of the files; flush and seal first when *clean*. Return whether all is synced.

        A log that is fenced, or fails now, was not closed cleanly. Slow when *clean*: runs in a
        pool, when nobody uses the log any more.
        """
        done = clean and self._failure is None
        if done:
            try:
                work = self.start_close()
                if work is not None:
                    work.run()
                    self.finish_flush(work)
            except (OSError, KafkaStorageError):
                done = False
        for segment in self._segments:
            segment.close()
        return done

    def start_close(self) -> FlushWork | None:
        """Write all that is not in a file yet; return what to sync before the log is closed, None for nothing.

        Raise OSError or KafkaStorageError: the log cannot be closed cleanly then.
        """
        if self._failure is not None:
            raise self._fenced()
        self._active.index_time()
        self._active.write_indexes()
        self.producers.write_last_snapshot(self.log_end_offset, self._segments)
        return self.start_flush()

    def moved_to(self, directory: str) -> None:
        """Follow the rename of the directory (a partition on its way out)."""
        self.directory = directory
        self.producers.moved_to(directory)
        for segment in self._segments:
            segment.moved_to(directory)
