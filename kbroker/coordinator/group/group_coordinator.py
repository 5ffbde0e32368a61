"""The group coordinator: the requests of group members, committing clients and administrators.

`coordinator_shards` holds the groups of this broker; one group is a `group_metadata`; `offset_writer` writes the
commits of all groups, `transactional_offsets` those in transactions.

An answer from memory is confirmed first (`shard_fence`): it is correct as if the coordinator had read
ZooKeeper after the request arrived. Only Heartbeat accepts a confirmation that is `HEARTBEAT_CONFIRMATION` old. Kafka's
coordinator has no such bound: it answers from memory without a time limit.

While ZooKeeper does not answer, a group continues as it is (docs/design/groups-without-zookeeper.md). Requests that
need a write are rejected, or wait for a bounded time; no member is removed.

Errors: JoinGroup, SyncGroup, LeaveGroup and Heartbeat return a result with an error code, as in Kafka. All other
requests raise KafkaError; results with a code per partition hold only the errors of single partitions.

Owner: the reactor's thread.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kbroker.common.gather import outcomes_of
from kbroker.common.reactor import Clock
from kbroker.coordinator.group.commits_under_way import CommitsUnderWay
from kbroker.coordinator.group.committed_offsets import CommittedOffset, GroupOffsets, detail_path
from kbroker.coordinator.group.coordinator_shards import CoordinatorShard, CoordinatorShards
from kbroker.coordinator.group.core.commits import CommitKey, OffsetCommit
from kbroker.coordinator.group.core.effects import (
    Join,
    JoinGroupResult,
    LeaveGroupResult,
    MemberIdentity,
    Sync,
    SyncGroupResult,
)
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.records import CommitDetail
from kbroker.coordinator.group.core.states import GroupState
from kbroker.coordinator.group.group_metadata import UNCONFIRMED, GroupMetadata
from kbroker.coordinator.group.group_store import delete_tree
from kbroker.coordinator.group.offset_writer import OffsetWriter
from kbroker.coordinator.group.pending_offsets import UnstablePartitions
from kbroker.coordinator.group.transactional_offsets import (
    TransactionalCommit,
    TransactionalOffsets,
    Verify,
)
from kbroker.coordinator.shard_fence import LeadershipConfirmer
from kbroker.zk.errors import ZooKeeperError
from kbroker.zk.interface import ANY_VERSION, Delete, Operation, ZooKeeper
from kbroker.zk.znodes import LEGAL_TOPIC, group_offset_path
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    IllegalGeneration,
    KafkaError,
    NonEmptyGroup,
    NotCoordinator,
    for_code,
)

log = Logger()

HEARTBEAT_CONFIRMATION = 2.0
"""Seconds for which a confirmation answers heartbeats.

Less than the shortest session timeout (`group.min.session.timeout.ms`, 6 s): after that the next coordinator may assign
the member's partitions to other members.
"""

MAX_MEMBER_ID = 4096
"""Characters of a member id or instance id; it is part of the path of the member's znode."""

DELETE_ATTEMPTS = 3
"""How often the deletion of an offset is tried, if ZooKeeper refuses it because znodes exist or are missing."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in an overview."""

    group_id: str
    protocol_type: str
    state: GroupState


