"""Sequences: without a hole, and begun again when one had to be left."""

from __future__ import annotations

from kclient.producer.batch import ProducerBatch
from kclient.producer.sequencer import Sequencer
from kclient.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(tp: TopicPartition = A, records: int = 3, number: int = 0) -> ProducerBatch:
    made = ProducerBatch(tp, number, 0.0)
    for _ in range(records):
        made.add((0, 1, None, b"v", ()), 20)
    return made


def sent(attempts: int = 1) -> ProducerBatch:
    """Return a batch in flight."""
    made = batch()
    made.attempts = attempts
    return made


def ready() -> Sequencer:
    sequencer = Sequencer()
    sequencer.given(7, 0)
    return sequencer


def numbers(one: ProducerBatch) -> tuple[int, int, int]:
    return one.producer_id, one.producer_epoch, one.base_sequence


def test_nothing_goes_before_there_is_a_producer_id() -> None:
    sequencer = Sequencer()
    assert sequencer.needs_producer_id
    assert not sequencer.may_send(batch(), [])


def test_each_partition_counts_its_own_records() -> None:
    sequencer = ready()
    first, second, other = batch(), batch(records=5), batch(B)
    for one in (first, second, other):
        sequencer.number(one)
    assert [numbers(one) for one in (first, second, other)] == [(7, 0, 0), (7, 0, 3), (7, 0, 0)]


def test_a_batch_sent_again_keeps_its_number() -> None:
    sequencer = ready()
    one, two = batch(), batch()
    for each in (one, two, one):
        sequencer.number(each)
    assert numbers(one) == (7, 0, 0)
    assert numbers(two) == (7, 0, 3)


def test_the_first_batch_of_a_partition_is_sent_alone_for_a_broker_without_state_accepts_any() -> (
    None
):
    sequencer = ready()
    first, second = batch(), batch()
    assert sequencer.may_send(first, [])
    sequencer.number(first)
    assert not sequencer.may_send(second, [first])
    sequencer.acknowledged(first)
    assert sequencer.may_send(second, [sent()])


def test_a_batch_sent_again_is_sent_alone_for_a_broker_remembers_five() -> None:
    sequencer = ready()
    first, second = batch(), batch()
    sequencer.number(first)
    sequencer.acknowledged(first)
    assert sequencer.may_send(second, [sent(attempts=1)])
    assert not sequencer.may_send(second, [sent(attempts=2)])


def test_after_a_batch_was_given_up_new_ones_wait_until_nothing_is_in_flight() -> None:
    sequencer = ready()
    lost, new = batch(), batch()
    sequencer.number(lost)
    sequencer.given_up(lost)
    assert not sequencer.may_send(new, [sent()])
    assert sequencer.may_send(new, [])
    sequencer.number(new)
    assert numbers(new) == (7, 1, 0)


def test_a_batch_behind_one_given_up_keeps_its_number_for_it_may_be_stored() -> None:
    sequencer = ready()
    lost, behind = batch(), batch()
    sequencer.number(lost)
    sequencer.number(behind)
    sequencer.given_up(lost)
    assert sequencer.may_send(behind, [])
    sequencer.number(behind)
    assert numbers(behind) == (7, 0, 3)


def test_after_a_rejection_by_a_gap_all_later_batches_get_new_sequences() -> None:
    sequencer = ready()
    lost, behind, last = batch(), batch(), batch()
    for one in (lost, behind, last):
        sequencer.number(one)
    sequencer.given_up(lost)
    assert sequencer.rejected_after_gap(behind)
    assert not sequencer.may_send(behind, [sent()])
    for one in (behind, last):
        sequencer.number(one)
    assert [numbers(one) for one in (behind, last)] == [(7, 1, 0), (7, 1, 3)]


def test_a_refusal_that_nothing_explains_is_no_hole() -> None:
    sequencer = ready()
    one = batch()
    sequencer.number(one)
    assert not sequencer.rejected_after_gap(one)


def test_the_halves_of_a_batch_too_large_share_its_sequences() -> None:
    sequencer = ready()
    large, behind = batch(records=5), batch()
    sequencer.number(large)
    sequencer.number(behind)
    first, second = large.split(0)
    for half in (first, second):
        sequencer.number(half)
    sequencer.number(behind)
    assert [numbers(each) for each in (first, second, behind)] == [(7, 0, 0), (7, 0, 2), (7, 0, 5)]


def test_a_transactional_producer_does_not_raise_its_epoch_itself() -> None:
    sequencer = Sequencer(raises_epoch=False)
    sequencer.given(7, 0)
    lost, later = batch(), batch()
    sequencer.number(lost)
    sequencer.given_up(lost)
    assert sequencer.epoch == 0
    sequencer.given(7, 1)
    sequencer.number(later)
    assert numbers(later) == (7, 1, 0)


def test_other_partitions_go_over_when_they_can_and_a_batch_of_theirs_keeps_its_number() -> None:
    sequencer = ready()
    lost, other = batch(), batch(B)
    sequencer.number(lost)
    sequencer.number(other)
    sequencer.given_up(lost)
    again = batch(B)
    assert sequencer.may_send(other, [])
    sequencer.number(other)
    assert numbers(other) == (7, 0, 0)
    assert not sequencer.may_send(again, [sent()])
    assert sequencer.may_send(again, [])
    sequencer.number(again)
    assert numbers(again) == (7, 1, 0)


def test_a_batch_never_numbered_leaves_no_hole() -> None:
    sequencer = ready()
    sequencer.given_up(batch())
    assert sequencer.epoch == 0


def test_one_hole_raises_the_epoch_once_however_many_batches_fall_with_it() -> None:
    sequencer = ready()
    lost = [batch() for _ in range(3)]
    for one in lost:
        sequencer.number(one)
    for one in lost:
        sequencer.given_up(one)
    assert sequencer.epoch == 1


def test_the_last_epoch_asks_for_a_new_producer_id() -> None:
    sequencer = Sequencer()
    sequencer.given(7, 0x7FFF)
    one = batch()
    sequencer.number(one)
    sequencer.given_up(one)
    assert sequencer.needs_producer_id


def test_sequences_wrap_to_zero() -> None:
    sequencer = ready()
    first, wrapping, after = batch(), batch(), batch()
    sequencer.number(first)
    sequencer._partitions[A].next_sequence = 0x7FFFFFFE
    sequencer.number(wrapping)
    sequencer.number(after)
    assert after.base_sequence == 1
