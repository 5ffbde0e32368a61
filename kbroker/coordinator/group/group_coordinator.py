"""The group coordinator: the requests of members, of committers and of administrators.

Which groups are held here, and until when, is the business of `coordinator_shards`; one group is a
`group_metadata`, and `offset_writer` writes the commits of all.

Whatever is answered from memory is confirmed first (`leadership_confirmer`): a request is answered as if
the coordinator had read ZooKeeper after it came. Heartbeats alone may go by a confirmation that is
`HEARTBEAT_TRUST` old; Kafka promises nothing here, and answers them from memory for ever.

While ZooKeeper does not answer a group goes on as it is (docs/design/groups-without-zookeeper.md):
what would have to be written is refused, or waits for a bounded time, and no member is removed.

Owner: the reactor's thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from kbroker.common.reactor import Clock
from kbroker.coordinator.group.committed_offsets import CommittedOffset, detail_path
from kbroker.coordinator.group.coordinator_shards import CoordinatorShard, CoordinatorShards
from kbroker.coordinator.group.core.commits import OffsetCommit
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
from kbroker.coordinator.group.leadership_confirmer import LeadershipConfirmer
from kbroker.coordinator.group.offset_writer import OffsetWriter
from kbroker.zk.errors import ConnectionLoss, NoNode, SessionExpired, ZooKeeperError
from kbroker.zk.interface import Delete, Operation, ZooKeeper
from kbroker.zk.znodes import LEGAL_TOPIC, group_offset_path
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import NotCoordinator

log = Logger()

HEARTBEAT_TRUST = 2.0
"""Seconds for which a confirmation answers heartbeats: a member learns in time that it has to move.

Less than the shortest session timeout (`group.min.session.timeout.ms`, 6 s), after which the next coordinator could
give its partitions away.
"""

MAX_MEMBER_ID = 4096
"""Characters of a member id or instance id; it is part of the path of the member's znode."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in an overview."""

    group_id: str
    protocol_type: str
    state: GroupState


