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
from tests.kit.transaction_world import PARTITIONS, Mirror, Target, World

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
) -> tuple[World, Mirror]:
    """A mirror that has stored its first positions, and two records to copy."""
    world = World(machine=machine)
    world.target = target()
    mirror = world.start()
    settle(world)
    mirror.begin(1)
    settle(world)
    assert mirror.machine.state is State.IDLE
    world.sources[TP] += [1, 2]
    return world, mirror


def settle(world: World, *, held: object = None) -> None:
    """Have all requests but *held* arrive, and all answers; the group applies each commit at once."""
    for _ in range(50):
        world.target.apply_marker()
        arriving = [n for n, request in enumerate(world.wire) if request is not held]
        if world.answers:
            world.answer(0)
        elif arriving:
            world.deliver(arriving[0])


def until(world: World, kind: type[Any]) -> Any:
    """Have requests arrive until one of *kind* is on the wire; return it."""
    while not (world.wire and isinstance(world.wire[0].effect, kind)):
        world.answer(0) if world.answers else world.deliver(0)
    return world.wire[0]


def visible(world: World) -> list[int]:
    """The records that a consumer finds, when all requests have arrived."""
    settle(world)
    return world.target.visible(TP)


@pytest.mark.parametrize(
    ("target", "found"),
    [(Target, [1, 2]), (SameEpochInMarkers, [1, 1, 2])],
    ids=["rule", "without"],
)
def test_a_late_produce_is_rejected_by_the_epoch_of_the_marker(
    target: type[Target], found: list[int]
) -> None:
    world, mirror = world_with(target=target)
    mirror.begin(1)
    late = until(world, Produce)
    mirror.fail(mirror.machine.generation)
    settle(world, held=late)
    world.deliver(world.wire.index(late))
    mirror.begin(2)
    assert visible(world) == found


@pytest.mark.parametrize(
    ("machine", "target", "found"),
    [(TransactionMachine, Target, [1, 2]), (NoNewEpoch, UnstableReads, [1, 1, 2])],
    ids=["rule", "without"],
)
def test_a_late_end_does_not_commit_the_next_transaction(
    machine: type[TransactionMachine], target: type[Target], found: list[int]
) -> None:
    world, mirror = world_with(machine=machine, target=target)
    mirror.begin(1)
    late = until(world, EndTransaction)
    mirror.fail(mirror.machine.generation)
    settle(world, held=late)
    mirror.begin(2)
    settle(world, held=late)
    assert visible(world) == found


@pytest.mark.parametrize(
    ("target", "found"), [(Target, [1, 2]), (UnstableReads, [1, 1, 2])], ids=["rule", "without"]
)
def test_a_position_is_not_read_before_the_last_commit_is_applied(
    target: type[Target], found: list[int]
) -> None:
    world, mirror = world_with(target=target)
    mirror.begin(1)
    until(world, EndTransaction)
    world.deliver(0)
    world.answers.clear()
    mirror.fail(mirror.machine.generation)
    for _ in range(2):  # InitProducerId and ReadPositions, before the group applies the commit
        world.deliver(0)
        world.answer(0)
    if mirror.machine.state is not State.IDLE:
        settle(world)
    mirror.begin(2)
    assert visible(world) == found
