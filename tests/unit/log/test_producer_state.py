"""What a producer's next batch is: next, a duplicate, out of order, of an epoch that is over."""

from __future__ import annotations

import pytest

from kbroker.log.core.producer_state import LAST_SEQUENCE, ProducerStates
from kclient.wire.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from tests.kit.producer_batches import header

P = 77


class Log:
    """Offsets, and what is known of producers."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end = 0

    def send(self, sequence: int, count: int = 1, *, epoch: int = 0, producer: int = P) -> int:
        """Do as a leader does; return the base offset that is answered."""
        info = header(producer, sequence, count, epoch=epoch)
        duplicate = self.states.check(info)
        if duplicate is not None:
            return duplicate.base_offset
        return self.force(sequence, count, epoch=epoch, producer=producer)

    def force(
        self, sequence: int, count: int = 1, *, epoch: int = 0, producer: int = P, now_ms: int = 0
    ) -> int:
        """Do as a follower does."""
        info = header(producer, sequence, count, epoch=epoch)
        self.states.appended(info, self.end, now_ms)
        self.end += count
        return self.end - count


@pytest.fixture
def log() -> Log:
    return Log()


def test_sequences_that_follow_are_next(log: Log) -> None:
    assert [log.send(0, 3), log.send(3), log.send(4, 2)] == [0, 3, 4]


def test_each_of_the_last_five_batches_is_recognised_with_its_offset(log: Log) -> None:
    offsets = {sequence: log.send(sequence, 2) for sequence in range(0, 20, 2)}
    for sequence in range(10, 20, 2):
        assert log.send(sequence, 2) == offsets[sequence]
    assert log.end == 20


def test_the_sixth_batch_from_the_end_is_out_of_order(log: Log) -> None:
    for sequence in range(6):
        log.send(sequence)
    with pytest.raises(OutOfOrderSequenceNumber, match="sent sequence 0, its last was 5"):
        log.send(0)


def test_a_repeated_sequence_with_another_count_is_no_duplicate(log: Log) -> None:
    log.send(0, 4)
    for sequence, count in ((0, 3), (0, 5), (1, 3)):
        with pytest.raises(OutOfOrderSequenceNumber):
            log.send(sequence, count)


def test_a_gap_is_out_of_order_and_changes_nothing(log: Log) -> None:
    log.send(0)
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(2)
    assert log.send(1) == 1
    assert log.send(2) == 2


def test_zero_follows_the_last_sequence_of_all(log: Log) -> None:
    log.force(LAST_SEQUENCE - 1, 2)
    assert log.send(0) == 2
    assert log.send(LAST_SEQUENCE - 1, 2) == 0


def test_a_batch_may_lie_across_the_wrap(log: Log) -> None:
    log.force(LAST_SEQUENCE - 5)
    assert log.send(LAST_SEQUENCE - 4, 10) == 1
    assert log.send(LAST_SEQUENCE - 4, 10) == 1
    assert log.send(5) == 11


def test_an_older_epoch_is_fenced(log: Log) -> None:
    log.send(0)
    log.send(0, epoch=1)
    for sequence in (0, 1):
        with pytest.raises(InvalidProducerEpoch, match="epoch 0 of producer 77 is over, 1 is on"):
            log.send(sequence)


def test_a_new_epoch_begins_with_zero(log: Log) -> None:
    log.send(0)
    with pytest.raises(OutOfOrderSequenceNumber, match="began epoch 1 with sequence 1, not 0"):
        log.send(1, epoch=1)
    assert log.send(1) == 1
    assert log.send(0, epoch=1) == 2
    assert log.send(0, epoch=1) == 2


def test_an_unknown_producer_may_go_on_with_any_sequence(log: Log) -> None:
    """KIP-360: what was known of it may have gone with its records."""
    assert log.send(1000, epoch=3) == 0
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(1002, epoch=3)


def test_producers_do_not_concern_each_other(log: Log) -> None:
    assert [log.send(0, producer=n) for n in (1, 2, 3)] == [0, 1, 2]
    assert log.send(0, producer=2) == 1


def test_a_follower_takes_what_the_leader_took(log: Log) -> None:
    log.force(0, epoch=2)
    log.force(7, epoch=2)
    log.force(3, epoch=1)
    assert log.states.entries[P].epoch == 1
    assert log.send(4, epoch=1) == 3


def test_batches_that_were_cut_off_are_forgotten(log: Log) -> None:
    for sequence in range(8):
        log.send(sequence)
    assert log.states.truncate_from_end(6) == {}
    log.end = 6
    assert log.send(6) == 6
    assert log.send(2) == 2
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(1)


def test_a_producer_without_a_batch_after_a_cut_is_not_known(log: Log) -> None:
    log.send(0)
    log.send(0, producer=5)
    log.send(1)
    assert log.states.truncate_from_end(1) == {}
    assert set(log.states) == {P}
    assert log.states.truncate_from_end(0) == {}
    assert len(log.states) == 0


def test_a_cut_through_more_than_is_remembered_is_reported(log: Log) -> None:
    for sequence in range(30):
        log.send(sequence)
    assert log.states.truncate_from_end(30) == {}
    assert log.states.truncate_from_end(25) == {}
    log.end = 25
    assert log.send(24) == 24
    assert log.states.truncate_from_end(24) == {P: 0}
    assert len(log.states) == 0


def test_a_cut_through_the_first_batch_of_an_epoch_is_reported(log: Log) -> None:
    log.send(0)
    log.send(0, epoch=1)
    assert log.states.truncate_from_end(1) == {P: 0}


def test_producers_expire_by_when_they_wrote_and_not_by_what_they_wrote(log: Log) -> None:
    log.force(0, producer=1, now_ms=10)
    log.force(0, producer=2, now_ms=20)
    log.force(1, producer=1, now_ms=30)
    assert log.states.expire(19) == 0
    assert log.states.expire(20) == 1
    assert set(log.states) == {1}
    assert log.states.expire(30) == 1
    assert log.states.expire(30) == 0
