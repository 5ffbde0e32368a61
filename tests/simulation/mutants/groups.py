"""Known bugs of the group coordinator: answers from memory without a confirmation (one bug per API), writes without a
fence, generations that are not checked, commits that are lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from kbroker.coordinator.group.commits_under_way import CommitsUnderWay
from kbroker.coordinator.group.coordinator_shards import CoordinatorShard, CoordinatorShards
from kbroker.coordinator.group.core.effects import (
    Answer,
    JoinGroupResult,
    LeaveGroupResult,
    SyncGroupResult,
)
from kbroker.coordinator.group.core.group import Group
from kbroker.coordinator.group.core.outbox import Outbox
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.group_metadata import GroupMetadata
from kbroker.coordinator.group.offset_expiry import ALL, OffsetExpiry
from kbroker.coordinator.group.offset_writer import OffsetWriter
from kbroker.coordinator.shard_fence import ShardFence
from kbroker.replica.core.leader_state import LeaderState
from kbroker.zk.errors import ConnectionLoss
from kbroker.zk.interface import Check
from kbroker.zk.znodes import topic_path
from kclient.wire.error_codes import ErrorCode
from tests.simulation.mutants.registry import Change, frequent_mutant, mutant


@mutant
def join_group_unconfirmed() -> list[Change]:
    """A deposed coordinator answers JoinGroup from memory."""
    return _answers_unconfirmed(JoinGroupResult)


@mutant
def sync_group_unconfirmed() -> list[Change]:
    """A deposed coordinator answers SyncGroup from memory."""
    return _answers_unconfirmed(SyncGroupResult)


@mutant
def leave_group_unconfirmed() -> list[Change]:
    """A deposed coordinator answers LeaveGroup from memory, where nothing has to be written."""
    when_writable = (GroupMetadata, "when_writable", lambda _self: succeed(None))
    return [when_writable, *_answers_unconfirmed(LeaveGroupResult)]


@mutant
def heartbeat_unconfirmed() -> list[Change]:
    """A deposed coordinator answers Heartbeat from memory."""
    return [(ShardFence, "confirmed_since", lambda _self, _since: True)]


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
def groups_kept_without_followers() -> list[Change]:
    """A coordinator that is cut off from ZooKeeper goes on, whether the in-sync replicas follow it or not."""
    return [(LeaderState, "no_successor_at", lambda _self, _fetches, now: now)]


@mutant
def commits_refused_unconfirmed() -> list[Change]:
    """A deposed coordinator refuses a commit of a generation that it does not know."""
    original = GroupCoordinator.commit

    async def commit(self: GroupCoordinator, group_id: str, *args: Any, **named: Any) -> Any:
        group = self._shards.group(group_id)
        if group is not None and group.znodes.offsets_known:
            identity = named["member_id"], named["group_instance_id"], named["generation_id"]
            refused = group.machine.check_commit(*identity, self._clock.seconds())
            if refused is not ErrorCode.NONE:
                return [refused] * len(args[0])
        return await original(self, group_id, *args, **named)

    return [(GroupCoordinator, "commit", commit)]


def _answers_unconfirmed(
    kind: type[JoinGroupResult | SyncGroupResult | LeaveGroupResult],
) -> list[Change]:
    original = GroupMetadata._is_from_memory

    def is_from_memory(self: GroupMetadata, answer: Answer) -> bool:
        return not isinstance(answer.value, kind) and original(self, answer)

    return [(GroupMetadata, "_is_from_memory", is_from_memory)]


class _Trusting:
    """A coordinator that takes itself for one."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)

    async def _coordinated(self, group_id: str) -> CoordinatorShard:
        return self._coordinator._shards.locate(group_id)


def _unconfirmed(method: str) -> list[Change]:
    original = getattr(GroupCoordinator, method)

    async def answer(self: GroupCoordinator, *args: Any) -> Any:
        return await original(_Trusting(self), *args)

    return [(GroupCoordinator, method, answer)]


_check = ShardFence.check


def _with_any_version(self: ShardFence) -> Check:
    return Check(self._path, -1)


@mutant
def commits_not_fenced() -> list[Change]:
    """Offsets are written whatever the version of the partition's state: by a deposed coordinator, too (S31)."""
    original = OffsetWriter._send

    def send(self: OffsetWriter) -> None:
        ShardFence.check = property(_with_any_version)  # type: ignore[method-assign,assignment]
        try:
            original(self)
        finally:
            ShardFence.check = _check  # type: ignore[method-assign]

    return [(OffsetWriter, "_send", send)]


@mutant
def group_states_not_fenced() -> list[Change]:
    """A group's state is written whatever the version of the partition's state (S30).

    Whether it may be written is confirmed before the decision, too: both guards are taken away.
    """

    async def write(self: ShardFence, operations: Any) -> Any:
        results = await self.zookeeper.multi([_with_any_version(self), *operations])
        return results[1:]

    return [
        (ShardFence, "write", write),
        (ShardFence, "confirm_writable", lambda _self: succeed(None)),
    ]


@mutant
def answers_before_the_snapshot() -> list[Change]:
    """JoinGroup and SyncGroup are answered before ZooKeeper has the generation or the assignment."""

    def answer_at_once(self: Outbox, token: Any, value: Any, _member_id: str = "") -> None:
        self.answer(token, value)

    return [
        (Outbox, "answer_durably", answer_at_once),
        (GroupMetadata, "_is_from_memory", lambda _self, _answer: False),
    ]


