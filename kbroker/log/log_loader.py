"""Open a partition's directory: find its segments, the log end offset, leader epochs and producers.

Theory of operation
===================
After a clean shutdown the last entry of the last index leads to the end of the log. After any other end the loader
reads the batches from the recovery point on, which may not be synced. It checks length, CRC and growing offsets of
each. The valid prefix stays, what is behind it is cut off. Indexes and leader epochs are rebuilt for what was read.

Below the recovery point every byte was synced, so nothing there is ever cut off. Where the chain of batch headers
breaks, the partition does not open and the error names the file and the byte (S14). A log that ends below its recovery
point lost what was synced; it opens, with `LoadedLog.missing_below` set.

The leader epochs come from their file, and from the batches where the file is missing, damaged, or contradicted by the
batches.

Nothing is made permanent here: the recovery point stays where it was, so that a crash during
recovery is followed by the same recovery (KAFKA-10471).

Slow: runs in a pool, before the log is in use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from kbroker.config.log import LogConfig
from kbroker.log import quarantine, scan
from kbroker.log.core import leader_epoch_cache as epochs_file
from kbroker.log.core.leader_epoch_cache import UNKNOWN_EPOCH, LeaderEpochCache
from kbroker.log.core.partition_metadata_file import (
    PARTITION_METADATA,
    PartitionMetadata,
    decode_partition_metadata,
)
from kbroker.log.disk import Disk, read_file, unlink_if_there
from kbroker.log.log_segment import DELETED_SUFFIX, MAX_RELATIVE, LogSegment
from kbroker.log.log_segments import LogSegments
from kbroker.log.producer_state_manager import ProducerStateManager, open_producers
from kbroker.log.segment_replacement import CLEANED_SUFFIX, recover_replacements
from kclient.wire.batches import LARGEST_OFFSET, BatchInfo
from kclient.wire.errors import CorruptMessage, KafkaStorageError

_SEGMENT_NAME: Final = re.compile(r"^(\d{20})\.log$")
_LEFTOVERS: Final = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")


class LoadedLog(NamedTuple):
    """What was found in a partition's directory."""

    segments: LogSegments
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: LeaderEpochCache
    metadata: PartitionMetadata
    producers: ProducerStateManager
    notes: tuple[str, ...] = ()
    """What recovery found and did, for the broker's log."""
    missing_below: int | None = None
    """The recovery point, when the log ends before it: synced records are gone."""


def load(
    disk: Disk,
    directory: str,
    config: LogConfig,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    now_ms: int,
) -> LoadedLog:
    """Open every segment of *directory* and recover what was not synced unless *clean*.

    Raise CorruptMessage where synced bytes are damaged, KafkaStorageError for a directory that
    needs a person, OSError when the disk fails. Never removes a record below the recovery point.
    """
    notes: list[str] = []
    names = set(disk.listdir(directory))
    recover_replacements(disk, directory, names, notes)
    _clear_leftovers(disk, directory, names)
    metadata = _load_metadata(disk, directory, names)
    found = _find_segments(disk, directory, names, now_ms)
    epochs = _load_epochs(disk, directory, names, found, notes)
    if not found:
        found.append(LogSegment.create(disk, directory, log_start_offset, now_ms))
    segments = LogSegments(disk, directory, found)
    # What recovery does not read has to have its indexes already.
    sealed = segments if clean else segments[: segments.index_of(recovery_point)]
    for segment in sealed:
        if f"{segment.base_offset:020d}.index" not in names and segment.size:
            notes.append(f"{segment.path}: rebuilt the missing index")
            segment.rebuild_indexes()
    if not clean:
        _cut_again(segments, recovery_point, notes)
    # What was removed above it may have come back. A clean shutdown has synced all that was removed before it.
    synced_below = LARGEST_OFFSET if clean else recovery_point
    end = _clean_end(segments.active) if clean else None
    found_clean = end is not None
    if end is None:
        # Our own compaction states its holes in .gap files, Kafka's does not.
        may_have_holes = config.compacted and not _is_ours(metadata, names)
        end = _recover(
            disk, segments, recovery_point, epochs, config, log_start_offset, may_have_holes, notes
        )
    missing_below = recovery_point if end < recovery_point else None
    if missing_below is not None:
        notes.append(
            f"{directory}: ends at {end}, but everything below {recovery_point} was synced"
        )
    if clean:
        recovery_point = end
    if end < log_start_offset:
        notes.append(f"{directory}: ends at {end}, before its log start offset {log_start_offset}")
        # As Kafka does: what is left lies below the start. Were it kept, there would be a hole in the log. A power loss
        # may bring deleted segments back and take the log start offset; then readers would meet it.
        segments.quarantine_all_and_start_at(log_start_offset, now_ms)
        end = log_start_offset
        recovery_point = 0  # until the new segment is synced a power loss may take it
    log_start_offset = max(log_start_offset, segments.first_offset)
    producers = open_producers(
        disk,
        directory,
        names,
        segments,
        end,
        clean=found_clean,
        synced_below=synced_below,
        now_ms=now_ms,
        notes=notes,
    )
    epochs.truncate_from_end(end)
    if not _agree(segments, epochs, log_start_offset, end):
        path = f"{directory}/{epochs_file.FILE_NAME}"
        notes.append(f"{path}: the batches have other leader epochs; rebuilt from them")
        epochs = _epochs_of_batches(segments)
    epochs.truncate_from_start(log_start_offset)
    segments.close()  # the first read or append opens a file again
    return LoadedLog(
        segments,
        log_start_offset,
        end,
        min(recovery_point, end),
        epochs,
        metadata,
        producers,
        tuple(notes),
        missing_below,
    )


