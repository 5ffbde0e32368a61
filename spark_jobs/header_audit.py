"""Runs one header audit: headers of both clusters, then the content of windows with other headers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from spark_jobs.comparison import compacted_topics, known_ranges
from spark_jobs.cut import OffsetRange, freeze
from spark_jobs.engine import Failure, FailureKind, WindowRows, by_partition, joined
from spark_jobs.header_batches import header_sums
from spark_jobs.headers import HeaderAudit, differing, to_compare
from spark_jobs.snapshot import ClusterSnapshot
from spark_jobs.time_counts import scopes
from spark_jobs.verdict import Limits
from spark_jobs.windows import WindowResult, by_window, compare_windows


class HeaderEngine(Protocol):
    """Reads headers, and digests of content."""

    def header_rows(
        self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange], window: int
    ) -> WindowRows:
        """Return the sums of *ranges* per window, as rows of `spark_jobs.header_batches.HEADER_COLUMNS`."""
        ...

    def window_rows(self, cluster: ClusterSnapshot, ranges: Sequence[OffsetRange]) -> WindowRows:
        """Return the digests of *ranges* per window."""
        ...


def audit_headers(
    engine: HeaderEngine,
    clusters: tuple[ClusterSnapshot, ClusterSnapshot],
    window: int,
    limits: Limits,
    progress: Callable[[str], None] = lambda _: None,
) -> HeaderAudit:
    """Compare the headers of *clusters*, source and target, up to the cut."""
    ranges, failures = known_ranges(*clusters)
    cuts = freeze(ranges[1], ranges[0])
    unknown = by_partition(failures)
    known = [cut for cut in cuts if cut.topic_partition not in unknown]
    to_read = (
        [OffsetRange(*cut.topic_partition, cut.low, cut.high) for cut in known],
        [OffsetRange(*cut.topic_partition, cut.low, cut.target_end) for cut in known],
    )
    sums = []
    for cluster, of_side in zip(clusters, to_read, strict=True):
        wanted = [each for each in of_side if each.high > each.low]
        progress(
            f"headers of {cluster.name}: {sum(each.high - each.low for each in wanted):,} offsets"
        )
        answer = engine.header_rows(cluster, wanted, window) if wanted else WindowRows([])
        sums.append(header_sums(answer.rows))
        failures += answer.failures
    # The content is decoded, too: a batch that fails there may be equal, and is no damage.
    damaged = [each for each in failures if each.kind is FailureKind.UNDECODABLE]
    both = sums[0], sums[1]
    other = differing(*both)
    by_content = _by_content(
        engine, clusters, to_compare(other, both, known, window), failures, progress
    )
    return HeaderAudit(
        window,
        both,
        other,
        by_content,
        scopes(cuts, failures),
        compacted_topics(clusters[0]) | compacted_topics(clusters[1]),
        joined(failures),
        limits,
        joined(damaged),
    )


def _by_content(
    engine: HeaderEngine,
    clusters: tuple[ClusterSnapshot, ClusterSnapshot],
    ranges: tuple[list[OffsetRange], list[OffsetRange]],
    failures: list[Failure],
    progress: Callable[[str], None],
) -> list[WindowResult]:
    """Compare the content of *ranges*; add what could not be read to *failures*."""
    if not any(ranges):
        return []
    progress(f"headers differ: comparing the content of {len(ranges[0]):,} ranges")
    rows = []
    for cluster, of_side in zip(clusters, ranges, strict=True):
        answer = engine.window_rows(cluster, of_side) if of_side else WindowRows([])
        failures += answer.failures
        rows.append(by_window(answer.rows))
    return compare_windows(*rows)
