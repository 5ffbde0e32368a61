"""The states of a transactional id, as a table, and what is stored of it.

Empty ──► Ongoing ──► PrepareCommit ──► CompleteCommit
  ▲        │    │                         │    │
  │        │    └────► PrepareAbort ──► CompleteAbort
  │        └► PrepareEpochFence ─┘          │  │
  └───────── InitProducerId ◄───────────────┘  └──► Ongoing (the next transaction)

Dead is entered from Empty and the Complete states: the transactional id has expired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from kbroker.common.topic_partition import TopicPartition

NO_PRODUCER_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1
LAST_EPOCH_OF_A_PRODUCER: Final = 2**15 - 2
"""The next one, the largest int16, only fences: it is never given to a producer."""


class TransactionState(Enum):
    """A state of a transactional id; the value is Kafka's name of it on the wire."""

    EMPTY = "Empty"
    """No transaction since InitProducerId."""

    ONGOING = "Ongoing"
    """Partitions or groups were added."""

    PREPARE_COMMIT = "PrepareCommit"
    """The transaction is committed; its markers are being written."""

    PREPARE_ABORT = "PrepareAbort"
    """The transaction is aborted; its markers are being written."""

    COMPLETE_COMMIT = "CompleteCommit"
    """Every partition has the marker."""

    COMPLETE_ABORT = "CompleteAbort"
    """Every partition has the marker."""

    DEAD = "Dead"
    """The transactional id has expired: its znode is deleted."""

    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """An abort with a raised epoch is being written. Never stored: the stored state is PrepareAbort."""


_COMPLETE: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The transaction is decided, and its markers are not all written."""

IDLE: Final = _COMPLETE | {TransactionState.EMPTY}
"""No transaction is open: the states that expire."""

VALID_FROM: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: IDLE,
    TransactionState.ONGOING: IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: frozenset(
        {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE}
    ),
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: IDLE,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
}
"""By state, the states before it (Kafka's ``validPreviousStates``)."""


class ProducerIdAndEpoch(NamedTuple):
    """A producer, as its requests name it."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """What is stored of a transactional id: the content of its znode."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    update_ms: int
    """When it was written last: expiry goes by it."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the epochs were exhausted."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before, if the producer raised it itself (KIP-360): a repeated request has it."""
    number: int = 0
    """Of the transaction that is open or was open last, counted from 1."""
    start_ms: int = -1
    """When the open transaction began; -1 without one."""
    partitions: frozenset[TopicPartition] = frozenset()
    groups: frozenset[str] = frozenset()

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The producer that may use the transactional id."""
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)
