"""Known bugs of the group coordinator: answers from memory that leave without a confirmation, one bug per API."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import succeed

from kbroker.groups.effects import Answer, Joined, Left, Synced
from kbroker.runtime.coordinated_groups import GroupsOfPartition
from kbroker.runtime.coordinated_partition import CoordinatedPartition
from kbroker.runtime.group_coordinator import GroupCoordinator
from kbroker.runtime.held_group import HeldGroup
from kclient.wire.error_codes import ErrorCode
from tests.simulation.mutants.registry import Change, mutant


@mutant
def join_group_unconfirmed() -> list[Change]:
    """A deposed coordinator answers JoinGroup from memory."""
    return _answers_unconfirmed(Joined)


@mutant
def sync_group_unconfirmed() -> list[Change]:
    """A deposed coordinator answers SyncGroup from memory."""
    return _answers_unconfirmed(Synced)


@mutant
def leave_group_unconfirmed() -> list[Change]:
    """A deposed coordinator answers LeaveGroup from memory, where nothing has to be written."""
    once_writable = (HeldGroup, "once_writable", lambda _self: succeed(ErrorCode.NONE))
    return [once_writable, *_answers_unconfirmed(Left)]


@mutant
def heartbeat_unconfirmed() -> list[Change]:
    """A deposed coordinator answers Heartbeat from memory."""
    return [(CoordinatedPartition, "confirmed_since", lambda _self, _since: True)]


@mutant
def offset_fetch_unconfirmed() -> list[Change]:
    """A deposed coordinator answers OffsetFetch from memory."""
    return _unconfirmed("offsets")


@mutant
def describe_groups_unconfirmed() -> list[Change]:
    """A deposed coordinator answers DescribeGroups from memory."""
    return _unconfirmed("describe")


@mutant
def list_groups_unconfirmed() -> list[Change]:
    """A deposed coordinator answers ListGroups from memory."""

    async def list_groups(self: GroupCoordinator) -> Any:
        return self.listing()

    return [(GroupCoordinator, "list_groups", list_groups)]


@mutant
def commits_refused_unconfirmed() -> list[Change]:
    """A deposed coordinator refuses a commit of a generation that it does not know."""
    original = GroupCoordinator.commit

    async def commit(self: GroupCoordinator, group_id: str, *args: Any, **named: Any) -> Any:
        group = self._groups.held(group_id)
        if group is not None and group.offsets_known:
            who = named["member_id"], named["group_instance_id"], named["generation_id"]
            refused = group.machine.check_commit(*who, self._clock.seconds())
            if refused is not ErrorCode.NONE:
                return [refused] * len(args[0])
        return await original(self, group_id, *args, **named)

    return [(GroupCoordinator, "commit", commit)]


def _answers_unconfirmed(kind: type[Joined | Synced | Left]) -> list[Change]:
    original = HeldGroup._is_from_memory

    def is_from_memory(self: HeldGroup, answer: Answer) -> bool:
        return not isinstance(answer.value, kind) and original(self, answer)

    return [(HeldGroup, "_is_from_memory", is_from_memory)]


class _Trusting:
    """A coordinator that takes itself for one."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    async def _coordinated(self, group_id: str) -> GroupsOfPartition | ErrorCode:
        return self._coordinator._groups.locate(group_id)


def _unconfirmed(method: str) -> list[Change]:
    original = getattr(GroupCoordinator, method)

    async def answer(self: GroupCoordinator, *args: Any) -> Any:
        return await original(_Trusting(self), *args)

    return [(GroupCoordinator, method, answer)]
