"""What the driver computes from rows that Spark collects, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyspark.sql import Row

from kclient.types import TopicPartition
from spark_jobs.align import Alignment, DamagedTail
from spark_jobs.cut import OffsetRange
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.spark_engine import HeldRow, _as_rows, _differences, holes_of

TP = TopicPartition("t", 0)


def edges(offsets: list[int]) -> list[HeldRow]:
    """Return the records beside which the next or the previous offset has no record, over all ranges at once."""
    padded: list[int | None] = [None, *offsets, None]
    rows = zip(offsets, padded, padded[2:], strict=False)
    return [
        (offset, before, after)
        for offset, before, after in rows
        if before is None or after is None or after > offset + 1
    ]


def found(ranges: list[tuple[int, int]], offsets: list[int]) -> list[tuple[int, int]]:
    rows = edges(offsets)
    return [
        each[2:] for low, high in ranges for each in holes_of(OffsetRange(*TP, low, high), rows)
    ]


def test_between_two_ranges_of_a_partition_is_no_hole() -> None:
    ranges = [(200, 210), (300, 310)]
    assert found(ranges, [*range(200, 210), *range(300, 310)]) == []


@pytest.mark.parametrize(
    ("offsets", "holes"),
    [
        ([], [(200, 210), (300, 310)]),
        ([*range(200, 210)], [(300, 310)]),
        ([*range(300, 310)], [(200, 210)]),
        ([*range(202, 205), *range(301, 309)], [(200, 202), (205, 210), (300, 301), (309, 310)]),
        ([200, 209, 300, 309], [(201, 209), (301, 309)]),
    ],
)
def test_a_hole_is_in_one_range(offsets: list[int], holes: list[tuple[int, int]]) -> None:
    assert found([(200, 210), (300, 310)], offsets) == holes


def test_a_range_between_the_records_of_others_is_a_hole() -> None:
    assert found([(0, 5), (10, 20), (30, 35)], [*range(5), *range(30, 35)]) == [(10, 20)]


def test_the_driver_gets_an_alignment_as_the_task_made_it() -> None:
    made = Alignment([], 1, 2, 3, (1, 2, 3, 4), (5, 6), (7, 8), (1, 2), (0, 9), 4, (3, 4))
    made = replace(made, damaged=DamagedTail(8, 9, 0))
    apart = Finding(FindingClass.MISSING, *TP, 8, None), Finding(FindingClass.EXTRA, *TP, None, 9)
    corrupt = Finding(FindingClass.CORRUPT, *TP, 8, 9, "value", apart=apart)
    rows = [Row(**row) for batch in _as_rows(TP, [corrupt, made]) for row in batch.to_pylist()]
    (got,) = _differences(rows).alignments.values()
    assert got == replace(made, findings=[corrupt])
    assert isinstance(got.damaged, DamagedTail)
