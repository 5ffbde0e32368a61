"""The znodes of one group under /consumers/G: what exists, and the multis that write a snapshot of the group.

`state` holds the snapshot, `ids` an ephemeral znode of each member, and `offsets` the committed offsets. A group of an
earlier version, or of an old consumer, may have some of them only, and an operator may delete any. So the existence of
each is remembered, and read again when a write fails. Outcomes of a write:

- acknowledged: the znodes exist as written;
- another broker coordinates: `NotCoordinator`, and the shard is unloaded;
- connection lost, outcome unknown: after the reconnect, read which znodes exist and write again. A snapshot is
  complete, and no other broker may write, so writing it twice has the effect of once;
- refused because a znode exists or is missing: read which znodes exist and write again.
"""

from collections.abc import Callable
from contextlib import suppress

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.coordinator.group.committed_offsets import GroupOffsets, read_offsets
from kbroker.coordinator.group.core.group import Group
from kbroker.coordinator.group.core.records import (
    GroupSnapshot,
    MemberSnapshot,
    encode_member_ephemeral,
    encode_snapshot,
    subscribed_topics,
)
from kbroker.coordinator.group.core.states import GroupState
from kbroker.coordinator.shard_fence import ShardFence, batches
from kbroker.zk.errors import ConnectionLoss, NoNode, ZooKeeperError
from kbroker.zk.interface import Create, Delete, Operation, SetData
from kbroker.zk.znodes import (
    group_member_path,
    group_members_path,
    group_path,
    group_state_path,
    unescape,
)
from kclient.wire.errors import NotCoordinator

log = Logger()

EPHEMERALS_PER_MULTI = 200
"""Ephemerals created or deleted in one multi."""

LARGE_STATE = 500_000
"""Bytes of state above which its multi contains nothing else."""

ATTEMPTS = 5
"""How often a write is retried because znodes exist or are missing unexpectedly."""


