"""What a promotion found and did: in a setting of each promoted topic, and as the record of the command. Pure.

A topic gets the setting (`Opened`) in the change that removes its mark. So a command that runs again can print the
record of a promotion that was killed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from kclient.types import TopicPartition
from mirrormaker.link_state import LogEnds
from mirrormaker.prefix import mismatch, target_ahead
from mirrormaker.topics import MARK, PROMOTION, SOURCE_LOST, Topic

SCHEMA_VERSION = 1
EXCHANGED = "exchanged"

PRODUCERS_STOPPED = "producers stopped"
"""The modes of a promotion with both clusters, as the record has them. The other one is `SOURCE_LOST`."""

LONGEST_VALUE = 32_767
"""Bytes of a setting's value in a request."""

_MEMBERS = "groups_with_members"
"""Field of `PROMOTION` and of the record."""

_LACKS = "target_lacks"
"""Field of `PROMOTION` and of the record."""

_AGED_OUT = "audit_aged_out"
"""Field of `PROMOTION` and of the record."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Consumer groups with committed offsets of the promoted partitions."""

    copied: int
    """Groups of which the target has the offsets."""
    with_members: tuple[str, ...] | None
    """Those that were not copied, because they had members at the target; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What a promotion found when it made a topic writable; the setting `PROMOTION` of the topic at the target."""

    source_id: str
    mode: str
    began_ms: int
    ends: tuple[int, ...]
    """By partition, the target's log end offset before it became writable."""
    timestamps: tuple[int | None, ...]
    """By partition, `PromotedPartition.last_timestamp_ms`."""
    audit: str | None = None
    groups: Groups | None = None
    lacks: tuple[int | None, ...] | None = None
    """By partition, `PromotedPartition.lacks`; None if an earlier release did not state it."""
    aged_out: int = 0
    """`Proof.aged_out` of the audit, which is of all topics of that command."""

    def text(self) -> str:
        """Return the value of the setting.

        Of a value that is too long for a request the names of groups are left out, then the timestamps with what the
        target lacks. It is "" if it is still too long.
        """
        fields: dict[str, Any] = {
            "source": self.source_id,
            "mode": self.mode,
            "began_ms": self.began_ms,
            "ends": self.ends,
            "timestamps": self.timestamps,
            _LACKS: self.lacks,
            "audit": self.audit,
            _AGED_OUT: self.aged_out,
            "groups": None if self.groups is None else self.groups.copied,
            _MEMBERS: None if self.groups is None else self.groups.with_members,
        }
        for without in ((), (_MEMBERS,), (_MEMBERS, "timestamps", _LACKS)):
            kept = {name: each for name, each in fields.items() if name not in without}
            text = json.dumps(kept, separators=(",", ":"))
            if len(text.encode()) <= LONGEST_VALUE:
                return text
        return ""

    def partitions(self, topic: str) -> list[PromotedPartition]:
        """Return the partitions of *topic*, without the source's log ends."""
        lacks = self.lacks or (None,) * len(self.ends)
        return [
            PromotedPartition(TopicPartition(topic, n), end, None, self.timestamps[n], lacks[n])
            for n, end in enumerate(self.ends)
        ]


