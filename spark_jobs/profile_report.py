"""The result of `kaudit profile` as text, CSV, JSON and a picture. Pure, apart from numpy in the sketches."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

from kclient.types import TopicPartition
from spark_jobs.cut import LogRange
from spark_jobs.engine import Failure, FailureKind
from spark_jobs.record_text import moment_text, printable
from spark_jobs.sketches import SizeHistogram
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.step_chart import Panel, chart
from spark_jobs.topic_profile import TopicProfile
from spark_jobs.verdict import ExitCode, ordered

PERCENTILES = (50, 95, 99)
ACCURACY = (
    "percentiles are at most 0.8 % above the true ones; distinct keys are an estimate "
    "(HyperLogLog, standard error 1.6 %); everything else is exact, of what was read"
)
_PANELS = 12
_FAILURES = 20


@dataclass(frozen=True)
class Profile:
    """The result of `kaudit profile`: a profile for every topic, also for an empty one.

    A failure with partition -1 is one of a whole topic: its partitions are not known.
    """

    cluster: str
    bucket_ms: int
    topics: Mapping[str, TopicProfile]
    ranges: Mapping[TopicPartition, LogRange]
    """The offsets of each partition that were to be read."""
    failures: Sequence[Failure] = ()

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of *topic* that are known, also those that cannot be read."""
        return sorted(self._ranges.get(topic, {}).keys() | self.not_read_in_full(topic))

    def not_read_in_full(self, topic: str) -> Set[int]:
        """Return the partitions of *topic* with a part that was not read."""
        return self._failed.get(topic, frozenset())

    def offsets(self, topic: str) -> int:
        """Return how many offsets of *topic* were to be read."""
        return sum(held.end - held.start for held in self._ranges.get(topic, {}).values())

    @cached_property
    def _ranges(self) -> Mapping[str, Mapping[int, LogRange]]:
        found: defaultdict[str, dict[int, LogRange]] = defaultdict(dict)
        for tp, held in self.ranges.items():
            found[tp.topic][tp.partition] = held
        return found

    @cached_property
    def _failed(self) -> Mapping[str, Set[int]]:
        found: defaultdict[str, set[int]] = defaultdict(set)
        for each in self.failures:
            if each.partition >= 0:
                found[each.topic].add(each.partition)
        return found

    @property
    def exit_code(self) -> ExitCode:
        """4: a part could not be read; 5: a part was deleted during the run; else 0."""
        kinds = {each.kind for each in self.failures}
        conditions = {
            ExitCode.CONSISTENT: True,
            ExitCode.AGED_OUT: FailureKind.DELETED in kinds,
            ExitCode.UNREADABLE: bool(kinds - {FailureKind.DELETED}),
        }
        return ordered(code for code, applies in conditions.items() if applies)[0]


def not_known(cluster: ClusterSnapshot, topics: Iterable[str]) -> list[Failure]:
    """Return failures for what *cluster*, which was asked for *topics*, has no log range of."""
    known = {tp.topic for tp in (*cluster.ranges, *cluster.unreadable)}
    gone = "the cluster no longer reports the topic"
    causes = {TopicPartition(topic, -1): gone for topic in topics if topic not in known}
    return [
        Failure(cluster.name, *tp, 0, 0, FailureKind.UNREADABLE, cause)
        for tp, cause in sorted({**cluster.unreadable, **causes}.items())
    ]


def document(profile: Profile) -> dict[str, object]:
    """Return everything as JSON-ready values."""
    return {
        "schema_version": 1,
        "exit_code": int(profile.exit_code),
        "note": ACCURACY,
        "cluster": profile.cluster,
        "bucket_ms": profile.bucket_ms,
        "not_read": [
            {
                "topic": each.topic,
                "partition": each.partition if each.partition >= 0 else None,
                "from": each.low,
                "until": each.high,
                "kind": each.kind.value,
                "cause": each.cause,
            }
            for each in profile.failures
        ],
        "topics": [topic_document(profile, topic) for topic in sorted(profile.topics)],
    }


