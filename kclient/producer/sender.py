"""Sends batches to their leaders, one Produce request per broker and turn, and handles the responses.

Theory of operation
===================
`wake` schedules a turn of the loop; several wakes before it count as one. A turn fails expired batches, takes ready
ones from the accumulator, and groups them by leader. It sends one request to each connected leader with fewer
unanswered requests than max.in.flight.requests.per.connection. If it leaves other batches of these partitions, another
turn follows. A batch that cannot be sent now (no leader, no connection, no producer id) stays in its queue. The reason
is kept for its error at expiry. A change of that wakes the sender again. With transactions each turn adds the
partitions of new batches to the transaction; batches wait for that. When the transaction is aborted no batch is sent
any more, and a batch in flight is not retried.

Owner: the reactor's thread. The accumulator is accessed under *guard* only, because in the blocking API callers append
in their own threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kclient.config import ProducerConfig
from kclient.errors import ClientClosed, KafkaTimeoutError, LeaderUnavailable
from kclient.net.answers import error_of
from kclient.net.cluster import Cluster
from kclient.net.connection import Connection
from kclient.net.waiting import SingleFlight, as_deferred, backoff
from kclient.producer.accumulator import Accumulator
from kclient.producer.batch import ProducerBatch
from kclient.producer.producer_id import init_producer_id
from kclient.producer.sequencer import Sequencer
from kclient.types import TopicPartition
from kclient.wire.compression import Codec
from kclient.wire.errors import ErrorCode, KafkaError, UnsupportedVersion
from kclient.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from kclient.wire.versions import ApiKey

if TYPE_CHECKING:
    from kclient.producer.transaction_sender import TransactionSender

_ACKS = {"0": 0, "1": 1, "all": -1}
_SEQUENCE_ERRORS = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)


class Sender:
    """Sends the batches of the accumulator.

    *sequencer* is None for a producer without idempotence, *transactions* for one without transactions.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        cluster: Cluster,
        config: ProducerConfig,
        accumulator: Accumulator,
        sequencer: Sequencer | None,
        guard: AbstractContextManager[Any],
        transactions: TransactionSender | None,
        on_progress: Callable[[], None],
    ) -> None:
        self._transactions = transactions
        self._reactor = reactor
        self._cluster = cluster
        self._config = config
        self._accumulator = accumulator
        self._sequencer = sequencer
        self._guard = guard
        self._codec = Codec.named(config.compression_type)
        self.acks = _ACKS[config.acks]
        self._turn: Any = None
        self._timer: Any = None
        self._owed: dict[int, int] = {}  # broker id -> requests without an answer
        self._connecting: set[int] = set()
        self._producer_id = SingleFlight(lambda: init_producer_id(cluster))
        self._round = 0
        self._on_progress = on_progress
        """Called after batches ended, when memory was freed."""
        self.requests = self.batches = self.delivered = self.failures = self.retries = 0
        self.last_problem: KafkaError | None = None
        self.closed = False
        cluster.on_change(lambda _: self.wake())

    def wake(self) -> None:
        """Schedule a turn. Call it in the reactor's thread."""
        if self._turn is None and not self.closed:
            self._turn = self._reactor.callLater(0, self._take_turn)

    def close(self, reason: KafkaError) -> int:
        """Stop; fail all remaining batches with *reason* and return the number of their records."""
        self.closed = True
        for call in (self._turn, self._timer):
            if call is not None and call.active():
                call.cancel()
        self._producer_id.cancel(reason)
        with self._guard:
            lost = self._accumulator.records
            left = self._accumulator.abort()
        for batch in left:
            batch.failed(reason)
        return lost

    def abort_waiting(self, reason: KafkaError) -> None:
        """Fail the batches that are not in flight."""
        with self._guard:
            dropped = self._accumulator.abort_waiting()
        for batch in dropped:
            self._give_up(batch, reason)
        if dropped:
            self._on_progress()

    # --- a turn

    def _take_turn(self) -> None:
        self._turn = None
        now = self._reactor.seconds()
        with self._guard:
            late = self._accumulator.expired(now)
            ready, next_at = self._accumulator.ready(now)
            expiry = self._accumulator.next_expiry()
        for batch in late:
            self._give_up(batch, self._expired(batch))
        if self._transactions is not None:
            ready = self._in_transaction(ready, self._transactions)
        elif ready and self._sequencer is not None and self._sequencer.needs_producer_id:
            self._get_producer_id()
            ready = []
        if ready:
            self._round += 1
            self._send_ready(ready)
        if late:
            self._on_progress()
        self._set_timer(min((at for at in (next_at, expiry) if at is not None), default=None), now)

    def _in_transaction(
        self, ready: list[TopicPartition], transactions: TransactionSender
    ) -> list[TopicPartition]:
        """Have partitions with batches added to the transaction; return those of *ready* that are in it."""
        manager = transactions.manager
        with self._guard:
            manager.add_partitions(
                tp for tp, queue in self._accumulator.queues.items() if queue.waiting
            )
        transactions.wake()
        return [tp for tp in ready if manager.may_send_to(tp)]

    def _send_ready(self, ready: list[TopicPartition]) -> None:
        turn = self._round % len(ready)
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in ready[turn:] + ready[:turn]:
            leader = self._cluster.metadata.leader(tp)
            if leader is None:
                self._remember_problem(tp, LeaderUnavailable(f"{tp} has no leader"))
                self._cluster.update_soon()
            else:
                by_leader.setdefault(leader, []).append(tp)
        for node, tps in by_leader.items():
            connection = self._cluster.brokers.ready(node)
            if connection is None:
                self._connect(node, tps)
            elif self._owed.get(node, 0) < self._config.max_in_flight_requests_per_connection:
                taken = self._take(tps)
                if taken:
                    self._send(node, connection, taken)
                    if any(self._accumulator.is_waiting(tp) for tp in tps):
                        self.wake()

    def _take(self, tps: Sequence[TopicPartition]) -> list[ProducerBatch]:
        """Remove the first batch of each partition, as many as fit in one request."""
        taken: list[ProducerBatch] = []
        size = 0
        accumulator, sequencer = self._accumulator, self._sequencer
        with self._guard:
            for tp in tps:
                if self._transactions is not None and not self._transactions.manager.may_send_to(
                    tp
                ):
                    continue  # aborted in this turn
                first = accumulator.first(tp)
                in_flight = accumulator.in_flight(tp)
                if sequencer is not None and not sequencer.may_send(first, in_flight):
                    continue
                if taken and size + first.size > self._config.max_request_size:
                    break
                size += first.size
                batch = accumulator.take(tp)
                taken.append(batch)
                if sequencer is not None and batch.raw is None:
                    sequencer.number(batch)
        return taken

    def _send(self, node: int, connection: Connection, taken: list[ProducerBatch]) -> None:
        topics: dict[str, list[ProducePartition]] = {}
        sent = []
        for batch in taken:
            try:
                data = batch.encode(self._codec, is_transactional=self._transactions is not None)
            except Exception as problem:
                self._give_up_in_flight(batch, _not_encodable(batch, problem))
                continue
            topics.setdefault(batch.tp.topic, []).append(
                ProducePartition(batch.tp.partition, memoryview(data))
            )
            sent.append(batch)
        if not sent:
            return
        request = ProduceRequest(
            acks=self.acks,
            timeout_ms=self._config.request_timeout_ms,
            topics=[ProduceTopic(name, partitions) for name, partitions in topics.items()],
            transactional_id=self._config.transactional_id or None,
        )
        self.requests += 1
        self.batches += len(sent)
        self._owed[node] = self._owed.get(node, 0) + 1
        if self.acks == 0:
            sending: Deferred[Any] = connection.send(ApiKey.PRODUCE, None, request)
        else:
            sending = connection.request(ApiKey.PRODUCE, None, request)
        sending.addBoth(self._answered, node, sent)

    # --- responses

    def _answered(self, result: Any, node: int, sent: list[ProducerBatch]) -> None:
        self._owed[node] -= 1
        if self.closed:
            return
        if isinstance(result, Failure):
            problem = result.value
            if not isinstance(problem, KafkaError):
                self.log.failure("sending failed", result)
                problem = KafkaError(f"sending failed: {problem!r}")
            for batch in sent:
                self._retry_or_give_up(batch, problem)
        elif result is None:  # acks=0: the request is sent
            for batch in sent:
                self._acknowledge(batch, -1, -1)
        else:
            self._handle_response(result, sent)
        self._after_answers()

    def _handle_response(self, response: ProduceResponse, sent: list[ProducerBatch]) -> None:
        answers = {(topic.name, p.index): p for topic in response.topics for p in topic.partitions}
        for batch in sent:
            answer = answers.get(batch.tp)
            if answer is None:
                self._retry_or_give_up(
                    batch, KafkaError(f"{batch.tp}: the response does not contain this partition")
                )
            elif not answer.error_code:
                self._acknowledge(batch, answer.base_offset, answer.log_append_time_ms)
            elif answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                self._acknowledge(batch, -1, -1)
            else:
                self._handle_rejection(batch, answer)

    def _handle_rejection(self, batch: ProducerBatch, answer: ProducePartitionResponse) -> None:
        problem = error_of(answer.error_code, batch.tp, answer.error_message)
        if answer.record_errors:
            first = answer.record_errors[0]
            problem.message += f" (record {first.batch_index}: {first.message or 'rejected'})"
        leader = answer.current_leader
        if leader is not None and leader.leader_id >= 0:
            self._cluster.metadata = self._cluster.metadata.with_leader(
                batch.tp, leader.leader_id, leader.leader_epoch
            )
        code = answer.error_code
        is_too_large = code == ErrorCode.MESSAGE_TOO_LARGE
        if is_too_large and batch.record_count > 1 and batch.raw is None and not self._refusal():
            with self._guard:
                self._accumulator.replace_by_halves(batch)
        elif code in _SEQUENCE_ERRORS and self._may_be_renumbered(batch):
            self._put_back(batch, problem)
        else:
            self._retry_or_give_up(batch, problem)

    def _may_be_renumbered(self, batch: ProducerBatch) -> bool:
        """Return whether *batch* was rejected only because an earlier batch is pending or failed.

        Then it is valid: it is sent again, after the earlier batch or with a new sequence number.
        """
        if self._sequencer is None:
            return False
        queue = self._accumulator.queues.get(batch.tp)
        before = () if queue is None else (*queue.in_flight, *queue.waiting)
        if any(b.number < batch.number and b.base_sequence >= 0 for b in before):
            return True
        return self._sequencer.rejected_after_gap(batch)

    def _retry_or_give_up(self, batch: ProducerBatch, problem: KafkaError) -> None:
        if problem.needs_metadata:
            self._cluster.update_soon()
        over = self._reactor.seconds() >= batch.created_at + self._config.delivery_timeout_ms / 1000
        if not problem.retriable or batch.attempts > self._config.retries or over:
            self._give_up_in_flight(batch, problem)
        else:
            self._put_back(batch, problem)

    def _put_back(self, batch: ProducerBatch, problem: KafkaError) -> None:
        refusal = self._refusal()
        if refusal is not None:
            self._give_up_in_flight(batch, refusal)
            return
        wait = backoff(
            batch.attempts - 1,
            self._config.retry_backoff_ms / 1000,
            self._config.retry_backoff_max_ms / 1000,
        )
        batch.last_problem = self.last_problem = problem
        self.retries += 1
        with self._guard:
            self._accumulator.put_back(batch, self._reactor.seconds() + wait)

    def _acknowledge(self, batch: ProducerBatch, base_offset: int, log_append_time: int) -> None:
        with self._guard:
            self._accumulator.finished(batch)
        if self._sequencer is not None:
            self._sequencer.acknowledged(batch)
        self.delivered += batch.record_count
        batch.acknowledged(base_offset, log_append_time)

    def _give_up_in_flight(self, batch: ProducerBatch, problem: KafkaError) -> None:
        with self._guard:
            self._accumulator.finished(batch)
        self._give_up(batch, problem)

    def _give_up(self, batch: ProducerBatch, problem: KafkaError) -> None:
        self.failures += batch.record_count
        self.last_problem = problem
        if self._sequencer is not None:
            self._sequencer.given_up(batch)
        transactions = self._transactions
        has_changed = transactions is not None and transactions.batch_failed(
            problem, has_sequence=batch.base_sequence >= 0
        )
        batch.failed(problem)  # A callback may commit: the transaction has failed by then.
        if transactions is not None and has_changed:
            transactions.after_change()

    def _refusal(self) -> KafkaError | None:
        """Return why no batch is sent any more: the transaction is aborted."""
        return None if self._transactions is None else self._transactions.manager.refusal

    def _after_answers(self) -> None:
        self.wake()
        self._on_progress()

    # --- connections and the producer id

    def _connect(self, node: int, tps: Sequence[TopicPartition]) -> None:
        if node in self._connecting:
            return
        self._connecting.add(node)

        def connected(result: Any) -> None:
            self._connecting.discard(node)
            if isinstance(result, Failure):
                if not result.check(KafkaError, CancelledError):
                    self.log.failure("connecting failed", result)
                if isinstance(result.value, KafkaError):
                    for tp in tps:
                        self._remember_problem(tp, result.value)
            self.wake()

        as_deferred(self._cluster.connection(node)).addBoth(connected)

    def _get_producer_id(self) -> None:
        assert self._sequencer is not None
        if self._producer_id.flight is None:
            self._producer_id.join().addBoth(self._got_producer_id, self._sequencer)

    def _got_producer_id(self, result: Any, sequencer: Sequencer) -> None:
        if self.closed:
            return
        if not isinstance(result, Failure):
            sequencer.given(*result)
        elif isinstance(result.value, UnsupportedVersion):
            self._disable_idempotence(result.value)
        elif isinstance(result.value, KafkaError):
            self._retry_producer_id_later(result.value)
            return
        else:
            self.log.failure("InitProducerId failed", result)
        self.wake()

    def _retry_producer_id_later(self, problem: KafkaError) -> None:
        self.last_problem = problem
        with self._guard:
            waiting = list(self._accumulator.unfinished())
        for batch in waiting:
            batch.last_problem = problem
        now = self._reactor.seconds()
        self._set_timer(now + self._config.retry_backoff_ms / 1000, now)

    def _disable_idempotence(self, problem: KafkaError) -> None:
        self.log.warn(
            "InitProducerId is not supported, continuing without idempotence: {problem}",
            problem=problem,
        )
        self._sequencer = None
        self._accumulator.in_flight_limit = 1

    # --- errors and timers

    def _remember_problem(self, tp: TopicPartition, problem: KafkaError) -> None:
        """Keep why the next batch of *tp* waits, for its error at expiry."""
        self.last_problem = problem
        with self._guard:
            queue = self._accumulator.queues.get(tp)
            if queue is not None and queue.waiting:
                queue.waiting[0].last_problem = problem

    def _expired(self, batch: ProducerBatch) -> KafkaError:
        cause = batch.last_problem or self._cluster.last_problem
        seconds = self._config.delivery_timeout_ms / 1000
        error = KafkaTimeoutError(
            f"{batch.tp}: {batch.record_count} records not acknowledged in {seconds:g} s "
            f"(delivery.timeout.ms), sent {batch.attempts} times"
            + (f"; last problem: {cause}" if cause else "")
        )
        error.__cause__ = cause
        return error

    def _set_timer(self, at: float | None, now: float | None) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        if at is not None and not self.closed:
            now = self._reactor.seconds() if now is None else now
            self._timer = self._reactor.callLater(max(0.0005, at - now), self.wake)


def closed_error() -> ClientClosed:
    """Return the error of records that a closing producer failed."""
    return ClientClosed("the producer was closed before this record was acknowledged")


def _not_encodable(batch: ProducerBatch, problem: Exception) -> KafkaError:
    if isinstance(problem, KafkaError):
        return problem
    return KafkaError(f"{batch.tp}: the batch cannot be encoded: {problem}")
