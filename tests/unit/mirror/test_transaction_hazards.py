"""Late requests and early reads: what each rule of `mirrormaker.transaction` prevents, and that the model has it.

Each scenario runs twice: as it is, and with the rule left out. Without the rule a consumer finds a record twice. So the
model of the property test can fail, and the rule is needed.
"""

from __future__ import annotations

from typing import Any

import pytest

from mirrormaker.transaction import (
    Effect,
    EndTransaction,
    Produce,
    ReadPositions,
    State,
    TransactionMachine,
)
from tests.kit.mirror_transaction_model import PARTITIONS, Mirror, Target, TransactionModel

TP = PARTITIONS[0]


class SameEpochInMarkers(Target):
    """Aborts as EndTxn(abort) does: the marker has the epoch of the transaction."""

    def time_out(self) -> None:
        if self.ongoing is not None:
            self._end(commit=False, epoch=self.epoch)


class UnstableReads(Target):
    """Returns positions although a committed transaction has others."""

    def handle(self, effect: Effect, part: int) -> Any:
        if isinstance(effect, ReadPositions):
            return dict(self.positions)
        return super().handle(effect, part)


class NoNewEpoch(TransactionMachine):
    """Reads the positions after an error, and continues in the same epoch."""

    def _restart(self, delay: float) -> list[Effect]:
        if self._producer == (-1, -1):
            return super()._restart(delay)
        self.generation += 1
        self._parts = ()
        self.state = State.READING
        return [ReadPositions(self.generation, delay)]


def world_with(
    *, target: type[Target] = Target, machine: type[TransactionMachine] = TransactionMachine
) -> tuple[TransactionModel, Mirror]:
    """A mirror that has stored its first positions, and two records to copy."""
    model = TransactionModel(machine=machine)
    model.target = target()
    mirror = model.start()
    settle(model)
    mirror.begin(1)
    settle(model)
    assert mirror.machine.state is State.IDLE
    model.sources[TP] += [1, 2]
    return model, mirror


def settle(model: TransactionModel, *, held: object = None) -> None:
    """Have all requests but *held* arrive, and all answers; the group applies each commit at once."""
    for _ in range(50):
        model.target.apply_marker()
        arriving = [n for n, request in enumerate(model.wire) if request is not held]
        if model.answers:
            model.answer(0)
        elif arriving:
            model.deliver(arriving[0])


def until(model: TransactionModel, kind: type[Any]) -> Any:
    """Have requests arrive until one of *kind* is on the wire; return it."""
    while not (model.wire and isinstance(model.wire[0].effect, kind)):
        model.answer(0) if model.answers else model.deliver(0)
    return model.wire[0]


def visible(model: TransactionModel) -> list[int]:
    """The records that a consumer finds, when all requests have arrived."""
    settle(model)
    return model.target.visible(TP)


@pytest.mark.parametrize(
    ("target", "found"),
    [(Target, [1, 2]), (SameEpochInMarkers, [1, 1, 2])],
    ids=["rule", "without"],
)
def test_a_late_produce_is_rejected_by_the_epoch_of_the_marker(
    target: type[Target], found: list[int]
) -> None:
    model, mirror = world_with(target=target)
    mirror.begin(1)
    late = until(model, Produce)
    mirror.fail(mirror.machine.generation)
    settle(model, held=late)
    model.deliver(model.wire.index(late))
    mirror.begin(2)
    assert visible(model) == found


@pytest.mark.parametrize(
    ("machine", "target", "found"),
    [(TransactionMachine, Target, [1, 2]), (NoNewEpoch, UnstableReads, [1, 1, 2])],
    ids=["rule", "without"],
)
def test_a_late_end_does_not_commit_the_next_transaction(
    machine: type[TransactionMachine], target: type[Target], found: list[int]
) -> None:
    model, mirror = world_with(machine=machine, target=target)
    mirror.begin(1)
    late = until(model, EndTransaction)
    mirror.fail(mirror.machine.generation)
    settle(model, held=late)
    mirror.begin(2)
    settle(model, held=late)
    assert visible(model) == found


@pytest.mark.parametrize(
    ("target", "found"), [(Target, [1, 2]), (UnstableReads, [1, 1, 2])], ids=["rule", "without"]
)
def test_a_position_is_not_read_before_the_last_commit_is_applied(
    target: type[Target], found: list[int]
) -> None:
    model, mirror = world_with(target=target)
    mirror.begin(1)
    until(model, EndTransaction)
    model.deliver(0)
    model.answers.clear()
    mirror.fail(mirror.machine.generation)
    for _ in range(2):  # InitProducerId and ReadPositions, before the group applies the commit
        model.deliver(0)
        model.answer(0)
    if mirror.machine.state is not State.IDLE:
        settle(model)
    mirror.begin(2)
    assert visible(model) == found