def topic_document(profile: Profile, topic: str) -> dict[str, object]:
    """Return one topic as JSON-ready values."""
    found = profile.topics[topic]
    records = found.records.total()
    return {
        "topic": topic,
        "offsets": profile.offsets(topic),
        "records": records,
        "bytes": found.bytes.total(),
        "transaction_markers": found.markers,
        "null_keys": found.null_keys,
        "null_values": found.null_values,
        "distinct_keys_estimate": found.distinct_keys.estimate(),
        "sizes": {
            "key": _sizes(found.keys),
            "value": _sizes(found.values),
            "record": _sizes(found.bodies),
        },
        "time": {
            "first_ms": found.first_ms,
            "last_ms": found.last_ms,
            "without_timestamp": found.without_time,
            "log_append_time": found.log_append_time,
            **_rates(found, profile.bucket_ms),
        },
        "partitions": _partitions(profile, topic),
        "batches": {
            "count": found.batch_bytes.count,
            "codecs": dict(sorted(found.codecs.items())),
            "bytes": _sizes(found.batch_bytes),
            "records": _sizes(found.batch_records),
        },
    }


def _sizes(sizes: SizeHistogram) -> dict[str, float | int | None]:
    mean = round(sizes.total / sizes.count, 1) if sizes.count else None
    percentiles = {f"p{percent}": sizes.percentile(percent) for percent in PERCENTILES}
    return {**percentiles, "max": sizes.largest if sizes.count else None, "mean": mean}


class Rates(NamedTuple):
    """Throughput by record time: over the whole span of timestamps, and in the fullest bucket."""

    records: float | None
    """Per second; None if the timestamps span less than a second."""
    bytes: float | None
    peak_start_ms: int
    peak_records: float
    peak_bytes: float


def rates(found: TopicProfile, bucket_ms: int) -> Rates | None:
    """Return the throughput of a topic; None if no record has a timestamp."""
    if found.first_ms is None or found.last_ms is None:
        return None
    seconds = (found.last_ms - found.first_ms) / 1000
    start, most = max(found.times.records.items(), key=lambda each: (each[1], -each[0]))
    sums = (found.times.records.total(), found.times.bytes.total())
    averages = [round(each / seconds, 3) if seconds >= 1 else None for each in sums]
    width = bucket_ms / 1000
    peak = round(most / width, 3), round(found.times.bytes[start] / width, 3)
    return Rates(averages[0], averages[1], start, *peak)


def _rates(found: TopicProfile, bucket_ms: int) -> dict[str, object]:
    measured = rates(found, bucket_ms)
    if measured is None:
        return {"records_per_second": None, "bytes_per_second": None, "peak": None}
    return {
        "records_per_second": measured.records,
        "bytes_per_second": measured.bytes,
        "peak": {
            "start_ms": measured.peak_start_ms,
            "records_per_second": measured.peak_records,
            "bytes_per_second": measured.peak_bytes,
        },
    }


def _partitions(profile: Profile, topic: str) -> dict[str, object]:
    """Return the records of each partition, empty ones too, and how unequal they are."""
    every, not_read = profile.partitions(topic), profile.not_read_in_full(topic)
    numbers = [number for number in every if number not in not_read]
    records = [profile.topics[topic].records[number] for number in numbers]
    largest = max(range(len(numbers)), key=lambda n: records[n]) if numbers else None
    middle = median(records) if records else 0
    return {
        "count": len(every) or None,
        "not_read_in_full": sorted(not_read),
        "records": {str(number): profile.topics[topic].records[number] for number in every},
        "largest": None if largest is None else numbers[largest],
        "max_to_median": round(max(records) / middle, 3) if middle else None,
    }


def json_text(profile: Profile) -> str:
    """Return `document` as text."""
    return json.dumps(document(profile), indent=2) + "\n"


