"""Promotion: which topics can change their roles, and the record of what was done. Pure.

The state of a topic is in the marks of both clusters (docs/design/mirror-promotion.md has the table and the steps).
What a promotion found is a setting of the promoted topic, too (`Opened`): it is written in the change that removes the
mark. So a command that runs again can print the record of a promotion that was killed.

In: topics of both clusters, log ends   Out: a `Stage` or a refusal, the record   Owner: the command
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from kclient.errors import KafkaError
from kclient.types import TopicPartition
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.link_state import LogEnds
from mirrormaker.patterns import escaped
from mirrormaker.prefix import mismatch, target_ahead
from mirrormaker.topics import (
    CREATE_TIME,
    MARK,
    MARKS,
    PATH,
    PROMOTION,
    SOURCE_LOST,
    Topic,
    TopicPair,
    mark_of,
    promotion_fields,
)

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
_BEFORE = "before"
"""Field of `PROMOTION` at a fenced source: the marks that it had before."""
_HAD_CREATE_TIME = "create_time"
"""Field of `PROMOTION` at a fenced source: whether it had `CREATE_TIME` before."""
_FENCE = "fence"
"""Field of `PROMOTION` at a fenced source: a value of `FenceState`."""
_OF_THE_FENCE = (_BEFORE, _HAD_CREATE_TIME, _FENCE)


class FenceState(Enum):
    """How far the promotion is that fenced a source, as the source itself states it."""

    SET = "set"
    """It has not begun to open the target."""
    OPENING = "opening"
    """The target has every record up to the cut, and may be open."""
    ABORTING = "aborting"
    """As `OPENING`, but no command that looks at it opens the target: --abort, or an undo, will remove the fence."""
    OPENED = "opened"
    """The target was opened: the source is its mirror."""


class Marked(Enum):
    """What the mark of a topic is, by its own settings; operators read the value, with the cluster id of the mark."""

    FENCE = "it has the fence of a promotion to cluster {}"
    """That promotion has not begun to open the target."""
    OPENING = "a promotion had begun to open it at cluster {}, which may accept producers"
    FAILBACK = "it states no topic id of cluster {}: a failback may have begun. kmirror failback --execute continues it"
    MIRROR = "it seems to be an ordinary mirror of cluster {}"


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


class Refused(Exception):
    """The promotion cannot go on; the text has the reason and what to do."""


def stage_of(pair: TopicPair) -> Stage:
    """Return the stage of *pair*. Raise `Refused`."""
    name, source, target = pair.name, pair.source, pair.target
    fenced = source.overrides.get(MARK, "")
    is_unmarked = target is None or not target.overrides.get(MARK)
    if fenced == pair.target_id and is_unmarked and (name == pair.copy or _is_mirror(source)):
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


def _is_mirror(source: Topic) -> bool:
    return marked_as(source) is Marked.MIRROR


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
    is_known = _FENCE in promotion_fields(source)
    has_trace = SOURCE_TOPIC_ID in target.overrides or found is not None
    if kind in (Marked.FENCE, Marked.FAILBACK) or (has_trace and not is_known):
        raise Refused(f"{name}: {_mark_removed(pair.source_id)}. Then run the command again")
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


def _mark_removed(source_id: str) -> str:
    return (
        f"the target's topic has lost its mark, {MARK}. If the target was promoted, or producers write to it, set it "
        f'to the empty string ("") there. Only if not, set it to {source_id}'
    )


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


def fence_of(source: Topic, target_id: str, topic_id: str) -> dict[str, str | None]:
    """Return the configs that make *source* a mirror of *topic_id* at *target_id* (None: to reset), in one change.

    Marks that are there already, of an earlier promotion of *source*, are stored in `PROMOTION`: the fence may be
    removed by another process. `marked_as` reads what else is stored.
    """
    there = source.overrides
    before = {name: there[name] for name in MARKS if name in there}
    fields = {_BEFORE: before, _HAD_CREATE_TIME: _has_create_time(source)}
    return {
        PATH: None,
        **mark_of(target_id, topic_id, ()),
        PROMOTION: _with_fence(source, FenceState.SET, fields),
    }


def _with_fence(source: Topic, state: FenceState, fields: Mapping[str, Any]) -> str:
    """Return the value of `PROMOTION` with these *fields* of a fence, without the others if it is too long."""
    own = {**fields, _FENCE: state.value}
    text = json.dumps({**_without_fence(source), **own}, separators=(",", ":"))
    return text if len(text.encode()) <= LONGEST_VALUE else json.dumps(own, separators=(",", ":"))


def _without_fence(source: Topic) -> dict[str, Any]:
    fields = promotion_fields(source)
    return {name: value for name, value in fields.items() if name not in _OF_THE_FENCE}


def fence_is_opening(source: Topic) -> dict[str, str | None]:
    """Return the configs with which a fenced *source* states that the target may be open from now on."""
    return _in_the_midst(source, FenceState.OPENING)


def fence_is_aborting(source: Topic) -> dict[str, str | None]:
    """Return the configs with which a fenced *source* takes back that it is `OPENING`; none if it does not state it."""
    if fence_state(source.overrides) is not FenceState.OPENING:
        return {}
    return _in_the_midst(source, FenceState.ABORTING)


def _in_the_midst(source: Topic, state: FenceState) -> dict[str, str | None]:
    fields = promotion_fields(source)
    kept = {name: fields[name] for name in (_BEFORE, _HAD_CREATE_TIME) if name in fields}
    return {PROMOTION: _with_fence(source, state, kept)}


def fence_is_over(source: Topic) -> dict[str, str | None]:
    """Return the configs with which the mirror *source* states that the target was opened; none if that is known.

    The marks from before the fence are not needed any more.
    """
    if _BEFORE not in promotion_fields(source) and _is_mirror(source):
        return {}
    return {PROMOTION: _with_fence(source, FenceState.OPENED, {})}


def without_fence_after_failback(copy: Topic, compared: Mapping[str, str]) -> dict[str, str]:
    """Return *compared* (`compared_with`), or what *copy* has in its place, with the statement of `FenceState.OPENED`.

    A failback ends with *copy* as the mirror of an open topic. It may have had the fence of a promotion before.
    """
    stored = replace(copy, overrides={**copy.overrides, **compared})
    return {PROMOTION: _with_fence(stored, FenceState.OPENED, {})}


def marks_before_the_fence(source: Topic) -> dict[str, str | None]:
    """Return the configs that remove the fence from *source* (None: to reset): the marks are those from before it."""
    before = promotion_fields(source).get(_BEFORE)
    if not isinstance(before, dict) or not before.keys() <= {*MARKS}:
        before = {}
    marks = {name: before.get(name) for name in MARKS}
    if not {*_OF_THE_FENCE} & promotion_fields(source).keys():
        return marks
    fields = _without_fence(source)
    return marks | {PROMOTION: json.dumps(fields, separators=(",", ":")) if fields else None}


def was_created_again(source: Topic, target: Topic) -> bool:
    """Return whether *source* is another topic than that of which *target*'s records were copied."""
    return "" not in (target.copied_topic_id, text_of(source.topic_id)) and (
        target.copied_topic_id != text_of(source.topic_id)
    )


