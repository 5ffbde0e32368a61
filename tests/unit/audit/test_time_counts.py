"""`kaudit counts` compares sums, counts nothing outside the cut, and never exits with 0 for what it did not read."""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kclient.types import TopicPartition
from spark_jobs.counts_report import NO_PROOF, csv_text, document, json_text, picture, screen
from spark_jobs.cut import LogRange, freeze
from spark_jobs.engine import Failure, FailureKind
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.time_counts import (
    Bucket,
    Series,
    Sums,
    TimeCounts,
    TopicScope,
    compare,
    scopes,
)
from spark_jobs.verdict import ExitCode, Limits

NAMES = ("east", "west")
CLUSTERS = (ClusterSnapshot("east", "", "E", {}), ClusterSnapshot("west", "", "W", {}))
TP = TopicPartition("t", 0)
MINUTE = 60_000
READ = TopicScope(counted=10)
STRICT = Limits()


def counted(
    source: Series,
    target: Series,
    scope: TopicScope = READ,
    *failures: Failure,
    limits: Limits = STRICT,
) -> TimeCounts:
    return TimeCounts(MINUTE, compare(source, target), {"t": scope}, failures, limits)


def failure(kind: FailureKind) -> Failure:
    return Failure("east", "t", 0, 3, 5, kind, "t-0: why")


ONE: Series = {("t", 0): Sums(1, 10)}
TWO: Series = {("t", 0): Sums(2, 20)}


@pytest.mark.parametrize(
    ("counts", "codes"),
    [
        (counted(ONE, ONE), [0]),
        (counted(ONE, TWO), [1, 0]),
        (counted(ONE, {("t", 0): Sums(1, 11)}), [1, 0]),
        (counted(ONE, {("t", MINUTE): Sums(1, 10)}), [1, 0]),
        (counted(ONE, {}), [1, 0]),
        (counted(ONE, ONE, TopicScope(10, lagging=1)), [3, 0]),
        (counted(ONE, ONE, TopicScope(10, lagging=1), limits=Limits(1)), [0]),
        (counted({}, {}, TopicScope(0, lagging=1), limits=Limits(100)), [3, 0]),
        (counted(ONE, ONE, TopicScope(10, aged_out=1)), [5, 0]),
        (counted(ONE, ONE, TopicScope(10, aged_out=10), limits=Limits(0, 0.5)), [0]),
        (counted(ONE, ONE, READ, failure(FailureKind.UNREADABLE)), [4, 0]),
        (counted(ONE, TWO, READ, failure(FailureKind.UNDECODABLE)), [4, 0]),
        (counted(ONE, TWO, READ, failure(FailureKind.DELETED)), [5, 0]),
        (counted({}, {}, TopicScope()), [3, 0]),
        (counted({}, {}, TopicScope(0, aged_out=100), limits=Limits(0, 0.0)), [3, 0]),
    ],
)
def test_exit_codes(counts: TimeCounts, codes: list[int]) -> None:
    assert counts.exit_codes == codes
    assert NO_PROOF in screen(counts, CLUSTERS)
    assert document(counts, CLUSTERS)["exit_code"] == codes[0]


@pytest.mark.parametrize("seed", range(20))
def test_table_csv_and_json_have_the_sums_of_a_brute_force_count(seed: int) -> None:
    rng = random.Random(seed)
    sides: list[list[tuple[str, int | None, int]]] = []
    for _ in range(2):
        sides.append(
            [
                (rng.choice("ab"), rng.choice([None, 0, MINUTE, 9 * MINUTE]), rng.randrange(50))
                for _ in range(rng.randrange(40))
            ]
        )
    series: list[dict[tuple[str, int | None], Sums]] = []
    for side in sides:
        records = Counter((topic, start) for topic, start, _ in side)
        size: Counter[tuple[str, int | None]] = Counter()
        for topic, start, length in side:
            size[topic, start] += length
        series.append({key: Sums(records[key], size[key]) for key in records})
    counts = TimeCounts(MINUTE, compare(*series), {"a": READ, "b": READ})
    rows = list(csv.DictReader(io.StringIO(csv_text(counts))))
    for which, side in zip(("source", "target"), sides, strict=True):
        for topic in "ab":
            expected = [length for name, _, length in side if name == topic]
            of_topic = [row for row in rows if row["topic"] == topic]
            assert sum(int(row[f"{which}_records"]) for row in of_topic) == len(expected)
            assert sum(int(row[f"{which}_bytes"]) for row in of_topic) == sum(expected)
            assert getattr(counts.topics()[topic].total, which) == (len(expected), sum(expected))

    def of_bucket(
        side: list[tuple[str, int | None, int]], key: tuple[str, int | None]
    ) -> list[int]:
        lengths = [length for topic, start, length in side if (topic, start) == key]
        return [len(lengths), sum(lengths)]

    keys = {each[:2] for side in sides for each in side}
    differ = {key for key in keys if of_bucket(sides[0], key) != of_bucket(sides[1], key)}
    assert {(each.topic, each.start_ms) for each in counts.differing} == differ
    assert json.loads(json_text(counts, CLUSTERS)) == document(counts, CLUSTERS)
    assert counts.exit_codes[0] == (ExitCode.DIVERGED if differ else ExitCode.CONSISTENT)


