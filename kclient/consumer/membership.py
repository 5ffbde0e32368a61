r"""The membership in a consumer group: join, sync, heartbeat, rejoin.

Theory of operation
===================
    UNJOINED --JoinGroup--> JOINING --SyncGroup--> STABLE --something changed--> UNJOINED ...
                                                      \--leave, not polling--> LEFT

`JoinGroup` collects all members at the coordinator. One of them, the leader, assigns partitions to all with a strategy
that every member supports, and `SyncGroup` returns each member's own. A heartbeat is sent every heartbeat.interval.ms,
except while a JoinGroup is in flight, which replaces it. A member that does not poll for max.poll.interval.ms
leaves the group, so that other members take its partitions; the next poll raises the error.

Eager protocol: all partitions are revoked before each join. Cooperative protocol (KIP-429), if every configured
strategy is cooperative: partitions are kept during the join. Only those that the new assignment lacks are revoked,
followed by one more join. A revocation waits for the caller (`MemberCallbacks.revoked`) while heartbeats continue.
Assigned and lost partitions take effect at once.

A coordinator that moved or restarted is found again, and the generation continues. Only UNKNOWN_MEMBER_ID or
ILLEGAL_GENERATION makes the member lose its partitions and join again.

Invariants: 1. one join at a time; a reason to join during a join starts another one. 2. after `leave` only LeaveGroup
is sent. 3. the response to a heartbeat counts only in the generation of its request.
In: `start`, `polling`, `polled`, `rejoin_soon`, `leave`.   Out: the callbacks of `MemberCallbacks`.
Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kclient.config import ConsumerConfig
from kclient.consumer.assignors import STRATEGIES, Strategy, strategies_named
from kclient.consumer.coordination import CoordinatorRequests, MemberIdAssigned
from kclient.consumer.heartbeats import Heartbeats
from kclient.consumer.protocol import decode_assignment, decode_subscription
from kclient.consumer.wakeup import Wakeup
from kclient.errors import ConsumerLeftGroup
from kclient.net.cluster import Cluster
from kclient.net.group_offsets import Generation
from kclient.types import TopicPartition
from kclient.wire.errors import (
    ErrorCode,
    FencedInstanceId,
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)

_FOR_EVER = 3600.0


WARN_FROM: Final = 0.8
"""The share of max.poll.interval.ms without a poll after which the member warns, once for each poll."""

SHOWN_PLACES: Final = 3
"""Partitions that the warning names at most."""


class MemberState(Enum):
    """The states of a group member."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    STABLE = "stable"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class MemberCallbacks:
    """The consumer's functions that a membership calls."""

    topics: Callable[[], Awaitable[set[str]]]
    """Return the subscribed topics, from fresh metadata."""
    partition_counts: Callable[[set[str]], Awaitable[dict[str, int]]]
    """Return the partition count of each topic; a group's leader assigns them."""
    revoked: Callable[[list[TopicPartition]], Awaitable[None]]
    """Revoke these partitions; the group continues when the result fires."""
    assigned: Callable[[list[TopicPartition]], None]
    lost: Callable[[list[TopicPartition]], None]
    failed: Callable[[KafkaError], None]
    """Report an error to the caller of poll."""
    unprocessed: Callable[[], Mapping[TopicPartition, int]]
    """Return the first offset of each partition that the caller received and has not come back for."""