def stored_promotion(topic: Topic) -> Opened | None:
    """Return what the last promotion of *topic* found; None if the topic does not state it, or in another form."""
    try:
        fields: Any = json.loads(topic.overrides.get(PROMOTION, ""))
        ends = tuple(int(each) for each in fields["ends"])
        stamps = fields.get("timestamps") or [None] * len(ends)
        timestamps = tuple(None if each is None else int(each) for each in stamps)
        counts = fields.get(_LACKS)
        lacks = (
            None
            if counts is None
            else tuple(None if each is None else int(each) for each in counts)
        )
        if len(timestamps) != len(ends) or len(lacks or ends) != len(ends):
            return None
        audit, copied, members = fields["audit"], fields["groups"], fields.get(_MEMBERS)
        names = None if members is None else tuple(str(each) for each in members)
        return Opened(
            str(fields["source"]),
            str(fields["mode"]),
            int(fields["began_ms"]),
            ends,
            timestamps,
            None if audit is None else str(audit),
            None if copied is None else Groups(int(copied), names),
            lacks,
            int(fields.get(_AGED_OUT, 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def opened(topic: Topic, source_id: str) -> Opened | None:
    """Return what the promotion of *topic*, a mirror of *source_id* before, found; None if it is a mirror now."""
    found = stored_promotion(topic)
    if found is None or topic.overrides.get(MARK, "") or found.source_id != source_id:
        return None
    return found


@dataclass(frozen=True, slots=True)
class PromotedPartition:
    """A partition that became writable at the target."""

    tp: TopicPartition
    """The partition at the target."""
    end: int
    """The target's log end offset before it became writable."""
    source_end: int | None = None
    """The source's log end offset after that; None if it was not read."""
    last_timestamp_ms: int | None = None
    """The largest timestamp of a copied record; None if it was not read, or without records."""
    lacks: int | None = None
    """Offsets that the source had below the target's log start; None if that is unknown."""

    @property
    def left_behind(self) -> int | None:
        """Offsets of the source that the target lacks; None if the source was not read."""
        return None if self.source_end is None else max(0, self.source_end - self.end)


@dataclass(frozen=True, slots=True)
class PromotionReport:
    """What a promotion did."""

    flow: str
    source_id: str | None
    target_id: str
    mode: str
    """``exchanged``, ``producers stopped`` or ``source lost``."""
    partitions: tuple[PromotedPartition, ...]
    audit: str | None = None
    """The run id of the audit that proved every record that both logs had; None without one.

    Several are separated by commas.
    """
    groups: Groups | None = None
    """None if they were left out."""
    began_ms: int = 0
    aged_out: int = 0
    """The sum of `Proof.aged_out` of the audits."""

    def joined(
        self, earlier: Iterable[Opened], partitions: Iterable[PromotedPartition]
    ) -> PromotionReport:
        """Return the record of this command and of *earlier* commands, which have opened *partitions*.

        A run id is stated only if an audit proved each part. The copied groups are the largest number: each command
        copies all groups of the topics that it has not opened yet. Those with members are all that any command names.
        """
        each = list(earlier)
        audits = [found.audit for found in each] + [self.audit] * bool(self.partitions)
        ids = dict.fromkeys(audits)
        aged_out = {found.audit: found.aged_out for found in each}
        if self.partitions:
            aged_out[self.audit] = self.aged_out
        groups = [
            one for one in (self.groups, *(found.groups for found in each)) if one is not None
        ]
        return replace(
            self,
            partitions=(*self.partitions, *partitions),
            audit=None if None in ids else ",".join(str(run_id) for run_id in ids),
            groups=_together(groups),
            began_ms=min((self.began_ms, *(found.began_ms for found in each))),
            aged_out=sum(aged_out.values()),
        )

    @property
    def left_behind(self) -> int | None:
        """Offsets of the source that the target lacks; None if the source was not read."""
        each = [partition.left_behind for partition in self.partitions]
        known = [count for count in each if count is not None]
        return sum(known) if len(known) == len(each) else None

    @property
    def lacks(self) -> int | None:
        """Offsets that the source had below the target's log starts; None if a partition's are unknown."""
        each = [partition.lacks for partition in self.partitions]
        known = [count for count in each if count is not None]
        return sum(known) if len(known) == len(each) else None

    @property
    def known_left_behind(self) -> int:
        """Offsets of the source that the target lacks, of the partitions of which the source was read."""
        return sum(each.left_behind or 0 for each in self.partitions)

    @property
    def unread(self) -> int:
        """Partitions of which the end of the source's own records is unknown."""
        return sum(each.source_end is None for each in self.partitions)

    def document(self, *, ended_ms: int) -> dict[str, Any]:
        """Return the record as JSON-ready values; times in ms since the epoch."""
        return {
            "schema_version": SCHEMA_VERSION,
            "flow": self.flow,
            "mode": self.mode,
            "source_cluster_id": self.source_id,
            "target_cluster_id": self.target_id,
            "began_ms": self.began_ms,
            "ended_ms": ended_ms,
            "rpo_records": self.left_behind,
            _LACKS: self.lacks,
            "audit_run_id": self.audit,
            _AGED_OUT: None if self.audit is None else self.aged_out,
            "groups": None if self.groups is None else self.groups.copied,
            _MEMBERS: _listed(self.groups),
            "partitions": [
                {
                    "topic": each.tp.topic,
                    "partition": each.tp.partition,
                    "end": each.end,
                    "source_end": each.source_end,
                    "rpo_records": each.left_behind,
                    "last_timestamp_ms": each.last_timestamp_ms,
                    _LACKS: each.lacks,
                }
                for each in self.partitions
            ],
        }


def _together(groups: Collection[Groups]) -> Groups | None:
    """Return the groups of several commands; None without any."""
    if not groups:
        return None
    names = [each.with_members for each in groups]
    known = sorted({name for each in names for name in each or ()})
    copied = max(each.copied for each in groups)
    return Groups(copied, None if None in names else tuple(known))


def _listed(groups: Groups | None) -> list[str] | None:
    return None if groups is None or groups.with_members is None else list(groups.with_members)


def mode_of(modes: Collection[str]) -> str:
    """Return the mode of the record of topics with these *modes*, at least one: that which proves least."""
    least = [SOURCE_LOST, PRODUCERS_STOPPED, EXCHANGED]
    return min(modes, key=lambda mode: least.index(mode) if mode in least else -1)


def end_without_copies(
    cut: int, end: int, copied_back: LogEnds | None, *, compacted: bool
) -> int | None:
    """Return where the source's own records end, if its log ended at *cut* and ends at *end* now; None if unknown.

    Records behind the cut may be copies of the target's: the source is its mirror since the promotion. *copied_back*
    compares the logs in this direction. If the source's log is a prefix of the target's, nothing of it was left behind.
    Otherwise no mirror appended to it, and everything behind the cut is its own; but batches of a *compacted* topic may
    differ without that.
    """
    if end <= cut:
        return end
    if copied_back is None or copied_back.problem is not None or copied_back.target_end < end:
        return None
    if target_ahead(copied_back) is not None:
        return end
    if None in (copied_back.source_last_batch, copied_back.target_last_batch):
        return None
    problem = mismatch(copied_back, compacted=False)
    if problem is None:
        return cut
    return None if compacted else end
