"""The part of a log that producers, consumers and replicas see: append and read.

Theory of operation
===================
A batch is checked by who received it; here it is stamped with its base offset and leader epoch (16
bytes outside its CRC) and written as it came, with one ``pwritev``. Reads are slices of segment
files. Nothing is ever decoded.

Invariants:
1. Readers see whole batches below the log end offset: a batch counts after it was written whole.
2. After a failed write or sync nothing more is accepted (S15): the log is fenced until opened anew.

Owner: one thread (the reactor's).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from kbroker.config.log import LogConfig
from kbroker.log import scan, timestamps
from kbroker.log.disk import Buffer, Disk, write_all
from kbroker.log.log_loader import LoadedLog
from kbroker.log.log_segment import BASE_OFFSET, MAX_RELATIVE, LogSegment, write_gap
from kbroker.log.slices import FileSlice
from kbroker.log.timestamps import TimestampOffset
from kclient.wire.batches import (
    LARGEST_OFFSET,
    BatchInfo,
    check_crc,
    iterate,
    stamp,
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
    """Where a batch went, as a Produce response says it."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """The leader's clock under message.timestamp.type=LogAppendTime, else -1."""
    log_start_offset: int


class LogSlice(NamedTuple):
    """What a read found: slices to send one after the other, each beginning with a batch.

    The last batch may be cut off by max_bytes; Kafka's clients drop such a tail and ask again.
    """

    slices: tuple[FileSlice, ...]
    size: int


EMPTY: Final = LogSlice((), 0)


