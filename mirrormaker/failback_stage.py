"""Failback: how far each topic is, and the record of what was exported. Pure.

The state of a topic is in the marks and topic ids of both clusters, and in the manifest of its export.
docs/design/mirror-failback.md has the table and the steps. Here *source* is the cluster that was promoted, *target*
the cluster that was lost and is to become its mirror.

In: topics of both clusters, manifests   Out: a `Stage` or a refusal, the record   Owner: the command
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kclient.wire.errors import CorruptMessage
from mirrormaker.command_exit import Refused
from mirrormaker.divergence import Batch, Kind
from mirrormaker.export_manifest import ExportedFile, ExportedPartition, Manifest
from mirrormaker.lineage import text_of
from mirrormaker.patterns import escaped
from mirrormaker.promotion_record import opened
from mirrormaker.topics import MARK, Plan, Topic, TopicPair, has_come_back

SCHEMA_VERSION = 1


class Stage(Enum):
    """How far the failback of a topic is; operators read the value."""

    RETURNED = "returned"
    """The source was promoted from the target, which accepts producers or has the fence of a promotion."""
    FENCED = "fenced"
    """The target accepts no producer; it may have records that the source lacks."""
    DELETED = "deleted"
    """The target's topic was exported and deleted."""
    MIRROR = "mirror"
    """The target is a mirror of the source."""


def stage_of(pair: TopicPair, *, is_exported: bool) -> Stage | None:
    """Return the stage of *pair*; None for a topic that was never copied from the target. Raise `Refused`.

    *is_exported* is whether there is a manifest of the topic id that the source states.

    A promotion with both clusters marks the target's topic as a mirror of the source before it has copied everything.
    If it was followed by one without the target, the mark proves nothing: the topic is compared, once.
    """
    name, source, target = pair.name, pair.source, pair.target
    if name != pair.copy:
        raise Refused(
            f"{name}: the target's name is {pair.copy}; a failback needs one name (IdentityReplicationPolicy)"
        )
    marked = source.overrides.get(MARK, "")
    if marked == pair.target_id:
        raise Refused(
            f"{name}: the source is still a mirror of the target. kmirror promote --source-lost opens it first"
        )
    if marked:
        raise Refused(f"{name}: the source's topic is a mirror of cluster {marked}")
    copied, now = source.copied_topic_id, text_of(source.topic_id)
    if target is None:
        if is_exported:
            return Stage.DELETED
        if not copied:
            return None
        raise Refused(
            f"{name}: the target has no such topic, and the export directory has no export of topic id {copied}. "
            "Name the directory of the first run; or copy the topic with kmirror run"
        )
    mark = target.overrides.get(MARK, "")
    if mark not in ("", pair.source_id):
        raise Refused(f"{name}: the target's topic is a mirror of cluster {mark}")
    is_stated = mark and target.copied_topic_id == now != ""
    if is_stated and not has_come_back(target, source, pair.target_id):
        return Stage.MIRROR
    if not copied or copied != text_of(target.topic_id):
        raise Refused(_another_topic(name, copied, target, is_exported=is_exported))
    if source.compacted or target.compacted:
        raise Refused(f"{name}: is compacted: equal records may be in other batches")
    return Stage.FENCED if mark and not is_stated else Stage.RETURNED


