"""The leader epoch of an offset is found from the ends of epochs, as brokers give them."""

from __future__ import annotations

import random
from collections.abc import Mapping

from kclient.errors import KafkaError
from kclient.net.leader_epochs import EpochEnd
from kclient.types import TopicPartition
from kclient.wire.errors import NotLeaderOrFollower
from spark_jobs.leader_epochs import search

TP = TopicPartition("t", 0)


class Brokers:
    """Answers OffsetForLeaderEpoch for one log as Kafka does: *starts* has the first offset of each epoch."""

    def __init__(self, starts: dict[int, int], log_end: int) -> None:
        self.starts = starts
        self.log_end = log_end
        self.requests = 0

    def __call__(
        self, asked: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, EpochEnd | KafkaError]:
        self.requests += 1
        return {tp: self.end(epoch) for tp, epoch in asked.items()}

    def end(self, epoch: int) -> EpochEnd:
        known = sorted(self.starts)
        if epoch < 0 or not known or epoch > known[-1]:
            return EpochEnd(-1, -1)
        if epoch == known[-1]:
            return EpochEnd(epoch, self.log_end)
        above = min(each for each in known if each > epoch)
        below = [each for each in known if each <= epoch]
        return EpochEnd(below[-1] if below else epoch, self.starts[above])


def test_the_epoch_of_every_offset_is_that_of_its_batch() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        epochs = sorted(rng.sample(range(12), rng.randrange(1, 5)))
        offset, starts, of_offset = rng.randrange(5), {}, {}
        for epoch in epochs:
            starts[epoch] = offset
            for _ in range(rng.randrange(1, 4)):
                of_offset[offset] = epoch
                offset += 1
        brokers = Brokers(starts, offset)
        latest = {TP: epochs[-1] + rng.randrange(3)}  # elected, and wrote nothing yet
        for each, epoch in of_offset.items():
            assert search(brokers, {TP: each + 1}, latest) == {TP: epoch}, (seed, each)
        assert search(brokers, {TP: offset + 1}, latest) == {}, "behind the end of the log"


def test_an_epoch_is_unknown_where_a_broker_returns_an_error_or_knows_none() -> None:
    assert search(lambda _: {TP: NotLeaderOrFollower("moved")}, {TP: 5}, {TP: 3}) == {}
    assert search(Brokers({}, 0), {TP: 5}, {TP: 3}) == {}
    assert search(Brokers({0: 0}, 9), {TP: 5}, {TP: -1}) == {}


def test_the_search_ends_and_asks_once_for_the_current_epoch_and_once_for_the_one_before() -> None:
    brokers = Brokers({2: 0, 7: 40}, 90)
    assert search(brokers, {TP: 90}, {TP: 7}) == {TP: 7}
    assert brokers.requests == 2
    many = Brokers({epoch: epoch for epoch in range(1000)}, 1000)
    assert search(many, {TP: 1}, {TP: 999}) == {}
    assert many.requests == 100