class GroupCoordinator:
    """Coordinates groups for *broker_id*. *now_ms* is the wall clock, for what is written.

    *no_successor_at* takes a partition of ``__consumer_offsets`` and its leader epoch, and gives a time at which no
    broker led in a later one. Without it the partitions count as having no other replica. *is_alone* takes the same,
    and returns whether no other replica can be in the ISR.
    """

    def __init__(
        self,
        clock: Clock,
        zookeeper: ZooKeeper,
        *,
        broker_id: int,
        limits: GroupLimits,
        now_ms: Callable[[], int],
        offset_metadata_max_bytes: int = 4096,
        offsets_commit_timeout: float = 5.0,
        no_successor_at: Callable[[int, int], float] | None = None,
        is_alone: Callable[[int, int], bool] = lambda _partition, _leader_epoch: False,
        new_uuid: Callable[[], UUID] = uuid4,
    ) -> None:
        self._clock = clock
        self._max_metadata = offset_metadata_max_bytes
        self._new_uuid = new_uuid
        self._writer = OffsetWriter(clock, self._group, now_ms, timeout=offsets_commit_timeout)
        self._shards = CoordinatorShards(
            clock,
            zookeeper,
            broker_id=broker_id,
            limits=limits,
            now_ms=now_ms,
            on_unloaded=self._writer.fail_queued,
            confirmer=LeadershipConfirmer(
                clock, no_successor_at or (lambda _p, _e: clock.seconds()), is_alone
            ),
        )
        self.on_leadership = self._shards.on_leadership
        self.on_election = self._shards.on_election
        self.on_resignation = self._shards.on_resignation
        self.stop = self._shards.stop

    def _group(self, group_id: str) -> GroupMetadata | None:
        return self._shards.group(group_id)

    async def _coordinated(self, group_id: str) -> CoordinatorShard | ErrorCode:
        """Return the partition of ours that *group_id* belongs to, confirmed; or why there is none."""
        shard = self._shards.locate(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return await shard.fence.confirm() or self._shards.locate(group_id)

    # --- membership ---------------------------------------------------------------------------

    def new_member_id(self, name: str) -> str:
        """Return a member id that no other member has; *name* is the client's or the instance's."""
        return f"{name}-{self._new_uuid()}"

    def join(self, group_id: str, join: Join) -> Deferred[JoinGroupResult]:
        """Handle JoinGroup. A group that does not exist is made for a member without an id.

        A join that begins a rebalance is handled once ZooKeeper has answered: a rebalance that cannot be
        written would stop all members.
        """
        group = self._shards.group(group_id)
        if group is None or not (group.machine.join_writes(join) or group.awaits_zookeeper):
            return self._join(group_id, join)
        return group.when_writable().addCallback(
            lambda error: (
                JoinGroupResult(error, join.member_id) if error else self._join(group_id, join)
            )
        )

    def _join(self, group_id: str, join: Join) -> Deferred[JoinGroupResult]:
        shard = self._shards.locate(group_id)
        if isinstance(shard, ErrorCode):
            return succeed(JoinGroupResult(shard, join.member_id))
        longest = max(
            map(len, (join.fresh_member_id, join.client_id, join.group_instance_id or ""))
        )
        if longest > MAX_MEMBER_ID:
            return succeed(JoinGroupResult(ErrorCode.INVALID_REQUEST, join.member_id))
        group = shard.groups.get(group_id)
        if group is None:
            if join.member_id:
                unknown = ErrorCode.UNKNOWN_MEMBER_ID
                confirmed = shard.fence.confirm()
                return confirmed.addCallback(
                    lambda e: JoinGroupResult(e or unknown, join.member_id)
                )
            group = self._shards.add_group(shard, group_id)
        machine = group.machine
        answer: Deferred[JoinGroupResult] = group.submit(
            lambda token, now: machine.join(token, join, now)
        )
        if group.idle:
            self._shards.remove_group(group)  # refused, and it was new
        return answer

    def sync(self, group_id: str, sync: Sync) -> Deferred[SyncGroupResult]:
        """Handle SyncGroup."""
        shard = self._shards.locate(group_id)
        if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The members keep their ids and generation: let them rejoin when it is loaded.
            return succeed(SyncGroupResult(ErrorCode.REBALANCE_IN_PROGRESS))
        if isinstance(shard, ErrorCode):
            return succeed(SyncGroupResult(shard))
        group = shard.groups.get(group_id)
        if group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            return shard.fence.confirm().addCallback(
                lambda error: SyncGroupResult(error or unknown)
            )
        if not (group.machine.sync_writes(sync) or group.awaits_zookeeper):
            return self._sync(group, sync)
        return group.when_writable().addCallback(
            lambda error: SyncGroupResult(error) if error else self._sync(group, sync)
        )

    def _sync(self, group: GroupMetadata, sync: Sync) -> Deferred[SyncGroupResult]:
        machine = group.machine
        return group.submit(lambda token, now: machine.sync(token, sync, now))

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """Handle Heartbeat, from memory if we coordinated a moment ago; a refusal is confirmed first."""
        shard = self._shards.locate(group_id)
        if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # as Kafka does: the member gets a fresh session anyway
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(group_id)
        now = self._clock.seconds()
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None:
            error = group.machine.heartbeat(member_id, group_instance_id, generation_id, now)
        if error is ErrorCode.NONE and shard.fence.confirmed_since(now - HEARTBEAT_TRUST):
            return error
        return await shard.fence.confirm() or error

    def leave(
        self, group_id: str, identities: Sequence[MemberIdentity], reason: str = ""
    ) -> Deferred[LeaveGroupResult]:
        """Handle LeaveGroup."""
        shard = self._shards.locate(group_id)
        if isinstance(shard, ErrorCode):
            return succeed(LeaveGroupResult(shard))
        group = shard.groups.get(group_id)
        if group is None:
            unknown = tuple((identity, ErrorCode.UNKNOWN_MEMBER_ID) for identity in identities)
            return shard.fence.confirm().addCallback(lambda error: LeaveGroupResult(error, unknown))
        return group.when_writable().addCallback(
            lambda error: (
                LeaveGroupResult(error) if error else self._leave(group, identities, reason)
            )
        )

    def _leave(
        self, group: GroupMetadata, identities: Sequence[MemberIdentity], reason: str
    ) -> Deferred[LeaveGroupResult]:
        machine = group.machine
        return group.submit(lambda token, now: machine.leave(token, identities, reason, now))

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
        """Keep (topic, partition, commit) of a group; an error for each, in order."""
        shard = self._shards.locate(group_id)
        group: GroupMetadata | ErrorCode = (
            shard
            if isinstance(shard, ErrorCode)
            else shard.groups.get(group_id) or self._shards.add_group(shard, group_id)
        )
        if isinstance(group, GroupMetadata) and not group.offsets_known:
            group = await self._load_offsets(group)
        if isinstance(group, GroupMetadata):
            now = self._clock.seconds()
            refused = group.machine.check_commit(member_id, group_instance_id, generation_id, now)
            if refused is ErrorCode.NONE and not group.fence.zookeeper_answers:
                refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            refused = group
        if refused is not ErrorCode.NONE or isinstance(group, ErrorCode):
            if isinstance(group, GroupMetadata):
                if group.idle:
                    self._shards.remove_group(group)
                if refused not in UNCONFIRMED:
                    refused = await group.fence.confirm() or refused
            return [refused] * len(offsets)
        errors = [self._check_offset(topic, commit.detail) for topic, _, commit in offsets]
        wanted = [
            offset for offset, error in zip(offsets, errors, strict=True) if error is ErrorCode.NONE
        ]
        self._shards.add_known(group)
        written = iter(await self._writer.commit(group_id, wanted))
        return [next(written) if error is ErrorCode.NONE else error for error in errors]

    def _check_offset(self, topic: str, detail: CommitDetail) -> ErrorCode:
        if len(detail.metadata) > self._max_metadata:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        if LEGAL_TOPIC.fullmatch(topic) is None or topic in (".", ".."):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return ErrorCode.NONE

    async def _load_offsets(self, group: GroupMetadata) -> GroupMetadata | ErrorCode:
        """Return *group* with its offsets known, or why they cannot be."""
        try:
            await group.load_offsets()
        except ConnectionLoss:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        except (NotCoordinator, SessionExpired):
            return ErrorCode.NOT_COORDINATOR
        except ZooKeeperError as error:
            log.error("offsets of {group}: {error}", group=group.group_id, error=error)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return group

    async def offsets(self, group_id: str) -> dict[str, dict[int, CommittedOffset]] | ErrorCode:
        """Return all committed offsets of a group by topic and partition, or an error.

        The tables are the coordinator's own: read, do not keep or change them.
        """
        shard = await self._coordinated(group_id)
        return shard if isinstance(shard, ErrorCode) else await self._offsets(shard, group_id)

    async def _offsets(
        self, shard: CoordinatorShard, group_id: str
    ) -> dict[str, dict[int, CommittedOffset]] | ErrorCode:
        group = shard.groups.get(group_id)
        if group is None:
            if group_id not in shard.known:
                return {}
            group = self._shards.add_group(shard, group_id)
        if not group.offsets_known and not (
            # What was acknowledged stays true while it cannot be read again: a commit in doubt counts as not yet done.
            group.offsets_read and not group.fence.zookeeper_answers
        ):
            found = await self._load_offsets(group)
            if isinstance(found, ErrorCode):
                return found
        return group.offsets.committed

    async def delete_offsets(
        self, group_id: str, wanted: Sequence[tuple[str, int]]
    ) -> list[ErrorCode] | ErrorCode:
        """Delete offsets of (topic, partition); an error for each, or one for all.

        Only of topics that no member subscribes to (KIP-496).
        """
        shard = await self._coordinated(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        if group_id not in shard.groups and group_id not in shard.known:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not shard.fence.zookeeper_answers:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = shard.groups.get(group_id) or self._shards.add_group(shard, group_id)
        if not group.offsets_known:
            found = await self._load_offsets(group)
            if isinstance(found, ErrorCode):
                return found
        machine = group.machine
        if len(machine.members) and machine.protocol_type != "consumer":
            return ErrorCode.NON_EMPTY_GROUP
        subscribed = group.subscribed_topics()
        errors = []
        for topic, partition in wanted:
            if topic in subscribed:
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                errors.append(await self._delete_offset(group, topic, partition))
        return errors

    async def drop_offsets(self, group_id: str, wanted: Sequence[tuple[str, int]]) -> int:
        """Delete offsets of a group that is held, whoever subscribes; return how many went."""
        group = self._shards.group(group_id)
        if group is None or not group.offsets_known:
            return 0
        errors = [await self._delete_offset(group, topic, partition) for topic, partition in wanted]
        return errors.count(ErrorCode.NONE)

    async def expire_offsets(self, group_id: str, before_ms: int) -> int:
        """Delete what a group without members has not used since *before_ms*; return how much.

        A group of which nothing is left then is deleted.
        """
        shard = self._shards.locate(group_id)
        if isinstance(shard, ErrorCode):
            return 0
        # Not confirmed: what follows from it is a write, which ZooKeeper refuses a deposed coordinator.
        committed = await self._offsets(shard, group_id)
        group = self._shards.group(group_id)
        if isinstance(committed, ErrorCode) or group is None or len(group.machine.members):
            return 0
        if group.machine.state is not GroupState.EMPTY or group.machine.members.pending:
            return 0
        table = [(topic, p, c) for topic, ps in committed.items() for p, c in ps.items()]
        if group.machine.protocol_type is not None:
            newest = max([group.changed_ms, *(c.timestamp_ms for _, _, c in table)])
            old = [(topic, p) for topic, p, _ in table] if newest < before_ms else []
        else:
            newest = group.changed_ms
            old = [(topic, p) for topic, p, c in table if c.timestamp_ms < before_ms]
        if newest < before_ms and len(old) == len(table):
            return len(table) if await self.delete(group_id) is ErrorCode.NONE else 0
        return await self.drop_offsets(group_id, old)

    async def _delete_offset(self, group: GroupMetadata, topic: str, partition: int) -> ErrorCode:
        if partition not in group.offsets.committed.get(topic, {}):
            return ErrorCode.NONE
        path = group_offset_path(group.group_id, topic, partition)
        operations: list[Operation] = [Delete(path)]
        if partition in group.offsets.partitions_with_detail(topic):
            operations.insert(0, Delete(detail_path(path)))
        try:
            await group.fence.write(operations)
        except NotCoordinator:
            return ErrorCode.NOT_COORDINATOR
        except NoNode:
            group.offsets_known = False
        except ZooKeeperError:
            group.offsets_known = False
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        group.offsets.forget(topic, partition)
        return ErrorCode.NONE

    # --- administration -----------------------------------------------------------------------

    async def describe(self, group_id: str) -> GroupMetadata | ErrorCode:
        """Return a group to be looked at; GROUP_ID_NOT_FOUND if there is none."""
        shard = await self._coordinated(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(group_id)
        if group is None and group_id in shard.known:
            group = self._shards.add_group(shard, group_id)
        return group if group is not None else ErrorCode.GROUP_ID_NOT_FOUND

    async def list_groups(self) -> tuple[list[GroupListing], ErrorCode]:
        """Return the groups that this broker coordinates, confirmed.

        With the error COORDINATOR_LOAD_IN_PROGRESS if some are not known yet, with COORDINATOR_NOT_AVAILABLE
        and without groups if that cannot be confirmed.
        """
        fences = [c.fence for c in self._shards.partitions.values() if c.loaded]
        errors = [await confirmed for confirmed in [fence.confirm() for fence in fences]]
        if ErrorCode.COORDINATOR_NOT_AVAILABLE in errors:
            return [], ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self.listing()

    def listing(self) -> tuple[list[GroupListing], ErrorCode]:
        """Return the groups held here; COORDINATOR_LOAD_IN_PROGRESS if some are not known yet."""
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
            for group_id in shard.known - shard.groups.keys():
                groups.append(GroupListing(group_id, "", GroupState.EMPTY))
        return groups, error

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, offsets and all."""
        shard = await self._coordinated(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(group_id)
        if group is None and group_id not in shard.known:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not shard.fence.zookeeper_answers:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if group is not None:
            if len(group.machine.members):
                return ErrorCode.NON_EMPTY_GROUP
            if group.machine.state is GroupState.DEAD:
                return ErrorCode.GROUP_ID_NOT_FOUND
            del shard.groups[group_id]
            group.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._writer.fail_queued([group_id], ErrorCode.GROUP_ID_NOT_FOUND)
        shard.loading.add(group_id)
        shard.known.discard(group_id)
        try:
            await delete_tree(shard.fence, group_id)
        except NotCoordinator:
            return ErrorCode.NOT_COORDINATOR
        except ZooKeeperError as error:
            log.warn("group {group} is not deleted: {error}", group=group_id, error=error)
            self._shards.reload(shard, group_id)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        shard.loading.discard(group_id)
        return ErrorCode.NONE