def _clear_leftovers(disk: Disk, directory: str, names: set[str]) -> None:
    # Sorted: the order of a set depends on the process, and a simulated schedule is repeatable.
    for name in sorted(names):
        if name.endswith(_LEFTOVERS):
            unlink_if_there(disk, f"{directory}/{name}")


def _find_segments(disk: Disk, directory: str, names: set[str], now_ms: int) -> list[LogSegment]:
    segments = []
    for name in sorted(names):
        match = _SEGMENT_NAME.match(name)
        if match is None:
            continue
        size = disk.size(f"{directory}/{name}")
        if size > MAX_RELATIVE:
            raise KafkaStorageError(f"{directory}/{name} has {size} bytes: more than a segment can")
        segments.append(
            LogSegment(disk, directory, int(match.group(1)), size=size, created_ms=now_ms)
        )
    return segments


def _load_epochs(
    disk: Disk, directory: str, names: set[str], segments: Sequence[LogSegment], notes: list[str]
) -> LeaderEpochCache:
    """Read the leader epochs, or take them from the batches where the file is of no use."""
    path = f"{directory}/{epochs_file.FILE_NAME}"
    if epochs_file.FILE_NAME in names:
        try:
            return epochs_file.decode(read_file(disk, path))
        except CorruptMessage as error:
            notes.append(f"{path}: {error.message}; rebuilt from the batches")
    return _epochs_of_batches(segments)


def _epochs_of_batches(segments: Sequence[LogSegment]) -> LeaderEpochCache:
    epochs = LeaderEpochCache()
    for segment in segments:
        with suppress(CorruptMessage):  # recovery decides whether that matters
            for _, info in scan.headers(segment.file, 0, segment.size):
                if info.leader_epoch > epochs.latest:
                    epochs.assign(info.leader_epoch, info.base_offset)
    return epochs


def _agree(
    segments: LogSegments, epochs: LeaderEpochCache, log_start_offset: int, end: int
) -> bool:
    """Return whether the batches have the leader epochs of the file: the last one, and where entries begin.

    A leader with wrong epochs would have its followers cut records that both have. The first entry and the last two are
    compared, each with the batch there and the batch before it.
    """
    floor = max(log_start_offset, segments.first_offset)
    if end <= floor:
        return True
    entries = epochs.entries
    previous = dict(zip(entries[1:], entries, strict=False))
    expected = [(end - 1, epochs.latest)]
    for entry in {*entries[:1], *entries[-2:]}:
        if entry.start_offset > floor:
            before = previous.get(entry)
            expected.append(
                (entry.start_offset - 1, UNKNOWN_EPOCH if before is None else before.epoch)
            )
        expected.append((max(entry.start_offset, floor), entry.epoch))
    found = ((_epoch_of_batch(segments, offset), epoch) for offset, epoch in expected)
    return all(theirs in (epoch, None, UNKNOWN_EPOCH) for theirs, epoch in found)


