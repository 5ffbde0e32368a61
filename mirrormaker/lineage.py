"""The lineage check: are the target's records of this source topic, or of an earlier one of the same name? Pure.

A topic that is deleted and created again has another topic id (KIP-516). The target stores the topic id of its source
in the topic setting `SOURCE_TOPIC_ID`; docs/design/mirror.md has the reasons. Offsets and CRCs cannot replace it: the
log of the new topic may start exactly where the target ends, and compaction rewrites CRCs.

In: log ends, both topic ids   Out: a gap with cause RECREATED, or a problem; the name of a copy   Owner: the link, the
plan
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from kclient.mirror_ledger import lineage_topic
from kclient.wire.produce import MIRROR_SOURCE_TOPIC_CONFIG
from kclient.wire.uuids import encode_uuid
from mirrormaker.link_state import Cause, Gap, LogEnds, Problem

SOURCE_TOPIC_ID = MIRROR_SOURCE_TOPIC_CONFIG


def text_of(topic_id: UUID | None) -> str:
    """Return a topic id as Kafka writes it; "" if the source has none."""
    return "" if topic_id is None else encode_uuid(topic_id)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The topic id of the source, and what the target states about its records."""

    source: str = ""
    """The topic id at the source now; "" if the source has no topic ids."""
    copied: str = ""
    """The topic id at the source of the records in the target; "" if the target does not state it."""
    is_proven: bool = True
    """Whether the target is known to be a copy without a common batch: it has the mark, or the topic id."""

    @property
    def is_stated(self) -> bool:
        """Whether the target states the topic id of the source, if the source has one."""
        return self.source in ("", self.copied)

    @property
    def is_interrupted(self) -> bool:
        """Whether the source topic was deleted and created again after the target's records were copied."""
        return "" not in (self.source, self.copied) and self.source != self.copied


def copy_for(
    plain: str, now: str, stated: str | None, *, has_later: bool, is_mirror: bool, begins: bool
) -> str:
    """Return the target topic for the records of the source topic id *now*: *plain*, or its `lineage_topic`.

    *stated* is the topic id that *plain* states, "" without one; None if the topic does not exist. *has_later* is
    whether the lineage topic exists, *is_mirror* whether *plain* is a mirror of the source, *begins* whether the policy
    begins a new lineage.
    """
    later = lineage_topic(plain, now)
    if not now or stated == now:
        return plain
    if has_later:
        return later
    return later if stated and is_mirror and begins else plain


def interruption(lineage: Lineage, ends: LogEnds) -> Gap | None:
    """Return the gap between the records of the earlier topic and those of the new one, if there are two topics."""
    if not lineage.is_interrupted:
        return None
    until = max(ends.target_end, ends.copied_from)
    return Gap(ends.target_end, until, Cause.RECREATED, lineage.copied, lineage.source)


_TRUNCATE = (
    "kmirror truncate exports them and copies the topic again (under the same name; under another one, delete the "
    "target's topic)"
)


def refused(gap: Gap, ends: LogEnds, *, skip: bool) -> Problem | None:
    """Return why the copy cannot continue behind *gap*; None if the policy *skip* allows it.

    Offsets stay the same on both sides, so records of the new topic below the target's end cannot be copied.
    """
    changed = (
        f"topic id {gap.before} became {gap.after}; the target has records up to offset {gap.first}"
    )
    if not skip:
        detail = (
            f"{changed}. {_TRUNCATE}; gap.policy=new-lineage copies it to another topic; gap.policy=skip continues, if "
            "the new log starts there"
        )
    elif ends.copied_from < gap.first:
        detail = (
            f"{changed}, and the new log starts at {ends.starts}. {_TRUNCATE}; gap.policy=new-lineage copies it "
            "to another topic"
        )
    else:
        return None
    return Problem(Cause.RECREATED, detail, gap)


def unproven(lineage: Lineage, ends: LogEnds) -> Problem | None:
    """Return a problem if a target with records has no batch in common with the source, and no proof of its origin."""
    if lineage.is_proven or ends.target_end == 0 or ends.source_last_batch is not None:
        return None
    return Problem(
        Cause.UNPROVEN,
        f"the target ends at offset {ends.target_end}, and the source no longer has the batch before it. If the "
        f"target is a copy, set {SOURCE_TOPIC_ID}={lineage.source} there",
    )
