"""The content of log files as lines of text: those of Apache Kafka's DumpLogSegments (kafka-dump-log).

Scripts parse these lines, so they are Kafka's to the letter. Checkpoints and partition.metadata, which Kafka's tool
ignores, have lines of the same kind. What Kafka's tool finds on its way (`Dump.findings`) is little: `verify.py` checks
the files.

A file ends where it cannot be read on: then a line names the byte and the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from kclient.log_files import entries
from kclient.log_files.segment import SUFFIX, Batch, Segment, base_offset, has_base_offset
from kclient.wire.batches import BatchInfo
from kclient.wire.compression import Codec
from kclient.wire.errors import CorruptMessage, KafkaError
from kclient.wire.record_reader import decode_batch
from kclient.wire.record_writer import Record
from kclient.wire.records import control_type, transaction_marker

Parse = Callable[[bytes | None, bytes | None], tuple[str | None, str | None]]
"""Key and value of a record -> their texts; None: it is not printed."""

LARGEST_MESSAGE: Final = 5 * 1024 * 1024
_NO_TIMESTAMP: Final = -1
_CONTROL_TYPES: Final = {
    0: "ABORT", 1: "COMMIT", 2: "LEADER_CHANGE", 3: "SNAPSHOT_HEADER", 4: "SNAPSHOT_FOOTER", 5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}  # fmt: skip


def text_of_kafka(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """Return key and value as UTF-8, as Kafka's tool does."""
    return _text(key, "replace"), _text(value, "replace")


