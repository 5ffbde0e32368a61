"""Produce (0): append record batches to partitions that this broker leads.

Versions served: 3 to 11. v3 message format 2; v5 log start offset; v7 zstd; v8 record errors; v9 flexible; v10 current
leader; v11 the same. Versions 0 to 2 are advertised for librdkafka's feature detection (KAFKA-18659), and close the
connection when used. The conditional append of kclient.wire.produce (v9+, an extension of ours) is served here, too.

Records are checked before the append (`kbroker.log.log_validator`), long batches in a pool, one at a time.

The first batch of a transaction waits until its coordinator has confirmed the transaction (KIP-890,
`kbroker.replica.add_partitions_to_txn_manager`). The verifications of all partitions of a request are sent together.

Differs from Kafka: offset deltas other than 0, 1, 2... are refused: Kafka stores them, or writes the batch again.
Header keys that are not UTF-8 are refused; Kafka stores them. Records that do not decompress are INVALID_RECORD, in
Kafka UNKNOWN_SERVER_ERROR. At most 1,000 records have an error in the response. A request with transactional and other
batches is refused for the transactional ones only.

acks=0 has no response, so an error closes the connection, as in Kafka: the client has no other signal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from kbroker.apis.request import RequestContext
from kbroker.common.internal_topics import INTERNAL_TOPICS
from kbroker.common.topic_partition import TopicPartition
from kbroker.common.turns import Slice
from kbroker.log.log_validator import LongValidationError, RecordValidation
from kbroker.network.service import Answer, RequestRefusedError
from kbroker.replica.add_partitions_to_txn_manager import RETRIABLE
from kbroker.replica.conditional_append import UnexpectedLogEndError, append_copied
from kbroker.replica.core.leader_transactions import VerificationStateEntry
from kbroker.replica.partition import Partition
from kbroker.replica.partition_transactions import TransactionNotVerifiedError
from kbroker.replica.replica_manager import ReplicaManager
from kclient.wire import produce
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTopicException,
    InvalidTxnState,
    KafkaError,
    NotEnoughReplicas,
    RequestTimedOut,
    code_of,
    for_code,
)
from kclient.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceTopicResponse,
    RecordError,
)

log = Logger()

ALL_IN_SYNC = -1
FIRST_ZSTD = 7
"""The first version that carries zstd (KIP-110)."""

FIRST_ABORTABLE = 11
"""The first version with TRANSACTION_ABORTABLE (KIP-890); INVALID_TXN_STATE before."""

WAITING_BYTES = 128 << 20
"""Bytes of the requests that wait for a validation in the pool."""
TOO_MANY_LONG = "too many long batches wait for the check of their records"

LARGE_BYTES = 16 * 1024
"""A request of fewer bytes is small, whatever its number of partitions."""
LARGE_PARTITIONS = 200
"""Batches that are appended in one turn of the reactor: each costs about 30 microseconds."""
VERY_LARGE_BYTES = 8 << 20
"""Bytes that are appended in one turn: their checksum and their copy into the page cache cost 10 ms."""


class Produce:
    """Appends; for acks=all waits for the in-sync replicas, for flush.messages and flush.ms for the sync."""

    raw = True

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager
        self._long_validations = _LongValidations(replica_manager)

    def __call__(self, context: RequestContext, body: memoryview) -> Answer | Deferred[Answer]:
        """Append every batch of the request; the answer has an outcome for each."""
        version = context.header.api_version
        if version < 3:
            raise RequestRefusedError(
                f"Produce v{version} carries message format 0 or 1; only v3 and later are served"
            )
        request = produce.decode_request(body, version, context.budget.max_elements)
        appends = _Appends(request, version, self._replica_manager.now_ms(), len(body))
        is_large = len(body) > LARGE_BYTES and _is_large(request, body)
        work = self._append_all(context, appends, is_large)
        wait = next(work, None)
        if wait is None and not is_large:
            return self._finish(context, appends)
        return Deferred.fromCoroutine(self._continue(context, appends, work, wait))

    def _append_all(
        self, context: RequestContext, appends: _Appends, is_large: bool
    ) -> Generator[Awaitable[Any], None, None]:
        """Append the batches in order; yield what to wait for where this turn of the reactor must end."""
        topics = appends.request.topics
        if appends.request.transactional_id is not None:
            yield from self._start_verifications(context, appends.request)
        share: Slice | None = None
        if is_large or len(topics) > 1 or (topics and len(topics[0].partitions) > 1):
            share = context.turns.slice(clock_every=1)  # few bytes may decompress to many
        for topic in topics:
            outcomes: list[ProducePartitionResponse] = []
            appends.topics.append(ProduceTopicResponse(topic.name, outcomes))
            for asked in topic.partitions:
                if share is not None and share.is_over():
                    yield share.next()
                try:
                    outcome = self._append(appends, topic.name, asked)
                except (LongValidationError, TransactionNotVerifiedError) as later:
                    outcome = yield from self._append_later(appends, topic.name, asked, later)
                outcomes.append(outcome)

    def _append_later(
        self,
        appends: _Appends,
        topic: str,
        asked: ProducePartition,
        waits: LongValidationError | TransactionNotVerifiedError,
    ) -> Generator[Awaitable[Any], None, ProducePartitionResponse]:
        """Append one batch when its records are checked and its transaction is verified."""
        verification: VerificationStateEntry | None = None
        while True:
            if isinstance(waits, LongValidationError):
                done = self._long_validations.run(waits.validation, appends.size)
                if done is None:
                    return _failed(asked.index, RequestTimedOut(TOO_MANY_LONG))
                yield done
            else:
                verification = waits.verification
                yield waits.completed()
                error = _refusal(verification.error, appends.version)
                if error is not None:
                    return _failed(asked.index, error)
            try:
                return self._append(appends, topic, asked, waits.validation, verification)
            except TransactionNotVerifiedError as next_wait:
                waits = next_wait

    def _start_verifications(
        self, context: RequestContext, request: ProduceRequest
    ) -> Generator[Awaitable[Any], None, None]:
        """Start the verifications of a transactional request with several partitions."""
        if request.transactional_id is None or sum(len(t.partitions) for t in request.topics) < 2:
            return
        partitions = self._replica_manager.registry.partitions
        share = context.turns.slice()
        for topic in request.topics:
            for asked in topic.partitions:
                if share.is_over():
                    yield share.next()
                partition = partitions.get((topic.name, asked.index))
                if partition is not None and topic.name not in INTERNAL_TOPICS:
                    partition.maybe_start_transaction_verification(
                        asked.records or b"", request.transactional_id
                    )

    async def _continue(
        self,
        context: RequestContext,
        appends: _Appends,
        work: Generator[Awaitable[Any], None, None],
        wait: Awaitable[Any] | None,
    ) -> Answer:
        """Append the batches that *work* has left, in later turns of the reactor."""
        while wait is not None:
            await wait
            wait = next(work, None)
        await context.turns.next()  # the answer is encoded in a turn of its own
        # Replicas may have batches of earlier turns already: no event is to come.
        appends.pending = [each for each in appends.pending if not each.done()]
        answer = self._finish(context, appends)
        return await answer if isinstance(answer, Deferred) else answer

    def _finish(self, context: RequestContext, appends: _Appends) -> Answer | Deferred[Answer]:
        """Answer, or wait for the appends that are not acknowledged yet."""
        request, topics = appends.request, appends.topics
        if request.acks == 0:
            _close_on_error(topics)
            if context.quota is not None:
                context.quota.produced(is_answered=False)
            return None
        if not appends.pending:
            return (self._encode(context, topics),)
        wait = _Wait(appends.pending, lambda: self._encode(context, topics))
        return wait.start(self._replica_manager, request.timeout_ms / 1000)

    def _append(
        self,
        appends: _Appends,
        topic: str,
        asked: ProducePartition,
        validation: RecordValidation | None = None,
        verification: VerificationStateEntry | None = None,
    ) -> ProducePartitionResponse:
        """Append one batch. Every error leaves base_offset at -1 (S45).

        LongValidationError and TransactionNotVerifiedError append nothing.
        """
        request, now_ms = appends.request, appends.now_ms
        acks = request.acks
        try:
            if acks not in (-1, 0, 1):
                raise InvalidRequiredAcks(f"acks={acks}: only -1 (all), 0 and 1 exist")
            if topic in INTERNAL_TOPICS:
                raise InvalidTopicException(f"{topic} is written by brokers only")
            partition = self._replica_manager.partition(topic, asked.index)
            records = asked.records or b""
            if asked.expected_log_end < 0:
                result = partition.append(
                    records,
                    acks,
                    now_ms,
                    transactional_id=request.transactional_id,
                    zstd_allowed=appends.zstd_allowed,
                    validation=validation,
                    verification=verification,
                )
            else:
                follows = asked.expected_log_end, asked.previous_crc
                result = append_copied(
                    partition, records, follows, acks, now_ms, asked.copied_topics
                )
        except KafkaError as error:
            return _failed(asked.index, error)
        outcome = ProducePartitionResponse(
            asked.index,
            0,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
        )
        pending = appends.pending
        if acks == ALL_IN_SYNC and partition.high_watermark <= result.last_offset:
            pending.append(
                _Pending(partition, result.last_offset + 1, outcome, partition.is_committed)
            )
        elif acks and partition.awaits_flush(result.last_offset):
            pending.append(
                _Pending(partition, result.last_offset + 1, outcome, partition.is_flushed)
            )
        return outcome

    @staticmethod
    def _encode(context: RequestContext, topics: list[ProduceTopicResponse]) -> bytes:
        header, quota = context.header, context.quota
        throttle_time_ms = 0 if quota is None else quota.produced(is_answered=True)
        return produce.encode_response(
            produce.ProduceResponse(topics, throttle_time_ms),
            header.api_version,
            header.correlation_id,
        )


class _Appends:
    """The appends of one request: their outcomes so far, and those that are not acknowledged yet."""

    __slots__ = ("now_ms", "pending", "request", "size", "topics", "version", "zstd_allowed")

    def __init__(self, request: ProduceRequest, version: int, now_ms: int, size: int) -> None:
        self.request = request
        self.size = size
        """Bytes of the request."""
        self.version = version
        self.zstd_allowed = version >= FIRST_ZSTD
        self.now_ms = now_ms
        self.topics: list[ProduceTopicResponse] = []
        self.pending: list[_Pending] = []


class _LongValidations:
    """Runs long validations in the pool, one at a time: each may have `MAX_DECOMPRESSED` bytes in memory.

    The requests that wait have `WAITING_BYTES` at most, or are one. A request waits on after its connection is lost, so
    its place in the request memory is no bound.
    """

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._in_pool = replica_manager.in_pool
        self._lock = DeferredLock()
        self._waiting_bytes = 0

    def run(self, validation: RecordValidation, size: int) -> Deferred[None] | None:
        """Fire when *validation*, of a request of *size* bytes, has run; None if too much waits already."""
        if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES:
            return None
        self._waiting_bytes += size
        return self._lock.run(self._in_pool, validation.run).addBoth(self._ran, size)

    def _ran(self, result: Any, size: int) -> Any:
        self._waiting_bytes -= size
        return result


class _Pending:
    """A partition with an append that is not acknowledged yet.

    Under acks=all not all in-sync replicas have it, under acks=1 the log is not synced as flush.messages requires.
    """

    __slots__ = ("_is_done", "leader_epoch", "offset", "outcome", "partition")

    def __init__(
        self,
        partition: Partition,
        offset: int,
        outcome: ProducePartitionResponse,
        is_done: Callable[[int, int], bool],
    ) -> None:
        self.partition = partition
        self._is_done = is_done
        self.leader_epoch = partition.role.leader_epoch
        self.offset = offset
        self.outcome = outcome

    def done(self) -> bool:
        """Return whether the wait is over; an error is put into the outcome."""
        try:
            return self._is_done(self.offset, self.leader_epoch)
        except KafkaError as error:
            self.fail(error)
            return True

    def fail(self, error: KafkaError) -> None:
        """Make the outcome an error: the batch is written, but may or may not become committed."""
        failed = _failed(self.outcome.index, error)
        for name in ("error_code", "base_offset", "log_append_time_ms", "error_message"):
            setattr(self.outcome, name, getattr(failed, name))


class _Wait:
    """A request until its batches are replicated and synced as it requires, or until its timeout."""

    def __init__(self, pending: list[_Pending], encode: Callable[[], bytes]) -> None:
        self._pending = pending
        self._encode = encode

    def start(self, replica_manager: ReplicaManager, seconds: float) -> Deferred[Answer]:
        """Begin to wait, for *seconds* at most."""
        keys: list[TopicPartition] = [each.partition.key for each in self._pending]
        purgatory = replica_manager.purgatory
        return purgatory.delay(
            purgatory.high_watermarks, keys, seconds, self._attempt, self._expired
        )

    def _attempt(self) -> Answer:
        self._pending = [each for each in self._pending if not each.done()]
        return None if self._pending else (self._encode(),)

    def _expired(self) -> Answer:
        for each in self._pending:
            each.fail(
                RequestTimedOut("the in-sync replicas did not all have it, or sync it, in time")
            )
        return (self._encode(),)


def _is_large(request: ProduceRequest, body: memoryview) -> bool:
    """Return whether a request is too much for one turn of the reactor."""
    if len(body) > VERY_LARGE_BYTES:
        return True
    return sum(len(topic.partitions) + 1 for topic in request.topics) > LARGE_PARTITIONS


def _refusal(error: ErrorCode, version: int) -> KafkaError | None:
    """Return the error of a batch with a transaction that the coordinator did not confirm; None if it did."""
    if error is ErrorCode.NONE:
        return None
    if error in RETRIABLE:
        # Kafka's choice: producers repeat the batch, and do not refresh their metadata.
        return NotEnoughReplicas(f"the transaction could not be verified: {error.name}")
    if error is ErrorCode.TRANSACTION_ABORTABLE and version >= FIRST_ABORTABLE:
        return for_code(error)("the partition is not in an open transaction")
    if error in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE):
        return InvalidTxnState("the partition is not in an open transaction")
    return for_code(error)("the coordinator of the transaction refused")


def _failed(index: int, error: KafkaError) -> ProducePartitionResponse:
    found = error.record_errors if isinstance(error, InvalidRecord | InvalidTimestamp) else ()
    return ProducePartitionResponse(
        index,
        int(code_of(error)),
        record_errors=[RecordError(each, reason) for each, reason in found],
        error_message=str(error) or None,
        log_end_offset=error.log_end_offset if isinstance(error, UnexpectedLogEndError) else -1,
    )


def _close_on_error(topics: Sequence[ProduceTopicResponse]) -> None:
    """Raise RequestRefusedError if any append of an acks=0 request failed."""
    for topic in topics:
        for outcome in topic.partitions:
            if outcome.error_code:
                code = ErrorCode(outcome.error_code).name
                raise RequestRefusedError(
                    f"acks=0 produce to {topic.name[:249]}-{outcome.index} failed: {code}"
                )
