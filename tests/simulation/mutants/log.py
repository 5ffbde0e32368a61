"""Known bugs of the log: recovery, syncs, retention, compaction, and producer state."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kbroker.common.topic_partition import TopicPartition
from kbroker.log import log_dir_history, log_manager, scan
from kbroker.log.clean_shutdown_file import CLEAN_SHUTDOWN, decode_clean_shutdown
from kbroker.log.core.producer_state import ProducerStates
from kbroker.log.disk import Disk, read_file, write_all
from kbroker.log.flush_work import FlushWork
from kbroker.log.log_dir import LogDir
from kbroker.log.log_flusher import LogFlusher
from kbroker.log.log_manager import LogManager
from kbroker.log.log_segment import LogSegment
from kbroker.log.segment_replacement import SegmentReplacement
from kbroker.log.unified_log import UnifiedLog
from kbroker.replica.log_schedule import LogSchedule
from kclient.wire.errors import InvalidProducerEpoch, KafkaStorageError, OutOfOrderSequenceNumber
from tests.simulation.mutants.registry import Change, frequent_mutant, mutant

# Syncs


@frequent_mutant
def answer_before_the_sync() -> list[Change]:
    """flush.messages starts a sync, and the append is acknowledged, and counts as a copy, before it has ended."""
    original = LogFlusher.appended

    def appended(self: LogFlusher, key: TopicPartition) -> None:
        log = self._logs[key]
        original(self, key)
        log.flush_state.held_at = None

    return [(LogFlusher, "appended", appended)]


@frequent_mutant
def recovery_point_before_the_sync() -> list[Change]:
    """The recovery point moves when a sync begins; the checkpoint may have it before the sync has ended."""
    original = UnifiedLog.start_flush

    def start(self: UnifiedLog, **given: Any) -> FlushWork | None:
        work = original(self, **given)
        if work is not None:
            self.finish_flush(work)
        return work

    return [(UnifiedLog, "start_flush", start)]


@mutant
def failed_sync_ignored() -> list[Change]:
    """A sync that failed counts as done."""
    original = FlushWork._sync_it_all

    def sync(self: FlushWork) -> None:
        with suppress(OSError):
            original(self)

    return [(FlushWork, "_sync_it_all", sync)]


@mutant
def failed_write_ignored() -> list[Change]:
    """After a failed write the log takes the next append."""

    def write(self: UnifiedLog, segment: Any, buffers: Any) -> None:
        try:
            segment.spill_indexes()
            write_all(self._disk, segment.file.fd, buffers, segment.size)
        except OSError as error:
            raise KafkaStorageError(str(error)) from error

    return [(UnifiedLog, "_write", write)]


# Recovery


@mutant
def crc_skipped_in_recovery() -> list[Change]:
    """Recovery keeps batches with a readable header, even with damaged records."""
    return [(scan, "check_crc", lambda _buf, _info: None)]


@frequent_mutant
def torn_tail_kept() -> list[Change]:
    """Recovery finds the last whole batch, and leaves in the file what is behind it."""
    return [(LogSegment, "cut_file", lambda _segment: None)]


@mutant
def high_watermarks_trusted_after_a_power_loss() -> list[Change]:
    """After a power loss a high watermark's checkpoint is trusted above the recovery point: a cut may be undone."""
    original = LogManager._take

    def take(self: LogManager, directory: Any, loaded: Any) -> None:
        original(self, directory, loaded)
        self.high_watermarks.update(loaded.high_watermarks)

    return [(LogManager, "_take", take)]


@mutant
def power_loss_taken_for_a_kill() -> list[Change]:
    """A log directory counts as complete although the machine lost power (KIP-966)."""
    original = log_dir_history.assess

    def assess(history: Any, clean_epoch: Any, boot_id: str, *, is_new: bool) -> Any:
        found = history.boot_id if history is not None else boot_id
        return original(history, clean_epoch, found, is_new=is_new)

    return [(log_dir_history, "assess", assess)]


# The end of a broker


@frequent_mutant
def unsynced_logs_are_marked_clean() -> list[Change]:
    """A shutdown marks its directories clean without a sync of the logs."""

    def close(logs: Any, _sync_all: Any, *, threads: int) -> bool:
        for log in logs:
            log.close(clean=False)
        return True

    return [(log_manager, "close_all", close)]


@frequent_mutant
def the_clean_marker_stays() -> list[Change]:
    """A start leaves the marker of the last clean shutdown where it is (KAFKA-10471)."""

    def take(self: LogDir, _boot_id: str) -> int | None:
        try:
            return decode_clean_shutdown(read_file(self._disk, f"{self.path}/{CLEAN_SHUTDOWN}"))
        except FileNotFoundError:
            return None

    return [(LogDir, "_take_clean_marker", take)]


# Retention


@mutant
def retention_above_the_high_watermark() -> list[Change]:
    """Retention deletes records that are not committed yet."""
    return [(LogSchedule, "_retention_bound", lambda _self, _key: 1 << 60)]


# Producers


@frequent_mutant
def replays_are_appended() -> list[Change]:
    """A batch that an idempotent producer repeats is appended once more."""
    return [(ProducerStates, "check", lambda _self, _info: None)]


def _forgiving(error: type[Exception]) -> list[Change]:
    original = ProducerStates.check

    def check(self: ProducerStates, info: Any) -> Any:
        try:
            return original(self, info)
        except error:
            return None

    return [(ProducerStates, "check", check)]


@frequent_mutant
def sequence_gap_unchecked() -> list[Change]:
    """A batch of an idempotent producer is appended whatever came before it."""
    return _forgiving(OutOfOrderSequenceNumber)


@frequent_mutant
def producer_epoch_unchecked() -> list[Change]:
    """A batch of a producer epoch that is over is appended."""
    return _forgiving(InvalidProducerEpoch)


# Compaction


@frequent_mutant
def replacement_without_sync() -> list[Change]:
    """The new segment of a compaction takes the place of the old ones before its content is synced."""
    original = SegmentReplacement.write

    def write(self: SegmentReplacement, *given: Any) -> None:
        disk = self._disk
        self._disk = _NoSync(disk)
        try:
            original(self, *given)
        finally:
            self._disk = disk

    return [(SegmentReplacement, "write", write)]


class _NoSync:
    """A disk that syncs no content of a file."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return (lambda _fd: None) if name == "fsync" else getattr(self._disk, name)
