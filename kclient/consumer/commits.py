"""Commits offsets: on the caller's request, and automatically what polls have returned.

Theory of operation
===================
Commits are sent to the coordinator one after the other, so that an earlier commit cannot overwrite a later one. For
the same reason automatic commits are not retried; the next one covers their offsets.

A member that keeps its partitions in a cooperative rebalance (KIP-429) may get ILLEGAL_GENERATION or
REBALANCE_IN_PROGRESS although it still owns them. Such a commit is repeated in the new generation, if this consumer has
owned every partition in it all the time.

Invariants: 1. one commit in flight. 2. a member that lost its membership commits nothing. 3. an automatic commit never
passes the records that the polls before the present one returned.
Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from kclient.config import ConsumerConfig
from kclient.consumer.membership import GroupMember, MemberState
from kclient.consumer.partitions import Partitions
from kclient.consumer.positions import OFFSETS_CHANNEL
from kclient.errors import KafkaTimeoutError
from kclient.net.cluster import Cluster
from kclient.net.group_offsets import Generation, commit_offsets, committed_offsets
from kclient.net.waiting import deferring, sleep, within
from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.errors import (
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)

_LAST_COMMIT_S = 5.0
"""Seconds for a commit that a rebalance or a close waits for."""


class Commits:
    """The commits of one consumer. *member* returns its group membership, None outside of a group."""

    log = Logger()

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        partitions: Partitions,
        member: Callable[[], GroupMember | None],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._partitions = partitions
        self._member = member
        self._one_by_one = DeferredLock()
        self._next_automatic = 0.0
        self._automatic_under_way = False
        self.unprocessed: dict[TopicPartition, int] = {}
        """The first offsets of the last poll's records, which the caller may still be processing."""
        self.succeeded = 0

    def positions(self, *, processed: bool = False) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit for all partitions; *processed*: without the records of the last poll.

        With enable.auto.offset.store=false these are the stored ones.
        """
        if not self._config.enable_auto_offset_store:
            return {s.tp: s.stored for s in self._partitions if s.stored is not None}
        found = {}
        for state in self._partitions:
            if state.position is None:
                continue
            if processed and state.tp in self.unprocessed:
                found[state.tp] = OffsetAndMetadata(self.unprocessed[state.tp])
            else:
                epoch = state.leader_epoch if state.leader_epoch >= 0 else None
                found[state.tp] = OffsetAndMetadata(state.position, "", epoch)
        return found

    @deferring
    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout: float,
        retries: int | None = None,
    ) -> None:
        """Commit *offsets*; raise the first error of any partition."""
        owned = {tp: self._partitions.get(tp) for tp in offsets}
        give_up_at = self._cluster.reactor.seconds() + timeout
        await within(
            self._cluster.reactor,
            self._one_by_one.acquire(),
            timeout,
            lambda: KafkaTimeoutError(f"an earlier commit got no response within {timeout:g} s"),
        )
        try:
            while True:
                left = max(0.001, give_up_at - self._cluster.reactor.seconds())
                identity = self._identity()
                try:
                    await self._send(offsets, identity, left, retries)
                    break
                except (RebalanceInProgress, IllegalGeneration, UnknownMemberId) as problem:
                    pause = self._config.retry_backoff_ms / 1000
                    kept = all(
                        state is not None and self._partitions.get(tp) is state
                        for tp, state in owned.items()
                    )
                    if not kept or not self._continues_in_group(problem, identity) or left <= pause:
                        raise
                    await sleep(self._cluster.reactor, pause)
        finally:
            self._one_by_one.release()
        self.succeeded += 1
        for tp, state in owned.items():
            if state is not None:
                state.committed = offsets[tp]

    def maybe_commit(self) -> None:
        """Commit the records of earlier polls, if auto.commit.interval.ms has passed.

        Poll calls this first, and again while it waits.
        """
        now = self._cluster.reactor.seconds()
        if not self.automatic or self._automatic_under_way or now < self._next_automatic:
            return
        self._next_automatic = now + self._config.auto_commit_interval_ms / 1000
        changed = self._changed(self.positions())
        if changed and self._may_commit():
            self._automatic_under_way = True
            limit = self._config.default_api_timeout_ms / 1000
            self.commit(changed, timeout=limit, retries=0).addBoth(self._automatic_done)

    def next_automatic_in(self) -> float:
        """Return the seconds after which a poll that waits has to call `maybe_commit` again."""
        if not self.automatic:
            return inf
        if self._automatic_under_way:
            return self._config.auto_commit_interval_ms / 1000
        left: float = self._next_automatic - self._cluster.reactor.seconds()
        return max(0.0, left)

    async def commit_last(
        self, *, processed: bool = False, timeout: float = _LAST_COMMIT_S
    ) -> None:
        """Commit before partitions are revoked, if auto-commit is on; a failure is logged only."""
        changed = self._changed(self.positions(processed=processed))
        if not self.automatic or not changed or not self._may_commit():
            return
        try:
            await self.commit(changed, timeout=timeout)
        except KafkaError as problem:
            self.log.warn(
                "the last commit before the revocation failed: {problem}", problem=problem
            )

    async def finish(self, timeout: float, *, processed: bool) -> None:
        """Wait for the commits that have begun, and commit for a last time; 0 seconds: wait only."""
        limit = min(timeout or _LAST_COMMIT_S, _LAST_COMMIT_S)
        give_up_at = self._cluster.reactor.seconds() + limit
        try:
            await within(
                self._cluster.reactor,
                self._one_by_one.acquire(),
                limit,
                lambda: KafkaTimeoutError(f"a commit got no response within {limit:g} s"),
            )
        except KafkaTimeoutError as problem:
            self.log.warn("{problem}", problem=problem)
            return
        self._one_by_one.release()
        if timeout:
            left = max(0.001, give_up_at - self._cluster.reactor.seconds())
            await self.commit_last(processed=processed, timeout=left)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset for each of *partitions*, None without a commit.

        With isolation.level=read_committed wait for open transactions that commit some of them (KIP-447).
        """
        wanted = [TopicPartition(*tp) for tp in partitions]
        group = self._config.group_id
        found = await committed_offsets(
            self._cluster,
            group,
            wanted,
            timeout=timeout,
            require_stable=self._config.read_committed,
            channel=OFFSETS_CHANNEL,
        )
        return {tp: found.get(tp) for tp in wanted}

    @property
    def automatic(self) -> bool:
        """Whether polls commit."""
        return bool(self._config.group_id) and self._config.enable_auto_commit

    # --- inside

    def _changed(
        self, positions: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        changed = {}
        for tp, wanted in positions.items():
            state = self._partitions.get(tp)
            known = None if state is None else state.committed
            if known is None or known.offset != wanted.offset:
                changed[tp] = wanted
        return changed

    def _may_commit(self) -> bool:
        member = self._member()
        return member is None or member.generation_id >= 0

    def _identity(self) -> Generation:
        member = self._member()
        if member is None:
            return Generation()
        if member.generation_id < 0:
            raise RebalanceInProgress(
                f"this consumer is not in a generation of group {self._config.group_id!r}",
                hint="poll until it has joined again, then commit",
            )
        return member.identity

    def _continues_in_group(self, problem: KafkaError, sent_as: Generation) -> bool:
        """Return whether the error comes from a rebalance that this member takes part in."""
        member = self._member()
        if member is None or member.generation_id < 0:
            return False
        return (
            isinstance(problem, RebalanceInProgress)
            or member.identity != sent_as
            or member.state is MemberState.JOINING
        )

    async def _send(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        identity: Generation,
        timeout: float,
        retries: int | None,
    ) -> None:
        """Send *offsets* and raise the first error of any partition.

        A topic or partition that the coordinator does not know may be new: as in Java's client, the commit is repeated.
        """
        reactor = self._cluster.reactor
        pause = self._config.retry_backoff_ms / 1000
        give_up_at = reactor.seconds() + timeout
        while True:
            left = max(0.001, give_up_at - reactor.seconds())
            answers = await commit_offsets(
                self._cluster,
                self._config.group_id,
                offsets,
                identity,
                timeout=left,
                retries=retries,
                channel=OFFSETS_CHANNEL,
            )
            problem = next((answer for answer in answers.values() if answer is not None), None)
            if problem is None:
                return
            is_new = isinstance(problem, UnknownTopicOrPartition)
            if not is_new or retries is not None or left <= pause:
                raise problem
            await sleep(reactor, pause)

    def _automatic_done(self, result: Any) -> None:
        self._automatic_under_way = False
        problem = getattr(result, "value", None)
        if isinstance(problem, KafkaError):
            self.log.warn("auto-commit: {problem}", problem=problem)
            if problem.retriable:
                soon = self._cluster.reactor.seconds() + self._config.retry_backoff_ms / 1000
                self._next_automatic = min(self._next_automatic, soon)
        elif problem is not None:
            self.log.failure("auto-commit", failure=result)
