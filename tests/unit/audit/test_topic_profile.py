"""A topic's profile has the numbers of a brute-force count, however its offsets are divided among tasks."""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import pytest

from kclient.types import TopicPartition
from kclient.wire.batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, BatchInfo, parse
from kclient.wire.record_writer import Record, encode_batch
from spark_jobs.cut import LogRange, OffsetRange
from spark_jobs.engine import Failure, FailureKind
from spark_jobs.profile_report import (
    ACCURACY,
    Profile,
    csv_text,
    document,
    json_text,
    not_known,
    picture,
    rates,
    screen,
    topic_document,
)
from spark_jobs.reader import Fetched, RangesLeft, Unread
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.topic_profile import TopicProfile, profile_ranges

MINUTE = 60_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
Log = list[tuple[BatchInfo, memoryview]]


class World(NamedTuple):
    logs: dict[TopicPartition, Log]
    records: dict[TopicPartition, list[Record]]


def world(rng: random.Random) -> World:
    logs: dict[TopicPartition, Log] = {}
    records: dict[TopicPartition, list[Record]] = {}
    for tp in [TopicPartition(topic, number) for topic in "ab" for number in range(3)]:
        logs[tp], records[tp] = [], []
        for _ in range(rng.randrange(5)):
            base = logs[tp][-1][0].next_offset if logs[tp] else 0
            some = [
                Record(
                    base + n,
                    rng.randrange(3 * MINUTE),
                    rng.choice([None, b"", b"k%d" % rng.randrange(20)]),
                    rng.choice([None, rng.randbytes(rng.choice([0, 3, 300, 5000]))]),
                    rng.choice([(), [("h", b"1"), ("h", None)]]),
                )
                for n in range(rng.randrange(1, 30))
            ]
            data = encode_batch(some, codec=rng.randrange(5), base_offset=base)
            logs[tp].append((parse(data), memoryview(data)))
            records[tp] += some
    return World(logs, records)


def read(logs: dict[TopicPartition, Log], ranges: Sequence[OffsetRange]) -> list[Fetched | Unread]:
    left = RangesLeft(ranges)
    return [
        each
        for tp in list(left.partitions)
        for info, data in logs[tp]
        if tp in left.partitions
        for each in left.accept(tp, info, data)
    ]


def whole(logs: dict[TopicPartition, Log]) -> list[OffsetRange]:
    return [OffsetRange(*tp, 0, log[-1][0].next_offset) for tp, log in logs.items() if log]


