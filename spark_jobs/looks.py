"""One look at the logs of some partitions, and what a later one uses of it. Pure; `spark_jobs.settle` has the rules."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kclient.types import TopicPartition
from spark_jobs.accounting import Account
from spark_jobs.cut import OffsetRange, PartitionCut
from spark_jobs.findings import Finding, FindingClass
from spark_jobs.kept import Plan
from spark_jobs.ranges import Ranges, intersect, subtract
from spark_jobs.settle import Seen, carried
from spark_jobs.snapshot import WHOLE_TOPIC, ClusterSnapshot
from spark_jobs.windows import WindowResult, offset_ranges

Rows = Sequence[Mapping[str, int]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """What one look read and found."""

    cuts: Mapping[TopicPartition, PartitionCut]
    rows: tuple[Rows, Rows]
    """The digests of source and target, without those of earlier runs."""
    windows: Sequence[WindowResult]
    account: Account
    kept: Plan
    """What it used of earlier runs."""
    holes: Sequence[OffsetRange] = ()

    def seen(self) -> dict[TopicPartition, Seen]:
        """Return what was found in each partition."""
        found: dict[TopicPartition, list[Finding]] = {tp: [] for tp in self.cuts}
        for each in self.account.findings:
            found[each.topic_partition].append(each)
        counts = self.account.partitions
        return {
            tp: Seen(
                cut,
                tuple(found[tp]),
                self.account.failed.get(tp, []),
                bool(counts[tp].unreadable or counts[tp].not_read),
            )
            for tp, cut in self.cuts.items()
        }

    def replaced_by(self, later: Look, partitions: Collection[TopicPartition]) -> Look:
        """Return the look with *partitions* as *later* found them."""
        mine, others = self.account, later.account
        return Look(
            _mixed(self.cuts, later.cuts, partitions),
            (
                _rows(self.rows[0], later.rows[0], partitions),
                _rows(self.rows[1], later.rows[1], partitions),
            ),
            sorted(
                [
                    *(w for w in self.windows if w.key[:2] not in partitions),
                    *(w for w in later.windows if w.key[:2] in partitions),
                ],
                key=lambda each: each.key,
            ),
            Account(
                sorted(
                    [
                        *(f for f in mine.findings if f.topic_partition not in partitions),
                        *(f for f in others.findings if f.topic_partition in partitions),
                    ],
                    key=lambda f: (f.topic, f.partition),
                ),
                _mixed(mine.partitions, others.partitions, partitions),
                _mixed(mine.explained, others.explained, partitions),
                _mixed(mine.failed, others.failed, partitions),
                frozenset(
                    [
                        *(gap for gap in mine.used if gap.topic_partition not in partitions),
                        *(gap for gap in others.used if gap.topic_partition in partitions),
                    ]
                ),
                _mixed(mine.proven, others.proven, partitions),
                _mixed(mine.explained_gaps, others.explained_gaps, partitions),
            ),
            replace(
                self.kept,
                carried=_mixed(self.kept.carried, later.kept.carried, partitions),
                gone=_mixed(self.kept.gone, later.kept.gone, partitions),
                refused=sorted({*self.kept.refused, *later.kept.refused}),
                passed=self.kept.passed | (later.kept.passed & frozenset(partitions)),
            ),
            [
                *(each for each in self.holes if each.topic_partition not in partitions),
                *(each for each in later.holes if each.topic_partition in partitions),
            ],
        )


def _mixed(
    mine: Mapping[TopicPartition, T],
    others: Mapping[TopicPartition, T],
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, T]:
    """Return *mine*, with the values of *partitions* from *others*, in the order of partitions."""
    found = {tp: each for tp, each in mine.items() if tp not in partitions}
    found |= {tp: each for tp, each in others.items() if tp in partitions}
    return dict(sorted(found.items()))


def _rows(mine: Rows, others: Rows, partitions: Collection[TopicPartition]) -> Rows:
    return [
        *(row for row in mine if _of(row) not in partitions),
        *(row for row in others if _of(row) in partitions),
    ]


def _of(row: Mapping[str, int]) -> tuple[str, int]:
    return str(row["topic"]), row["partition"]


@dataclass(frozen=True, slots=True)
class Held:
    """What a later look uses of the look before: it does not read these offsets again."""

    spans: Mapping[TopicPartition, Ranges] = field(default_factory=dict)
    """Equal on both sides."""
    rows: tuple[Rows, Rows] = ((), ())
    """The digests of `spans`."""
    searched: Mapping[TopicPartition, Ranges] = field(default_factory=dict)
    """Offsets that only the target has, and that were searched for holes."""
    holes: Sequence[OffsetRange] = ()


def held(
    before: Look, cuts: Iterable[PartitionCut], window: int, whole: Collection[TopicPartition]
) -> Held:
    """Return what a look with *cuts* uses of *before*: nothing of the partitions *whole*."""
    differing = offset_ranges(before.windows, window)
    seen = before.seen()
    spans: dict[TopicPartition, Ranges] = {}
    searched: dict[TopicPartition, Ranges] = {}
    lows: dict[TopicPartition, int] = {}
    for cut in cuts:
        tp = cut.topic_partition
        if tp in whole:
            continue
        old = seen[tp]
        spans[tp] = carried(old, cut, differing.get(tp, []), window)
        lows[tp] = max(cut.low, old.cut.low)
        gaps = [
            (f.position, (f.last_offset or f.position) + 1)
            for f in old.findings
            if f.finding_class is FindingClass.GAP
        ]
        only = intersect([old.cut.only_target], *cut.only_target)
        searched[tp] = subtract(only, [*gaps, *old.failed])

    starts = {tp: [low for low, _ in each] for tp, each in spans.items()}

    def is_held(row: Mapping[str, int]) -> bool:
        """Return whether the offsets of the row's window that both logs have are held: all of them, or none."""
        tp = TopicPartition(*_of(row))
        low = row["window"] * window
        first = max(low, lows.get(tp, 0))
        at = bisect_right(starts.get(tp, []), first) - 1
        return first < low + window and at >= 0 and spans[tp][at][1] > first

    rows = [[row for row in side if is_held(row)] for side in before.rows]
    holes = [
        each._replace(low=low, high=high)
        for each in before.holes
        for low, high in intersect(searched.get(each.topic_partition, []), each.low, each.high)
    ]
    return Held(spans, (rows[0], rows[1]), searched, holes)


