"""The topics that a command of `kaudit` reads in two clusters, and what both clusters have at the cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spark_jobs.cluster import (
    ClusterUnreadable,
    lineage_topics,
    matching_topics,
    read_cluster,
    read_ledgers,
)
from spark_jobs.gap_ledger import LedgerRead
from spark_jobs.recreated_topics import (
    RecreatedTopic,
    named_by_source,
    recreated_topics,
    with_deleted,
)
from spark_jobs.snapshot import ClusterSnapshot


class Pair(NamedTuple):
    """Two clusters, and the topics to compare in them."""

    source: str
    """The source's bootstrap servers."""
    target: str
    names: tuple[str, str]
    topics: re.Pattern[str]
    target_prefix: str = ""


class Paired(NamedTuple):
    """What both clusters have at the cut. Topics that were created again at the source have the audit's names."""

    source: ClusterSnapshot
    target: ClusterSnapshot
    recreated: tuple[RecreatedTopic, ...] = ()
    ledger: LedgerRead | None = None
    """Of the target; None if it was not to be read."""


def paired(
    pair: Pair,
    progress: Callable[[str], None],
    *,
    with_ledger: bool = True,
    read_committed: bool = False,
    stable: bool = False,
) -> Paired:
    """Return what both clusters have at the cut; ClusterUnreadable if no topic matches.

    The target's gap ledger shows which of its topics has the records of a topic that was created again. Without
    *with_ledger* topics with equal names are pairs. *read_committed* and *stable*: see `snapshots`.
    """
    read: list[LedgerRead] = []
    lineages: list[str] = []
    if with_ledger:
        lineages = lineage_topics(pair.names[1], pair.target, pair.topics, pair.target_prefix)

    def read_ledger() -> None:
        if with_ledger:
            read.append(read_ledgers(pair.names[1], pair.target))

    source, target = snapshots(
        pair,
        progress,
        between=read_ledger,
        read_committed=read_committed,
        stable=stable,
        lineages=lineages,
    )
    if source.cluster_id and source.cluster_id == target.cluster_id and not target.prefix:
        progress(
            f"{' and '.join(pair.names)} are one cluster: its logs are compared with themselves"
        )
    entries = read[0].entries if read else ()
    found = recreated_topics(entries, source, target)
    target = named_by_source(found, target, lineages)
    return Paired(with_deleted(found, source, target), target, found, read[0] if read else None)


def snapshots(
    pair: Pair,
    progress: Callable[[str], None],
    *,
    between: Callable[[], None] = lambda: None,
    read_committed: bool = False,
    stable: bool = False,
    lineages: Sequence[str] = (),
) -> tuple[ClusterSnapshot, ClusterSnapshot]:
    """Return source and target as they are at the cut; raise ClusterUnreadable if no topic matches.

    *between* is called behind the read of the target's log ends, and before that of the source's log starts. A mirror
    records a gap before it passes it, so its ledger then has every gap below those ends. Log starts only rise.
    *read_committed*: see `ClusterSnapshot`. *stable*: the last stable offsets are read, too. The target is also read
    for *lineages*, under their names there.
    """
    source, target = pair.names
    topics = sorted(
        {
            *matching_topics(target, pair.target, pair.topics, pair.target_prefix),
            *matching_topics(source, pair.source, pair.topics),
        }
    )
    if not topics:
        raise ClusterUnreadable(
            f"{source} ({pair.source}) has no topic matching {pair.topics.pattern!r}, "
            f"and {target} ({pair.target}) has none"
        )
    more = ", ..." if len(topics) > 5 else ""
    progress(f"{len(topics)} topics in scope: {', '.join(topics[:5])}{more}")
    return read_both(
        pair,
        topics,
        between,
        read_committed=read_committed,
        stable=stable,
        only_at_target=lineages,
        renamed={topic: topic for topic in lineages},
    )


def read_both(
    pair: Pair,
    topics: Sequence[str],
    between: Callable[[], None],
    *,
    read_committed: bool,
    stable: bool,
    only_at_target: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> tuple[ClusterSnapshot, ClusterSnapshot]:
    """Return source and target with *topics*, in the order that `spark_jobs.cut` needs; raise ClusterUnreadable.

    The target is read first, also for the topics *only_at_target*; *renamed* is that of its snapshot. The other
    arguments are those of `snapshots`.
    """
    source, target = pair.names
    at_target = read_cluster(
        target,
        pair.target,
        [*topics, *only_at_target],
        pair.target_prefix,
        read_committed=read_committed,
        stable="after" if stable else None,
        renamed=renamed,
    )
    between()
    at_source = read_cluster(
        source,
        pair.source,
        topics,
        read_committed=read_committed,
        stable="before" if stable else None,
    )
    return at_source, at_target
