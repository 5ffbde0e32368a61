"""Promotion: which topics can change their roles, and which logs allow it. Pure.

The state of a topic is in the marks of both clusters (docs/design/mirror-promotion.md has the table and the steps).

In: topics of both clusters, log ends   Out: a `Stage` or a refusal   Owner: the command
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from kclient.types import TopicPartition
from mirrormaker.command_exit import Refused
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.link_state import LogEnds
from mirrormaker.promotion_fence import (
    FenceState,
    Marked,
    fence_state,
    is_mirror,
    mark_removed,
    marked_as,
    states_fence,
)
from mirrormaker.promotion_record import (
    EXCHANGED,
    PRODUCERS_STOPPED,
    Opened,
    mode_of,
    opened,
    stored_promotion,
)
from mirrormaker.topics import MARK, SOURCE_LOST, Topic, TopicPair


class Stage(Enum):
    """How far the promotion of a topic is; operators read the value."""

    MIRRORED = "mirrored"
    """The target is a mirror of the source."""
    FENCED = "fenced"
    """Each is marked as a mirror of the other: no producer can write."""
    PROMOTED = "promoted"
    """The target is writable, and the source is its mirror."""
    OTHER_DIRECTION = "mirror of the other direction"
    """The source is a mirror of the target; no promotion of this direction is known."""


def stages(pairs: Iterable[TopicPair]) -> dict[str, Stage]:
    """Return the stage of each topic, by its name. Raise `Refused` with all reasons."""
    found, reasons = {}, []
    for pair in pairs:
        try:
            found[pair.name] = stage_of(pair)
        except Refused as refusal:
            reasons.append(str(refusal))
    if reasons:
        raise Refused("; ".join(reasons))
    if not found:
        raise Refused("no topic is selected")
    return found


def stage_of(pair: TopicPair) -> Stage:
    """Return the stage of *pair*. Raise `Refused`."""
    name, source, target = pair.name, pair.source, pair.target
    fenced = source.overrides.get(MARK, "")
    if fenced and marked_as(source) is Marked.UNKNOWN:
        raise Refused(f"{name}: {Marked.UNKNOWN.value.format(fenced)}")
    is_unmarked = target is None or not target.overrides.get(MARK)
    if fenced == pair.target_id and is_unmarked and (name == pair.copy or is_mirror(source)):
        return _stage_of_a_mirror(pair)
    if target is None:
        raise Refused(f"{name}: {pair.copy} does not exist at the target; run kmirror first")
    if name != pair.copy:
        raise Refused(
            f"{name}: the target's name is {pair.copy}; roles can be exchanged only under one name "
            "(IdentityReplicationPolicy). --source-lost opens the target alone"
        )
    if target.partitions != source.partitions:
        raise Refused(
            f"{name}: {source.partitions} partitions at the source, {target.partitions} at the target"
        )
    if fenced not in ("", pair.target_id):
        raise Refused(f"{name}: the source's topic is itself a mirror, of cluster {fenced}")
    marked = target.overrides.get(MARK, "")
    if not marked:
        return _stage_without_marks(name, source, target, pair)
    if marked != pair.source_id:
        raise Refused(f"{name}: the target's topic is a mirror of cluster {marked}")
    copied, now = target.overrides.get(SOURCE_TOPIC_ID, ""), text_of(source.topic_id)
    if now and not copied:
        raise Refused(
            f"{name}: the target's topic is marked, and does not state the topic id of the source ({now}): it may have "
            "records that the source lacks. A failback that was begun is continued with kmirror failback --execute; "
            "for other mirrors kmirror run states the id"
        )
    if now and copied != now:
        raise Refused(
            f"{name}: the target holds records of topic id {copied}, the source has {now}: it was created again"
        )
    return Stage.FENCED if fenced else Stage.MIRRORED


def _stage_of_a_mirror(pair: TopicPair) -> Stage:
    """Return the stage of a topic that is a mirror of the target, which accepts producers. Raise `Refused`."""
    name, source, target = pair.name, pair.source, pair.target
    if target is not None and MARK in target.overrides:
        return Stage.PROMOTED
    found = None if target is None else opened(target, pair.source_id)
    kind = marked_as(source)
    if target is None and kind is Marked.MIRROR:
        return Stage.OTHER_DIRECTION
    if target is None:
        raise Refused(
            f"{name}: {pair.copy} does not exist at the target, and the source may have a fence: kmirror promote "
            "--abort shows how it is removed"
        )
    # A promotion sets the mark to "", so this one was never set, or a tool removed it. In the second case the topic id
    # is still there, or the source has a fence.
    is_known = states_fence(source)
    has_trace = SOURCE_TOPIC_ID in target.overrides or found is not None
    if kind in (Marked.FENCE, Marked.FAILBACK) or (has_trace and not is_known):
        raise Refused(f"{name}: {mark_removed(pair.source_id)}. Then run the command again")
    return Stage.OTHER_DIRECTION if found is None else Stage.PROMOTED


def _stage_without_marks(name: str, source: Topic, target: Topic, pair: TopicPair) -> Stage:
    """Return the stage of a topic that accepts producers at both clusters. Raise `Refused`."""
    found = opened(target, pair.source_id)
    back = opened(source, pair.target_id)
    if found is not None and back is not None and back.began_ms > found.began_ms:
        raise Refused(
            f"{name}: the source was promoted after the target was. "
            f"{way_back(target, source, 'target', 'this direction')}. --topics leaves topics out"
        )
    if found is not None and found.mode == PRODUCERS_STOPPED:
        return Stage.PROMOTED
    reasons = {
        EXCHANGED: "the target was promoted, and the source has lost its mark since, so it may accept producers. Stop "
        "them",
        SOURCE_LOST: "the target was promoted without the source",
    }
    if found is None or found.mode not in reasons:
        raise Refused(f"{name}: the target's topic is not marked as a mirror")
    way = way_back(source, target, "source", "the other direction")
    raise Refused(f"{name}: {reasons[found.mode]}. {way}. --topics leaves topics out")


def way_back(lost: Topic, promoted: Topic, where: str, direction: str) -> str:
    """Return how *lost*, at the cluster *where*, becomes the mirror of *promoted* again, by a command of *direction*.

    kmirror failback refuses what `failback_stage.stage_of` does.
    """
    if lost.compacted or promoted.compacted:
        why = "The topic is compacted"
    elif promoted.copied_topic_id == "" or promoted.copied_topic_id != text_of(lost.topic_id):
        why = f"The topic at the {where} does not have the topic id that its copy states"
    else:
        exports = f"kmirror failback of {direction} then exports what only the {where} has"
        return f"{exports}, and makes the {where} the mirror"
    return (
        f"{why}, so kmirror failback refuses it: consume what only the {where} has, delete the topic at the {where}, "
        f"and kmirror run of {direction} copies it again"
    )


def was_created_again(source: Topic, target: Topic) -> bool:
    """Return whether *source* is another topic than that of which *target*'s records were copied."""
    return "" not in (target.copied_topic_id, text_of(source.topic_id)) and (
        target.copied_topic_id != text_of(source.topic_id)
    )


