"""The names of topics at the target, `replication.policy.class`: a policy of MirrorMaker 2, or the operator's own.

A class of the operator is named ``module:Class``; the module is one that Python can import. It is called with the
keyword ``separator`` (`replication.policy.separator`) and has the three methods of `ReplicationPolicy`, which have the
meaning of those in MirrorMaker 2 (KIP-382). They must be pure: kmirror calls them for every topic in every comparison.

    class UpperCasePolicy:
        def __init__(self, *, separator: str) -> None: ...
        def format_remote_topic(self, source: str, topic: str) -> str:
            return f"{source.upper()}{topic}"
        def topic_source(self, topic: str) -> str | None: ...
        def upstream_topic(self, topic: str) -> str | None: ...
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Protocol

MOST_HOPS = 100
"""Names from which a policy removes a source more often than this come from a policy that never ends."""


class ReplicationPolicy(Protocol):
    """Names the mirror of a topic, and finds the source in such a name."""

    def format_remote_topic(self, source: str, topic: str) -> str:
        """Return the name at the target of *topic* of the cluster with the alias *source*."""
        ...

    def topic_source(self, topic: str) -> str | None:
        """Return the alias of the cluster that *topic* is a mirror of, by its name; None if the name shows none."""
        ...

    def upstream_topic(self, topic: str) -> str | None:
        """Return the name of *topic* in the cluster `topic_source`; None if the name shows none."""
        ...


class IdentityReplicationPolicy:
    """The name stays the same, and shows no source."""

    def __init__(self, *, separator: str = ".") -> None:
        del separator

    def format_remote_topic(self, source: str, topic: str) -> str:
        """Return *topic*."""
        del source
        return topic

    def topic_source(self, topic: str) -> None:
        """Return None."""
        del topic

    def upstream_topic(self, topic: str) -> str:
        """Return *topic*."""
        return topic


class DefaultReplicationPolicy:
    """The alias of the source and the separator come before the name.

    >>> policy = DefaultReplicationPolicy()
    >>> policy.format_remote_topic("east", "orders")
    'east.orders'
    >>> policy.topic_source("east.orders"), policy.upstream_topic("east.orders")
    ('east', 'orders')
    """

    def __init__(self, *, separator: str = ".") -> None:
        self._separator = separator

    def format_remote_topic(self, source: str, topic: str) -> str:
        """Return SOURCE.TOPIC."""
        return f"{source}{self._separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        """Return the part before the first separator; None without a separator."""
        source, found, _ = topic.partition(self._separator)
        return source if found else None

    def upstream_topic(self, topic: str) -> str | None:
        """Return the part behind the first separator; None without a separator."""
        _, found, name = topic.partition(self._separator)
        return name if found else None


_KNOWN: dict[str, Callable[..., ReplicationPolicy]] = {
    "IdentityReplicationPolicy": IdentityReplicationPolicy,
    "DefaultReplicationPolicy": DefaultReplicationPolicy,
}


def load_policy(name: str, separator: str = ".") -> ReplicationPolicy:
    """Return the policy with this class name. Raise ValueError if there is none, or it does not work.

    MirrorMaker 2's policies are known with and without their Java package.
    """
    known = _KNOWN.get(name.rpartition(".")[2])
    if known is not None and ":" not in name:
        return known(separator=separator)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"{name!r} is not one of {', '.join(_KNOWN)}, and not MODULE:CLASS of a Python module"
        )
    try:
        policy: ReplicationPolicy = getattr(importlib.import_module(module), attribute)(
            separator=separator
        )
        copy = policy.format_remote_topic("source", "topic")
        found = policy.topic_source(copy), policy.upstream_topic(copy)
    except (
        Exception
    ) as problem:  # it is the operator's code: any error in it is one of the configuration
        raise ValueError(f"{name!r} cannot be used: {type(problem).__name__}: {problem}") from None
    if not isinstance(copy, str) or found not in (
        ("source", "topic"),
        (None, "topic"),
        (None, None),
    ):
        raise ValueError(
            f"{name!r} cannot be used: it names the mirror of source/topic {copy!r}, and finds {found} in that"
        )
    return policy


def sources(policy: ReplicationPolicy, topic: str) -> Iterator[str]:
    """Yield the aliases of the clusters that *topic* came through by its name, the last one first."""
    name: str | None = topic
    for _ in range(MOST_HOPS):
        source = None if name is None else policy.topic_source(name)
        if name is None or source is None:
            return
        yield source
        name = policy.upstream_topic(name)
