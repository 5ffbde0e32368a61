"""Reads one replica's directory: its batches, and whether indexes, snapshots and checkpoints agree with them.

Nothing of kbroker reads here but the formats of its small files: the batches are walked from the first byte on, with
kclient's codec, no index asked. A broker that was stopped cleanly has to have everything in order; one that was
killed may have checkpoints that are behind, and half a batch at the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kbroker.log import producer_snapshots
from kbroker.log.core import leader_epoch_cache as epochs_file
from kbroker.log.core.producer_state import ProducerStateEntry, ProducerStates
from kbroker.log.indexes import OffsetIndex, TimeIndex
from kclient.wire.batches import BatchInfo, check_crc, iterate
from kclient.wire.errors import KafkaError
from kclient.wire.records import decode_batch
from tests.audits.problem import Problem

_SEGMENT = re.compile(r"(\d{20})\.log")


class Stamp(NamedTuple):
    """What has to be equal on all replicas of a batch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int


@dataclass
class Replica:
    """A replica's log, and what is wrong with it."""

    directory: Path
    batches: list[Stamp] = field(default_factory=list)
    values: dict[int, bytes | None] = field(default_factory=dict)
    """Offset -> value."""
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Offset -> producer id and epoch, of idempotent producers."""
    problems: list[Problem] = field(default_factory=list)
    _infos: list[BatchInfo] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The log end offset."""
        return self.batches[-1].last_offset + 1 if self.batches else self._named_start

    @property
    def start(self) -> int:
        """The first offset."""
        return self.batches[0].base_offset if self.batches else self._named_start

    @property
    def _named_start(self) -> int:
        names = sorted(path.name for path in self.directory.glob("*.log"))
        return int(names[-1][:20]) if names else 0

    def problem(self, rule: str, where: object, text: str) -> None:
        """Take note of a broken rule."""
        broker = self.directory.parent.parent.name
        self.problems.append(Problem(rule, f"{broker}/{self.directory.name}/{where}", text))


def read_replica(directory: Path, *, clean: bool) -> Replica:
    """Read a partition's directory; *clean*: its broker stopped cleanly."""
    replica = Replica(directory)
    segments = sorted(path for path in directory.iterdir() if _SEGMENT.fullmatch(path.name))
    for path in segments:
        _read_segment(replica, path, torn_tail=not clean and path == segments[-1])
    _check_order(replica)
    if clean:
        _check_epochs(replica)
        _check_producers(replica)
    return replica


def _read_segment(replica: Replica, path: Path, *, torn_tail: bool) -> None:
    content = path.read_bytes()
    positions: dict[int, BatchInfo] = {}
    end = 0
    try:
        for info in iterate(content):
            check_crc(content, info)
            positions[info.position] = info
            replica._infos.append(info)
            replica.batches.append(
                Stamp(info.base_offset, info.last_offset, info.leader_epoch, info.crc)
            )
            for record in decode_batch(content, info):
                replica.values[record.offset] = record.value
                if info.producer_id >= 0:
                    replica.producers[record.offset] = (info.producer_id, info.producer_epoch)
            end = info.end
    except KafkaError as error:
        replica.problem("corrupt", path.name, f"byte {end}: {error}")
        return
    if end < len(content) and not torn_tail:
        replica.problem("tail", path.name, f"{len(content) - end} bytes behind the last batch")
    base = int(path.name[:20])
    if positions and positions[0].base_offset < base:
        replica.problem("segment-name", path.name, f"begins at offset {positions[0].base_offset}")
    _check_offset_index(replica, path, base, positions)
    _check_time_index(replica, path, base, positions)


