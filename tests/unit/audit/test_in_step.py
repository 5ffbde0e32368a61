"""Partitions of many records, read in step: what is held at a time, and what is found."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kclient.types import TopicPartition
from spark_jobs.align import Alignment, align
from spark_jobs.common_runs import Columns, CommonRuns
from spark_jobs.digest import WindowShape
from spark_jobs.engine import Modes
from spark_jobs.findings import Finding, FindingClass, RecordDigest
from spark_jobs.folding import Folding
from spark_jobs.in_step import DIGEST_FIELDS, Sizes
from tests.kit.audit_sequences import Sequences, aligned_in_step

TP = TopicPartition("t", 0)
MANY = 200_000


def columns(ids: np.ndarray[tuple[int], np.dtype[np.int64]], first: int, damaged: int) -> Columns:
    """Return records with *ids* at the offsets from *first* on; one in *damaged* has another content."""
    contents = ids * 0x9E3779B97F4A7C1 ^ np.where(ids % damaged == damaged - 1, 12345, 0)
    made = {name: np.zeros(ids.size, np.int64) for name in DIGEST_FIELDS}
    return {**made, "offset": first + np.arange(ids.size), "content": contents, "value": contents}


def pieces(shift: int, size: int) -> Iterator[tuple[Columns, Columns]]:
    """Yield two logs of `MANY` records, the target with *shift* more before, and a damaged one in 10,000."""
    for low in range(0, MANY + shift, size):
        offsets = np.arange(low, min(low + size, MANY + shift))
        inside = offsets[offsets < MANY]
        yield (
            columns(inside, low, 1 << 40) if inside.size else {},
            columns(offsets - shift, low, 10_000),
        )


@pytest.mark.parametrize("shift", [0, 1, 20_000])
@pytest.mark.parametrize("renumbered", [False, True])
def test_few_records_are_held_where_few_differ(shift: int, renumbered: bool) -> None:
    runs = CommonRuns(renumbered=renumbered)
    for source, target in pieces(shift, 7_000):
        runs.add(source, target)
        assert max(runs.pending) <= shift + 8_000
        assert runs.left_in <= shift + 600
    reduced = runs.end()
    assert reduced.source["offset"].size + reduced.left_out == MANY
    assert reduced.target["offset"].size + reduced.left_out == MANY + shift
    damaged = set(range(9_999, MANY, 10_000))
    assert damaged <= set(reduced.source["offset"].tolist())
    assert {offset + shift for offset in damaged} <= set(reduced.target["offset"].tolist())


def in_step(sequences: Sequences, *, breaks: Sequence[int] = (), **sizes: int) -> Alignment:
    source, target = sequences.reads(random.Random(1))
    alignment, _ = aligned_in_step(
        TP,
        {"east": source, "west": target},
        Modes(renumbered=sequences.renumbered, unread={TP: sequences.known}),
        offsets=1 << 40,
        folding=Folding(1 << 30, WindowShape(100, 0, 1000, 4)),
        breaks=breaks,
        sizes=Sizes(**sizes),
    )
    return alignment


def log(count: int, seed: int = 1, first: int = 0) -> list[RecordDigest]:
    rng = random.Random(seed)
    return [
        RecordDigest(first + n, *[rng.randrange(1 << 60) for _ in range(4)], timestamp=n)
        for n in range(count)
    ]


def damaged(records: list[RecordDigest], every: int) -> list[RecordDigest]:
    """Return *records* with another value in one of *every*."""
    return [
        replace(each, content=each.content ^ 1, value=each.value ^ 1) if at % every == 1 else each
        for at, each in enumerate(records)
    ]


def placed(findings: list[Finding]) -> list[tuple[str, int | None, int | None, int]]:
    return [(f.finding_class.value, f.source_offset, f.target_offset, f.records) for f in findings]


def test_a_record_that_moved_far_is_reordered_by_its_distance() -> None:
    source = log(5_000)
    order = [*source[:100], *source[101:4_000], source[100], *source[4_000:]]
    target = [replace(each, offset=at) for at, each in enumerate(order)]
    found = in_step(Sequences(source, target))
    assert found == align(*TP, source, target)
    (moved, *_) = [f for f in found.findings if f.finding_class is FindingClass.REORDERED]
    assert moved.distance == 3_899


def test_a_run_at_other_offsets_is_one_finding_with_all_its_records() -> None:
    source = log(3_000)
    target = [replace(each, offset=each.offset + 7) for each in source]
    found = in_step(Sequences(source, target))
    assert placed(found.findings) == [("shifted", 0, 7, 3_000)]
    assert found == align(*TP, source, target)


def test_no_run_passes_equal_windows_that_were_left_out() -> None:
    """With a copy of the record before those windows, the 15 records behind them would be a run of 16."""
    every = log(216)
    before, behind = every[92:100], every[201:]
    again = replace(every[99], offset=200)
    found = in_step(Sequences([*before, *behind], [*before, again, *behind]), breaks=[200])
    assert placed(found.findings) == [("duplicate", None, 200, 1)]
    assert found.verified == 23


@pytest.mark.parametrize("at_end", [True, False])
def test_a_run_does_not_take_a_copy_for_the_record_that_is_in_its_place(at_end: bool) -> None:
    """With the copy beside it 15 records in their places would be a run of 16."""
    every = log(17)
    source = [each for each in every if each.offset != (15 if at_end else 1)]
    copied = source[-1] if at_end else source[0]
    again = replace(copied, offset=15 if at_end else 1)
    target = sorted([*source, again], key=lambda record: record.offset)
    found = in_step(Sequences(source, target))
    assert placed(found.findings) == [("duplicate", None, again.offset, 1)]
    assert found.verified == 16


@pytest.mark.long
def test_parts_with_a_shift_do_not_begin_it_again() -> None:
    source = log(8_000)
    extra = log(1, seed=2)
    target = [replace(each, offset=at) for at, each in enumerate([*extra, *damaged(source, 400)])]
    found = in_step(Sequences(source, target), part=5)
    classes = Counter(f.finding_class.value for f in found.findings)
    assert classes == {"extra": 1, "corrupt": 20}
    assert found.last_shift == 1


def test_only_the_end_of_the_source_may_be_lag() -> None:
    source = log(2_000)
    target = [each for each in source[:1_900] if not 300 <= each.offset < 900]
    found = in_step(Sequences(source, target), part=20, reach=100)
    assert {f.finding_class for f in found.findings} == {FindingClass.MISSING}
    tails = [f.source_offset for f in found.findings if f.tail_position is not None]
    assert tails == list(range(1_900, 2_000))


@pytest.mark.parametrize("sizes", [{}, {"part": 20, "reach": 100, "step": 10, "sample": 4}])
@pytest.mark.parametrize("own", [0, 1, 90])
def test_the_end_of_the_source_lags_but_for_what_the_target_has_other_records_for(
    own: int, sizes: dict[str, Any]
) -> None:
    source = log(2_000)
    target = [replace(each, offset=at) for at, each in enumerate([*source[:1_500], *log(own, 9)])]
    found = in_step(Sequences(source, target, renumbered=True), **sizes)
    tails = [f.source_offset for f in found.findings if f.tail_position is not None]
    assert tails == list(range(1_500, 2_000))
    assert found.passed_up_to == 1_500 + own


@pytest.mark.long
def test_records_from_before_the_start_of_the_source_are_no_finding_however_many() -> None:
    every = log(20_000)
    source = every[15_000:]
    target = [replace(each, offset=at + at // 100) for at, each in enumerate(every)]
    sequences = Sequences(source, target, renumbered=True, deleted=15_000)
    found = in_step(sequences, reach=1_000, part=500, step=100, sample=16)
    assert (found.findings, found.verified, found.aged_out) == ([], 5_000, (0, 15_000))
    assert found.proven == (15_000, 20_000)


def test_records_that_only_the_target_has_are_extra_behind_the_first_common_record() -> None:
    every = log(3_000)
    mixed = [*every[:2_000], *log(700, seed=5), *every[2_000:]]
    target = [replace(each, offset=at) for at, each in enumerate(mixed)]
    sequences = Sequences(every[500:], target, renumbered=True, deleted=500)
    found = in_step(sequences, reach=200, part=100, step=50, sample=16)
    assert {f.finding_class for f in found.findings} == {FindingClass.EXTRA}
    assert (len(found.findings), found.aged_out) == (700, (0, 500))


@pytest.mark.parametrize("burst", [5, 40])
def test_a_log_that_starts_inside_of_equal_records_has_no_duplicates(burst: int) -> None:
    """Aligned by the number of their occurrence, the first of five would be opposite the first of two."""
    every = [
        replace(each, content=each.offset // burst, value=each.offset // burst) for each in log(100)
    ]
    source = every[13:]
    target = [replace(each, offset=at + 1) for at, each in enumerate(every)]
    found = in_step(Sequences(source, target, renumbered=True, deleted=13))
    assert (found.findings, found.verified, found.aged_out) == ([], 87, (0, 13))


def test_equal_offsets_of_a_renumbered_target_make_no_record_a_damaged_one() -> None:
    source = log(60)
    others = [replace(each, timestamp=each.timestamp + 1_000) for each in log(30, seed=9)]
    found = in_step(Sequences(source, [*others, *source[30:]], renumbered=True))
    classes = Counter(f.finding_class.value for f in found.findings)
    assert classes == {"missing": 30, "extra": 30}


@pytest.mark.long
def test_damage_of_every_second_record_is_corrupt_in_whatever_parts() -> None:
    source = log(3_000)
    target = [each for each in damaged(source, 2) if each.offset % 100 != 4]
    found = in_step(Sequences(source, target), part=50, reach=100)
    classes = Counter(f.finding_class.value for f in found.findings)
    assert classes == {"corrupt": 1_500, "missing": 30}
    renumbered = [replace(each, offset=at + at // 10) for at, each in enumerate(damaged(source, 2))]
    found = in_step(Sequences(source, renumbered, renumbered=True), part=50, reach=100, step=30)
    assert {(f.finding_class, f.field) for f in found.findings} == {(FindingClass.CORRUPT, "value")}
    # Behind the last pair it is known when the copies were looked up.
    assert [f.source_offset for f in found.findings if f.apart] == [2_999]
    assert len(found.findings) == 1_500


def test_records_of_one_burst_around_offsets_that_were_not_read_are_equal() -> None:
    every = [replace(each, content=each.offset // 5, value=each.offset // 5) for each in log(100)]
    target = [replace(each, offset=at + 1) for at, each in enumerate(every)]
    found = in_step(Sequences(every, target, renumbered=True, unread=([(51, 53)], [])))
    assert (found.findings, found.verified) == ([], 98)


def test_retention_that_goes_on_during_the_read_may_end_in_a_burst_of_equal_records() -> None:
    first = log(4)
    burst = [replace(each, content=7, value=7) for each in log(3, seed=2, first=4)]
    end = log(2, seed=3, first=7)
    left = [replace(each, offset=each.offset) for each in (*burst[1:], *end)]
    found = align(
        *TP, [*first, *burst, *end], left, renumbered=True, unread=([], [(-1, 3), (3, 5)])
    )
    assert (found.findings, found.verified) == ([], 4)


def test_a_partition_that_is_damaged_everywhere_has_few_findings_and_exact_counts() -> None:
    source = log(2_000)
    every = [replace(each, content=each.content ^ 1, value=each.value ^ 1) for each in source]
    reads = Sequences(source, every).reads(random.Random(1))
    found, _ = aligned_in_step(
        TP,
        dict(zip(("east", "west"), reads, strict=True)),
        Modes(),
        offsets=2_000,
        folding=Folding(10, WindowShape(100, 0, 500, 4)),
        sizes=Sizes(part=100, reach=200),
    )
    assert Counter(f.records == 1 for f in found.findings)[True] == 10
    assert len(found.findings) == 14
    assert sum(f.records for f in found.findings) == sum(f.owns for f in found.findings) == 2_000
    assert {f.field for f in found.findings} == {"value"}


@pytest.mark.parametrize("part", [20, 30, 1_000])
@pytest.mark.parametrize("strangers", [15, 150])
@pytest.mark.parametrize("at_source", [True, False])
def test_unread_offsets_that_several_parts_are_opposite_stand_for_as_many_records_once(
    part: int, strangers: int, at_source: bool
) -> None:
    records = log(1_000)
    others = [*records[:400], *log(strangers, seed=2), *records[420:700], *records[720:]]
    other = [replace(each, offset=at) for at, each in enumerate(others)]
    unread = [(400, 420), (700, 720)]
    sides = (records, other) if at_source else (other, records)
    found = in_step(
        Sequences(*sides, renumbered=True, unread=(unread, []) if at_source else ([], unread)),
        part=part,
        reach=60,
        step=10,
        sample=1,
    )
    beyond = max(0, strangers - 20)
    assert (found.findings, found.verified) == ([], 960)
    assert found.opposite == ((0, strangers) if at_source else (strangers, 0))
    assert found.beyond == ((0, beyond) if at_source else (beyond, 0))
