"""All log directories of a broker: which log is where, and everything that is done to many logs.

Theory of operation
===================
Every log belongs to the owner's thread. What is slow (sync, checkpoint, unlink) goes to the
*executor*, and its outcome comes back through *call_owner*. Nothing here has a timer: the broker
calls `sweep`, `flush_due` and `checkpoint` as often as its configuration asks for.

Invariants:
1. A recovery point on the disk is never above what was synced of the log that is there now. Before a log that begins
   again, or was truncated below it, takes an append, the checkpoint is written.
2. A directory that failed once stays offline until the broker is started again; the others go on.
3. A partition is in one directory: while one could not be read, nothing is made that may be in it, as in Kafka.

Owner: one thread, the reactor's. `load` and `close` are slow and run in a pool while the logs
are not in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from uuid import UUID

from kbroker.common.log_dir_integrity import BrokerEpochs, LogDirCondition, LogDirIntegrity
from kbroker.common.steps import at_once
from kbroker.common.topic_partition import TopicPartition
from kbroker.config.log import LogConfig
from kbroker.log.checkpoint_contents import CheckpointContents, Files
from kbroker.log.claimed_log_dirs import ClaimedLogDirs
from kbroker.log.clean_shutdown import close_all
from kbroker.log.clean_shutdown_file import NO_BROKER_EPOCH
from kbroker.log.core import directory_names
from kbroker.log.core.log_move import is_copy_of
from kbroker.log.core.partition_metadata_file import PartitionMetadata
from kbroker.log.interrupted_moves import complete_moves
from kbroker.log.log_cleaner import (
    CleanerConfig,
    Compaction,
    HighWatermark,
    LogCleaner,
    RunSteps,
)
from kbroker.log.log_dir import FoundCopy, LoadedLogDir, LogDir, PendingDelete
from kbroker.log.log_dir_histories import LogDirHistories
from kbroker.log.log_dir_history import LogDirHistory
from kbroker.log.log_flusher import LogFlusher
from kbroker.log.log_moves import LogMoves, Move, MovesHost, OnMove
from kbroker.log.offset_checkpoint_file import FoundLog, accepted_high_watermarks
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.errors import (
    InvalidTopicException,
    KafkaError,
    KafkaStorageError,
    LogDirNotFound,
)


class LogManager:
    """The logs of one broker, in one or more directories.

    *config_of* gives a topic's settings, *now_ms* the wall clock. *on_failure* is called with a directory that went
    offline and the partitions in it. *on_flush* is called with the partition of a synced log (on the owner's thread).
    Without *compaction* no log is compacted. *on_move* learns how moves of logs end; *move_executor* does their slow
    work.
    """

    def __init__(
        self,
        log_dirs: ClaimedLogDirs,
        *,
        config_of: Callable[[str], LogConfig],
        executor: Executor,
        call_owner: Callable[[Callable[[], None]], object],
        now_ms: Callable[[], int],
        on_failure: Callable[[str, Exception, list[TopicPartition]], None],
        on_flush: Callable[[TopicPartition], None],
        on_move: OnMove,
        recovery_threads: int = 2,
        boot_id: str = "",
        compaction: Compaction | None = None,
        move_executor: Executor | None = None,
    ) -> None:
        self._log_dirs = log_dirs
        self._disk = log_dirs.disk
        self._new_uuid = log_dirs.new_uuid
        self._config_of = config_of
        self._executor = executor
        self._call_owner = call_owner
        self._now_ms = now_ms
        self._on_failure = on_failure
        self._recovery_threads = recovery_threads
        self._directories: Sequence[LogDir] = log_dirs.directories
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self._where: dict[TopicPartition, LogDir] = {}
        self._pending_deletes: list[PendingDelete] = []
        self._renamed: dict[TopicPartition, tuple[LogDir, str]] = {}
        """Logs that were taken away, with their new paths, until these are synced. A power loss may bring back the
        former ones. A log that begins meanwhile begins in the same directory, so that the partition is not in two."""
        self._flushing = LogFlusher(self._logs, self._where, self._in_pool, on_flush)
        self._preferred: dict[TopicPartition, str] = {}
        """Where logs are to begin that do not exist yet: paths of log directories (KIP-113)."""
        self._settling: dict[TopicPartition, tuple[LogDir, LogDir]] = {}
        """Partitions with a log that has moved, and both directories, until their names are synced."""
        self._move_executor = move_executor
        self._on_move = on_move
        self.moves = LogMoves(
            self._logs,
            partial(self._in_executor, move_executor or executor),
            MovesHost(
                self._replace_with_copy,
                self._may_replace,
                self._prepare_move,
                self._remove_copy,
                partial(_LogEvents, self),
                self._where.__getitem__,
                lambda log: self._cleaner is not None and self._cleaner.end_round(log),
            ),
            disk=self._disk,
            now_ms=now_ms,
            on_move=on_move,
        )
        """The moves of logs to other directories."""
        self._cleaner = compaction and LogCleaner(
            self._logs,
            self._where,
            partial(self._in_executor, compaction.executor),
            compaction,
            now_ms=now_ms,
            remove_later=self._remove_later,
            is_paused=self.moves.__contains__,
        )
        self._checkpointing = CheckpointContents(
            self._logs, self._where, lambda: self.missing_logs.union(self.failed), self._copies_in
        )
        self._damaged: set[LogDir] = set()
        """Directories with a partition that was not opened: they get no marker of a clean shutdown."""
        self.failed: dict[TopicPartition, KafkaError] = {}
        """Partitions that cannot be served, and why: damaged files, or their directory is gone."""
        self.high_watermarks: dict[TopicPartition, int] = {}
        """High watermarks as they were checkpointed last; only until the replicas took them."""
        self.clean = True
        """Whether every directory was shut down cleanly the last time."""
        self.written_by_kbroker = False
        """Whether a kbroker has run on any of the directories before: each log it made had a topic id."""
        self.broker_epoch = NO_BROKER_EPOCH
        """The broker epoch of the last clean shutdown (KIP-966), or -1."""
        self.histories = LogDirHistories(boot_id)
        """What the directories keep of earlier runs of the broker (KIP-966)."""
        self._has_written = False
        """Whether the directories' files have this run already."""
        self.unreadable_dirs: list[str] = []
        """Paths of directories that could not be read at the start: their partitions are not known."""
        self.missing_logs: set[TopicPartition] = set()
        """Partitions that were here when the broker stopped, and that have no directory now.

        While nothing is begun in their place the checkpoints keep their entries: the next start misses them, too.
        """
        self.notes: list[str] = []
        """What loading found and did, for the broker's log."""

    # Start

    def load(self) -> None:
        """Open every log, recovering where the last shutdown was not clean. Slow.

        A directory that fails goes offline; raise KafkaStorageError when none is left, or when a
        partition is in two directories.
        """
        self.notes += complete_moves(self._directories, self._disk, self._new_uuid)
        copies: list[tuple[LogDir, FoundCopy]] = []
        for directory in self._directories:
            loaded = self._loaded(directory)
            if loaded is not None:
                self._take(directory, loaded)
                copies += [(directory, copy) for copy in loaded.copies]
                continue
            self.unreadable_dirs.append(directory.path)
            self.notes.append(f"log directory {directory.path} is offline: {directory.failure}")
        if all(directory.failure is not None for directory in self._directories):
            raise KafkaStorageError("no log directory is usable: " + "; ".join(self.notes))
        self.histories.conclude(self._logs, len(self.unreadable_dirs))
        self.missing_logs.difference_update(self._logs)
        if self.unreadable_dirs:  # a log that was to replace one of them may be there
            self._pending_deletes.clear()
        for directory, copy in copies:
            self._found_copy(directory, copy)

    def _found_copy(self, directory: LogDir, copy: FoundCopy) -> None:
        """Go on with the move of an earlier run, if the copy is of the current log."""
        key, current = copy.partition, self._logs.get(copy.partition)
        if (
            current is None
            or self._where[key] is directory
            or key in self.moves
            or not is_copy_of(key, copy.metadata, current.metadata)
        ):
            self.notes.append(f"{copy.path}: not a copy of a log in another directory, left alone")
            return
        directory_id = self.histories.directory_id(directory.path)
        self.moves.found(key, directory, copy.path, copy.unique, directory_id)

    def _loaded(self, directory: LogDir) -> LoadedLogDir | None:
        """Load a directory; None for one that failed before or fails now."""
        if directory.failure is not None:
            return None
        try:
            return directory.load(
                self._config_of,
                partial(_LogEvents, self, directory),
                threads=self._recovery_threads,
                now_ms=self._now_ms(),
                boot_id=self.histories.boot_id,
            )
        except OSError as error:
            directory.failure = str(error)
            return None

    def _take(self, directory: LogDir, loaded: LoadedLogDir) -> None:
        for partition, log in loaded.logs.items():
            if partition in self._where:
                topic, number = partition
                raise KafkaStorageError(
                    f"partition {topic}-{number} is in {self._where[partition].path} and in "
                    f"{directory.path}",
                    hint="keep the right one and move the other out of log.dirs",
                )
            self._adopt(partition, log, directory)
        self.failed.update(loaded.failed)
        if loaded.failed:
            self._damaged.add(directory)
        found = {
            key: FoundLog(log.log_end_offset, log.recovery_point, log.topic_id is not None)
            for key, log in loaded.logs.items()
        }
        self.high_watermarks |= accepted_high_watermarks(
            loaded.high_watermarks,
            found,
            after_power_loss=loaded.integrity.condition is LogDirCondition.POWER_LOSS,
            by_kbroker=loaded.history is not None,
        )
        self.clean = self.clean and loaded.clean
        self.written_by_kbroker = self.written_by_kbroker or loaded.history is not None
        self.broker_epoch = max(self.broker_epoch, loaded.broker_epoch)
        owner = directory.read_identity()
        directory_id = owner.directory_id if owner is not None else None
        self.histories.add(directory.path, directory_id, loaded.integrity, loaded.history)
        self.missing_logs |= loaded.missing_logs
        self.notes += loaded.notes
        self._pending_deletes += [
            PendingDelete(0, directory, (path,), True) for path in loaded.pending_deletes
        ]

    def _adopt(self, partition: TopicPartition, log: UnifiedLog, directory: LogDir) -> None:
        self._logs[partition] = log
        self._where[partition] = directory
        directory.logs += 1

    # Registrations of the broker

    def registering(self, after: int = -1) -> LogDirIntegrity:
        """Return what the directories vouch for, for a registration above epoch *after*; -1: no bound is known.

        The next start covers the epoch of it.
        A directory that fails with this write does not cover that epoch: the registration must not vouch for it.
        """
        self._lower_doubted_high_watermarks()
        self.histories.registering(after)
        self._write_histories()
        return self.histories.registration(has_failed=bool(self.offline))

    def refused(self) -> None:
        """Handle that an attempt to register has no broker epoch: the znode was certainly not created."""
        self.histories.refused()
        self._write_histories()

    def _lower_doubted_high_watermarks(self) -> None:
        """Correct the high watermarks that a power loss left in doubt, before the histories name the present boot.

        After a kill in the same boot the next start accepts the checkpoints as they are. A log that lost records keeps
        its entry (`lower_checkpoints`).
        """
        doubted = {
            key: mark
            for key, mark in self._complete_high_watermarks().items()
            if self.histories.lost_power(self._where[key].path)
        }
        if doubted:
            self.lower_checkpoints(doubted)

    def _complete_high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the high watermarks at the start of the logs that lost no records."""
        return {
            key: mark
            for key, mark in self.high_watermarks.items()
            if key in self._logs and self._logs[key].missing_below is None
        }

    def registered(self, broker_epoch: int) -> None:
        """Write the broker epoch of a registration into the directories. Quick: nothing is synced."""
        self.histories.registered(broker_epoch)
        self._write_histories()

    def vouched_for(self, partition: TopicPartition) -> BrokerEpochs | None:
        """Return the broker epochs under which a partition's log has kept everything."""
        where = self._where.get(partition)
        return self.histories.vouched_for(where.path, partition) if where is not None else None

    def _write_histories(self) -> None:
        self._has_written = True
        for directory in self._directories:
            if directory.failure is None:
                try:
                    directory.write_history(self._history_of(directory), durable=False)
                except OSError as error:
                    self._directory_failed(directory, error)

    def _history_of(self, directory: LogDir) -> LogDirHistory:
        return self.histories.history_of(directory.path, self.offline)

    def _before_new_log(self, directory: LogDir) -> None:
        """Reduce what a directory covers before a log begins in it that may have been in another one."""
        if self.histories.before_new_log(directory.path):
            try:
                directory.write_history(self._history_of(directory), durable=False)
            except OSError as error:
                self._directory_failed(directory, error)
                raise KafkaStorageError(f"{directory.path}: {error}") from error

    # Logs

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._logs)

    def __len__(self) -> int:
        return len(self._logs)

    def get(self, topic: str, partition: int) -> UnifiedLog | None:
        """Return the log of a partition, or None when it has none here (see also `failed`)."""
        return self._logs.get((topic, partition))

    @property
    def online(self) -> list[str]:
        """Paths of the directories that work."""
        return [directory.path for directory in self._directories if directory.failure is None]

    @property
    def offline(self) -> dict[str, str]:
        """Paths of the directories that failed, and why."""
        return {one.path: one.failure for one in self._directories if one.failure is not None}

    def directory_of(self, topic: str, partition: int) -> str | None:
        """Return the path of the log directory that a partition is in."""
        directory = self._where.get((topic, partition))
        return directory.path if directory else None

    def create(
        self, topic: str, partition: int, topic_id: UUID | None, *, is_new: bool = True
    ) -> UnifiedLog:
        """Begin an empty log, in the preferred directory or that with the fewest; return the one there is if any.

        *is_new*: no replica can have had it before. A few quick system calls; nothing is synced. Raise
        KafkaStorageError when no directory is left, or when the partition's old files are damaged or may be in an
        unreadable directory.
        """
        key = (topic, partition)
        log = self._logs.get(key)
        if log is not None:
            log.config = self._config_of(topic)  # they may not have been known when it was opened
            return log
        if key in self.failed:
            raise KafkaStorageError(f"{topic}-{partition} is offline: {self.failed[key]}")
        if self.unreadable_dirs and not is_new:
            raise KafkaStorageError(
                f"{topic}-{partition} is not created again: it may be in"
                f" {', '.join(self.unreadable_dirs)}, which is offline"
            )
        usable = [directory for directory in self._directories if directory.failure is None]
        if not usable:
            raise KafkaStorageError("every log directory is offline")
        self._check_vacant(key, usable)
        former = self._renamed.get(key, (None, ""))[0]
        directory = former if former in usable else min(usable, key=lambda one: one.logs)
        preferred = self._preferred.pop(key, None)
        if former not in usable:
            directory = next((one for one in usable if one.path == preferred), directory)
        path = f"{directory.path}/{directory_names.directory_name(topic, partition)}"
        self.missing_logs.discard(key)  # the checkpoints are to forget it now
        self._before_reuse(key, directory)
        self.high_watermarks.pop(key, None)
        if not is_new:
            self._before_new_log(directory)
        try:
            self._disk.mkdir(path)
            log = UnifiedLog.create(
                path,
                self._config_of(topic),
                self._metadata(key, directory, topic_id),
                _LogEvents(self, directory, key),
                now_ms=self._now_ms(),
                disk=self._disk,
            )
        except FileExistsError as error:  # and is not a directory
            raise KafkaStorageError(f"{path} is in the way: {error}", hint="remove it") from error
        except OSError as error:
            with suppress(OSError):  # the partition may be created in another directory then
                directory.remove([path], trees=True)
            self._directory_failed(directory, error)
            raise KafkaStorageError(f"{path} cannot be created: {error}") from error
        self._adopt(key, log, directory)
        return log

    def _check_vacant(self, key: TopicPartition, directories: Sequence[LogDir]) -> None:
        """Raise KafkaStorageError where a directory has a log of that partition that was not there at the start.

        The log has not been recovered, and may be the partition's own, put back by hand. Nothing is begun beside it,
        and what the checkpoints know of it stays.
        """
        name = directory_names.directory_name(*key)
        for directory in directories:
            path = f"{directory.path}/{name}"
            if self._disk.is_dir(path):
                self._damaged.add(directory)
                raise KafkaStorageError(
                    f"{path} was put there while the broker was running",
                    hint="restart the broker to have it loaded, or move it out of the log directory",
                )

    def identify(self, topic: str, partition: int, topic_id: UUID) -> None:
        """Write partition.metadata of a log where it is missing or names another broker's directory.

        Raise KafkaStorageError. A few quick system calls; the sync of the file begins within a second.
        """
        key = (topic, partition)
        log, metadata = self._logs[key], self._metadata(key, self._where[key], topic_id)
        metadata = metadata._replace(moves=log.metadata.moves)
        if log.topic_id is None or self.is_copied(log):
            log.assign(metadata)

    def is_copied(self, log: UnifiedLog) -> bool:
        """Return whether a log was made in the directory of another broker, and copied."""
        directory_id = log.metadata.directory_id
        return directory_id is not None and not self.histories.had(directory_id)

    def _metadata(
        self, key: TopicPartition, directory: LogDir, topic_id: UUID | None
    ) -> PartitionMetadata:
        return PartitionMetadata(topic_id, key[1], self.histories.directory_id(directory.path))

    def delete(self, topic: str, partition: int) -> None:
        """Take a partition's log away: renamed now, removed after file.delete.delay.ms.

        Raise KafkaStorageError when the rename fails, LogDirNotFound when there is no such log.
        """
        name = directory_names.delete_name(topic, partition, self._new_uuid().hex)
        log, directory, path = self._rename(topic, partition, name)
        due_ms = self._now_ms() + log.config.file_delete_delay_ms
        self._pending_deletes.append(PendingDelete(due_ms, directory, (path,), True))

    def set_aside(self, topic: str, partition: int) -> str:
        """Take away a log that is no partition's any more, and keep it; return its directory's new path.

        Raise as `delete`.
        """
        name = directory_names.stray_name(topic, partition, self._new_uuid().hex)
        for directory in self._directories:
            if directory.failure is None:
                self._before_new_log(directory)
        return self._rename(topic, partition, name)[2]

    def _rename(self, topic: str, partition: int, name: str) -> tuple[UnifiedLog, LogDir, str]:
        """Close a log for good and give its directory another name."""
        key = (topic, partition)
        self.moves.cancel(key)
        self._settle(key)
        log = self._logs.pop(key, None)
        if log is None:
            raise LogDirNotFound(f"there is no log of {topic}-{partition} here")
        directory = self._where.pop(key)
        directory.logs -= 1
        self._flushing.forget(key)
        self.high_watermarks.pop(key, None)
        self.histories.removed(key)
        path = f"{directory.path}/{name}"
        log.close(clean=False)
        try:
            self._disk.rename(log.directory, path)
        except OSError as error:
            self._directory_failed(directory, error)
            failure = KafkaStorageError(f"{log.directory} cannot be renamed: {error}")
            self.failed[key] = failure  # it is there still: none may begin in another directory
            raise failure from error
        log.moved_to(path)
        self._renamed[key] = directory, path
        return log, directory, path

    # Moves to other log directories (KIP-113, docs/design/alter-log-dirs.md)

    def prefer(self, topic: str, partition: int, path: str) -> None:
        """Have a log that does not exist yet begin in the log directory at *path*; end a move to another one.

        Raise LogDirNotFound, KafkaStorageError for a directory that is offline, InvalidTopicException for a name that
        leaves no room for that of a copy.
        """
        key, directory = (topic, partition), self._directory(path)
        if directory_names.future_name(topic, partition, "0" * 32) is None:
            raise InvalidTopicException(f"{topic}: too long for a move to another log directory")
        if directory is None:
            raise LogDirNotFound(f"{path} is none of log.dirs")
        if directory.failure is not None:
            raise KafkaStorageError(f"log directory {path} is offline: {directory.failure}")
        move = self.moves.get(key)
        if move is not None and move.target is not directory:
            self.moves.cancel(key)
        if self._where.get(key) is directory or key in self.moves:
            self._preferred.pop(key, None)
        else:
            self._preferred[key] = path

    def move(self, topic: str, partition: int, path: str) -> None:
        """Begin to move a log to the directory at *path*, after `prefer`; nothing to do if it is there, or on its way.

        A few quick system calls. Raise KafkaStorageError while a directory is offline, or if the copy cannot be made.
        """
        key, directory = (topic, partition), self._directory(path)
        log, where = self._logs[key], self._where[key]
        if directory is None or where is directory or key in self.moves:
            return
        if self.offline or self.unreadable_dirs:
            raise KafkaStorageError(
                f"{topic}-{partition} is not moved while a log directory is offline:"
                f" {', '.join(self.offline) or ', '.join(self.unreadable_dirs)}"
            )
        if log.topic_id is None:
            raise KafkaStorageError(f"{topic}-{partition} has no topic id")
        unique = self._new_uuid().hex
        name = directory_names.future_name(topic, partition, unique)
        metadata = self._metadata(key, directory, log.topic_id)
        self._preferred.pop(key, None)
        try:
            self.moves.create(
                key,
                directory,
                f"{directory.path}/{name}",
                unique,
                metadata._replace(moves=log.metadata.moves + 1),
            )
        except OSError as error:
            self._directory_failed(directory, error)
            raise KafkaStorageError(f"{directory.path}/{name} cannot be made: {error}") from error

    def _directory(self, path: str) -> LogDir | None:
        return next((each for each in self._directories if each.path == path), None)

    def _copies_in(self, directory: LogDir) -> dict[TopicPartition, UnifiedLog]:
        """Return the copies in *directory* that are about to replace logs in others."""
        return {
            move.key: move.log
            for move in self.moves
            if move.has_entries and move.target is directory and move.log is not None
        }

    def _may_replace(self, key: TopicPartition) -> bool:
        return self._logs[key].missing_below is None and key not in self._settling

    def _prepare_move(self, move: Move, _log: UnifiedLog, mark: int) -> Callable[[], None]:
        self._before_new_log(move.target)
        files = self._checkpointing.prepared(move.key, move.target, mark)
        number = move.target.decide_checkpoints(files)
        return partial(move.target.write_checkpoints, number, files)

    def _remove_copy(self, move: Move) -> None:
        path = f"{move.target.path}/{directory_names.delete_name(*move.key, self._new_uuid().hex)}"
        try:
            self._disk.rename(move.path, path)
        except OSError as error:
            self._directory_failed(move.target, error)
            return
        due_ms = self._now_ms() + self._config_of(move.key[0]).file_delete_delay_ms
        self._pending_deletes.append(PendingDelete(due_ms, move.target, (path,), True))

    def _replace_with_copy(self, move: Move, log: UnifiedLog) -> None:
        """Put the copy of a log in its place, if it is equal: two renames in one turn. Raise KafkaStorageError."""
        key, target = move.key, move.target
        current, source = self._logs[key], self._where[key]
        if (log.log_start_offset, log.log_end_offset) != (
            current.log_start_offset,
            current.log_end_offset,
        ):
            return
        name = directory_names.directory_name(*key)
        self._check_vacant(key, [target])
        self._before_new_log(target)
        log.take_over(current)
        former = f"{source.path}/{name}.{move.unique}{directory_names.DELETE_SUFFIX}"
        current.close(clean=False)
        # In this order a killed process leaves one log of that name: the start completes the second rename.
        try:
            self._disk.rename(current.directory, former)
        except OSError as error:
            self._directory_failed(source, error)
            raise KafkaStorageError(f"{current.directory} cannot be renamed: {error}") from error
        current.moved_to(former)
        self._flushing.forget(key)
        self.histories.moved(key, source.path)
        self.moves.finished(move)
        source.logs -= 1
        self._adopt(key, log, target)
        try:
            self._disk.rename(move.path, f"{target.path}/{name}")
        except OSError as error:
            self._directory_failed(target, error)
            raise KafkaStorageError(f"{move.path} cannot be renamed: {error}") from error
        log.moved_to(f"{target.path}/{name}")
        self._settling[key] = source, target
        log.role_began()
        self._on_move(key, target.path, None)
        delay_ms = log.config.file_delete_delay_ms

        def target_synced(error: BaseException | None) -> None:
            if error is None and not self.moves.is_stopped:
                self._in_pool(source, source.sync_names, source_synced)

        def source_synced(error: BaseException | None) -> None:
            self._settling.pop(key, None)
            if error is None:
                due_ms = self._now_ms() + delay_ms
                self._pending_deletes.append(PendingDelete(due_ms, source, (former,), True))

        self._in_pool(target, target.sync_names, target_synced)

    def _settle(self, key: TopicPartition) -> None:
        """Sync the new names of a log that has just moved, before its directory is renamed again."""
        for directory in self._settling.pop(key, ()):
            if directory.failure is None:
                try:
                    directory.sync_names()
                except OSError as error:
                    self._directory_failed(directory, error)

    # What is done to many

    def sweep(
        self,
        up_to_offset: Callable[[TopicPartition], int | None],
        dropped_of: Callable[[TopicPartition], None],
    ) -> int:
        """Apply retention to every log and remove what is due; return how many segments went.

        *up_to_offset* gives a partition's high watermark, None for its log end; *dropped_of* is called with each
        partition that has another log start offset. For every log.retention.check.interval.ms.
        """
        now_ms = self._now_ms()
        dropped = 0
        for key, log in list(self._logs.items()):
            if self._where.get(key) is None:
                continue  # its directory failed a moment ago
            before = len(log.segments)
            try:
                paths = log.delete_old_segments(now_ms, up_to_offset=up_to_offset(key))
            except KafkaError:
                continue  # it is tried again, or its directory is offline and the callback has reported that
            if paths:
                dropped += max(before - len(log.segments), 1)
                dropped_of(key)
                self._remove_later(key, paths)
        self.remove_due()
        return dropped

    def _remove_later(self, key: TopicPartition, paths: Sequence[str]) -> None:
        """Have files of *key*'s log, renamed already, removed after file.delete.delay.ms."""
        log = self._logs.get(key)
        if log is not None:  # else they go with the directory
            due_ms = self._now_ms() + log.config.file_delete_delay_ms
            self._pending_deletes.append(
                PendingDelete(due_ms, self._where[key], tuple(paths), False)
            )

    def configure_cleaner(self, config: CleanerConfig) -> None:
        """Compact with other settings; nothing is compacted before the first ones."""
        if self._cleaner is not None:
            self._cleaner.configure(config)

    def compact(self, high_watermark: HighWatermark, run: RunSteps = at_once) -> None:
        """Begin rounds of compaction over the logs that are due, as many at a time as log.cleaner.threads.

        *run* may do the steps of the look for these logs in several turns.
        """
        if self._cleaner is not None:
            self._cleaner.look(high_watermark, run)

    def stop_compaction(self) -> None:
        """End the rounds of compaction, before `close`."""
        if self._cleaner is not None:
            self._cleaner.stop()

    def stop_flushing(self) -> None:
        """Begin no further sync of a log, before `close`, which syncs all."""
        self._flushing.stop()

    @property
    def uncleanable(self) -> dict[TopicPartition, KafkaError]:
        """Partitions that compaction has set aside, and why."""
        return self._cleaner.uncleanable if self._cleaner is not None else {}

    def expire_producers(self, idle_ms: int) -> int:
        """Remove producers that wrote nothing for *idle_ms*; return how many."""
        idle_since_ms = self._now_ms() - idle_ms
        return sum(log.producers.expire(idle_since_ms) for log in self._logs.values())

    def remove_due(self) -> None:
        """Have the pool remove the files and directories that are due."""
        now_ms = self._now_ms()
        due = [each for each in self._pending_deletes if each.due_ms <= now_ms]
        self._pending_deletes = [each for each in self._pending_deletes if each.due_ms > now_ms]
        for each in due:
            if each.directory.failure is None:
                self._in_pool(each.directory, each.remove)

    def flush_due(self) -> None:
        """Start the flush of new identities, and of logs due by flush.messages or flush.ms; cheap to call often."""
        self._flushing.due(self._now_ms())

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Have the pool write the checkpoints of every directory.

        Recovery points, log start offsets and, where given, high watermarks. For every
        log.flush.offset.checkpoint.interval.ms.
        """
        for directory in self._directories:
            if directory.failure is None:
                files = self._checkpointing.files_of(directory, high_watermarks)
                number = directory.decide_checkpoints(files)
                renamed = {key: each for key, each in self._renamed.items() if each[0] is directory}
                self._in_pool(
                    directory,
                    partial(directory.write_checkpoints, number, files),
                    partial(self._names_synced, renamed),
                )

    def _names_synced(
        self, renamed: Mapping[TopicPartition, tuple[LogDir, str]], error: BaseException | None
    ) -> None:
        """Handle the end of a write of checkpoints, which syncs the names in their directory, too."""
        for key, each in renamed.items():
            if error is None and self._renamed.get(key) == each:
                del self._renamed[key]

    def lower_checkpoints(self, marks: Mapping[TopicPartition, int]) -> None:
        """Correct entries above the high watermarks *marks*, or above recovery points, before these logs take appends.

        One synced write for each directory that has such an entry. It covers the other logs that had a too high one at
        the start. So thousands of partitions cost one write after a power loss. A log that lost records keeps its
        entry: the next start misses them, too. A directory that fails goes offline.
        """
        for directory in self._directories:
            if directory.failure is not None:
                continue
            if self._checkpointing.lowered(marks, directory) is None:
                continue
            every = {**self._complete_high_watermarks(), **marks}
            files = self._checkpointing.lowered(every, directory)
            with suppress(KafkaStorageError):
                self._write_now(directory, files)

    def _before_reuse(self, key: TopicPartition, where: LogDir) -> None:
        """Correct a checkpoint entry that is above what *key*'s log now holds (1)."""
        files = self._checkpointing.corrected(key, where)
        self._write_now(where, files)

    def _write_now(self, where: LogDir, files: Files | None) -> None:
        """Write checkpoints on the owner's thread. Raise KafkaStorageError; the directory is offline then."""
        if files is not None:
            number = where.decide_checkpoints(files)
            try:
                where.write_checkpoints(number, files)
            except OSError as error:
                self._directory_failed(where, error)
                raise KafkaStorageError(f"{where.path}: {error}") from error

    # Failure and end

    def _in_pool(
        self,
        directory: LogDir,
        work: Callable[[], None],
        finished: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        """Run *work* in the pool, as `_in_executor`."""
        self._in_executor(self._executor, directory, work, finished)

    def _in_executor(
        self,
        executor: Executor,
        directory: LogDir,
        work: Callable[[], None],
        finished: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        """Run *work*; an OSError of it takes the directory offline. Call *finished* at every end.

        Any other error is raised on the owner's thread, after *finished* was called.
        """

        def came_back(future: Future[None]) -> None:
            error = future.exception()
            if isinstance(error, OSError):
                self._directory_failed(directory, error)
            if finished is not None:
                finished(error)
            if error is not None and not isinstance(error, OSError):
                raise error

        future = executor.submit(work)
        future.add_done_callback(lambda done: self._call_owner(lambda: came_back(done)))

    def _directory_failed(self, directory: LogDir, error: OSError) -> None:
        if directory.failure is not None:
            return
        directory.failure = str(error)
        mine = [key for key, where in self._where.items() if where is directory]
        self.moves.directory_failed(directory, mine)
        for key in mine:
            self._logs.pop(key).close(clean=False)
            del self._where[key]
            self.failed[key] = KafkaStorageError(f"log directory {directory.path}: {error}")
        if self._has_written:
            self._write_histories()  # it is away from now on
        self._on_failure(directory.path, error, mine)

    def close(
        self, *, broker_epoch: int = -1, high_watermarks: Mapping[TopicPartition, int] | None = None
    ) -> bool:
        """Close every log, write the checkpoints and the markers; return whether all was clean. Slow.

        A directory in which a log could not be closed, or was damaged when it was loaded, gets no
        clean-shutdown marker. The others get theirs, also if an error is raised that is not of the disk.
        """
        clean = True
        unforeseen: list[Exception] = []
        self.stop_compaction()
        self.moves.stop()
        try:
            self.end_work()
        except Exception as error:
            unforeseen.append(error)
        self.moves.close()
        for directory in self._directories:
            if directory.failure is not None:
                clean = False
                continue
            mine = [self._logs[key] for key, where in self._where.items() if where is directory]
            try:
                closed = close_all(mine, directory.sync_all, threads=self._recovery_threads)
                files = self._checkpointing.files_of(directory, high_watermarks)
                number = directory.decide_checkpoints(files)
                directory.write_checkpoints(number, files)
                if closed and directory not in self._damaged:
                    directory.write_history(self._history_of(directory), durable=True)
                    directory.mark_clean(broker_epoch)
                else:
                    clean = False
            except Exception as error:
                directory.failure = str(error) or type(error).__name__
                clean = False
                if not isinstance(error, OSError):
                    unforeseen.append(error)
        self._logs.clear()
        self._where.clear()
        self.release()
        if unforeseen:
            raise unforeseen[0]
        return clean

    def end_work(self) -> None:
        """Wait for the work of compaction and moves, after `stop_compaction` and `LogMoves.stop`. Slow.

        Nothing of it begins after this. The owner handles its outcomes before `close`.
        """
        if self._move_executor is not None:
            self._move_executor.shutdown(wait=True)
        if self._cleaner is not None:
            self._cleaner.close()

    def release(self) -> None:
        """Unlock the directories and write nothing (a crash, or a start that failed)."""
        self._log_dirs.release()


class _LogEvents:
    """Handles the events of a partition's log in *directory*: the current log, or a copy that is to replace it.

    A copy reports its failures only. Its truncations are those of the current log, and the move syncs it.
    """

    __slots__ = ("_directory", "_manager", "_partition")

    def __init__(self, manager: LogManager, directory: LogDir, partition: TopicPartition) -> None:
        self._manager = manager
        self._directory = directory
        self._partition = partition

    @property
    def _is_current(self) -> bool:
        return self._manager._where.get(self._partition) is self._directory

    def failed(self, error: OSError) -> None:
        self._manager._directory_failed(self._directory, error)

    def rolled(self) -> None:
        if self._is_current:
            self._manager._flushing.sealed(self._partition)

    def truncated(self, log_end_offset: int) -> None:
        if self._is_current:
            self._manager.moves.truncated(self._partition, log_end_offset)
            self._manager._before_reuse(self._partition, self._directory)

    def flush_due(self) -> None:
        self._manager._flushing.appended(self._partition)
