"""The transactions of one direction into a cluster that renumbers offsets, a state machine.

Theory of operation
===================
A broker of Apache Kafka assigns offsets itself, so the target's log end is no position of the mirror. The mirror stores
its position, the next source offset of each partition, as committed offsets of a consumer group at the target. It
stores them in the transaction that appends the records (KIP-98). So a consumer with isolation.level=read_committed
finds each record once: the records of a transaction and their position become visible together, or not at all.

One transaction is open at a time. It has parts: records of one partition, and the position after them. Its requests are
sent one after the other: AddPartitionsToTxn and AddOffsetsToTxn, Produce, TxnOffsetCommit, EndTxn.

After any error or lost answer the outcome is unknown, and the machine does not try to find out. It requests the
producer id again, without naming its present one. The coordinator then aborts the transaction, or completes it if the
decision to commit is durable, and raises the producer epoch. After that the stored positions state what was copied, and
the copy continues there. No request is repeated in the same epoch after a lost answer, because the first one may arrive
later. A late EndTxn would commit the next transaction in its middle (KIP-890). With the raised epoch the coordinator
rejects a late request of an earlier epoch. So does each partition of an aborted transaction, because its marker has the
raised epoch. A transaction is committed only when each request before EndTxn was acknowledged, so no Produce of a
committed transaction is under way.

Two mirrors of the same direction have the same transactional id. The later one fences the earlier one, and that one
stops. If a request of the earlier one fails meanwhile with another error, it requests the producer id again and is the
later one. It cannot end its own transaction first: the marker of EndTxn has the same epoch, so a late Produce would
follow it. The coordinator also fences a producer with a transaction that is older than transaction.timeout.ms. Then the
machine requests a producer id once more.

Without transactions (*is_transactional* False) the machine appends, then stores the position. After an error or a kill
between the two, records are appended again: at least once.

Invariants:
1. A part is accepted only if it follows the position that is stored, and each partition has one part per transaction.
2. EndTxn is sent only after every request of the transaction was acknowledged.
3. A response to a request of an earlier generation changes nothing.
4. After a failure no request of a transaction is sent before the positions were read in a new producer epoch.

In: initialized, positions_read, begin, added, appended, stored, ended, failed
Out: InitProducerId, ReadPositions, AddPartitions, Produce, StorePositions, EndTransaction, Ready, Committed, Aborted,
    Fenced
Owner: the flow's reactor thread
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from kclient.types import TopicPartition
from mirrormaker.offset_pairs import OffsetPair
from mirrormaker.position import Position

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
"""Seconds before the producer id is requested again: exponential backoff from the first to the longest delay."""

NO_PRODUCER = (-1, -1)


class State(Enum):
    """The states of the machine."""

    FENCING = "requesting a producer epoch"
    READING = "reading the positions"
    IDLE = "no transaction"
    ADDING = "adding partitions"
    APPENDING = "appending records"
    STORING = "storing the positions"
    ENDING = "committing"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch in *data*; its producer id, epoch and sequence are written when it is sent."""

    data: memoryview
    record_count: int
    source_offset: int = -1
    """Its base offset at the source; -1 if it is unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The records of one partition in a transaction, possibly none, and the position after them.

    *follows* is the source offset that has to be stored; None: no position is stored yet.
    """

    tp: TopicPartition
    """The partition at the target."""
    follows: int | None
    batches: Sequence[Batch]
    position: Position

    @property
    def record_count(self) -> int:
        """The number of records."""
        return sum(batch.record_count for batch in self.batches)


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """After *delay* seconds request the producer id and a new epoch; answer with `initialized`."""

    generation: int
    delay: float


@dataclass(frozen=True, slots=True)
class ReadPositions:
    """After *delay* seconds read the positions, none of a pending transaction; answer with `positions_read`."""

    generation: int
    delay: float


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Add partitions, and the group of the positions, to the transaction; answer with `added`."""

    generation: int
    producer: tuple[int, int]
    tps: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Produce:
    """Append the batches of each part, the first one with the given sequence number; answer with `appended`."""

    generation: int
    producer: tuple[int, int]
    parts: tuple[tuple[Part, int], ...]


@dataclass(frozen=True, slots=True)
class StorePositions:
    """Store positions, in the transaction if there is one; answer with `stored`."""

    generation: int
    producer: tuple[int, int]
    positions: Mapping[TopicPartition, Position]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Commit the transaction; answer with `ended`."""

    generation: int
    producer: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ready:
    """The positions are known, and a transaction may begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """The records of *parts* are visible, and their positions stored."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Aborted:
    """The outcome of *parts* is unknown until `Ready`; usually none of them was copied."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another mirror of this direction has taken over; this one sends nothing any more."""


Effect = (
    InitProducerId
    | ReadPositions
    | AddPartitions
    | Produce
    | StorePositions
    | EndTransaction
    | Ready
    | Committed
    | Aborted
    | Fenced
)