def text_of_bytes(key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    r"""Return key and value as UTF-8, with \xff for a byte that is none."""
    return _text(key, "backslashreplace"), _text(value, "backslashreplace")


def _text(content: bytes | None, errors: str) -> str | None:
    return None if content is None else content.decode(errors=errors)


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What is printed; the names are those of kafka-dump-log."""

    deep_iteration: bool = False
    """Print the records of each batch."""
    print_data: bool = False
    """Print their keys and values, too."""
    skip_record_metadata: bool = False
    """Print nothing else of them."""
    index_sanity_check: bool = False
    """Check only what decides whether a broker builds an index again."""
    verify_index_only: bool = False
    """Check an index, without its entries."""
    max_bytes: int | None = None
    """How much of a segment is read."""
    max_message_size: int = LARGEST_MESSAGE
    parse: Parse = text_of_kafka


class Pair(NamedTuple):
    """Two numbers that do not agree."""

    first: int
    second: int


@dataclass
class Dump:
    """Prints files; collects what does not agree."""

    options: DumpOptions = DumpOptions()
    _index: dict[str, list[Pair]] = field(default_factory=dict)
    _timestamps: dict[str, list[Pair]] = field(default_factory=dict)
    _order: dict[str, list[Pair]] = field(default_factory=dict)
    _missing: dict[str, list[Pair]] = field(default_factory=dict)
    _gaps: dict[str, list[Pair]] = field(default_factory=dict)
    unreadable: int = 0
    """Files, and batches, that cannot be read."""
    torn: int = 0
    """Segments that end with bytes of no whole batch."""

    def lines(self, path: Path) -> Iterator[str]:
        """Yield the lines of one file. Raise OSError, and ValueError for a file that is none of a log directory."""
        yield f"Dumping {path}"
        try:
            yield from reader(path)(self, path)
        except KafkaError as problem:
            self.unreadable += 1
            yield f"{path} cannot be read: {problem.message}"

    def findings(self) -> list[str]:
        """Return what does not agree in the files so far, as Kafka's tool prints it to stderr."""
        found: list[str] = []
        for name, pairs in self._index.items():
            found.append(f"Mismatches in :{name}")
            found += [f"  Index offset: {a}, log offset: {b}" for a, b in pairs]
        for name, pairs in self._timestamps.items():
            found.append(f"Found timestamp mismatch in :{name}")
            found += [f"  Index timestamp: {a}, log timestamp: {b}" for a, b in pairs]
        for name, pairs in self._order.items():
            found.append(f"Found out of order timestamp in :{name}")
            found += [
                f"  Index timestamp: {a}, Previously indexed timestamp: {b}" for a, b in pairs
            ]
        for pairs in self._missing.values():
            found.append("The following indexed offsets are not found in the log.")
            found += [f"Indexed offset: {a}, found log offset: {b}" for a, b in pairs]
        for name, pairs in self._gaps.items():
            found.append(f"Non-consecutive offsets in {name}")
            found += [f"  {a} is followed by {b}" for a, b in pairs]
        return found

    # --- segments

    def segment(self, path: Path) -> Iterator[str]:
        """Yield the lines of a segment."""
        segment = Segment(path, self.options.max_bytes)
        yield f"Log starting offset: {segment.base_offset}"
        is_deep = self.options.deep_iteration or self.options.print_data
        last = -1
        for batch in segment.batches():
            yield batch_line(batch)
            if not is_deep:
                continue
            try:
                records = decode_batch(batch.data, batch.info)
            except KafkaError as problem:
                self.unreadable += 1
                yield f"| the records cannot be read: {problem.message}"
                continue
            for number, record in enumerate(records):
                if last not in (-1, record.offset - 1):
                    self._gaps.setdefault(str(path), []).append(Pair(last, record.offset))
                last = record.offset
                yield self._record_line(batch, number, record)
        if segment.rest is not None and self.options.max_bytes is None:
            if not segment.is_preallocated:
                self.torn += 1
            yield f"Found {segment.rest_bytes} invalid bytes at the end of {path.name}"

    def _record_line(self, batch: Batch, number: int, record: Record) -> str:
        info, options = batch.info, self.options
        words = ["|"]
        if not options.skip_record_metadata:
            sequence = -1 if info.base_sequence < 0 else _sequence(info, record)
            words.append(
                f"offset: {record.offset} {timestamp_type(info)}: {record.timestamp}"
                f" keySize: {_size(record.key)} valueSize: {_size(record.value)} sequence: {sequence}"
                f" headerKeys: [{','.join(name for name, _ in record.headers)}]"
            )
            if info.is_control:
                words.append(_marker(batch, record))
        if options.print_data and not info.is_control:
            key, value = options.parse(record.key, record.value)
            words += [] if key is None else [f"key: {key}"]
            words += [] if value is None else [f"payload: {value}"]
        return " ".join(words)

    # --- indexes

    def offset_index(self, path: Path) -> Iterator[str]:
        """Yield the entries of an offset index, and compare them with the segment."""
        found = entries.offset_index(path)
        if not found:
            yield f"{path} is empty."
            return
        if self.options.index_sanity_check:
            yield _sanity(path, found[-1].offset)
            return
        lasts = {
            batch.position: batch.info.last_offset
            for batch in Segment(path.with_suffix(SUFFIX)).batches()
        }
        for entry in found:
            last = lasts.get(entry.position)
            if last != entry.offset:
                self._index.setdefault(str(path), []).append(
                    Pair(entry.offset, -1 if last is None else last)
                )
            if not self.options.verify_index_only:
                yield f"offset: {entry.offset} position: {entry.position}"

    def time_index(self, path: Path) -> Iterator[str]:
        """Yield the entries of a time index, and compare them with the segment."""
        found = entries.time_index(path)
        if self.options.index_sanity_check:
            yield _sanity(path, found[-1].offset if found else base_offset(path))
            return
        batches = (
            (b.info.last_offset, b.info) for b in Segment(path.with_suffix(SUFFIX)).batches()
        )
        last, info = next(batches, (-1, None))
        name = str(path)
        previous = _NO_TIMESTAMP
        for entry in found:
            while info is not None and last < entry.offset:
                last, info = next(batches, (-1, None))
            if info is None or last != entry.offset:
                self._missing.setdefault(name, []).append(Pair(entry.offset, last))
            else:
                if info.max_timestamp != entry.timestamp:
                    self._timestamps.setdefault(name, []).append(
                        Pair(entry.timestamp, info.max_timestamp)
                    )
                if previous >= entry.timestamp:
                    self._order.setdefault(name, []).append(Pair(entry.timestamp, previous))
            if not self.options.verify_index_only:
                yield f"timestamp: {entry.timestamp} offset: {entry.offset}"
            previous = entry.timestamp

    # --- the rest

    def transaction_index(self, path: Path) -> Iterator[str]:
        """Yield the aborted transactions."""
        for each in entries.transaction_index(path):
            yield (
                f"version: {each.version} producerId: {each.producer_id} firstOffset: {each.first_offset}"
                f" lastOffset: {each.last_offset} lastStableOffset: {each.last_stable_offset}"
            )

    def snapshot(self, path: Path) -> Iterator[str]:
        """Yield the producers."""
        for each in entries.snapshot(path):
            batch = (
                f"firstSequence: {each.first_sequence} lastSequence: {each.last_sequence}"
                f" lastOffset: {each.last_offset} offsetDelta: {each.offset_delta} timestamp: {each.timestamp}"
                if each.last_offset >= 0
                else ""
            )
            yield (
                f"producerId: {each.producer_id} producerEpoch: {each.producer_epoch}"
                f" coordinatorEpoch: {each.coordinator_epoch}"
                f" currentTxnFirstOffset: {_optional(each.transaction_first_offset)}"
                f" lastTimestamp: {each.timestamp} {batch}"
            )

    def leader_epochs(self, path: Path) -> Iterator[str]:
        """Yield the leader epochs."""
        for each in entries.leader_epochs(path):
            yield f"epoch: {each.epoch} startOffset: {each.start_offset}"

    def offset_checkpoint(self, path: Path) -> Iterator[str]:
        """Yield the offsets of partitions."""
        for each in entries.offset_checkpoint(path):
            yield f"topic: {each.topic} partition: {each.partition} offset: {each.offset}"

    def text_file(self, path: Path) -> Iterator[str]:
        """Yield the lines of a text file."""
        yield from path.read_text(encoding="utf-8", errors="backslashreplace").splitlines()


Reader = Callable[[Dump, Path], Iterator[str]]

_BY_SUFFIX: Final[dict[str, Reader]] = {
    SUFFIX: Dump.segment,
    entries.OFFSET_INDEX: Dump.offset_index,
    entries.TIME_INDEX: Dump.time_index,
    entries.TRANSACTION_INDEX: Dump.transaction_index,
    entries.SNAPSHOT: Dump.snapshot,
}
_BY_NAME: Final[dict[str, Reader]] = {
    entries.LEADER_EPOCHS: Dump.leader_epochs,
    **dict.fromkeys(entries.OFFSET_CHECKPOINTS, Dump.offset_checkpoint),
    **dict.fromkeys(entries.TEXT_FILES, Dump.text_file),
}


def is_known(path: Path) -> bool:
    """Return whether the name is that of a file of a log directory."""
    return path.name in _BY_NAME or (path.suffix in _BY_SUFFIX and has_base_offset(path))


def reader(path: Path) -> Reader:
    """Return what prints *path*; raise ValueError if its name is not that of a file of a log directory."""
    found = _BY_NAME.get(path.name) or _BY_SUFFIX.get(path.suffix)
    if found is None:
        raise ValueError(
            f"{path} is no file of a log directory: {', '.join(_BY_SUFFIX)}, {', '.join(_BY_NAME)}"
        )
    if path.name not in _BY_NAME:
        base_offset(path)
    return found


def batch_line(batch: Batch) -> str:
    """Return the line of a batch."""
    info = batch.info
    horizon = info.base_timestamp if info.has_delete_horizon else -1
    codec = info.codec
    return (
        f"baseOffset: {info.base_offset} lastOffset: {info.last_offset} count: {info.record_count}"
        f" baseSequence: {info.base_sequence} lastSequence: {info.last_sequence}"
        f" producerId: {info.producer_id} producerEpoch: {info.producer_epoch}"
        f" partitionLeaderEpoch: {info.leader_epoch} isTransactional: {_java(info.is_transactional)}"
        f" isControl: {_java(info.is_control)} deleteHorizonMs: {_optional(horizon)}"
        f" position: {batch.position} {timestamp_type(info)}: {info.max_timestamp} size: {info.size}"
        f" magic: {info.magic} compresscodec: {Codec(codec).name.lower() if codec <= max(Codec) else codec}"
        f" crc: {info.crc} isvalid: {_java(batch.wrong is None)}"
    )


def timestamp_type(info: BatchInfo) -> str:
    """Return Kafka's name of the kind of timestamp in a batch."""
    return "LogAppendTime" if info.log_append_time else "CreateTime"


def _marker(batch: Batch, record: Record) -> str:
    try:
        kind = control_type(record.key)
    except KafkaError as problem:
        raise CorruptMessage(f"offset {record.offset}: {problem.message}") from problem
    marker = transaction_marker(batch.data, batch.info)
    if marker is None:
        return f"controlType: {_CONTROL_TYPES.get(kind, 'UNKNOWN')}({kind})"
    return f"endTxnMarker: {_CONTROL_TYPES[kind]} coordinatorEpoch: {marker.coordinator_epoch}"


def _sequence(info: BatchInfo, record: Record) -> int:
    return (info.base_sequence + record.offset - info.base_offset) & 0x7FFFFFFF


def _sanity(path: Path, last_offset: int) -> str:
    if last_offset < base_offset(path):
        raise CorruptMessage(f"its last offset {last_offset} is below its base offset")
    return f"{path} passed sanity check."


def _size(content: bytes | None) -> int:
    return -1 if content is None else len(content)


def _java(value: bool) -> str:
    return "true" if value else "false"


def _optional(number: int) -> str:
    return f"OptionalLong[{number}]" if number >= 0 else "OptionalLong.empty"
