"""One log directory: its lock, its owner's identity, its checkpoints, and the logs it holds.

`claim`, `load` and `close` are slow and run before, or after, the logs are in use; so does
`write_checkpoints` in a pool. Files of the directory itself are replaced in one step, so that a
crash leaves the old content or the new.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Final, NamedTuple, TypeVar

from kbroker.common.log_dir_integrity import LogDirIntegrity
from kbroker.common.topic_partition import TopicPartition
from kbroker.config.log import LogConfig
from kbroker.log import log_dir_history, offset_checkpoint_file
from kbroker.log.clean_shutdown_file import (
    CLEAN_SHUTDOWN,
    NO_BROKER_EPOCH,
    decode_clean_shutdown,
    encode_clean_shutdown,
)
from kbroker.log.core import directory_names
from kbroker.log.core.partition_metadata_file import (
    PARTITION_METADATA,
    PartitionMetadata,
    decode_partition_metadata,
)
from kbroker.log.disk import DISK_FAILURES, Disk, read_file, replace_file, unlink_if_there
from kbroker.log.meta_properties import META_PROPERTIES, MetaProperties, decode_meta_properties
from kbroker.log.unified_log import LogListener, UnifiedLog
from kclient.wire.errors import CorruptMessage, KafkaError, KafkaStorageError

LOCK_FILE: Final = ".lock"

A = TypeVar("A")
B = TypeVar("B")


class LoadedLogDir(NamedTuple):
    """What a directory held when the broker started."""

    logs: dict[TopicPartition, UnifiedLog]
    failed: dict[TopicPartition, KafkaError]
    """Partitions with damaged files, and the damage; the files are not changed."""
    pending_deletes: list[str]
    """Directories of deleted partitions, to remove when there is time."""
    high_watermarks: dict[TopicPartition, int]
    clean: bool
    """Whether the broker was shut down cleanly the last time."""
    broker_epoch: int
    """The broker epoch of that clean shutdown (KIP-966), or -1."""
    integrity: LogDirIntegrity
    """What the directory vouches for."""
    history: log_dir_history.LogDirHistory | None
    """Where the last is from."""
    missing_logs: frozenset[TopicPartition]
    """Partitions that the checkpoints know, and that have no directory here."""
    notes: list[str]
    copies: list[FoundCopy]
    """Copies of logs of other directories, which an earlier run began."""


class FoundCopy(NamedTuple):
    """A future log that was found at the start; it is not open."""

    partition: TopicPartition
    path: str
    unique: str
    metadata: PartitionMetadata


class LogDir:
    """The directory at *path*, ours alone from `claim` to `release`."""

    def __init__(self, disk: Disk, path: str, lock: int) -> None:
        self._disk = disk
        self.path = path
        self._lock = lock
        self._is_new = False
        self.failure: str | None = None
        """Why the directory is offline, or None."""
        self.logs = 0
        """How many logs are in use in it; counted by `LogManager`."""
        self.log_starts: Mapping[TopicPartition, int] = {}
        """The log start offsets that the start accepted, also of logs that are not here."""
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._decided: dict[str, dict[TopicPartition, int]] = {}
        """The latest content of each checkpoint that was decided: a thread may be about to write it."""
        self._write_lock = Lock()
        self._write_number = 0
        self._last_write: dict[str, int] = {}

    @classmethod
    def claim(cls, disk: Disk, path: str) -> LogDir:
        """Create the directory where it is missing and lock it; one on a disk that failed has a `failure`.

        Raise KafkaStorageError when another process has it or it cannot be used for another reason.
        """
        try:
            _make_directories(disk, path)
            lock = disk.lock(f"{path}/{LOCK_FILE}")
        except OSError as error:
            if error.errno in DISK_FAILURES:
                failed = cls(disk, path, -1)
                failed.failure = str(error)
                return failed
            raise KafkaStorageError(
                f"log directory {path} cannot be used: {error}",
                hint="log.dirs must name directories that this user may create and write",
            ) from error
        if lock is None:
            raise KafkaStorageError(
                f"log directory {path} is in use by another process",
                hint="stop the other broker, or give this one another log.dirs",
            )
        return cls(disk, path, lock)

    def release(self) -> None:
        """Unlock the directory."""
        if self._lock >= 0:
            self._disk.close(self._lock)
            self._lock = -1

    def sync_all(self, paths: Sequence[str]) -> bool:
        """Sync everything at once; False where that is not to be relied on for all of *paths*.

        The lock was taken before anything else: a write that failed since then is reported.
        """
        return self._disk.sync_all(self._lock, paths)

    # Identity

    def read_identity(self) -> MetaProperties | None:
        """Return the owner of the directory, None when it is new or its disk failed; raise KafkaStorageError."""
        if self.failure is not None:
            return None
        path = f"{self.path}/{META_PROPERTIES}"
        try:
            return decode_meta_properties(read_file(self._disk, path))
        except FileNotFoundError:
            return None
        except (OSError, CorruptMessage) as error:
            if isinstance(error, OSError) and error.errno in DISK_FAILURES:
                self.failure = str(error)
                return None
            raise KafkaStorageError(
                f"{path} cannot be read: {_reason(error)}",
                hint="restore it, or remove it if the directory is this broker's",
            ) from error

    def write_identity(self, owner: MetaProperties) -> None:
        """Write the owner of the directory, unless its disk failed or fails now."""
        self._is_new = self.read_identity() is None
        if self.failure is not None:
            return
        try:
            replace_file(self._disk, f"{self.path}/{META_PROPERTIES}", owner.encode())
        except OSError as error:
            if error.errno not in DISK_FAILURES:
                raise
            self.failure = str(error)

    # Loading

    def load(
        self,
        config_of: Callable[[str], LogConfig],
        listener_of: Callable[[TopicPartition], LogListener],
        *,
        threads: int,
        now_ms: int,
        boot_id: str,
    ) -> LoadedLogDir:
        """Open every log, recovering where the last shutdown was not clean.

        The marker of a clean shutdown is removed first: a crash from here on is unclean
        (KAFKA-10471). A damaged checkpoint counts as none; damaged partitions are listed. Raise
        OSError when the directory itself fails.
        """
        notes: list[str] = []
        epoch = self._take_clean_marker(boot_id)
        history = self._read_history()
        integrity = log_dir_history.assess(history, epoch, boot_id, is_new=self._is_new)
        recovery_points = self._read_checkpoint(offset_checkpoint_file.RECOVERY_POINTS, notes)
        high_watermarks = self._read_checkpoint(offset_checkpoint_file.HIGH_WATERMARKS, notes)
        cleaner_offsets = self._read_checkpoint(offset_checkpoint_file.CLEANER_OFFSETS, notes)
        log_starts = self.log_starts = self._read_log_starts(high_watermarks, notes)
        found: list[tuple[TopicPartition, str]] = []
        copies: list[FoundCopy] = []
        pending_deletes = []
        for name in sorted(self._disk.listdir(self.path)):
            path = f"{self.path}/{name}"
            if not self._disk.is_dir(path):
                continue
            if directory_names.is_deleted(name):
                pending_deletes.append(path)
                continue
            moved = directory_names.parse_moved(name)
            if moved is not None:
                copies.append(
                    FoundCopy(moved.partition, path, moved.unique, self.read_partition(name))
                )
                continue
            partition = directory_names.parse_directory(name)
            if partition is None:
                notes.append(f"{path}: not a partition's directory, left alone")
                continue
            found.append((partition, path))

        def open_log(item: tuple[TopicPartition, str]) -> UnifiedLog | KafkaError:
            partition, path = item
            try:
                return UnifiedLog.open(
                    path,
                    config_of(partition[0]),
                    listener_of(partition),
                    now_ms=now_ms,
                    disk=self._disk,
                    clean=epoch is not None,
                    recovery_point=recovery_points.get(partition, 0),
                    log_start_offset=log_starts.get(partition, 0),
                )
            except KafkaError as error:
                return error

        opened = in_threads(threads, open_log, found)
        logs: dict[TopicPartition, UnifiedLog] = {}
        failed: dict[TopicPartition, KafkaError] = {}
        for (partition, _), result in zip(found, opened, strict=True):
            if isinstance(result, UnifiedLog):
                logs[partition] = result
                clean_below = cleaner_offsets.get(partition)
                if clean_below is not None and clean_below <= result.log_end_offset:
                    result.clean_below = clean_below
                committed = high_watermarks.get(partition, 0)
                if result.log_end_offset < committed:
                    result.missing_below = max(result.missing_below or 0, committed)
                    notes.append(
                        f"{result.directory}: ends at {result.log_end_offset}, but everything below "
                        f"{committed} was committed"
                    )
                notes += result.notes
            else:
                failed[partition] = result
        return LoadedLogDir(
            logs,
            failed,
            pending_deletes,
            high_watermarks,
            epoch is not None,
            NO_BROKER_EPOCH if epoch is None else epoch,
            integrity,
            history,
            frozenset(recovery_points.keys() | high_watermarks.keys()) - dict(found).keys(),
            notes,
            copies,
        )

    def names(self) -> list[str]:
        """Return the names of the directories and files in it. Raise OSError."""
        return sorted(self._disk.listdir(self.path))

    def read_partition(self, name: str) -> PartitionMetadata:
        """Return the identity of the log in the directory *name*; one without fields where that is not known.

        Raise OSError.
        """
        with suppress(FileNotFoundError, CorruptMessage):
            return decode_partition_metadata(
                read_file(self._disk, f"{self.path}/{name}/{PARTITION_METADATA}")
            )
        return PartitionMetadata(None)

    def rename(self, name: str, other: str) -> None:
        """Give a directory in it another name, and sync that. Slow. Raise OSError."""
        self._disk.rename(f"{self.path}/{name}", f"{self.path}/{other}")
        self.sync_names()

    def sync_names(self) -> None:
        """Sync the names in it. Slow. Raise OSError."""
        self._disk.sync_dir(self.path)

    def _take_clean_marker(self, boot_id: str) -> int | None:
        """Remove the marker of a clean shutdown; return its broker epoch, or None without a marker."""
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        try:
            epoch = decode_clean_shutdown(read_file(self._disk, path))
        except FileNotFoundError:
            return None
        # The marker stays where nothing can be written, as on a full disk. Without it, the next start would report that
        # the machine went down before this run.
        history = self._read_history()
        if history is not None:
            self.write_history(history._replace(boot_id=boot_id), durable=True)
        self._disk.unlink(path)
        self._disk.sync_dir(self.path)
        return epoch

    def _read_history(self) -> log_dir_history.LogDirHistory | None:
        try:
            return log_dir_history.decode(
                read_file(self._disk, f"{self.path}/{log_dir_history.FILE}")
            )
        except FileNotFoundError:
            return None

    def write_history(self, history: log_dir_history.LogDirHistory, *, durable: bool) -> None:
        """Write the history of the broker in this directory, for the next start."""
        path = f"{self.path}/{log_dir_history.FILE}"
        replace_file(self._disk, path, history.encode(), durable=durable)

    def _read_checkpoint(self, name: str, notes: list[str]) -> dict[TopicPartition, int]:
        """Read a checkpoint; a damaged one counts as none."""
        return self._written.setdefault(name, self._decoded(name, notes) or {})

    def _decoded(self, name: str, notes: list[str]) -> dict[TopicPartition, int] | None:
        """Read a checkpoint; None where there is none, or it cannot be decoded."""
        path = f"{self.path}/{name}"
        unlink_if_there(self._disk, path + ".tmp")
        try:
            offsets = offset_checkpoint_file.decode(read_file(self._disk, path))
        except FileNotFoundError:
            return None
        except CorruptMessage as error:
            notes.append(f"{path}: {error.message}; going on without it")
            return None
        self._written[name] = offsets
        return offsets

    def _read_log_starts(
        self, high_watermarks: Mapping[TopicPartition, int], notes: list[str]
    ) -> dict[TopicPartition, int]:
        """Read the log start offsets; those that a second file does not confirm are reported, and not accepted."""
        offsets = self._read_checkpoint(offset_checkpoint_file.LOG_START_OFFSETS, notes)
        copy = self._decoded(offset_checkpoint_file.LOG_START_OFFSETS_COPY, notes)
        found = offset_checkpoint_file.accepted_log_starts(offsets, copy, high_watermarks)
        for (topic, partition), offset in found.refused.items():
            notes.append(
                f"{self.path}/{offset_checkpoint_file.LOG_START_OFFSETS}: log start offset {offset} of"
                f" {topic}-{partition} is not accepted: no other file has it. The log begins at"
                f" {found.accepted.get((topic, partition), 'its first segment')}"
            )
        return found.accepted

    # Checkpoints

    def written(self, name: str, partition: TopicPartition) -> int:
        """Return the entry of *partition* in checkpoint *name* on the disk, or -1.

        While a write is under way it is the higher one of the two that the disk may have.
        """
        on_disk = self._written.get(name, {}).get(partition, -1)
        return max(on_disk, self._decided.get(name, {}).get(partition, -1))

    def all_written(self, name: str) -> Mapping[TopicPartition, int]:
        """Return checkpoint *name* as it is on the disk, or will be when the write under way has ended."""
        return self._decided.get(name, self._written.get(name, {}))

    def decide_checkpoints(self, files: Mapping[str, dict[TopicPartition, int]]) -> int:
        """Handle that *files* are to be written; return their number: later ones are never overwritten.

        Owner's thread. `write_checkpoints` follows.
        """
        self._decided.update(files)
        self._write_number += 1
        return self._write_number

    def write_checkpoints(
        self, number: int, files: Mapping[str, dict[TopicPartition, int]]
    ) -> None:
        """Replace checkpoints (by file name), unless later ones are there. Slow; any thread."""
        with self._write_lock:
            starts = files.get(offset_checkpoint_file.LOG_START_OFFSETS)
            if starts is not None:
                # The copy first: an entry that only one of the two has does not count.
                files = {offset_checkpoint_file.LOG_START_OFFSETS_COPY: starts, **files}
            for name, offsets in files.items():
                if self._last_write.get(name, 0) > number:
                    continue
                if (
                    name == offset_checkpoint_file.LOG_START_OFFSETS_COPY
                    and self._written.get(name) == offsets
                ):
                    self._last_write[name] = number  # an earlier one, late, must not replace it
                    continue
                replace_file(
                    self._disk, f"{self.path}/{name}", offset_checkpoint_file.encode(offsets)
                )
                self._last_write[name] = number
                self._written[name] = offsets

    def mark_clean(self, broker_epoch: int) -> None:
        """Write the marker of a clean shutdown: the last step before `release`."""
        content = encode_clean_shutdown(broker_epoch)
        replace_file(self._disk, f"{self.path}/{CLEAN_SHUTDOWN}", content)

    def remove(self, paths: Sequence[str], *, trees: bool) -> None:
        """Remove files, or with *trees* the directories of deleted partitions. Slow: for a pool."""
        for path in paths:
            if trees:
                with suppress(FileNotFoundError):
                    self._remove_tree(path)
            else:
                unlink_if_there(self._disk, path)

    def _remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it, also what a person put there: that is no failure of the disk."""
        for name in self._disk.listdir(path):
            inside = f"{path}/{name}"
            try:
                unlink_if_there(self._disk, inside)
            except IsADirectoryError:  # never raised for a symbolic link
                self._remove_tree(inside)
        self._disk.rmdir(path)


class PendingDelete(NamedTuple):
    """Files of a directory, or directories of deleted partitions, to remove at *due_ms*."""

    due_ms: int
    directory: LogDir
    paths: tuple[str, ...]
    trees: bool

    def remove(self) -> None:
        """Remove them. Slow: runs in a pool."""
        self.directory.remove(self.paths, trees=self.trees)


def in_threads(threads: int, work: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """Return what *work* makes of each of *items*, in that many threads; with one, in this one."""
    if threads == 1 or len(items) < 2:
        return [work(item) for item in items]
    # Each thread has its share: a future for every item would cost more than the work.
    shares = [items[first::threads] for first in range(threads)]
    with ThreadPoolExecutor(threads, thread_name_prefix="log") as pool:
        done = list(pool.map(lambda share: [work(item) for item in share], shares))
    return [done[index % threads][index // threads] for index in range(len(items))]


def _make_directories(disk: Disk, path: str) -> None:
    if disk.is_dir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _make_directories(disk, parent)
    with suppress(FileExistsError):
        disk.mkdir(path)
        disk.sync_dir(parent)


def _reason(error: OSError | KafkaError) -> str:
    return error.message if isinstance(error, KafkaError) else str(error)
