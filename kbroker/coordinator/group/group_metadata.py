"""One group on its coordinator: the state machine, its timer, its waiting requests and its writes.

The shell of `core.group.Group`. Snapshots are written one at a time (`group_znodes`). While one is in flight only the
newest of the following is kept, because each is complete. When a write is acknowledged the machine gets `persisted`,
and releases its answers. Requests that wait for a write fail with a retriable error after `WRITE_TIMEOUT`.

Some answers need no write: an assignment that a member requests again, or an error. Such an answer leaves only after
`ShardFence.confirm`. A coordinator that was paused and replaced must not send members back into an old generation, nor
reject members of a new one.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar, TypeVarTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kbroker.common.reactor import Clock
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
    subscribed_topics,
)
from kbroker.coordinator.group.core.states import GroupState
from kbroker.coordinator.group.group_znodes import GroupZnodes
from kbroker.coordinator.shard_fence import ShardFence
from kbroker.zk.errors import ConnectionLoss, SessionExpired, ZooKeeperError
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import CoordinatorNotAvailable, NotCoordinator, UnknownServerError

log = Logger()

Request = TypeVarTuple("Request")
Value = TypeVar("Value", JoinGroupResult, SyncGroupResult, LeaveGroupResult)

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


class GroupMetadata:
    """The group *group_id* of the shard with *fence*.

    *forget* is called when the group can be removed from memory. It has no state, or (with the machine Dead) it cannot
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
        self.znodes = GroupZnodes(fence, self.machine, now_ms)

        self._clock = clock
        self._forget = forget
        self._tokens = 0
        self._waiting_for_zookeeper = 0
        """Requests that wait for ZooKeeper before the machine handles them."""
        self._waiting: dict[Token, Deferred[Any]] = {}
        self._timer: Any = None
        self._newest: Persist | None = None
        self._writing = False
        self._late: Any = None
        """The timer of the write in flight."""

    # --- requests -----------------------------------------------------------------------------

    def submit(
        self, handle: Callable[[Token, *Request, float], list[Effect]], *request: *Request
    ) -> Deferred[Any]:
        """Have a method of the machine *handle* a request; the Deferred fires with its answer."""
        self._tokens += 1
        token = Token(self._tokens)
        answer: Deferred[Any] = Deferred()
        self._waiting[token] = answer
        self._perform(handle(token, *request, self._clock.seconds()))
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
            and not self.znodes.offsets.has_root
        )

    @property
    def may_expire(self) -> bool:
        """Whether no member uses the offsets, or is about to, and the offsets are known."""
        machine = self.machine
        return (
            machine.state is GroupState.EMPTY
            and not machine.members.pending
            and not self._waiting_for_zookeeper
            and self.znodes.offsets_known
        )

    def unused_topics(self, topics: Iterable[str]) -> set[str]:
        """Return those of *topics* that no member uses, or is about to: their offsets expire by age (KIP-211).

        While a group rebalances, or with a subscription that cannot be read, every topic is in use.
        """
        if self.may_expire:
            return set(topics)
        machine = self.machine
        if machine.state is not GroupState.STABLE or machine.protocol_type != "consumer":
            return set()
        subscribed = self.subscribed_topics() if self.znodes.offsets_known else None
        return set() if subscribed is None else set(topics) - subscribed

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
        self.znodes.found(snapshot, written_ms)
        self._perform(self.machine.restore(snapshot, self._clock.seconds()))
        if snapshot.members:
            self._write()

    def unload(self, error: ErrorCode) -> None:
        """Unload the group: every waiting request gets *error*."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        self._newest = None
        self._perform(self.machine.unload(error))
        self.znodes.unload()

    async def load_offsets(self, *, again: bool = False) -> None:
        """Have the offsets in memory; read them in any case if *again* (`GroupZnodes.load_offsets_again`).

        CoordinatorNotAvailable, NotCoordinator, UnknownServerError.
        """
        try:
            await (self.znodes.load_offsets_again() if again else self.znodes.load_offsets())
        except ConnectionLoss as error:
            raise CoordinatorNotAvailable(f"the offsets cannot be read: {error}") from None
        except SessionExpired as error:
            raise NotCoordinator(f"the offsets cannot be read: {error}") from None
        except ZooKeeperError as error:
            log.error("offsets of {group}: {error}", group=self.group_id, error=error)
            raise UnknownServerError(f"the offsets cannot be read: {error}") from None

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
            await self.znodes.own_ephemerals()
            while self._newest is not None:
                persist, self._newest = self._newest, None
                await self.znodes.store(persist.snapshot)
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
