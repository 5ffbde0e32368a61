"""TxnOffsetCommit and the end of transactions, for the groups of this broker (KIP-98, KIP-447, KIP-890).

Theory of operation
===================
A commit is verified first, at the transaction coordinator: the transaction of the producer must be open and have the
group. The result has the number of the transaction. It is valid only until a marker of the producer arrives here; then
the request gets a retriable error. So no offset becomes pending behind its marker, where nothing would end it. The
group coordinator does not verify again by itself. The producer may have begun its next transaction, and the request may
be of the former one. A producer that waits for the response sends it again.

The offsets become pending by one write of the znode of producer and group; the response follows it. A marker sets them
as the offsets of the group and deletes the znode in one multi, or deletes it. Offsets that do not fit into one multi
are set by several, and the last one deletes the znode. Offsets are absolute, so a marker that is handled again sets the
same. In between, an OffsetFetch that requires stable offsets gets UNSTABLE_OFFSET_COMMIT for all of them. One that does
not may get some new and some old ones.

Each write is fenced like all writes of a shard. A write without an answer leaves the znode *in doubt*. The request gets
a retriable error, and the znode is read before the next step. If it is gone, the offsets of the group are read, too. A
write that ZooKeeper refuses because the znode is not as it was known to be is decided again after a read.

The order of plain commits and pending offsets is that of `core.pending_offsets`. The marker waits for plain commits of
its partitions that are on their way (`offset_writer`), because their outcome decides what it applies.

Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from kbroker.common.gather import outcomes_of
from kbroker.common.internal_topics import OFFSETS_TOPIC
from kbroker.common.reactor import Clock
from kbroker.common.topic_partition import TopicPartition
from kbroker.coordinator.group.commits_under_way import CommitsUnderWay
from kbroker.coordinator.group.coordinator_shards import CoordinatorShard, CoordinatorShards
from kbroker.coordinator.group.core import pending_offsets as core
from kbroker.coordinator.group.core.commits import CommitKey, OffsetCommit
from kbroker.coordinator.group.core.pending_offsets import End, PendingOffsets
from kbroker.coordinator.group.group_metadata import UNCONFIRMED, GroupMetadata
from kbroker.coordinator.group.offset_writer import COMMITS_AT_ONCE, OffsetWriter
from kbroker.coordinator.group.pending_offsets import PendingZnode, VerificationGuard
from kbroker.coordinator.shard_fence import BATCH_BYTES, ShardFence, size_of
from kbroker.zk.errors import ConnectionLoss, NoNode, SessionExpired, ZooKeeperError
from kbroker.zk.interface import Create, Delete, Operation, SetData, Stat
from kbroker.zk.znodes import group_path
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    NotCoordinator,
    UnknownServerError,
)

log = Logger()

T = TypeVar("T")

Verify = Callable[[str, int, int, TopicPartition], Awaitable[tuple[ErrorCode, int]]]
"""Verify (transactional id, producer id, epoch, partition) at the transaction coordinator: error and number."""

REFUSALS = 5
"""How often in succession ZooKeeper may refuse a write because a znode is not as expected."""

CHECK_INTERVAL = 0.01
"""Seconds between two looks at plain commits on their way."""

_AS_COORDINATOR: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}
"""Errors of the verification as TxnOffsetCommit has them (Kafka's maybeConvertOffsetCommitError)."""


@dataclass(frozen=True, slots=True)
class TransactionalCommit:
    """The fields of a TxnOffsetCommit. Without a member, generation -1 and empty ids."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    member_id: str = ""
    group_instance_id: str | None = None
    generation_id: int = -1


class TransactionalOffsets:
    """Writes and ends pending offsets of the groups of *shards*; a request waits *timeout* seconds at most."""

    def __init__(
        self,
        clock: Clock,
        shards: CoordinatorShards,
        writer: OffsetWriter,
        now_ms: Callable[[], int],
        under_way: CommitsUnderWay,
        *,
        timeout: float,
    ) -> None:
        self._clock = clock
        self._under_way = under_way
        self._shards = shards
        self._writer = writer
        self._now_ms = now_ms
        self._timeout = timeout
        self._at_once = COMMITS_AT_ONCE
        """Offsets that one multi sets, at most."""

    # --- commits ------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        commit: TransactionalCommit,
        verify: Verify,
    ) -> Deferred[ErrorCode]:
        """Make *offsets* pending; fire with an error for all of them."""
        work = self._commit(group_id, offsets, commit, verify)
        return self._in_time(self._under_way.during(work), ErrorCode.REQUEST_TIMED_OUT)

    async def _commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        commit: TransactionalCommit,
        verify: Verify,
    ) -> ErrorCode:
        shard = self._shards.locate(group_id)
        partition = (OFFSETS_TOPIC, shard.fence.partition)
        guard = shard.pending.start_verification(commit.producer_id)
        try:
            error, number = await verify(
                commit.transactional_id, commit.producer_id, commit.producer_epoch, partition
            )
            if error is not ErrorCode.NONE:
                return _AS_COORDINATOR.get(error, error)
            return await self._write(shard, group_id, offsets, commit, number, guard)
        finally:
            shard.pending.end_verification(guard)

    async def _write(
        self,
        shard: CoordinatorShard,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetCommit],
        commit: TransactionalCommit,
        number: int,
        guard: VerificationGuard,
    ) -> ErrorCode:
        znode = shard.pending.znode(commit.producer_id, group_id)
        await znode.lock.acquire()
        try:
            while True:
                if not guard.is_valid:
                    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                if self._shards.locate(group_id) is not shard:
                    raise NotCoordinator
                group = shard.groups.get(group_id) or self._shards.add_group(shard, group_id)
                if znode.in_doubt or znode.problem:
                    await self._read(shard, znode)
                    if znode.problem:
                        raise UnknownServerError(znode.problem)
                elif not group.znodes.offsets_known:
                    await group.load_offsets()
                else:
                    # No other event may come between this decision and its write.
                    decided = _decide(shard, group, znode, offsets, commit, number)
                    if isinstance(decided, ErrorCode):
                        return await _confirmed(group, decided)
                    if await self._write_pending(group, znode, *decided):
                        return ErrorCode.NONE
        finally:
            shard.pending.release(znode)
            created = shard.groups.get(group_id)
            if created is not None and created.idle:
                self._shards.remove_group(created)  # refused, and it was new

    async def _write_pending(
        self, group: GroupMetadata, znode: PendingZnode, pending: PendingOffsets, data: bytes
    ) -> bool:
        """Write *znode*; return False if it has to be decided again."""
        operations: list[Operation] = []
        offsets = group.znodes.offsets
        creates_group = not offsets.has_root
        if creates_group:
            offsets.has_root = True
            self._shards.add_known(group)
            operations.append(Create(group_path(group.group_id)))
        operations.append(
            Create(znode.path, data)
            if znode.stored is None
            else SetData(znode.path, data, znode.version)
        )
        znode.attempted = pending
        is_done = False
        try:
            results = await self._write_once(group.fence, znode, operations)
            is_done = results is not None
        finally:
            if creates_group and not is_done:
                group.znodes.offsets_known = False
        if results is None:
            if not znode.in_doubt:
                znode.attempted = None
            return False
        stat = results[-1]
        znode.written(pending, stat.version if isinstance(stat, Stat) else 0)
        return True

    # --- markers ------------------------------------------------------------------------------

    def end(
        self,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        number: int | None,
        *,
        is_commit: bool,
        sent_by_client: bool = False,
    ) -> Deferred[ErrorCode]:
        """Handle a marker for *partition* of ``__consumer_offsets``; *number* None ends what is pending.

        NOT_LEADER_OR_FOLLOWER: not done or not known to be done, to be sent again. It is the error of Kafka's
        WriteTxnMarkers for a coordinator that is not ready. INVALID_PRODUCER_EPOCH: without a number, and of an older
        epoch than the pending offsets; an ABORT *sent_by_client* of any other epoch.
        """
        shard = self._shards.partitions.get(partition)
        if shard is None or not shard.loaded:
            return succeed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not sent_by_client:
            # An ABORT of a client does not end the transaction at its coordinator.
            shard.pending.marker_arrived(producer_id)
        decide = partial(
            core.end, producer_epoch=producer_epoch, number=number, sent_by_client=sent_by_client
        )
        return self._in_time(
            self._end(shard, producer_id, decide, is_commit=is_commit),
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ).addCallback(_for_transaction_coordinator)

    async def _end(
        self,
        shard: CoordinatorShard,
        producer_id: int,
        decide: Callable[[PendingOffsets], End],
        *,
        is_commit: bool,
    ) -> ErrorCode:
        znodes = shard.pending.of_producer(producer_id)
        outcomes = await outcomes_of(
            [
                Deferred.fromCoroutine(self._end_one(shard, znode, decide, is_commit=is_commit))
                for znode in znodes
            ]
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        if True not in outcomes:
            # Answered from memory: another broker may coordinate, and have these offsets pending.
            await shard.fence.confirm()
        return ErrorCode.INVALID_PRODUCER_EPOCH if None in outcomes else ErrorCode.NONE

    async def _end_one(
        self,
        shard: CoordinatorShard,
        znode: PendingZnode,
        decide: Callable[[PendingOffsets], End],
        *,
        is_commit: bool,
    ) -> bool | None:
        """End what is pending; return whether ZooKeeper was written, None if the marker is fenced."""
        await znode.lock.acquire()
        try:
            while True:
                if shard.fence.resigned:
                    raise NotCoordinator
                if znode.in_doubt or znode.problem:
                    await self._read(shard, znode)
                    if znode.problem:
                        # Its offsets and its transaction are not known until the znode is repaired.
                        raise CoordinatorNotAvailable(znode.problem)
                if znode.stored is None:
                    return False
                match decide(znode.stored):
                    case End.KEEP:
                        return False
                    case End.FENCED:
                        return None
                    case End.APPLY if is_commit:
                        if await self._apply(shard, znode, znode.stored):
                            return True
                    case _:
                        if await self._replace(shard.fence, znode, None):
                            return True
        finally:
            shard.pending.release(znode)

    async def _apply(
        self, shard: CoordinatorShard, znode: PendingZnode, pending: PendingOffsets
    ) -> bool:
        """Set *pending* as the offsets of the group and delete *znode*; False: it has to be decided again."""
        group_id = znode.group_id
        left = dict(pending.offsets)
        while True:
            if shard.fence.resigned or self._shards.locate(group_id) is not shard:
                raise NotCoordinator
            group = shard.groups.get(group_id) or self._shards.add_group(shard, group_id)
            if not group.znodes.offsets_known:
                await group.load_offsets()
                continue
            if any(self._writer.is_pending(CommitKey(group_id, *key)) for key in left):
                await self._pause()
                continue
            # No other event may come between this decision and its write.
            operations, batch = self._next_batch(shard, group, znode, left)
            is_last = len(batch) == len(left)
            if is_last:
                operations.append(Delete(znode.path, znode.version))
            is_done = False
            try:
                is_done = await self._write_once(group.fence, znode, operations) is not None
            finally:
                if not is_done:
                    group.znodes.offsets_known = False
            if not is_done:
                if znode.in_doubt:
                    return False
                continue
            now_ms = self._now_ms()
            for key, applied in batch.items():
                del left[key]
                if applied is not None:
                    group.znodes.offsets.acknowledged(*key, applied, now_ms)
            if is_last:
                self._shards.add_known(group)
                znode.written(None)
                return True

    def _next_batch(
        self,
        shard: CoordinatorShard,
        group: GroupMetadata,
        znode: PendingZnode,
        left: Mapping[TopicPartition, OffsetCommit],
    ) -> tuple[list[Operation], dict[TopicPartition, OffsetCommit | None]]:
        """Return the operations of the next multi, and its partitions: None for those with a later commit."""
        offsets = group.znodes.offsets
        others = [other for other in shard.pending.of_group(group.group_id) if other is not znode]
        operations: list[Operation] = []
        batch: dict[TopicPartition, OffsetCommit | None] = {}
        size = 0
        for key, commit in left.items():
            if len(batch) == self._at_once or size > BATCH_BYTES:
                break
            batch[key] = None
            if offsets.position(*key) >= commit.detail.position:
                continue
            if not any(other.may_have(key) for other in others):
                commit = OffsetCommit(commit.offset, replace(commit.detail, position=0))
            batch[key] = commit
            new = offsets.operations(*key, commit)
            operations += new
            size += sum(map(size_of, new))
        return operations, batch

    def _pause(self) -> Deferred[None]:
        pause: Deferred[None] = Deferred()
        self._clock.callLater(CHECK_INTERVAL, pause.callback, None)
        return pause

    # --- deletions ----------------------------------------------------------------------------

    async def forget(
        self, shard: CoordinatorShard, group_id: str, partitions: set[TopicPartition]
    ) -> None:
        """Delete the pending offsets of *partitions* in every transaction, as Kafka does with their offsets.

        NotCoordinator, CoordinatorNotAvailable.
        """
        for znode in shard.pending.of_group(group_id):
            await znode.lock.acquire()
            try:
                while True:
                    if znode.in_doubt:
                        await self._read(shard, znode)
                    stored = znode.stored
                    if stored is None or partitions.isdisjoint(stored.offsets):
                        break
                    if await self._replace(shard.fence, znode, core.without(stored, partitions)):
                        break
            finally:
                shard.pending.release(znode)

    async def forget_group(self, shard: CoordinatorShard, group_id: str) -> None:
        """Delete all pending offsets of a group, also unreadable ones. NotCoordinator, CoordinatorNotAvailable."""
        for znode in shard.pending.of_group(group_id):
            await znode.lock.acquire()
            try:
                while znode.is_pending:
                    if znode.in_doubt:
                        await self._read(shard, znode)
                    elif await self._replace(shard.fence, znode, None):
                        znode.problem = ""
            finally:
                shard.pending.release(znode)

    # --- znodes -------------------------------------------------------------------------------

    async def _replace(
        self, fence: ShardFence, znode: PendingZnode, content: PendingOffsets | None
    ) -> bool:
        """Write *content*, or delete *znode*; return False if it has to be decided again."""
        operation = (
            Delete(znode.path, znode.version)
            if content is None
            else SetData(znode.path, core.encode_pending(content), znode.version)
        )
        results = await self._write_once(fence, znode, [operation])
        if results is None:
            return False
        znode.written(content, znode.version + 1)
        return True

    async def _write_once(
        self, fence: ShardFence, znode: PendingZnode, operations: list[Operation]
    ) -> list[str | Stat | None] | None:
        """Do all *operations*, or return None: nothing was done, and *znode* is in doubt unless the check was stale.

        NotCoordinator. CoordinatorNotAvailable: the outcome is unknown, or ZooKeeper keeps refusing.
        """
        try:
            return await fence.write_once(operations)
        except ConnectionLoss as error:
            znode.in_doubt = True
            raise CoordinatorNotAvailable(f"{znode.path}: {error}") from None
        except ZooKeeperError as error:
            znode.in_doubt = True
            znode.refusals += 1
            if znode.refusals < REFUSALS:
                return None
            znode.refusals = 0
            log.error("{path} cannot be written: {error}", path=znode.path, error=error)
            raise CoordinatorNotAvailable(f"{znode.path}: {error}") from None

    async def _read(self, shard: CoordinatorShard, znode: PendingZnode) -> None:
        """Read *znode*, and the offsets of its group if it is gone. CoordinatorNotAvailable, NotCoordinator.

        The write in doubt may have set the offsets. A response that its transaction is over acknowledges them, and
        acknowledged offsets are answered from memory while ZooKeeper is down.
        """
        fence, problem = shard.fence, znode.problem
        try:
            # The server of a new connection may be behind the write in doubt.
            await fence.zookeeper.sync(znode.path)
            try:
                node = await fence.zookeeper.get(znode.path)
            except NoNode:
                node = None
        except SessionExpired:
            raise NotCoordinator from None
        except ZooKeeperError as error:
            raise CoordinatorNotAvailable(f"{znode.path} cannot be read: {error}") from None
        if fence.resigned:
            raise NotCoordinator
        group = shard.groups.get(znode.group_id)
        if node is None and group is not None:
            # Before the doubt is over: if this fails, the next marker reads both again. Behind the sync: what another
            # request has read meanwhile may be from before the write.
            await group.load_offsets(again=True)
        znode.found(node)
        if znode.problem and znode.problem != problem:
            log.error(
                "{problem}: its transaction waits until the znode is repaired",
                problem=znode.problem,
            )

    def _in_time(
        self, work: Coroutine[Any, Any, ErrorCode], late: ErrorCode
    ) -> Deferred[ErrorCode]:
        """Fire with the error of *work*, or with *late* after the timeout; *work* continues."""
        answer: Deferred[ErrorCode] = Deferred()

        def done(error: ErrorCode) -> None:
            if not answer.called:
                answer.callback(error)
            if timer.active():
                timer.cancel()

        timer = self._clock.callLater(self._timeout, done, late)

        Deferred.fromCoroutine(work).addErrback(_code).addCallback(done)
        return answer


def _decide(
    shard: CoordinatorShard,
    group: GroupMetadata,
    znode: PendingZnode,
    offsets: Mapping[TopicPartition, OffsetCommit],
    commit: TransactionalCommit,
    number: int,
) -> tuple[PendingOffsets, bytes] | ErrorCode:
    """Return what is pending with *offsets*, and its encoding, or why the commit is refused."""
    refused = group.machine.check_transactional_commit(
        commit.member_id, commit.group_instance_id, commit.generation_id
    )
    if refused is not ErrorCode.NONE:
        return refused
    positioned = _with_positions(shard, group, offsets)
    pending = core.add(znode.stored, commit.producer_epoch, number, positioned)
    if isinstance(pending, ErrorCode):
        return pending
    if not group.fence.zookeeper_answers:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    data = core.encode_pending(pending)
    if len(data) > core.MAX_BYTES:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return pending, data


async def _confirmed(group: GroupMetadata, error: ErrorCode) -> ErrorCode:
    """Return *error*, an answer from memory, once this broker certainly coordinates the group."""
    if error not in UNCONFIRMED:
        await group.fence.confirm()
    return error


def _with_positions(
    shard: CoordinatorShard, group: GroupMetadata, offsets: Mapping[TopicPartition, OffsetCommit]
) -> dict[TopicPartition, OffsetCommit]:
    """Return *offsets* with their positions: they arrive now."""
    known = group.znodes.offsets
    return {
        key: OffsetCommit(
            offset,
            replace(detail, position=shard.pending.next_position(known.position(*key))),
        )
        for key, (offset, detail) in offsets.items()
    }


def _code(failure: Any) -> ErrorCode:
    """Return the error of a request that failed; an unexpected one is logged."""
    if isinstance(failure.value, KafkaError):
        return failure.value.code
    log.failure("offsets of a transaction", failure=failure)
    return ErrorCode.UNKNOWN_SERVER_ERROR


def _for_transaction_coordinator(error: ErrorCode) -> ErrorCode:
    """Return *error* as the transaction coordinator knows it: what is not final is sent again."""
    final = (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH)
    return error if error in final else ErrorCode.NOT_LEADER_OR_FOLLOWER