def _has_create_time(topic: Topic) -> bool:
    return all(topic.overrides.get(name) == value for name, value in CREATE_TIME.items())


def marked_as(topic: Topic) -> Marked:
    """Return what the mark of *topic* is, by its own settings.

    kmirror sets `CREATE_TIME` on each topic that it copies to, and a fence does not. A fence of an earlier release does
    not state whether the topic had it before, nor does one that a broker stored without `PROMOTION`. Then it counts as
    set by kmirror. docs/design/mirror-promotion.md has the table.
    """
    state = fence_state(topic.overrides)
    had_create_time = promotion_fields(topic).get(_HAD_CREATE_TIME) is True
    if state is FenceState.OPENED or (_has_create_time(topic) and not had_create_time):
        return Marked.MIRROR
    if not topic.copied_topic_id:
        return Marked.FAILBACK
    return Marked.OPENING if state in (FenceState.OPENING, FenceState.ABORTING) else Marked.FENCE


def lost_target(names: Iterable[str], target_id: str, back: str) -> str:
    """Return the command that opens *names*, marked as mirrors of *target_id*, at their source; *back* is its flow.

    Without --topics it opens each mirror there, and without --source-id it is refused if they are of several clusters.
    """
    return (
        f"kmirror promote FILE --flow '{back}' --source-lost --topics '{'|'.join(map(escaped, names))}' --source-id "
        f"{target_id} ({back} has to be enabled in FILE)"
    )


