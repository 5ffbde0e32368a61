r"""Being a member of a consumer group: join, sync, heartbeat, and over again.

Theory of operation
===================
    UNJOINED --JoinGroup--> JOINING --SyncGroup--> STABLE --something changed--> UNJOINED ...
                                                      \--leave, not polling--> LEFT

`JoinGroup` collects all members at the coordinator; one of them, the leader, assigns partitions to all with the
strategy that everybody speaks, and `SyncGroup` hands each its own. A heartbeat goes out every heartbeat.interval.ms
whatever the caller does, except while a JoinGroup is under way, which says the same. A member whose caller does not
poll for max.poll.interval.ms leaves by itself, so that its partitions do not stand still; the next poll says so.

Eager protocol: everything is given up before each join. Cooperative protocol (KIP-429), when every configured
strategy is cooperative: partitions are kept through the join, and only those that the new assignment lacks are given
up, which is followed by one more join. Giving up waits for the caller (`MemberCallbacks.revoked`), heartbeats going
on; getting and losing do not, for neither can be put off.

A coordinator that moves or is restarted is found again; the generation goes on, and only an answer that this member is
unknown or its generation past makes it lose its partitions and join as somebody new.

Invariants: 1. one join at a time; a reason to join that comes during one is not forgotten. 2. after `leave` nothing is
sent but the goodbye. 3. a heartbeat's answer counts only in the generation it was sent in.
In: `start`, `polling`, `polled`, `rejoin_soon`, `leave`.   Out: the callbacks of `MemberCallbacks`.
Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

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


class MemberState(Enum):
    """Where a member is in its life."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    STABLE = "stable"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class MemberCallbacks:
    """What a membership asks of its consumer."""

    topics: Callable[[], Awaitable[set[str]]]
    """The subscribed topics, as they are now."""
    partition_counts: Callable[[set[str]], Awaitable[dict[str, int]]]
    """How many partitions each of the topics has that any member subscribed to: what a leader assigns."""
    revoked: Callable[[list[TopicPartition]], Awaitable[None]]
    """Give these up; others get them when this is done."""
    assigned: Callable[[list[TopicPartition]], None]
    lost: Callable[[list[TopicPartition]], None]
    failed: Callable[[KafkaError], None]
    """An error that the caller must hear."""


