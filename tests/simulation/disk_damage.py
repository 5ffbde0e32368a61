"""Files of a log directory that are not what they were, though no machine went down: exchanged directories, bad lines.

Two partitions' directories on one broker are exchanged, or a line of a checkpoint names another offset. The broker
is down meanwhile; often all are, and the damaged one starts first.

The first draw of a seed stays as it is; what is here is added by a generator of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random

from kbroker.common.topic_partition import TopicPartition
from kbroker.log import offset_checkpoint_file
from kbroker.log.core.directory_names import parse_directory
from kbroker.log.disk import read_file, replace_file
from tests.kit.simulated_disk import SimulatedDisk

Drawn = tuple[float, str, tuple[str, ...]]
"""A time, a verb and its words."""


CHECKPOINTS = {
    "start": offset_checkpoint_file.LOG_START_OFFSETS,
    "recovery": offset_checkpoint_file.RECOVERY_POINTS,
    "watermark": offset_checkpoint_file.HIGH_WATERMARKS,
}
FAR = 1_000_000
"""Beyond the end of every log."""

FAULT_MIXES = {"disks": 0.6, "bad disks": 0.4, "everything": 0.3}
"""How likely a seed has such damage, by its mix of faults."""


def damages(seed: int, fault_mix: str, until: float, brokers: int) -> Iterator[Drawn]:
    """Damage the files of one broker while it is down."""
    rng = Random(seed ^ 0xDA3A6E)
    if rng.random() >= FAULT_MIXES.get(fault_mix, 0.0):
        return
    time = rng.uniform(3.0, max(until, 6.0))
    victim = str(rng.randint(1, brokers))
    others = [str(each) for each in range(1, brokers + 1) if str(each) != victim]
    for partition in ("0", "1"):
        yield time, "produce", ("a", partition, "all", "2")
    time += rng.uniform(0.1, 3.0)
    yield time, rng.choice(("kill", "kill", "stop")), (victim,)
    if rng.random() < 0.7:
        for other in others:
            yield time + rng.uniform(0.0, 1.0), "kill", (other,)
    time += 2.0
    if rng.random() < 0.5:
        yield time, "exchange", (victim,)
    else:
        # A watermark within the log cannot be distinguished from a true one; after a power loss a recovery point
        # beyond what was synced has a person repair the partition.
        line = rng.choice((("start", rng.randint(1, 4)), ("start", FAR), ("watermark", FAR)))
        yield time, "badline", (victim, line[0], str(line[1]))
    yield time + 0.1, "start", (victim,)
    for other in others:
        yield time + rng.choice((0.1, 5.0)) + rng.uniform(0.0, 1.0), "start", (other,)


def late_identities(seed: int, verbs: Collection[str]) -> Iterator[Drawn]:
    """Have power losses take partition.metadata in some seeds, if no directories are exchanged: it shows that."""
    is_drawn = Random(seed ^ 0x1D1A7E).random() < 0.3
    if is_drawn and "power" in verbs and "exchange" not in verbs:
        yield 0.5, "lateids", ()


def exchange(disk: SimulatedDisk, directory: str) -> list[TopicPartition]:
    """Exchange two partitions' directories, for good; return the partitions, none where there are not two."""
    found = sorted(filter(None, map(parse_directory, _names(disk, directory))))
    keys = [key for key in found if not key[0].startswith("__")][:2]
    if len(keys) < 2 or directory in disk.faults:
        return []
    one, other = (f"{directory}/{topic}-{number}" for topic, number in keys)
    for path in (one, other):
        disk.remember_place(path)
    aside = f"{directory}/aside"
    for source, target in ((one, aside), (other, one), (aside, other)):
        disk.rename(source, target)
    disk.sync_dir(directory)
    return keys


def set_line(
    disk: SimulatedDisk, directory: str, checkpoint: str, offset: int
) -> TopicPartition | None:
    """Have a checkpoint name another offset for a partition; return which, None where the broker has none."""
    found = sorted(filter(None, map(parse_directory, _names(disk, directory))))
    keys = [key for key in found if not key[0].startswith("__")]
    if not keys or directory in disk.faults:
        return None
    path = f"{directory}/{CHECKPOINTS[checkpoint]}"
    try:
        lines = offset_checkpoint_file.decode(read_file(disk, path))
    except FileNotFoundError:
        lines = {}
    replace_file(disk, path, offset_checkpoint_file.encode({**lines, keys[0]: offset}))
    return keys[0]


def _names(disk: SimulatedDisk, directory: str) -> list[str]:
    return disk.listdir(directory) if disk.is_dir(directory) else []
