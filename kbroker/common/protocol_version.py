"""`inter.broker.protocol.version`: which messages and extensions a broker uses towards other brokers.

Theory of operation
===================
A rolling upgrade has two steps, as in Kafka. First every broker gets the new software and keeps the old version of the
inter-broker protocol. Then every broker is restarted with the new one. So no broker receives what it may misread.

The request versions (LeaderAndIsr 7, UpdateMetadata 8, StopReplica 4) are the same from 3.4-IV0 on. Our extensions are
tagged fields (KIP-482) and fields of znodes, which a broker that does not know them skips; they are sent from 3.9-IV0
on. docs/design/inter-broker-versions.md lists them. An extension never changes its meaning: a changed one gets a new
tag and a new version.
"""

from __future__ import annotations

from typing import Final

VERSIONS: Final = (
    *("3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2"),
    *("3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0"),
)
"""The versions that are supported, in order; the last is the default."""

_EXTENDED_SINCE: Final = VERSIONS.index("3.9-IV0")


def resolve(text: str) -> str | None:
    """Return the version that *text* names; a release (3.8, 3.8.1) stands for its last version. None if unsupported."""
    if text in VERSIONS:
        return text
    release = ".".join(text.split(".")[:2])
    found = [version for version in VERSIONS if version.startswith(release + "-")]
    is_release = all(part.isdecimal() for part in text.split(".")) and text.count(".") in (1, 2)
    return found[-1] if found and is_release else None


def problem(text: str) -> str | None:
    """Return what is wrong with a value of inter.broker.protocol.version, None if nothing is."""
    if resolve(text) is not None:
        return None
    return f"is not supported: brokers use {VERSIONS[0]} to {VERSIONS[-1]}"


def is_extended(text: str) -> bool:
    """Return whether brokers of this version send our extensions to each other."""
    version = resolve(text)
    return version is not None and VERSIONS.index(version) >= _EXTENDED_SINCE
