"""Consumer groups and committed offsets: what must hold at every write to ZooKeeper and at every answer.

Every commit has an offset of its own, so a value in ZooKeeper names the one commit that wrote it. Moments are numbers
of a counter: a commit or a request *begins* when its client sends it and *ends* when the client has the answer.

Groups (S30)
1. GroupWriter: only the leader of the group's partition of `__consumer_offsets` writes below `/consumers/GROUP`.
2. GroupGeneration: the generation in ZooKeeper never goes back. JoinGroup and SyncGroup never answer with a generation
   that was over in ZooKeeper when the request began.
3. GroupAnswer: what JoinGroup and SyncGroup answer (generation, member, assignment) is in ZooKeeper.
4. OneOwner: a partition has one owner in a generation; the assignment of a generation does not change, and its members
   agree on the leader. A static member is its group.instance.id, also after a restart.
5. Heartbeat: a coordinator that holds a later generation refuses the heartbeats of an earlier one.
6. Liveness: when everything is healed, the live members are exactly the members in ZooKeeper, all of the same
   generation; they own all partitions; commits and fetches of offsets are answered.

Committed offsets (S31)
7. CommitLost: when a commit is acknowledged, ZooKeeper holds it, or one that took its place; after that no commit that
   had ended before it began replaces it, and nothing deletes it. A commit that was replaced is not written again.
8. CommitRefused: a commit that was refused is never written.
9. CommitFenced: a commit of a generation that was over when the commit began is never written.
10. OffsetFetch: it answers with an offset that was committed, never older than what was acknowledged, or answered to
    another OffsetFetch, before it began.

Committed offsets of a topic that is deleted (KAFKA-10545)
11. CommitLost: an offset is deleted only if its topic does not exist, is being deleted, or was created after the last
    write of that offset. Only a group without offsets is deleted.
12. Liveness: when everything is healed, there is no offset of a topic that does not exist. A topic that was created
    again has none of before, if the coordinator is a process that knew the topic when its deletion was requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.coordinator.group.core import states
from kbroker.coordinator.group.core.records import GroupSnapshot, decode_snapshot
from kbroker.coordinator.placement import partition_for
from kbroker.zk.znodes import CONSUMERS, decode_offset
from kclient.consumer.protocol import decode_assignment
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from tests.simulation.copies import Broken
from tests.simulation.losses import State
from tests.simulation.node import Node
from tests.simulation.transaction_rules import GROUP as TRANSACTIONAL_GROUP
from tests.simulation.zookeeper import Change

PREFIX = f"{CONSUMERS}/"

REFUSALS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""After these nothing was written, nor will be; after any other error the outcome is unknown."""


@dataclass(eq=False)
class Commit:
    """One offset of one OffsetCommit request."""

    offset: int
    member: str
    generation: int
    begun: int
    fenced: bool
    """Whether the group was in a later generation in ZooKeeper when this began."""
    ended: int = 0
    """When it was acknowledged; 0: it was not, or not yet."""
    refused: ErrorCode | None = None

    def __str__(self) -> str:
        return f"{self.offset} of {self.member} in generation {self.generation}"


DELETION = Commit(offset=-1, member="", generation=-1, begun=0, fenced=False)
"""In place of a commit: the offset was deleted."""


@dataclass
class Offsets:
    """The committed offset of one partition, and all that ever was or will be."""

    name: str
    commits: dict[int, Commit] = field(default_factory=dict)
    """By offset: every commit that was sent."""
    written: list[tuple[int, Commit]] = field(default_factory=list)
    """What ZooKeeper held, one after the other, each with the moment of the write."""
    position: dict[int, int] = field(default_factory=dict)
    """By offset: its last index in `written`, counted from 1."""
    newest_begun: int = 0
    """When the last began of those that were acknowledged."""
    floor: int = 0
    """The index in `written` below which nothing may be answered any more."""

    @property
    def current(self) -> int:
        return self.written[-1][1].offset if self.written else -1

    @property
    def last_write(self) -> int:
        """The moment of the last write, deletions included; 0 without one."""
        return self.written[-1][0] if self.written else 0


@dataclass
class Generation:
    """What ZooKeeper ever held of one generation, by members' identities: instance id, else member id."""

    members: dict[str, str] = field(default_factory=dict)
    """Identities by member id."""
    assignments: dict[str, bytes] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    leader: str | None = None
    """The identity of the member that was named as the leader in answers to JoinGroup."""


