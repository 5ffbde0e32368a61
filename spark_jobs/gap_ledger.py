"""Checks the entries of the mirror's gap ledger against both clusters. Pure.

The ledger is a topic at the target that other clients may write to. An entry is used only for what the two logs do not
contradict. The source no longer has the records, and the target's topic is that of the entry. It explains a hole of the
target's log, never a record that the source has and the target lacks (`spark_jobs.accounting`). So an entry that claims
too much explains nothing.

In: entries, and both clusters at the cut   Out: gaps for the accounting, refused entries   Owner: the caller
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kclient.mirror_ledger import GAP, GapEntry
from kclient.types import TopicPartition
from spark_jobs.accounting import AcceptedGap
from spark_jobs.snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True)
class LedgerRead:
    """The ledgers that the target has; *problem* is why they could not be read."""

    topics: tuple[str, ...] = ()
    entries: tuple[GapEntry, ...] = ()
    unreadable: int = 0
    """Records that are no entries."""
    problem: str = ""


class Refused(NamedTuple):
    """An entry that explains nothing, and why."""

    entry: GapEntry
    reason: str


@dataclass(frozen=True, slots=True)
class CheckedEntries:
    """The entries of the source's cluster and the audited topics: those that may explain gaps, and the others."""

    gaps: tuple[AcceptedGap, ...] = ()
    refused: tuple[Refused, ...] = ()
    changes: tuple[GapEntry, ...] = ()
    """Entries that are no gaps, and explain nothing: removals at the target, and copies that ended."""


def check_entries(
    entries: Sequence[GapEntry], source: ClusterSnapshot, target: ClusterSnapshot
) -> CheckedEntries:
    """Return which of *entries* may explain gaps of *target*, a mirror of *source*."""
    gaps, refused, changes = [], [], []
    for entry in entries:
        name = target.name_of(entry.topic)
        here = source.cluster_id and entry.source_cluster_id == source.cluster_id
        if not here or name is None:
            continue
        tp = TopicPartition(name, entry.partition)
        if tp not in target.ranges:
            continue
        if entry.type != GAP:
            changes.append(entry)
            continue
        reason = _contradiction(entry, tp, source, target)
        if reason:
            refused.append(Refused(entry, reason))
        else:
            cause = f"{entry.cause} (ledger)"
            gaps.append(AcceptedGap(*tp, entry.first, entry.until, cause, only_gaps=True))
    return CheckedEntries(tuple(gaps), tuple(refused), tuple(changes))


def _contradiction(
    entry: GapEntry, tp: TopicPartition, source: ClusterSnapshot, target: ClusterSnapshot
) -> str:
    """Return how the clusters contradict *entry*; "" if they do not."""
    target_id = target.topic_ids.get(tp.topic, "")
    if target_id and entry.target_topic_id != target_id:
        return f"it is about the topic id {entry.target_topic_id or '(none)'}, the target's topic has {target_id}"
    log = source.ranges.get(tp)
    if log is None:
        return "the source's log start is unknown"
    if entry.until > log.start:
        return f"the source still has offsets from {log.start} on"
    return ""