def _epoch_of_batch(segments: LogSegments, offset: int) -> int | None:
    """Return the leader epoch of the batch with *offset*; None where that cannot be read, and in a hole.

    Compaction may have removed the first batch of an epoch: the next one may be of a later epoch.
    """
    segment = segments[segments.index_of(offset)]
    with suppress(CorruptMessage):
        found = segment.locate(offset)
        if found is not None and found.info.base_offset <= offset:
            return found.info.leader_epoch
    return None


def _load_metadata(disk: Disk, directory: str, names: set[str]) -> PartitionMetadata:
    if PARTITION_METADATA not in names:
        return PartitionMetadata(None)
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        return decode_partition_metadata(read_file(disk, path))
    except CorruptMessage as error:
        raise CorruptMessage(f"{path}: {error.message}") from error


def _is_ours(metadata: PartitionMetadata, names: Collection[str]) -> bool:
    """Return whether kbroker made the log, not Apache Kafka.

    Kafka syncs partition.metadata before the file has its name. So one without content is of ours, and a power loss
    took it.
    """
    is_empty = PARTITION_METADATA in names and metadata.topic_id is None
    return is_empty or metadata.directory_id is not None


def _cut_again(segments: LogSegments, recovery_point: int, notes: list[str]) -> None:
    """Cut the segment before the recovery point where that segment's successor begins, if a power loss undid that cut.

    The name of the successor may be on the disk before the truncation that it followed. Recovery reads from the
    recovery point on, so it would not see the old records beside the new ones.
    """
    number = segments.index_of(recovery_point)
    if not number or segments[number].base_offset != recovery_point:
        return  # recovery reads that segment, or what follows the cut was synced and the cut with it
    segment = segments[number - 1]
    size = end = 0
    overlaps = False
    with suppress(CorruptMessage):
        size = segment.indexed_position(recovery_point - 1)
        for position, info in scan.headers(segment.file, size, segment.size):
            size = position
            overlaps = info.last_offset >= recovery_point
            if overlaps:
                break
            size, end = position + info.size, info.next_offset
    # Anything else behind the last batch is damage, and is reported when it is read.
    if size < segment.size and (overlaps or end == recovery_point):
        notes.append(
            f"{segment.path}: cut off {segment.size - size} bytes from byte {size} on: the next segment begins at"
            f" {recovery_point}, and a truncation was undone"
        )
        segment.truncate(size, recovery_point)


def _clean_end(last: LogSegment) -> int | None:
    """Return the offset after the last batch, or None when the file does not end with a batch."""
    last.offset_index.trim()
    last.time_index.trim()
    try:
        return last.find_end()
    except CorruptMessage:
        return None


