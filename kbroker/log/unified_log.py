"""One partition's log: appends, reads, truncation, retention, flush.

Theory of operation
===================
The receiver of a batch checks it. The log stamps base offset and leader epoch (16 bytes outside the CRC) and writes the
batch as it came, with one ``pwritev``. Reads are slices of segment files. The log decodes no record. The segments and
their files belong to `LogSegments`; what of them is synced is in `FlushState`.

Invariants:
1. Readers see whole batches below the log end offset: a batch counts after it was written whole.
2. After a failed write or sync the log is fenced (S15): it takes no appends until a restart of the broker opens it.
3. recovery_point <= log_end_offset, and everything below it was synced before it moved.
4. log_start_offset <= log_end_offset; retention deletes nothing at or above the offset that its caller protects.
5. The log end offset goes back by `truncate_to` and `truncate_fully_and_start_at` only.

Owner: one thread (the reactor's) calls everything here. Slow work comes out as plain objects (`FlushWork`, paths to
unlink) that run in a pool; their results come back to the owner. `open` runs in a pool, before the log is in use.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from kbroker.config.log import LogConfig
from kbroker.log import retention, timestamps
from kbroker.log.core.cleaned_transactions import AbortedTransaction
from kbroker.log.core.leader_epoch_cache import LeaderEpochCache
from kbroker.log.core.partition_metadata_file import (
    PARTITION_METADATA,
    PartitionMetadata,
    encode_partition_metadata,
)
from kbroker.log.disk import OS_DISK, Buffer, Disk, replace_file, sync_file, write_all
from kbroker.log.flush_state import FlushState
from kbroker.log.flush_work import FlushWork
from kbroker.log.log_loader import LoadedLog, load
from kbroker.log.log_segment import LogSegment
from kbroker.log.log_segments import EMPTY, LogSegments, LogSlice
from kbroker.log.producer_state_manager import ProducerStateManager
from kbroker.log.segment_replacement import SegmentReplacement
from kbroker.log.transaction_index import LaterIndexes
from kclient.wire.batches import (
    IN_TRANSACTION,
    LARGEST_OFFSET,
    BatchInfo,
    check_crc,
    iterate,
    stamp,
    with_leader_epoch,
    with_log_append_time,
)
from kclient.wire.errors import (
    CorruptMessage,
    InvalidRecord,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    RecordListTooLarge,
)

NO_LOG_APPEND_TIME: Final = -1
_STAMP_SIZE: Final = 16


class AppendResult(NamedTuple):
    """The place of an appended batch, as a Produce response reports it."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """The leader's clock under message.timestamp.type=LogAppendTime, else -1."""
    log_start_offset: int


class LogListener(Protocol):
    """Receives the events of one log, on the owner's thread."""

    def failed(self, error: OSError, /) -> None:
        """Handle a failed write or sync, which fences the log."""

    def rolled(self) -> None:
        """Handle a roll: the sealed segment waits for a flush."""

    def truncated(self, log_end_offset: int, /) -> None:
        """Handle a truncation, before the next append."""

    def flush_due(self) -> None:
        """Handle an append that waits for a sync."""


