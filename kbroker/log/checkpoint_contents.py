"""The content of a log directory's checkpoints, and when a lower offset must be written at once.

Theory of operation
===================
The pool writes recovery points, log start offsets and high watermarks at intervals. A start relies on them. Entries of
lost logs stay, and the next start reports these logs as missing, too. They stay until another log takes the place, or
the lost log is back (S8): then its deleted records are still deleted. A truncation, or a new log in the place of a
deleted one, may leave an entry that is too high. The owner corrects such an entry before the log takes its next append,
also one that the pool is about to write. A start may reject an entry. If the log ends below it, the entry stays until
the replica has a leader again. It is corrected before the log grows, because a log that grows back to the entry would
confirm it. A high watermark that a power loss leaves in doubt is corrected before the broker registers. After a kill
the next start takes the entries for those of a machine that stayed up.

Invariants:
1. A recovery point on the disk is never above the end of what was synced of the present log (1 of `log_manager`).
2. A high watermark on the disk of a log that takes appends is not above the one in memory.
3. A cleaner offset on the disk is not above the end of a log that was truncated: what is appended then is dirty.

Owner: `LogManager`, on the owner's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from kbroker.common.topic_partition import TopicPartition
from kbroker.log import offset_checkpoint_file
from kbroker.log.log_dir import LogDir
from kbroker.log.unified_log import UnifiedLog

Files = dict[str, dict[TopicPartition, int]]
"""Offsets by partition, by the name of the checkpoint."""


class CheckpointContents:
    """The entries of *logs*, each in the directory that *where* names.

    *lost* returns the partitions that are not here for another reason than their deletion. *copies* returns copies of
    logs that are to replace them, by partition, in a directory (`log_moves`).
    """

    def __init__(
        self,
        logs: Mapping[TopicPartition, UnifiedLog],
        where: Mapping[TopicPartition, LogDir],
        lost: Callable[[], Collection[TopicPartition]],
        copies: Callable[[LogDir], Mapping[TopicPartition, UnifiedLog]],
    ) -> None:
        self._logs = logs
        self._where = where
        self._lost = lost
        self._copies = copies

    def files_of(
        self, directory: LogDir, high_watermarks: Mapping[TopicPartition, int] | None
    ) -> Files:
        """Return the checkpoints of *directory*; those of high watermarks where they are given."""
        mine = {key: log for key, log in self._logs.items() if self._where[key] is directory}
        mine.update(self._copies(directory))
        lost = [key for key in self._lost() if key not in self._logs]
        files = {
            offset_checkpoint_file.RECOVERY_POINTS: {
                **_kept(directory, offset_checkpoint_file.RECOVERY_POINTS, lost),
                **{key: log.recovery_point for key, log in mine.items()},
            },
            offset_checkpoint_file.LOG_START_OFFSETS: {
                **{key: directory.log_starts[key] for key in lost if key in directory.log_starts},
                **{
                    key: log.log_start_offset
                    for key, log in mine.items()
                    # Kafka leaves out a start at the first segment. But a power loss may bring a deleted segment back.
                    if log.log_start_offset
                },
            },
        }
        cleaned = {key: log.clean_below for key, log in mine.items() if log.clean_below is not None}
        if cleaned or directory.all_written(offset_checkpoint_file.CLEANER_OFFSETS):
            files[offset_checkpoint_file.CLEANER_OFFSETS] = {
                **_kept(directory, offset_checkpoint_file.CLEANER_OFFSETS, lost),
                **cleaned,
            }
        if high_watermarks is not None:
            files[offset_checkpoint_file.HIGH_WATERMARKS] = {
                **_kept(directory, offset_checkpoint_file.HIGH_WATERMARKS, lost),
                **{
                    key: max(offset, mine[key].missing_below or 0)
                    for key, offset in high_watermarks.items()
                    if key in mine
                },
            }
        return files

    def prepared(self, key: TopicPartition, where: LogDir, mark: int) -> Files:
        """Return the checkpoints of *where* before a copy there replaces *key*'s log, with high watermark *mark*."""
        files = self.files_of(where, None)
        files[offset_checkpoint_file.HIGH_WATERMARKS] = {**self._marks_on_disk(where), key: mark}
        return files

    def corrected(self, key: TopicPartition, where: LogDir) -> Files | None:
        """Return the checkpoints to write before the next append to *key*'s log in *where*; None: none."""
        log = self._logs.get(key)
        memory = {
            offset_checkpoint_file.RECOVERY_POINTS: log.recovery_point if log else None,
            offset_checkpoint_file.LOG_START_OFFSETS: log.log_start_offset if log else None,
            offset_checkpoint_file.CLEANER_OFFSETS: log.clean_below if log else None,
        }
        is_ahead = any(
            where.written(name, key) > (-1 if offset is None else offset)
            for name, offset in memory.items()
        )
        end = log.log_end_offset if log else -1
        is_beyond = where.written(offset_checkpoint_file.HIGH_WATERMARKS, key) > end
        if not (is_ahead or is_beyond):
            return None
        files = self.files_of(where, None)
        if is_beyond:
            marks = self._marks_on_disk(where)
            marks.pop(key, None)
            files[offset_checkpoint_file.HIGH_WATERMARKS] = marks
        return files

    def lowered(self, marks: Mapping[TopicPartition, int], where: LogDir) -> Files | None:
        """Return the checkpoints to write where *where* has entries above *marks*, or above recovery points.

        None: it has no such entry.
        """
        here = {key: mark for key, mark in marks.items() if self._where.get(key) is where}
        too_high = {
            key: mark
            for key, mark in here.items()
            if where.written(offset_checkpoint_file.HIGH_WATERMARKS, key) > mark
        }
        is_ahead = any(
            where.written(offset_checkpoint_file.RECOVERY_POINTS, key)
            > self._logs[key].recovery_point
            for key in here
        )
        if not too_high and not is_ahead:
            return None
        files = self.files_of(where, None)
        if too_high:
            marks = {**self._marks_on_disk(where), **too_high}
            files[offset_checkpoint_file.HIGH_WATERMARKS] = marks
        return files

    def _marks_on_disk(self, where: LogDir) -> dict[TopicPartition, int]:
        """Return the high watermarks on the disk, without those of logs that we deleted.

        The next start must report lost logs as missing, and must not report deleted ones. One write covers all: when
        thousands of deleted partitions come again, the first of them pays for the others.
        """
        lost, copies = self._lost(), self._copies(where)
        return {
            each: mark
            for each, mark in where.all_written(offset_checkpoint_file.HIGH_WATERMARKS).items()
            if self._where.get(each) is where or each in lost or each in copies
        }


def _kept(
    directory: LogDir, name: str, lost: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the entries of the *lost* partitions in checkpoint *name* on the disk."""
    written = directory.all_written(name)
    return {key: written[key] for key in lost if key in written}