class GroupMember:
    """One member of one group."""

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
        """As a leader: the topics that were assigned, and how many partitions they had."""
        self._joined_topics: set[str] = set()
        self._reason: str | None = None
        """Why to join, if there is a reason."""
        self._rejection: KafkaError | None = None
        """Why a heartbeat says that this member is no more."""
        self._preparing = False
        """A join is about to begin: that the group rebalances is no news."""
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

    # --- for the consumer

    @property
    def generation_id(self) -> int:
        """The generation this member is in, -1 in none."""
        return self.identity.generation_id

    def start(self) -> None:
        """Begin to be a member; does nothing while it is one. Raise what made it impossible for good."""
        if self._fatal is not None:
            raise self._fatal.with_traceback(None)
        if self._running is None:
            self.polled()
            self._reason = "joining"
            self._rejection = None
            self.state = MemberState.UNJOINED
            life = Deferred.fromCoroutine(self._run_member())
            if not life.called:
                self._running = life
            life.addErrback(self._member_ended)

    def polling(self) -> None:
        """Note that the caller waits in poll: it is not overdue, however long that takes."""
        self._in_poll = True

    def polled(self) -> None:
        """Note that the caller's poll ended just now."""
        self._in_poll = False
        self._last_poll = self._reactor.seconds()

    def rejoin_soon(self, reason: str) -> None:
        """Join again: the subscription or the topics changed."""
        if self._running is not None:
            self._reason = reason
            self._wakeup.wake()

    def topics_changed(self, subscribed: set[str], counts: Callable[[str], int]) -> None:
        """Look at new metadata: other topics than this member joined for, or (as leader) other partitions."""
        if self.state is not MemberState.STABLE:
            return
        if subscribed != self._joined_topics:
            self.rejoin_soon("the subscribed topics changed")
        elif any(counts(topic) != count for topic, count in self._assigned_counts.items()):
            self.rejoin_soon("the partitions of the subscribed topics changed")

    def stop(self) -> None:
        """Take part in nothing any more; the identity stays good for a last commit."""
        self.state = MemberState.LEFT
        self._heartbeats.stop()
        life, self._running = self._running, None
        if life is not None:
            life.cancel()

    async def leave(self, reason: str = "the consumer was closed") -> None:
        """Leave the group and tell the coordinator, so that others take over at once."""
        self.stop()
        identity, self.identity = self.identity, self._unjoined()
        self.owned = []
        await self._send_leave(identity, reason)

    # --- life

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
                    "group {group}: {problem}; trying again", group=self._group, problem=problem
                )
                self._reason = self._reason or "trying again"
                await self._pause(min(1.0, 0.05 * 2**failures))
                failures = min(failures + 1, 10)

    async def _pause(self, seconds: float) -> None:
        until = self._reactor.seconds() + seconds
        while (left := until - self._reactor.seconds()) > 0:
            await self._wakeup.wait(left)

    def _member_ended(self, failure: Any) -> None:
        if failure.check(CancelledError) and self._running is None:
            return  # By `stop`, or because a heartbeat said it all.
        self._running = None
        self._heartbeats.stop()
        self.state = MemberState.LEFT
        self.identity = self._unjoined()
        problem = failure.value
        if not isinstance(problem, KafkaError):
            self.log.failure("group {group}", group=self._group, failure=failure)
            problem = ConsumerLeftGroup(f"group {self._group!r}: {problem!r}")
        elif isinstance(problem, FencedInstanceId):
            # To join again would push out the one that pushed this one out.
            self._fatal = problem
        self._drop_owned()
        self._hooks.failed(problem)

    async def _join(self) -> None:
        """Go through one rebalance."""
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
                # Kept even if the next request is lost: a second name would leave a ghost in the group.
                self.identity = self._unjoined(given.member_id)

    async def _prepare(self, topics: set[str]) -> None:
        """Give up what must not be kept through the join: all of it, or what is not subscribed to any more."""
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
        """As leader, assign for all; anybody else hands in nothing."""
        self._assigned_counts = {}
        if joined.leader != joined.member_id or joined.skip_assignment:
            return {}
        members: Sequence[Any] = joined.members
        subscriptions = {m.member_id: decode_subscription(bytes(m.metadata)) for m in members}
        wanted = {topic for each in subscriptions.values() for topic in each.topics}
        counts = await self._hooks.partition_counts(wanted)
        self._assigned_counts = counts
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
                return  # Lost meanwhile; the new ones are nobody's yet.
        self.owned = sorted(after)
        self._hooks.assigned(sorted(after - before))
        if gone:
            # What was given up can only be assigned in the next round.
            self._reason = self._reason or "partitions were given up"

    def _lost_membership(self, problem: KafkaError) -> None:
        """Take the word of the coordinator that this member, as it was, is no more."""
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
        """Act on what a heartbeat was answered."""
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
        """Return the member id to go on with: its generation is past, or it is not known at all."""
        return self.identity.member_id if problem.code == ErrorCode.ILLEGAL_GENERATION else ""

    def _leave_if_overdue(self) -> None:
        """Leave when the caller has not polled for too long."""
        silent: float = self._reactor.seconds() - self._last_poll
        if self._in_poll or silent <= self._config.max_poll_interval_ms / 1000:
            return
        limit = self._config.max_poll_interval_ms
        self.left_because = (
            f"poll was not called for more than max.poll.interval.ms ({limit} ms), so this member left "
            f"group {self._group!r}: process less per poll (max.poll.records) or raise the interval"
        )
        self.log.warn("{why}", why=self.left_because)
        self.stop()
        identity, self.identity = self.identity, self._unjoined()
        self._drop_owned()
        goodbye = self._send_leave(identity, "max.poll.interval.ms was exceeded")
        Deferred.fromCoroutine(goodbye).addErrback(
            lambda failure: self.log.failure("saying goodbye", failure=failure)
        )

    async def _send_leave(self, identity: Generation, reason: str) -> None:
        """Tell the coordinator; a static member does not, for it is to come back (KIP-345)."""
        if not identity.member_id or identity.group_instance_id:
            return
        try:
            await self._requests.leave(identity, reason)
        except KafkaError as problem:
            # The session timeout will do what this could not.
            self.log.info("leaving group {group}: {problem}", group=self._group, problem=problem)
