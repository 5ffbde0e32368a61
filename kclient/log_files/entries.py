"""The small files of a log directory, decoded: indexes, snapshots of producers, checkpoints.

Formats, all big-endian: ``.index`` has 8-byte entries (relative offset i32, position i32). ``.timeindex`` has 12-byte
entries (timestamp i64 in ms, relative offset i32). Kafka preallocates both for the active segment: zeros follow the
last entry. ``.txnindex`` has 34-byte entries (version i16, producer id, first, last and last stable offset, i64 each).
``.snapshot`` has a version i16, a CRC-32C u32 of the rest, a count i32 and 42-byte entries. Checkpoints are text: a
version, a count, and a line for each entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from kclient.log_files.segment import base_offset
from kclient.wire.crc import crc32c
from kclient.wire.errors import CorruptMessage

OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TRANSACTION_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
OFFSET_CHECKPOINTS: Final = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "log-start-offset-checkpoint-copy",
    "cleaner-offset-checkpoint",
)
TEXT_FILES: Final = ("partition.metadata", "meta.properties")
"""Files of lines that people can read as they are."""

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")
_ABORTED: Final = Struct(">hqqqq")
_SNAPSHOT_HEAD: Final = Struct(">hI")
_COUNT: Final = Struct(">i")
_PRODUCER: Final = Struct(">qhiqiqiq")
_SNAPSHOT_VERSION: Final = 1
_SEQUENCES: Final = 1 << 31


class OffsetEntry(NamedTuple):
    """An entry of an offset index."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """An entry of a time index; the timestamp is in ms."""

    timestamp: int
    offset: int


class AbortedEntry(NamedTuple):
    """An entry of a transaction index."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerEntry(NamedTuple):
    """An entry of a snapshot; without a batch its last offset is -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int
    """Of the open transaction; -1: none is open."""

    @property
    def first_sequence(self) -> int:
        """The sequence of the first record of the last batch; 0 follows 2^31 - 1."""
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + _SEQUENCES


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset that its leader wrote."""

    epoch: int
    start_offset: int


class CheckpointEntry(NamedTuple):
    """The offset of a partition in a checkpoint."""

    topic: str
    partition: int
    offset: int


def offset_index(path: Path) -> list[OffsetEntry]:
    """Return the entries of an offset index, up to the zeros of preallocation. Raise OSError, CorruptMessage."""
    base = base_offset(path)
    return [
        OffsetEntry(base + relative, position) for relative, position in _used(_OFFSET_ENTRY, path)
    ]


def time_index(path: Path) -> list[TimeEntry]:
    """Return the entries of a time index, up to the zeros of preallocation. Raise OSError, CorruptMessage."""
    base = base_offset(path)
    return [
        TimeEntry(timestamp, base + relative) for timestamp, relative in _used(_TIME_ENTRY, path)
    ]


def _used(entry: Struct, path: Path) -> Iterator[tuple[int, int]]:
    """Yield the entries before the zeros; the first entry may be zeros itself."""
    content = path.read_bytes()
    if len(content) % entry.size:
        raise CorruptMessage(
            f"{len(content)} bytes are no multiple of {entry.size}, the size of an entry"
        )
    filled = len(content.rstrip(b"\0"))
    used = -(-filled // entry.size) * entry.size
    return entry.iter_unpack(memoryview(content)[:used])


def transaction_index(path: Path) -> list[AbortedEntry]:
    """Return the entries of a transaction index. Raise OSError, CorruptMessage."""
    content = path.read_bytes()
    if len(content) % _ABORTED.size:
        raise CorruptMessage(
            f"{len(content)} bytes are no multiple of {_ABORTED.size}, the size of an entry"
        )
    return [AbortedEntry(*fields) for fields in _ABORTED.iter_unpack(content)]


def snapshot(path: Path) -> list[ProducerEntry]:
    """Return the entries of a snapshot of producers. Raise OSError, CorruptMessage."""
    content = path.read_bytes()
    head = _SNAPSHOT_HEAD.size + _COUNT.size
    if len(content) < head:
        raise CorruptMessage(f"{len(content)} bytes; a snapshot has {head} at least")
    version, crc = _SNAPSHOT_HEAD.unpack_from(content)
    if version != _SNAPSHOT_VERSION:
        raise CorruptMessage(f"version {version} of a snapshot is unknown")
    found = crc32c(memoryview(content)[_SNAPSHOT_HEAD.size :])
    if found != crc:
        raise CorruptMessage(f"its CRC-32C is {found:#010x}, its head has {crc:#010x}")
    (count,) = _COUNT.unpack_from(content, _SNAPSHOT_HEAD.size)
    rows = memoryview(content)[head:]
    if count * _PRODUCER.size != len(rows):
        raise CorruptMessage(f"it announces {count} entries and has {len(rows)} bytes of them")
    return [ProducerEntry(*fields) for fields in _PRODUCER.iter_unpack(rows)]


def leader_epochs(path: Path) -> list[EpochEntry]:
    """Return the entries of leader-epoch-checkpoint. Raise OSError, CorruptMessage."""
    return [EpochEntry(*map(int, words)) for words in _lines(path, 2)]


def offset_checkpoint(path: Path) -> list[CheckpointEntry]:
    """Return the entries of a checkpoint of offsets. Raise OSError, CorruptMessage."""
    return [
        CheckpointEntry(topic, int(partition), int(offset))
        for topic, partition, offset in _lines(path, 3)
    ]


def _lines(path: Path, words: int) -> list[list[str]]:
    """Return the entries of a checkpoint as words, of which all but a topic are numbers.

    Kafka makes an empty file before it has the first entry.
    """
    content = path.read_bytes()
    if not content:
        return []
    try:
        version, count, *lines = content.decode("ascii").split("\n")
        rows = [line.split() for line in lines if line.strip()]
        if int(version) != 0:
            raise CorruptMessage(f"version {version} of a checkpoint is unknown")
        expected = int(count)
        for row in rows:
            if len(row) != words or [int(word) for word in row[-2:]] < [0, 0] or int(row[-1]) < 0:
                raise CorruptMessage(f"{' '.join(row)!r} is no entry")
    except ValueError as problem:
        raise CorruptMessage(f"not a checkpoint: {problem}") from problem
    if expected != len(rows):
        raise CorruptMessage(f"it announces {expected} entries and has {len(rows)}")
    return rows
