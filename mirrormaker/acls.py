"""Which ACLs of the source the target should have, and what to report of the others. Pure.

Only ACLs about reading are copied: READ, DESCRIBE, DESCRIBE_CONFIGS. A mirror has one writer, which the source does not
know. Allow ALL becomes allow READ, as in MirrorMaker 2. Deny ALL becomes a deny of each operation about reading.
With deny READ alone, an allow READ for everyone would still let the principal describe the topic.

An ACL with a prefix, or with * as the name, becomes one for each mirrored topic that it covers. At the target the same
pattern could cover topics that are no mirrors.

The target without a copy of an ACL decides with its own, or with none. A topic that few may read at the source may be
open to all at the target. And a broker leaves a topic out of its metadata if the client may not describe it. So kmirror
cannot know such a topic, unless an ACL names it.

In: ACLs of both clusters, topics   Out: ACLs to add, lines for the operator   Owner: `mirrormaker.acl_sync`
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from kclient.admin.acls import AclOperation, AclPermission, PatternType, TopicAcl

_SHOWN = 3
_EVERY = "*"


def covers(acl: TopicAcl, topic: str) -> bool:
    """Return whether *acl* is about *topic*."""
    if acl.pattern_type == PatternType.PREFIXED:
        return topic.startswith(acl.name)
    return acl.name in (topic, _EVERY)


_READING: Final[frozenset[int]] = frozenset(
    {AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS}
)


def copied(acls: Iterable[TopicAcl], mirrored: Mapping[str, str]) -> set[TopicAcl]:
    """Return the ACLs that the target should have; *mirrored*: the target's topics by the source's."""
    found: set[TopicAcl] = set()
    for acl in acls:
        operations = _about_reading(acl)
        if not operations:
            continue
        for topic, copy in mirrored.items():
            if covers(acl, topic):
                literal = acl._replace(name=copy, pattern_type=int(PatternType.LITERAL))
                found.update(literal._replace(operation=int(each)) for each in operations)
    return found


def _about_reading(acl: TopicAcl) -> Collection[int]:
    if acl.operation != AclOperation.ALL:
        return _READING & {acl.operation}
    return _READING if acl.permission == AclPermission.DENY else {AclOperation.READ}


def only_at_target(
    there: Iterable[TopicAcl], expected: Collection[TopicAcl], copies: Iterable[str]
) -> str:
    """Return which ACLs about reading *copies* the target has, and the source does not; "" if none."""
    names = set(copies)
    alone = sorted(
        acl
        for acl in there
        if acl.pattern_type == PatternType.LITERAL
        and acl.name in names
        and acl.operation in _READING
        and acl not in expected
    )
    if not alone:
        return ""
    return f"{len(alone)} of the target are not those of the source, and stay: {listed(alone)}"


def listed(acls: Sequence[TopicAcl]) -> str:
    """Return the first of *acls* for operators, and the number of the others."""
    return _listed([_text(acl) for acl in acls])


def not_copied(acls: Sequence[TopicAcl], mirrored: Collection[str]) -> str:
    """Return which of *acls* are about *mirrored* topics; "" if none is."""
    found = [acl for acl in acls if any(covers(acl, topic) for topic in mirrored)]
    if not found:
        return ""
    topics = sum(any(covers(acl, topic) for acl in found) for topic in mirrored)
    return (
        f"the source has {len(found)} about {topics} of {len(mirrored)} mirrored topics, and none is copied: "
        f"{listed(found)}"
    )


def not_visible(
    acls: Sequence[TopicAcl], wanted: Callable[[str], bool], present: Collection[str]
) -> str:
    """Return which topics that are *wanted* the source has ACLs for, and does not list as *present*; "" if none."""
    named = {
        acl.name for acl in acls if acl.pattern_type == PatternType.LITERAL and acl.name != _EVERY
    }
    hidden = sorted(name for name in named if name not in present and wanted(name))
    if not hidden:
        return ""
    return (
        f"{len(hidden)} topics have ACLs and are not listed by the source: {_listed(hidden)}. Either they do not "
        "exist, or kmirror's user may not describe them; they are not mirrored"
    )


def _listed(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _text(acl: TopicAcl) -> str:
    stars = _EVERY if acl.pattern_type == PatternType.PREFIXED else ""
    permission = _name(AclPermission, acl.permission).lower()
    return f"{acl.name}{stars}: {permission} {_name(AclOperation, acl.operation)} to {acl.principal} from {acl.host}"


def _name(kind: type[AclOperation | AclPermission], number: int) -> str:
    return kind(number).name if number in set(kind) else f"({number})"