def marked_by(
    topics: Mapping[str, Topic], target_id: str, back: str
) -> tuple[list[str], dict[str, str]]:
    """Return which of *topics*, marked as mirrors of *target_id*, have a fence. Raise `Refused` if none is marked.

    The second result has the others, with the reason. *back* is the flow of the other direction.
    """
    found = {
        name: topic for name, topic in topics.items() if topic.overrides.get(MARK) == target_id
    }
    if not found:
        raise Refused(
            f"no topic is marked as a mirror of the cluster {target_id}: {marks_of(topics)}"
        )
    stay = {
        name: _no_fence(kind, [name], target_id, back)
        for name, topic in found.items()
        if (kind := marked_as(topic)) is not Marked.FENCE
    }
    return [name for name in found if name not in stay], stay


def _no_fence(kind: Marked, names: Sequence[str], mark: str, back: str) -> str:
    """Return why --abort does not remove the *mark* of *names*, which are no `FENCE`, by their own settings."""
    way = lost_target(names, mark, back)
    return (
        f"{kind.value.format(mark)}. If producers are to write here, {way} opens {', '.join(names)}"
    )


def without_target(topics: Mapping[str, Topic], back: str) -> str:
    """Return how the marked *topics* of a source accept producers again while the target does not answer.

    *back* is the flow of the other direction.
    """
    by_mark: dict[tuple[Marked, str], list[str]] = {}
    for name, topic in topics.items():
        by_mark.setdefault((marked_as(topic), topic.overrides.get(MARK, "")), []).append(name)
    fences = ", ".join(
        name for (kind, _), names in by_mark.items() if kind is Marked.FENCE for name in names
    )
    ways = [
        f"{', '.join(names)}: {_no_fence(kind, names, mark, back)}"
        for (kind, mark), names in by_mark.items()
        if kind is not Marked.FENCE
    ]
    if fences:
        ways.insert(
            0,
            "If no producer wrote there, --target-id ID opens those of these topics that are marked as mirrors of the "
            f"cluster ID: {fences}",
        )
    return ". ".join(ways)


def marks_of(topics: Mapping[str, Topic]) -> str:
    """Return the topics and the ids of the clusters that they are marked as mirrors of, for the operator."""
    return ", ".join(f"{name} ({topic.overrides.get(MARK)})" for name, topic in topics.items())


def fenced(
    source: Mapping[str, Topic],
    target: Mapping[str, Topic],
    unreadable: Mapping[str, KafkaError],
    *,
    source_id: str,
    target_id: str,
    back: str,
) -> tuple[list[str], dict[str, str]]:
    """Return the topics of *source* that a promotion has fenced and not opened at the target.

    The second result has, with the reason, those of which that is unknown. The target's id decides it for those of
    `Marked.FENCE`. *unreadable* are topics of the target with configs that cannot be read. *back* is the flow of the
    other direction.
    """
    found, unknown = [], {}
    for name, topic in source.items():
        if topic.overrides.get(MARK) != target_id:
            continue
        kind = marked_as(topic)
        if name in unreadable or name not in target:
            problem = (
                f"its configs cannot be read at the target: {unreadable[name]}. Repeat the command"
                if name in unreadable
                else "it does not exist at the target"
            )
            way = (
                ". If no producer wrote there, --target-id opens it"
                if kind is Marked.FENCE
                else f"; {_no_fence(kind, [name], target_id, back)}"
            )
            unknown[name] = f"{problem}{way}"
        elif (mark := target[name].overrides.get(MARK)) != source_id:
            if _is_closed(topic, kind, mark):
                unknown[name] = _no_mirror(name, mark, source_id, target_id=target_id, back=back)
        elif _has_the_fence(target[name], topic):
            unknown[name] = (
                "the target has the fence, of a promotion of the other direction: --abort of that direction removes it"
            )
        else:
            found.append(name)
    return found, unknown