class UnifiedLog:
    """The log of one partition in *directory*; *listener* receives its events."""

    __slots__ = (
        "_disk",
        "_failure",
        "_listener",
        "clean_below",
        "config",
        "directory",
        "flush_state",
        "lacks_until_in_sync",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "metadata",
        "missing_below",
        "notes",
        "producers",
        "segments",
        "truncations",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        loaded: LoadedLog,
        listener: LogListener,
    ) -> None:
        self._disk = disk
        self.directory = directory
        self.config = config
        """The topic's settings; assign to change them."""
        self.segments = loaded.segments
        """The segments, oldest first; the last is active."""
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        """The offset the next record gets."""
        self.flush_state = FlushState(disk, directory, loaded)
        """What is on the disk itself, and what the next sync has to cover."""
        self.leader_epochs = loaded.epochs
        self.producers = loaded.producers
        """The state of idempotent producers; a leader calls `producers.states.check` before an append."""
        self.metadata = loaded.metadata
        """The content of partition.metadata; it has a topic id after the first LeaderAndIsr."""
        self.notes = loaded.notes
        """What recovery found and did."""
        self.missing_below = loaded.missing_below
        """Set when the log ended before its recovery point: synced records are gone (S8)."""
        self.clean_below: int | None = None
        """The first dirty offset: below, compaction has been (cleaner-offset-checkpoint); None: it was never here."""
        self.truncations = 0
        """How often the log was cut since it was opened."""
        self.lacks_until_in_sync = ""
        """What it lacks, until it was in sync with a leader after the loss; or ""."""
        self._failure: str | None = None
        self._listener = listener

    @classmethod
    def open(
        cls,
        directory: str,
        config: LogConfig,
        listener: LogListener,
        *,
        now_ms: int,
        disk: Disk = OS_DISK,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
    ) -> UnifiedLog:
        """Open the log of an existing *directory*, and recover it unless it was closed *clean*.

        Slow: runs in a pool. Raise what `log_loader.load` raises.
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
        log = cls(disk, directory, config, loaded, listener)
        if clean:
            log.flush_state.opened_clean()
        else:
            log.flush_state.opened_unclean(has_metadata=loaded.metadata.topic_id is not None)
        return log

    @classmethod
    def create(
        cls,
        directory: str,
        config: LogConfig,
        metadata: PartitionMetadata,
        listener: LogListener,
        *,
        now_ms: int,
        disk: Disk = OS_DISK,
    ) -> UnifiedLog:
        """Start an empty log in *directory*, which was just made. Nothing is synced. Raise OSError."""
        segment = LogSegment.create(disk, directory, 0, now_ms)
        segment.close()  # idle partitions keep no file open
        segments = LogSegments(disk, directory, [segment])
        producers = ProducerStateManager(disk, directory)
        loaded = LoadedLog(segments, 0, 0, 0, LeaderEpochCache(), metadata, producers)
        log = cls(disk, directory, config, loaded, listener)
        if metadata.topic_id is not None:
            log._write_metadata(metadata)
        return log

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self.segments.size

    @property
    def recovery_point(self) -> int:
        """Everything below is on the disk itself, not only in the page cache."""
        return self.flush_state.recovery_point

    @property
    def held_at(self) -> int | None:
        """The log end offset that counts as this replica's copy while appends wait for a sync; None: all counts."""
        return self.flush_state.held_at

    @property
    def topic_id(self) -> UUID | None:
        """The topic's id, or None before the first LeaderAndIsr that has it."""
        return self.metadata.topic_id

    @property
    def failure(self) -> str | None:
        """Why the log takes no more appends, or None."""
        return self._failure

    def assign(self, metadata: PartitionMetadata) -> None:
        """Write partition.metadata (KAFKA-10545). Raise KafkaStorageError."""
        try:
            self._write_metadata(metadata)
        except OSError as error:
            raise self._fence(error) from error

    def _write_metadata(self, metadata: PartitionMetadata) -> None:
        path = f"{self.directory}/{PARTITION_METADATA}"
        replace_file(self._disk, path, encode_partition_metadata(metadata), durable=False)
        self.metadata = metadata
        self.flush_state.metadata_written()

    def sync_identity(self) -> None:
        """Sync partition.metadata and the names on the way to it. Slow: for a pool. Raise OSError."""
        directory = self.directory
        with suppress(FileNotFoundError):  # the partition was deleted
            sync_file(self._disk, f"{directory}/{PARTITION_METADATA}")
            self._disk.sync_dir(directory)
        self._disk.sync_dir(os.path.dirname(directory))

    # Appending

    def append_as_leader(
        self, buf: Buffer, info: BatchInfo, leader_epoch: int, now_ms: int
    ) -> AppendResult:
        """Append the checked batch *info* of *buf* at the end, stamped as this leader's.

        Raise RecordListTooLarge for a batch above segment.bytes, and KafkaStorageError when the
        disk fails now or failed before: the batch is then not in the log.
        """
        if self._failure is not None:
            raise self._fenced()
        config = self.config
        size = info.length + 12
        base_offset = self.log_end_offset
        last_offset = base_offset + info.last_offset_delta
        max_timestamp = info.max_timestamp
        log_append_time = NO_LOG_APPEND_TIME
        rest: Buffer
        if config.log_append_time:
            log_append_time = max_timestamp = now_ms
            rest = memoryview(with_log_append_time(buf, info, now_ms))[_STAMP_SIZE:]
        else:
            start = info.position
            rest = memoryview(buf)[start + _STAMP_SIZE : start + size]
        if size > config.segment_bytes:
            raise RecordListTooLarge(
                f"a batch of {size} bytes does not fit a segment of {config.segment_bytes} bytes",
                hint="raise segment.bytes of the topic or lower batch.size of the producer",
            )
        if last_offset > LARGEST_OFFSET:
            raise InvalidRecord(f"{self.directory}: no offsets are left behind {base_offset - 1}")
        segments = self.segments
        try:  # after a start both may read the segment
            if segments.active.roll_is_due(config, size, last_offset, max_timestamp, now_ms):
                self.roll(now_ms)
            segment = segments.active
            if info.producer_id >= 0 and self.producers.copied.goes_on:
                self.producers.end_copied(base_offset)
            self._write(segment, (stamp(info, base_offset, leader_epoch), rest))
            interval = config.index_interval_bytes
            segment.appended(size, base_offset, last_offset, max_timestamp, interval)
        except OSError as error:
            raise self._fence(error) from error
        self.log_end_offset = last_offset + 1
        if leader_epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        if info.producer_id >= 0:
            self._record_producer(buf, info, base_offset, now_ms, log_append_time)
        if config.flushes_appends:
            self._flush_if_due(base_offset, now_ms)
        return AppendResult(base_offset, last_offset, log_append_time, self.log_start_offset)

    def _record_producer(
        self, buf: Buffer, info: BatchInfo, base_offset: int, now_ms: int, log_append_time: int
    ) -> None:
        producers = self.producers
        if log_append_time < 0:
            producers.states.appended(info, base_offset, now_ms)
        else:
            producers.states.appended(info, base_offset, now_ms, log_append_time)
        if info.attributes & IN_TRANSACTION:
            producers.in_transaction(buf, info, base_offset, self.segments.active, is_own=True)

    def append_as_follower(self, buf: Buffer, now_ms: int) -> int:
        """Append the whole batches of *buf* as the leader stamped them; return their bytes.

        A cut-off tail is left out. Raise CorruptMessage for a batch with a wrong CRC, or with an
        offset that does not follow: those before it are in the log then. Raise KafkaStorageError when
        the disk fails.
        """
        if self._failure is not None:
            raise self._fenced()
        batches: list[BatchInfo] = []
        next_offset = self.log_end_offset
        problem: KafkaError | None = None
        try:
            for info in iterate(buf):
                check_crc(buf, info)
                if info.base_offset < next_offset or info.last_offset_delta < 0:
                    raise CorruptMessage(
                        f"{self.directory}: the leader sent offset {info.base_offset}, "
                        f"which does not follow {next_offset - 1}"
                    )
                next_offset = info.next_offset
                batches.append(info)
        except KafkaError as error:
            problem = error
        self._append_all(memoryview(buf), batches, now_ms)
        if problem is not None:
            raise problem
        return batches[-1].end - batches[0].position if batches else 0

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
        *start_offset* begins there again. Raise as `append_as_leader`: none of them is in the log
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

    def _append_all(
        self,
        view: memoryview,
        batches: Sequence[BatchInfo],
        now_ms: int,
        leader_epoch: int | None = None,
    ) -> None:
        """Append batches that lie side by side in *view*, over as many segments as they need."""
        run: list[BatchInfo] = []
        run_bytes = 0
        base_offset = self.log_end_offset
        try:  # after a start the first append may read the segment
            for info in batches:
                if self._roll_is_due(info, now_ms, pending=run_bytes):
                    self._append_run(view, run, leader_epoch, now_ms)
                    run, run_bytes = [], 0
                    if self._roll_is_due(info, now_ms):
                        self.roll(now_ms, last_offset=info.last_offset)
                run.append(info)
                run_bytes += info.size
            self._append_run(view, run, leader_epoch, now_ms)
        except OSError as error:
            raise self._fence(error) from error
        if batches and self.config.flushes_appends:
            self._flush_if_due(base_offset, now_ms)

    def roll(self, now_ms: int, *, last_offset: int = 0) -> None:
        """Seal the active segment and start the next one; *last_offset* is that of the next append if it is far off."""
        try:
            sealed = self.segments.roll(self.log_end_offset, now_ms, last_offset=last_offset)
            self.producers.write_snapshot(self.segments.active.base_offset, self.segments)
            if self.config.preallocate and sealed.size:
                sealed.cut_file()
        except OSError as error:
            raise self._fence(error) from error
        if sealed.size:
            self._listener.rolled()

    def _append_run(
        self, view: memoryview, run: list[BatchInfo], leader_epoch: int | None, now_ms: int
    ) -> None:
        """Write batches that lie side by side in *view* to the active segment, in one go. Raise OSError.

        They carry *leader_epoch*, or each the epoch of its header if that is None.
        """
        if not run:
            return
        start, end = run[0].position, run[-1].end
        segment = self.segments.active
        if leader_epoch is None and self.producers.copied.goes_on:
            # The batches do not show where they come from.
            self.producers.end_copied(run[0].base_offset)
        self._write(segment, (view[start:end],))
        interval = self.config.index_interval_bytes
        for info in run:
            segment.appended(
                info.size, info.base_offset, info.last_offset, info.max_timestamp, interval
            )
            if leader_epoch is None and info.leader_epoch != self.leader_epochs.latest:
                self.leader_epochs.assign(info.leader_epoch, info.base_offset)
        self.log_end_offset = run[-1].next_offset
        is_own = leader_epoch is None
        if is_own:
            self.producers.replicated(run, now_ms)
        for info in run:
            if info.attributes & IN_TRANSACTION:
                self.producers.in_transaction(view, info, info.base_offset, segment, is_own=is_own)

    def _roll_is_due(self, info: BatchInfo, now_ms: int, *, pending: int = 0) -> bool:
        """Return whether the follower's batch *info*, behind *pending* bytes, begins a segment."""
        return self.segments.active.roll_is_due(
            self.config, info.size, info.last_offset, info.max_timestamp, now_ms, pending=pending
        )

    def _write(self, segment: LogSegment, buffers: tuple[Buffer, ...]) -> None:
        """Write *buffers* behind the segment's last batch, all or (for every reader) nothing."""
        try:
            if self.config.preallocate and not segment.size:
                self._disk.preallocate(segment.file.fd, self.config.segment_bytes)
            segment.spill_indexes()
            write_all(self._disk, segment.file.fd, buffers, segment.size)
        except OSError as error:
            raise self._fence(error) from error

    def _fence(self, error: OSError) -> KafkaStorageError:
        """Take no more appends, cut off what a failed write left, and report the failure (S15)."""
        if self._failure is None:
            self._failure = f"{self.directory}: {error}"
            # The bytes are beyond every reader already; leaving them costs recovery a few reads.
            with suppress(OSError):
                self.segments.active.cut_file()
            self._listener.failed(error)
        return self._fenced()

    def _fenced(self) -> KafkaStorageError:
        return KafkaStorageError(
            f"{self._failure}; the log takes no more appends",
            hint="repair the disk or free space on it, then restart the broker",
        )

    # Reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        up_to_offset: int | None = None,
        min_one_batch: bool = True,
    ) -> LogSlice:
        """Return batches, the first of which holds *offset*, from one segment.

        At most *max_bytes*, but the whole first batch with *min_one_batch*; only batches that end
        below *up_to_offset* (the high watermark; None is the log end). The first batch may begin
        before *offset*, the last may be cut off. Raise OffsetOutOfRange for an offset outside
        log_start_offset..log_end_offset, CorruptMessage where the file cannot be followed.
        """
        end = self.log_end_offset
        if not self.log_start_offset <= offset <= end:
            raise OffsetOutOfRange(
                f"offset {offset} of {self.directory} is outside {self.log_start_offset}..{end}"
            )
        if up_to_offset is None or up_to_offset > end:
            up_to_offset = end
        if offset >= up_to_offset or (max_bytes <= 0 and not min_one_batch):
            return EMPTY
        try:
            return self.segments.read(offset, max_bytes, up_to_offset, end, min_one_batch)
        except OSError as error:
            path = self.segments[self.segments.index_of(offset)].path
            raise KafkaStorageError(f"{path}: {error}") from error

    def replicated(self, high_watermark: int) -> None:
        """Handle the high watermark of the replica: transactions that ended below it are stable."""
        self.producers.transactions.replicated(high_watermark)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the end of the records with a known outcome, for readers with read_committed (KIP-98).

        At most *high_watermark*; below it lie the log start offset, and each transaction with a replicated marker.
        """
        first = self.producers.transactions.first_unstable_offset(high_watermark)
        if first is None or first >= high_watermark:
            return high_watermark
        return max(first, self.log_start_offset)

    def aborted_transactions(
        self, offset: int, found: LogSlice, up_to_offset: int
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap what `read` *found* from *offset* on, below *up_to_offset*.

        There may be more, as in Kafka: *found* ends somewhere between two entries of the offset index. Raise
        KafkaStorageError, CorruptMessage.
        """
        if not found.size:
            return []
        try:
            return self.segments.aborted_transactions(offset, found, up_to_offset)
        except OSError as error:
            raise KafkaStorageError(f"{self.directory}: a transaction index: {error}") from error

    def later_indexes(self, offset: int) -> LaterIndexes:
        """Return the transaction indexes of the segments from *offset* on, where one begins.

        Raise KafkaStorageError.
        """
        try:
            return self.segments.later_indexes(offset)
        except OSError as error:
            raise KafkaStorageError(f"{self.directory}: a transaction index: {error}") from error

    def search_for_timestamp(
        self, timestamp: int, from_offset: int
    ) -> timestamps.Search | int | None:
        """Return where to look for the first record at or after *timestamp* (ms) from *from_offset* on.

        See `timestamps.search_from`. The search itself is for a pool.
        """
        return timestamps.search_from(
            self.segments, timestamp, max(from_offset, self.log_start_offset), self.log_end_offset
        )

    def search_for_max_timestamp(self) -> timestamps.Search | None:
        """Return where to look for the first record with the greatest timestamp of the log (KIP-734)."""
        return timestamps.search_greatest(self.segments, self.log_start_offset)

    # Truncation

    def truncate_to(self, offset: int) -> int:
        """Remove every batch that reaches to *offset* or beyond; return the new log end offset.

        That is *offset*, or less: batches are not split (a follower could not take half of one). A gap at the end is no
        end. The log start offset never stays behind the end. Raise KafkaStorageError when the disk fails.
        """
        if offset >= self.log_end_offset:
            return self.log_end_offset
        if offset <= self.segments.first_offset:
            self.truncate_fully_and_start_at(offset)
            return offset
        if self._failure is not None:
            raise self._fenced()
        self.flush_state.cut(offset)
        try:
            self.producers.before_truncation(offset, self.segments)
            offset = self.segments.truncate_to(offset)
        except OSError as error:
            raise self._fence(error) from error
        self.log_start_offset = min(self.log_start_offset, offset)
        self._ends_at(offset)
        return offset

    def truncate_fully_and_start_at(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything and begin again at *offset*, below or above what was there."""
        if self._failure is not None:
            raise self._fenced()
        self.flush_state.cut(offset)
        former_end = self.log_end_offset if self.held_at is None else self.held_at
        try:
            self.segments.truncate_fully_and_start_at(offset, now_ms)
            self.producers.truncate_fully()
        except OSError as error:
            raise self._fence(error) from error
        self.log_start_offset = offset
        self.flush_state.emptied()
        self.leader_epochs.clear()
        self._ends_at(offset)
        if self.config.flushes_appends and self.flush_state.began_again(former_end, offset):
            self._listener.flush_due()

    def _ends_at(self, offset: int) -> None:
        self.truncations += 1
        if self.clean_below is not None:
            self.clean_below = min(self.clean_below, offset)
        self.log_end_offset = offset
        self.leader_epochs.truncate_from_end(offset)
        self.flush_state.truncated(offset)
        try:
            self.producers.truncated(offset, self.segments)
        except OSError as error:
            raise self._fence(error) from error
        self._listener.truncated(offset)

    # Retention

    def advance_log_start(self, offset: int) -> bool:
        """Hide everything below *offset* (DeleteRecords); return whether the log start offset moved.

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
        """Delete the oldest segments that retention no longer keeps; return the files to unlink.

        Nothing at or above *up_to_offset* (the high watermark) goes. The files are renamed to
        ``.deleted`` here, which is quick; the pool unlinks them, which may be slow, after
        file.delete.delay.ms. The log start offset follows. Raise KafkaStorageError.
        """
        if self._failure is not None:
            return []
        limit = self.log_end_offset if up_to_offset is None else up_to_offset
        try:
            count = retention.deletable(
                self.segments,
                self.config,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
                up_to_offset=limit,
                now_ms=now_ms,
                modified_ms=self._disk.modified_ms,
            )
        except OSError as error:
            # Without file descriptors it is tried again later: the disk has no fault.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise KafkaStorageError(f"retention of {self.directory}: {error}") from error
            raise self._fence(error) from error
        if not count:
            return []
        try:
            if count == len(self.segments):
                self.roll(now_ms)
            base_offsets = [segment.base_offset for segment in self.segments[:count]]
            self.advance_log_start(self.segments[count].base_offset)
            self.producers.segments_deleted(base_offsets, self.log_start_offset)
            return self.segments.delete_oldest(count)
        except OSError as error:
            raise self._fence(error) from error

    # Replacing segments (compaction)

    def start_replacement(
        self, index: int, count: int, *, decided_below: int = 0
    ) -> SegmentReplacement:
        """Begin to replace *count* segments from *index* on by one; `segment_replacement` has the steps.

        A truncation below *decided_below* cancels it: records below decide what the new segment lacks.

        Raise ValueError unless they are sealed and synced, and while an earlier replacement is not over;
        KafkaStorageError for a fenced log.
        """
        if self._failure is not None:
            raise self._fenced()
        following = self.segments[index + count : index + count + 1]
        if following and following[0].base_offset > self.recovery_point:
            raise ValueError(
                f"{self.directory}: only what is below {self.recovery_point} is synced"
            )
        return self.segments.start_replacement(
            index,
            count,
            index_interval_bytes=self.config.index_interval_bytes,
            decided_below=decided_below,
        )

    def replace_segments(self, replacement: SegmentReplacement) -> list[str]:
        """Put the new segment in the place of the old ones; return the files to unlink. Raise KafkaStorageError.

        Records of the run that the new segment lacks cannot be read any more. A reader at such an offset gets the next
        batch.
        """
        if self._failure is not None:
            return []
        try:
            paths = self.segments.replace(replacement)
        except OSError as error:
            raise self._fence(error) from error
        if replacement.is_replaced:
            gone = [segment.base_offset for segment in replacement.old[1:]]
            self.producers.segments_deleted(gone, self.log_start_offset)
        return paths

    def complete_replacement(self, replacement: SegmentReplacement) -> None:
        """Give the new segment its final names, after `SegmentReplacement.sync`. Raise KafkaStorageError."""
        if self._failure is not None:
            return
        try:
            self.segments.complete_replacement(replacement)
        except OSError as error:
            raise self._fence(error) from error

    # Appends that wait for a sync (flush.messages, flush.ms)

    def role_began(self) -> None:
        """Handle the begin of a role, leader or follower, or of the life of a copy as the current log.

        Records that were not synced count after a sync, if flush.messages or flush.ms asks for one.
        """
        if self.flush_state.role_began(self.log_end_offset, self.config):
            self._listener.flush_due()

    def _flush_if_due(self, base_offset: int, now_ms: int) -> None:
        if self.flush_state.appended(base_offset, self.log_end_offset, self.config, now_ms):
            self._listener.flush_due()

    # Flush and close

    def start_flush(self, *, sealed_only: bool = False) -> FlushWork | None:
        """Return the work of syncing what is not on the disk, or None when nothing is.

        *sealed_only* leaves the active segment out. The caller has `FlushWork.run` run in a pool
        and then calls `finish_flush`, or `flush_failed` with its error. Raise KafkaStorageError.
        """
        try:
            return self.flush_state.begin(self.log_end_offset, sealed_only=sealed_only)
        except OSError as error:
            raise self._fence(error) from error

    def finish_flush(self, work: FlushWork) -> None:
        """Move the recovery point after *work* has run; not if the log was cut meanwhile."""
        self.flush_state.finish(work, self.log_end_offset)

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
        """Close the files; flush and seal first when *clean*. Return whether all is synced.

        A log that is fenced, or fails now, was not closed cleanly. Slow when *clean*: runs in a
        pool, when the log is no longer in use.
        """
        done = clean and self._failure is None
        if done:
            try:
                work = self.start_close()
                if work is not None:
                    work.run()
                    self.finish_flush(work)
            except Exception:
                # A work of the log before this one may have failed by any error (S15).
                done = False
        self.segments.close()
        return done

    def start_close(self) -> FlushWork | None:
        """Write all that is not in a file yet; return what to sync before the log is closed, None for nothing.

        Raise OSError or KafkaStorageError: the log cannot be closed cleanly then.
        """
        if self._failure is not None:
            raise self._fenced()
        self.segments.active.index_time()
        self.segments.active.write_indexes()
        if self.config.preallocate:
            self.segments.active.cut_file()
        self.producers.write_last_snapshot(self.log_end_offset, self.segments)
        return self.start_flush()

    def moved_to(self, directory: str) -> None:
        """Handle the rename of the directory: the partition is being deleted, or a copy replaces the current log."""
        self.directory = directory
        self.flush_state.moved_to(directory)
        self.producers.moved_to(directory)
        self.segments.moved_to(directory)

    # A copy of another log of the partition (`log_moves`)

    def take_epochs(self, former: UnifiedLog) -> None:
        """Have the leader epochs of *former*, of which this log is a copy, as far as it goes."""
        self.leader_epochs.take_over(former.leader_epochs.entries)
        self.leader_epochs.truncate_from_end(self.log_end_offset)

    def take_over(self, former: UnifiedLog) -> None:
        """Have what *former* knows beside its records: this log has the same ones. Raise KafkaStorageError."""
        self.leader_epochs.take_over(former.leader_epochs.entries)
        try:
            self.producers.take_over(former.producers, self.log_end_offset, self.segments)
        except OSError as error:
            raise self._fence(error) from error
        # Until the new name is synced a power loss may bring the former log back, with what is synced there.
        self.flush_state.recovery_point = min(self.recovery_point, former.recovery_point)
        self.config = former.config
        self.lacks_until_in_sync = former.lacks_until_in_sync
