"""Notice that a new leader's log is not the one that was read so far (KIP-320).

Theory of operation
===================
After an unclean election records that were consumed may be gone and other records stand at their offsets: to go on
fetching would skip them without a word. So when metadata tell of a newer leader epoch than the one a position was
good in, its leader is asked (OffsetForLeaderEpoch) where the epoch of the record before the position ends in its log.
If that is before the position, the log was cut off there.

Then, with an auto.offset.reset, consuming goes on at the cut, with a warning: what was written since comes, nothing of
it is skipped, nothing read before it is repeated. With none the caller hears LogTruncated and decides by a seek. What
was only fetched ahead and lies beyond the cut is dropped, in silence: nobody has seen it.

Invariants: 1. a position whose leader epoch is unknown (a plain seek, a reset) is not questioned. 2. nothing is fetched
while the question is open. Owner: the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kclient.config import ConsumerConfig
from kclient.consumer.partitions import Partitions, PartitionState
from kclient.errors import KafkaError, LogTruncated
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode, UnsupportedVersion
from kclient.wire.schema.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kclient.wire.versions import ApiKey

_CONSUMER = -1
_UNDEFINED = -1

RequestedPartition = list[tuple[PartitionState, int, int]]
"""(state, its epoch when asked, the leader epoch it was asked in)."""


class TruncationCheck:
    """Asks for one consumer.

    *answered* is called when a question is settled, *failed* with a partition that could not be asked about.
    """

    log = Logger()

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        partitions: Partitions,
        *,
        answered: Callable[[], None],
        failed: Callable[[PartitionState, BaseException], None],
        lose_position: Callable[[PartitionState, KafkaError], None],
    ) -> None:
        self._cluster = cluster
        self._resets = config.auto_offset_reset != "none"
        self._partitions = partitions
        self._answered = answered
        self._failed = failed
        self._lose_position = lose_position
        self._closed = False

    def needed(self, state: PartitionState) -> bool:
        """Tell whether the leader must be asked before *state* may be fetched."""
        if state.fetch_epoch < 0:
            return False
        return self._cluster.metadata.leader_epoch(state.tp) > state.validated_in

    def ask(self, leader: int, states: list[PartitionState]) -> None:
        """Ask *leader* about the positions of *states*."""
        metadata = self._cluster.metadata
        asked = [(state, state.epoch, metadata.leader_epoch(state.tp)) for state in states]
        for state in states:
            state.in_flight = True
        question = Deferred.fromCoroutine(self._ask(leader, asked))
        question.addBoth(self._settle, asked)
        question.addErrback(lambda failure: self.log.failure("truncation check", failure=failure))

    def close(self) -> None:
        """Let answers that still come pass."""
        self._closed = True

    # --- inside

    async def _ask(
        self, leader: int, asked: RequestedPartition
    ) -> Mapping[TopicPartition, EpochEndOffset]:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for state, _, leader_epoch in asked:
            topics.setdefault(state.tp.topic, []).append(
                OffsetForLeaderPartition(
                    partition=state.tp.partition,
                    current_leader_epoch=leader_epoch,
                    leader_epoch=state.fetch_epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER,
            topics=[OffsetForLeaderTopic(topic=name, partitions=p) for name, p in topics.items()],
        )
        response = await self._cluster.request(leader, ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
        return {
            TopicPartition(topic.topic, answer.partition): answer
            for topic in response.topics
            for answer in topic.partitions
        }

    def _settle(self, result: Any, asked: RequestedPartition) -> None:
        if self._closed:
            return
        problem = getattr(result, "value", None)
        for state, epoch, leader_epoch in asked:
            if not self._partitions.current(state, epoch):
                continue
            state.in_flight = False
            if isinstance(problem, UnsupportedVersion):
                state.validated_in = leader_epoch  # A broker before KIP-320: as good as it gets.
            elif isinstance(problem, BaseException):
                self._failed(state, problem)
            else:
                self._compare(state, result.get(state.tp), leader_epoch)
        self._answered()

    def _compare(
        self, state: PartitionState, end: EpochEndOffset | None, leader_epoch: int
    ) -> None:
        if end is None or end.error_code:
            code = ErrorCode.UNKNOWN_SERVER_ERROR if end is None else end.error_code
            self._failed(state, error_of(code, f"position of {state.tp}"))
            return
        known = _UNDEFINED not in (end.end_offset, end.leader_epoch)
        if known and end.end_offset >= state.fetch_offset:
            state.validated_in = leader_epoch
            return
        position = state.position
        assert position is not None, "a partition without a position is not asked about"
        seen_is_there = known and position <= end.end_offset
        if position < state.fetch_offset and (seen_is_there or state.leader_epoch >= 0):
            # Asked about again, without what was only fetched ahead.
            state.seek(position, state.leader_epoch)
            return
        truncated = LogTruncated(state.tp, position, end.end_offset if known else None)
        if not self._resets:
            state.problem = truncated
        elif known:
            self.log.warn("{problem}", problem=truncated)
            state.seek(min(position, end.end_offset), end.leader_epoch)
            state.validated_in = leader_epoch
        else:
            self._lose_position(state, truncated)
