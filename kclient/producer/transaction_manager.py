"""The transactions of one producer: which request comes next, and what an error leads to (KIP-98, KIP-360, KIP-447).

Theory of operation
===================
As Kafka's class of this name. The caller begins, commits and aborts; the sender names the partitions that have batches
to send. `next_request` returns the request to send now: one at a time, until `succeeded` or `failed` has its outcome. A
request that failed is not kept: what is still to be done, in the state of that moment, is the next request. So
partitions that come while a request waits for its repetition are part of it. After `begin_abort` nothing is repeated
that only a commit needs.

    UNINITIALIZED -> INITIALIZING -> READY -> IN_TRANSACTION -> COMMITTING -> READY
                                                    |               |
                                                    |               v
                                                    +------> ABORTABLE_ERROR -> ABORTING -> READY
    COMMITTING, ABORTING -> INITIALIZING -> READY   where the epoch must be raised
    any state -> FATAL_ERROR

An error is answered by a repetition after a backoff, or by ABORTABLE_ERROR (the caller aborts, and may begin again). Or
it is answered by FATAL_ERROR (another producer has this transactional id, or may not use it).

The epoch is raised (InitProducerId with the producer id and epoch, KIP-360) before the next transaction:

- after a failed batch with a sequence: brokers may have it or not, so no sequence can follow it;
- after a request without a response. It was repeated, and the first one may arrive late, in the next transaction: an
  EndTxn would commit half of it (KIP-890). Kafka's client does not prevent this. With another epoch it is refused.

Coordinators before Kafka 2.5 cannot raise it. Then a failed batch with a sequence is fatal, and requests may be late.

Invariants: 1. a batch is sent only in IN_TRANSACTION or COMMITTING, and only to a partition that the coordinator has
added. 2. EndTxn is sent when no batch is left, and for a commit no offsets. 3. after EndTxn nothing of the transaction
is sent. 4. a transaction that the coordinator may have begun is ended. 5. no transaction begins in an epoch with an
uncertain sequence, or with a request that may be late.
In: calls, partitions, outcomes, failed batches, time   Out: requests   Owner: the producer, under its guard. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kclient.errors import ClientError, TransactionAborted, TransactionStateError
from kclient.types import (
    NO_PRODUCER,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from kclient.wire.errors import ErrorCode, KafkaError, for_code

ADD_PARTITIONS_BACKOFF = 0.02
"""Seconds before the first AddPartitionsToTxn of a transaction is repeated after CONCURRENT_TRANSACTIONS: the markers
of the transaction before it are on their way. As in Kafka."""


class State(Enum):
    """The states of Kafka's TransactionManager."""

    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "without a transaction"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that has failed"
    FATAL_ERROR = "failed"


VALID_FROM: Mapping[State, frozenset[State]] = {
    State.UNINITIALIZED: frozenset(),
    State.INITIALIZING: frozenset({State.UNINITIALIZED, State.COMMITTING, State.ABORTING}),
    State.READY: frozenset({State.INITIALIZING, State.COMMITTING, State.ABORTING}),
    State.IN_TRANSACTION: frozenset({State.READY}),
    State.COMMITTING: frozenset({State.IN_TRANSACTION}),
    State.ABORTABLE_ERROR: frozenset({State.IN_TRANSACTION, State.COMMITTING}),
    State.ABORTING: frozenset({State.IN_TRANSACTION, State.ABORTABLE_ERROR}),
    State.FATAL_ERROR: frozenset(State) - {State.FATAL_ERROR},
}
"""Kafka's validPreviousStates."""


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Request a producer id and epoch; *producer* is the present one, or NO_PRODUCER."""

    producer: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Add *partitions* to the transaction (AddPartitionsToTxn)."""

    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class AddOffsets:
    """Add the offsets of a group to the transaction (AddOffsetsToTxn)."""

    producer: ProducerIdAndEpoch
    group_id: str


@dataclass(frozen=True, slots=True, eq=False)
class OffsetsToCommit:
    """The offsets of one `TransactionManager.send_offsets`."""

    member: ConsumerGroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Send offsets to the coordinator of their group (TxnOffsetCommit)."""

    producer: ProducerIdAndEpoch
    commit: OffsetsToCommit


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Commit or abort (EndTxn)."""

    producer: ProducerIdAndEpoch
    committed: bool


Request = InitProducerId | AddPartitions | AddOffsets | CommitOffsets | EndTransaction