class TransactionMachine:
    """Copies parts in transactions of one transactional id, which time out after *timeout* seconds."""

    def __init__(self, *, timeout: float, is_transactional: bool = True) -> None:
        self.is_transactional = is_transactional
        self.state = State.FENCING
        self.generation = 0
        self.positions: dict[TopicPartition, Position] = {}
        """The stored positions; as of now in the state IDLE."""
        self._timeout = timeout
        self._producer = NO_PRODUCER
        self._sequences: dict[TopicPartition, int] = {}
        """The next sequence number of each partition in this producer epoch."""
        self._parts: tuple[Part, ...] = ()
        self._began_at = 0.0
        self._failures = 0

    # --- a producer epoch

    def start(self) -> list[Effect]:
        """Begin: request a producer epoch."""
        return self._restart(0.0)

    def _restart(self, delay: float) -> list[Effect]:
        self.generation += 1
        self._parts = ()
        self._sequences.clear()
        if not self.is_transactional:
            self.state = State.READING
            return [ReadPositions(self.generation, delay)]
        self.state = State.FENCING
        return [InitProducerId(self.generation, delay)]

    def initialized(self, generation: int, producer: tuple[int, int]) -> list[Effect]:
        """Handle the producer id and epoch: no earlier transaction is open any more."""
        if not self._is_current(generation, State.FENCING):
            return []
        self._producer = producer
        self.state = State.READING
        return [ReadPositions(generation, 0.0)]

    def positions_read(
        self, generation: int, positions: Mapping[TopicPartition, Position]
    ) -> list[Effect]:
        """Handle all stored positions."""
        if not self._is_current(generation, State.READING):
            return []
        self.positions = dict(positions)
        self.state = State.IDLE
        return [Ready()]

    # --- a transaction

    def accepts(self, part: Part) -> bool:
        """Return whether *part* may be in the next transaction: it follows the stored position."""
        stored = self.positions.get(part.tp)
        return part.follows == (None if stored is None else stored.offset)

    def begin(self, parts: Sequence[Part], now: float) -> list[Effect]:
        """Begin a transaction of *parts*. Raise ValueError for parts that would double or skip records."""
        if self.state is not State.IDLE:
            raise ValueError(f"no transaction can begin: {self.state.value}")
        tps = [part.tp for part in parts]
        if not parts or len(set(tps)) < len(tps):
            raise ValueError("a transaction has parts, one of each partition")
        for part in parts:
            if not self.accepts(part):
                raise ValueError(f"{part.tp}: the part follows {part.follows}, not the position")
        self._parts = tuple(parts)
        self._began_at = now
        if not self.is_transactional:
            return self._append()
        self.state = State.ADDING
        with_records = tuple(part.tp for part in parts if part.batches)
        return [AddPartitions(self.generation, self._producer, with_records)]

    def added(self, generation: int) -> list[Effect]:
        """Handle that the coordinator has added the partitions and the group."""
        if not self._is_current(generation, State.ADDING):
            return []
        return self._append()

    def _append(self) -> list[Effect]:
        sent = []
        for part in self._parts:
            if part.batches:
                first = self._sequences.get(part.tp, 0)
                sent.append((part, first))
                self._sequences[part.tp] = (first + part.record_count) & 0x7FFFFFFF
        self.state = State.APPENDING
        if not sent:
            return self.appended(self.generation, {})
        return [Produce(self.generation, self._producer, tuple(sent))]

    def appended(
        self,
        generation: int,
        ends: Mapping[TopicPartition, int],
        pairs: Mapping[TopicPartition, Sequence[OffsetPair]] = MappingProxyType({}),
    ) -> list[Effect]:
        """Handle that every batch is appended.

        *ends* has the target offset behind each part with records, *pairs* the base offsets of its batches on both
        sides.
        """
        if not self._is_current(generation, State.APPENDING):
            return []
        self._parts = tuple(
            replace(part, position=part.position.appended(ends[part.tp], pairs.get(part.tp, ())))
            if part.tp in ends
            else part
            for part in self._parts
        )
        self.state = State.STORING
        stored = {part.tp: part.position for part in self._parts}
        return [StorePositions(generation, self._producer, stored)]

    def stored(self, generation: int) -> list[Effect]:
        """Handle that the positions are stored, or a part of the transaction."""
        if not self._is_current(generation, State.STORING):
            return []
        self.state = State.ENDING
        if not self.is_transactional:
            return self.ended(generation)
        return [EndTransaction(generation, self._producer)]

    def ended(self, generation: int) -> list[Effect]:
        """Handle that the transaction is committed."""
        if not self._is_current(generation, State.ENDING):
            return []
        parts, self._parts = self._parts, ()
        self.positions |= {part.tp: part.position for part in parts}
        self._failures = 0
        self.state = State.IDLE
        return [Committed(parts), Ready()]

    # --- errors

    def failed(self, generation: int, now: float, *, fenced: bool = False) -> list[Effect]:
        """Handle an error, or a lost answer, of any request; *fenced*: the producer epoch is not the latest."""
        if generation != self.generation or self.state in (State.IDLE, State.FENCED):
            return []
        parts = self._parts
        effects: list[Effect] = [Aborted(parts)] if parts else []
        if fenced and not (parts and now - self._began_at >= self._timeout):
            self.state = State.FENCED
            self._parts = ()
            self.generation += 1
            return [*effects, Fenced()]
        self._failures += 1
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(self._failures - 1, 20))
        return effects + self._restart(delay)

    def _is_current(self, generation: int, state: State) -> bool:
        return generation == self.generation and self.state is state
