"""The transactions of a mirror: what is sent, what is refused, when the mirror stops."""

from __future__ import annotations

import pytest

from kclient.types import TopicPartition
from mirrormaker.position import Position
from mirrormaker.transaction import (
    Aborted,
    AddPartitions,
    Batch,
    Committed,
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

TP = TopicPartition("t", 0)
TIMEOUT = 60.0


def idle(stored: int = 0, **options: bool) -> TransactionMachine:
    machine = TransactionMachine(timeout=TIMEOUT, **options)
    machine.start()
    machine.initialized(machine.generation, (7, 3))
    machine.positions_read(machine.generation, {TP: Position(stored)})
    assert machine.state is State.IDLE
    return machine


def part(follows: int | None, records: int) -> Part:
    batches = [Batch(memoryview(bytes(records)), records)] if records else []
    return Part(TP, follows, batches, Position((follows or 0) + records))


def test_a_transaction_is_one_request_after_the_other() -> None:
    machine = idle(10)
    copied = part(10, 4)
    (add,) = machine.begin([copied], 0.0)
    assert add == AddPartitions(1, (7, 3), (TP,))
    (produce,) = machine.added(1)
    assert isinstance(produce, Produce)
    assert produce.parts == ((copied, 0),)
    (store,) = machine.appended(1, {TP: 104})
    assert store == StorePositions(1, (7, 3), {TP: Position(14, target_end=104)})
    assert machine.stored(1) == [EndTransaction(1, (7, 3))]
    committed, ready = machine.ended(1)
    assert isinstance(committed, Committed)
    assert ready == Ready()
    assert machine.positions[TP].offset == 14
    machine.begin([part(14, 1)], 0.0)
    (produce,) = machine.added(1)
    assert isinstance(produce, Produce)
    assert produce.parts[0][1] == 4, "sequence numbers go on in the same epoch"


def test_a_part_without_records_stores_its_position_only() -> None:
    machine = idle(10)
    (add,) = machine.begin([Part(TP, 10, (), Position(12))], 0.0)
    assert add == AddPartitions(1, (7, 3), ())
    assert isinstance(machine.added(1)[0], StorePositions)


@pytest.mark.parametrize("follows", [None, 9, 11])
def test_a_part_that_does_not_follow_the_position_is_refused(follows: int | None) -> None:
    machine = idle(10)
    assert not machine.accepts(part(follows, 1))
    with pytest.raises(ValueError, match="not the position"):
        machine.begin([part(follows, 1)], 0.0)
    with pytest.raises(ValueError, match="one of each partition"):
        machine.begin([part(10, 1), part(11, 1)], 0.0)


def test_after_a_lost_answer_a_new_epoch_is_requested_before_the_positions_are_read() -> None:
    machine = idle(10)
    copied = part(10, 4)
    machine.begin([copied], 0.0)
    aborted, again = machine.failed(1, 0.0)
    assert isinstance(aborted, Aborted)
    assert aborted.parts == (copied,)
    assert again == InitProducerId(2, 0.1)
    assert machine.added(1) == [], "a late answer changes nothing"
    assert machine.failed(1, 0.0) == []
    assert machine.initialized(2, (7, 5)) == [ReadPositions(2, 0.0)]
    assert machine.failed(2, 0.0) == [InitProducerId(3, 0.2)], "the wait doubles"


def test_a_fenced_mirror_stops() -> None:
    machine = idle(10)
    machine.begin([part(10, 4)], 0.0)
    assert machine.failed(1, TIMEOUT - 1, fenced=True)[-1] == Fenced()
    assert machine.state is State.FENCED
    assert machine.failed(machine.generation, 0.0) == []


def test_a_mirror_with_a_transaction_that_timed_out_continues() -> None:
    machine = idle(10)
    machine.begin([part(10, 4)], 0.0)
    assert machine.failed(1, TIMEOUT, fenced=True)[-1] == InitProducerId(2, 0.1)


def test_without_transactions_records_are_appended_then_the_position_is_stored() -> None:
    machine = idle(10, is_transactional=False)
    assert isinstance(machine.begin([part(10, 4)], 0.0)[0], Produce)
    (store,) = machine.appended(1, {TP: 4})
    assert isinstance(store, StorePositions)
    assert isinstance(machine.stored(1)[0], Committed)
    machine.begin([part(14, 1)], 0.0)
    assert machine.failed(1, 0.0)[-1] == ReadPositions(2, 0.1), "there is no epoch to request"