def _is_closed(topic: Topic, kind: Marked, mark: str | None) -> bool:
    """Return whether the fence of *topic* may keep producers away, with *mark* at the target, which is no mirror of it.

    An empty mark is a promotion's. Without one the target accepts producers: only a promotion that did not begin to
    open it is unfinished. With another one no producer can write there, either, unless *topic* is an ordinary mirror of
    a mirror.
    """
    if not mark:
        return mark is None and kind is Marked.FENCE
    return fence_state(topic.overrides) is not FenceState.OPENED and mark not in topic.upstream


def _has_the_fence(target: Topic, source: Topic) -> bool:
    """Return whether *target* has the fence, where each is marked as a mirror of the other: *source* may lack records.

    A fence of an earlier release does not state itself. Then the source is a mirror by its settings, and the target is
    none.
    """
    if _states_no_end(target) and not _states_no_end(source):
        return True
    return marked_as(source) is Marked.MIRROR and marked_as(target) in (
        Marked.FENCE,
        Marked.OPENING,
    )


def _states_no_end(topic: Topic) -> bool:
    return fence_state(topic.overrides) not in (None, FenceState.OPENED)


def states_fence(topic: Topic) -> bool:
    """Return whether *topic* states how far a promotion is that fenced it: a value of `FenceState`."""
    return _FENCE in promotion_fields(topic)


def fence_state(settings: Mapping[str, str]) -> FenceState | None:
    """Return how far the promotion is that fenced a topic with these *settings*; None if they do not state it."""
    stated = promotion_fields(Topic(0, None, settings)).get(_FENCE)
    return next((state for state in FenceState if state.value == stated), None)


def not_about_to_be_opened(settings: Mapping[str, str], target_id: str) -> str:
    """Return why a topic must not be opened at *target_id*, if its source has these *settings*; "" if it may be.

    A broker of an earlier release stores no statement. Then the fence alone decides.
    """
    if settings.get(MARK) != target_id:
        return "its fence was removed"
    state = fence_state(settings)
    if state is FenceState.OPENED:
        return "another command has opened it"
    if state is FenceState.ABORTING:
        return "--abort, or the undo of another command, has begun to remove its fence"
    return ""


