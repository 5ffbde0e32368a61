"""Looks up start positions: the group's committed offset, else by auto.offset.reset.

Theory of operation
===================
`find` starts a search if a partition lacks a position and no search runs. A search requests the committed offsets of
all of them from the coordinator, once, then offsets from the leaders for partitions without a valid commit. Each
partition gets its position as soon as its leader has answered. A partition without a leader does not delay others; its
search is repeated after a backoff. An error that is not retriable is reported, and the search is repeated by the next
poll.

With isolation.level=read_committed the committed offsets are stable ones: while a transaction with offsets of these
partitions is open, the search is repeated (KIP-447). Else the consumer would read again what that transaction consumed.

Invariants: 1. one search at a time. 2. a response to a request from before a seek or a new assignment changes nothing.
Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kclient.config import ConsumerConfig
from kclient.consumer.partitions import Partitions, PartitionState
from kclient.errors import IllegalStateError, KafkaError, NoCommittedOffset
from kclient.net.cluster import Cluster
from kclient.net.group_offsets import committed_offsets
from kclient.net.offsets import EARLIEST, LATEST, list_offsets_once
from kclient.net.waiting import backoff
from kclient.types import OffsetAndMetadata, TopicPartition
from kclient.wire.errors import UnknownTopicOrPartition

_RESET = {"earliest": EARLIEST, "latest": LATEST}

OFFSETS_CHANNEL = "group offsets"
"""Of requests to the coordinator that must not wait behind a JoinGroup, which it may hold for minutes."""

RequestedPartition = Mapping[TopicPartition, tuple[PartitionState, int]]


class Positions:
    """Looks up the positions of one consumer.

    *found* is called after a position was set, *report* with a partition and its error.
    """

    log = Logger()

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        partitions: Partitions,
        *,
        found: Callable[[], None],
        report: Callable[[TopicPartition, KafkaError], None],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._partitions = partitions
        self._found = found
        self._report = report
        self._search: Deferred[None] | None = None
        self._retry: Any = None
        self._failures = 0
        self._failing_since: dict[TopicPartition, float] = {}
        self._waiters: list[Deferred[None]] = []
        self._problems: dict[TopicPartition, KafkaError] = {}
        self._closed = False

    def find(self) -> None:
        """Look up missing positions, unless a search is running."""
        if self._closed or self._search is not None or self._waits_for_retry():
            return
        missing = self._partitions.without_position()
        if missing:
            asked = {state.tp: (state, state.epoch) for state in missing}
            search = Deferred.fromCoroutine(self._look(asked))
            if not search.called:
                self._search = search
            search.addBoth(self._ended)

    async def of(self, state: PartitionState) -> int:
        """Return the position of *state*, looked up if necessary; raise the error that prevents it."""
        self._problems.pop(state.tp, None)
        while (position := state.position) is None:
            self.find()
            if state.tp in self._problems:
                raise self._problems.pop(state.tp)
            if self._closed or self._partitions.get(state.tp) is not state:
                raise IllegalStateError(
                    f"partition {state.tp} is no longer assigned to this consumer"
                )
            if state.position is None:
                changed: Deferred[None] = Deferred()
                self._waiters.append(changed)
                await changed
        return position

    def changed(self) -> None:
        """Record that the caller set a position, or changed the assignment."""
        self._fire_waiters()

    def close(self) -> None:
        """Stop searching."""
        self._closed = True
        if self._search is not None:
            self._search.cancel()
        if self._waits_for_retry():
            self._retry.cancel()
        self._fire_waiters()

    # --- one search

    async def _look(self, asked: RequestedPartition) -> None:
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        if self._config.group_id:
            # After OFFSET_OUT_OF_RANGE the committed offset is not used: it may be the one out of range.
            wanted = [tp for tp, (state, _) in asked.items() if not state.reset_because]
            if wanted:
                committed = await committed_offsets(
                    self._cluster,
                    self._config.group_id,
                    wanted,
                    timeout=self._config.default_api_timeout_ms / 1000,
                    require_stable=self._config.read_committed,
                    retries=0,
                    channel=OFFSETS_CHANNEL,
                )
        for tp, at in committed.items():
            self._settle(asked, tp, at.offset, at)
        resets = {tp: place for tp, place in asked.items() if tp not in committed}
        if self._config.auto_offset_reset == "none":
            for tp, (state, _) in resets.items():
                self._give_up(tp, _no_offset_error(state))
        elif resets:
            await self._reset(resets)

    async def _reset(self, asked: RequestedPartition) -> None:
        self._cluster.want({tp.topic for tp in asked})
        if any(self._cluster.metadata.partition(tp) is None for tp in asked):
            await self._cluster.refresh()
        answers = await list_offsets_once(
            self._cluster,
            dict.fromkeys(asked, _RESET[self._config.auto_offset_reset]),
            read_committed=self._config.read_committed,
        )
        for tp, answer in answers.items():
            if not isinstance(answer, KafkaError):
                self._settle(asked, tp, answer.offset)
            elif answer.retriable:
                self._failed(tp, answer)
            else:
                self._give_up(tp, answer)

    def _settle(
        self,
        asked: RequestedPartition,
        tp: TopicPartition,
        offset: int,
        at: OffsetAndMetadata | None = None,
    ) -> None:
        state, epoch = asked[tp]
        self._failing_since.pop(tp, None)
        if self._partitions.current(state, epoch) and state.position is None:
            leader_epoch = None if at is None else at.leader_epoch
            state.seek(offset, -1 if leader_epoch is None else leader_epoch)
            state.committed = at

    # --- its end

    def _ended(self, result: Any) -> None:
        self._search = None
        if self._closed:
            return
        problem = getattr(result, "value", None)
        if isinstance(problem, KafkaError):
            for state in self._partitions.without_position():
                fail = self._failed if problem.retriable else self._give_up
                fail(state.tp, problem)
        elif isinstance(problem, BaseException):
            self.log.failure("finding positions", failure=result)
            unexpected = KafkaError(f"finding positions failed: {problem!r}")
            for state in self._partitions.without_position():
                self._give_up(state.tp, unexpected)
        missing = {state.tp for state in self._partitions.without_position()}
        self._problems = {tp: why for tp, why in self._problems.items() if tp in missing}
        self._failing_since = {tp: at for tp, at in self._failing_since.items() if tp in missing}
        if not self._failing_since:
            self._failures = 0
        elif not self._waits_for_retry():
            self._try_again_later()
        self._found()
        if missing - self._failing_since.keys() - self._problems.keys():
            self.find()  # Assigned during the search.
        self._fire_waiters()

    def _failed(self, tp: TopicPartition, problem: KafkaError) -> None:
        """Handle a retriable error; report it to the caller after default.api.timeout.ms."""
        self.log.debug("position of {tp}: {problem}", tp=tp, problem=problem)
        now = self._cluster.reactor.seconds()
        since = self._failing_since.setdefault(tp, now)
        if isinstance(problem, UnknownTopicOrPartition) or problem.needs_metadata:
            self._cluster.update_soon()
        limit = self._config.default_api_timeout_ms / 1000
        if now - since >= limit:
            self._failing_since[tp] = now
            self._report_failure(tp, problem)

    def _give_up(self, tp: TopicPartition, problem: KafkaError) -> None:
        self._failing_since.pop(tp, None)
        self._report_failure(tp, problem)

    def _report_failure(self, tp: TopicPartition, problem: KafkaError) -> None:
        self._problems[tp] = problem
        self._report(tp, problem)

    def _try_again_later(self) -> None:
        first, most = self._config.retry_backoff_ms / 1000, self._config.retry_backoff_max_ms / 1000
        pause = backoff(self._failures, first, most)
        self._failures += 1
        self._retry = self._cluster.reactor.callLater(pause, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self.find()

    def _waits_for_retry(self) -> bool:
        return self._retry is not None and bool(self._retry.active())

    def _fire_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(None)


def _no_offset_error(state: PartitionState) -> NoCommittedOffset:
    why = state.reset_because or "there is no committed offset"
    return NoCommittedOffset(
        f"{state.tp}: {why}, and auto.offset.reset is none; seek to a start position"
    )
