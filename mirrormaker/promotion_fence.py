"""The fence of a promotion: the marks that keep producers from its source, and how far they state it is. Pure.

docs/design/mirror-promotion.md has the states as tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from mirrormaker.promotion_record import LONGEST_VALUE
from mirrormaker.topics import (
    CREATE_TIME,
    MARK,
    MARKS,
    PATH,
    PROMOTION,
    Topic,
    mark_of,
    promotion_fields,
)

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
    UNKNOWN = ""
    """Something else, which a later release states: the target may be open."""


class Marked(Enum):
    """What the mark of a topic is, by its own settings; operators read the value, with the cluster id of the mark."""

    FENCE = "it has the fence of a promotion to cluster {}"
    """That promotion has not begun to open the target."""
    OPENING = "a promotion had begun to open it at cluster {}, which may accept producers"
    FAILBACK = "it states no topic id of cluster {}: a failback may have begun. kmirror failback --execute continues it"
    UNKNOWN = "it has the fence of a promotion to cluster {} by a later release: use kmirror of that release"
    MIRROR = "it seems to be an ordinary mirror of cluster {}"


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
    if _BEFORE not in promotion_fields(source) and is_mirror(source):
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


def fence_state(settings: Mapping[str, str]) -> FenceState | None:
    """Return how far the promotion is that fenced a topic with these *settings*; None if they do not state it."""
    fields = promotion_fields(Topic(0, None, settings))
    if _FENCE not in fields:
        return None
    return next((each for each in FenceState if each.value == fields[_FENCE]), FenceState.UNKNOWN)


def states_fence(topic: Topic) -> bool:
    """Return whether *topic* states how far a promotion is that fenced it: a value of `FenceState`."""
    return _FENCE in promotion_fields(topic)


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
    if state is FenceState.UNKNOWN:
        return Marked.UNKNOWN
    return Marked.OPENING if state in (FenceState.OPENING, FenceState.ABORTING) else Marked.FENCE


def is_mirror(source: Topic) -> bool:
    """Return whether the mark of *source* is that of an ordinary mirror, by its own settings."""
    return marked_as(source) is Marked.MIRROR


def _has_create_time(topic: Topic) -> bool:
    return all(topic.overrides.get(name) == value for name, value in CREATE_TIME.items())


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
    if state is FenceState.UNKNOWN:
        return "kmirror of a later release has changed its fence"
    return ""


def mark_removed(source_id: str) -> str:
    """Return what to do about a target's topic that was a mirror of *source_id*, and has no mark."""
    return (
        f"the target's topic has lost its mark, {MARK}. If the target was promoted, or producers write to it, set it "
        f'to the empty string ("") there. Only if not, set it to {source_id}'
    )
