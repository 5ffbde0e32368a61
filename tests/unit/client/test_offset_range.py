"""The walk through a range of offsets: it waits for records, however long their handling takes."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kclient.cli.offset_range import read_range
from kclient.cli.progress import Progress
from kclient.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Positions:
    """What the walk uses of a consumer."""

    def __init__(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions = dict(positions)
        self.paused: set[TopicPartition] = set()

    def pause(self, *tps: TopicPartition) -> None:
        self.paused.update(tps)

    def next_offset(self, tp: TopicPartition) -> int:
        return self.positions[tp]


def walk(
    clock: Clock, polled: list[tuple[float, int]]
) -> tuple[Positions, dict[TopicPartition, int]]:
    """Read 30 records of one partition, and none of the other, in steps of (seconds, records)."""
    firsts = {T0: 0, T1: 5}
    consumer = Positions(firsts)

    async def take() -> bool:
        elapsed, records = polled.pop(0)
        clock.advance(elapsed)
        consumer.positions[T0] += records
        return bool(records)

    found: list[dict[TopicPartition, int]] = []
    Deferred.fromCoroutine(
        read_range(
            consumer, firsts, {T0: 30, T1: 5}, take, verb="reading", progress=Progress(clock.seconds, quiet=True),
            seconds=clock.seconds, timeout=10,
        )
    ).addCallback(found.append)  # fmt: skip
    return consumer, found[0]


def test_a_slow_destination_does_not_end_the_read() -> None:
    consumer, left = walk(Clock(), [(60, 10), (60, 10), (9, 0), (60, 10)])
    assert left == {}
    assert consumer.paused == {T0, T1}


def test_the_read_ends_without_records_for_the_timeout() -> None:
    consumer, left = walk(Clock(), [(0, 10), (9, 0), (2, 0)])
    assert left == {T0: 10}
    assert consumer.paused == {T1}