@dataclass
class GroupState:
    """One group as ZooKeeper has it."""

    name: str
    snapshot: GroupSnapshot | None = None
    generations: dict[int, Generation] = field(default_factory=dict)
    live: dict[str, None] = field(default_factory=dict)
    """The member ids below `ids`."""

    @property
    def generation(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.generation_id


class GroupRules:
    """Judges what is written for groups, and what their members and committers are answered."""

    def __init__(
        self, nodes: dict[int, Node], states: dict[tuple[str, int], State], log: Any
    ) -> None:
        self._nodes = nodes
        self._states = states
        self._log = log
        self.groups: dict[str, GroupState] = {}
        self.offsets: dict[tuple[str, TopicPartition], Offsets] = {}
        self.writer: Callable[[], int | None] = lambda: None
        """Which broker sent the write that ZooKeeper does; None: no broker did."""
        self.transactional_offset: Callable[[str, str, int, bytes], None] = lambda *_: None
        """Judges an offset of the group that only transactions commit to."""
        self.partitions = 0
        """Of the offsets topic."""
        self._created: dict[str, int] = {}
        """The moment at which each topic that exists was created."""
        self._deletions_requested: set[str] = set()
        """Topics with a request for their deletion."""
        self._deleted: dict[str, dict[int, int]] = {}
        """Topics that were deleted, perhaps to be created again; by broker the process that knew the last of them."""
        self._moment = 0
        self._next_offset = 0

    def group(self, name: str) -> GroupState:
        return self.groups.setdefault(name, GroupState(name))

    def coordinator(self, group: str) -> int | None:
        """Return the broker that coordinates *group*, by ZooKeeper; None if there is none."""
        if not self.partitions:
            return None
        state = self._states.get((OFFSETS_TOPIC, partition_for(group, self.partitions)))
        return state.leader if state is not None and state.leader >= 0 else None

    def topic_created(self, topic: str) -> None:
        self._created[topic] = self._now()

    def topic_deleted(self, topic: str) -> None:
        del self._created[topic]

    def deletion_requested(self, topic: str, requested: bool) -> None:
        (self._deletions_requested.add if requested else self._deletions_requested.discard)(topic)
        if requested:
            self._deleted[topic] = {
                number: node.starts
                for number, node in self._nodes.items()
                if node.running and node.parts is not None and topic in node.parts.metadata.topics
            }

    def outlived(self) -> str | None:
        """Return an offset that is there still although its topic was deleted; None without one."""
        for (group, tp), offsets in self.offsets.items():
            topic = tp.topic
            if topic not in self._deleted or offsets.current < 0:
                continue
            if topic not in self._created:
                return f"{offsets.name} is {offsets.current}, and the topic is deleted"
            coordinator = self.coordinator(group)
            knew = self._deleted[topic].get(coordinator) if coordinator is not None else None
            is_older = offsets.last_write < self._created[topic]
            if coordinator is not None and is_older and knew == self._nodes[coordinator].starts:
                return f"{offsets.name} is {offsets.current}, of an earlier topic"
        return None

    def _now(self) -> int:
        self._moment += 1
        return self._moment

    # -- ZooKeeper

    def committed(self, change: Change) -> None:
        """Take a write below `/consumers` that ZooKeeper has just done."""
        kind, path, data, _, _ = change
        _, _, name, *rest = path.split("/")
        writer = self.writer()
        coordinator = self.coordinator(name)
        if writer is not None and writer != coordinator:
            raise Broken(f"GroupWriter: broker {writer} writes {path}, {coordinator} leads")
        group = self.group(name)
        if rest == ["state"]:
            self._state(group, kind, path, data)
        elif rest[:1] == ["ids"] and len(rest) == 2:
            (
                group.live.pop(rest[1], None)
                if kind == "delete"
                else group.live.update({rest[1]: None})
            )
        elif rest[:1] == ["offsets"] and len(rest) == 3 and name == TRANSACTIONAL_GROUP:
            self.transactional_offset(kind, path, int(rest[2]), data)
        elif rest[:1] == ["offsets"] and len(rest) == 3:
            self._offset(name, TopicPartition(rest[1], int(rest[2])), kind, path, data)

    def _state(self, group: GroupState, kind: str, path: str, data: bytes) -> None:
        if kind == "delete":
            left = [
                o.name for (n, _), o in self.offsets.items() if n == group.name and o.current >= 0
            ]
            if left or group.live or not self._deleted:
                raise Broken(f"GroupGeneration: {path} is deleted; it has {left} and {group.live}")
            group.snapshot = None
            group.generations.clear()
            return
        snapshot, _ = decode_snapshot(path, data)
        self._log(
            f"group {group.name} is {snapshot.state.value} in generation {snapshot.generation_id}:"
            f" {', '.join(member.member_id[:12] for member in snapshot.members) or 'no members'}"
        )
        if snapshot.generation_id < group.generation:
            raise Broken(
                f"GroupGeneration: {group.name}: {group.generation} -> {snapshot.generation_id}"
            )
        group.snapshot = snapshot
        generation = group.generations.setdefault(snapshot.generation_id, Generation())
        for member in snapshot.members:
            identity = member.group_instance_id or member.member_id
            generation.members[member.member_id] = identity
            if not member.assignment:
                continue
            known = generation.assignments.setdefault(identity, member.assignment)
            if known != member.assignment:
                raise Broken(f"OneOwner: {identity} of {group.name} has another assignment")
            for tp in decode_assignment(member.assignment):
                owner = generation.owners.setdefault(tp, identity)
                if owner != identity:
                    raise Broken(
                        f"OneOwner: {group.name} in generation {snapshot.generation_id}:"
                        f" {tp} is owned by {owner} and {identity}"
                    )

    def _offset(self, group: str, tp: TopicPartition, kind: str, path: str, data: bytes) -> None:
        offsets = self.of(group, tp)
        if kind == "delete":
            created = self._created.get(tp.topic)
            is_deletion_requested = tp.topic in self._deletions_requested
            if created is not None and not is_deletion_requested and offsets.last_write > created:
                raise Broken(f"CommitLost: {offsets.name} is deleted, it was {offsets.current}")
            self._log(f"committed offset of {offsets.name} is deleted, it was {offsets.current}")
            offsets.written.append((self._now(), DELETION))
            offsets.position[DELETION.offset] = len(offsets.written)
            return
        value = decode_offset(path, data)
        commit = offsets.commits.get(value)
        if commit is None:
            raise Broken(f"CommitLost: {offsets.name} becomes {value}, which was never committed")
        self._log(f"committed offset of {offsets.name}: {commit}")
        if commit.fenced:
            raise Broken(f"CommitFenced: {offsets.name}: {commit} is written; it was over before")
        if commit.refused is not None:
            raise Broken(f"CommitRefused: {offsets.name}: {commit}: {commit.refused.name}")
        is_back = value in offsets.position and value != offsets.current
        if is_back or 0 < commit.ended < offsets.newest_begun:
            raise Broken(f"CommitLost: {offsets.name} goes back to {commit}")
        offsets.written.append((self._now(), commit))
        offsets.position[value] = len(offsets.written)

    # -- commits

    def of(self, group: str, tp: TopicPartition) -> Offsets:
        name = f"{group}/{tp.topic}-{tp.partition}"
        return self.offsets.setdefault((group, tp), Offsets(name))

    def commit_begins(
        self, group: str, member: str, generation: int, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Commit]:
        """Return a commit for every one of *partitions*, with an offset that no other commit has."""
        fenced = 0 <= generation < self.group(group).generation
        commits = {}
        for tp in partitions:
            self._next_offset += 1
            commit = Commit(self._next_offset, member, generation, self._now(), fenced)
            commits[tp] = self.of(group, tp).commits[commit.offset] = commit
        return commits

    def commit_ends(self, group: str, tp: TopicPartition, commit: Commit, error: ErrorCode) -> None:
        """Take the answer to a commit."""
        offsets = self.of(group, tp)
        if error in REFUSALS:
            if commit.offset in offsets.position:
                raise Broken(f"CommitRefused: {offsets.name}: {commit}: {error.name}, but written")
            commit.refused = error
        if error is not ErrorCode.NONE:
            return
        since = [
            (number, each)
            for number, (moment, each) in enumerate(offsets.written, start=1)
            if moment > commit.begun and each is not DELETION
        ]
        if not since:
            raise Broken(f"CommitLost: {offsets.name}: {commit} is acknowledged and not written")
        last = since[-1][1]
        if 0 < last.ended < commit.begun:
            raise Broken(f"CommitLost: {offsets.name}: {commit} became {last} again")
        commit.ended = self._now()
        offsets.newest_begun = max(offsets.newest_begun, commit.begun)
        place_of_it = offsets.position.get(commit.offset)
        offsets.floor = max(offsets.floor, place_of_it or since[0][0])

    def fetch_begins(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return for every one of *partitions* what an OffsetFetch that begins now must not be older than."""
        return {tp: self.of(group, tp).floor for tp in partitions}

    def fetch_ends(
        self, group: str, floors: dict[TopicPartition, int], found: dict[TopicPartition, int]
    ) -> None:
        """Judge what an OffsetFetch answered."""
        for tp, value in found.items():
            offsets = self.of(group, tp)
            position = offsets.position.get(value, 0 if value == -1 else None)
            if position is None:
                raise Broken(f"OffsetFetch: {offsets.name} is {value}, which was never committed")
            floor = floors[tp]
            if position < floor:
                raise Broken(
                    f"OffsetFetch: {offsets.name} is {value}, after"
                    f" {offsets.written[floor - 1][1]} was acknowledged or answered"
                )
            offsets.floor = max(offsets.floor, position)

    # -- members

    def joined(self, group: str, begun_in: int, generation: int, member: str, leader: str) -> None:
        """Judge an answer to a JoinGroup that began when ZooKeeper was in generation *begun_in*."""
        self._not_over(group, begun_in, generation, "JoinGroup")
        held = self.group(group).generations.get(generation)
        if held is None or member not in held.members:
            raise Broken(
                f"GroupAnswer: JoinGroup of {group} answers {member} in generation {generation},"
                " which is not in ZooKeeper"
            )
        identity = held.members.get(leader, leader)
        if leader not in held.members and held.members[member] != member:
            # Older clients that lead as static members are answered their former id (KIP-345). If it was replaced
            # before a snapshot had it, it never was in ZooKeeper.
            identity = held.members[member]
        if held.leader is None:
            held.leader = identity
        if held.leader != identity:
            raise Broken(
                f"OneOwner: {group} in generation {generation} has the leaders"
                f" {held.leader} and {identity}"
            )

    def synced(
        self, group: str, begun_in: int, generation: int, member: str, assignment: bytes
    ) -> None:
        """Judge an answer to a SyncGroup that began when ZooKeeper was in generation *begun_in*."""
        self._not_over(group, begun_in, generation, "SyncGroup")
        held = self.group(group).generations.get(generation, Generation())
        identity = held.members.get(member)
        if identity is None or held.assignments.get(identity, b"") != assignment:
            raise Broken(
                f"GroupAnswer: SyncGroup of {group} answers {member} with an assignment in"
                f" generation {generation} that is not in ZooKeeper"
            )

    def _not_over(self, group: str, begun_in: int, generation: int, api: str) -> None:
        if generation < begun_in:
            raise Broken(
                f"GroupGeneration: {api} of {group} answers generation {generation},"
                f" generation {begun_in} was in ZooKeeper before it was asked"
            )

    def holds_later(self, node: int, group: str, generation: int) -> Any:
        """Return a broker's own group if it is in a later generation there, else None."""
        parts = self._nodes[node].parts
        if not self._nodes[node].running or parts is None:
            return None
        held = parts.groups._group(group)
        return held if held is not None and held.machine.generation_id > generation else None

    def heartbeat_ends(
        self, node: int, group: str, generation: int, before: Any, error: ErrorCode
    ) -> None:
        """Judge an answer to a Heartbeat; *before* is what `holds_later` returned when it began."""
        if error is not ErrorCode.NONE or before is None:
            return
        if self.holds_later(node, group, generation) is before:
            raise Broken(
                f"Heartbeat: broker {node} accepts generation {generation} of {group},"
                f" it is in {before.machine.generation_id}"
            )

    # -- the end

    def not_settled(self, group: str, members: dict[str, int]) -> str | None:
        """Return what is missing of a group with these live members; None if nothing is.

        Members are given with their generations.
        """
        state = self.group(group)
        snapshot = state.snapshot
        if snapshot is None:
            return f"group {group} is not in ZooKeeper" if members else None
        known = [member.member_id for member in snapshot.members]
        if sorted(known) != sorted(members):
            return f"group {group} has the members {known} in ZooKeeper, {sorted(members)} live"
        if members and snapshot.state is not states.GroupState.STABLE:
            return f"group {group} is {snapshot.state.value}"
        if any(generation != state.generation for generation in members.values()):
            return f"group {group} is in generation {state.generation}, its members in {members}"
        if state.live.keys() != members.keys():
            return f"group {group} has the ephemerals {sorted(state.live)}, {sorted(members)} live"
        return None
