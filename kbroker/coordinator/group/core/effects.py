"""The events and effects of a group's state machine.

Events are the arguments of `kbroker.coordinator.group.core.group.Group`'s methods; the larger ones are values
defined here. Effects leave as a list; the owner performs them in order.
"""

from dataclasses import dataclass
from typing import NamedTuple, NewType

from kbroker.coordinator.group.core.records import GroupSnapshot
from kclient.wire.error_codes import ErrorCode

Token = NewType("Token", int)
"""Identifies one waiting request; the owner chooses it, and answers it exactly once."""

Protocols = tuple[tuple[str, bytes], ...]
"""The protocols of a member: (protocol name, metadata), most preferred first."""


# --- In ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request. Timeouts in seconds.

    *fresh_member_id* is the id for a request without one. *requires_known_member_id*:
    from version 4 on a new member is first sent its id and must join again with it (KIP-394).
    *supports_skip_assignment*: from version 9 on (KIP-814).
    """

    member_id: str
    fresh_member_id: str
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocol_type: str
    protocols: Protocols
    group_instance_id: str | None = None
    requires_known_member_id: bool = True
    supports_skip_assignment: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request; *assignments* (by member id) come from the leader only.

    *protocol_type* and *protocol_name* are checked where given (version 5, KIP-559).
    """

    member_id: str
    generation_id: int
    assignments: dict[str, bytes]
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


class MemberIdentity(NamedTuple):
    """The member that leaves: by member id, or by instance id with an empty member id (KIP-345)."""

    member_id: str
    group_instance_id: str | None = None


# --- Out --------------------------------------------------------------------------------------


class JoinedMember(NamedTuple):
    """A member in the leader's JoinGroup response, with its metadata for the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupResult:
    """The answer to `Join`. *members* is filled for the leader only."""

    error: ErrorCode
    member_id: str = ""
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncGroupResult:
    """The answer to `Sync`."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaveGroupResult:
    """The answer to a LeaveGroup: one error per identity, in order."""

    error: ErrorCode
    members: tuple[tuple[MemberIdentity, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request *token* with *value*."""

    token: Token
    value: JoinGroupResult | SyncGroupResult | LeaveGroupResult


@dataclass(frozen=True, slots=True)
class Persist:
    """Write *snapshot* to ZooKeeper, then report `Group.persisted` with *sequence*.

    Every snapshot is complete: of several waiting ones only the newest is written.
    """

    sequence: int
    snapshot: GroupSnapshot


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `Group.tick` at *at* (seconds, the clock of the events); replaces an earlier timer."""

    at: float


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line for the broker's log."""

    text: str


Effect = Answer | Persist | SetTimer | LogLine