@dataclass(frozen=True, slots=True)
class LostSource:
    """The target's topics of a source that is lost."""

    source_id: str
    mirrors: list[str]
    """Those that are still its mirrors."""
    opened: Mapping[str, Opened]
    """Those that were promoted before, by name: without it, or with it until it was lost."""

    @property
    def mode(self) -> str:
        """The mode of the record."""
        modes = [found.mode for found in self.opened.values()]
        return mode_of([SOURCE_LOST, *modes] if self.mirrors else modes)


def without_source(
    topics: Mapping[str, Topic], selected: Iterable[str], source_id: str | None
) -> LostSource:
    """Return the target topics of *selected* that come from *source_id*; from the only source, if it is None.

    Raise `Refused` if there are none, or if several sources are possible.
    """
    chosen = {name: topics[name] for name in sorted(selected) if name in topics}
    marks = {name: topic.overrides.get(MARK, "") for name, topic in chosen.items()}
    before = {name: stored_promotion(topic) for name, topic in chosen.items()}
    done = {name: found for name, found in before.items() if found is not None and not marks[name]}
    sources = sorted({mark for mark in marks.values() if mark})
    sources = sources or sorted({each.source_id for each in done.values()})
    if source_id is None and len(sources) > 1:
        raise Refused(
            f"the target has mirrors of several clusters ({', '.join(sources)}): name one with --source-id"
        )
    lost = source_id if source_id is not None else "".join(sources)
    mirrors = [name for name, mark in marks.items() if mark and mark == lost]
    later = [name for name in mirrors if marked_as(chosen[name]) is Marked.UNKNOWN]
    if later:
        raise Refused(f"{', '.join(later)}: {Marked.UNKNOWN.value.format(lost)}")
    done = {name: found for name, found in done.items() if found.source_id == lost}
    if not mirrors and not done:
        of = f" of cluster {source_id}" if source_id else ""
        raise Refused(f"the target has no mirror topics{of} to promote")
    return LostSource(lost, mirrors, done)


