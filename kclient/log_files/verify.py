"""Checks log files: batches, and whether the files beside a segment agree with it.

A segment is sound if its batches follow one another with growing offsets from its base offset on, each with the right
CRC. The records of each can be decoded, and are as many as its header has. No batch is a duplicate of a producer's last
five, and leader epochs do not fall. Nothing but zeros may follow the last batch.

What is beside a segment must lead a reader right:

- offset index: a batch begins at the position of an entry, not above the offset of the entry, and the log has that
  offset. So a search that begins there misses nothing. (kafka-dump-log wants the batch to end at the offset. Followers
  append several batches at once, and index the last offset: it reports those as mismatches.)
- time index: no record up to the offset of an entry has a later timestamp than the entry.
- transaction index: an aborted transaction with records and marker in the segment has its entry; a consumer with
  read_committed would be given the records otherwise. The marker of an entry is a control batch. The file may be
  missing only without such a transaction, or beside a segment that was copied alone: without its offset index, too.
- leader-epoch-checkpoint: epochs and offsets grow, and each batch has the epoch that the file has for its offset.

Owner: any thread; reads only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from kclient.log_files import entries
from kclient.log_files.segment import SUFFIX, Batch, Segment, base_offset, has_base_offset
from kclient.wire.errors import KafkaError
from kclient.wire.record_reader import decode_columns
from kclient.wire.records import transaction_marker

OTHERS: Final = (
    entries.OFFSET_INDEX,
    entries.TIME_INDEX,
    entries.TRANSACTION_INDEX,
    entries.SNAPSHOT,
)


class Problem(NamedTuple):
    """What is wrong in a file."""

    path: Path
    text: str
    position: int | None = None
    """The byte of the file; None: the file as a whole, or an entry."""
    offset: int | None = None
    """The offset of the batch or entry."""


class Checked(NamedTuple):
    """What was read of a file."""

    path: Path
    batches: int
    records: int
    entries: int
    problems: Sequence[Problem]
    note: str | None = None
    """What is not wrong, and worth to know."""


class _Run(NamedTuple):
    """Batches in a row of one leader epoch: the base offsets of the first and the last of them."""

    epoch: int
    first_base: int
    last_base: int


class _Batches:
    """The batches of a segment, as far as the files beside it depend on them: 32 bytes each."""

    def __init__(self) -> None:
        self.positions = array("q")
        self.bases = array("q")
        self.lasts = array("q")
        self.latest = array("q")
        """The largest timestamp (ms) up to the end of the batch."""
        self.runs: list[_Run] = []
        self.aborted: dict[int, tuple[int, int]] = {}
        """Offset of the marker -> (producer id, first offset) of the aborted transactions that begin here."""
        self.controls: set[int] = set()

    def add(self, batch: Batch) -> None:
        info = batch.info
        self.positions.append(batch.position)
        self.bases.append(info.base_offset)
        self.lasts.append(info.last_offset)
        before = self.latest[-1] if self.latest else -1
        self.latest.append(max(before, info.max_timestamp))
        if self.runs and self.runs[-1].epoch == info.leader_epoch:
            self.runs[-1] = self.runs[-1]._replace(last_base=info.base_offset)
        else:
            self.runs.append(_Run(info.leader_epoch, info.base_offset, info.base_offset))

    @property
    def end(self) -> int:
        """The offset after the last batch, -1 without any."""
        return self.lasts[-1] + 1 if self.lasts else -1


class Verifier:
    """Checks the files of one or more logs; each segment is read once."""

    def __init__(
        self, progress: Callable[[Path, int], None] | None = None, *, decode: bool = True
    ) -> None:
        self._progress = progress
        self._decode = decode
        self._stem: Path | None = None
        self._batches = _Batches()
        self._runs: dict[Path, list[_Run]] = {}
        """The leader epochs of the segments that were read."""
        self._previous: tuple[Path, int] | None = None
        """Of the segment before: its directory, and the offset after its last batch."""

    def check(self, path: Path) -> Checked:
        """Check one file. Raise OSError; ValueError for a name that no file of a log directory has."""
        if path.suffix == SUFFIX:
            return self._segment(path)
        if path.suffix in OTHERS:
            base_offset(path)
        check: dict[str, Callable[[Path], tuple[int, list[Problem]]]] = {
            entries.OFFSET_INDEX: self._offset_index,
            entries.TIME_INDEX: self._time_index,
            entries.TRANSACTION_INDEX: self._transaction_index,
            entries.SNAPSHOT: self._snapshot,
            entries.LEADER_EPOCHS: self._leader_epochs,
            **dict.fromkeys(entries.OFFSET_CHECKPOINTS, self._offset_checkpoint),
        }
        found = check.get(path.name) or check.get(path.suffix)
        if found is None:
            raise ValueError(f"{path} is no file that can be checked: {SUFFIX}, {', '.join(check)}")
        try:
            count, problems = found(path)
        except KafkaError as problem:
            count, problems = 0, [Problem(path, problem.message)]
        return Checked(path, 0, 0, count, problems)

    # --- segments

    def _segment(self, path: Path) -> Checked:
        segment = Segment(path)
        batches = _Batches()
        problems: list[Problem] = []
        records = 0
        expected = segment.base_offset
        previous, self._previous = self._previous, None
        if previous is not None and previous[0] == path.parent and previous[1] > expected:
            text = f"the segment before it ends at offset {previous[1] - 1}, above the base offset"
            problems.append(Problem(path, text, 0, expected))
        transactions = _Transactions(batches)
        producers: dict[tuple[int, int], deque[tuple[int, int]]] = {}
        epoch = -1
        for batch in segment.batches():
            info = batch.info
            at = (path, batch.position, info.base_offset)
            if batch.wrong is not None:
                problems.append(_at(at, batch.wrong))
            if info.base_offset < expected or info.last_offset_delta < 0:
                text = (
                    f"offsets {info.base_offset} to {info.last_offset} do not follow {expected - 1}"
                )
                problems.append(_at(at, text))
            if 0 <= info.leader_epoch < epoch:
                problems.append(_at(at, f"leader epoch {info.leader_epoch} follows {epoch}"))
            problems += _duplicates(at, batch, producers)
            if batch.wrong is None and self._decode:
                count, unreadable = _decoded(batch)
                records += count
                problems += [_at(at, unreadable)] if unreadable else []
            else:
                records += max(0, info.record_count)
            expected = max(expected, info.next_offset)
            epoch = max(epoch, info.leader_epoch)
            batches.add(batch)
            transactions.add(batch)
            if self._progress is not None:
                self._progress(path, batch.position + info.size)
        note = None
        if segment.rest is not None:
            if segment.is_preallocated:
                note = f"{segment.rest_bytes} bytes of zeros at the end, as log.preallocate leaves them"
            else:
                text = f"{segment.rest_bytes} bytes at the end are no batch: {segment.rest}"
                problems.append(Problem(path, text, segment.end, None))
        problems += _no_transaction_index(path, batches)
        self._remember(path, batches)
        self._previous = (path.parent, max(expected, batches.end))
        return Checked(path, len(batches.positions), records, 0, problems, note)

    def _batches_beside(self, path: Path) -> _Batches:
        """Return the batches of the segment of *path*, which was the last one checked or is read now."""
        stem = path.with_suffix("")
        if stem != self._stem:
            batches = _Batches()
            transactions = _Transactions(batches)
            for batch in Segment(path.with_suffix(SUFFIX)).batches():
                batches.add(batch)
                transactions.add(batch)
            self._remember(path.with_suffix(SUFFIX), batches)
        return self._batches

    def _remember(self, segment: Path, batches: _Batches) -> None:
        self._stem, self._batches = segment.with_suffix(""), batches
        self._runs[segment] = batches.runs

    # --- beside segments

    def _offset_index(self, path: Path) -> tuple[int, list[Problem]]:
        found = entries.offset_index(path)
        batches = self._batches_beside(path)
        problems = _order(path, "offset", [each.offset for each in found])
        problems += _order(path, "position", [each.position for each in found])
        for offset, position in found:
            n = bisect_left(batches.positions, position)
            if n == len(batches.positions) or batches.positions[n] != position:
                text = f"no batch begins at byte {position} of the segment"
            elif batches.bases[n] > offset:
                text = (
                    f"the batch at byte {position} begins at offset {batches.bases[n]},"
                    " above that of the entry"
                )
            elif offset >= batches.end:
                text = f"the segment ends at offset {batches.end - 1}"
            else:
                continue
            problems.append(Problem(path, text, None, offset))
        return len(found), problems

    def _time_index(self, path: Path) -> tuple[int, list[Problem]]:
        found = entries.time_index(path)
        batches = self._batches_beside(path)
        problems = _order(path, "timestamp", [each.timestamp for each in found], may_repeat=True)
        problems += _order(path, "offset", [each.offset for each in found], may_repeat=True)
        for timestamp, offset in found:
            n = bisect_right(batches.lasts, offset)
            if n and batches.latest[n - 1] > timestamp:
                text = (
                    f"timestamp {timestamp}, but a record up to that offset has"
                    f" {batches.latest[n - 1]}"
                )
            elif offset >= batches.end:
                text = f"the segment ends at offset {batches.end - 1}"
            else:
                continue
            problems.append(Problem(path, text, None, offset))
        return len(found), problems

    def _transaction_index(self, path: Path) -> tuple[int, list[Problem]]:
        found = entries.transaction_index(path)
        batches = self._batches_beside(path)
        problems = _order(path, "last offset", [each.last_offset for each in found])
        for each in found:
            n = bisect_left(batches.lasts, each.last_offset)
            there = n < len(batches.lasts) and batches.bases[n] <= each.last_offset
            if each.version != 0:
                text = f"version {each.version} is unknown"
            elif not 0 <= each.first_offset <= each.last_offset or each.producer_id < 0:
                text = f"producer {each.producer_id}, offsets {each.first_offset} to {each.last_offset}"
            elif there and each.last_offset not in batches.controls:
                text = "no marker is at that offset of the segment"
            else:
                continue
            problems.append(Problem(path, text, None, each.last_offset))
        known = {(each.last_offset, each.producer_id) for each in found}
        problems += [
            Problem(path, f"no entry for {_aborted(batches, last)}", None, last)
            for last, (producer_id, _) in batches.aborted.items()
            if (last, producer_id) not in known
        ]
        return len(found), problems

    def _snapshot(self, path: Path) -> tuple[int, list[Problem]]:
        found = entries.snapshot(path)
        limit = base_offset(path)
        text = "producer {}: its last batch lies behind the snapshot"
        return len(found), [
            Problem(path, text.format(each.producer_id), None, each.last_offset)
            for each in found
            if each.last_offset >= limit or each.transaction_first_offset >= limit
        ]  # fmt: skip

    # --- of a log, of a log directory

    def _leader_epochs(self, path: Path) -> tuple[int, list[Problem]]:
        found = entries.leader_epochs(path)
        problems = _order(path, "epoch", [each.epoch for each in found])
        starts = [each.start_offset for each in found]
        problems += _order(path, "start offset", starts)
        if problems or not found:
            return len(found), problems
        for segment in sorted(path.parent.glob(f"*{SUFFIX}")):
            if segment not in self._runs:
                self._batches_beside(segment)
            for epoch, first, last in self._runs[segment]:
                n = bisect_right(starts, first) - 1
                # A broker that runs writes the file at the next flush: a later epoch may be missing.
                if n < 0 or not 0 <= epoch <= found[-1].epoch:
                    continue
                if found[n].epoch != epoch:
                    text = (
                        f"epoch {found[n].epoch}, but the batch in {segment.name} has epoch {epoch}"
                    )
                    problems.append(Problem(path, text, None, first))
                elif n + 1 < len(starts) and starts[n + 1] <= last:
                    text = f"epoch {found[n + 1].epoch}, but batches in {segment.name} have epoch {epoch}"
                    problems.append(Problem(path, text, None, starts[n + 1]))
        return len(found), problems

    @staticmethod
    def _offset_checkpoint(path: Path) -> tuple[int, list[Problem]]:
        found = entries.offset_checkpoint(path)
        counts = Counter((each.topic, each.partition) for each in found)
        return len(found), [
            Problem(path, f"{topic}-{partition} has two entries")
            for topic, partition in sorted(key for key, count in counts.items() if count > 1)
        ]


def _no_transaction_index(path: Path, batches: _Batches) -> list[Problem]:
    """Return a problem if a segment lacks its transaction index, and not because it was copied alone."""
    index = path.with_suffix(entries.TRANSACTION_INDEX)
    if not batches.aborted or index.exists() or not path.with_suffix(entries.OFFSET_INDEX).exists():
        return []
    last = min(batches.aborted)
    return [Problem(path, f"there is no {index.name}, with {_aborted(batches, last)}", None, last)]


def _aborted(batches: _Batches, last: int) -> str:
    producer_id, first = batches.aborted[last]
    return f"the aborted transaction of producer {producer_id}, offsets {first} to {last}"


class _Transactions:
    """Finds the aborted transactions that begin and end in a segment."""

    def __init__(self, batches: _Batches) -> None:
        self._batches = batches
        self._open: dict[int, int] = {}

    def add(self, batch: Batch) -> None:
        info = batch.info
        if not info.is_transactional:
            return
        if not info.is_control:
            self._open.setdefault(info.producer_id, info.base_offset)
            return
        self._batches.controls.add(info.last_offset)
        first = self._open.pop(info.producer_id, None)
        marker = transaction_marker(batch.data, info)
        if first is not None and marker is not None and marker.is_aborted:
            self._batches.aborted[info.last_offset] = (info.producer_id, first)


def _at(at: tuple[Path, int, int], text: str) -> Problem:
    path, position, offset = at
    return Problem(path, text, position, offset)


def _duplicates(
    at: tuple[Path, int, int],
    batch: Batch,
    producers: dict[tuple[int, int], deque[tuple[int, int]]],
) -> Iterator[Problem]:
    """Yield the problem of a batch with the sequences of one of the producer's last five (KIP-98)."""
    info = batch.info
    if info.producer_id < 0 or info.is_control or info.base_sequence < 0:
        return
    recent = producers.setdefault((info.producer_id, info.producer_epoch), deque(maxlen=5))
    this = (info.base_sequence, info.last_sequence)
    if this in recent:
        text = f"producer {info.producer_id}: sequences {this[0]} to {this[1]} again, a duplicate"
        yield _at(at, text)
    recent.append(this)


