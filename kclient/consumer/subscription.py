"""A consumer's subscription, and the effects of rebalances on its partitions and its listener.

Theory of operation
===================
`GroupMember` decides when partitions are assigned, revoked or lost; this module reports it to the caller's listener.
All listener calls happen inside `poll`, `close` and `unsubscribe`, in order (`run_callbacks`), never concurrently with
the caller's own code.

Revocation also happens there, with or without a listener: the caller has processed the records of the last poll only
when it polls again. Only then may they be committed and the partitions be assigned to another member. The group waits
up to the rebalance timeout, as with Kafka's client. Assigned and lost partitions take effect at once, and the listener
is called in the next poll, before it takes any record.

An exception of a listener is raised by `poll`; the assignment changes all the same. A poll that is cancelled does not
cancel the listener: the next poll waits for its end, and raises its exception.
Owner: the reactor's thread.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from kclient.config import ConsumerConfig
from kclient.consumer.assignors import strategies_named
from kclient.consumer.commits import Commits
from kclient.consumer.membership import GroupMember, MemberCallbacks
from kclient.consumer.partitions import Partitions
from kclient.errors import ConsumerLeftGroup, KafkaError, KafkaTimeoutError
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.metadata import ClusterMetadata, TopicMetadata
from kclient.net.waiting import SingleFlight, within
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode, for_code

CallbackRunner = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a listener's method, in the thread that the API requires."""


async def run_here(callback: Callable[[], Any]) -> Any:
    """Call *callback* in this thread, and await its result if it is awaitable."""
    result = callback()
    if isinstance(result, Awaitable):
        return await result
    return result


class RebalanceListener:
    """Notified of partitions that are assigned, revoked or lost; override the methods that you need.

        class CommitFirst(RebalanceListener):
            def on_partitions_revoked(self, partitions):
                consumer.commit()

        consumer.subscribe(["orders"], listener=CommitFirst())

    Methods run inside poll, in the thread or task that polls, and may call the consumer. Each may return None, a
    coroutine or a Deferred, which is awaited. Methods never run concurrently. Poll raises their exceptions.
    """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Any:
        """*partitions* will be assigned to another member: the last moment to commit."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Any:
        """*partitions* are newly assigned; partitions that the consumer kept are not among them."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Any:
        """*partitions* may already belong to another member: a commit would fail."""
        return self.on_partitions_revoked(partitions)


_LEAVE_S = 5.0
"""Seconds for a LeaveGroup at most: without it the coordinator removes the member after its session timeout."""

RebalanceCallback = Callable[[Any, list[TopicPartition]], Any]
"""A function like those of confluent-kafka: called with the consumer and the partitions."""


def listener_of(
    consumer: object,
    listener: RebalanceListener | None,
    on_assign: RebalanceCallback | None,
    on_revoke: RebalanceCallback | None,
    on_lost: RebalanceCallback | None,
) -> RebalanceListener | None:
    """Return *listener*, or one that calls the given functions with *consumer*; on_lost is by default on_revoke."""
    functions = {
        "on_partitions_assigned": on_assign,
        "on_partitions_revoked": on_revoke,
        "on_partitions_lost": on_lost or on_revoke,
    }
    given = {name: function for name, function in functions.items() if function is not None}
    if not given:
        if isinstance(listener, type) or callable(listener):
            raise TypeError(f"subscribe: listener={listener!r} is no object with methods")
        return listener
    if listener is not None:
        raise TypeError("subscribe: give either a listener or on_assign, on_revoke and on_lost")
    for function in given.values():
        if not callable(function):
            raise TypeError(f"subscribe: {function!r} is no function of (consumer, partitions)")
    return _Functions(consumer, given)


