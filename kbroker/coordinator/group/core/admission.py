"""Which JoinGroup a group admits: by its size, the session timeout, and a protocol in common with the members."""

from typing import NamedTuple

from kbroker.coordinator.group.core.effects import Join
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.members import Roster, member_bytes
from kbroker.coordinator.group.core.states import GroupState
from kclient.wire.error_codes import ErrorCode


class Refusal(NamedTuple):
    """Why a join is rejected; *cause* is a line for the log, empty where the operator cannot act."""

    error: ErrorCode
    cause: str = ""


def refusal(
    join: Join, state: GroupState, members: Roster, protocol_type: str | None, limits: GroupLimits
) -> Refusal | None:
    """Return why *join* is rejected; None if these checks admit it."""
    if state is GroupState.DEAD:
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if not limits.min_session_timeout <= join.session_timeout <= limits.max_session_timeout:
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


def _full(join: Join, state: GroupState, members: Roster, limits: GroupLimits) -> Refusal | None:
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