def _decoded(batch: Batch) -> tuple[int, str | None]:
    """Return the number of records, and what is wrong with them."""
    try:
        columns = decode_columns(batch.data, batch.info)
    except KafkaError as problem:
        return 0, f"its records cannot be read: {problem.message}"
    latest = max(columns.timestamps, default=None)
    info = batch.info
    if latest is not None and latest > info.max_timestamp:
        return len(
            columns.offsets
        ), f"a record has timestamp {latest}, the header {info.max_timestamp}"
    return len(columns.offsets), None


def _order(path: Path, name: str, numbers: list[int], *, may_repeat: bool = False) -> list[Problem]:
    """Return a problem for each number that does not grow."""
    return [
        Problem(path, f"entry {n}: {name} {now} follows {before}")
        for n, (before, now) in enumerate(pairwise(numbers), 1)
        if now < before or (now == before and not may_repeat)
    ]


def files_of(path: Path) -> list[Path]:
    """Return the files of *path* that can be checked: itself, or those of a log, or of a log directory, in order.

    Segments come before the files beside them, logs one after the other.
    """
    if not path.is_dir():
        return [path]
    return in_order([each for each in path.rglob("*") if each.is_file() and is_checked(each)])


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Return *paths* by log and offset, each segment before the files beside it."""
    return sorted(
        paths, key=lambda each: (each.parent, _stem(each), each.suffix != SUFFIX, each.name)
    )


def is_checked(path: Path) -> bool:
    """Return whether the name is that of a file that can be checked."""
    if path.name in (entries.LEADER_EPOCHS, *entries.OFFSET_CHECKPOINTS):
        return True
    return path.suffix in (SUFFIX, *OTHERS) and has_base_offset(path)


def _stem(path: Path) -> str:
    return path.name.partition(".")[0] if path.suffix in (SUFFIX, *OTHERS) else "~"
