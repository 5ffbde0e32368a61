"""The members of a group: its leader, the protocols they share, the bytes they take; and which joins it admits.

A join is admitted by the size of the group, the session timeout, and a protocol in common with the members (`refusal`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from kbroker.coordinator.group.core.effects import Join, JoinedMember, Protocols, Token
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.records import MemberSnapshot
from kbroker.coordinator.group.core.states import GroupState
from kclient.wire.error_codes import ErrorCode


@dataclass(slots=True, eq=False)
class MemberMetadata:
    """One member. Timeouts in seconds; *session_deadline* on the clock of the events."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: Protocols
    assignment: bytes = b""

    session_deadline: float = inf
    """When the member is removed. Infinite while a request of it waits."""

    awaiting_join: Token | None = None
    """Its JoinGroup request that waits for the rebalance; at most one."""

    awaiting_sync: Token | None = None
    """Its SyncGroup request that waits for the leader's assignment; at most one."""

    is_new: bool = False
    """It has no generation yet: the next coordinator does not need it."""

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its metadata for *protocol_name*, b"" if it does not support it."""
        return next((data for name, data in self.protocols if name == protocol_name), b"")

    def snapshot(self, assignment: bytes) -> MemberSnapshot:
        """Return the member with *assignment*, as the next coordinator restores it."""
        return MemberSnapshot(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=round(self.session_timeout * 1000),
            rebalance_timeout_ms=round(self.rebalance_timeout * 1000),
            protocols=self.protocols,
            assignment=assignment,
        )

    @classmethod
    def restored(cls, saved: MemberSnapshot) -> MemberMetadata:
        """Return the member of the snapshot *saved*."""
        return cls(
            member_id=saved.member_id,
            group_instance_id=saved.group_instance_id,
            client_id=saved.client_id,
            client_host=saved.client_host,
            session_timeout=saved.session_timeout_ms / 1000,
            rebalance_timeout=saved.rebalance_timeout_ms / 1000,
            protocols=saved.protocols,
            assignment=saved.assignment,
        )


def member_bytes(protocols: Protocols, names: int) -> int:
    """Estimate the bytes of a member with *protocols* in the state znode, base64 and JSON included.

    *names*: length of its ids, client id and host. The assignment comes on top.
    """
    distinct = {data for _, data in protocols}
    listed = sum(len(name) + 16 for name, _ in protocols)
    return 400 + 2 * names + listed + sum(map(len, distinct)) * 4 // 3


def _size(member: MemberMetadata) -> int:
    ids = len(member.member_id) + len(member.group_instance_id or "")
    return member_bytes(member.protocols, ids + len(member.client_id) + len(member.client_host))


def select_protocol(members: Iterable[MemberMetadata]) -> str | None:
    """Count a vote of each member for its first protocol that all members support.

    Of equal counts, the protocol with the first vote wins.
    """
    voters = list(members)
    supported = [{name for name, _ in member.protocols} for member in voters]
    candidates = set.intersection(*supported) if supported else set()
    votes: dict[str, int] = {}
    for member in voters:
        choice = next((name for name, _ in member.protocols if name in candidates), None)
        if choice is not None:
            votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=votes.__getitem__, default=None)


class GroupMembers:
    """The members of one group in the order of their joins, and the ids sent to future members.

    Invariants: one member per instance id; the leader is a member, None only if there are none.
    """

    def __init__(self) -> None:
        self.leader: str | None = None
        self.pending: dict[str, float] = {}
        """Ids that were sent (KIP-394) and are not joined with yet, with their expiry."""
        self.state_bytes = 0
        """Estimated bytes of the state znode without the assignments."""
        self._members: dict[str, MemberMetadata] = {}
        self._static: dict[str, str] = {}
        self._supporters: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[MemberMetadata]:
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> MemberMetadata:
        return self._members[member_id]

    def get(self, member_id: str) -> MemberMetadata | None:
        """Return the member, None if there is none of that id."""
        return self._members.get(member_id)

    def static(self, group_instance_id: str | None) -> MemberMetadata | None:
        """Return the static member with *group_instance_id*."""
        holder = self._static.get(group_instance_id) if group_instance_id is not None else None
        return self._members[holder] if holder is not None else None

    def check(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return NONE if these identify a member, else the error."""
        if group_instance_id is not None:
            holder = self._static.get(group_instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self._members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports_any(self, names: Iterable[str]) -> bool:
        """Return whether every member supports one of *names*."""
        return any(self._supporters.get(name, 0) == len(self._members) for name in names)

    @property
    def rebalance_timeout(self) -> float:
        """How long a rebalance waits: the longest timeout of any member."""
        return max((member.rebalance_timeout for member in self), default=0.0)

    @property
    def awaiting_join(self) -> int:
        """How many members have a JoinGroup that waits."""
        return sum(member.awaiting_join is not None for member in self)

    @property
    def all_joined(self) -> bool:
        """Whether a JoinGroup of every member waits, and every id that was sent is joined with."""
        return not self.pending and self.awaiting_join == len(self)

    @property
    def next_deadline(self) -> float:
        """The first time at which a session or a pending id expires."""
        sessions = min((member.session_deadline for member in self), default=inf)
        return min(sessions, min(self.pending.values(), default=inf))

    def joined_members(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """Return all members for the leader's JoinGroup response."""
        return tuple(
            JoinedMember(m.member_id, m.group_instance_id, m.metadata(protocol_name)) for m in self
        )

    def add(self, member: MemberMetadata) -> None:
        """Add *member*; the first one leads."""
        self._members[member.member_id] = member
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._count(member, 1)

    def remove(self, member: MemberMetadata) -> None:
        """Remove *member*; if it led, the oldest of the others leads."""
        del self._members[member.member_id]
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), None)
        self._count(member, -1)

    def rename(self, member: MemberMetadata, member_id: str) -> None:
        """Give *member* the id *member_id*; it stays the leader if it led."""
        led = self.leader == member.member_id
        del self._members[member.member_id]
        self._count(member, -1)
        member.member_id = member_id
        self.add(member)
        if led:
            self.leader = member_id

    def set_protocols(self, member: MemberMetadata, protocols: Protocols) -> None:
        """Replace the protocols of *member*."""
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def elect_leader(self) -> bool:
        """Keep the leader if it rejoined, else take the first member that did; False if none did."""
        if self.leader is not None and self._members[self.leader].awaiting_join is not None:
            return True
        joined = next((m.member_id for m in self if m.awaiting_join is not None), None)
        if joined is not None:
            self.leader = joined
        return joined is not None

    def clear(self) -> None:
        """Remove all members and pending ids."""
        self.__init__()  # type: ignore[misc]

    def _count(self, member: MemberMetadata, sign: int) -> None:
        self.state_bytes += sign * _size(member)
        for name in {name for name, _ in member.protocols}:
            self._supporters[name] = self._supporters.get(name, 0) + sign
            if not self._supporters[name]:
                del self._supporters[name]


