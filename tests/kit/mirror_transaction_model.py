"""A model of a cluster with transactions (KIP-98), and mirrors that copy into it over a wire that loses and delays.

The model is one coordinator, one group, and a log per partition. It is as weak as brokers before KIP-890: a late
Produce or TxnOffsetCommit is accepted without a transaction, unless its epoch is below that of the last marker.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from kclient.types import TopicPartition
from mirrormaker.position import Position
from mirrormaker.transaction import (
    Aborted,
    AddPartitions,
    Batch,
    Committed,
    Effect,
    EndTransaction,
    Fenced,
    InitProducerId,
    Part,
    Produce,
    ReadPositions,
    Ready,
    State,
    StorePositions,
    TransactionMachine,
)

TIMEOUT = 60.0
PARTITIONS = (TopicPartition("t", 0), TopicPartition("t", 1))


class Rejected(Exception):
    """An error response; *fenced* is PRODUCER_FENCED or INVALID_PRODUCER_EPOCH."""

    def __init__(self, *, fenced: bool = False) -> None:
        self.fenced = fenced


@dataclass
class Stored:
    """A record in a log of the target."""

    record: int
    is_open: bool = True
    is_visible: bool = False


class Target:
    """The target cluster."""

    def __init__(self) -> None:
        self.epoch = -1
        self.ongoing: set[TopicPartition] | None = None
        self.last_was_commit = False
        self.logs: dict[TopicPartition, list[Stored]] = defaultdict(list)
        self.marker_epochs: dict[TopicPartition | None, int] = defaultdict(lambda: -1)
        """The producer epoch of the last marker of each partition; None is the partition of the group."""
        self.sequences: dict[TopicPartition, tuple[int, int]] = {}
        self.positions: dict[TopicPartition, Position] = {}
        self.pending: dict[TopicPartition, Position] = {}
        self.unapplied: dict[TopicPartition, Position] = {}
        """Committed positions that the coordinator of the group does not return yet: it applies markers later."""

    def visible(self, tp: TopicPartition) -> list[int]:
        """What a consumer with isolation.level=read_committed finds."""
        return [each.record for each in self.logs[tp] if each.is_visible]

    def handle(self, effect: Effect, part: int) -> Any:
        """Return the answer to a request, or raise `Rejected`; *part* selects one Produce of several."""
        if isinstance(effect, InitProducerId):
            if self.ongoing is not None:
                self.time_out()
            self.epoch += 1
            return 7, self.epoch
        if isinstance(effect, ReadPositions):
            if self.pending or self.unapplied:
                raise Rejected
            return dict(self.positions)
        if isinstance(effect, AddPartitions):
            self._check(effect.producer)
            self.ongoing = (self.ongoing or set()) | set(effect.tps)
        elif isinstance(effect, Produce):
            return self._append(effect, part)
        elif isinstance(effect, StorePositions):
            if effect.producer[1] < self.marker_epochs[None]:
                raise Rejected(fenced=True)
            self.pending |= effect.positions
        elif isinstance(effect, EndTransaction):
            self._check(effect.producer)
            if self.ongoing is None and not self.last_was_commit:
                raise Rejected
            self._end(commit=True, epoch=self.epoch)
        return None

    def _check(self, producer: tuple[int, int]) -> None:
        if producer[1] != self.epoch:
            raise Rejected(fenced=True)

    def _append(self, effect: Produce, number: int) -> int:
        part, sequence = effect.parts[number]
        tp, epoch = part.tp, effect.producer[1]
        last_epoch, expected = self.sequences.get(tp, (epoch, sequence))
        if epoch < max(self.marker_epochs[tp], last_epoch):
            raise Rejected(fenced=True)
        if sequence != (expected if epoch == last_epoch else 0):
            raise Rejected
        self.sequences[tp] = epoch, sequence + part.record_count
        self.logs[tp] += [Stored(record) for batch in part.batches for record in batch.data]
        return len(self.logs[tp])

    def apply_marker(self) -> None:
        """Have the coordinator of the group apply the last markers."""
        self.positions |= self.unapplied
        self.unapplied = {}

    def time_out(self) -> None:
        """Abort the open transaction, if there is one, with a raised epoch."""
        if self.ongoing is not None:
            self.epoch += 1
            self._end(commit=False, epoch=self.epoch)

    def _end(self, *, commit: bool, epoch: int) -> None:
        for tp in self.ongoing or ():
            for each in self.logs[tp]:
                each.is_visible |= each.is_open and commit
                each.is_open = False
            self.marker_epochs[tp] = epoch
        if self.ongoing is not None:
            self.unapplied |= self.pending if commit else {}
            self.pending = {}
            self.marker_epochs[None] = epoch
            self.last_was_commit = commit
        self.ongoing = None


@dataclass(eq=False)
class Request:
    """A request on the wire; its mirror may not wait for the answer any more."""

    mirror: Mirror
    effect: Any
    part: int = 0


@dataclass(eq=False)
class Answer:
    """An answer on its way."""

    request: Request
    value: Any


@dataclass(eq=False)
class Mirror:
    """A process with one machine."""

    model: TransactionModel
    machine: TransactionMachine
    is_alive: bool = True
    is_fenced: bool = False
    unanswered: int = 0
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def perform(self, effects: list[Effect]) -> None:
        """Put the requests of *effects* on the wire."""
        for effect in effects:
            if isinstance(effect, Fenced):
                self.is_fenced = True
            elif isinstance(effect, Produce):
                self.unanswered, self.ends = len(effect.parts), {}
                for number in range(len(effect.parts)):
                    self.model.wire.append(Request(self, effect, number))
            elif not isinstance(effect, Ready | Committed | Aborted):
                self.model.wire.append(Request(self, effect))

    def begin(self, most: int) -> None:
        """Begin a transaction of at most *most* records of each partition, in batches of two."""
        parts = []
        for tp in PARTITIONS:
            stored = self.machine.positions.get(tp)
            source = self.model.sources[tp]
            at = stored.offset if stored is not None else 0
            taken = source[at : at + most] if stored is not None else []
            if stored is not None and not taken:
                continue
            batches = [
                Batch(memoryview(bytes(taken[n : n + 2])), len(taken[n : n + 2]))
                for n in range(0, len(taken), 2)
            ]
            follows = None if stored is None else stored.offset
            parts.append(Part(tp, follows, batches, Position(at + len(taken))))
        if parts:
            self.perform(self.machine.begin(parts, self.model.now))

    def fail(self, generation: int, *, fenced: bool = False) -> None:
        """Give up the request in flight, which may still arrive."""
        self.perform(self.machine.failed(generation, self.model.now, fenced=fenced))

    def answered(self, answer: Answer) -> None:
        """Take an answer."""
        effect, machine = answer.request.effect, self.machine
        generation = effect.generation
        if not self.is_alive:
            return
        if isinstance(answer.value, Rejected):
            self.fail(generation, fenced=answer.value.fenced)
        elif isinstance(effect, InitProducerId):
            self.perform(machine.initialized(generation, answer.value))
        elif isinstance(effect, ReadPositions):
            self.perform(machine.positions_read(generation, answer.value))
        elif isinstance(effect, AddPartitions):
            self.perform(machine.added(generation))
        elif isinstance(effect, Produce):
            if generation == machine.generation:
                self.unanswered -= 1
                self.ends[effect.parts[answer.request.part][0].tp] = answer.value
                if not self.unanswered:
                    self.perform(machine.appended(generation, self.ends))
        elif isinstance(effect, StorePositions):
            self.perform(machine.stored(generation))
        elif isinstance(effect, EndTransaction):
            self.perform(machine.ended(generation))


class TransactionModel:
    """Sources, the target, the wire, and the mirrors."""

    def __init__(self, *, machine: type[TransactionMachine] = TransactionMachine) -> None:
        self.target = Target()
        self.sources: dict[TopicPartition, list[int]] = {tp: [] for tp in PARTITIONS}
        self.wire: list[Request] = []
        self.answers: list[Answer] = []
        self.mirrors: list[Mirror] = []
        self.now = 0.0
        self._machine = machine

    def start(self) -> Mirror:
        """Start another process; earlier ones go on."""
        mirror = Mirror(self, self._machine(timeout=TIMEOUT))
        self.mirrors.append(mirror)
        mirror.perform(mirror.machine.start())
        return mirror

    def kill(self, mirror: Mirror) -> None:
        """Kill a process; its requests on the wire still arrive."""
        mirror.is_alive = False
        self.mirrors.remove(mirror)

    def deliver(self, number: int) -> None:
        """Handle a request at the target."""
        request = self.wire.pop(number)
        try:
            value = self.target.handle(request.effect, request.part)
        except Rejected as problem:
            value = problem
        self.answers.append(Answer(request, value))

    def answer(self, number: int) -> None:
        """Hand an answer over."""
        answer = self.answers.pop(number)
        answer.request.mirror.answered(answer)

    def wait(self) -> None:
        """Let time pass until the coordinator aborts an open transaction."""
        self.now += TIMEOUT
        self.target.time_out()

    def settle(self) -> None:
        """Have all requests arrive, then one new process copy the rest."""
        while self.wire or self.answers:
            self.target.apply_marker()  # else a running mirror requests the positions for ever
            self.deliver(0) if self.wire else self.answer(0)
        last = self.start()
        for _ in range(200):
            if last.machine.state is State.IDLE:
                last.begin(5)
            self.target.apply_marker()
            if not self.wire and not self.answers:
                return
            self.deliver(0) if self.wire else self.answer(0)
