"""A consumer on scripted brokers, with a table as log and a coordinator that answers what the test wants."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from kclient.consumer.client import Consumer
from kclient.consumer.protocol import encode_assignment
from kclient.types import TopicPartition
from kclient.wire.errors import ErrorCode
from kclient.wire.fetch import AbortedTransaction, FetchRequest
from kclient.wire.schema.heartbeat import HeartbeatResponse
from kclient.wire.schema.join_group import JoinGroupResponse
from kclient.wire.schema.leave_group import LeaveGroupResponse
from kclient.wire.schema.sync_group import SyncGroupResponse
from kclient.wire.versions import ApiKey
from tests.kit.scripted_cluster import HELD, ScriptedCluster, batch_of, commit_answer, now, part


class ConsumerFixture:
    """A consumer of topic "t" on scripted brokers.

    `log` holds batches (first offset, last offset, bytes) by partition, served to every Fetch; `committed` what the
    group has; `share` what the coordinator assigns in the next SyncGroup; `heartbeat_code` its answer to heartbeats.
    """

    def __init__(self, partitions: int = 2, *topics: str, **settings: Any) -> None:
        self.scripted = ScriptedCluster({"t": partitions})
        self.scripted.answers[ApiKey.FETCH] = self._fetch
        self.log: dict[TopicPartition, list[tuple[int, int, bytes]]] = {}
        self.ends: dict[TopicPartition, tuple[int, int]] = {}
        self.aborted: list[AbortedTransaction] | None = None
        self.scripted.serve_offsets(self.ends)
        self.committed: dict[TopicPartition, int] = {}
        self.scripted.serve_commits(self.committed)
        self.share: list[TopicPartition] = []
        self.heartbeat_code = 0
        self.generation = 0
        self.scripted.answers[ApiKey.JOIN_GROUP] = self._join
        self.scripted.answers[ApiKey.SYNC_GROUP] = lambda _: SyncGroupResponse(
            assignment=encode_assignment(self.share)
        )
        self.scripted.answers[ApiKey.HEARTBEAT] = lambda _: HeartbeatResponse(
            error_code=self.heartbeat_code
        )
        self.scripted.answers[ApiKey.LEAVE_GROUP] = lambda _: LeaveGroupResponse()
        settings.setdefault("auto_offset_reset", "earliest")
        self.consumer = Consumer(reactor=self.scripted.clock, **settings)
        self.scripted.attach(self.consumer.cluster)
        if topics:
            self.consumer.subscribe(topics)

    # --- the brokers

    def produce(self, partition: int, *values: bytes, **settings: Any) -> None:
        """Append one batch to the log of t-*partition*."""
        tp = TopicPartition("t", partition)
        start, end = self.ends.get(tp, (0, 0))
        data = settings.pop("data", None) or batch_of(end, *values, **settings)
        self.log.setdefault(tp, []).append((end, end + len(values) - 1, data))
        self.ends[tp] = (start, end + len(values))

    def _fetch(self, request: FetchRequest) -> Any:
        shares = []
        for topic in request.topics:
            for p in topic.partitions:
                tp = TopicPartition("t", p.partition)
                start, end = self.ends.get(tp, (0, 0))
                if p.current_leader_epoch < self.scripted.leader(tp)[1]:
                    shares.append((tp, part(p.partition, error_code=ErrorCode.FENCED_LEADER_EPOCH)))
                    continue
                if not start <= p.fetch_offset <= end:
                    shares.append((tp, part(p.partition, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)))
                    continue
                data = b"".join(d for _, last, d in self.log.get(tp, ()) if last >= p.fetch_offset)
                if data:
                    aborted = self.aborted if request.isolation_level else None
                    answer = part(
                        p.partition, data, high_watermark=end, aborted_transactions=aborted
                    )
                    shares.append((tp, answer))
        if not shares:
            self.scripted.clock.callLater(request.max_wait_ms / 1000, self.release, request)
            return HELD
        return self.scripted.fetched(*shares, *self._empty(request, {tp for tp, _ in shares}))

    def _empty(self, request: FetchRequest, answered: set[TopicPartition]) -> list[Any]:
        asked = [TopicPartition("t", p.partition) for t in request.topics for p in t.partitions]
        return [(tp, part(tp.partition)) for tp in asked if tp not in answered]

    def release(self, only: FetchRequest | None = None) -> None:
        """Answer the long polls that wait (or *only* that one), with what there is by now."""
        for asked in self.scripted.waiting(ApiKey.FETCH):
            if only is not None and asked.message is not only:
                continue
            given = self._fetch(asked.message)
            if given is HELD:
                given = self.scripted.fetched(*self._empty(asked.message, set()))
            asked.answer(given)

    def _join(self, request: Any) -> Any:
        self.generation += 1
        self.heartbeat_code = 0
        return JoinGroupResponse(
            generation_id=self.generation,
            member_id=request.member_id or "m-1",
            protocol_name=request.protocols[0].name,
            leader="another member",
        )

    def refuse_commits(self, code: int) -> None:
        """Answer every commit with *code*."""
        self.scripted.answers[ApiKey.OFFSET_COMMIT] = lambda request: commit_answer(request, code)

    # --- the caller

    def assign(self, *partitions: int) -> ConsumerFixture:
        self.consumer.assign(TopicPartition("t", n) for n in partitions)
        return self

    def poll(self, timeout_ms: int = 0, most: int | None = None) -> dict[int, list[Any]]:
        """Poll; return the values by partition."""
        waiting = self.consumer.poll(timeout=timeout_ms / 1000, max_records=most)
        self.scripted.turn()
        if not waiting.called:
            self.scripted.turn(timeout_ms / 1000)
        return {tp.partition: [r.value for r in records] for tp, records in now(waiting).items()}

    def records(self, turns: int = 3, most: int | None = None) -> dict[int, list[Any]]:
        """Poll a few times, a long poll's time apart; return all values by partition."""
        found: dict[int, list[Any]] = {}
        for _ in range(turns):
            self.scripted.turn(0.6)
            for partition, values in self.poll(most=most).items():
                found.setdefault(partition, []).extend(values)
        return found

    def rebalance(self, *share: int) -> None:
        """Let the coordinator start a rebalance that ends with this share, and the member be notified."""
        self.share = [TopicPartition("t", n) for n in share]
        self.heartbeat_code = ErrorCode.REBALANCE_IN_PROGRESS
        self.scripted.pass_time(self.consumer.config.heartbeat_interval_ms / 1000 + 0.1)

    def run(self, coroutine: Any) -> Any:
        """Return the result of a coroutine that has what it needs."""
        waiting = (
            coroutine if isinstance(coroutine, Deferred) else Deferred.fromCoroutine(coroutine)
        )
        self.scripted.turn()
        return now(waiting)

    def commits(self) -> list[dict[tuple[str, int], int]]:
        """Return the offsets of every OffsetCommit received so far."""
        return [
            {
                (t.name, p.partition_index): p.committed_offset
                for t in m.topics
                for p in t.partitions
            }
            for m in (a.message for a in self.scripted.requests if a.api is ApiKey.OFFSET_COMMIT)
        ]

    @property
    def now(self) -> float:
        return self.scripted.clock.seconds()
