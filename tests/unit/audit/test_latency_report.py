"""`kaudit latency` adds up what kmirror measured, and never takes silence, skew or a part for "within the limit"."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest

from kclient.mirror_latency import Histogram, Interval, Measured, encode
from spark_jobs.latency import Judgement, LatencyRead, Measurement, Scope, measure
from spark_jobs.latency_report import csv_text, document, duration, json_text, picture, screen

MINUTE = 60_000
START = 1_700_000_000_000 // MINUTE * MINUTE
PROCESS = "p1"


def measured(
    *latencies: int,
    topic: str = "orders",
    process: str = PROCESS,
    at: int = START,
    until: int | None = None,
    cluster: str = "east-id",
    partition: int = 0,
    without: int = 0,
) -> Measured:
    histogram = Histogram(without_timestamp=without)
    for each in latencies:
        histogram.add(each, records=1, partition=partition)
    end = at + MINUTE if until is None else until
    return Measured(Interval(cluster, topic, process, at, end), histogram)


Records = list[tuple[bytes | None, bytes | None]]


class Given(NamedTuple):
    """Records of latency topics by alias, and why others cannot be read."""

    records: dict[str, Records]
    failures: Mapping[str, str] = MappingProxyType({})


def read(*found: Measured, alias: str = "east", more: Iterable[bytes] = ()) -> Given:
    return Given({alias: [*map(encode, found), *((b"", value) for value in more)]})


def result(
    of: Given,
    topics: str = ".*",
    max_p99_ms: int | None = None,
    since_ms: int | None = None,
    present: Iterable[str] = (),
    bucket_ms: int | None = MINUTE,
) -> Measurement:
    given = LatencyRead(Scope("B:9092", re.compile(topics), bucket_ms, since_ms, max_p99_ms))
    for alias, records in of.records.items():
        given.add(alias, records)
    for alias, cause in of.failures.items():
        given.failed(alias, cause)
    return measure(given, list(present))


FAST, SLOW = [10] * 100, [10] * 98 + [5000] * 2


@pytest.mark.parametrize(
    ("found", "codes"),
    [
        (result(read(measured(*FAST))), [0]),
        (result(read(measured(*FAST)), max_p99_ms=10), [0]),
        (result(read(measured(*FAST)), max_p99_ms=9), [1, 0]),
        (result(read(measured(*SLOW)), max_p99_ms=2000), [1, 0]),
        (result(read(measured(*SLOW))), [0]),
        (result(read(measured(*FAST), measured(*SLOW, topic="x")), max_p99_ms=2000), [1, 0]),
        (result(read(measured(*FAST), measured(*SLOW, topic="x")), "orders", 2000), [0]),
        (result(read()), [3, 0]),
        (result(read(), max_p99_ms=2000), [3, 0]),
        (result(read(measured(*FAST)), "other", max_p99_ms=2000), [3, 0]),
        (result(read(measured(*FAST)), since_ms=START + MINUTE), [3, 0]),
        (result(read(measured(*FAST)), since_ms=START + MINUTE - 1), [0]),
        (result(read(measured(without=5))), [3, 0]),
        (result(read(measured(without=5), measured(*FAST, topic="x"))), [0]),
        (result(read(measured(without=5), measured(*FAST, topic="x")), max_p99_ms=20), [3, 0]),
        (result(read(measured(without=5), measured(*SLOW, topic="x")), max_p99_ms=20), [1, 3, 0]),
        (result(read(measured(*FAST, without=1)), max_p99_ms=20), [0]),
        (result(read(measured(*FAST, without=2)), max_p99_ms=20), [3, 0]),
        (result(read(measured(*FAST), more=[b"{}"])), [0]),
        (result(read(measured(*FAST), more=[b"{}"]), max_p99_ms=20), [3, 0]),
        (result(read(measured(*FAST)), present=["orders", "idle"]), [0]),
        (result(read(measured(*FAST)), max_p99_ms=20, present=["orders", "idle"]), [3, 0]),
        (result(Given({}, {"east": "why"})), [4, 3, 0]),
        (
            result(Given(read(measured(*SLOW)).records, {"a": "why"}), ".*", 9),
            [4, 1, 0],
        ),
    ],
)
def test_the_exit_code_is_that_of_the_worst_row_and_of_what_was_not_measured(
    found: Measurement, codes: list[int]
) -> None:
    assert [int(code) for code in found.exit_codes] == codes
    assert screen(found).splitlines()[0].endswith(f"exit {codes[0]}")
    assert json.loads(json_text(found))["exit_codes"] == codes
    assert picture(found).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("latencies", "limit", "expected"),
    [
        # Invariant 2: a latency below 0 shows that a clock is ahead, and not by how much.
        ([-3] * 60 + [20] * 40, 2000, Judgement.UNKNOWN),
        ([-3] * 100, 2000, Judgement.UNKNOWN),
        # The bucket of 2000 ms is that of 1920 to 2047 ms.
        ([2000] * 100, 1919, Judgement.ABOVE),
        ([2000] * 100, 1990, Judgement.UNKNOWN),
        ([2000] * 100, 2000, Judgement.WITHIN),
        ([2000] * 99 + [2047], 2000, Judgement.UNKNOWN),
        # One record of a hundred is above: 99 % are not.
        ([20] * 99 + [5000], 2000, Judgement.WITHIN),
        # One clock in a hundred may be wrong by any time: it does not change p99.
        ([-(10**9)] + [20] * 99, 2000, Judgement.WITHIN),
        ([-(10**9)] * 2 + [20] * 98, 2000, Judgement.UNKNOWN),
        # Invariant 1: what is above stays above.
        ([-(10**9)] * 2 + [20] * 96 + [5000] * 2, 2000, Judgement.ABOVE),
    ],
)
def test_a_row_is_judged_if_what_is_not_known_cannot_change_that(
    latencies: list[int], limit: int, expected: Judgement
) -> None:
    found = result(read(measured(*latencies)), max_p99_ms=limit)
    assert [found.judgement(row) for row in found.rows] == [expected]
    assert found.exit_codes[0] == {"WITHIN": 0, "UNKNOWN": 3, "ABOVE": 1}[expected.name]
    assert expected.value in screen(found)


def test_a_judgement_is_that_of_the_samples_themselves() -> None:
    """Invariants 1 and 2, with the samples as oracle: what is not known is as large, or as small, as it may be."""
    seen = set()
    for seed in range(400):
        rng = random.Random(seed)
        samples = [int(rng.expovariate(1 / 300)) for _ in range(rng.randrange(300))]
        samples += [rng.choice([-2, -2000]) for _ in range(rng.choice([0, 0, 2, 50]))]
        without, limit = rng.choice([0, 0, 1, 30]), rng.choice([300, 1000, 1400, 2500])
        found = result(read(measured(*samples, without=without)), max_p99_ms=limit)
        judgement = found.judgement(found.rows[0])
        seen.add(judgement)
        cautious = sorted([10**9 if n < 0 else n for n in samples] + [10**9] * without)
        if judgement is Judgement.WITHIN:
            assert cautious[-(-len(cautious) * 99 // 100) - 1] <= limit
        if judgement is Judgement.ABOVE:
            assert sorted(samples)[-(-len(samples) * 99 // 100) - 1] > limit
        if judgement is Judgement.UNKNOWN and samples:
            assert cautious[-(-len(cautious) * 99 // 100) - 1] > limit * 8 / 9
            assert sorted(samples)[-(-len(samples) * 99 // 100) - 1] <= limit * 9 / 8
    assert seen == set(Judgement)


def test_skew_is_shown_with_the_least_latency_and_never_clipped() -> None:
    found = result(read(measured(*[-5250] * 60, *[20] * 40)))
    text = screen(found)
    assert "timestamps ahead of kmirror's clock in 60 records (rows: 1)" in text
    assert "least latency is -5.25 s (east orders)" in text
    row = text.splitlines()[6].split("  ")
    assert "< 0 ms" in [each.strip() for each in row]
    (json_row,) = json.loads(json_text(found))["rows"]
    assert (json_row["p50_ms"], json_row["min_ms"], json_row["ahead"]) == (-1, -5250, 60)
    both = result(read(measured(-5), measured(-7, 20, 20, topic="x"), measured(30, topic="y")))
    assert "in 2 records (rows: 2)" in screen(both)
    assert "least latency is -7 ms (east x)" in screen(both)
    (line,) = csv.DictReader(io.StringIO(csv_text(found)))
    assert (line["p50_ms"], line["min_ms"], line["ahead"]) == ("-1", "-5250", "60")


def test_workers_add_up_and_a_record_that_is_twice_in_the_log_counts_once() -> None:
    one, two = measured(10, 20), measured(5000, process="p2", partition=3)
    found = result(read(one, two, one, two, one))
    (row,) = found.rows
    assert (row.total.records, row.intervals, set(row.added)) == (3, 2, {"p1", "p2"})
    assert (row.total.max_ms, row.total.max_partition) == (5000, 3)
    assert "rows: 1   intervals: 2   processes of kmirror: 2" in screen(found)


def test_a_topic_that_is_not_read_to_its_end_has_no_figures_and_others_have() -> None:
    both = {**read(measured(10)).records, **read(measured(20), alias="north").records}
    found = result(Given(both, {"east": "why"}))
    assert [row.key.source_alias for row in found.rows] == ["north"]
    assert (found.topics_read, found.failures) == (1, {"east.latency.internal": "why"})


def test_an_interval_that_is_repeated_counts_once() -> None:
    (row,) = result(read(measured(10), measured(20, process="p2"), measured(10))).rows
    assert (row.total.records, row.intervals) == (2, 2)


def test_time_buckets_are_kept_only_if_they_are_wanted() -> None:
    (row,) = result(read(measured(10)), bucket_ms=None).rows
    assert (row.total.records, row.buckets) == (1, {})


def test_sums_and_buckets_are_those_of_all_samples() -> None:
    """The oracle has the samples themselves; a quantile is at most an eighth above theirs."""
    for seed in range(30):
        rng = random.Random(seed)
        samples: dict[tuple[str, int], list[int]] = {}
        intervals = []
        for n in range(rng.randrange(1, 40)):
            topic = rng.choice(["orders", "payments"])
            at = START + rng.randrange(10 * MINUTE)
            latencies = [int(rng.expovariate(1 / 300)) for _ in range(rng.randrange(1, 60))]
            intervals.append(measured(*latencies, topic=topic, process=f"p{n}", at=at))
            samples.setdefault((topic, at // MINUTE * MINUTE), []).extend(latencies)
        found = result(read(*rng.sample(intervals, len(intervals)), *intervals[:3]))
        rows = list(csv.DictReader(io.StringIO(csv_text(found))))
        assert len(rows) == len(samples)
        for row in rows:
            own = sorted(samples[row["topic"], int(row["start_ms"])])
            assert (int(row["records"]), int(row["max_ms"])) == (len(own), own[-1])
            for name, share in (("p50_ms", 50), ("p95_ms", 95), ("p99_ms", 99)):
                exact = own[-(-len(own) * share // 100) - 1]
                assert exact <= int(row[name]) <= exact * 9 / 8
        for each in json.loads(json_text(found))["rows"]:
            own = [
                n for (topic, _), part in samples.items() if topic == each["topic"] for n in part
            ]
            assert each["records"] == len(own) == sum(count for _, count in each["histogram"])


def test_an_interval_belongs_to_the_bucket_in_which_it_begins() -> None:
    found = result(read(measured(7, at=START + 59_000, until=START + 5 * MINUTE)))
    (line,) = csv.DictReader(io.StringIO(csv_text(found)))
    assert int(line["start_ms"]) == START
    assert found.period == (START + 59_000, START + 5 * MINUTE)
    later = measured(7, at=START + 10 * MINUTE, process="p2")
    assert result(read(later, measured(7))).period == (START, START + 11 * MINUTE)
    assert result(read(measured(7), later)).period == (START, START + 11 * MINUTE)


def test_the_worst_rows_come_first_and_the_rest_is_counted_in_40_lines() -> None:
    every = [measured(*[100 + n] * 5, topic=f"t{n:02}", without=1) for n in range(30)]
    others = [measured(-9, topic="t00", cluster=f"id{n}") for n in range(9)]
    failures = {f"{n}": "why\x1b[1m" for n in range(9)}
    latencies = {**read(*every, *others, more=[b""]).records}
    latencies |= read(more=[b"x", b"y"], alias="north").records
    found = result(Given(latencies, failures), max_p99_ms=110, present=["t00", *"abcdef"])
    lines = screen(found).splitlines()
    assert len(lines) <= 40
    table = [line for line in lines if re.match(r"east \(east-id\)\s+t\d\d ", line)]
    assert table[0].split()[2] == "t29"
    assert len(table) == 20
    assert "19 more rows, with 59 records" in "\n".join(lines)
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "1 in east.latency.internal, 2 in north.latency.internal" in text
    assert "several source clusters of one alias, in rows apart: east (" in text
    assert "no figure" not in text, "it may be in a topic that was not read"
    complete = result(Given(latencies), present=["t00", *"abcdef"])
    assert "have no figure in this time: a, b, c, d and 2 more" in screen(complete)
    assert "above       east (east-id) t29, " in text
    assert "not read    7 more topics" in text
    assert len(json.loads(json_text(found))["rows"]) == 39


def test_a_quantile_is_printed_as_the_bound_that_it_is() -> None:
    (row,) = [
        line
        for line in screen(result(read(measured(*[250] * 99, 4000, partition=7)))).splitlines()
        if line.startswith("east")
    ]
    cells = [cell for cell in re.split(r"\s{2,}", row) if cell]
    assert cells == [
        "east",
        "orders",
        "100",
        "<= 255 ms",
        "<= 255 ms",
        "<= 255 ms",
        "4 s",
        "7",
        "0",
        "0",
    ]


def test_the_screen_states_what_to_do_if_nothing_was_measured_and_what_is_not_shown() -> None:
    text = screen(result(read(), "orders", 2000, since_ms=START))
    assert text.startswith("LATENCY  NOTHING MEASURED")
    assert "emit.latency.enabled=true" in text
    assert "'orders' since 2023-11-14T22:13:00" in text
    assert "not copied yet" in text
    assert "acknowledgement of the target" in text
    assert "CreateTime" in text
    unread = screen(result(Given({}, {"east": "why"})))
    assert "Nothing is known" in unread
    assert "emit.latency.enabled=true" not in unread


def test_two_sources_with_one_alias_are_rows_apart_and_named() -> None:
    found = result(read(measured(10), measured(20, cluster="other-id")))
    assert [row.key.source_cluster_id for row in found.rows] == ["other-id", "east-id"]
    assert document(found)["several_clusters"] == {"east": ["east-id", "other-id"]}
    assert "east (east-id)" in screen(found)
    same = result(read(measured(10), measured(20, topic="x")))
    assert "east-id" not in screen(same)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (-999, "-999 ms"),
        (1000, "1 s"),
        (1001, "1.001 s"),
        (59_999, "59.999 s"),
        (60_000, "1 min"),
        (60_001, "1 min 1 s"),
        (3_599_001, "60 min"),
        (3_600_000, "1 h"),
        (-90_000_000, "-1 d 1 h"),
        (1 << 62, "53,375,995,583 d 16 h"),
    ],
)
def test_a_time_is_never_shown_shorter_than_it_is(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_times_that_are_no_dates_are_no_error() -> None:
    end = (1 << 63) - 1
    found = result(read(measured(5, at=end - 10, until=end), measured(6, at=0, topic="x")))
    assert screen(found)
    assert picture(found).startswith(b"\x89PNG")
    assert csv_text(found)


def test_the_picture_has_the_rows_with_latencies_twelve_at_most() -> None:
    few = [measured(5), measured(without=3, topic="x")]
    assert panels(picture(result(read(*few)))) == 1
    assert panels(picture(result(read(*few[1:])))) == panels(picture(result(read()))) == 1
    many = [measured(5, topic=f"t{n}") for n in range(15)]
    assert panels(picture(result(read(*many), max_p99_ms=20))) == 12


def panels(png: bytes) -> int:
    height = int.from_bytes(png[20:24], "big")
    assert height % 240 == 0
    return height // 240