def check_throughput(found: Any, every: list[Record], by_minute: Mapping[int, int]) -> None:
    """Compare the rates of *found* with those of *every* record; the fullest minute is the earliest of equal ones."""
    rates = {
        name: found["time"][name] for name in ("records_per_second", "bytes_per_second", "peak")
    }
    if not every:
        assert rates == {"records_per_second": None, "bytes_per_second": None, "peak": None}
        return
    stamps = [record.timestamp for record in every]
    sizes = [len(record.key or b"") + len(record.value or b"") for record in every]
    seconds = (max(stamps) - min(stamps)) / 1000
    is_long = seconds >= 1
    assert rates["records_per_second"] == (round(len(every) / seconds, 3) if is_long else None)
    assert rates["bytes_per_second"] == (round(sum(sizes) / seconds, 3) if is_long else None)
    most = max(by_minute.values())
    start = min(minute for minute, count in by_minute.items() if count == most)
    in_it = sum(n for n, at in zip(sizes, stamps, strict=True) if at // MINUTE * MINUTE == start)
    assert rates["peak"] == {
        "start_ms": start,
        "records_per_second": round(most / 60, 3),
        "bytes_per_second": round(in_it / 60, 3),
    }


@pytest.mark.parametrize("seed", range(25))
def test_the_profile_has_the_numbers_of_a_brute_force_count(seed: int) -> None:
    rng = random.Random(seed)
    made = world(rng)
    profiles, unread = profile_ranges(
        read(made.logs, whole(made.logs)), whole(made.logs), bucket_ms=MINUTE
    )
    assert unread == []
    ranges = {
        tp: LogRange(0, log[-1][0].next_offset if log else 0) for tp, log in made.logs.items()
    }
    result = Profile("c", MINUTE, {t: profiles.get(t, TopicProfile()) for t in "ab"}, ranges)
    for topic in "ab":
        of_topic = {tp: some for tp, some in made.records.items() if tp.topic == topic}
        every = [record for some in of_topic.values() for record in some]
        found: Any = topic_document(result, topic)
        assert found["records"] == found["offsets"] == len(every)
        keys = [len(r.key) for r in every if r.key is not None]
        values = [len(r.value) for r in every if r.value is not None]
        assert found["bytes"] == sum(keys) + sum(values)
        assert found["null_keys"] == sum(r.key is None for r in every)
        assert found["null_values"] == sum(r.value is None for r in every)
        assert found["distinct_keys_estimate"] == len({r.key for r in every} - {None})
        for name, sizes in (("key", keys), ("value", values)):
            assert found["sizes"][name]["max"] == max(sizes, default=None)
            assert found["sizes"][name]["mean"] == (
                round(sum(sizes) / len(sizes), 1) if sizes else None
            )
            for percent in (50, 95, 99):
                shown = found["sizes"][name][f"p{percent}"]
                if sizes:
                    true = sorted(sizes)[max(1, -(-len(sizes) * percent // 100)) - 1]
                    assert true <= shown <= true * (1 + 1 / 128)
        counts = [len(some) for _, some in sorted(of_topic.items())]
        assert list(found["partitions"]["records"].values()) == counts
        middle = median(counts)
        ratio = found["partitions"]["max_to_median"]
        assert ratio == (round(max(counts) / middle, 3) if middle else None)
        batches = [info for tp in of_topic for info, _ in made.logs[tp]]
        assert found["batches"]["codecs"] == Counter(CODECS[info.codec] for info in batches)
        assert found["batches"]["bytes"]["max"] == max((b.size for b in batches), default=None)
        assert found["time"]["first_ms"] == min((r.timestamp for r in every), default=None)
        assert found["time"]["last_ms"] == max((r.timestamp for r in every), default=None)
        rows = [r for r in csv.DictReader(io.StringIO(csv_text(result))) if r["topic"] == topic]
        expected = Counter(r.timestamp // MINUTE * MINUTE for r in every)
        assert {int(row["start_ms"]): int(row["records"]) for row in rows} == expected
        check_throughput(found, every, expected)
    assert json.loads(json_text(result)) == document(result)
    assert ACCURACY in screen(result)
    assert picture(result).startswith(b"\x89PNG")


@pytest.mark.parametrize("seed", range(25))
def test_the_profiles_of_parts_merge_to_the_profile_of_the_whole(seed: int) -> None:
    rng = random.Random(seed)
    made = world(rng)
    pieces = []
    for topic, partition, low, high in whole(made.logs):
        cuts = sorted({low, high, *(rng.randrange(low, high) for _ in range(3))})
        pieces += [OffsetRange(topic, partition, a, b) for a, b in pairwise(cuts)]
    rng.shuffle(pieces)
    merged: dict[str, TopicProfile] = {}
    for part in (pieces[::2], pieces[1::2]):
        for topic, profile in profile_ranges(read(made.logs, part), part, bucket_ms=MINUTE)[
            0
        ].items():
            merged.setdefault(topic, TopicProfile()).merge(profile)
    expected, _ = profile_ranges(
        read(made.logs, whole(made.logs)), whole(made.logs), bucket_ms=MINUTE
    )
    assert merged == expected


def test_transaction_markers_are_no_records_and_log_append_time_is_counted() -> None:
    marker = encode_batch(
        [Record(0, 5, bytes((0, 0, 0, 1)), bytes(6))], attributes=CONTROL | TRANSACTIONAL
    )
    plain = encode_batch([Record(1, 7, b"k", None)], base_offset=1, attributes=LOG_APPEND_TIME)
    early = encode_batch([Record(2, -1, b"k", None)], base_offset=2)
    log = [(parse(each), memoryview(each)) for each in (marker, plain, early)]
    tp = TopicPartition("t", 0)
    ranges = [OffsetRange("t", 0, 0, 3)]
    ((_, found),) = profile_ranges(read({tp: log}, ranges), ranges, bucket_ms=MINUTE)[0].items()
    assert (found.records.total(), found.markers, found.log_append_time) == (2, 1, 1)
    assert (found.without_time, found.batch_bytes.count) == (1, 2)
    assert found.times.records == {0: 1}
    measured = rates(found, MINUTE)
    assert measured is not None
    assert measured.records is None
    assert "span less than 1 s" in screen(Profile("c", MINUTE, {"t": found}, {tp: LogRange(0, 3)}))


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ([], 0),
        ([FailureKind.DELETED], 5),
        ([FailureKind.DELETED, FailureKind.UNDECODABLE], 4),
        ([FailureKind.UNREADABLE], 4),
    ],
)
def test_what_was_not_read_is_in_the_exit_code(kinds: list[FailureKind], code: int) -> None:
    failures = [Failure("c", "t", 0, 1, 2, kind, "t-0: why") for kind in kinds]
    ranges = {TopicPartition("t", 0): LogRange(0, 3)}
    result = Profile("c", MINUTE, {"t": TopicProfile()}, ranges, failures)
    assert result.exit_code == code
    assert screen(result).count("t-0: why") == len(kinds)
    assert len(json.loads(json_text(result))["not_read"]) == len(kinds)


class Counting(Mapping[TopicPartition, LogRange]):
    """Counts how many partitions were visited."""

    def __init__(self, held: dict[TopicPartition, LogRange]) -> None:
        self.held = held
        self.visited = 0

    def __getitem__(self, tp: TopicPartition) -> LogRange:
        return self.held[tp]

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[TopicPartition]:
        for each in self.held:
            self.visited += 1
            yield each


def test_the_work_of_a_report_grows_with_the_partitions_and_not_with_the_topics() -> None:
    visits = set()
    for topics in (1, 10, 100):
        ranges = Counting(
            {
                TopicPartition(f"t{topic}", n): LogRange(0, 3)
                for topic in range(topics)
                for n in range(100 // topics)
            }
        )
        found = Profile("c", MINUTE, {f"t{n}": TopicProfile() for n in range(topics)}, ranges)
        assert f"{100 // topics} partitions" in screen(found)
        made: Any = document(found)
        assert sum(each["offsets"] for each in made["topics"]) == 300
        visits.add(ranges.visited)
    assert len(visits) == 1


def test_partitions_that_were_not_read_are_neither_empty_nor_in_the_median() -> None:
    topic = TopicProfile()
    topic.records[0] = 10
    cause = "no batch for 60 s"
    failures = [
        Failure("cluster", "t", 1, 5, 1000, FailureKind.UNREADABLE, cause),
        Failure("cluster", "t", 2, 0, 0, FailureKind.UNREADABLE, "no leader"),
    ]
    ranges = {TopicPartition("t", n): LogRange(0, 1000) for n in (0, 1, 3)}
    found = Profile("cluster", 1000, {"t": topic}, ranges, failures)
    text = screen(found)
    assert "not read  t-1 offsets 5 to 999: no batch for 60 s" in text
    assert "not read  t-2 without known offsets: no leader" in text
    assert "4 partitions" in text
    assert "1 empty   2 partitions not read in full are left out" in text
    assert text.endswith("of what was read")
    (row,) = json.loads(json_text(found))["topics"]
    assert row["partitions"]["not_read_in_full"] == [1, 2]
    assert row["partitions"]["count"] == 4
    partial = TopicProfile()
    partial.records[1] = 5
    all_failed = Profile("cluster", 1000, {"t": partial}, {}, failures[:1] * 30)
    assert "no partition was read in full" in screen(all_failed)
    assert "not read  10 more ranges" in screen(all_failed)


def test_a_topic_that_the_cluster_no_longer_reports_was_not_read_and_is_not_empty() -> None:
    ranges = {TopicPartition("here", 0): LogRange(0, 3)}
    unreadable = {TopicPartition("broken", -1): "why", TopicPartition("here", 1): "no leader"}
    cluster = ClusterSnapshot("cluster", "", "", ranges, unreadable=unreadable)
    names = ["broken", "gone", "here"]
    failures = not_known(cluster, names)
    assert [(each.topic, each.partition, each.kind) for each in failures] == [
        ("broken", -1, FailureKind.UNREADABLE),
        ("gone", -1, FailureKind.UNREADABLE),
        ("here", 1, FailureKind.UNREADABLE),
    ]
    found = Profile("c", MINUTE, {name: TopicProfile() for name in names}, ranges, failures)
    assert found.exit_code == 4
    text = screen(found)
    assert "not read  gone: the cluster no longer reports the topic" in text
    assert "not read  here-1 without known offsets: no leader" in text
    assert "gone   its partitions are not known" in text
    assert "here   2 partitions   0 records" in text
    made: Any = document(found)
    assert [each["partition"] for each in made["not_read"]] == [None, None, 1]
    assert [each["partitions"]["count"] for each in made["topics"]] == [None, None, 2]


def test_what_can_not_be_read_is_returned_and_the_rest_is_profiled() -> None:
    good = encode_batch([Record(0, 1, b"k", b"v")])
    bad = bytearray(encode_batch([Record(0, 1, b"k", b"v")], base_offset=1))
    bad[-1] ^= 1
    tp = TopicPartition("t", 0)
    ranges = [OffsetRange("t", 0, 0, 2)]
    log = [(parse(each), memoryview(bytes(each))) for each in (good, bad)]
    profiles, unread = profile_ranges(read({tp: log}, ranges), ranges, bucket_ms=MINUTE)
    assert profiles["t"].records == {0: 1}
    assert [each[:4] for each in unread] == [(0, 1, 2, FailureKind.UNDECODABLE)]