def test_only_offsets_in_both_logs_and_extra_ones_of_the_target_are_counted() -> None:
    a, b, c = (TopicPartition("t", number) for number in range(3))
    source = {a: LogRange(0, 100), b: LogRange(50, 60)}
    target = {a: LogRange(10, 90), b: LogRange(0, 20), c: LogRange(0, 7)}
    assert scopes(freeze(target, source)) == {
        "t": TopicScope(counted=80 + 0 + 7, lagging=10 + 10, aged_out=10 + 20 + 30)
    }
    unread = [
        Failure("east", "t", 0, 20, 30, FailureKind.DELETED, ""),
        Failure("west", "t", 0, 25, 35, FailureKind.DELETED, ""),
    ]
    assert scopes(freeze(target, source), unread)["t"] == TopicScope(
        counted=80 - 15 + 7, lagging=20, aged_out=60, not_read=15
    )


def test_offsets_that_neither_cluster_returned_count_once_and_every_part_has_its_place() -> None:
    cuts = freeze({TP: LogRange(0, 100)}, {TP: LogRange(0, 100)})
    failures = [
        Failure(name, "t", 0, 0, 50, FailureKind.DELETED, "the log starts at 50") for name in NAMES
    ]
    found = TimeCounts(MINUTE, [], scopes(cuts, failures), failures)
    text = screen(found, CLUSTERS)
    assert "50 counted   0 lag   0 aged out   50 not read" in text
    assert "not read  east t-0 offsets 0 to 49: the log starts at 50" in text
    assert "more ranges" not in text
    made = document(found, CLUSTERS)
    assert made["offsets"] == {"counted": 50, "lag": 0, "aged_out": 0, "not_read": 50}
    many = [Failure("east", "t", n, 0, 1, FailureKind.UNREADABLE, f"cause {n}") for n in range(30)]
    text = screen(TimeCounts(MINUTE, [], scopes([], many), many), CLUSTERS)
    assert text.count("cause") == 20
    assert "not read  10 more ranges: --out has all" in text


class Counting(list[Bucket]):
    """Counts how many buckets were visited."""

    visited = 0

    def __iter__(self) -> Iterator[Bucket]:
        for each in super().__iter__():
            self.visited += 1
            yield each


def test_the_work_of_a_report_grows_with_the_buckets_and_not_with_the_topics() -> None:
    visits = set()
    for topics in (1, 10, 100):
        buckets = Counting(
            Bucket(f"t{topic}", n * MINUTE, Sums(1, 1), Sums(1, 1))
            for topic in range(topics)
            for n in range(200 // topics)
        )
        found = TimeCounts(MINUTE, buckets, {f"t{n}": READ for n in range(topics)})
        screen(found, CLUSTERS)
        document(found, CLUSTERS)
        picture(found, CLUSTERS)
        visits.add(buckets.visited)
    assert len(visits) == 1


def test_the_bucket_of_timestamps_below_0_is_not_named_a_lack_of_timestamps_alone() -> None:
    found = counted({("t", None): Sums(2, 20)}, {("t", None): Sums(1, 10)})
    assert "no timestamp or before 1970" in screen(found, CLUSTERS)
    assert "t,,no timestamp or before 1970,2,1,1" in csv_text(found)


def test_counts_of_nothing_are_no_equal_counts_and_no_lag() -> None:
    nothing, lag = counted({}, {}, TopicScope()), counted({}, {}, TopicScope(0, lagging=1))
    assert screen(nothing, CLUSTERS).startswith("COUNTS  NOTHING COUNTED ")
    assert screen(lag, CLUSTERS).startswith("COUNTS  LAGGING ")
    assert screen(counted(ONE, ONE), CLUSTERS).startswith("COUNTS  EQUAL ")


def test_the_picture_of_nothing_is_a_picture() -> None:
    assert picture(counted({}, {}, TopicScope()), CLUSTERS).startswith(b"\x89PNG")
    assert picture(TimeCounts(MINUTE, [], {}), CLUSTERS).startswith(b"\x89PNG")


def test_a_cluster_that_is_compared_with_itself_is_named_on_the_screen_and_in_the_document() -> (
    None
):
    equal = counted(ONE, ONE)
    east = CLUSTERS[0]
    line = "ATTENTION: east and west are one cluster (E)"
    assert line in screen(equal, (east, replace(east, name="west")))
    assert "ATTENTION" not in screen(equal, (east, replace(east, name="west", prefix="copy.")))
    assert "ATTENTION" not in screen(equal, CLUSTERS)
    assert document(equal, CLUSTERS)["clusters"] == [
        {"name": "east", "cluster_id": "E", "prefix": ""},
        {"name": "west", "cluster_id": "W", "prefix": ""},
    ]
