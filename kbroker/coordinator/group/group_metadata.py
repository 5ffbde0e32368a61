"""One group on its coordinator: the state machine, its timer, its waiting requests and its znodes.

The shell of `core.group.Group`. Snapshots are written one at a time. While one is in flight only the newest of the
following is kept, because each is complete. Outcomes of a write:

- acknowledged: the machine gets `persisted`, and releases its answers;
- another broker coordinates (`NotCoordinator`): the shard is unloaded;
- connection lost, outcome unknown: after the reconnect, read which znodes exist and write again. A snapshot is
  complete, and no other broker may write, so writing it twice has the effect of once. Requests that wait for the write
  fail with a retriable error after `WRITE_TIMEOUT`;
- refused because a znode exists or is missing: read which znodes exist and write again.

Some answers need no write: an assignment that a member requests again, or an error. Such an answer leaves only after
`ShardFence.confirm`. A coordinator that was paused and replaced must not send members back into an old generation, nor
reject members of a new one.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
from kbroker.coordinator.group.committed_offsets import GroupOffsets, read_offsets
from kbroker.coordinator.group.core.effects import (
    Answer,
    Effect,
    JoinGroupResult,
    LeaveGroupResult,
    LogLine,
    Persist,
    SetTimer,
    SyncGroupResult,
    Token,
)
from kbroker.coordinator.group.core.group import Group
from kbroker.coordinator.group.core.limits import GroupLimits
from kbroker.coordinator.group.core.records import (
    GroupSnapshot,
    MemberSnapshot,
    encode_member_ephemeral,
    encode_snapshot,
    subscribed_topics,
)
from kbroker.coordinator.group.core.states import GroupState
from kbroker.coordinator.group.shard_fence import ShardFence, batches
from kbroker.zk.errors import ConnectionLoss, NoNode, ZooKeeperError
from kbroker.zk.interface import Create, Delete, Operation, SetData
from kbroker.zk.znodes import (
    group_member_path,
    group_members_path,
    group_path,
    group_state_path,
    unescape,
)
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import NotCoordinator

log = Logger()

Value = TypeVar("Value", JoinGroupResult, SyncGroupResult, LeaveGroupResult)

EPHEMERALS_PER_MULTI = 200
"""Ephemerals created or deleted in one multi."""

LARGE_STATE = 500_000
"""Bytes of state above which its multi contains nothing else."""

LATE_TIMER = 0.5
"""Seconds that a timer may be late. Above that the process was stopped or starved."""

UNCONFIRMED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.INVALID_SESSION_TIMEOUT,
    }
)
"""Errors that do not depend on the state of a group: they leave without a confirmation."""

WRITE_TIMEOUT = 5.0
"""Seconds for which requests wait for a write; `offsets.commit.timeout.ms` has the same default."""

TICK_RETRY = 0.5
"""Seconds before a tick that has to write is retried, while ZooKeeper does not answer."""

ATTEMPTS = 5
"""How often a write is retried because znodes exist or are missing unexpectedly."""


class GroupMetadata:
    """The group *group_id* of the shard with *fence*.

    *forget* is called when the group can be removed from memory: it has no state, or (with the machine Dead) it cannot
    be persisted although this broker coordinates it.
    """

    def __init__(
        self,
        clock: Clock,
        fence: ShardFence,
        group_id: str,
        limits: GroupLimits,
        forget: Callable[["GroupMetadata"], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.group_id = group_id
        self.fence = fence
        self.machine = Group(group_id, limits)
        self.offsets = GroupOffsets(group_id)
        self.offsets_known = False
        """Whether *offsets* holds the committed offsets."""
        self.offsets_read = False
        """Whether *offsets* has held them: it still holds every acknowledged offset, but none in doubt."""
        self.changed_ms = 0
        """Wall clock (ms) of the last write of the state znode; 0: there is none."""

        self._clock = clock
        self._forget = forget
        self._now_ms = now_ms
        self._tokens = 0
        self._waiting_for_zookeeper = 0
        """Requests that wait for ZooKeeper before the machine handles them."""
        self._waiting: dict[Token, Deferred[Any]] = {}
        self._timer: Any = None
        self._newest: Persist | None = None
        self._writing = False
        self._late: Any = None
        """The timer of the write in flight."""
        self._has_state = False
        self._must_own_ephemerals = False
        """Whether the ephemerals of the members still belong to the session of the last coordinator."""
        self._ephemerals: set[str] | None = set()
        """Members with an ephemeral; None: unknown, so `ids` itself may be missing."""
        self._reading_offsets: list[Deferred[None]] | None = None

    # --- requests -----------------------------------------------------------------------------

    def submit(self, event: Callable[[Token, float], list[Effect]]) -> Deferred[Any]:
        """Give a request to the machine; the Deferred fires with its answer."""
        self._tokens += 1
        token = Token(self._tokens)
        answer: Deferred[Any] = Deferred()
        self._waiting[token] = answer
        self._perform(event(token, self._clock.seconds()))
        return answer

    @property
    def awaits_zookeeper(self) -> bool:
        """Whether requests wait for `when_writable`; later requests wait behind them."""
        return bool(self._waiting_for_zookeeper)

    def when_writable(self) -> Deferred[None]:
        """Fire once ZooKeeper has confirmed that this broker coordinates the group, in the order of calls.

        NotCoordinator, CoordinatorNotAvailable.
        """
        self._waiting_for_zookeeper += 1
        return self.fence.confirm_writable().addBoth(self._answered_by_zookeeper)

    def _answered_by_zookeeper(self, outcome: Any) -> Any:
        self._waiting_for_zookeeper -= 1
        return outcome

    @property
    def idle(self) -> bool:
        """Whether the group has no state: it can be removed without a loss."""
        machine = self.machine
        return (
            machine.generation_id == 0
            and not len(machine.members)
            and not machine.members.pending
            and not self._waiting
            and not self._waiting_for_zookeeper
            and not self.offsets.has_root
        )

    @property
    def may_expire(self) -> bool:
        """Whether no member uses the offsets, or is about to, and the offsets are known."""
        machine = self.machine
        return (
            machine.state is GroupState.EMPTY
            and not machine.members.pending
            and not self._waiting_for_zookeeper
            and self.offsets_known
        )

    def subscribed_topics(self) -> set[str] | None:
        """Return the topics of the subscriptions that the members sent last; None if one cannot be read.

        Before the first generation no protocol is chosen yet, so the subscriptions of every protocol count.
        """
        topics: set[str] = set()
        for member in self.machine.members:
            for _, metadata in member.protocols:
                found = subscribed_topics(metadata)
                if found is None:
                    return None
                topics.update(found)
        return topics

    def restore(self, snapshot: GroupSnapshot, written_ms: int) -> None:
        """Restore the group from the snapshot that ZooKeeper has since *written_ms*."""
        self.changed_ms = written_ms
        self._has_state = True
        self.offsets.has_root = True
        self._must_own_ephemerals = bool(snapshot.members)
        self._perform(self.machine.restore(snapshot, self._clock.seconds()))
        if self._must_own_ephemerals:
            self._write()

    def unload(self, error: ErrorCode) -> None:
        """Unload the group: every waiting request gets *error*."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        self._newest = None
        self._perform(self.machine.unload(error))
        readers, self._reading_offsets = self._reading_offsets or [], None
        for reader in readers:
            reader.errback(NotCoordinator())

    # --- effects ------------------------------------------------------------------------------

    def _perform(self, effects: list[Effect], *, confirmed: bool = False) -> None:
        """Perform *effects*; *confirmed*: ZooKeeper has just accepted a write of this shard."""
        answers: list[Answer] = []
        for effect in effects:
            match effect:
                case Answer():
                    answers.append(effect)
                case Persist():
                    self._newest = effect
                    self._write()
                case SetTimer(at):
                    self._set_timer(at)
                case LogLine(text):
                    log.info("{text}", text=text)
        # Last: an answered client may send its next request at once.
        for answer in answers:
            if not confirmed and self._is_from_memory(answer):
                self.fence.confirm().addCallbacks(
                    self._answer_confirmed, self._answer_unconfirmed, (answer,), {}, (answer,), {}
                )
            else:
                self._answer(answer)

    def _is_from_memory(self, answer: Answer) -> bool:
        """Return whether *answer* depends on the state of the group in memory."""
        return answer.value.error not in UNCONFIRMED

    def _answer(self, answer: Answer) -> None:
        waiting = self._waiting.pop(answer.token, None)
        if waiting is not None:
            waiting.callback(answer.value)

    def _answer_confirmed(self, _confirmed: None, answer: Answer) -> None:
        self._answer(answer)

    def _answer_unconfirmed(self, failure: Any, answer: Answer) -> None:
        """Answer with the error of the confirmation: another broker may coordinate the group."""
        self._answer(Answer(answer.token, replace(answer.value, error=failure.value.code)))

    def _set_timer(self, at: float) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        delay = max(at - self._clock.seconds(), 0.0)
        self._timer = self._clock.callLater(delay, self._tick, self._clock.seconds() + delay)

    def _tick(self, due: float) -> None:
        now = self._clock.seconds()
        if now - due > LATE_TIMER:
            # The broker was late, not the members: first handle their requests.
            self._set_timer(now + LATE_TIMER)
            return
        self._timer = None
        if self.machine.tick_writes(now):
            self.fence.confirm_writable().addCallbacks(self._tick_writable, self._tick_later)
        else:
            self._tick_now()

    def _tick_writable(self, _confirmed: None) -> None:
        if not self._is_over:
            self._tick_now()

    def _tick_later(self, _failure: Failure) -> None:
        """Try the tick again: no member is removed, and no rebalance ends, because ZooKeeper does not answer."""
        if not self._is_over:
            self._set_timer(self._clock.seconds() + TICK_RETRY)

    @property
    def _is_over(self) -> bool:
        return self.machine.state is GroupState.DEAD or self.fence.resigned

    def _tick_now(self) -> None:
        self._perform(self.machine.tick(self._clock.seconds()))
        if self.idle:
            self._forget(self)

    # --- persisting ---------------------------------------------------------------------------

    def _write(self) -> None:
        if not self._writing:
            self._writing = True
            Deferred.fromCoroutine(self._write_all()).addErrback(self._cannot_write)

    def _write_is_late(self) -> None:
        """Fail the requests that wait for a write; repeat for later ones while it is in flight."""
        self._late = self._clock.callLater(WRITE_TIMEOUT, self._write_is_late)
        self._perform(self.machine.persist_timed_out(self._clock.seconds()))

    async def _write_all(self) -> None:
        self._late = self._clock.callLater(WRITE_TIMEOUT, self._write_is_late)
        try:
            if self._must_own_ephemerals:
                await self._own_ephemerals()
            while self._newest is not None:
                persist, self._newest = self._newest, None
                await self._store(persist.snapshot)
                if self.fence.resigned:
                    return
                effects = self.machine.persisted(persist.sequence, self._clock.seconds())
                self._perform(effects, confirmed=True)
        except NotCoordinator:
            return  # the fence is lost, and the shard unloaded
        finally:
            self._writing = False
            self._late.cancel()

    def _cannot_write(self, failure: Any) -> None:
        log.failure(
            "group {group}: its state cannot be written to ZooKeeper; its members rejoin",
            failure=failure,
            group=self.group_id,
        )
        self.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._forget(self)

    async def _store(self, snapshot: GroupSnapshot) -> None:
        attempts = 0
        while self.machine.state is not GroupState.DEAD:
            try:
                for operations in self._multis(snapshot):
                    await self.fence.write(operations)
                return
            except ConnectionLoss:
                await self.fence.reconnected()
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
        path = group_state_path(self.group_id)
        first: list[Operation] = []
        if not self.offsets.has_root:
            first.append(Create(group_path(self.group_id)))
        if self._ephemerals is None or not self._has_state:
            first.append(Create(group_members_path(self.group_id)))
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
            Delete(group_member_path(self.group_id, member_id))
            for member_id in sorted(live - wanted)
        ]
        for member in members:
            if member.member_id not in live:
                topics = subscribed_topics(member.protocols[0][1]) if member.protocols else None
                data = encode_member_ephemeral(member, topics or (), now_ms)
                path = group_member_path(self.group_id, member.member_id)
                changes.append(Create(path, data, ephemeral=True))
        return changes

    async def _read_existing(self) -> None:
        """Read which of the group's znodes exist."""
        while True:
            zookeeper = self.fence.zookeeper
            try:
                self.offsets.has_root = (
                    await zookeeper.exists(group_path(self.group_id)) is not None
                )
                state = await zookeeper.exists(group_state_path(self.group_id))
                self._has_state = state is not None
                try:
                    names = (await zookeeper.children(group_members_path(self.group_id))).names
                    self._ephemerals = {unescape(name) for name in names}
                except NoNode:
                    self._ephemerals = None
                return
            except ConnectionLoss:
                await self.fence.reconnected()

    async def _own_ephemerals(self) -> None:
        """Create the ephemerals of the members in this session; those of the last coordinator end with its session."""
        attempts = 0
        while self._must_own_ephemerals and self.machine.state is not GroupState.DEAD:
            await self._read_existing()
            operations: list[Operation] = []
            if self._ephemerals is None:
                operations.append(Create(group_members_path(self.group_id)))
            for name in sorted(self._ephemerals or ()):
                operations.append(Delete(group_member_path(self.group_id, name)))
            self._ephemerals = set()
            members = self.machine.snapshot().members
            operations += self._ephemeral_changes(members, self._now_ms())
            try:
                for batch in batches(operations, EPHEMERALS_PER_MULTI):
                    await self.fence.write(batch)
            except ConnectionLoss:
                await self.fence.reconnected()
            except ZooKeeperError:
                attempts += 1
                if attempts == ATTEMPTS:
                    raise
            else:
                self._ephemerals = {member.member_id for member in members}
                self._must_own_ephemerals = False

    # --- offsets ------------------------------------------------------------------------------

    async def load_offsets(self) -> None:
        """Read the committed offsets unless they are known. NotCoordinator, ZooKeeperError."""
        if self.offsets_known:
            return
        if self._reading_offsets is not None:
            waiting: Deferred[None] = Deferred()
            self._reading_offsets.append(waiting)
            await waiting
            return
        self._reading_offsets = []
        try:
            offsets, problems = await read_offsets(self.fence.zookeeper, self.group_id)
        except ZooKeeperError as error:
            for waiting in self._others_reading():
                waiting.errback(error)
            raise
        for problem in problems:
            log.error("{problem}: this offset is not served", problem=problem)
        if self.fence.resigned:
            raise NotCoordinator
        offsets.has_root = offsets.has_root or self._has_state
        self.offsets = offsets
        self.offsets_known = self.offsets_read = True
        for waiting in self._others_reading():
            waiting.callback(None)

    def _others_reading(self) -> list[Deferred[None]]:
        waiting, self._reading_offsets = self._reading_offsets or [], None
        return waiting
