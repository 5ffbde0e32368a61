"""Damage a copy on purpose: records of a stopped broker's log, chosen at random, lost, doubled, changed or moved.

The segment is rewritten batch by batch with valid CRCs, so that no broker, client or checksum detects the damage. Only
a comparison with the source can. The damage is returned in the terms of an audit finding: the audit must report exactly
that.

How each class is made, without disturbing any other record's offset:
  missing     the record is left out of its batch; offsets keep the gap, as after compaction
  corrupt     one byte of the value is changed and the batch's CRC is computed again
  reordered   inside one batch a record is moved by three places
  duplicate   a copy is appended at the log's end, as a careless retry would
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kclient.wire.batches import BatchInfo, iterate
from kclient.wire.records import Record, decode_batch, encode_batch

DISTANCE = 3
"""How far a moved record moves."""


class Damage(NamedTuple):
    """One damaged record, named as the audit must name it."""

    finding_class: str
    topic: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many records of each class to damage in one partition."""

    missing: int = 2
    corrupt: int = 2
    reordered: int = 1
    duplicate: int = 1


def damage_log(
    directory: Path, topic: str, partition: int, rng: random.Random, counts: Counts
) -> list[Damage]:
    """Damage the log in *directory* (TOPIC-PARTITION of a stopped broker); return what was done.

    Only the last segment is touched. Its indexes are removed: the broker rebuilds them when it starts.
    """
    segment = max(directory.glob("*.log"))
    stored = segment.read_bytes()
    batches = [
        (info, stored[info.position : info.position + info.size]) for info in iterate(stored)
    ]
    roomy = [
        number
        for number, (info, _) in enumerate(batches)
        if info.record_count >= DISTANCE + 2 and not info.is_control
    ]
    wanted = counts.missing + counts.corrupt + counts.reordered
    if len(roomy) < wanted + counts.duplicate:
        raise ValueError(
            f"{directory} has {len(roomy)} batches large enough to damage, {wanted + counts.duplicate} are needed"
        )
    # One deed per batch keeps them apart, so that each has exactly one right name.
    chosen = rng.sample(roomy, wanted + counts.duplicate)
    deeds: list[Damage] = []
    plan: Sequence[tuple[int, Callable[..., tuple[list[Record], Damage]]]] = [
        (counts.missing, _lose),
        (counts.corrupt, _corrupt),
        (counts.reordered, _move),
    ]
    for count, deed in plan:
        for _ in range(count):
            number = chosen.pop()
            info, _ = batches[number]
            records, done = deed(rng, decode_batch(stored, info))
            batches[number] = (info, _rebuilt(info, records))
            deeds.append(done._replace(topic=topic, partition=partition))
    end = batches[-1][0].next_offset
    for number in chosen:
        info, _ = batches[number]
        record = rng.choice(decode_batch(stored, info))
        copy = record._replace(offset=end)
        batches.append((info, _rebuilt(info, [copy], base_offset=end)))
        deeds.append(Damage("duplicate", topic, partition, None, end))
        end += 1
    segment.write_bytes(b"".join(data for _, data in batches))
    for index in (segment.with_suffix(".index"), segment.with_suffix(".timeindex")):
        index.unlink(missing_ok=True)
    # Without the marker the broker checks the log and rebuilds what describes it.
    (directory.parent / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (directory.parent / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    return sorted(deeds, key=lambda each: (each.finding_class, each.target_offset or 0))


def _lose(rng: random.Random, records: list[Record]) -> tuple[list[Record], Damage]:
    # Not the last of its batch: the batch's own last offset would betray nothing then either. But the example reads
    # better when the gap has neighbours on both sides.
    place = rng.randrange(1, len(records) - 1)
    lost = records[place]
    return records[:place] + records[place + 1 :], Damage("missing", "", 0, lost.offset, None)


def _corrupt(rng: random.Random, records: list[Record]) -> tuple[list[Record], Damage]:
    place = rng.choice([n for n, record in enumerate(records) if record.value])
    record = records[place]
    assert record.value
    value = bytearray(record.value)
    value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
    changed = record._replace(value=bytes(value))
    damage = Damage("corrupt", "", 0, record.offset, record.offset, "value")
    return [*records[:place], changed, *records[place + 1 :]], damage


def _move(rng: random.Random, records: list[Record]) -> tuple[list[Record], Damage]:
    place = rng.randrange(len(records) - DISTANCE)
    offsets = [record.offset for record in records]
    moved = [*records[:place], *records[place + 1 :]]
    moved.insert(place + DISTANCE, records[place])
    renumbered = [
        record._replace(offset=offset) for record, offset in zip(moved, offsets, strict=True)
    ]
    return renumbered, Damage("reordered", "", 0, offsets[place], offsets[place + DISTANCE])


def _rebuilt(info: BatchInfo, records: Sequence[Record], base_offset: int | None = None) -> bytes:
    """Return a batch like *info* that holds *records* at their own offsets, with a valid CRC."""
    return encode_batch(
        records,
        codec=info.codec,
        base_offset=info.base_offset if base_offset is None else base_offset,
        leader_epoch=info.leader_epoch,
        keep_offsets=True,
        last_offset_delta=info.last_offset_delta if base_offset is None else 0,
    )