def _another_topic(name: str, copied: str, target: Topic, *, is_exported: bool) -> str:
    found = text_of(target.topic_id)
    if is_exported:
        return (
            f"{name}: another client created it (topic id {found}) after its deletion. Stop the producers of the "
            "target, delete that topic if its records are not needed, and run the command again"
        )
    of = f"records of topic id {copied}" if copied else "no topic id of the target"
    return f"{name}: the source states {of}, the target's topic has id {found}: it is another topic"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was exported, summed over files."""

    records: int = 0
    batches: int = 0
    bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    undecoded_batches: int = 0
    """Those of *batches* with a wrong CRC, or that cannot be decoded: their part of *records* is not verified."""

    @classmethod
    def of(cls, files: Iterable[ExportedFile]) -> Exported:
        """Return the sum of *files*."""
        found = list(files)
        oldest = [each.oldest_ms for each in found if each.oldest_ms is not None]
        newest = [each.newest_ms for each in found if each.newest_ms is not None]
        return cls(
            sum(each.records for each in found),
            sum(each.batches for each in found),
            sum(each.bytes for each in found),
            min(oldest, default=None),
            max(newest, default=None),
            sum(each.undecoded_batches for each in found),
        )

    @property
    def seconds(self) -> float | None:
        """The span of the timestamps; None without records that have one."""
        if self.oldest_ms is None or self.newest_ms is None:
            return None
        return (self.newest_ms - self.oldest_ms) / 1000

    def document(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "records": self.records,
            "batches": self.batches,
            "bytes": self.bytes,
            "oldest_ms": self.oldest_ms,
            "newest_ms": self.newest_ms,
            "undecoded_batches": self.undecoded_batches,
        }


LOST = (Kind.DIFFERING, Kind.TAIL)
"""The kinds that the source never received."""


@dataclass(frozen=True, slots=True)
class FailbackReport:
    """What a failback did."""

    flow: str
    source_id: str
    target_id: str
    manifests: Mapping[str, Manifest]
    """By topic. A topic that was a mirror already may have none."""
    already_mirrors: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Those of `already_mirrors` of which an export may be in another directory."""
    audit: str | None = None
    """The run id of the audit that proved every record that both logs have; None without one."""
    audit_aged_out: int = 0
    """Offsets that the audit did not compare, because only one log still has them."""
    groups_not_restored: Mapping[str, str] = field(default_factory=dict)
    """By group, why committed offsets that were deleted with a topic are not back."""

    @property
    def lost(self) -> Exported:
        """The exported records that the source never received."""
        return Exported.of(f for m in self.manifests.values() for f in m.files(*LOST))

    @property
    def is_unknown(self) -> bool:
        """Whether a manifest is lacking, or the logs of a partition did not show where they diverge."""
        lacking = not self.manifests or bool(self.unknown)
        return lacking or any(m.is_unknown for m in self.manifests.values())

    def document(self, *, began_ms: int, ended_ms: int) -> dict[str, Any]:
        """Return the record as JSON-ready values; times in ms since the epoch."""
        return {
            "schema_version": SCHEMA_VERSION,
            "flow": self.flow,
            "source_cluster_id": self.source_id,
            "target_cluster_id": self.target_id,
            "began_ms": began_ms,
            "ended_ms": ended_ms,
            "rpo_records": None if self.is_unknown else self.lost.records,
            "rpo_seconds": None if self.is_unknown else self.lost.seconds,
            "audit_run_id": self.audit,
            "audit_aged_out": None if self.audit is None else self.audit_aged_out,
            "groups_not_restored": [
                {"group": group, "reason": reason}
                for group, reason in sorted(self.groups_not_restored.items())
            ],
            "already_mirrors": sorted(self.already_mirrors),
            "topics": [
                {
                    "topic": name,
                    "target_topic": manifest.topic,
                    "topic_id": manifest.topic_id,
                    "created_again": not manifest.stays,
                    "partitions": [_partition(each) for each in manifest.partitions],
                }
                for name, manifest in sorted(self.manifests.items())
            ],
        }


def _partition(each: ExportedPartition) -> dict[str, Any]:
    found = each.divergence
    return {
        "partition": each.partition,
        "log_start": each.log_start,
        "log_end": each.log_end,
        "divergence": None if found.is_unknown else found.kept_until,
        "exported": {
            kind.value: Exported.of(f for f in each.files if f.kind == kind.value).document()
            for kind in Kind
        },
    }