class GroupZnodes:
    """The znodes of the group with *machine*; every write is fenced by *fence*."""

    def __init__(self, fence: ShardFence, machine: Group, now_ms: Callable[[], int]) -> None:
        self.offsets = GroupOffsets(machine.group_id)
        self.offsets_known = False
        """Whether *offsets* holds the committed offsets."""
        self.offsets_read = False
        """Whether *offsets* has held them: it still holds every acknowledged offset, but none in doubt."""
        self.changed_ms = 0
        """Wall clock (ms) of the last write of the state znode; 0: there is none."""

        self._fence = fence
        self._machine = machine
        self._group_id = machine.group_id
        self._now_ms = now_ms
        self._has_state = False
        self._must_own_ephemerals = False
        """Whether the ephemerals of the members still belong to the session of the last coordinator."""
        self._ephemerals: set[str] | None = None
        """Members with an ephemeral; None: there is no `ids`, as far as is known."""
        self._reading_offsets: list[Deferred[None]] | None = None

    def found(self, snapshot: GroupSnapshot, written_ms: int) -> None:
        """Record that ZooKeeper has *snapshot* since *written_ms*; the ephemerals are of another session."""
        self.changed_ms = written_ms
        self._has_state = True
        self._ephemerals = set()
        self.offsets.has_root = True
        self._must_own_ephemerals = bool(snapshot.members)

    # --- state and members --------------------------------------------------------------------

    async def store(self, snapshot: GroupSnapshot) -> None:
        """Write *snapshot*, and an ephemeral for each of its members, until ZooKeeper has acknowledged them.

        NotCoordinator, also when the group is Dead; ZooKeeperError after `ATTEMPTS` refusals.
        """
        attempts = 0
        while self._machine.state is not GroupState.DEAD:
            try:
                for operations in self._multis(snapshot):
                    await self._fence.write(operations)
                return
            except ConnectionLoss:
                await self._fence.reconnected()
            except ZooKeeperError:
                attempts += 1
                if attempts == ATTEMPTS:
                    raise
            await self._read_existing()
        raise NotCoordinator  # unloaded or deleted: it must not be written again

    def _multis(self, snapshot: GroupSnapshot) -> list[list[Operation]]:
        """Return the multis that write *snapshot* and the ephemerals of its members."""
        self.changed_ms = now_ms = self._now_ms()
        state = encode_snapshot(snapshot, now_ms)
        path = group_state_path(self._group_id)
        first: list[Operation] = []
        if not self.offsets.has_root:
            first.append(Create(group_path(self._group_id)))
        if self._ephemerals is None:
            first.append(Create(group_members_path(self._group_id)))
        first.append(SetData(path, state) if self._has_state else Create(path, state))
        live = self._ephemeral_changes(snapshot.members, now_ms)
        self.offsets.has_root = self._has_state = True
        self._ephemerals = {member.member_id for member in snapshot.members}
        chunks = list(batches(live, EPHEMERALS_PER_MULTI))
        if len(state) < LARGE_STATE and chunks:
            first += chunks.pop(0)
        return [first, *chunks]

    def _ephemeral_changes(
        self, members: tuple[MemberSnapshot, ...], now_ms: int
    ) -> list[Operation]:
        live = self._ephemerals or set()
        wanted = {member.member_id for member in members}
        changes: list[Operation] = [
            Delete(group_member_path(self._group_id, member_id))
            for member_id in sorted(live - wanted)
        ]
        for member in members:
            if member.member_id not in live:
                topics = subscribed_topics(member.protocols[0][1]) if member.protocols else None
                data = encode_member_ephemeral(member, topics or (), now_ms)
                path = group_member_path(self._group_id, member.member_id)
                changes.append(Create(path, data, ephemeral=True))
        return changes

    async def _read_existing(self) -> None:
        """Read which of the group's znodes exist."""
        while True:
            zookeeper = self._fence.zookeeper
            try:
                self.offsets.has_root = (
                    await zookeeper.exists(group_path(self._group_id)) is not None
                )
                state = await zookeeper.exists(group_state_path(self._group_id))
                self._has_state = state is not None
                try:
                    names = (await zookeeper.children(group_members_path(self._group_id))).names
                    self._ephemerals = {unescape(name) for name in names}
                except NoNode:
                    self._ephemerals = None
                return
            except ConnectionLoss:
                await self._fence.reconnected()

    async def own_ephemerals(self) -> None:
        """Create the ephemerals of the members in this session; those of the last coordinator end with its session."""
        attempts = 0
        while self._must_own_ephemerals and self._machine.state is not GroupState.DEAD:
            await self._read_existing()
            operations: list[Operation] = []
            if self._ephemerals is None:
                operations.append(Create(group_members_path(self._group_id)))
            for name in sorted(self._ephemerals or ()):
                operations.append(Delete(group_member_path(self._group_id, name)))
            self._ephemerals = set()
            members = self._machine.snapshot().members
            operations += self._ephemeral_changes(members, self._now_ms())
            try:
                for batch in batches(operations, EPHEMERALS_PER_MULTI):
                    await self._fence.write(batch)
            except ConnectionLoss:
                await self._fence.reconnected()
            except ZooKeeperError:
                attempts += 1
                if attempts == ATTEMPTS:
                    raise
            else:
                self._ephemerals = {member.member_id for member in members}
                self._must_own_ephemerals = False

    # --- offsets ------------------------------------------------------------------------------

    async def load_offsets(self) -> None:
        """Read the committed offsets unless they are known. NotCoordinator, ZooKeeperError.

        Concurrent calls share one read, and continue in the order of the calls: their commits must not overtake each
        other.
        """
        if self.offsets_known:
            return
        waiting: Deferred[None] = Deferred()
        if self._reading_offsets is not None:
            self._reading_offsets.append(waiting)
        else:
            self._reading_offsets = [waiting]
            Deferred.fromCoroutine(self._read_offsets()).addBoth(self._offsets_are_read)
        await waiting

    async def load_offsets_again(self) -> None:
        """Read the committed offsets by a read that begins now. NotCoordinator, ZooKeeperError.

        One that has begun before, or has ended, may lack a write of which the answer was lost. A server of ZooKeeper
        may be behind it. Commits wait for the read; answers to those in flight come before it.
        """
        while self._reading_offsets is not None:
            begun_before: Deferred[None] = Deferred()
            self._reading_offsets.append(begun_before)
            with suppress(ZooKeeperError):
                await begun_before
        self.offsets_known = False
        await self.load_offsets()

    async def _read_offsets(self) -> None:
        offsets, problems = await read_offsets(self._fence.zookeeper, self._group_id)
        for problem in problems:
            log.error(
                "{problem}: OffsetFetch answers UNKNOWN_SERVER_ERROR for it until another offset is committed, or this"
                " one is deleted",
                problem=problem,
            )
        if self._fence.resigned:
            raise NotCoordinator
        offsets.has_root = offsets.has_root or self._has_state
        self.offsets = offsets
        self.offsets_known = self.offsets_read = True

    def _offsets_are_read(self, outcome: Failure | None) -> None:
        for reader in self._readers_of_offsets():
            if outcome is None:
                reader.callback(None)
            else:
                reader.errback(outcome)

    def unload(self) -> None:
        """Fail every reader of the offsets: this broker does not coordinate the group any more."""
        for reader in self._readers_of_offsets():
            reader.errback(NotCoordinator())

    def _readers_of_offsets(self) -> list[Deferred[None]]:
        readers, self._reading_offsets = self._reading_offsets or [], None
        return readers
