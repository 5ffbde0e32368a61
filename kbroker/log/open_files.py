"""File descriptors: clients do not get the last ones of the process, and segments give theirs back (S40).

A broker that cannot open a checkpoint or roll a segment loses its log directory. So of the descriptors that the process
may have, a **reserve** is no client's. The first half of it is for connections of other brokers, and for segment files.
From there on these are opened only in exchange for another one. The second half is for what cannot wait: checkpoints,
indexes, connections to brokers and to ZooKeeper.

Nothing is counted: the kernel gives the lowest number that is free, so a descriptor is a lower bound of how many are
in use.
"""

from __future__ import annotations

from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from sys import maxsize

RESERVE = 512
"""Descriptors kept for the broker itself; a quarter of all where that is less."""


def limit() -> int:
    """Return how many descriptors the process may have now."""
    soft, _ = getrlimit(RLIMIT_NOFILE)
    return maxsize if soft == RLIM_INFINITY else soft


def reserve() -> int:
    """Return how many of them clients may not use."""
    return min(RESERVE, limit() // 4)


def is_reserved(descriptor: int) -> bool:
    """Return whether *descriptor* belongs to the reserve, which clients do not use."""
    return descriptor >= limit() - reserve()


def is_scarce(descriptor: int) -> bool:
    """Return whether *descriptor* belongs to the second half of the reserve."""
    return descriptor >= limit() - reserve() // 2
