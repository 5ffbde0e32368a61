"""Decides which committed offsets of a consumer group to commit at the target. Pure.

An offset is copied with its metadata: as it is where offsets are the same on both sides, else `translated`. `place`
clamps it to the target's log end, and never raises it. `decide` applies the rules of MirrorMaker 2: a group with
members at the target is not changed, and no offset there moves backwards. docs/design/mirror-groups.md has the table
of cases.

All partitions are the target's: the caller renames them.

In: committed offsets of both sides, the target's logs, the group's state there   Out: a `Decision`   Owner: the group
mirror
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.errors import KafkaError, UnknownMemberId
from mirrormaker.offset_pairs import Translate
from mirrormaker.patterns import compiled
from mirrormaker.settings import LinkSettings

IDLE_STATES = frozenset({"Empty", "Dead"})
"""States of a group without members; Dead is also that of a group that does not exist."""

MOST_NAMED = 3
"""Partitions that one report names; it counts the others."""

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True)
class LogRange:
    """The offsets of a log: from the log start to the high watermark."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The offsets to commit at the target for one group, and what to report about it.

    *clamped* are partitions with the target's log end as their offset, or with none because the target's log is empty.
    *below_start* are those with an offset below the target's log start. Both hold (source's offset, log's end or
    start), for every offset that the target does not have already.
    """

    commits: Offsets = field(default_factory=dict)
    clamped: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    below_start: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    members_state: str = ""
    """The state of the group at the target, if it has members there: then nothing is committed."""
    rejected: str = ""
    """Why the target's coordinator rejected commits, if it did."""

    def after_commit(self, answers: Mapping[TopicPartition, KafkaError | None]) -> Decision:
        """Return the decision as the coordinator's *answers* to its commits leave it.

        UNKNOWN_MEMBER_ID to a commit without a member means that the group got members since its state was read.
        """
        failed = {tp: problem for tp, problem in answers.items() if problem is not None}
        if not failed:
            return self
        if all(isinstance(problem, UnknownMemberId) for problem in failed.values()):
            return Decision(members_state="since now")
        tp = min(failed)
        return replace(self, rejected=f"{len(failed)} offsets were rejected, {tp}: {failed[tp]}")

    @property
    def kind(self) -> tuple[object, ...]:
        """What distinguishes one report from another: not the numbers, which change all the time."""
        return self.members_state, frozenset(self.clamped), frozenset(self.below_start)

    def __str__(self) -> str:
        """Return the report for the operator; "" if every offset is copied as it is."""
        if self.members_state:
            return f"has members at the target ({self.members_state}): its offsets there are not changed"
        parts = []
        if self.clamped:
            text = _named(self.clamped, "committed {0} at the source, the target's log ends at {1}")
            parts.append(f"clamped to the target's log end: {text}")
        if self.below_start:
            text = _named(
                self.below_start, "committed {0} at the source, the target's log starts at {1}"
            )
            parts.append(f"not in the target's log, auto.offset.reset will decide: {text}")
        return "; ".join(parts)


class GroupSelection:
    """Selects the groups of the source to copy."""

    def __init__(self, settings: LinkSettings) -> None:
        self._groups = compiled(settings.groups)
        self._exclude = compiled(settings.groups_exclude)

    def wants(self, group: str) -> bool:
        """Return whether the offsets of *group* are to be copied."""
        return not self._exclude.fullmatch(group) and self._groups.fullmatch(group) is not None


def translated(source: Offsets, translate: Translate) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return *source* as offsets of the target, without those that *translate* does not know."""
    found = {}
    for tp, committed in source.items():
        at = translate(tp, committed.offset)
        if at is not None:
            found[tp] = replace(committed, offset=at.offset)
    return found


def place(committed: OffsetAndMetadata, log: LogRange) -> OffsetAndMetadata | None:
    """Return the position at the target for a commit of the source; None while the target's log has no record.

    The leader epoch is left out: it is an epoch of the source, and a consumer would compare it with the target's
    (KIP-320).
    """
    if committed.offset > log.end and log.start >= log.end:
        return None
    return OffsetAndMetadata(min(committed.offset, log.end), committed.metadata)


def decide(
    source: Offsets, target: Offsets, logs: Mapping[TopicPartition, LogRange], state: str
) -> Decision:
    """Return what to commit for a group in *state* at the target. Partitions without a log in *logs* are left alone."""
    if state not in IDLE_STATES:
        return Decision(members_state=state or "unknown")
    commits: dict[TopicPartition, OffsetAndMetadata] = {}
    clamped: dict[TopicPartition, tuple[int, int]] = {}
    below: dict[TopicPartition, tuple[int, int]] = {}
    for tp, committed in source.items():
        log = logs.get(tp)
        present = target.get(tp)
        if log is None or (present is not None and present.offset >= committed.offset):
            continue
        placed = place(committed, log)
        if committed.offset > log.end:
            clamped[tp] = committed.offset, log.end
        elif committed.offset < log.start:
            below[tp] = committed.offset, log.start
        if placed is not None and (present is None or present.offset < placed.offset):
            commits[tp] = placed
    return Decision(commits, clamped, below)


def _named(found: Mapping[TopicPartition, tuple[int, int]], text: str) -> str:
    """Name some partitions, those that differ most first, and count the others."""
    ordered = sorted(found, key=lambda tp: (-abs(found[tp][0] - found[tp][1]), tp))
    named = [f"{tp} ({text.format(*found[tp])})" for tp in ordered[:MOST_NAMED]]
    left = len(ordered) - len(named)
    return ", ".join(named) + (f" and {left} more" if left else "")