class GroupMember:
    """A member of a consumer group."""

    log = Logger()

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        hooks: MemberCallbacks,
        coordination: CoordinatorRequests | None = None,
    ) -> None:
        self._reactor = cluster.reactor
        self._config = config
        self._group = config.group_id
        self._hooks = hooks
        self._requests = coordination or CoordinatorRequests(cluster, config)
        self._strategies = strategies_named(config.partition_assignment_strategy)
        self.cooperative = all(strategy.cooperative for strategy in self._strategies)
        self.state = MemberState.UNJOINED
        self.identity = self._unjoined()
        self.owned: list[TopicPartition] = []
        self.left_because: str | None = None
        self._assigned_counts: dict[str, int] = {}
        """At the leader: the assigned topics with their partition counts."""
        self._joined_topics: set[str] = set()
        self._reason: str | None = None
        """The reason to join, None if there is none."""
        self._rejection: KafkaError | None = None
        """The error of a heartbeat that ended this membership."""
        self._preparing = False
        """A join is about to start, so REBALANCE_IN_PROGRESS needs no reaction."""
        self._running: Deferred[None] | None = None
        self._fatal: KafkaError | None = None
        self._wakeup = Wakeup(self._reactor)
        self._heartbeats = Heartbeats(
            self._reactor,
            config.heartbeat_interval_ms / 1000,
            self._send_heartbeat,
            self._heartbeat_rejected,
            self._leave_if_overdue,
        )
        self._last_poll = 0.0
        self._in_poll = False
        self._warned_of_poll = False

    # --- for the consumer

    @property
    def generation_id(self) -> int:
        """The member's generation, -1 without one."""
        return self.identity.generation_id

    def start(self) -> None:
        """Start the membership unless it is running; raise the error that made it impossible."""
        if self._fatal is not None:
            raise self._fatal.with_traceback(None)
        if self._running is None:
            self.polled()
            self._reason = "joining"
            self._rejection = None
            self.state = MemberState.UNJOINED
            running = Deferred.fromCoroutine(self._run_member())
            if not running.called:
                self._running = running
            running.addErrback(self._member_ended)

    def polling(self) -> None:
        """Record that the caller waits in poll; max.poll.interval.ms does not run meanwhile."""
        self._in_poll = True

    def polled(self) -> None:
        """Record that the caller's poll returned now."""
        self._in_poll = False
        self._warned_of_poll = False
        self._last_poll = self._reactor.seconds()

    def rejoin_soon(self, reason: str) -> None:
        """Join again, because the subscription or its topics changed."""
        if self._running is not None:
            self._reason = reason
            self._wakeup.wake()

    def topics_changed(self, subscribed: set[str], counts: Callable[[str], int]) -> None:
        """Rejoin if new metadata show other subscribed topics, or (at the leader) other partition counts."""
        if self.state is not MemberState.STABLE:
            return
        if subscribed != self._joined_topics:
            self.rejoin_soon("the subscribed topics changed")
        elif any(counts(topic) != count for topic, count in self._assigned_counts.items()):
            self.rejoin_soon("the partitions of the subscribed topics changed")

    def stop(self) -> None:
        """Stop the membership; the identity stays valid for a last commit."""
        self.state = MemberState.LEFT
        self._heartbeats.stop()
        life, self._running = self._running, None
        if life is not None:
            life.cancel()

    async def leave(self, reason: str = "the consumer was closed") -> None:
        """Leave the group with a LeaveGroup, so that it rebalances at once."""
        self.stop()
        identity, self.identity = self.identity, self._unjoined()
        self.owned = []
        await self._send_leave(identity, reason)

    # --- the membership

    def _unjoined(self, member_id: str = "") -> Generation:
        return Generation(-1, member_id, self._config.group_instance_id or None)

    async def _run_member(self) -> None:
        failures = 0
        while True:
            try:
                if self._rejection is not None:
                    self._lost_membership(self._rejection)
                if self._reason is None:
                    await self._wakeup.wait(_FOR_EVER)
                    continue
                await self._join()
                failures = 0
            except RebalanceInProgress:
                self._reason = self._reason or "the group rebalances"
            except (UnknownMemberId, IllegalGeneration) as problem:
                self._lost_membership(problem)
            except KafkaError as problem:
                if not problem.retriable:
                    raise
                self.log.info(
                    "group {group}: {problem}; retrying", group=self._group, problem=problem
                )
                self._reason = self._reason or "retrying"
                await self._pause(min(1.0, 0.05 * 2**failures))
                failures = min(failures + 1, 10)

    async def _pause(self, seconds: float) -> None:
        until = self._reactor.seconds() + seconds
        while (left := until - self._reactor.seconds()) > 0:
            await self._wakeup.wait(left)

    def _member_ended(self, failure: Any) -> None:
        if failure.check(CancelledError) and self._running is None:
            return  # By `stop`, or the error of a heartbeat was reported.
        self._running = None
        self._heartbeats.stop()
        self.state = MemberState.LEFT
        self.identity = self._unjoined()
        problem = failure.value
        if not isinstance(problem, KafkaError):
            self.log.failure("group {group}", group=self._group, failure=failure)
            problem = ConsumerLeftGroup(f"group {self._group!r}: {problem!r}")
        elif isinstance(problem, FencedInstanceId):
            # Joining again would fence the consumer that fenced this one.
            self._fatal = problem
        self._drop_owned()
        self._hooks.failed(problem)

    async def _join(self) -> None:
        """Take part in one rebalance."""
        reason, self._reason = self._reason or "joining", None
        try:
            topics = await self._hooks.topics()
            await self._prepare(topics)
            if self._rejection is not None:
                raise self._rejection
            self.state = MemberState.JOINING
            self._heartbeats.stop()
            self.log.info("group {group}: joining ({why})", group=self._group, why=reason)
            joined = await self._ask_to_join(topics, reason)
            self.identity = Generation(
                joined.generation_id, joined.member_id, self._config.group_instance_id or None
            )
            strategy = STRATEGIES.get(joined.protocol_name)
            if strategy is None:
                raise KafkaError(
                    f"group {self._group!r} chose the strategy {joined.protocol_name!r}"
                )
            assignments = await self._assign(strategy, joined)
            share = await self._requests.sync(self.identity, strategy.name, assignments)
        except BaseException:
            if self.state is MemberState.JOINING:
                self.state = MemberState.UNJOINED
            self._reason = self._reason or reason
            raise
        self._joined_topics = topics
        self._rejection = None
        self.state = MemberState.STABLE
        self._heartbeats.begin()
        await self._take_assignment(strategy, decode_assignment(share))

    async def _ask_to_join(self, topics: set[str], reason: str) -> Any:
        while True:
            try:
                return await self._requests.join(
                    self.identity, self._strategies, topics, self.owned, reason
                )
            except MemberIdAssigned as given:
                # Kept even if the next request is lost: a second member id would leave a dead member in the group.
                self.identity = self._unjoined(given.member_id)

    async def _prepare(self, topics: set[str]) -> None:
        """Revoke the partitions that must not be kept: all, or those of topics without a subscription (KIP-429)."""
        kept = [p for p in self.owned if p.topic in topics] if self.cooperative else []
        gone = sorted(set(self.owned) - set(kept))
        if gone:
            self._preparing = True
            try:
                await self._hooks.revoked(gone)
            finally:
                self._preparing = False
            self.owned = kept

    async def _assign(self, strategy: Strategy, joined: Any) -> dict[str, list[TopicPartition]]:
        """At the leader, assign partitions to all members; at others, return no assignments.

        A static leader that came back assigns nothing either, but watches the topics of the group (KIP-814).
        """
        self._assigned_counts = {}
        if joined.leader != joined.member_id:
            return {}
        members: Sequence[Any] = joined.members
        subscriptions = {m.member_id: decode_subscription(bytes(m.metadata)) for m in members}
        wanted = {topic for each in subscriptions.values() for topic in each.topics}
        counts = await self._hooks.partition_counts(wanted)
        self._assigned_counts = counts
        if joined.skip_assignment:
            return {}
        return strategy.assign(counts, subscriptions)

    async def _take_assignment(
        self, strategy: Strategy, partitions: Sequence[TopicPartition]
    ) -> None:
        before, after = set(self.owned), set(partitions)
        self.log.info(
            "group {group}: generation {generation}, {count} partitions by {strategy}",
            group=self._group,
            generation=self.generation_id,
            count=len(after),
            strategy=strategy.name,
        )
        gone = sorted(before - after)
        if gone:
            await self._hooks.revoked(gone)
            self.owned = sorted(before & after)
            if self._rejection is not None:
                return  # Lost during the revocation: the new partitions are not assigned.
        self.owned = sorted(after)
        self._hooks.assigned(sorted(after - before))
        if gone:
            # Revoked partitions can only be assigned in the next rebalance.
            self._reason = self._reason or "partitions were revoked"

    def _lost_membership(self, problem: KafkaError) -> None:
        """Handle UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION: the partitions are lost."""
        self.log.info("group {group}: {problem}", group=self._group, problem=problem)
        self._rejection = None
        self._heartbeats.stop()
        self.identity = self._unjoined(self._member_id_after(problem))
        self.state = MemberState.UNJOINED
        self._reason = f"lost membership: {problem.code.name}"
        self._drop_owned()

    def _drop_owned(self) -> None:
        owned, self.owned = self.owned, []
        if owned:
            self._hooks.lost(owned)

    # --- heartbeats

    async def _send_heartbeat(self) -> None:
        await self._requests.heartbeat(self.identity)

    def _heartbeat_rejected(self, problem: BaseException) -> None:
        """Handle the error of a heartbeat."""
        if isinstance(problem, RebalanceInProgress):
            if not self._preparing:
                self.rejoin_soon("the group rebalances")
        elif isinstance(problem, UnknownMemberId | IllegalGeneration):
            self._heartbeats.stop()
            self._rejection = problem
            self.identity = self._unjoined(self._member_id_after(problem))
            self._wakeup.wake()
        else:
            life, self._running = self._running, None
            if life is not None:
                life.cancel()
            self._member_ended(Failure(problem))

    def _member_id_after(self, problem: KafkaError) -> str:
        """Return the member id to join with: the same after ILLEGAL_GENERATION, none after UNKNOWN_MEMBER_ID."""
        return self.identity.member_id if problem.code == ErrorCode.ILLEGAL_GENERATION else ""

    def _leave_if_overdue(self) -> None:
        """Leave the group if the caller has not polled for max.poll.interval.ms."""
        silent: float = self._reactor.seconds() - self._last_poll
        limit = self._config.max_poll_interval_ms
        share = 1000 * silent / limit
        if self._in_poll or share <= WARN_FROM:
            return
        if share <= 1:
            self._warn_of_poll(silent)
            return
        self.left_because = (
            f"poll was not called for more than max.poll.interval.ms ({limit} ms), so this member left "
            f"group {self._group!r}: reduce max.poll.records or raise the interval"
        )
        self.log.warn("{why}", why=self.left_because)
        self.stop()
        identity, self.identity = self.identity, self._unjoined()
        self._drop_owned()
        leaving = self._send_leave(identity, "max.poll.interval.ms was exceeded")
        Deferred.fromCoroutine(leaving).addErrback(
            lambda failure: self.log.failure("leaving the group", failure=failure)
        )

    def _warn_of_poll(self, silent: float) -> None:
        """Log once that the caller is about to be late, and what it is busy with."""
        if self._warned_of_poll:
            return
        self._warned_of_poll = True
        places = [
            f"{tp} offset {offset}" for tp, offset in sorted(self._hooks.unprocessed().items())
        ]
        shown = ", ".join(places[:SHOWN_PLACES])
        more = f" and {len(places) - SHOWN_PLACES} more" if len(places) > SHOWN_PLACES else ""
        self.log.warn(
            "poll was last called {silent:.0f} s ago: after max.poll.interval.ms ({limit} ms) this member leaves "
            "group {group!r}{at}",
            silent=silent,
            limit=self._config.max_poll_interval_ms,
            group=self._group,
            at=f"; its caller is busy with records from {shown}{more}" if places else "",
        )

    async def _send_leave(self, identity: Generation, reason: str) -> None:
        """Send LeaveGroup; not for a static member, which is expected to return (KIP-345)."""
        if not identity.member_id or identity.group_instance_id:
            return
        try:
            await self._requests.leave(identity, reason)
        except KafkaError as problem:
            # The coordinator removes the member after its session timeout.
            self.log.info("leaving group {group}: {problem}", group=self._group, problem=problem)
