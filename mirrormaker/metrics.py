"""The metrics of a running kmirror, in the text format that node_exporter's textfile collector reads. Pure.

Theory of operation
===================
A family of partitions is also written for the whole direction, with `mirror_flow_` in place of `mirror_`. So a sum over
either counts nothing twice. What is not measured has no sample: a lag before both logs were read, a duration without a
first event. After the end of kmirror no lag has one.

`Samples.read` returns after every `LINKS_PER_STEP` partitions, so that thousands of them need no long turn of the
reactor. The values of a direction come from the same pass as those of its partitions: sums agree with them.

In: links, counts of a flow   Out: the text of a file, a family at a time   Owner: `mirrormaker.metrics_file`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kclient.prometheus_text import Kind, family_head, label_pairs
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import LinkCounts
from mirrormaker.progress import Copied, Progress

LINKS_PER_STEP = 100
"""Partitions that are read in one step: about a millisecond."""


class Family(NamedTuple):
    """A metric; *help* is a sentence without its full stop."""

    name: str
    kind: Kind
    help: str


UPDATED = Family(
    "mirror_updated_timestamp", "gauge", "When the file was written, in seconds since the epoch"
)
RUNNING = Family("mirror_running", "gauge", "1 while kmirror runs, 0 after its end")
EXIT_CODE = Family("mirror_exit_code", "gauge", "Exit code of kmirror, after its end")

FLOW_PARTITIONS = Family("mirror_flow_partitions", "gauge", "Partitions that this process copies")
FLOW_CONFLICTS = Family(
    "mirror_flow_topics_in_conflict", "gauge", "Topics that cannot be mirrored, or not all of them"
)
FLOW_SKIPPED = Family(
    "mirror_flow_topics_skipped",
    "gauge",
    "Topics that are not copied, because that would be a loop or a second copy",
)
FLOW_GROUPS = Family(
    "mirror_flow_groups_not_copied",
    "gauge",
    "Consumer groups with offsets that the last synchronization did not copy; a list that cannot be read is one",
)
FLOW_GAP_ENTRIES = Family(
    "mirror_flow_gap_ledger_entries_total", "counter", "Entries written to the gap ledger"
)
FLOW_FETCHED = Family(
    "mirror_flow_fetched_bytes_total",
    "counter",
    "Bytes of batches that the source sent, those fetched again included",
)

PARTITION = (
    Family(
        "mirror_lag_records",
        "gauge",
        "Records that the source has and the target lacks, those of open transactions included",
    ),
    Family(
        "mirror_lag_bytes",
        "gauge",
        "Estimate: records of the lag times the mean size of the records copied since the start",
    ),
    Family(
        "mirror_lag_seconds",
        "gauge",
        "Age of the newest copied record, by its timestamp, while there is lag; 0 without lag",
    ),
    Family(
        "mirror_open_transaction_records",
        "gauge",
        "Records of the lag from the first open transaction on, which are copied after its end",
    ),
    Family(
        "mirror_no_progress_seconds",
        "gauge",
        "Seconds since the target advanced, or since the source answered without a lag",
    ),
    Family("mirror_stopped", "gauge", "1 if the partition stopped because of a problem, else 0"),
    Family("mirror_copied_records_total", "counter", "Records that the target acknowledged"),
    Family("mirror_copied_bytes_total", "counter", "Bytes of batches that the target acknowledged"),
    Family("mirror_copied_batches_total", "counter", "Batches that the target acknowledged"),
    Family(
        "mirror_rewinds_total",
        "counter",
        "Times that the batches in flight were dropped and both logs were compared again",
    ),
    Family(
        "mirror_damaged_batches_total",
        "counter",
        "Fetched batches that were not copied for a wrong CRC or an invalid header; each fetch counts",
    ),
    Family(
        "mirror_rejected_appends_total",
        "counter",
        "Appends that the target rejected, because its log ends elsewhere than they state",
    ),
)
"""The families of a partition, in the order of `Row`."""

_OF_FLOW = {
    "mirror_lag_seconds": "The largest mirror_lag_seconds",
    "mirror_no_progress_seconds": "The largest mirror_no_progress_seconds",
    "mirror_stopped": "Partitions that stopped because of a problem",
}
FLOW = tuple(
    Family(
        each.name.replace("mirror_", "mirror_flow_", 1),
        each.kind,
        _OF_FLOW.get(each.name, each.help),
    )
    for each in PARTITION
)
"""The families of `PARTITION` for the whole direction, in the same order."""

FAMILIES = (
    UPDATED,
    RUNNING,
    EXIT_CODE,
    FLOW_PARTITIONS,
    FLOW_CONFLICTS,
    FLOW_SKIPPED,
    FLOW_GROUPS,
    FLOW_GAP_ENTRIES,
    FLOW_FETCHED,
    *FLOW,
    *PARTITION,
)
"""All families, in the order of the file."""

Value = int | float | None
"""None: not measured."""


class Row(NamedTuple):
    """The values of a partition, or of a direction, in the order of `PARTITION`."""

    lag_records: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    open_records: int | None
    idle_seconds: float | None
    stopped: int
    copied_records: int
    copied_bytes: int
    copied_batches: int
    rewinds: int
    damaged: int
    rejected: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """What the metrics of one direction are read from, at one moment.

    *idle_time* returns the seconds without progress of a link, *age* those since a time in ms since the epoch.
    """

    source: str
    """The source's alias."""
    target: str
    links: Sequence[PartitionLink]
    progress: Progress
    idle_time: Callable[[PartitionLink], float | None]
    age: Callable[[int], float]
    updated: float
    """The present time, in seconds since the epoch."""
    is_conditional: bool
    """Whether appends are conditional: otherwise none is rejected for its offset."""
    conflicts: int
    skipped: int
    gap_entries: int
    groups_not_copied: int | None
    has_ended: bool = False
    exit_code: int | None = None