# --- admission ----------------------------------------------------------------------------------


class Refusal(NamedTuple):
    """Why a join is rejected; *cause* is a line for the log, empty where the operator cannot act."""

    error: ErrorCode
    cause: str = ""


def refusal(
    join: Join,
    state: GroupState,
    members: GroupMembers,
    protocol_type: str | None,
    limits: GroupLimits,
) -> Refusal | None:
    """Return why *join* is rejected; None if these checks admit it."""
    if state is GroupState.DEAD:
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if not limits.allow_session_timeout(join.session_timeout):
        return Refusal(ErrorCode.INVALID_SESSION_TIMEOUT)
    full = _full(join, state, members, limits)
    if full is not None:
        return full
    if not join.protocol_type or not join.protocols:
        return Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if len(members) and (
        join.protocol_type != protocol_type
        or not members.supports_any(name for name, _ in join.protocols)
    ):
        return Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return None


def _full(
    join: Join, state: GroupState, members: GroupMembers, limits: GroupLimits
) -> Refusal | None:
    known = members.get(join.member_id) or members.static(join.group_instance_id)
    if known is None or known.protocols != join.protocols:
        wanted = members.state_bytes + member_bytes(join.protocols, len(join.client_id))
        if wanted > limits.max_state_bytes:
            return Refusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"rejects {join.member_id or join.client_id!r}: the group would need {wanted} "
                f"bytes of state and its znode has room for {limits.max_state_bytes}; "
                "use fewer members, or shorter subscriptions",
            )
    too_many = Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED)
    if not join.member_id and len(members.pending) >= limits.max_pending_members:
        return too_many
    if state is GroupState.PREPARING_REBALANCE:
        # Only rejoined members count: after the limit was lowered, the last ones to rejoin are removed.
        if known is not None and known.awaiting_join is not None:
            return None
        return too_many if members.awaiting_join >= limits.max_size else None
    return too_many if known is None and len(members) >= limits.max_size else None


def listed(names: list[str]) -> str:
    """Return *names* for a line of the log, the first ones if there are many."""
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