class LocalLog:
    """Appends to and reads from the log in *directory*; `UnifiedLog` is the whole."""

    __slots__ = (
        "_active",
        "_disk",
        "_failure",
        "_on_failure",
        "_on_roll",
        "_segments",
        "config",
        "directory",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "producers",
    )

    def __init__(self, disk: Disk, directory: str, config: LogConfig, loaded: LoadedLog) -> None:
        self._disk = disk
        self.directory = directory
        self.config = config
        """The topic's settings; assign to change them."""
        self._segments = loaded.segments
        self._active = loaded.segments[-1]
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        """The offset the next record gets."""
        self.leader_epochs = loaded.epochs
        self.producers = loaded.producers
        """What is known of idempotent producers; ask `producers.states` before an append as leader."""
        self._failure: str | None = None
        self._on_failure: Callable[[OSError], None] | None = None
        self._on_roll: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.directory!r}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> Sequence[LogSegment]:
        """The segments, oldest first; the last is active."""
        return self._segments

    @property
    def failure(self) -> str | None:
        """Why the log takes no more appends, or None."""
        return self._failure

    def on_failure(self, callback: Callable[[OSError], None]) -> None:
        """Have *callback* called when the log is fenced by a failed write or sync."""
        self._on_failure = callback

    def on_roll(self, callback: Callable[[], None]) -> None:
        """Have *callback* called after a roll: the sealed segment waits for a flush."""
        self._on_roll = callback

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
        if self._active.roll_is_due(config, size, last_offset, max_timestamp, now_ms):
            self.roll(now_ms)
        segment = self._active
        self._write(segment, (stamp(info, base_offset, leader_epoch), rest))
        segment.appended(size, base_offset, last_offset, max_timestamp, config.index_interval_bytes)
        self.log_end_offset = last_offset + 1
        if leader_epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        if info.producer_id >= 0:
            producers = self.producers
            if producers.copied.goes_on:
                self._end_copied(base_offset)
            if log_append_time < 0:
                producers.states.appended(info, base_offset, now_ms)
            else:
                producers.states.appended(info, base_offset, now_ms, log_append_time)
        if config.flushes_appends:
            self._flush_if_due(base_offset, now_ms)
        return AppendResult(base_offset, last_offset, log_append_time, self.log_start_offset)

    def append_as_follower(self, buf: Buffer, now_ms: int) -> int:
        """Append the whole batches of *buf* as the leader stamped them; return their bytes.

        A cut-off tail is left out. Raise CorruptMessage for a batch whose CRC is wrong or whose
        offset does not follow: those before it are in the log then. Raise KafkaStorageError when
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
        for info in batches:
            if self._roll_is_due(info, now_ms, pending=run_bytes):
                self._append_run(view, run, leader_epoch, now_ms)
                run, run_bytes = [], 0
                if self._roll_is_due(info, now_ms):
                    self.roll(now_ms, last_offset=info.last_offset)
            run.append(info)
            run_bytes += info.size
        self._append_run(view, run, leader_epoch, now_ms)
        if batches and self.config.flushes_appends:
            self._flush_if_due(base_offset, now_ms)

    def _flush_if_due(self, base_offset: int, now_ms: int) -> None:
        """Handle an append from *base_offset* on, where flush.messages or flush.ms is set: `UnifiedLog` does."""

    def roll(self, now_ms: int, *, last_offset: int = 0) -> None:
        """Seal the active segment and start another at the log end offset.

        Only where *last_offset*, which will be written next, is too far from that for an index
        entry does it start further on: a segment that begins elsewhere than the one before it ends
        is, to recovery, one behind a hole, unless a file beside it tells where that one ended.
        """
        sealed = self._active
        base = max(self.log_end_offset, last_offset - MAX_RELATIVE)
        try:
            if sealed.size:
                sealed.seal()
            else:  # Kafka too replaces an empty segment: two cannot begin at one offset
                self._segments.remove(sealed)
            if base != self.log_end_offset:
                write_gap(self._disk, self.directory, base, self.log_end_offset)
            self._active = LogSegment.create(self._disk, self.directory, base, now_ms)
            self._segments.append(self._active)
            if not sealed.size and sealed.base_offset != base:
                # Deleted last: a power loss in between must not leave a directory without a segment.
                for path in sealed.mark_deleted():
                    self._disk.unlink(path)
            self.producers.write_snapshot(base, self._segments)
        except OSError as error:
            raise self._fence(error) from error
        if self._on_roll is not None and sealed.size:
            self._on_roll()

    def _end_copied(self, base_offset: int) -> None:
        """Take note that a producer of our own writes behind what a mirror copied."""
        try:
            self.producers.end_copied(base_offset)
        except OSError as error:
            self._fence(error)  # the batch itself is in the log

    def _append_run(
        self, view: memoryview, run: list[BatchInfo], leader_epoch: int | None, now_ms: int
    ) -> None:
        """Write batches that lie side by side in *view* to the active segment, in one go.

        They carry *leader_epoch*, or each the one that its header says if that is None.
        """
        if not run:
            return
        start, end = run[0].position, run[-1].end
        segment = self._active
        self._write(segment, (view[start:end],))
        interval = self.config.index_interval_bytes
        for info in run:
            segment.appended(
                info.size, info.base_offset, info.last_offset, info.max_timestamp, interval
            )
            if leader_epoch is None and info.leader_epoch != self.leader_epochs.latest:
                self.leader_epochs.assign(info.leader_epoch, info.base_offset)
        self.log_end_offset = run[-1].next_offset
        if leader_epoch is None:
            try:
                self.producers.replicated(run, now_ms)
            except OSError as error:
                raise self._fence(error) from error

    def _roll_is_due(self, info: BatchInfo, now_ms: int, *, pending: int = 0) -> bool:
        """Return whether the follower's batch *info*, behind *pending* bytes, begins a segment."""
        return self._active.roll_is_due(
            self.config, info.size, info.last_offset, info.max_timestamp, now_ms, pending=pending
        )

    def _write(self, segment: LogSegment, buffers: tuple[Buffer, ...]) -> None:
        """Write *buffers* behind the segment's last batch, all or (for every reader) nothing."""
        try:
            segment.spill_indexes()
            write_all(self._disk, segment.file.fd, buffers, segment.size)
        except OSError as error:
            raise self._fence(error) from error

    def _fence(self, error: OSError) -> KafkaStorageError:
        """Take no more appends, cut off what a failed write left, and tell who listens (S15)."""
        if self._failure is None:
            self._failure = f"{self.directory}: {error}"
            # The bytes are beyond every reader already; leaving them costs recovery a few reads.
            with suppress(OSError):
                self._disk.ftruncate(self._active.file.fd, self._active.size)
            if self._on_failure is not None:
                self._on_failure(error)
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
        """Return the batches from the one that holds *offset* on, from one segment.

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
        segment = self._active
        number = -1
        if offset < segment.base_offset:
            number = bisect_right(self._segments, offset, key=BASE_OFFSET) - 1
            segment = self._segments[number]
        try:
            return self._read_from(segment, number, offset, max_bytes, up_to_offset, min_one_batch)
        except OSError as error:
            raise KafkaStorageError(f"{segment.path}: {error}") from error

    def _read_from(
        self,
        segment: LogSegment,
        number: int,
        offset: int,
        max_bytes: int,
        up_to_offset: int,
        min_one_batch: bool,
    ) -> LogSlice:
        position = segment.recent_position(offset)
        while position is None:
            found = segment.locate(offset)
            if found is not None:
                position = found.position
            elif segment is self._active:
                return EMPTY
            else:  # a gap before the next segment
                number += 1
                segment = self._segments[number]
        if segment is self._active:
            bounded = up_to_offset < self.log_end_offset
        else:
            bounded = up_to_offset < self._segments[number + 1].base_offset
        end = segment.size
        if bounded:
            bound = segment.recent_position(up_to_offset)
            if bound is None:
                found = segment.locate(up_to_offset)
                bound = end if found is None else found.position
            end = bound
        size = end - position
        if size > max_bytes:
            first = scan.header_at(segment.file, position).size
            if first > max_bytes and not min_one_batch:
                return EMPTY
            size = max(first, max_bytes)
        if size <= 0:
            return EMPTY
        return LogSlice((FileSlice(segment.file, position, size),), size)

    def search_for_timestamp(
        self, timestamp: int, from_offset: int
    ) -> timestamps.Search | int | None:
        """Return where to look for the first record at or after *timestamp* (ms) from *from_offset* on.

        See `timestamps.search_from`. The search itself is for a pool.
        """
        return timestamps.search_from(
            self._segments, timestamp, max(from_offset, self.log_start_offset), self.log_end_offset
        )

    def search_for_max_timestamp(self) -> timestamps.Search | None:
        """Return where to look for the first record with the greatest timestamp of the log (KIP-734)."""
        return timestamps.search_greatest(self._segments, self.log_start_offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record whose timestamp is at or after *timestamp* (ms), or None. Slow.

        Reads the time index, some batch headers and one batch. Raise CorruptMessage for a batch
        that cannot be decoded.
        """
        return timestamps.first_at_or_after(
            self._segments, timestamp, self.log_start_offset, self.log_end_offset
        )

    def max_timestamp(self) -> TimestampOffset | None:
        """Return the first record that has the greatest timestamp of the log (KIP-734). Slow."""
        return timestamps.greatest(self._segments, self.log_start_offset)