class Samples:
    """The samples of one file."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {each.name: [] for each in FAMILIES}

    def read(self, at: Direction) -> Iterator[None]:
        """Add the samples of a direction; yield after each step."""
        flow = label_pairs({"source": at.source, "target": at.target})
        whole = _Whole(at)
        lines = [self._lines[each.name] for each in PARTITION]
        for done, link in enumerate(at.links, 1):
            row = _row(at, link)
            whole.add(link, row)
            # Names of topics need no escape.
            labels = f'{{{flow},topic="{link.tp.topic}",partition="{link.tp.partition}"}}'
            for family, into, value in zip(PARTITION, lines, row, strict=True):
                if value is not None:
                    into.append(f"{family.name}{labels} {value!r}\n")
            if done % LINKS_PER_STEP == 0:
                yield
        for family, value in (*_counts(at), *zip(FLOW, whole.row(), strict=True)):
            if value is not None:
                self._lines[family.name].append(f"{family.name}{{{flow}}} {value!r}\n")
        yield

    def text(self) -> Iterator[str]:
        """Return the file, a family at a time, without families that have no sample."""
        for family in FAMILIES:
            lines = self._lines[family.name]
            if lines:
                yield family_head(*family) + "".join(lines)


def _row(at: Direction, link: PartitionLink) -> Row:
    """Return the values of a partition."""
    copied = at.progress.copied_of(link)
    lag = None if at.has_ended else link.lag
    idle = None if at.has_ended else at.idle_time(link)
    return Row(
        lag,
        _lag_bytes(lag, copied.bytes, copied.records),
        _lag_seconds(at, lag, copied),
        None if lag is None else min(lag, link.open_records),
        None if idle is None else round(idle, 1),
        int(link.problem is not None),
        copied.records,
        copied.bytes,
        copied.batches,
        link.counts.rewinds,
        link.counts.damaged,
        link.counts.rejected if at.is_conditional else None,
    )


def _lag_bytes(lag: int | None, size: int, records: int) -> int | None:
    """Return the lag in bytes; None without a copied record to take the mean size of."""
    if not lag:
        return lag
    return round(lag * size / records) if records else None


def _lag_seconds(at: Direction, lag: int | None, copied: Copied) -> float | None:
    if not lag:
        return lag
    return round(at.age(copied.newest), 1) if copied.newest >= 0 else None


class _Whole:
    """The values of a direction, from those of its partitions.

    It is made before the first link is read. A link that is removed later counts as one of the direction's links, and
    not as a removed one: no count goes back.
    """

    def __init__(self, at: Direction) -> None:
        self._at = at
        self._lag: int | None = 0 if at.links and not at.has_ended else None
        self._open = 0
        self._oldest: float | None = None
        """The largest lag in seconds of the partitions with lag."""
        self._is_behind = False
        self._idle: float | None = None
        self._stopped = 0
        self._counts = LinkCounts()
        self._counts.add(at.progress.removed_counts)

    def add(self, link: PartitionLink, row: Row) -> None:
        """Add a partition."""
        lag = row.lag_records
        if lag is None or self._lag is None:
            self._lag = None
        else:
            self._lag += lag
            self._open += row.open_records or 0
        if lag != 0:
            self._is_behind = True
            self._oldest = _larger(self._oldest, row.lag_seconds)
        self._idle = _larger(self._idle, row.idle_seconds)
        self._stopped += row.stopped
        self._counts.add(link.counts)

    def row(self) -> Row:
        """Return the values. A sum is None if one of its terms is; a largest value is that of the known ones."""
        at, lag, progress = self._at, self._lag, self._at.progress
        return Row(
            lag,
            _lag_bytes(lag, progress.bytes, progress.records),
            self._oldest if self._is_behind else lag,
            None if lag is None else self._open,
            self._idle,
            self._stopped,
            progress.records,
            progress.bytes,
            progress.batches,
            self._counts.rewinds,
            self._counts.damaged,
            self._counts.rejected if at.is_conditional else None,
        )


def _larger(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _counts(at: Direction) -> Iterator[tuple[Family, Value]]:
    """Yield what only a direction has."""
    yield UPDATED, round(at.updated, 3)
    yield RUNNING, int(not at.has_ended)
    yield EXIT_CODE, at.exit_code
    yield FLOW_PARTITIONS, len(at.links)
    yield FLOW_CONFLICTS, at.conflicts
    yield FLOW_SKIPPED, at.skipped
    yield FLOW_GROUPS, at.groups_not_copied
    yield FLOW_GAP_ENTRIES, at.gap_entries
    yield FLOW_FETCHED, at.progress.fetched_bytes