@mutant
def generation_unchecked_at_commit() -> list[Change]:
    """A commit of any generation is written."""
    original = Group.check_commit

    def check(self: Group, member: str, instance: Any, generation: int, now: float) -> ErrorCode:
        return original(self, member, instance, min(generation, 0) or self.generation_id, now)

    return [(Group, "check_commit", check)]


@mutant
def membership_unchecked_at_commit() -> list[Change]:
    """A commit is written also when it comes from a member that was removed."""
    return [(Group, "check_commit", lambda *_args: ErrorCode.NONE)]


@frequent_mutant
def commit_answered_before_the_write() -> list[Change]:
    """A commit is acknowledged when it is queued."""
    original = OffsetWriter.commit

    def commit(
        self: OffsetWriter, group_id: str, offsets: Any, number: int
    ) -> Deferred[list[ErrorCode]]:
        original(self, group_id, offsets, number)
        return succeed([ErrorCode.NONE] * len(offsets))

    return [(OffsetWriter, "commit", commit)]


@mutant
def lost_answer_taken_for_a_commit() -> list[Change]:
    """A commit counts as written although its write was not answered."""
    original = OffsetWriter._failed

    def failed(self: OffsetWriter, failure: Failure, multi: Any) -> None:
        if failure.check(ConnectionLoss):
            self._written(None, multi)
        else:
            original(self, failure, multi)

    return [(OffsetWriter, "_failed", failed)]


@mutant
def lost_answer_taken_for_no_commit() -> list[Change]:
    """After a write without an answer its commit is sent again later, over any newer commit."""
    original = OffsetWriter._failed

    def failed(self: OffsetWriter, failure: Failure, multi: Any) -> None:
        original(self, failure, multi)
        if failure.check(ConnectionLoss):
            self._clock.callLater(2.0, _send_again, self, multi)

    return [(OffsetWriter, "_failed", failed)]


def _send_again(writer: OffsetWriter, multi: Any) -> None:
    group: GroupMetadata = next(iter(multi.commits.values()))
    operations = [replace(each) for each in multi.operations]
    Deferred.fromCoroutine(group.fence.write(operations)).addErrback(lambda _failure: None)


@mutant
def groups_loaded_without_sync() -> list[Change]:
    """A new coordinator reads from a server of ZooKeeper that may be behind.

    No old state of a group can be taken over, for a server that has the state of our leadership has all that was
    written before it. But a server that does not have it yet makes the coordinator give up, for good.
    """
    original = CoordinatorShards._load_connected

    async def load(self: CoordinatorShards, batch: list[CoordinatorShard]) -> None:
        zookeeper = batch[0].fence.zookeeper
        if zookeeper.connected:
            zookeeper.sync = lambda path: succeed(None)  # type: ignore[method-assign]
        try:
            await original(self, batch)
        finally:
            vars(zookeeper).pop("sync", None)

    return [(CoordinatorShards, "_load_connected", load)]


@mutant
def heartbeats_of_any_generation() -> list[Change]:
    """Heartbeats of an earlier generation are answered without an error."""
    original = Group.heartbeat

    def heartbeat(self: Group, member: str, instance: Any, _generation: int, now: float) -> Any:
        return original(self, member, instance, self.generation_id, now)

    return [(Group, "heartbeat", heartbeat)]


@mutant
def dead_members_stay() -> list[Change]:
    """A member that is silent for its session timeout is not removed."""

    def tick(self: Group, now: float) -> Any:
        self._out.disarm()
        self._tick_rebalance(now)
        return self._flush()

    return [(Group, "tick", tick)]


@mutant
def deleted_topics_leave_their_offsets() -> list[Change]:
    """The offsets of a deleted topic stay until a sweep, if no topic of that name exists then."""
    return [(OffsetExpiry, "topics_deleted", lambda _self, _gone: None)]


@mutant
def deletion_requests_are_ignored_while_the_znode_is_there() -> list[Change]:
    """The offsets of a topic are kept if its znode is there, though its deletion is requested."""

    async def end_of(self: OffsetExpiry, topic: str, _topic_id: Any) -> int | None:
        found = await self._zookeeper.exists(topic_path(topic))
        return ALL if found is None else None

    return [(OffsetExpiry, "_end_of", end_of)]


@mutant
def offsets_of_the_next_topic_are_deleted() -> list[Change]:
    """With a deleted topic go all offsets of its name, those of a topic that was created again too."""
    original = OffsetExpiry._end_of

    async def end_of(self: OffsetExpiry, topic: str, topic_id: Any) -> int | None:
        return ALL if await original(self, topic, topic_id) is not None else None

    return [(OffsetExpiry, "_end_of", end_of)]


@mutant
def deletions_are_forgotten_at_an_election() -> list[Change]:
    """A coordinator does not look for offsets that the one before has left of a deleted topic."""
    return [(OffsetExpiry, "groups_loaded", lambda _self: None)]


@mutant
def commits_under_way_are_not_waited_for() -> list[Change]:
    """The offsets of a deleted topic are looked for while one that was accepted before is being written."""
    return [(CommitsUnderWay, "all_of_now", lambda _self: succeed(None))]
