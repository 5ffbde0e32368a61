"""What the checkpoints of log directories say of the logs in them, and when they must say less at once.

Theory of operation
===================
Recovery points, log start offsets and high watermarks are written every now and then, in the pool. A start believes
them. What they say of logs that were lost stays in them, so that the next start misses those, too, until another
log takes the place, or what was lost is back (S8). So before a log takes an append at offsets that a checkpoint says
more of than is true now (it was truncated, or was deleted and begins anew), the checkpoint is written first, on the
spot.

Invariant: a recovery point on the disk is never above the end of what was synced of the present log (1 of
`log_manager`).

Owner: `LogManager`, on the owner's thread
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from kbroker.common.topic_partition import TopicPartition
from kbroker.log import offset_checkpoint_file
from kbroker.log.log_dir import LogDir
from kbroker.log.unified_log import UnifiedLog

Files = dict[str, dict[TopicPartition, int]]
"""What is to be written: offsets by partition, by the name of the checkpoint."""


class CheckpointContents:
    """What is to be written of *logs*, each in the directory that *where* names.

    *lost* returns the partitions that are not here for another reason than their deletion.
    """

    def __init__(
        self,
        logs: Mapping[TopicPartition, UnifiedLog],
        where: Mapping[TopicPartition, LogDir],
        lost: Callable[[], Collection[TopicPartition]],
    ) -> None:
        self._logs = logs
        self._where = where
        self._lost = lost

    def files_of(
        self, directory: LogDir, high_watermarks: Mapping[TopicPartition, int] | None
    ) -> Files:
        """Return the checkpoints of *directory*; those of high watermarks where they are given."""
        mine = {key: log for key, log in self._logs.items() if self._where[key] is directory}
        lost = [key for key in self._lost() if key not in self._logs]
        files = {
            offset_checkpoint_file.RECOVERY_POINTS: {
                **_kept(directory, offset_checkpoint_file.RECOVERY_POINTS, lost),
                **{key: log.recovery_point for key, log in mine.items()},
            },
            offset_checkpoint_file.LOG_START_OFFSETS: {
                key: log.log_start_offset
                for key, log in mine.items()
                if log.log_start_offset > log.segments[0].base_offset
            },
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

    def corrected(self, key: TopicPartition, where: LogDir) -> Files | None:
        """Return what has to be written before *key*'s log in *where* is appended to; None: nothing."""
        log = self._logs.get(key)
        is_ahead = where.written(offset_checkpoint_file.RECOVERY_POINTS, key) > (
            log.recovery_point if log else -1
        ) or where.written(offset_checkpoint_file.LOG_START_OFFSETS, key) > (
            log.log_start_offset if log else -1
        )
        end = log.log_end_offset if log else -1
        is_beyond = where.written(offset_checkpoint_file.HIGH_WATERMARKS, key) > end
        if not (is_ahead or is_beyond):
            return None
        files = self.files_of(where, None)
        if is_beyond:
            files[offset_checkpoint_file.HIGH_WATERMARKS] = self._marks_without(key, where)
        return files

    def _marks_without(self, key: TopicPartition, where: LogDir) -> dict[TopicPartition, int]:
        """Return the high watermarks on the disk but for *key*'s, and those of other logs that we deleted.

        What is gone on purpose must not look lost to the next start, what is lost must. All in one write: when
        thousands were deleted and come again, the first of them pays for the others.
        """
        lost = self._lost()
        return {
            each: mark
            for each, mark in where.all_written(offset_checkpoint_file.HIGH_WATERMARKS).items()
            if each != key and (self._where.get(each) is where or each in lost)
        }


def _kept(
    directory: LogDir, name: str, lost: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return what checkpoint *name* on the disk says of the *lost* partitions."""
    written = directory.all_written(name)
    return {key: written[key] for key in lost if key in written}