def _recover(
    disk: Disk,
    segments: LogSegments,
    recovery_point: int,
    epochs: LeaderEpochCache,
    config: LogConfig,
    log_start_offset: int,
    may_have_holes: bool,
    notes: list[str],
) -> int:
    """Recover the segments from *recovery_point* on and return the log end offset.

    *may_have_holes*: compaction by Apache Kafka may have left holes between segments, without .gap files.
    """
    # Entries of the file for offsets that were not synced may be of batches that were cut off since. The batches that
    # are there have the epochs.
    epochs.truncate_from_end(recovery_point)
    end = segments.first_offset
    for number in range(segments.index_of(recovery_point), len(segments)):
        segment = segments[number]
        file_size = segment.size
        end, problem = _recover_segment(segment, recovery_point, epochs, config)
        later = segments[number + 1 :]
        if not problem and segment.size < file_size:
            problem = "the last batch is not whole"
        if not problem and later and log_start_offset < later[0].base_offset != end:
            # A segment is named after the end of the one before it. What is between was lost, and a replica with a hole
            # must not pass for one that has it all. Compaction makes holes, and a mirror copies gaps that are wider
            # than a segment can be. A .gap file states such a hole.
            begins = later[0].base_offset
            if begins < end:  # it was deleted by a truncation, and a power loss brought it back
                problem = f"{later[0].path} begins below the end of the segment before it"
            elif not may_have_holes and later[0].gap_from() != end:
                problem = f"{later[0].path} begins behind a hole"
        if not problem:
            continue
        notes.append(
            f"{segment.path}: cut off {file_size - segment.size} bytes from byte {segment.size} "
            f"(offset {end}) on: {problem}"
        )
        if _a_batch_follows(segment, file_size):
            path = quarantine.copy_tail(disk, segment, file_size)
            notes.append(f"{path}: whole batches behind a damaged one, put aside")
        if segment.size < file_size:
            segment.cut_file()
        for each, path in segments.quarantine_behind(number):
            notes.append(
                f"{each.path}: follows the cut, {'renamed to ' + path if path else 'empty'}"
            )
        break
    return end


def _a_batch_follows(segment: LogSegment, file_size: int) -> bool:
    """Return whether a good batch lies behind the cut: then it was bit rot and no torn tail."""
    with suppress(CorruptMessage):
        size = scan.header_at(segment.file, segment.size).size
        return any(_batch_at(segment, segment.size + at, file_size) for at in (0, size))
    return False


def _contradicted(segment: LogSegment, at: int, info: BatchInfo, end: int, file_size: int) -> bool:
    """Return whether the next batch contradicts the gap before *info*.

    Gaps are in order: compaction leaves them, and a copy of a log keeps them. But the
    CRC does not cover the base offset, so a damaged one looks like a gap, until the next batch.
    """
    following = _batch_at(segment, at + info.size, file_size)
    return following is not None and end <= following.base_offset < info.next_offset


def _batch_at(segment: LogSegment, position: int, file_size: int) -> BatchInfo | None:
    with suppress(CorruptMessage):
        for _, info in scan.whole_batches(segment.file, position, file_size):
            return info
    return None


def _recover_segment(
    segment: LogSegment, recovery_point: int, epochs: LeaderEpochCache, config: LogConfig
) -> tuple[int, str]:
    """Find the valid prefix of *segment* and index it; return its end offset and what ended it."""
    file_size = segment.size
    position = segment.rewind(recovery_point)
    interval = config.index_interval_bytes
    end = segment.base_offset
    synced_end = position
    try:
        for at, info in scan.headers(segment.file, position, file_size):
            if info.next_offset > recovery_point:
                break
            if not segment.holds(info):
                raise CorruptMessage(f"{segment.path}: byte {at}: offset {info.base_offset}")
            segment.appended(
                info.size, info.base_offset, info.last_offset, info.max_timestamp, interval
            )
            end = info.next_offset
            synced_end = at + info.size
    except CorruptMessage:
        if end < recovery_point:
            raise
    problem = ""
    try:
        for at, info in scan.whole_batches(segment.file, synced_end, file_size):
            if info.base_offset < end or (
                info.base_offset > end and _contradicted(segment, at, info, end, file_size)
            ):
                raise CorruptMessage(f"offset {info.base_offset} follows {end}")
            if not segment.holds(info):
                raise CorruptMessage(f"last offset {info.last_offset} cannot be")
            if 0 <= info.leader_epoch < epochs.latest:
                # A power loss brought back what was cut off before the batches of the later epoch were appended.
                raise CorruptMessage(f"leader epoch {info.leader_epoch} follows {epochs.latest}")
            segment.appended(
                info.size, info.base_offset, info.last_offset, info.max_timestamp, interval
            )
            if info.leader_epoch > epochs.latest:
                epochs.assign(info.leader_epoch, info.base_offset)
            segment.spill_indexes()
            end = info.next_offset
    except CorruptMessage as error:
        problem = error.message
    segment.write_indexes()
    return end, problem