class GroupCoordinator:
    """Coordinates groups for *broker_id*. *now_ms* is the wall clock, for what is written.

    *no_successor_at* takes a partition of ``__consumer_offsets`` and its leader epoch, and gives a time at which no
    broker led in a later one. *is_alone* takes the same, and returns whether no other replica can be in the ISR.
    """

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        *,
        broker_id: int,
        limits: GroupLimits,
        now_ms: Callable[[], int],
        no_successor_at: Callable[[int, int], float],
        is_alone: Callable[[int, int], bool],
        offset_metadata_max_bytes: int = 4096,
        offsets_commit_timeout: float = 5.0,
        new_uuid: Callable[[], UUID] = uuid4,
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._max_metadata = offset_metadata_max_bytes
        self._new_uuid = new_uuid
        self._under_way = CommitsUnderWay()
        self._writer = OffsetWriter(
            clock, self._group, now_ms, self._under_way, timeout=offsets_commit_timeout
        )
        self._shards = CoordinatorShards(
            clock,
            zookeeper,
            broker_id=broker_id,
            limits=limits,
            now_ms=now_ms,
            on_unloaded=self._writer.fail_queued,
            confirmer=LeadershipConfirmer(clock, no_successor_at, is_alone),
        )
        self._transactional = TransactionalOffsets(
            clock,
            self._shards,
            self._writer,
            now_ms,
            self._under_way,
            timeout=offsets_commit_timeout,
        )
        self.all_commits_of_now = self._under_way.all_of_now
        self.end_transaction = self._transactional.end
        self.on_leadership = self._shards.on_leadership
        self.on_election = self._shards.on_election
        self.on_resignation = self._shards.on_resignation
        self.stop = self._shards.stop

    def on_loaded(self, callback: Callable[[], None]) -> None:
        """Call *callback* whenever this broker has become the coordinator of more groups, and has loaded them."""
        self._shards.on_loaded = callback

    def _group(self, group_id: str) -> GroupMetadata | None:
        return self._shards.group(group_id)

    async def _coordinated(self, group_id: str) -> CoordinatorShard:
        """Return the shard of *group_id*, confirmed. KafkaError if this broker does not coordinate it, or not yet."""
        await self._shards.locate(group_id).fence.confirm()
        return self._shards.locate(group_id)

    # --- group membership ---------------------------------------------------------------------

    def new_member_id(self, name: str) -> str:
        """Return a unique member id; *name* is the client's id or the instance id."""
        return f"{name}-{self._new_uuid()}"

    def join(self, group_id: str, join: Join) -> Deferred[JoinGroupResult]:
        """Handle JoinGroup. A member without an id creates the group if it does not exist.

        A join that starts a rebalance is handled once ZooKeeper has answered: a rebalance that cannot be written would
        stop all members.
        """
        joined = Deferred.fromCoroutine(self._join(group_id, join))
        return joined.addErrback(lambda failure: JoinGroupResult(_code(failure), join.member_id))

    async def _join(self, group_id: str, join: Join) -> JoinGroupResult:
        known = self._shards.group(group_id)
        if known is not None and (known.machine.join_writes(join) or known.awaits_zookeeper):
            await known.when_writable()
        shard = self._shards.locate(group_id)
        longest = max(
            map(len, (join.fresh_member_id, join.client_id, join.group_instance_id or ""))
        )
        if longest > MAX_MEMBER_ID:
            return JoinGroupResult(ErrorCode.INVALID_REQUEST, join.member_id)
        group = shard.groups.get(group_id)
        if group is None:
            if join.member_id:
                await shard.fence.confirm()
                if not self._limits.allow_session_timeout(join.session_timeout):
                    return JoinGroupResult(ErrorCode.INVALID_SESSION_TIMEOUT, join.member_id)
                return JoinGroupResult(ErrorCode.UNKNOWN_MEMBER_ID, join.member_id)
            group = self._shards.add_group(shard, group_id)
        answer: Deferred[JoinGroupResult] = group.submit(group.machine.join, join)
        if group.idle:
            self._shards.remove_group(group)  # rejected, and it was new
        return await answer

    def sync(self, group_id: str, sync: Sync) -> Deferred[SyncGroupResult]:
        """Handle SyncGroup."""
        synced = Deferred.fromCoroutine(self._sync(group_id, sync))
        return synced.addErrback(lambda failure: SyncGroupResult(_code(failure)))

    async def _sync(self, group_id: str, sync: Sync) -> SyncGroupResult:
        try:
            shard = self._shards.locate(group_id)
        except CoordinatorLoadInProgress:
            # The members keep their ids and generation: they rejoin when the group is loaded.
            return SyncGroupResult(ErrorCode.REBALANCE_IN_PROGRESS)
        group = shard.groups.get(group_id)
        if group is None:
            await shard.fence.confirm()
            return SyncGroupResult(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.machine.sync_writes(sync) or group.awaits_zookeeper:
            await group.when_writable()
        answer: Deferred[SyncGroupResult] = group.submit(group.machine.sync, sync)
        return await answer

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Handle Heartbeat, from memory after a recent confirmation; an error is confirmed first."""
        try:
            shard = self._shards.locate(group_id)
            group = shard.groups.get(group_id)
            now = self._clock.seconds()
            error = ErrorCode.UNKNOWN_MEMBER_ID
            if group is not None:
                error = group.machine.heartbeat(member_id, group_instance_id, generation_id, now)
            if error is not ErrorCode.NONE or not shard.fence.confirmed_since(
                now - HEARTBEAT_CONFIRMATION
            ):
                await shard.fence.confirm()
        except CoordinatorLoadInProgress:
            return ErrorCode.NONE  # as in Kafka: the loaded member gets a fresh session timeout
        except KafkaError as failure:
            return failure.code
        return error

    def leave(
        self, group_id: str, identities: Sequence[MemberIdentity], reason: str = ""
    ) -> Deferred[LeaveGroupResult]:
        """Handle LeaveGroup."""
        left = Deferred.fromCoroutine(self._leave(group_id, identities, reason))
        return left.addErrback(lambda failure: LeaveGroupResult(_code(failure)))

    async def _leave(
        self, group_id: str, identities: Sequence[MemberIdentity], reason: str
    ) -> LeaveGroupResult:
        shard = self._shards.locate(group_id)
        group = shard.groups.get(group_id)
        if group is None:
            await shard.fence.confirm()
            unknown = tuple((identity, ErrorCode.UNKNOWN_MEMBER_ID) for identity in identities)
            return LeaveGroupResult(ErrorCode.NONE, unknown)
        await group.when_writable()
        answer: Deferred[LeaveGroupResult] = group.submit(group.machine.leave, identities, reason)
        return await answer

    # --- offsets ------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        offsets: Sequence[tuple[str, int, OffsetCommit]],
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        generation_id: int = -1,
    ) -> list[ErrorCode]:
        """Store (topic, partition, commit) of a group; return an error for each, in order."""
        number = self._under_way.begin()
        wanted: list[tuple[str, int, OffsetCommit]] = []
        try:
            errors, wanted = await self._accepted(
                group_id, offsets, member_id, group_instance_id, generation_id
            )
        finally:
            if not wanted:
                self._under_way.end(number)
        written = iter(await self._writer.commit(group_id, wanted, number) if wanted else ())
        return [next(written) if error is ErrorCode.NONE else error for error in errors]

    async def _accepted(
        self,
        group_id: str,
        offsets: Sequence[tuple[str, int, OffsetCommit]],
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
    ) -> tuple[list[ErrorCode], list[tuple[str, int, OffsetCommit]]]:
        """Return an error for each of *offsets*, and those to be written. KafkaError if all are refused."""
        shard = self._shards.locate(group_id)
        if generation_id >= 0 and group_id not in shard.groups and group_id not in shard.known:
            await shard.fence.confirm()
            raise IllegalGeneration  # a group without members has no generation
        group = shard.groups.get(group_id) or self._shards.add_group(shard, group_id)
        if not group.znodes.offsets_known:
            await group.load_offsets()
        now = self._clock.seconds()
        refused = group.machine.check_commit(member_id, group_instance_id, generation_id, now)
        if refused is ErrorCode.NONE and not group.fence.zookeeper_answers:
            refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if refused is not ErrorCode.NONE:
            if group.idle:
                self._shards.remove_group(group)
            if refused not in UNCONFIRMED:
                await group.fence.confirm()
            raise for_code(refused)
        errors = [self._check_offset(topic, commit.detail) for topic, _, commit in offsets]
        wanted = [
            offset for offset, error in zip(offsets, errors, strict=True) if error is ErrorCode.NONE
        ]
        if not wanted:
            if group.idle:
                self._shards.remove_group(group)
            return errors, []
        self._shards.add_known(group)
        return errors, [self._with_position(group, *offset) for offset in wanted]

    def _with_position(
        self, group: GroupMetadata, topic: str, partition: int, commit: OffsetCommit
    ) -> tuple[str, int, OffsetCommit]:
        """Return a commit that arrives now: after an offset of the partition that is pending in a transaction."""
        shard = self._shards.partitions.get(group.fence.partition)
        if shard is not None and shard.pending.has_partition(group.group_id, (topic, partition)):
            known = group.znodes.offsets.position(topic, partition)
            position = shard.pending.next_position(known)
            commit = OffsetCommit(commit.offset, replace(commit.detail, position=position))
        return topic, partition, commit

    async def commit_in_transaction(
        self,
        group_id: str,
        offsets: Sequence[tuple[str, int, OffsetCommit]],
        commit: TransactionalCommit,
        verify: Verify,
    ) -> list[ErrorCode]:
        """Make (topic, partition, commit) pending in an open transaction; return an error for each, in order.

        *verify* asks the transaction coordinator for the transaction of *commit*.
        """
        errors = [self._check_offset(topic, commit.detail) for topic, _, commit in offsets]
        wanted = {
            (topic, partition): offset
            for (topic, partition, offset), error in zip(offsets, errors, strict=True)
            if error is ErrorCode.NONE
        }
        if not wanted:
            return errors
        written = await self._transactional.commit(group_id, wanted, commit, verify)
        return [written if error is ErrorCode.NONE else error for error in errors]

    def _check_offset(self, topic: str, detail: CommitDetail) -> ErrorCode:
        if len(detail.metadata) > self._max_metadata:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        if LEGAL_TOPIC.fullmatch(topic) is None or topic in (".", ".."):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return ErrorCode.NONE

    async def offsets(self, group_id: str) -> GroupOffsets:
        """Return all committed offsets of a group.

        They are the coordinator's own: read, do not keep or change them.
        """
        return await self._offsets(await self._coordinated(group_id), group_id)

    async def offsets_and_pending(self, group_id: str) -> tuple[GroupOffsets, UnstablePartitions]:
        """Return the offsets as they are now, and the partitions with an offset that an open transaction commits.

        A response that takes several turns of the reactor so has each transaction whole.
        """
        offsets = (await self.offsets(group_id)).snapshot()
        return offsets, self._shards.locate(group_id).pending.unstable(group_id)

    async def _offsets(self, shard: CoordinatorShard, group_id: str) -> GroupOffsets:
        group = shard.groups.get(group_id)
        if group is None:
            if group_id not in shard.known:
                return GroupOffsets(group_id)
            group = self._shards.add_group(shard, group_id)
        if not group.znodes.offsets_known and not (
            # An acknowledged offset stays valid while it cannot be read again: a commit in doubt counts as not done.
            group.znodes.offsets_read and not group.fence.zookeeper_answers
        ):
            await group.load_offsets()
        return group.znodes.offsets

    async def delete_offsets(
        self, group_id: str, wanted: Sequence[tuple[str, int]]
    ) -> list[ErrorCode]:
        """Delete offsets of (topic, partition); return an error for each.

        Only of topics without a subscription of a member (KIP-496). A subscription that cannot be read counts as one to
        every topic, as in Kafka.
        """
        shard = await self._coordinated(group_id)
        if group_id not in shard.groups and group_id not in shard.known:
            raise GroupIdNotFound
        if not shard.fence.zookeeper_answers:
            raise CoordinatorNotAvailable
        group = shard.groups.get(group_id) or self._shards.add_group(shard, group_id)
        if not group.znodes.offsets_known:
            await group.load_offsets()
        machine = group.machine
        if len(machine.members) and machine.protocol_type != "consumer":
            raise NonEmptyGroup
        subscribed = group.subscribed_topics()
        errors = []
        for topic, partition in wanted:
            if subscribed is None or topic in subscribed:
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                errors.append(await self._delete_offset(shard, group, topic, partition))
        if wanted:
            await self._delete_if_unused(group_id)
        return errors

    async def drop_pending(self, group_id: str, partitions: set[tuple[str, int]]) -> bool:
        """Delete pending offsets of transactions of a loaded group; return False if that must be tried again."""
        if self._shards.group(group_id) is None:
            return True
        try:
            await self._transactional.forget(self._shards.locate(group_id), group_id, partitions)
        except NotCoordinator:
            return True
        except KafkaError:
            return False
        return True

    async def drop_offsets(self, group_id: str, versions: Mapping[tuple[str, int], int]) -> bool:
        """Delete offsets of a loaded group, also of subscribed topics; return False if some must be decided again.

        An offset is deleted while its znode has the given version: a commit meanwhile stays. A group without members
        and without any offset left is deleted, as in Kafka.
        """
        group = self._shards.group(group_id)
        if group is None:
            return True
        try:
            errors = [
                await self._delete_known_offset(group, *offset, version=version)
                for offset, version in versions.items()
            ]
            await self._delete_if_unused(group_id)
        except NotCoordinator:
            return True
        except KafkaError:
            return False
        return {ErrorCode.NONE, ErrorCode.NOT_COORDINATOR}.issuperset(errors)

    async def _delete_if_unused(self, group_id: str) -> None:
        """Delete a group that has neither members nor offsets, nor anything on its way."""
        shard = self._shards.locate(group_id)
        group = shard.groups.get(group_id)
        if group is None or len(group.machine.members):
            return
        if not group.znodes.offsets_known:
            await group.load_offsets()
        offsets = group.znodes.offsets
        is_in_use = (
            len(group.machine.members)
            or any(offsets.committed.values())
            or any(offsets.unreadable.values())
            or group.machine.members.pending
            or self._has_commits(shard, group_id)
        )
        if not is_in_use and offsets.has_root:
            await self._delete(shard, group_id)

    def _has_commits(self, shard: CoordinatorShard, group_id: str) -> bool:
        """Return whether commits of a group are on their way, or pending in a transaction."""
        return self._writer.has_pending(group_id) or shard.pending.has_group(group_id)

    def may_have_offsets(self, group_id: str, topics: Collection[str]) -> bool:
        """Return whether a group has offsets of one of *topics*, or may have some that are not in memory."""
        group = self._shards.group(group_id)
        if group is None or not group.znodes.offsets_known:
            return True
        pending = self._shards.locate(group_id).pending.unstable(group_id)
        offsets = group.znodes.offsets
        return any(offsets.partitions(topic) or pending.of_topic(topic) for topic in topics)

    def topics_with_offsets(self, group_id: str) -> set[str]:
        """Return the topics of the offsets of a group, committed or pending, as far as they are in memory."""
        group = self._shards.group(group_id)
        if group is None:
            return set()
        pending = self._shards.locate(group_id).pending.unstable(group_id)
        return pending.topics() | {t for t, ps in group.znodes.offsets.committed.items() if ps}

    async def expire_offsets(self, group_id: str, before_ms: int) -> int:
        """Delete the offsets that a group has not used since *before_ms*; return how many.

        Those of a Stable group are of topics without a subscription. A group without members, and without any offset
        left, is deleted. Each deletion leaves in the turn that finds its offsets unused and
        no commit on its way, so ZooKeeper executes it before every later commit.
        """
        try:
            # Not confirmed: it leads only to writes, which ZooKeeper rejects if another broker coordinates.
            await self._offsets(self._shards.locate(group_id), group_id)
            shard = self._shards.locate(group_id)
        except KafkaError:
            return 0
        group = shard.groups.get(group_id)
        if group is None:
            return 0
        old, is_unused = self._unused_offsets(group, before_ms)
        # Nothing shows how old they are: they stay until the group commits, or the offset is deleted.
        is_unused = is_unused and not any(group.znodes.offsets.unreadable.values())
        if is_unused:
            try:
                await self._delete(shard, group_id)
            except KafkaError:
                return 0
            return len(old)
        deleted = 0
        for topic, partition, committed in old:
            unchanged = group.znodes.offsets.committed.get(topic, {}).get(partition) is committed
            pending = self._writer.is_pending(
                CommitKey(group_id, topic, partition)
            ) or shard.pending.has_partition(group_id, (topic, partition))
            if unchanged and not pending and group.unused_topics([topic]):
                error = await self._delete_known_offset(group, topic, partition)
                deleted += error is ErrorCode.NONE
        return deleted

    def _unused_offsets(
        self, group: GroupMetadata, before_ms: int
    ) -> tuple[list[tuple[str, int, CommittedOffset]], bool]:
        """Return the offsets of *group* that are unused since *before_ms*, and whether the whole group is unused.

        An offset with another one that is pending in a transaction is in use, and so is the group.
        """
        shard = self._shards.locate(group.group_id)
        pending = shard.pending.unstable(group.group_id)
        if not group.may_expire:
            unused = group.unused_topics(group.znodes.offsets.committed)
            return [
                (topic, partition, committed)
                for topic, partition, committed in group.znodes.offsets
                if topic in unused
                and committed.timestamp_ms < before_ms
                and (topic, partition) not in pending
            ], False
        table = list(group.znodes.offsets)
        has_commits = self._has_commits(shard, group.group_id)
        if group.machine.protocol_type is not None:
            newest = max(
                [group.znodes.changed_ms, *(committed.timestamp_ms for _, _, committed in table)]
            )
            old = table if newest < before_ms and not has_commits else []
        else:
            newest = group.znodes.changed_ms
            old = [
                entry
                for entry in table
                if entry[2].timestamp_ms < before_ms and entry[:2] not in pending
            ]
        return old, newest < before_ms and not has_commits and len(old) == len(table)

    async def _delete_known_offset(
        self, group: GroupMetadata, topic: str, partition: int, version: int = ANY_VERSION
    ) -> ErrorCode:
        """Delete an offset that is in memory, if its znode has *version*.

        While the offsets are read, a deletion would be missing in what is read. COORDINATOR_NOT_AVAILABLE if ZooKeeper
        refuses: the znodes are not those in memory, and are read again.
        """
        if not group.znodes.offsets_known:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        offsets = group.znodes.offsets
        is_unreadable = partition in offsets.unreadable.get(topic, ())
        if not is_unreadable and partition not in offsets.committed.get(topic, {}):
            return ErrorCode.NONE
        path = group_offset_path(group.group_id, topic, partition)
        operations: list[Operation] = [Delete(path, version)]
        if partition in group.znodes.offsets.partitions_with_detail(topic):
            operations.insert(0, Delete(detail_path(path)))
        try:
            await group.fence.write(operations)
        except NotCoordinator:
            return ErrorCode.NOT_COORDINATOR
        except ZooKeeperError:
            group.znodes.offsets_known = False
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group.znodes.offsets.forget(topic, partition)
        return ErrorCode.NONE

    async def _delete_offset(
        self, shard: CoordinatorShard, group: GroupMetadata, topic: str, partition: int
    ) -> ErrorCode:
        """Delete an offset, and what is pending; if the znodes are not those in memory, read them and try again."""
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        for _ in range(DELETE_ATTEMPTS):
            try:
                await self._transactional.forget(shard, group.group_id, {(topic, partition)})
                if not group.znodes.offsets_known:
                    await group.load_offsets()
            except KafkaError as failure:
                return failure.code
            error = await self._delete_known_offset(group, topic, partition)
            if error is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                break
        return error

    # --- administration -----------------------------------------------------------------------

    async def describe(self, group_id: str) -> GroupMetadata:
        """Return a group, to be read only. GroupIdNotFound."""
        shard = await self._coordinated(group_id)
        group = shard.groups.get(group_id)
        if group is None and group_id in shard.known:
            group = self._shards.add_group(shard, group_id)
        if group is None:
            raise GroupIdNotFound
        return group

    async def list_groups(self) -> tuple[list[GroupListing], ErrorCode]:
        """Return the groups that this broker coordinates, confirmed; COORDINATOR_LOAD_IN_PROGRESS with a partial list.

        CoordinatorNotAvailable if a shard cannot be confirmed. A shard that another broker leads now is left out.
        """
        fences = [shard.fence for shard in self._shards.partitions.values() if shard.loaded]
        for outcome in await outcomes_of([fence.confirm() for fence in fences]):
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotCoordinator):
                raise outcome
        return self.listing()

    def listing(self) -> tuple[list[GroupListing], ErrorCode]:
        """Return the loaded groups; with COORDINATOR_LOAD_IN_PROGRESS if some are not loaded yet."""
        groups = []
        error = ErrorCode.NONE
        for shard in self._shards.partitions.values():
            if not shard.loaded:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            for group in shard.groups.values():
                machine = group.machine
                groups.append(
                    GroupListing(group.group_id, machine.protocol_type or "", machine.state)
                )
            for group_id in shard.known:
                if group_id not in shard.groups:
                    groups.append(GroupListing(group_id, "", GroupState.EMPTY))
        return groups, error

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets.

        GroupIdNotFound, NonEmptyGroup, CoordinatorNotAvailable, NotCoordinator.
        """
        await self._delete(await self._coordinated(group_id), group_id)

    async def _delete(self, shard: CoordinatorShard, group_id: str) -> None:
        """Delete a group of *shard*, from this turn on; errors as in `delete`."""
        group = shard.groups.get(group_id)
        if group is None and group_id not in shard.known and not shard.pending.has_group(group_id):
            raise GroupIdNotFound
        if not shard.fence.zookeeper_answers:
            raise CoordinatorNotAvailable
        if group is not None:
            if len(group.machine.members):
                raise NonEmptyGroup
            if group.machine.state is GroupState.DEAD:
                raise GroupIdNotFound
            del shard.groups[group_id]
            group.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._writer.fail_queued([group_id], ErrorCode.GROUP_ID_NOT_FOUND)
        shard.loading.add(group_id)
        shard.known.pop(group_id, None)
        try:
            await self._transactional.forget_group(shard, group_id)
            await delete_tree(shard.fence, group_id)
        except CoordinatorNotAvailable:
            self._shards.reload(shard, group_id)
            raise
        except ZooKeeperError as error:
            log.warn("group {group} is not deleted: {error}", group=group_id, error=error)
            self._shards.reload(shard, group_id)
            raise CoordinatorNotAvailable(f"the group is not deleted: {error}") from None
        shard.loading.discard(group_id)


def _code(failure: Any) -> ErrorCode:
    """Return the code of a KafkaError; any other failure is raised again."""
    failure.trap(KafkaError)
    code: ErrorCode = failure.value.code
    return code
