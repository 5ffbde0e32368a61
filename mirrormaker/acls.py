"""What kmirror reports of the source's ACLs, of which it copies none. Pure.

The target decides with its own ACLs, or with none: a topic that few may read at the source may be open to all at the
target. And a broker leaves a topic out of its metadata if the client may not describe it: kmirror cannot know such a
topic, unless an ACL names it.

In: the source's ACLs, topics   Out: lines for the operator   Owner: the mirror
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from kclient.admin.acls import AclOperation, AclPermission, PatternType, TopicAcl

_SHOWN = 3
_EVERY = "*"


def covers(acl: TopicAcl, topic: str) -> bool:
    """Return whether *acl* is about *topic*."""
    if acl.pattern_type == PatternType.PREFIXED:
        return topic.startswith(acl.name)
    return acl.name in (topic, _EVERY)


def not_copied(acls: Sequence[TopicAcl], mirrored: Collection[str]) -> str:
    """Return which of *acls* are about *mirrored* topics; "" if none is."""
    found = [acl for acl in acls if any(covers(acl, topic) for topic in mirrored)]
    if not found:
        return ""
    topics = sum(any(covers(acl, topic) for acl in found) for topic in mirrored)
    return (
        f"the source has {len(found)} about {topics} of {len(mirrored)} mirrored topics, and kmirror copies none: "
        f"{_listed([_text(acl) for acl in found])}"
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
