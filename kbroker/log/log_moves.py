"""Moves logs to other log directories (KIP-113): a future log is copied from the current log, and takes its place.

Theory of operation
===================
`core.log_move` decides the next step of each move; docs/design/alter-log-dirs.md has the steps and what a start finds
after a crash in each. What is slow (recovery of the future log after a restart, reading the current log, syncs,
checkpoints) runs in an executor. The owner's thread appends what was read, as a follower does, and begins the next
step. `go_on` begins the steps of moves that waited: for the role of their partition, for the throttle, for records.

Invariants:
1. One step of a move runs at a time.
2. A truncation of the current log lowers `Move.valid_below` before the next append.
3. No round of compaction runs over a log that is copied.
4. The files of a move that ended go when its last step has ended.

Owner: `LogManager`, on the owner's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from kbroker.common.topic_partition import TopicPartition
from kbroker.config.log import LONG_MAX, LogConfig
from kbroker.log.core.log_move import (
    LAST_BYTES,
    CopyRate,
    CurrentLog,
    FutureLog,
    Step,
    common_end,
    next_step,
)
from kbroker.log.core.partition_metadata_file import PartitionMetadata
from kbroker.log.disk import Disk
from kbroker.log.log_dir import LogDir
from kbroker.log.log_flusher import InPool
from kbroker.log.log_segments import LogSlice
from kbroker.log.unified_log import LogListener, UnifiedLog
from kclient.wire.batches import HEADER_SIZE, parse
from kclient.wire.errors import CorruptMessage, KafkaError, KafkaStorageError

SYNC_BYTES: Final = 64 << 20
"""A copy is synced after so many bytes: the last sync, before the replacement, is then short."""

NEVER_CUT: Final = 2**63 - 1


OnMove = Callable[[TopicPartition, str, Exception | None], None]
"""Receives a partition, the path of a log directory, and None: its log is there now. Or why it was not moved there."""


class Move:
    """The move of one log to the directory *target*; its copy lies at *path*."""

    __slots__ = (
        "directory_id",
        "has_entries",
        "has_identity",
        "is_busy",
        "is_over",
        "is_resumed",
        "is_unwanted",
        "key",
        "log",
        "path",
        "prepared_start",
        "target",
        "unique",
        "unsynced_bytes",
        "valid_below",
    )

    def __init__(
        self,
        key: TopicPartition,
        target: LogDir,
        path: str,
        unique: str,
        directory_id: str | None,
        log: UnifiedLog | None,
    ) -> None:
        self.key = key
        self.target = target
        self.path = path
        self.unique = unique
        """The 32 hex digits in the name of the copy."""
        self.directory_id = directory_id
        """Of the target."""
        self.log = log
        """The copy; None until it is open, after a restart."""
        self.is_resumed = log is None
        """Whether an earlier run of the broker began the copy."""
        self.is_busy = False
        """Whether a step runs in the executor."""
        self.is_over = False
        self.is_unwanted = False
        """Whether the copy is to be removed when the move is over."""
        self.valid_below = NEVER_CUT
        """The least end of the current log after a truncation that the copy has not followed yet."""
        self.unsynced_bytes = 0
        self.has_identity = False
        """Whether the partition.metadata of the current log was synced in the course of the move."""
        self.has_entries = False
        """Whether the checkpoints of the target have, or are to have, entries for the copy."""
        self.prepared_start: int | None = None
        """See `FutureLog`."""


class MovesHost(NamedTuple):
    """What the moves ask of the log manager. `replace_with_copy` and `prepare` raise KafkaStorageError."""

    replace_with_copy: Callable[[Move, UnifiedLog], None]
    """Puts the copy in the place of the current log, if they are equal."""
    may_replace: Callable[[TopicPartition], bool]
    """Whether the log of a partition may be replaced now."""
    prepare: Callable[[Move, UnifiedLog, int], Callable[[], None]]
    """Returns the work of writing the checkpoints of the target with entries of the copy, and this high watermark."""
    remove_copy: Callable[[Move], None]
    """Renames the copy and has it removed later."""
    listener_of: Callable[[LogDir, TopicPartition], LogListener]
    """Returns the listener of a log in a directory: of a copy, which may become the current log."""
    source_of: Callable[[TopicPartition], LogDir]
    """The directory of the current log."""
    wait_for_cleaner: Callable[[UnifiedLog], bool]
    """Has a round of compaction over a log end; whether one runs still."""


class LogMoves:
    """The moves of a broker's *logs*, each of which lies in the directory that *where* names."""

    def __init__(
        self,
        logs: Mapping[TopicPartition, UnifiedLog],
        in_executor: InPool,
        host: MovesHost,
        *,
        disk: Disk,
        now_ms: Callable[[], int],
        on_move: OnMove,
    ) -> None:
        self._logs = logs
        self._in_executor = in_executor
        self._host = host
        self._disk = disk
        self._now_ms = now_ms
        self._on_move = on_move
        self._moves: dict[TopicPartition, Move] = {}
        self._rate = CopyRate(LONG_MAX)
        self._high_watermark: Callable[[TopicPartition], int | None] = lambda _key: None
        self.is_stopped = False
        self.chunk_bytes = LAST_BYTES
        """The most that a step copies, and the turn of the replacement. One batch may be more."""

    def __iter__(self) -> Iterator[Move]:
        return iter(self._moves.values())

    def __contains__(self, key: object) -> bool:
        return key in self._moves

    def get(self, key: TopicPartition) -> Move | None:
        """Return the move of a partition's log, if it has one."""
        return self._moves.get(key)

    def limit(self, bytes_per_second: float) -> None:
        """Copy at most so many bytes in a second, all moves together."""
        self._rate.limit(bytes_per_second)

    # Begin and end

    def create(
        self,
        key: TopicPartition,
        target: LogDir,
        path: str,
        unique: str,
        metadata: PartitionMetadata,
    ) -> None:
        """Begin a move with an empty copy at *path*. A few quick system calls. Raise OSError."""
        self._disk.mkdir(path)
        config = _without_flushes(self._logs[key].config)
        log = UnifiedLog.create(
            path,
            config,
            metadata,
            self._host.listener_of(target, key),
            now_ms=self._now_ms(),
            disk=self._disk,
        )
        move = self._moves[key] = Move(key, target, path, unique, metadata.directory_id, log)
        self._go_on(move)

    def found(
        self, key: TopicPartition, target: LogDir, path: str, unique: str, directory_id: str | None
    ) -> None:
        """Go on with the move of an earlier run; its copy is opened when the partition has a role."""
        self._moves[key] = Move(key, target, path, unique, directory_id, None)

    def cancel(self, key: TopicPartition) -> None:
        """End the move of a partition's log, if there is one, and remove the copy."""
        move = self._moves.pop(key, None)
        if move is not None:
            move.is_unwanted = True
            self._end(move)

    def finished(self, move: Move) -> None:
        """Handle the replacement of a log by its copy."""
        del self._moves[move.key]
        move.is_over = True

    def truncated(self, key: TopicPartition, log_end_offset: int) -> None:
        """Handle a truncation of the current log, which ends at *log_end_offset* now."""
        move = self._moves.get(key)
        if move is not None:
            move.valid_below = min(move.valid_below, log_end_offset)
            # A write of checkpoints may be under way, with a high watermark above that end: the next one replaces it.
            move.has_entries, move.prepared_start = False, None

    def directory_failed(self, directory: LogDir, lost: Sequence[TopicPartition]) -> None:
        """End the moves to *directory*, and those of the logs that it *lost*. The copies stay for the next start."""
        for move in list(self._moves.values()):
            if move.target is directory or move.key in lost:
                del self._moves[move.key]
                self._end(move)

    def stop(self) -> None:
        """Begin no further step."""
        self.is_stopped = True

    def close(self) -> None:
        """Close the copies, after `stop` and when no step runs any more. The next start goes on with them."""
        for move in self._moves.values():
            if move.log is not None:
                move.log.close(clean=False)
        self._moves.clear()

    def _end(self, move: Move) -> None:
        move.is_over = True
        if move.is_busy:
            return  # (4)
        if move.log is not None:
            move.log.close(clean=False)
        if move.is_unwanted and move.target.failure is None:
            self._host.remove_copy(move)

    def _fail(self, move: Move, why: Exception) -> None:
        self.cancel(move.key)
        self._on_move(move.key, move.target.path, why)

    # Steps

    def go_on(self, high_watermark: Callable[[TopicPartition], int | None]) -> None:
        """Begin the next step of each move that waits; *high_watermark* is None for a partition without a role."""
        self._high_watermark = high_watermark
        for move in list(self._moves.values()):
            self._go_on(move)

    def _go_on(self, move: Move) -> None:
        current = self._logs.get(move.key)
        if (
            self.is_stopped
            or move.is_busy
            or self._moves.get(move.key) is not move
            or current is None
            or current.failure is not None
            or self._high_watermark(move.key) is None
            or self._host.wait_for_cleaner(current)
        ):
            return
        try:
            self._take_step(move, current)
        except KafkaStorageError:
            pass  # the directory of the copy is offline, or the current log cannot be read now
        except KafkaError as error:
            self._fail(move, error)

    def _take_step(self, move: Move, current: UnifiedLog) -> None:
        log = move.log
        if log is not None and log.log_end_offset <= move.valid_below:
            move.valid_below = NEVER_CUT  # nothing of what was cut was copied
        step = next_step(
            CurrentLog(
                current.log_start_offset,
                current.log_end_offset,
                current.recovery_point,
                self._host.may_replace(move.key),
            ),
            None
            if log is None
            else FutureLog(
                log.log_start_offset,
                log.log_end_offset,
                log.recovery_point,
                move.valid_below,
                move.unsynced_bytes,
                move.prepared_start,
            ),
            lambda: log is not None and self._is_near(current, log.log_end_offset),
        )
        if log is None:
            self._open(move, current)
        elif step is Step.TRUNCATE:
            self._truncate(move, log, min(move.valid_below, current.log_end_offset))
            self._go_on(move)
        elif step is Step.START_AGAIN:
            self._start_again(move, log, current.log_start_offset)
            self._go_on(move)
        elif step is Step.COPY:
            self._copy(move, log, current)
        elif step is Step.PREPARE:
            self._prepare(move, log, current)
        elif step is Step.REPLACE:
            self._replace(move, log, current)

    def _is_near(self, current: UnifiedLog, offset: int) -> bool:
        found = current.read(offset, self.chunk_bytes)
        if not found.slices:
            return True
        return found.size < self.chunk_bytes and current.segments.active.has(found.slices[-1])

    def _work(
        self,
        move: Move,
        work: Callable[[], None],
        then: Callable[[], None],
        directory: LogDir | None = None,
    ) -> None:
        """Have *work* done in the executor, then *then* on the owner's thread, then the next step.

        An OSError takes *directory* offline; None: that of the copy.
        """
        problems: list[KafkaError] = []

        def run() -> None:
            try:
                work()
            except KafkaError as error:
                problems.append(error)

        def finished(error: BaseException | None) -> None:
            if self.is_stopped and not move.is_over:
                return  # `close` closes the copy, maybe in another thread
            move.is_busy = False
            if move.is_over:
                self._end(move)
            elif isinstance(error, Exception):
                self._fail(move, error)
            else:
                self._worked(move, problems, then)

        move.is_busy = True
        self._in_executor(directory or move.target, run, finished)

    def _worked(self, move: Move, problems: Sequence[KafkaError], then: Callable[[], None]) -> None:
        try:
            if problems:
                raise problems[0]
            then()
        except KafkaStorageError:
            return  # until `go_on`
        except KafkaError as error:
            self._fail(move, error)
            return
        self._go_on(move)

    def _open(self, move: Move, current: UnifiedLog) -> None:
        opened: list[UnifiedLog] = []
        config, now_ms = _without_flushes(current.config), self._now_ms()
        listener = self._host.listener_of(move.target, move.key)

        def work() -> None:
            opened.append(
                UnifiedLog.open(move.path, config, listener, now_ms=now_ms, disk=self._disk)
            )

        def then() -> None:
            log = move.log = opened[0]
            # Recovery found batches, which may have been cut off the current log while the broker was down.
            ours, theirs = current.leader_epochs.entries, log.leader_epochs.entries
            _cut(log, common_end(ours, current.log_end_offset, theirs, log.log_end_offset))
            move.valid_below = NEVER_CUT
            metadata = current.metadata._replace(
                directory_id=move.directory_id, moves=current.metadata.moves + 1
            )
            if log.metadata != metadata:
                log.assign(metadata)

        self._work(move, work, then)

    def _truncate(self, move: Move, log: UnifiedLog, offset: int) -> None:
        move.has_entries, move.prepared_start = False, None
        move.valid_below = NEVER_CUT
        _cut(log, offset)

    def _start_again(self, move: Move, log: UnifiedLog, offset: int) -> None:
        move.has_entries, move.prepared_start = False, None
        log.truncate_fully_and_start_at(offset, self._now_ms())

    def _copy(self, move: Move, log: UnifiedLog, current: UnifiedLog) -> None:
        if self._rate.is_exceeded(self._now_ms()):
            return  # until `go_on`
        found = current.read(log.log_end_offset, self.chunk_bytes)
        if not found.slices:
            return  # behind a hole of a compacted log; until records follow
        self._rate.copied(found.size)
        truncations = current.truncations
        data: list[bytes] = []

        def then() -> None:
            if current.truncations != truncations:
                return  # what was read may be of both sides of the cut
            size = _append(log, data[0], current.log_start_offset, self._now_ms())
            if not size:
                raise CorruptMessage(
                    f"{current.directory}: the batch at offset {log.log_end_offset} cannot be copied"
                )
            move.unsynced_bytes += size
            if move.unsynced_bytes >= SYNC_BYTES:
                self._sync(move, log, lambda: None)

        self._work(move, lambda: data.append(_bytes_of(found)), then)

    def _sync(self, move: Move, log: UnifiedLog, then: Callable[[], None]) -> None:
        """Sync the copy in the executor, then do *then*."""
        work = log.start_flush()
        move.unsynced_bytes = 0
        if work is None:
            then()
            return

        def finished() -> None:
            log.finish_flush(work)
            then()

        self._work(move, work.run, finished)

    def _prepare(self, move: Move, log: UnifiedLog, current: UnifiedLog) -> None:
        move.prepared_start = None
        log.take_epochs(current)
        # Below, the current log was compacted before the copy began. Of an earlier run that is not known.
        log.clean_below = None if move.is_resumed else current.clean_below
        start = min(current.log_start_offset, log.log_end_offset)
        if start > log.log_start_offset:
            log.advance_log_start(start)

        def synced() -> None:
            # Without its identity a log that a power loss brings back may be that of another topic.
            source = self._host.source_of(move.key)
            if move.has_identity:
                identified()
            else:
                self._work(move, current.sync_identity, identified, source)

        def identified() -> None:
            move.has_identity = True
            if move.valid_below < log.log_end_offset:
                return
            mark = min(self._high_watermark(move.key) or 0, log.log_end_offset)
            move.has_entries = True
            self._work(move, self._host.prepare(move, log, mark), written)

        def written() -> None:
            if move.has_entries:
                move.prepared_start = start

        self._sync(move, log, synced)

    def _replace(self, move: Move, log: UnifiedLog, current: UnifiedLog) -> None:
        found = current.read(log.log_end_offset, self.chunk_bytes)
        _append(log, _bytes_of(found), current.log_start_offset, self._now_ms())
        if log.recovery_point < current.recovery_point:
            log.flush()  # at most LAST_BYTES twice: appends wait for such syncs anyway
        self._host.replace_with_copy(move, log)


def _without_flushes(config: LogConfig) -> LogConfig:
    """Return *config* for a copy: nothing waits for its syncs."""
    return replace(config, flush_messages=LONG_MAX, flush_ms=LONG_MAX)


def _bytes_of(found: LogSlice) -> bytes:
    try:
        return b"".join(part.read() for part in found.slices)
    except OSError as error:
        raise KafkaStorageError(f"a log that moves cannot be read: {error}") from error


def _append(log: UnifiedLog, data: bytes, log_start_offset: int, now_ms: int) -> int:
    """Append the whole batches of *data*; return their bytes."""
    size = 0
    if len(data) >= HEADER_SIZE:
        first = parse(data).base_offset
        if first < log.log_end_offset == log.log_start_offset:
            # The log begins within a batch (DeleteRecords): it comes whole.
            log.truncate_fully_and_start_at(first, now_ms)
        size = log.append_as_follower(data, now_ms)
    start = min(log_start_offset, log.log_end_offset)
    if start > log.log_start_offset:
        log.advance_log_start(start)
    return size


def _cut(log: UnifiedLog, offset: int) -> None:
    log.truncate_to(offset)
    log.leader_epochs.truncate_from_end(log.log_end_offset)