def _check_offset_index(
    replica: Replica, path: Path, base: int, positions: dict[int, BatchInfo]
) -> None:
    index = path.with_suffix(OffsetIndex.SUFFIX)
    content = index.read_bytes() if index.exists() else b""
    size = OffsetIndex.ENTRY.size
    before = (-1, -1)
    last_offsets = {info.last_offset for info in positions.values()}
    for entry in OffsetIndex.ENTRY.iter_unpack(content[: len(content) // size * size]):
        if entry == (0, 0) and before != (-1, -1):
            return  # preallocated
        relative, position = entry
        if relative <= before[0] or position <= before[1]:
            replica.problem("index-order", index.name, f"{entry} follows {before}")
        info = positions.get(position)
        if info is None or info.base_offset > base + relative:
            replica.problem("index", index.name, f"{entry}: no batch of that offset begins there")
        elif base + relative not in last_offsets:
            replica.problem("index", index.name, f"{entry}: offset {base + relative} ends no batch")
        before = entry


def _check_time_index(
    replica: Replica, path: Path, base: int, positions: dict[int, BatchInfo]
) -> None:
    index = path.with_suffix(TimeIndex.SUFFIX)
    content = index.read_bytes() if index.exists() else b""
    size = TimeIndex.ENTRY.size
    infos = iter(positions.values())
    info = next(infos, None)
    latest = -1
    before = (-1, -1)
    for entry in TimeIndex.ENTRY.iter_unpack(content[: len(content) // size * size]):
        timestamp, relative = entry
        if entry == (0, 0):
            return
        if timestamp < before[0] or relative < before[1]:
            replica.problem("timeindex-order", index.name, f"{entry} follows {before}")
        while info is not None and info.last_offset <= base + relative:
            latest = max(latest, info.max_timestamp)
            info = next(infos, None)
        if latest > timestamp:
            replica.problem(
                "timeindex", index.name, f"{entry}, but up to there a record is of {latest}"
            )
        before = entry


def _check_order(replica: Replica) -> None:
    end, epoch = -1, -1
    for stamp in replica.batches:
        if stamp.base_offset < end or stamp.last_offset < stamp.base_offset:
            replica.problem("offset-order", stamp.base_offset, f"{stamp} follows offset {end - 1}")
        if stamp.leader_epoch < epoch:
            replica.problem("epoch-order", stamp.base_offset, f"{stamp} follows epoch {epoch}")
        end, epoch = stamp.last_offset + 1, stamp.leader_epoch


def _check_epochs(replica: Replica) -> None:
    path = replica.directory / epochs_file.FILE_NAME
    if not path.exists():
        if replica.batches:
            replica.problem("epochs", path.name, "is missing")
        return
    try:
        epochs = epochs_file.decode(path.read_bytes())
    except KafkaError as error:
        replica.problem("epochs", path.name, str(error))
        return
    for stamp in replica.batches:
        found = epochs.epoch_at(stamp.base_offset)
        if found != stamp.leader_epoch:
            replica.problem("epochs", path.name, f"has {found} for {stamp}")
            return


def _check_producers(replica: Replica) -> None:
    """The newest snapshot is at the end, and equals what a walk over the batches finds."""
    fresh = ProducerStates()
    fresh.replay(replica._infos, 0)
    paths = sorted(replica.directory.glob("*" + producer_snapshots.SNAPSHOT_SUFFIX))
    if not paths:
        if fresh:
            replica.problem("producers", "snapshot", f"is missing, {len(fresh)} producers wrote")
        return
    newest = paths[-1]
    try:
        known = producer_snapshots.decode(newest.read_bytes()).states
    except KafkaError as error:
        replica.problem("producers", newest.name, str(error))
        return
    if int(newest.stem) != replica.end and len(fresh):
        replica.problem("producers", newest.name, f"is not at the end, {replica.end}")
        return
    for producer_id, entry in fresh.entries.items():
        found = known.entries.get(producer_id)
        if found is None:
            replica.problem("producers", newest.name, f"does not know producer {producer_id}")
        elif (found.epoch, _last_batch(found)) != (entry.epoch, _last_batch(entry)):
            text = f"producer {producer_id}: {found}, the log has {entry}"
            replica.problem("producers", newest.name, text)


def _last_batch(entry: ProducerStateEntry) -> tuple[int, int]:
    """Return last sequence and offset; a snapshot has them of batches, not of markers, as in Kafka."""
    return entry.last_sequence, entry.batches[-1].last_offset if entry.batches else -1
