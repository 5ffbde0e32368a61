"""Which fences --abort and the undo of a promotion may remove, and what to do about the others. Pure.

In: the marks of both clusters   Out: topics, and reasons for the operator
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from kclient.errors import KafkaError
from mirrormaker.command_exit import Refused
from mirrormaker.patterns import escaped
from mirrormaker.promotion_fence import FenceState, Marked, fence_state, mark_removed, marked_as
from mirrormaker.topics import MARK, Topic


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
                unknown[name] = (
                    _no_fence(kind, [name], target_id, back)
                    if kind is Marked.UNKNOWN
                    else _no_mirror(name, mark, source_id, target_id=target_id, back=back)
                )
        elif kind is Marked.UNKNOWN:
            unknown[name] = _no_fence(kind, [name], target_id, back)
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
        Marked.UNKNOWN,
    )


def _states_no_end(topic: Topic) -> bool:
    return fence_state(topic.overrides) not in (None, FenceState.OPENED)


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
        return mark_removed(source_id)
    way = lost_target([name], target_id, back)
    return f"a mirror of cluster {mark} at the target now. If producers are to write here, {way} opens it"


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


def _no_fence(kind: Marked, names: Sequence[str], mark: str, back: str) -> str:
    """Return why --abort does not remove the *mark* of *names*, which are no `FENCE`, by their own settings."""
    if kind is Marked.UNKNOWN:
        return str(kind.value.format(mark))
    way = lost_target(names, mark, back)
    return (
        f"{kind.value.format(mark)}. If producers are to write here, {way} opens {', '.join(names)}"
    )


def lost_target(names: Iterable[str], target_id: str, back: str) -> str:
    """Return the command that opens *names*, marked as mirrors of *target_id*, at their source; *back* is its flow.

    Without --topics it opens each mirror there, and without --source-id it is refused if they are of several clusters.
    """
    return (
        f"kmirror promote FILE --flow '{back}' --source-lost --topics '{'|'.join(map(escaped, names))}' --source-id "
        f"{target_id} ({back} has to be enabled in FILE)"
    )


def abort_without_target(names: Iterable[str], target_id: str, flow: str) -> str:
    """Return the command that removes the fences of *names* while their target, *target_id*, does not answer.

    Without --topics it removes each fence that names *target_id*.
    """
    return (
        f"kmirror promote FILE --flow '{flow}' --abort --target-id {target_id} --topics "
        f"'{'|'.join(map(escaped, names))}'"
    )


def marks_of(topics: Mapping[str, Topic]) -> str:
    """Return the topics and the ids of the clusters that they are marked as mirrors of, for the operator."""
    return ", ".join(f"{name} ({topic.overrides.get(MARK)})" for name, topic in topics.items())
