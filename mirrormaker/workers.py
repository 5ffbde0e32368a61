"""Which partitions of a flow this worker copies, when several workers share the flow. Pure.

Theory of operation
===================
A worker is a `kmirror run` with an ephemeral znode in the target's ZooKeeper (`mirrormaker.worker_registry`). The name
of the znode states its id and a digest of the settings that select and name topics. Workers with the same digest form
a group. Every worker computes the assignment of the group by itself: it is a function of the ids and the partitions.
Rendezvous hashing gives each partition to the worker with the largest hash of (worker, partition) that has fewer than
ceil(partitions / workers).

    WAITING   not registered yet: copies nothing
    MEMBER    its znode is in the last list of workers: copies what the assignment gives it
    CUT_OFF   its session may have expired: keeps what it copied last

The assignment is about speed. Only the conditional append decides which worker writes: two workers with one partition
are harmless, a partition without a worker is not. So a worker that is cut off from ZooKeeper keeps its partitions,
because ZooKeeper may be down for all workers. If another worker copies one of them, the target rejects an append: then
this worker leaves that partition alone for `YIELD` seconds.

The member with the lowest sequence number is elected. It alone creates, changes, marks and deletes topics at the
target. So it copies every partition of a topic without the mark, and the other workers none of it
(`mirrormaker.marks`).

Invariants:
1. For equal sets of workers and partitions every worker computes the same assignment, whatever happened before.
2. Every partition has exactly one worker, and no worker has more than ceil(partitions / workers).
3. At most one member of a list is elected, and a worker that is cut off never is.
4. A worker that is cut off takes no partition that it did not copy before.

In: lists of znodes, the loss of the session, rejected appends   Out: the partitions to copy   Owner: the mirror
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from kclient.types import TopicPartition
from mirrormaker.settings import LinkSettings
from mirrormaker.topics import CREATE_TIME, Plan, Topic

YIELD = 30.0
"""Seconds for which a worker without a session leaves a partition alone that another worker copies."""

ASSIGNMENT = 1
"""The version of `assign`, a part of the digest: workers with different functions form different groups."""

_NAME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{16})-(\d{10})")


class WorkerSettings(NamedTuple):
    """The ZooKeeper that the workers of a flow meet in; *session_timeout* is in seconds."""

    connect: str
    session_timeout: float


class Member(NamedTuple):
    """A registered worker; the lowest *sequence* is the oldest registration."""

    sequence: int
    worker_id: str
    settings: str
    name: str
    """The name of its znode."""


class WorkerState(Enum):
    """The states of a worker."""

    WAITING = "waits for ZooKeeper"
    MEMBER = "member"
    CUT_OFF = "cut off from ZooKeeper"


VALID_FROM = {
    WorkerState.WAITING: (),
    WorkerState.MEMBER: (WorkerState.WAITING, WorkerState.MEMBER, WorkerState.CUT_OFF),
    WorkerState.CUT_OFF: (WorkerState.MEMBER, WorkerState.CUT_OFF),
}


def group_of(source: str, target: str, settings: LinkSettings) -> str:
    """Return the digest of what the workers of a group have in common: all copy the same partitions in the same way."""
    values = (
        ASSIGNMENT,
        source,
        target,
        settings.topics,
        settings.topics_exclude,
        settings.replication_policy,
        settings.separator,
        settings.emit_heartbeats,
        settings.gap_policy,
    )
    text = "\n".join(map(repr, values))
    return blake2b(text.encode(), digest_size=4).hexdigest()


def znode_prefix(settings: str, worker_id: str) -> str:
    """Return the name of a worker's znode without the sequence number that ZooKeeper appends."""
    return f"{settings}-{worker_id}-"


def members_of(names: Iterable[str]) -> list[Member]:
    """Return the workers with these znodes, the oldest registration first; other names are left out."""
    found = ((name, _NAME.fullmatch(name)) for name in names)
    return sorted(
        Member(int(match[3]), match[2], match[1], name)
        for name, match in found
        if match is not None
    )


def partitions_of(plan: Plan, source: Mapping[str, Topic]) -> list[TopicPartition]:
    """Return the source partitions that a group of workers shares, also those without a target partition yet."""
    return [
        TopicPartition(name, partition)
        for name in plan.mirrored
        for partition in range(source[name].partitions)
    ]