class _Functions(RebalanceListener):
    """A listener of functions. It does not keep the consumer alive: a blocking one is closed when it is dropped."""

    def __init__(self, consumer: object, functions: Mapping[str, RebalanceCallback]) -> None:
        self._consumer = weakref.ref(consumer)
        self._functions = functions

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Any:
        return self._call("on_partitions_revoked", partitions)

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Any:
        return self._call("on_partitions_assigned", partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Any:
        return self._call("on_partitions_lost", partitions)

    def _call(self, name: str, partitions: list[TopicPartition]) -> Any:
        function, consumer = self._functions.get(name), self._consumer()
        if function is None or consumer is None:
            return None
        return function(consumer, partitions)


class GroupSubscription:
    """The subscription of one consumer, and its membership while it has one.

    *wake* wakes a waiting poll; *report* takes an error for the caller.
    """

    log = Logger()

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        partitions: Partitions,
        *,
        callback_runner: CallbackRunner,
        wake: Callable[[], None],
        report: Callable[[object, KafkaError], None],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._partitions = partitions
        self._callback_runner = callback_runner
        self._wake = wake
        self._report = report
        self._topics: set[str] = set()
        self._unknown: set[str] = set()
        """Subscribed topics that do not exist, each logged once."""
        self._pattern: re.Pattern[str] | None = None
        self._listener: RebalanceListener | None = None
        self._callbacks: deque[tuple[Callable[[], Awaitable[None]], Deferred[None]]] = deque()
        self._calling = SingleFlight(self._call_next)
        self._listener_problem: Exception | None = None
        self.rebalances = 0
        self.member: GroupMember | None = None
        self.commits = Commits(cluster, config, partitions, lambda: self.member)
        if config.group_id:
            strategies_named(config.partition_assignment_strategy)

    # --- for the consumer

    def subscribe(
        self, topics: Iterable[str], pattern: str | None, listener: RebalanceListener | None
    ) -> None:
        """Replace the subscription by *topics*, or by all topics that match *pattern*."""
        self._topics = set(topics)
        self._pattern = None if pattern is None else re.compile(pattern)
        self._listener = listener
        if self._pattern is not None:
            self._cluster.want_all()
        else:
            self._cluster.want_only(self._topics)
        if self.member is not None:
            self.member.rejoin_soon("the subscription changed")
            return
        hooks = MemberCallbacks(
            topics=self._subscribed,
            partition_counts=self._partition_counts,
            revoked=self._revoked,
            assigned=self._assigned,
            lost=self._lost,
            failed=lambda problem: self._report("group", problem),
            unprocessed=lambda: self.commits.unprocessed,
        )
        self.member = GroupMember(self._cluster, self._config, hooks)

    def topics(self) -> set[str]:
        """Return the subscribed topics in the known metadata."""
        return self._matching(self._cluster.metadata)

    def poll_begins(self) -> None:
        """Join the group if necessary; raise the error that ended the membership, once."""
        member = self.member
        if member is None:
            return
        if member.left_because is not None:
            why, member.left_because = member.left_because, None
            member.polled()
            raise ConsumerLeftGroup(f"{why}; the next poll joins again")
        member.start()
        member.polling()

    def poll_ended(self) -> None:
        """Start the clock of max.poll.interval.ms."""
        if self.member is not None:
            self.member.polled()

    async def run_callbacks(self) -> None:
        """Call the listener for pending changes in order; raise its exceptions."""
        self._raise_listener_problem()
        while self._callbacks or self._calling.flight is not None:
            await self._calling.join()
            self._raise_listener_problem()

    async def _call_next(self) -> None:
        callback, done = self._callbacks.popleft()
        try:
            await callback()
        except CancelledError:
            pass  # The thread of the listener's caller was interrupted.
        except Exception as problem:
            self._listener_problem = problem
        finally:
            done.callback(None)

    def _raise_listener_problem(self) -> None:
        problem, self._listener_problem = self._listener_problem, None
        if problem is not None:
            raise problem

    async def end(
        self, reason: str, *, timeout: float, commit: bool, processed: bool = False
    ) -> None:
        """Revoke all partitions and leave the group, within *timeout* seconds; *commit* (if auto-commit is on) first.

        Commits take at most half of the time, and the listener gets its call; LeaveGroup has at least the last fifth.
        """
        member, topics = self.member, self._topics
        reactor = self._cluster.reactor
        give_up_at = reactor.seconds() + timeout
        if member is not None:
            member.stop()
        self._callbacks.clear()
        try:
            await within(
                reactor,
                self._revoke_all(member, timeout / 2 if commit else 0.0, processed=processed),
                timeout * 0.8,
                lambda: KafkaTimeoutError(f"revoking the partitions took over {timeout * 0.8:g} s"),
            )
        finally:
            self._partitions.assign([])
            if self._topics is topics:
                self._topics, self._pattern, self._listener = set(), None, None
            if member is not None and self.member is member:
                self.member = None
                await self._leave(member, reason, min(_LEAVE_S, give_up_at - reactor.seconds()))

    async def _revoke_all(
        self, member: GroupMember | None, commit_for: float, *, processed: bool
    ) -> None:
        """Commit within *commit_for* seconds, then call the listener for all partitions."""
        if self._calling.flight is not None and not self._calling.has_waiters:
            await self._calling.join()  # The poll that called the listener was cancelled.
        await self.commits.finish(commit_for, processed=processed)
        held = sorted(self._partitions.assigned())
        if member is not None and held:
            lost = member.generation_id < 0
            await self._call_listener(
                "on_partitions_lost" if lost else "on_partitions_revoked", held
            )

    async def _leave(self, member: GroupMember, reason: str, seconds: float) -> None:
        try:
            await within(
                self._cluster.reactor,
                member.leave(reason),
                seconds,
                lambda: KafkaTimeoutError(f"no response within {seconds:g} s"),
            )
        except KafkaError as problem:
            self.log.info(
                "leaving group {group}: {problem}", group=self._config.group_id, problem=problem
            )

    def metadata_changed(self, metadata: ClusterMetadata) -> None:
        """Handle new metadata: added or deleted topics and partitions, and topics with errors."""
        if self.member is None:
            return
        for name in sorted(self._topics):
            topic = metadata.topics.get(name)
            if topic is not None and topic.error_code and not for_code(topic.error_code).retriable:
                self._report(("topic", name), error_of(topic.error_code, f"topic {name!r}"))
            self._warn_if_unknown(name, topic)
        self.member.topics_changed(
            self._matching(metadata), lambda name: len(metadata.partitions(name) or ())
        )

    def _warn_if_unknown(self, name: str, topic: TopicMetadata | None) -> None:
        """Log once that a topic does not exist: the consumer waits for it, and polls return nothing until then."""
        if topic is None or topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._unknown.discard(name)
        elif name not in self._unknown:
            self._unknown.add(name)
            self.log.warn(
                "topic {name!r} does not exist: group {group} has no records of it until it is created",
                name=name,
                group=self._config.group_id,
            )

    # --- callbacks of the membership

    def _matching(self, metadata: ClusterMetadata) -> set[str]:
        if self._pattern is None:
            return set(self._topics)
        internal = not self._config.exclude_internal_topics
        return metadata.matching(self._pattern, internal=internal)

    async def _subscribed(self) -> set[str]:
        return self._matching(await self._cluster.refresh())

    async def _partition_counts(self, topics: set[str]) -> dict[str, int]:
        self._cluster.want(topics)
        metadata = await self._cluster.refresh()
        return {name: len(metadata.partitions(name) or ()) for name in topics}

    async def _revoked(self, partitions: list[TopicPartition]) -> None:
        await self._in_poll(lambda: self._give_up(partitions))

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        self._cluster.want({tp.topic for tp in partitions})
        self._partitions.assign(self._partitions.assigned() | set(partitions))
        self._in_poll(lambda: self._report_assigned(partitions))

    def _lost(self, partitions: list[TopicPartition]) -> None:
        held = self._partitions.assigned()
        partitions = [tp for tp in partitions if tp in held]
        self._partitions.assign(held - set(partitions))
        if partitions:
            self._in_poll(lambda: self._call_listener("on_partitions_lost", partitions))

    # --- inside poll

    def _in_poll(self, callback: Callable[[], Awaitable[None]]) -> Deferred[None]:
        """Run callback() in the next poll; fire when it has run."""
        done: Deferred[None] = Deferred()
        self._callbacks.append((callback, done))
        self._wake()
        return done

    async def _give_up(self, partitions: list[TopicPartition]) -> None:
        partitions = [tp for tp in partitions if tp in self._partitions]
        if not partitions:
            return
        try:
            if self.member is None or self.member.generation_id < 0:
                await self._call_listener("on_partitions_lost", partitions)
            else:
                await self.commits.commit_last()
                await self._call_listener("on_partitions_revoked", partitions)
        finally:
            self._partitions.assign(self._partitions.assigned() - set(partitions))

    async def _report_assigned(self, partitions: list[TopicPartition]) -> None:
        still = [tp for tp in partitions if tp in self._partitions]
        if still or not partitions:
            await self._call_listener("on_partitions_assigned", still)

    async def _call_listener(self, method: str, partitions: list[TopicPartition]) -> None:
        if self._listener is None:
            return
        call = getattr(self._listener, method, None)
        if call is None and method == "on_partitions_lost":
            # A listener class of another library.
            call = getattr(self._listener, "on_partitions_revoked", None)
        if call is not None:
            chosen = call
            await self._callback_runner(lambda: chosen(partitions))