def of_other_clusters(
    source: Mapping[str, Topic],
    target: Mapping[str, Topic],
    unreadable: Collection[str],
    *,
    source_id: str,
    target_id: str,
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the marked topics of *source* that are no mirrors of *target_id*, with the ids of their clusters.

    The first result has those of `Marked.FENCE`: the fence of a promotion, if another cluster was at the target's
    address. The second has the `Marked.MIRROR`. The third has those of which that is unknown. So are those of
    `Marked.FENCE` if *target* copied them from that cluster through *source_id*, or is a mirror of the same cluster. It
    may be one if they are *unreadable*.
    """
    found: dict[str, str] = {}
    ordinary: dict[str, str] = {}
    undecided: dict[str, str] = {}
    for name, topic in source.items():
        mark = topic.overrides.get(MARK, "")
        if mark in ("", target_id):
            continue
        kind = marked_as(topic)
        upstream = target[name].upstream if name in target else ()
        is_copied_on = upstream[-1:] == (source_id,) and mark in upstream
        is_of_both = name in target and target[name].overrides.get(MARK) == mark
        may_be_either = is_copied_on or is_of_both or name in unreadable
        if kind is Marked.MIRROR:
            ordinary[name] = mark
        elif kind is Marked.FENCE and not may_be_either:
            found[name] = mark
        else:
            undecided[name] = mark
    return found, ordinary, undecided


def still_mirrors(
    names: Iterable[str],
    target: Mapping[str, Topic],
    unreadable: Collection[str],
    *,
    source_id: str,
    target_id: str,
    back: str,
) -> tuple[list[str], dict[str, str], list[str]]:
    """Return which of *names*, fenced topics of the source, are mirrors of it at the target.

    The second result has, with the reason, those that are none any more: the fence may be all that keeps one log from
    becoming two. The third has those of which that is unknown: absent at the target, or *unreadable*.
    """
    mirrors, others, unread = [], {}, []
    for name in names:
        if name in unreadable or name not in target:
            unread.append(name)
            continue
        mark = target[name].overrides.get(MARK)
        if mark == source_id:
            mirrors.append(name)
        else:
            others[name] = _no_mirror(name, mark, source_id, target_id=target_id, back=back)
    return mirrors, others, unread


def _no_mirror(name: str, mark: str | None, source_id: str, *, target_id: str, back: str) -> str:
    """Return what *name* with *mark* is at *target_id* instead of a mirror of *source_id*."""
    if mark == "":
        return "promoted by another command"
    if mark is None:
        return _mark_removed(source_id)
    way = lost_target([name], target_id, back)
    return f"a mirror of cluster {mark} at the target now. If producers are to write here, {way} opens it"


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


def mode_of(modes: Collection[str]) -> str:
    """Return the mode of the record of topics with these *modes*, at least one: that which proves least."""
    least = [SOURCE_LOST, PRODUCERS_STOPPED, EXCHANGED]
    return min(modes, key=lambda mode: least.index(mode) if mode in least else -1)


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
    done = {name: found for name, found in done.items() if found.source_id == lost}
    if not mirrors and not done:
        of = f" of cluster {source_id}" if source_id else ""
        raise Refused(f"the target has no mirror topics{of} to promote")
    return LostSource(lost, mirrors, done)


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


def not_proven(
    report: Mapping[str, Any],
    cuts: Mapping[TopicPartition, int],
    *,
    source_id: str,
    target_id: str,
) -> str:
    """Return what kaudit's *report* leaves open of the partitions below *cuts*; "" if it proves all of them.

    Offsets that only one log still has cannot be compared: logs under retention begin at different offsets. They leave
    nothing open, and `aged_out_of` has their number.
    """
    ids = tuple((report.get(side) or {}).get("cluster_id") for side in ("source", "target"))
    if ids != (source_id, target_id):
        return f"the report compares clusters {ids[0]} and {ids[1]}"
    verdict = report.get("verdict")
    only_aged_out = verdict == "INCOMPLETE" and _is_only_aged_out(report)
    if only_aged_out and not report["totals"]["compared"]:
        return "no offset was compared: each is in one log only"
    if verdict != "CONSISTENT" and not only_aged_out:
        return f"the verdict is {verdict}"
    proven = {
        TopicPartition(topic["topic"], each["partition"]): _proven_end(each)
        for topic in report["topics"]
        for each in topic["partitions"]
    }
    open_ = [
        f"{tp} is proven up to {proven[tp]}, not to {cut}" if tp in proven else f"{tp} is not in it"
        for tp, cut in cuts.items()
        if proven.get(tp, -1) < cut
    ]
    return "; ".join(open_)


def _is_only_aged_out(report: Mapping[str, Any]) -> bool:
    """Return whether the only offsets in scope that were not compared are those that one log has no longer."""
    totals = report["totals"]
    left = totals["in_scope"] - totals["compared"] - totals["explained"]
    problems = (
        totals["not_read"],
        totals["unknown_partitions"],
        *totals["unreadable"],
        *totals["findings"].values(),
        *totals["different"].values(),
    )
    # Besides 0 the exit codes have each limit that was exceeded: 5 is that of coverage, by offsets that aged out.
    return left == totals["aged_out"] and not any(problems) and {*report["exit_codes"]} <= {0, 5}


def _proven_end(partition: Mapping[str, Any]) -> int:
    """Return the end of the offsets of which the report leaves nothing open but those that aged out.

    `proven_up_to` ends at the first offset that was not read. In a report without unreadable offsets and findings these
    were deleted during the audit, and everything else below both last stable offsets was compared.
    """
    if not partition.get("unread_ranges"):
        return int(partition["proven_up_to"])
    return int(min([partition["high"], *(partition["last_stable"] or {}).values()]))


def aged_out_of(report: Mapping[str, Any]) -> int:
    """Return how many offsets kaudit's *report* did not compare, because only one log still has them."""
    return int(report["totals"]["aged_out"])


@dataclass(frozen=True, slots=True)
class Proof:
    """What kaudit has proven: every record that both logs have is the same."""

    run_id: str
    aged_out: int
    """Offsets that were not compared, because only one log still has them."""

    def line(self) -> str:
        """Return what was not compared; "" if all was."""
        if not self.aged_out:
            return ""
        return (
            f"kaudit did not compare {self.aged_out} offsets: only one cluster still has them (retention, "
            "DeleteRecords). It left no others open"
        )


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
class Record:
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

    def joined(self, earlier: Iterable[Opened], partitions: Iterable[PromotedPartition]) -> Record:
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