def changed_by_another(
    before: Mapping[str, str], now: Mapping[str, str], *, is_taken_back: bool, is_refused: bool
) -> str:
    """Return how another command has changed a fenced mirror, from the settings *before* to *now*; "" if none has.

    *is_taken_back*: this command lets it take back that its target may be open. *is_refused*: a broker refuses that.
    """
    if now.get(MARK) != before.get(MARK):
        return "its mark was changed meanwhile"
    was, state = fence_state(before), fence_state(now)
    expected: set[FenceState | None] = (
        {FenceState.ABORTING} if is_taken_back and not is_refused else {was}
    )
    if is_taken_back and was not in (FenceState.OPENING, FenceState.ABORTING):
        expected.add(was)  # it could not be read when it was to be taken back
    if state in expected:
        return ""
    reasons = {
        FenceState.OPENING: "a promotion of it goes on",
        FenceState.OPENED: "another command has promoted it meanwhile",
        FenceState.ABORTING: "--abort, or an undo, has begun to remove its fence",
        FenceState.UNKNOWN: "kmirror of a later release has changed its fence",
    }
    return reasons.get(state, "its fence was changed meanwhile") if state else "its fence is gone"


def changed_partitions(topics: Mapping[str, Topic], now: Mapping[str, int]) -> str:
    """Return which topics have another number of partitions *now* than when they were read; "" if none has."""
    changed = [
        f"{name} has {count} partitions at the source now, and had {topics[name].partitions}"
        for name, count in now.items()
        if count != topics[name].partitions
    ]
    return "; ".join(changed)


def not_at_the_cut(cuts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> str:
    """Return which partitions of the target do not end at the cut of the source; "" if all do."""
    wrong = [
        f"{tp} ends at {ends[tp]}, not at {cut}" for tp, cut in cuts.items() if ends[tp] != cut
    ]
    if any(ends[tp] == 0 < cut for tp, cut in cuts.items()):
        wrong.append(
            "an end of 0 is that of a log that was never written: if the source has deleted all records of the "
            "partition, there is none to copy. Write one to it at the source, or leave the topic out (--topics)"
        )
    return "; ".join(wrong)


def emptied(tp: TopicPartition, ends: LogEnds) -> str:
    """Return that the target has deleted all that it had of *tp*, and the source has some of it; "" if not."""
    first, until = ends.lacking
    if first == until or ends.target_start != ends.target_end:
        return ""
    return (
        f"{tp}: the target has deleted all that it had; it lacks {until - first} offsets from {first} on, which the "
        "source has"
    )


def lacked(ends: LogEnds, *, compacted: bool) -> int | None:
    """Return how many offsets the source has below the target's log start; None if that is unknown.

    The log start of a compacted topic is no record's: its cleaner may have removed what was there.
    """
    first, until = ends.lacking
    return None if compacted and first < until else until - first


def no_fence(
    source: str, cuts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> str:
    """Return which partitions of the fenced *source* do not end at their cut any more; "" if all do."""
    wrong = [
        f"{tp} ends at {ends[tp]}, not at its cut {cut}"
        for tp, cut in cuts.items()
        if ends[tp] != cut
    ]
    if not wrong:
        return ""
    return (
        f"the fence of {source} was removed meanwhile, or another command has opened the target: "
        f"{'; '.join(wrong)}"
    )