def csv_text(profile: Profile) -> str:
    """Return records and bytes of every time bucket as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("topic", "start_ms", "time", "records", "bytes"))
    for topic, found in sorted(profile.topics.items()):
        for start in sorted(found.times.records):
            sums = found.times.records[start], found.times.bytes[start]
            writer.writerow((topic, start, moment_text(start), *sums))
    return out.getvalue()


def picture(profile: Profile) -> bytes:
    """Return the records of the largest topics over time as PNG."""
    ranked = sorted(
        profile.topics, key=lambda topic: (-profile.topics[topic].records.total(), topic)
    )
    return chart(
        [
            Panel(
                f"{topic}: records by time",
                profile.bucket_ms,
                {"records": profile.topics[topic].times.records},
            )
            for topic in ranked[:_PANELS]
        ]
    )


def screen(profile: Profile) -> str:
    """Return the result as text, a block for each topic."""
    lines = [f"PROFILE  {profile.cluster}   exit {int(profile.exit_code)}"]
    lines += [
        f"not read  {_place(each)}: {printable(each.cause)}"
        for each in profile.failures[:_FAILURES]
    ]
    if len(profile.failures) > _FAILURES:
        lines.append(f"not read  {len(profile.failures) - _FAILURES:,} more ranges: --out has all")
    for topic in sorted(profile.topics):
        lines += ["", *_block(profile, topic)]
    return "\n".join([*lines, "", ACCURACY])


def _place(failure: Failure) -> str:
    if failure.partition < 0:
        return failure.topic
    return f"{failure.topic_partition} {failure.span}"


def _block(profile: Profile, topic: str) -> list[str]:
    found = profile.topics[topic]
    records = found.records.total()
    partitions = profile.partitions(topic)
    if not partitions:
        return [f"{topic}   its partitions are not known"]
    markers = f"   {found.markers:,} transaction markers" if found.markers else ""
    lines = [
        f"{topic}   {len(partitions):,} partitions   {records:,} records{markers}   "
        f"{found.bytes.total():,} bytes of keys and values"
    ]
    if not records:
        return lines
    lines.append(f"  {'':<10}{'p50':>12}{'p95':>12}{'p99':>12}{'max':>12}{'mean':>14}")
    for name, sizes in (("key", found.keys), ("value", found.values), ("record", found.bodies)):
        lines.append(f"  {name:<10}{_columns(sizes)}   bytes")
    lines += [
        f"  {'batch':<10}{_columns(found.batch_bytes)}   bytes",
        f"  {'':<10}{_columns(found.batch_records)}   records",
        f"  keys      null {_share(found.null_keys, records)}   "
        f"distinct about {found.distinct_keys.estimate():,}",
        f"  values    null {_share(found.null_values, records)}",
        f"  batches   {found.batch_bytes.count:,}   "
        + "   ".join(
            f"{codec} {_share(count, found.batch_bytes.count)}"
            for codec, count in sorted(found.codecs.items())
        ),
        f"  skew      {_skew(found, partitions, profile.not_read_in_full(topic))}",
        *_time_lines(found, profile.bucket_ms),
    ]
    return lines


def _columns(sizes: SizeHistogram) -> str:
    if not sizes.count:
        return f"{'none':>12}"
    numbers = [sizes.percentile(percent) for percent in PERCENTILES]
    return "".join(f"{number:>12,}" for number in [*numbers, sizes.largest]) + (
        f"{sizes.total / sizes.count:>14,.1f}"
    )


def _skew(found: TopicProfile, partitions: Sequence[int], not_read: Set[int]) -> str:
    counts = {number: found.records[number] for number in partitions if number not in not_read}
    unread = f"   {len(not_read):,} partitions not read in full are left out" if not_read else ""
    if not counts:
        return f"no partition was read in full{unread}"
    largest = max(counts, key=lambda number: (counts[number], -number))
    middle = median(counts.values())
    ratio = f"max/median {counts[largest] / middle:.2f}" if middle else "the median is 0 records"
    empty = sum(not count for count in counts.values())
    return (
        f"largest partition {largest} with {_share(counts[largest], sum(counts.values()))}   "
        f"{ratio}   {empty:,} empty{unread}"
    )


def _time_lines(found: TopicProfile, bucket_ms: int) -> list[str]:
    kind = f"LogAppendTime {_share(found.log_append_time, found.records.total())}"
    without = f"   no timestamp or before 1970 {found.without_time:,}" if found.without_time else ""
    measured = rates(found, bucket_ms)
    if measured is None or found.first_ms is None or found.last_ms is None:
        return [f"  time      no record has a timestamp of 1970 or later   {kind}"]
    average = "the timestamps span less than 1 s"
    if measured.records is not None:
        average = f"{measured.records:,.1f} records/s, {measured.bytes:,.0f} bytes/s"
    return [
        f"  time      {moment_text(found.first_ms)} to {moment_text(found.last_ms)}   {kind}{without}",
        f"  rate      {average}   in the {bucket_ms / 1000:g} s from {moment_text(measured.peak_start_ms)}: "
        f"{measured.peak_records:,.1f} records/s, {measured.peak_bytes:,.0f} bytes/s",
    ]


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({100 * part / whole:.1f} %)" if whole else f"{part:,}"
