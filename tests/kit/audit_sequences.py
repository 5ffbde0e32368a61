"""Two sequences of records with faults between them, and one of them as a Spark task reads it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kclient.types import TopicPartition
from spark_jobs.align import Alignment, without_tail
from spark_jobs.arrow_batches import HASH_COLUMNS, arrow_schema, as_arrow
from spark_jobs.engine import Modes
from spark_jobs.findings import Finding, RecordDigest
from spark_jobs.folding import in_order
from spark_jobs.in_step import found_in_step
from spark_jobs.ranges import Ranges, merged
from spark_jobs.snapshot import HashBatches

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC, PARTITION = "t", 0


@dataclass
class Sequences:
    """The records of two logs, and what was not read of them."""

    source: list[RecordDigest]
    target: list[RecordDigest]
    renumbered: bool = False
    unread: tuple[Ranges, Ranges] = field(default_factory=lambda: ([], []))
    deleted: int = 0
    """The source's log begins here; the target has records from before."""

    @property
    def known(self) -> tuple[Ranges, Ranges]:
        """What is known before the read: the deleted start."""
        return ([(-1, self.deleted)] if self.deleted else []), []

    def readable(self) -> tuple[list[RecordDigest], list[RecordDigest]]:
        """Return the records to compare."""
        either = merged([*self.unread[0], *self.unread[1]])
        failed = self.unread if self.renumbered else (either, either)
        return _without(self.source, failed[0]), _without(self.target, failed[1])

    def reads(self, rng: random.Random) -> tuple[HashBatches, HashBatches]:
        """Return what reads each log, in batches of any size."""
        return (
            _reads(rng, _without(self.source, self.unread[0]), self.unread[0]),
            _reads(rng, _without(self.target, self.unread[1]), self.unread[1]),
        )


def aligned_in_step(
    tp: TopicPartition, sides: Mapping[str, HashBatches], modes: Modes, **options: Any
) -> tuple[Alignment, list[tuple[str, str]]]:
    """Return all that `found_in_step` yields as one alignment, its findings sorted, and what was not read."""
    findings: list[Finding] = []
    unread: list[tuple[str, str]] = []
    whole = []
    for each in found_in_step(tp, sides, modes, **options):
        if isinstance(each, Finding):
            findings.append(each)
        elif isinstance(each, Alignment):
            whole.append(each)
        else:
            unread.append(each)
    (alignment,) = whole
    findings = in_order(without_tail(each, alignment) for each in findings)
    return replace(alignment, findings=findings, tail_begins=0), unread


def drawn(
    rng: random.Random, *, faults: Sequence[str], contents: str = "unique", unread: bool = False
) -> Sequences:
    """Draw two logs; *contents*: unique, in bursts of equal records, or few."""
    renumbered = rng.random() < 0.5
    source = [_record(rng, offset) for offset in range(rng.randrange(1, 200))]
    width = rng.randrange(2, 6)
    if contents != "unique":
        values = [
            at // width if contents == "bursts" else rng.randrange(width)
            for at in range(len(source))
        ]
        source = [
            RecordDigest(each.offset, value + 1000, value, value, 0, 0)
            for each, value in zip(source, values, strict=True)
        ]
    target = list(source)
    for _ in range(rng.choice([0, 0, 1, 2, 4, 20]) if faults else 0):
        if target:
            _fault(rng, target, rng.choice(faults))
    if faults and rng.random() < 0.2:
        at = rng.randrange(len(target) + 1)
        del target[at : at + rng.randrange(80)]
    if faults and rng.random() < 0.2:
        at = rng.randrange(len(target) + 1)
        target[at:at] = [_record(rng, 0) for _ in range(rng.randrange(80))]
    made = Sequences(source, target, renumbered)
    if renumbered or rng.random() < 0.2:
        made.target = _numbered(rng, target, rng.randrange(100), holes=0.05 if renumbered else 0)
    else:
        made.target = _ascending(target)
    if not renumbered and rng.random() < 0.2:
        removed = {rng.randrange(200) for _ in range(10)}
        for records in (made.source, made.target):
            records[:] = [each for each in records if each.offset not in removed]
    if unread:
        low, other = rng.randrange(200), rng.randrange(200)
        made.unread = (
            [(low, low + rng.randrange(1, 30))] if rng.random() < 0.5 else [],
            [(other, other + rng.randrange(1, 30))] if rng.random() < 0.5 else [],
        )
        if renumbered and rng.random() < 0.5:
            made.deleted = rng.randrange(60)
            made.source = [each for each in made.source if each.offset >= made.deleted]
    return made


def _record(rng: random.Random, offset: int) -> RecordDigest:
    content, key, value, headers = (rng.randrange(1 << 60) for _ in range(4))
    return RecordDigest(offset, content, key, value, headers, 1000 + offset, 20)


def _fault(rng: random.Random, records: list[RecordDigest], fault: str) -> None:
    at, other = rng.randrange(len(records)), rng.randrange(len(records))
    match fault:
        case "missing":
            del records[at]
        case "extra":
            records.insert(at, _record(rng, 0))
        case "duplicate":
            records.insert(other, records[at])
        case "corrupt":
            value = rng.randrange(1 << 60)
            records[at] = replace(records[at], content=value, value=value)
        case "moved":
            records.insert(other, records.pop(at))


def _numbered(
    rng: random.Random, records: Sequence[RecordDigest], first: int, *, holes: float
) -> list[RecordDigest]:
    """Return *records* with offsets of their own, as behind transaction markers."""
    found, offset = [], first
    for each in records:
        offset += 1 + (rng.random() < holes)
        found.append(replace(each, offset=offset))
    return found


def _ascending(records: Sequence[RecordDigest]) -> list[RecordDigest]:
    """Return *records* at their offsets, or behind the record before."""
    found: list[RecordDigest] = []
    for each in records:
        last = found[-1].offset if found else -1
        found.append(replace(each, offset=max(last + 1, each.offset)))
    return found


def _without(records: Sequence[RecordDigest], ranges: Ranges) -> list[RecordDigest]:
    return [r for r in records if not any(low <= r.offset < high for low, high in ranges)]


def _reads(rng: random.Random, records: Sequence[RecordDigest], unread: Ranges) -> HashBatches:
    rows: list[tuple[int, int, tuple[object, ...]]] = [
        (each.offset, 1, _row(each)) for each in records
    ]
    for low, high in unread:
        text = json.dumps([low, high, "unreadable", "a fault"])
        rows.append((low, 0, (TOPIC, PARTITION, *[None] * (len(HASH_COLUMNS) - 3), text)))
    rows.sort(key=lambda row: row[:2])
    batches = []
    at = 0
    while at < len(rows):
        size = rng.choice([1, 3, 10, 40])
        batches.append(as_arrow([row for _, _, row in rows[at : at + size]], HASH_COLUMNS))
        at += size

    def read() -> Iterator[pa.RecordBatch]:
        return iter(batches)

    return read


def _row(record: RecordDigest) -> tuple[object, ...]:
    known: dict[str, object] = {"topic": TOPIC, "partition": PARTITION, "unread": None}
    names = arrow_schema(HASH_COLUMNS).names
    return tuple(known[name] if name in known else getattr(record, name) for name in names)
