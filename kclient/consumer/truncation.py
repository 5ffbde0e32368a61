"""Detects that a new leader's log diverges from the consumed one (KIP-320).

Theory of operation
===================
After an unclean election consumed records may be lost, with other records at their offsets. Fetching on would skip
those records silently. So metadata with a newer leader epoch than that of the last validation lead to another one. The
consumer requests the end offset of the epoch of the record before the position (OffsetForLeaderEpoch). If it is below
the position, the log was truncated there.

With an auto.offset.reset, the consumer then continues at the divergent offset, with a warning: it consumes the new
records once and repeats none. With auto.offset.reset=none poll raises LogTruncated, and the caller seeks. Buffered
batches above the divergent offset are dropped silently, because poll has not returned them.

Invariants: 1. a position without a leader epoch (a plain seek, a reset) is not validated. 2. nothing is fetched during
a validation. Owner: the reactor's thread.
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
"""(state, its epoch when requested, the leader epoch it was requested in)."""


class TruncationCheck:
    """Validates positions for one consumer.

    *answered* is called after a validation, *failed* with a partition and the error of its validation.
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
        """Return whether *state* must be validated before it is fetched."""
        if state.fetch_epoch < 0:
            return False
        return self._cluster.metadata.leader_epoch(state.tp) > state.validated_in

    def validate(self, leader: int, states: list[PartitionState]) -> None:
        """Validate the positions of *states* at *leader*."""
        metadata = self._cluster.metadata
        requested = [(state, state.epoch, metadata.leader_epoch(state.tp)) for state in states]
        for state in states:
            state.in_flight = True
        sent = Deferred.fromCoroutine(self._send(leader, requested))
        sent.addBoth(self._settle, requested)
        sent.addErrback(lambda failure: self.log.failure("truncation check", failure=failure))

    def close(self) -> None:
        """Ignore later responses."""
        self._closed = True

    # --- inside

    async def _send(
        self, leader: int, requested: RequestedPartition
    ) -> Mapping[TopicPartition, EpochEndOffset]:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for state, _, leader_epoch in requested:
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

    def _settle(self, result: Any, requested: RequestedPartition) -> None:
        if self._closed:
            return
        problem = getattr(result, "value", None)
        for state, epoch, leader_epoch in requested:
            if not self._partitions.current(state, epoch):
                continue
            state.in_flight = False
            if isinstance(problem, UnsupportedVersion):
                state.validated_in = (
                    leader_epoch  # A broker without KIP-320: no validation is possible.
                )
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
        assert position is not None, "a partition without a position is not validated"
        seen_is_there = known and position <= end.end_offset
        if position < state.fetch_offset and (seen_is_there or state.leader_epoch >= 0):
            # Validate again, without the prefetched batches.
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
