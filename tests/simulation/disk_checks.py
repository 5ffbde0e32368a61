"""Invariants of the simulated disks themselves, independent of the brokers' state; each check returns what is wrong.

The observer reads logs through the brokers' own objects. A broker that trusts its disk too far is found here, at once,
and not only when a power loss happens to take what it relied on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.log import offset_checkpoint_file
from kbroker.log.clean_shutdown_file import CLEAN_SHUTDOWN
from kbroker.log.core.directory_names import parse_directory
from kbroker.log.unified_log import UnifiedLog
from kclient.wire.batches import check_crc, iterate
from kclient.wire.errors import KafkaError
from tests.kit.simulated_disk import SimulatedDisk
from tests.simulation.synced import segments

LOG_SUFFIX = ".log"


def wrong_tail(disk: SimulatedDisk, log: UnifiedLog) -> str | None:
    """Check a log that was just opened: no segment's file holds more than the log knows of."""
    for segment in log.segments:
        size = disk.size(segment.path)
        if size != segment.size:
            return f"TornTail: {segment.path} has {size} bytes, the log opened with {segment.size}"
    return None


def wrong_recovery_point(
    disk: SimulatedDisk, directory: str, recovery_point: int, known: int = 0
) -> str | None:
    """Check that everything below a recovery point is on the disk itself; below *known* it was found there before.

    Below the log start offset, which the disk has in both files, nothing is needed.
    """
    end = synced_end(disk.durable(directory), max(known, _synced_start(disk, directory)))
    if end is None or end >= recovery_point:
        return None
    return (
        f"RecoveryPoint: {directory} is synced below {end}, its recovery point is {recovery_point}"
    )


def _synced_start(disk: SimulatedDisk, directory: str) -> int:
    """Return the log start offset that a power loss leaves."""
    parent, _, name = directory.rpartition("/")
    partition = parse_directory(name)
    if partition is None:
        return 0
    files = disk.durable(parent)
    starts = []
    for each in (
        offset_checkpoint_file.LOG_START_OFFSETS,
        offset_checkpoint_file.LOG_START_OFFSETS_COPY,
    ):
        try:
            starts.append(offset_checkpoint_file.decode(files[each])[partition])
        except (KeyError, KafkaError):  # without a line in each file no log start is accepted
            return 0
    return min(starts)


def synced_end(files: Mapping[str, bytes], known: int = 0) -> int | None:
    """Return the end of the batches in the segments of one log; None without any segment.

    A hole below *known* does not end them: nothing below it is needed.
    """
    files = segments(files)
    names = sorted(files)
    if not names:
        return None
    bases = [int(name.removesuffix(LOG_SUFFIX)) for name in names]
    first = max((n for n, base in enumerate(bases) if base <= known), default=0)
    end = bases[first]
    for name in names[first:]:
        try:
            for info in iterate(files[name]):
                check_crc(files[name], info)
                if not end <= info.base_offset <= max(end, known):
                    return end
                end = info.next_offset
        except KafkaError:
            return end
    return max(end, known)


def wrong_at_the_end(
    disk: SimulatedDisk, directories: Iterable[str], *, is_clean: bool
) -> str | None:
    """Check the directories of a broker at the end of its process: by a shutdown that may be *clean*, or a kill."""
    for directory in directories:
        if not disk.is_dir(directory):
            continue
        if CLEAN_SHUTDOWN in disk.listdir(directory):
            if not is_clean:
                return f"CleanShutdown: {directory} is marked clean while its broker runs"
            found = _not_synced(disk, directory)
            if found is not None:
                return f"CleanShutdown: {directory} is marked clean, {found} is not synced"
        found = _wrong_checkpoint(disk, directory)
        if found is not None:
            return found
    return None


def _not_synced(disk: SimulatedDisk, directory: str) -> str | None:
    for name in disk.listdir(directory):
        if parse_directory(name) is None:
            continue
        path = f"{directory}/{name}"
        synced = disk.durable(path)
        for each, content in disk.contents(path).items():
            if each.endswith(LOG_SUFFIX) and synced.get(each, b"") != content:
                return f"{path}/{each}"
    return None


def _wrong_checkpoint(disk: SimulatedDisk, directory: str) -> str | None:
    content = disk.durable(directory).get(offset_checkpoint_file.RECOVERY_POINTS)
    if content is None:
        return None
    for (topic, number), recovery_point in offset_checkpoint_file.decode(content).items():
        path = f"{directory}/{topic}-{number}"
        if disk.is_elsewhere(path):
            continue  # the checkpoint is that of the log which was here; the broker uses neither
        wrong = wrong_recovery_point(disk, path, recovery_point)
        if wrong is not None:
            return f"{wrong}, as its checkpoint states"
    return None