def with_ranges(
    cluster: ClusterSnapshot, later: ClusterSnapshot, partitions: Collection[TopicPartition]
) -> ClusterSnapshot:
    """Return *cluster* with the log ranges of *partitions* as they are in *later*.

    What *cluster* does not have of their topics (ids, settings) is from *later*, too: a look after that compares with
    it. `WHOLE_TOPIC` of a topic stays until all partitions that *later* has of it are known.
    """
    topics = {tp.topic for tp in partitions}
    ranges = _mixed(cluster.ranges, later.ranges, partitions)
    unreadable = {tp: why for tp, why in cluster.unreadable.items() if tp not in partitions}
    partly_known = {tp.topic for tp in (*later.ranges, *later.unreadable) if tp not in ranges}
    for topic in topics - partly_known:
        unreadable.pop(TopicPartition(topic, WHOLE_TOPIC), None)
    return replace(
        cluster,
        ranges=ranges,
        unreadable=unreadable,
        configs=_with_topics(cluster.configs, later.configs, topics),
        overrides=_with_topics(cluster.overrides, later.overrides, topics),
        topic_ids=_with_topics(cluster.topic_ids, later.topic_ids, topics),
    )


def _with_topics(
    mine: Mapping[str, T], others: Mapping[str, T], topics: Collection[str]
) -> dict[str, T]:
    """Return *mine*, with the values of *topics* from *others* where it has none."""
    found = {topic: each for topic, each in others.items() if topic in topics}
    return {**found, **{topic: each for topic, each in mine.items() if each or topic not in found}}


def only(cluster: ClusterSnapshot, partitions: Collection[TopicPartition]) -> ClusterSnapshot:
    """Return *cluster* with no other partitions than *partitions*."""
    wanted = {*partitions, *(TopicPartition(tp.topic, WHOLE_TOPIC) for tp in partitions)}
    return replace(
        cluster,
        ranges={tp: each for tp, each in cluster.ranges.items() if tp in partitions},
        unreadable={tp: why for tp, why in cluster.unreadable.items() if tp in wanted},
    )