def summary(manifest: Manifest, directory: str) -> Iterable[str]:
    """Yield a line for the operator per partition."""
    for each in manifest.partitions:
        found = each.divergence
        tp = f"{manifest.topic}-{each.partition}"
        if found.is_unknown and found.log_start == found.log_end:
            yield f"{tp}: is empty and ends at {found.log_end}: what it had there is unknown"
        elif found.is_unknown:
            yield f"{tp}: no batch is equal; the source has nothing of the time before {found.other_start}"
        elif found.is_prefix:
            yield f"{tp}: {each.equal_batches} batches are equal, up to the end at {found.log_end}"
        elif found.first_unequal is None:
            yield f"{tp}: has a hole at {found.first_lacking}, where the source has records; ends at {found.log_end}"
        else:
            yield f"{tp}: diverges at {found.kept_until}; ends at {found.log_end}"
        for kind in Kind:
            files = [f for f in each.files if f.kind == kind.value]
            if files:
                total = Exported.of(files)
                unverified = (
                    f"; not verified: the number of records in {total.undecoded_batches} damaged batches"
                    if total.undecoded_batches
                    else ""
                )
                yield (
                    f"{tp}: exported {kind.value}: {total.records} records in {total.batches} batches, "
                    f"{len(files)} files in {directory}{unverified}"
                )


def changed(
    manifest: Manifest,
    cuts: Mapping[int, int],
    *,
    source_id: str,
    target_id: str,
    source_topic_id: str,
) -> str:
    """Return why *manifest* is not that of a log with these *cuts* by partition; "" if it is."""
    if (manifest.cluster_id, manifest.other_cluster_id) != (target_id, source_id):
        return f"is of clusters {manifest.cluster_id} and {manifest.other_cluster_id}"
    if manifest.other_topic_id != source_topic_id:
        return f"compares with topic id {manifest.other_topic_id} of the source"
    ends = {each.partition: each.log_end for each in manifest.partitions}
    if ends != dict(cuts):
        return f"has the log ends {ends}, the logs end at {dict(cuts)}"
    return ""


def not_created_again(plan: Plan, copies: Mapping[str, str], others: Iterable[str]) -> list[str]:
    """Return why topics of *copies* would be deleted and not copied again, a line each.

    *plan* is that of the source's topics of *copies* for a target without topics. *copies* has their names at the
    target, and *others* has those of the source's other mirrored topics.
    """
    found = {**plan.conflicts, **plan.skipped}
    problems = [f"{name}: kmirror does not copy it: {why}" for name, why in found.items()]
    taken = Counter([*copies.values(), *others])
    problems += [
        f"{name}: {taken[copy]} topics of the source have the name {copy} at the target"
        for name, copy in copies.items()
        if taken[copy] > 1
    ]
    return problems


class TargetState(Enum):
    """What a command, or an earlier run of it, has done to a topic of the target; operators read the value."""

    READ_ONLY = "Read-only at {}, with all their records"
    UNKNOWN = "Perhaps read-only at {}, with all their records"
    """The request that makes it read-only failed: it may have been performed."""
    DELETED = "Deleted, or being deleted, at {}, and exported"
    MIRROR = "Read-only mirrors at {}, perhaps not copied to the end"


_STATES = {
    Stage.FENCED: TargetState.READ_ONLY,
    Stage.DELETED: TargetState.DELETED,
    Stage.MIRROR: TargetState.MIRROR,
}


def state_after(before: TargetState | None, stage: Stage) -> TargetState | None:
    """Return the state of a topic of *stage* that was *before*; None for one that nothing has changed.

    A broker that does not know of the deletion yet does not bring the records back.
    """
    found = _STATES.get(stage)
    return before if before is TargetState.DELETED and stage is not Stage.MIRROR else found


def proven_until(pair: TopicPair, partition: int) -> int:
    """Return the offset up to which the promotion of the source proves that both logs have the same records."""
    found = opened(pair.source, pair.target_id)
    return found.ends[partition] if found is not None and partition < len(found.ends) else 0


def end_of_copied(pair: TopicPair, source_end: int) -> int:
    """Return *source_end* if the marks prove that a mirror has no other records below it; else 0."""
    target = pair.target
    is_copy = target is not None and target.copied_topic_id == text_of(pair.source.topic_id)
    return source_end if is_copy else 0