class Initialized(NamedTuple):
    """The outcome of InitProducerId. *raises_epochs*: the coordinator has version 3 of it (KIP-360)."""

    producer: ProducerIdAndEpoch
    raises_epochs: bool


_ABORTABLE: Mapping[type, frozenset[ErrorCode]] = {
    InitProducerId: frozenset(),
    AddPartitions: frozenset(
        {
            ErrorCode.TRANSACTION_ABORTABLE,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        }
    ),
    AddOffsets: frozenset({ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.GROUP_AUTHORIZATION_FAILED}),
    CommitOffsets: frozenset(
        {
            ErrorCode.TRANSACTION_ABORTABLE,
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
            # The member was replaced, or its group is in another generation (KIP-447).
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.UNKNOWN_MEMBER_ID,
        }
    ),
    EndTransaction: frozenset({ErrorCode.TRANSACTION_ABORTABLE}),
}
"""Errors of a request after which the caller aborts, and may begin again. Others that are not retriable are fatal."""

_NEW_EPOCH = frozenset({ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
"""Abortable for all requests, if the epoch can be raised: the coordinator has forgotten the producer."""

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})

_FATAL_FOR_BATCHES = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""INVALID_PRODUCER_EPOCH is abortable here: the EndTxn of the abort shows whether the producer is fenced."""

_NOTHING_CHANGED = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
"""After other retriable errors the coordinator may have done what was requested, or a new one may find it done."""

_NEXT_STEPS: Mapping[State, str] = {
    State.UNINITIALIZED: "call init_transactions() first",
    State.INITIALIZING: "call init_transactions() again and wait for it",
    State.READY: "call begin_transaction() first",
    State.IN_TRANSACTION: "call commit_transaction() or abort_transaction() first",
    State.COMMITTING: "call commit_transaction() again and wait for it",
    State.ABORTING: "call abort_transaction() again and wait for it",
    State.ABORTABLE_ERROR: "call abort_transaction(), then the transaction can be repeated",
    State.FATAL_ERROR: "close this producer and create another one",
}


class TransactionManager:
    """The transactions of *transactional_id*. *backoff* maps a number of repetitions to seconds."""

    def __init__(self, transactional_id: str, backoff: Callable[[int], float]) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.producer = NO_PRODUCER
        self.error: KafkaError | None = None
        """Why the state is ABORTABLE_ERROR or FATAL_ERROR."""
        self.last_problem: KafkaError | None = None
        """Why the last request is repeated."""
        self.retry_at = 0.0
        """No request is sent before, in seconds of the caller's clock."""
        self._backoff = backoff
        self._repetitions = 0
        self._in_flight: Request | None = None
        self._raises_epochs = False
        self._must_raise_epoch = False
        self._waiting: set[TopicPartition] = set()
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._offsets: deque[OffsetsToCommit] = deque()
        self._begun = False
        """The coordinator has the transaction, or may have it."""
        self._certainly_begun = False
        self._may_have_ended = False
        """An EndTxn may have been handled."""

    # --- the caller

    def init(self) -> None:
        """Request a producer id. A second call waits for the same."""
        if self.state is not State.INITIALIZING:
            self._require(State.UNINITIALIZED, "init_transactions()")
            self._to(State.INITIALIZING)

    def begin(self) -> None:
        """Begin a transaction; the coordinator has it from the first partition or group on."""
        self._require(State.READY, "begin_transaction()")
        self._to(State.IN_TRANSACTION)

    def check_send(self) -> None:
        """Raise unless a record may be sent now."""
        if self.state is not State.IN_TRANSACTION:
            self._require(State.IN_TRANSACTION, "send()")

    def send_offsets(
        self, member: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> OffsetsToCommit:
        """Commit *offsets* with the transaction."""
        self._require(State.IN_TRANSACTION, "send_offsets_to_transaction()")
        commit = OffsetsToCommit(member, dict(offsets))
        if offsets:
            self._offsets.append(commit)
        return commit

    def begin_commit(self) -> None:
        """Commit when all batches and offsets are sent. A second call waits for the same."""
        if self.state is not State.COMMITTING:
            self._require(State.IN_TRANSACTION, "commit_transaction()")
            self._to(State.COMMITTING)

    def begin_abort(self) -> None:
        """Abort when no batch is in flight. A second call waits for the same."""
        if self.state is State.ABORTING:
            return
        if self.state is not State.ABORTABLE_ERROR:
            self._require(State.IN_TRANSACTION, "abort_transaction()")
        self._to(State.ABORTING)
        self._waiting.clear()
        self._offsets.clear()
        self._retry_now()

    @property
    def refusal(self) -> KafkaError | None:
        """The error of batches that are not in flight, None while they may wait."""
        if self.state is State.FATAL_ERROR:
            return self.error
        if self.state in (State.ABORTABLE_ERROR, State.ABORTING):
            aborted = TransactionAborted(
                "the transaction is aborted"
                + (f" because of an error: {self.error}" if self.error else " by the caller")
            )
            aborted.__cause__ = self.error
            return aborted
        return None

    # --- the sender

    def add_partitions(self, tps: Iterable[TopicPartition]) -> None:
        """Add the partitions that have batches to the transaction."""
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            self._waiting.update(tp for tp in tps if tp not in self._added)

    def may_send_to(self, tp: TopicPartition) -> bool:
        """Return whether a batch of *tp* may be sent now."""
        return self.state in (State.IN_TRANSACTION, State.COMMITTING) and tp in self._added

    def batch_failed(self, problem: KafkaError, *, has_sequence: bool) -> None:
        """Handle a batch, or a record, that will not be sent, or not again."""
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            if problem.code in _FATAL_FOR_BATCHES:
                self._fail(problem)
            else:
                self._must_abort(problem)
        uncertain = has_sequence or problem.code in _NEW_EPOCH
        if uncertain and self._begun and self.state is not State.FATAL_ERROR:
            self._raise_epoch(problem)

    # --- requests

    def next_request(self, now: float, *, has_batches: bool) -> Request | None:
        """Return the request to send now; *has_batches*: some are waiting or in flight."""
        if self._in_flight is not None or now < self.retry_at:
            return None
        self._in_flight = self._next(has_batches)
        return self._in_flight

    def is_pending(self, commit: OffsetsToCommit) -> bool:
        """Return whether *commit* is still to be sent or to be answered."""
        return commit in self._offsets

    def succeeded(self, request: Request, outcome: Initialized | None = None) -> None:
        """Handle the response of *request* without an error."""
        self._in_flight = None
        self._retry_now()
        if self.state is State.FATAL_ERROR:
            return
        if isinstance(request, InitProducerId):
            assert outcome is not None
            self.producer, self._raises_epochs = outcome
            self._must_raise_epoch = False
            self._to(State.READY)
        elif isinstance(request, AddPartitions):
            self._begun = self._certainly_begun = True
            self._added |= request.partitions
            self._waiting -= request.partitions
        elif isinstance(request, AddOffsets):
            self._begun = self._certainly_begun = True
            self._groups.add(request.group_id)
        elif isinstance(request, CommitOffsets):
            if request.commit in self._offsets:
                self._offsets.remove(request.commit)
        else:
            self._ended()

    def failed(
        self, request: Request, problem: KafkaError, now: float, *, sent: bool = True
    ) -> None:
        """Handle an error of *request*, or of finding and connecting to its coordinator (*sent* False)."""
        self._in_flight = None
        if self.state is State.FATAL_ERROR:
            return
        code = problem.code
        unknown = problem.retriable or code is ErrorCode.UNKNOWN_SERVER_ERROR
        if sent and unknown and not isinstance(request, InitProducerId):
            self._unknown_outcome(request, problem)
        if problem.retriable:
            self._repeat(request, problem, now)
        elif code in _FENCED:
            self._fail(_fenced(problem))
        elif self.state is State.ABORTING:
            self._abort_failed(request, problem)
        elif code in _NEW_EPOCH and self._raises_epochs:
            self._must_raise_epoch = True
            self._must_abort(problem)
        elif code in _ABORTABLE[type(request)] and self.state is not State.INITIALIZING:
            self._must_abort(problem)
        else:
            self._fail(problem)

    # --- inside

    def _next(self, has_batches: bool) -> Request | None:
        if self.state is State.INITIALIZING:
            return InitProducerId(self.producer)
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            if self._waiting:
                return AddPartitions(self.producer, frozenset(self._waiting))
            if self._offsets:
                first = self._offsets[0]
                if first.member.group_id not in self._groups:
                    return AddOffsets(self.producer, first.member.group_id)
                return CommitOffsets(self.producer, first)
        if self.state in (State.COMMITTING, State.ABORTING) and not has_batches:
            if self._begun and not self._is_forgotten():
                return EndTransaction(self.producer, self.state is State.COMMITTING)
            self._ended()
            return self._next(has_batches)
        return None

    def _is_forgotten(self) -> bool:
        """Return whether the coordinator has expired the transactional id: it has nothing to abort."""
        return (
            self.state is State.ABORTING
            and self.error is not None
            and self.error.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        )

    def _unknown_outcome(self, request: Request, problem: KafkaError) -> None:
        """Handle an error after which *request* may have been handled, or may be handled later."""
        if problem.code in _NOTHING_CHANGED:
            return
        if isinstance(request, AddPartitions | AddOffsets):
            self._begun = True
        if isinstance(request, EndTransaction):
            self._may_have_ended = True
        if isinstance(problem, ClientError) and self._raises_epochs:  # there was no response
            self._must_raise_epoch = True

    def _repeat(self, request: Request, problem: KafkaError, now: float) -> None:
        wait = self._backoff(self._repetitions)
        self._repetitions += 1
        is_first = isinstance(request, AddPartitions) and not self._added
        if is_first and problem.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            wait = min(wait, ADD_PARTITIONS_BACKOFF)
        self.last_problem = problem
        if self.state is not State.ABORTING or isinstance(request, EndTransaction):
            self.retry_at = now + wait

    def _abort_failed(self, request: Request, problem: KafkaError) -> None:
        if not isinstance(request, EndTransaction):
            return  # the outcome of a request of the transaction does not count any more
        unknown = problem.code is ErrorCode.INVALID_TXN_STATE and not self._certainly_begun
        if unknown or (problem.code in _NEW_EPOCH and self._raises_epochs):
            # AddPartitionsToTxn was lost and never arrived; or the coordinator has expired the transactional id.
            self._must_raise_epoch = self._raises_epochs
            self._ended()
        else:
            self._fail(problem)

    def _ended(self) -> None:
        """Prepare the next transaction."""
        self._waiting.clear()
        self._added.clear()
        self._groups.clear()
        self._offsets.clear()
        self._begun = self._certainly_begun = self._may_have_ended = False
        self.error = None
        self._retry_now()
        self._to(State.INITIALIZING if self._must_raise_epoch else State.READY)

    def _must_abort(self, problem: KafkaError) -> None:
        if self.state in (State.IN_TRANSACTION, State.COMMITTING):
            self._to(State.ABORTABLE_ERROR)
            self.error = problem
            self._waiting.clear()
            self._offsets.clear()
        elif self.state is not State.ABORTABLE_ERROR:
            self._fail(problem)

    def _raise_epoch(self, problem: KafkaError) -> None:
        if self._raises_epochs:
            self._must_raise_epoch = True
        else:
            failed = ClientError(
                f"a batch failed, and its sequence cannot be used again: {problem}",
                hint="create another producer; coordinators from Kafka 2.5 on can raise the epoch of this one",
            )
            failed.__cause__ = problem
            self._fail(failed)

    def _fail(self, problem: KafkaError) -> None:
        if self.state is State.COMMITTING and self._may_have_ended:
            problem.message += "; an earlier request may have committed the transaction"
        self._to(State.FATAL_ERROR)
        self.error = problem
        self._waiting.clear()
        self._offsets.clear()

    def _retry_now(self) -> None:
        self._repetitions = 0
        self.retry_at = 0.0
        self.last_problem = None

    def _to(self, state: State) -> None:
        assert self.state in VALID_FROM[state], f"{self.state} to {state}"
        self.state = state

    def _require(self, state: State, call: str) -> None:
        """Raise the error of *call* unless this is the state for it."""
        if self.state is state:
            return
        if self.state is State.FATAL_ERROR:
            assert self.error is not None
            raise self.error
        if self.state is State.ABORTABLE_ERROR:
            refused = TransactionAborted(
                f"{call} is not possible, the transaction has failed: {self.error}",
                hint=_NEXT_STEPS[self.state],
            )
            raise refused from self.error
        raise TransactionStateError(
            f"{call} is not possible, the producer is {self.state.value}",
            hint=_NEXT_STEPS[self.state],
        )


def _fenced(problem: KafkaError) -> KafkaError:
    """Return PRODUCER_FENCED; coordinators before Kafka 2.7 send INVALID_PRODUCER_EPOCH for it (KIP-588)."""
    return for_code(ErrorCode.PRODUCER_FENCED)(
        f"{problem.message}: another producer has used this transactional id since, "
        "or the transaction exceeded transaction.timeout.ms",
        hint="close this producer",
    )
