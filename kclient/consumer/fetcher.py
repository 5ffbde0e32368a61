"""Prefetches records: one Fetch in flight per broker, bounded by bytes.

Theory of operation
===================
After every change (assignment, seek, pause, poll, response) `send_fetches` selects the partitions to fetch. It groups
them by broker, the leader or its preferred read replica (preferred_read_replica.py), and sends one Fetch to every
broker without one in flight. The broker holds it until there is data or fetch.max.wait.ms has passed. With a fetch
session (fetch_session.py) the request names only changes, so an idle consumer sends one small request per broker and
500 ms. Whole batches are buffered, encoded; decoding happens in poll.

After an error that new metadata may fix, the partition backs off. OFFSET_OUT_OF_RANGE resets the position by
auto.offset.reset, after polls have returned the records that are buffered below that offset. Any other error goes to
the caller through `report`. Under a new leader a position is validated first (truncation.py).

Invariants: 1. at most one Fetch per broker in flight. 2. a partition with max.partition.fetch.bytes buffered is not
fetched. 3. a response to a request from before a seek or a new assignment changes nothing. 4. a partition that backs
off is fetched again after the backoff. 5. after any error at a follower the next fetch goes to the leader: only the
leader's response resets a position.
Owner: the reactor's thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kclient.config import ConsumerConfig
from kclient.consumer.aborted import BatchVisibility
from kclient.consumer.fetch_session import SESSION_ERRORS, ConsumerFetchSession, RequestedPartition
from kclient.consumer.partitions import FetchedBatch, Partitions, PartitionState
from kclient.consumer.truncation import TruncationCheck
from kclient.errors import LeaderUnavailable
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.fetch_session import FetchRequestData
from kclient.types import TopicPartition
from kclient.wire import batches
from kclient.wire.errors import ErrorCode, KafkaError, OffsetOutOfRange, for_code
from kclient.wire.fetch import (
    INITIAL_SESSION_EPOCH,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)
from kclient.wire.versions import ApiKey

_FETCH_CHANNEL = "fetch"
"""A Fetch that the broker holds must not delay other requests."""
_LAST_VERSION_BY_NAME = 12


class _FetchResult(NamedTuple):
    """The result of one fetch."""

    partitions: dict[TopicPartition, FetchPartitionResponse]
    is_complete: bool
    """Whether the response contains every requested partition; if not, a missing one has no changes."""


class Fetcher:
    """Fetches for one consumer.

    *arrived* is called when records are buffered, *out_of_range* with a partition after OFFSET_OUT_OF_RANGE, *report*
    with a partition and an error for the caller.
    """

    log = Logger()

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        partitions: Partitions,
        *,
        arrived: Callable[[], None],
        out_of_range: Callable[[PartitionState, KafkaError], None],
        report: Callable[[TopicPartition, KafkaError], None],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._partitions = partitions
        self._arrived = arrived
        self._out_of_range = out_of_range
        self._report = report
        self._truncation = TruncationCheck(
            cluster,
            config,
            partitions,
            answered=self._validated,
            failed=self._failed,
            lose_position=out_of_range,
        )
        self._busy: set[int] = set()
        self._sessions: dict[int, ConsumerFetchSession] = {}
        """By broker."""
        self._retry: Any = None
        self._closed = False
        self.bytes_fetched = 0

    def send_fetches(self) -> None:
        """Send every Fetch that can be sent now."""
        if self._closed:
            return
        now = self._cluster.reactor.seconds()
        if self._partitions.buffered_bytes < self._config.fetch_max_bytes:
            by_broker: dict[int, list[PartitionState]] = defaultdict(list)
            doubtful: dict[int, list[PartitionState]] = defaultdict(list)
            for state in self._partitions.fetchable(now, self._config.max_partition_fetch_bytes):
                leader = self._cluster.metadata.leader(state.tp)
                if leader is None:
                    self._back_off(state, LeaderUnavailable(f"partition {state.tp} has no leader"))
                elif self._truncation.needed(state):
                    doubtful[leader].append(state)
                elif (node := self._select_node(state, leader, now)) not in self._busy:
                    by_broker[node].append(state)
            for leader, states in doubtful.items():
                self._truncation.validate(leader, states)
            for node, states in by_broker.items():
                self._send(node, states)
        self._schedule_retry(now)

    def close(self) -> None:
        """Send only requests that close sessions; later responses are dropped."""
        if not self._closed:
            self._close_sessions()
        self._closed = True
        self._truncation.close()
        if self._retry is not None and self._retry.active():
            self._retry.cancel()

    def _close_sessions(self) -> None:
        """Close the fetch sessions, to free their slots at the brokers; do not wait for responses."""
        for node, session in self._sessions.items():
            request_data = session.close_request()
            connection = self._cluster.brokers.ready(node, _FETCH_CHANNEL)
            if request_data is not None and connection is not None:
                version = connection.version_for(ApiKey.FETCH)
                last = connection.request(ApiKey.FETCH, version, self._request(request_data, []))
                last.addErrback(lambda _failure: None)

    # --- one request

    def _select_node(self, state: PartitionState, leader: int, now: float) -> int:
        metadata = self._cluster.metadata
        epoch = metadata.leader_epoch(state.tp)
        return state.read_replica.select(leader, epoch, metadata.brokers, now)

    def _send(self, node: int, states: list[PartitionState]) -> None:
        self._busy.add(node)
        metadata = self._cluster.metadata
        asked = []
        for state in states:
            state.in_flight = True
            epoch, topic_id = metadata.leader_epoch(state.tp), metadata.topic_id(state.tp.topic)
            asked.append(
                RequestedPartition(state, state.epoch, state.fetch_offset, epoch, topic_id)
            )
        fetch = Deferred.fromCoroutine(self._fetch(node, asked))
        fetch.addBoth(self._answered, node, asked)
        fetch.addErrback(self._report_bug)

    async def _fetch(self, node: int, asked: list[RequestedPartition]) -> _FetchResult:
        connection = await self._cluster.connection(node, _FETCH_CHANNEL)
        version = connection.version_for(ApiKey.FETCH)
        if version > _LAST_VERSION_BY_NAME and any(each.topic_id is None for each in asked):
            version = _LAST_VERSION_BY_NAME
        session = self._sessions.get(node)
        if session is None:
            session = self._sessions[node] = ConsumerFetchSession(
                self._config.max_partition_fetch_bytes
            )
        request_data = session.request(asked, by_id=version > _LAST_VERSION_BY_NAME)
        full = request_data.session_epoch == INITIAL_SESSION_EPOCH
        try:
            response = await self._ask(connection, version, self._request(request_data, asked))
        except BaseException:
            session.lost()
            raise
        session.answered(response)
        if response.error_code in SESSION_ERRORS and not full:
            return _FetchResult({}, is_complete=False)
        if response.error_code:
            raise for_code(response.error_code)(f"fetch from {connection.address}")
        names = {each.topic_id: each.state.tp.topic for each in asked} if response.topics else {}
        answers = {}
        for topic in response.topics:
            name = topic.name or names.get(topic.topic_id, "")
            for answer in topic.partitions:
                answers[TopicPartition(name, answer.partition)] = answer
        return _FetchResult(answers, is_complete=full)

    def _request(
        self, request_data: FetchRequestData, asked: list[RequestedPartition]
    ) -> FetchRequest:
        now, rack = self._cluster.reactor.seconds(), self._config.client_rack
        return FetchRequest(
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=self._config.fetch_max_bytes,
            isolation_level=int(self._config.read_committed),
            topics=request_data.topics,
            session_id=request_data.session_id,
            session_epoch=request_data.session_epoch,
            forgotten=request_data.forgotten,
            # One partition that avoids followers keeps all partitions of this request at the leader.
            rack_id=""
            if rack and any(a.state.read_replica.avoids_followers(now) for a in asked)
            else rack,
        )

    async def _ask(
        self, connection: Connection, version: int, request: FetchRequest
    ) -> FetchResponse:
        timeout = connection.request_timeout + self._config.fetch_max_wait_ms / 1000
        answer: FetchResponse = await connection.request(
            ApiKey.FETCH, version, request, timeout=timeout
        )
        return answer

    # --- its answer

    def _answered(
        self, result: _FetchResult | Failure, node: int, asked: list[RequestedPartition]
    ) -> None:
        self._busy.discard(node)
        if self._closed:
            return
        came = False
        for state, epoch, offset, leader_epoch, _ in asked:
            if not self._partitions.current(state, epoch):
                continue
            state.in_flight = False
            if isinstance(result, Failure):
                self._failed(state, result.value or RuntimeError("unknown error"))
            elif (answer := result.partitions.get(state.tp)) is None:
                if result.is_complete:
                    self._back_off(state, LeaderUnavailable(f"{state.tp} is missing in a response"))
            else:
                if not answer.error_code:
                    state.validated_in = max(state.validated_in, leader_epoch)
                    if answer.preferred_read_replica >= 0:
                        self._read_from(state, answer.preferred_read_replica, leader_epoch)
                came = self._take(state, offset, answer, len(asked) == 1) or came
        if came:
            self._arrived()
        self.send_fetches()

    def _read_from(self, state: PartitionState, replica: int, leader_epoch: int) -> None:
        now, age = self._cluster.reactor.seconds(), self._config.metadata_max_age_ms / 1000
        state.read_replica.named(replica, leader_epoch, now + age)
        if replica not in self._cluster.metadata.brokers:
            self._cluster.update_soon()

    def _validated(self) -> None:
        """Continue after a position was validated; the result may be an error for poll."""
        self._arrived()
        self.send_fetches()

    def _report_bug(self, failure: Failure) -> None:
        """Report an unexpected exception to the caller instead of retrying forever."""
        self.log.failure("handling a fetch", failure=failure)
        problem = KafkaError(f"handling a fetch failed: {failure.value!r}")
        self._report(TopicPartition("", -1), problem)

    def _take(self, state: PartitionState, asked_offset: int, answer: Any, alone: bool) -> bool:
        """Buffer the response of one partition; return whether there are new records or errors."""
        if answer.error_code:
            problem = for_code(answer.error_code)(f"fetch of {state.tp} at offset {asked_offset}")
            if isinstance(problem, OffsetOutOfRange):
                if self._failed_at_follower(state):
                    self._back_off(state, problem)
                elif state.has_buffered:
                    state.drains = True
                else:
                    self._out_of_range(state, problem)
            else:
                self._failed(state, problem)
            return False
        state.high_watermark = answer.high_watermark
        state.last_stable_offset = answer.last_stable_offset
        state.log_start_offset = answer.log_start_offset
        data = answer.record_set
        try:
            whole, next_offset = self._whole_batches(
                data, asked_offset, BatchVisibility(answer.aborted_transactions)
            )
        except KafkaError as problem:
            problem.message = f"{state.tp} at offset {asked_offset}: {problem.message}"
            self._failed(state, problem)
            return False
        if whole:
            size = sum(batch.info.size for batch in whole)
            self.bytes_fetched += size
            state.fetched(whole, next_offset, size)
        elif len(data) > 0:
            # A batch above max.partition.fetch.bytes is returned whole only to the first of a request (KIP-74):
            # next time this may be the first. If it was alone, the response is invalid.
            text = (
                f"{state.tp} at offset {asked_offset}: {len(data)} bytes without a complete batch"
            )
            cut_off = for_code(ErrorCode.CORRUPT_MESSAGE)(text)
            self._failed(state, cut_off) if alone else self._back_off(state, cut_off)
        return bool(whole)

    def _whole_batches(
        self, data: memoryview, asked: int, hidden: BatchVisibility
    ) -> tuple[list[FetchedBatch], int]:
        """Return the batches in *data* that end above *asked*, and the offset after them.

        The first may begin below *asked*; a truncated last one is dropped, as the protocol requires. Batches before a
        corrupt one are returned; the next fetch begins with the corrupt one and reports it.
        """
        whole: list[FetchedBatch] = []
        next_offset = asked
        try:
            for info in batches.iterate(data):
                if info.next_offset <= asked:
                    continue
                if self._config.check_crcs:
                    batches.check_crc(data, info)
                whole.append(FetchedBatch(info, data, hidden.is_hidden(info, data)))
                next_offset = info.next_offset
        except KafkaError:
            if not whole:
                raise
        return whole, next_offset

    # --- failures

    def _failed_at_follower(self, state: PartitionState) -> bool:
        return state.read_replica.failed(self._cluster.reactor.seconds())

    def _failed(self, state: PartitionState, problem: BaseException) -> None:
        if not isinstance(problem, KafkaError):
            self.log.failure("fetch of {tp}", tp=state.tp, failure=Failure(problem))
            problem = for_code(ErrorCode.UNKNOWN_SERVER_ERROR)(f"fetch of {state.tp}: {problem!r}")
        at_follower = self._failed_at_follower(state)
        if not at_follower and (not problem.retriable or problem.code == ErrorCode.CORRUPT_MESSAGE):
            self._report(state.tp, problem)
        self._back_off(state, problem)

    def _back_off(self, state: PartitionState, problem: KafkaError) -> None:
        """Do not fetch *state* for a moment, then retry (`send_fetches`)."""
        self.log.debug("fetch of {tp}: {problem}", tp=state.tp, problem=problem)
        self._failed_at_follower(state)
        state.not_before = self._cluster.reactor.seconds() + self._config.retry_backoff_ms / 1000
        if problem.needs_metadata or problem.retriable:
            self._cluster.update_soon()

    def _schedule_retry(self, now: float) -> None:
        # All backoffs have the same length, so a running timer is the first to end.
        due = self._partitions.next_retry_at(now)
        if due is not None and (self._retry is None or not self._retry.active()):
            self._retry = self._cluster.reactor.callLater(due - now, self.send_fetches)
