"""A partition that is damaged nearly everywhere: exact counts, few findings, the classes of the exact alignment."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from spark_jobs.align import Alignment, align
from spark_jobs.bulk import align_in_place
from spark_jobs.digest import WindowShape
from spark_jobs.findings import Finding, FindingClass, RecordDigest
from spark_jobs.folding import Folding, folded
from spark_jobs.report.document import sample

SHAPE = WindowShape(100, 0, 1000, 4)


def log(count: int, seed: int = 1) -> list[RecordDigest]:
    rng = random.Random(seed)
    return [
        RecordDigest(n * 2, *(rng.randrange(1 << 60) for _ in range(4)), n * 10, 20)
        for n in range(count)
    ]


def damaged(record: RecordDigest, part: str) -> RecordDigest:
    changed = {part: getattr(record, part) ^ 1} if part != "timestamp" else {part: 7}
    return replace(record, content=record.content ^ 12345, **changed)


def columns(
    records: Sequence[RecordDigest],
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return {
        each.name: np.array([getattr(record, each.name) for record in records], np.int64)
        for each in fields(RecordDigest)
    }


def in_place(
    source: Sequence[RecordDigest], target: Sequence[RecordDigest], keep: int = 1 << 40
) -> Alignment | None:
    return align_in_place("t", 0, columns(source), columns(target), keep=keep, shape=SHAPE)


@pytest.mark.parametrize("seed", range(20))
def test_records_damaged_in_place_are_found_as_the_exact_alignment_finds_them(seed: int) -> None:
    rng = random.Random(seed)
    source = log(300, seed)
    target = [
        damaged(record, rng.choice(["key", "value", "headers", "timestamp"]))
        if rng.random() < 0.7
        else record
        for record in source
    ]
    assert in_place(source, target) == align("t", 0, source, target)


def test_moved_repeated_and_lost_records_are_left_to_the_exact_alignment() -> None:
    source = log(50)
    assert in_place(source, source[:-1]) is None
    swapped = list(source)
    swapped[3], swapped[9] = (
        replace(source[9], offset=source[3].offset),
        replace(source[3], offset=source[9].offset),
    )
    assert in_place(source, swapped) is None
    repeated = list(source)
    repeated[5] = replace(source[4], offset=source[5].offset)
    assert in_place(source, repeated) is None
    twins = list(source)
    twins[5] = damaged(source[5], "value")
    twins[7] = replace(twins[5], offset=source[7].offset)
    assert in_place(source, twins) is None


def by_field(findings: Sequence[Finding]) -> Counter[str | None]:
    counts: Counter[str | None] = Counter()
    for each in findings:
        counts[each.field] += each.records
    return counts


@pytest.mark.parametrize("way", ["arrays", "findings"])
def test_beyond_the_limit_findings_become_runs_with_exact_counts(way: str) -> None:
    source = log(1000)
    target = [damaged(record, "key" if n % 3 else "value") for n, record in enumerate(source)]
    whole = align("t", 0, source, target).findings
    if way == "arrays":
        alignment = in_place(source, target, keep=10)
        assert alignment is not None
        found = alignment.findings
    else:
        alignment = align("t", 0, source, target)
        found = folded(alignment.findings, Folding(10, SHAPE), alignment)
    assert len(found) == 10 + 2 * SHAPE.buckets
    assert by_field(found) == by_field(whole) == {"key": 666, "value": 334}
    assert sum(each.owns for each in found) == 1000
    assert [each.source_offset for each in found[:10]] == list(range(0, 20, 2))
    assert min(each.first_difference for each in found[10:]) == 20
    assert max(each.last_offset or 0 for each in found) == 1998
    times = [(each.timestamp_ms or 0) // 1000 for each in found if each.records > 1]
    assert sorted(times) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_sample_has_every_class_of_every_partition() -> None:
    many = [Finding(FindingClass.CORRUPT, "t", 0, n, n) for n in range(1000)]
    few = [Finding(FindingClass.MISSING, "t", 1, n, None) for n in range(3)]
    chosen = sample([*many, *few], 100)
    assert len(chosen) == 100
    assert [number for number, _ in chosen] == [*range(1, 98), 1001, 1002, 1003]
    assert [each for _, each in sample(few, 3)] == few
