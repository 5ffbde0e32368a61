"""The znodes of a group and their content.

    /consumers/G/state              JSON, `GroupSnapshot`: generation, members, assignments
    /consumers/G/ids/M              ephemeral of the coordinator's session, one per live member
    /consumers/G/offsets/T/P        the committed offset as plain decimal text
    /consumers/G/offsets/T/P/detail JSON, `CommitDetail`: only where a commit brought more than a number

The time of a commit is the offset znode's own modification time. The detail is written only when
it changes (the leader epoch of a partition rarely does), so a commit is one ZooKeeper operation.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from kbroker.coordinator.group.core.states import GroupState


class PoisonGroupStateError(ValueError):
    """The content of a group's znode is invalid; the text names the path."""


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member as the next coordinator restores it. Timeouts in milliseconds, as on the wire."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The state of a group that outlives its coordinator, without the offsets."""

    state: GroupState
    generation_id: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    members: tuple[MemberSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitDetail:
    """The optional part of a commit. The default is the meaning of an absent znode."""

    leader_epoch: int = -1
    metadata: str = ""
    position: int = 0
    """Orders the commit among offsets that are pending in transactions (`pending_offsets`); 0: before all of them."""


NO_DETAIL = CommitDetail()


def encode_snapshot(snapshot: GroupSnapshot, timestamp_ms: int) -> bytes:
    """Return the content of the state znode, stamped with the wall clock *timestamp_ms*."""
    return _json(
        {
            "version": 1,
            "state": snapshot.state.value,
            "generation": snapshot.generation_id,
            "protocol_type": snapshot.protocol_type,
            "protocol": snapshot.protocol_name,
            "leader": snapshot.leader,
            "timestamp": str(timestamp_ms),
            "members": [_member_to_json(member) for member in snapshot.members],
        }
    )


def decode_snapshot(path: str, data: bytes) -> tuple[GroupSnapshot, int]:
    """Return the group and the timestamp (ms) in the state znode at *path*.

    PoisonGroupStateError names the path of invalid content.
    """
    try:
        content = json.loads(data)
        members = tuple(_member_from_json(member) for member in content["members"])
        snapshot = GroupSnapshot(
            state=GroupState(content["state"]),
            generation_id=_integer(content["generation"]),
            protocol_type=_optional_text(content["protocol_type"]),
            protocol_name=_optional_text(content["protocol"]),
            leader=_optional_text(content["leader"]),
            members=members,
        )
        ids = {member.member_id for member in members}
        if len(ids) != len(members) or (members and snapshot.leader not in ids):
            raise ValueError("its members are not unique, or the leader is not one of them")
        if bool(members) == (snapshot.state in (GroupState.EMPTY, GroupState.DEAD)):
            raise ValueError(f"{len(members)} members in state {snapshot.state.value}")
        return snapshot, int(content["timestamp"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PoisonGroupStateError(f"{path} is not the state of a group: {error!r}") from error


def encode_detail(detail: CommitDetail) -> bytes:
    """Return the content of a detail znode."""
    content: dict[str, Any] = {
        "version": 1,
        "leader_epoch": detail.leader_epoch,
        "metadata": detail.metadata,
    }
    if detail.position:
        content["position"] = detail.position
    return _json(content)


def decode_detail(path: str, data: bytes) -> CommitDetail:
    """Return the detail in the znode at *path*; PoisonGroupStateError for anything else."""
    try:
        content = json.loads(data)
        return CommitDetail(
            _integer(content["leader_epoch"]),
            _text(content["metadata"]),
            _integer(content.get("position", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PoisonGroupStateError(f"{path} is not the detail of a commit: {error!r}") from error


def encode_member_ephemeral(
    member: MemberSnapshot, topics: tuple[str, ...], timestamp_ms: int
) -> bytes:
    """Return the content of a live member's ephemeral, in the layout of the classic consumer."""
    return _json(
        {
            "version": 1,
            "subscription": dict.fromkeys(topics, 1),
            "pattern": "static",
            "timestamp": str(timestamp_ms),
            "client_id": member.client_id,
            "host": member.client_host,
        }
    )


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Return the topics in a consumer's subscription metadata; None if it is not one.

    The embedded consumer protocol: version int16, topics as an array of strings, then more.
    """
    try:
        if len(metadata) < 6:
            return None
        count = int.from_bytes(metadata[2:6], "big", signed=True)
        position, topics = 6, []
        for _ in range(max(count, 0)):
            length = int.from_bytes(metadata[position : position + 2], "big", signed=True)
            position += 2
            if length < 0 or position + length > len(metadata):
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
        return tuple(topics)
    except UnicodeDecodeError:
        return None


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _member_to_json(member: MemberSnapshot) -> dict[str, Any]:
    # Members usually give every protocol the same metadata: written once, then null.
    subscription = member.protocols[0][1] if member.protocols else b""
    return {
        "id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "subscription": _base64(subscription),
        "protocols": [
            [name, None if data == subscription else _base64(data)]
            for name, data in member.protocols
        ],
        "assignment": _base64(member.assignment),
    }


def _member_from_json(content: dict[str, Any]) -> MemberSnapshot:
    subscription = _from_base64(content["subscription"])
    return MemberSnapshot(
        member_id=_text(content["id"]),
        group_instance_id=_optional_text(content["instance_id"]),
        client_id=_text(content["client_id"]),
        client_host=_text(content["host"]),
        session_timeout_ms=_integer(content["session_timeout_ms"]),
        rebalance_timeout_ms=_integer(content["rebalance_timeout_ms"]),
        protocols=tuple(
            (_text(name), subscription if data is None else _from_base64(data))
            for name, data in content["protocols"]
        ),
        assignment=_from_base64(content["assignment"]),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {text[:40]!r}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, not {value!r:.40}")
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"a number was expected, not {value!r:.40}")
    return value