def refusal(
    problem: object,
    target: str,
    states: Mapping[str, TargetState],
    copies: Mapping[str, str],
    exported: Collection[str],
    differing: Collection[str] = (),
    remedy: str = "",
    run: str = "Mend the cause and run",
) -> str:
    """Return the text for the operator: *problem*, what was done at the cluster *target*, and how to go on.

    *states* has the topics that are changed, by the name at the source; *copies* has their names at the target.
    *exported* has the topics that are deleted, or were, and of which only the export directory has the tail and the
    committed offsets. *differing* has the mirrors that are no prefix of the source: no run with this directory compares
    them, and *remedy* is what does. *run* are the words before "the command again".
    """
    text = f"{problem}. {state_at_target(target, {copies[name]: each for name, each in states.items()})}"
    deleted = [name for name, each in states.items() if each is TargetState.DELETED]
    of_directory = sorted({*deleted, *exported})
    if differing:
        return f"{text}. {_differ_again(differing, remedy, of_directory)}"
    if not of_directory:
        return f"{text}. {run} the command again"
    return (
        f"{text}. {run} the command again with this directory: only it has the records and the "
        "committed offsets that were removed. If the cause is in another topic, run it with --topics "
        f"'{'|'.join(map(escaped, of_directory))}' first"
    )


def _differ_again(differing: Collection[str], remedy: str, of_directory: Collection[str]) -> str:
    names = ", ".join(sorted(differing))
    text = f"No run with this directory makes these a prefix of the source again: {names}. {remedy}"
    if of_directory:
        text += ". Keep this directory: only it has the records and the committed offsets that were removed"
    if left := sorted(set(of_directory) - set(differing)):
        text += f". For the others run the command again with it and --topics '{'|'.join(map(escaped, left))}'"
    return text


def state_at_target(target: str, topics: Mapping[str, TargetState]) -> str:
    """Return what a refused command has done to *topics*, or an earlier one; the names are those at *target*."""
    named = {
        each: sorted(name for name, found in topics.items() if found is each)
        for each in TargetState
    }
    texts = [
        f"{each.value.format(target)}: {', '.join(names)}" for each, names in named.items() if names
    ]
    return ". ".join(texts) or f"Nothing was changed at {target}"


def source_damage(name: str, source: str, damaged: Mapping[int, int]) -> str:
    """Return why the topic *name* cannot be copied again; "" if no batch of the source is *damaged*.

    *damaged* has the base offset of the first damaged batch of each partition that has one.
    """
    if not damaged:
        return ""
    where = ", ".join(f"at offset {at} of partition {n}" for n, at in sorted(damaged.items()))
    return (
        f"{name}: the batch of {source} {where} is damaged: a copy would stop there, and the topic is not deleted. "
        "Make a broker with an undamaged replica the leader, or leave the topic out (--topics)"
    )


def unreadable(cluster: str, problem: CorruptMessage) -> str:
    """Return why a log at *cluster* cannot be compared: its headers do not show which batches it has."""
    return (
        f"{cluster}: {problem.message}. Make a broker of {cluster} with an undamaged replica the leader, or leave the "
        "topic out (--topics)"
    )


def no_longer_equal(
    manifest: Manifest,
    source_topic_id: str,
    pairs: Mapping[int, tuple[Batch | None, Batch | None]],
    starts: Mapping[int, int],
) -> str:
    """Return what the source has lost since the comparison of *manifest*; "" if nothing is known to be.

    By partition, *pairs* has what both logs have now at the end of the last batch that was equal. *starts* has the
    source's log starts now. Equal batches are not exported: those that the source has deleted since are only here.
    """
    if manifest.other_topic_id != source_topic_id:
        return f"the source's topic has id {source_topic_id or 'unknown'} now"
    for each in manifest.partitions:
        if each.last_equal_end is None:
            continue
        start = starts[each.partition]
        if start > max(each.log_start, each.other_start):
            return (
                f"partition {each.partition}: the source has deleted its records below {start} since they were "
                "compared. Raise its retention until the copy has ended"
            )
        ours, theirs = pairs.get(each.partition, (None, None))
        same = ours is not None and theirs is not None and ours.equals(theirs)
        if not same or ours is None or ours.next_offset != each.last_equal_end:
            return f"partition {each.partition}: the source no longer has the batch that ends at {each.last_equal_end}"
    return ""