def left_to_elected(plan: Plan) -> set[str]:
    """Return the target topics that the elected worker has to create or change before they are copied."""
    return {creation.name for creation in plan.create} | {
        copy for copy, changes in plan.set_configs.items() if changes.keys() & CREATE_TIME.keys()
    }


def assign(
    workers: Iterable[str], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, str]:
    """Return the worker id of every partition; empty without workers."""
    ids = sorted(set(workers))
    if not ids:
        return {}
    ordered = sorted(partitions)
    limit = -(-len(ordered) // len(ids))
    room = dict.fromkeys(ids, limit)
    hashes = {each: blake2b(f"{each} ".encode(), digest_size=8) for each in ids}
    assigned = {}
    for tp in ordered:
        name = f"{tp.topic} {tp.partition}".encode()
        best, best_rank = "", b""
        for each in ids:
            if room[each]:
                rank = hashes[each].copy()
                rank.update(name)
                digest = rank.digest()
                if digest >= best_rank:
                    best, best_rank = each, digest
        room[best] -= 1
        assigned[tp] = best
    return assigned


class Workers:
    """The workers of one flow, seen by the worker *worker_id*; *settings* is the digest of its group."""

    def __init__(self, worker_id: str, settings: str) -> None:
        self.worker_id = worker_id
        self.settings = settings
        self.state = WorkerState.WAITING
        self.members: tuple[Member, ...] = ()
        """The group in the last list that had this worker, the oldest registration first."""
        self.mismatched: tuple[Member, ...] = ()
        """The workers of that list with other settings."""
        self._mine: frozenset[TopicPartition] = frozenset()
        """What the last assignment gave this worker."""
        self._computed: tuple[tuple[str, ...], tuple[TopicPartition, ...]] | None = None
        self._yielded: dict[TopicPartition, float] = {}
        """Until when a partition is left alone, in monotonic seconds."""

    # --- events

    def listed(self, names: Iterable[str]) -> bool:
        """Handle a list of the znodes. Return False if this worker is not among them and has to register."""
        found = members_of(names)
        group = tuple(each for each in found if each.settings == self.settings)
        if all(each.worker_id != self.worker_id for each in group):
            self.cut_off()
            return False
        self.members = group
        self.mismatched = tuple(each for each in found if each.settings != self.settings)
        self._become(WorkerState.MEMBER)
        self._yielded.clear()
        return True

    def cut_off(self) -> None:
        """Handle that the session may have expired, or did."""
        if self.state is WorkerState.MEMBER:
            self._become(WorkerState.CUT_OFF)

    def rejected(self, tp: TopicPartition, now: float) -> bool:
        """Handle that the target rejected an append to *tp*; return whether to stop copying it for now."""
        if self.state is not WorkerState.CUT_OFF:
            return False
        self._yielded[tp] = now + YIELD
        return True

    def _become(self, state: WorkerState) -> None:
        assert self.state in VALID_FROM[state]
        self.state = state

    # --- the assignment

    @property
    def is_elected(self) -> bool:
        """Whether this worker creates, changes, marks and deletes topics."""
        return self.state is WorkerState.MEMBER and self.members[0].worker_id == self.worker_id

    def share(
        self, partitions: Sequence[TopicPartition], unmarked: Collection[str], now: float
    ) -> frozenset[TopicPartition]:
        """Return which of *partitions* to copy; *unmarked* are source topics with a target topic without the mark."""
        if self.state is WorkerState.MEMBER:
            self._assign(tuple(partitions))
        owned = self._mine.intersection(partitions)
        if self.state is WorkerState.CUT_OFF:
            owned = frozenset(tp for tp in owned if self._yielded.get(tp, now) <= now)
        if not unmarked:
            return owned
        marked = frozenset(tp for tp in owned if tp.topic not in unmarked)
        if not self.is_elected:
            return marked
        return marked.union(tp for tp in partitions if tp.topic in unmarked)

    def _assign(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Compute the assignment, unless it is that of the last time."""
        now = tuple(each.worker_id for each in self.members), partitions
        if now != self._computed:
            self._computed = now
            assigned = assign(*now)
            self._mine = frozenset(tp for tp, each in assigned.items() if each == self.worker_id)

    def __str__(self) -> str:
        """Return the part of the status line about workers."""
        if self.state is not WorkerState.MEMBER:
            return f"worker: {self.state.value}"
        ids = list(dict.fromkeys(each.worker_id for each in self.members))
        elected = ", elected" if self.is_elected else ""
        return f"worker {ids.index(self.worker_id) + 1} of {len(ids)}{elected}"
