"""Which micro-batches the source plans, by the log ends that the cluster reports one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

from kclient.types import TopicPartition
from spark_jobs.source.data_source import DataLoss, SourceTask, _BatchReader, _StreamReader
from spark_jobs.source.offsets import OffsetLookup
from spark_jobs.source.options import Offsets, SourceOptions, parse

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class ReportedEnds(OffsetLookup):
    """A cluster that reports *ends* one after the other; the last of them stay."""

    def __init__(self, options: SourceOptions, *ends: Mapping[TopicPartition, int]) -> None:
        super().__init__(options)
        self._ends = list(ends)

    def partitions(self) -> list[TopicPartition]:
        return sorted(self._ends[0])

    def _times(
        self, wanted: Mapping[TopicPartition, int | Literal["earliest", "latest"]]
    ) -> Offsets:
        if "earliest" in wanted.values():
            return dict.fromkeys(wanted, 0)
        ends = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        return {tp: ends[tp] for tp in wanted}


def options(*, streaming: bool, **more: str) -> SourceOptions:
    given = {
        "kafka.bootstrap.servers": "h:1",
        "subscribe": "t",
        "fetchOffset.retryIntervalMs": "0",
        **more,
    }
    return parse(given, streaming=streaming)


def stream(*ends: Mapping[TopicPartition, int], **more: str) -> _StreamReader:
    chosen = options(streaming=True, **more)
    return _StreamReader(chosen, ReportedEnds(chosen, *ends))


def ranges(tasks: Sequence[object]) -> list[tuple[int, int, int]]:
    return [
        (each.partition, each.low, each.high)
        for task in tasks
        if isinstance(task, SourceTask)
        for each in task.ranges
    ]


LOWER = {P0: 8, P1: 20}
"""As a new leader of partition 0 reports for a moment after its election."""
BOTH = {P0: 12, P1: 25}


def test_available_now_goes_on_after_a_leader_change_that_an_ordinary_trigger_survives() -> None:
    """It planned offset 8 after 10: an end that went back, or records twice with failOnDataLoss=false."""
    start = {"t": {"0": 10, "1": 20}}
    for available_now in (False, True):
        reader = stream(LOWER, BOTH)
        if available_now:
            reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        # Only the partition that was behind gets a later end: the query ends where it was prepared.
        assert end == {"t": {"0": 12, "1": 20 if available_now else 25}}
        assert (0, 10, 12) in ranges(reader.partitions(start, end))
        if available_now:
            assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_available_now_fails_where_the_log_stays_below_the_checkpoint() -> None:
    reader = stream(LOWER)
    reader.prepareForTriggerAvailableNow()
    start = {"t": {"0": 10, "1": 20}}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    with pytest.raises(DataLoss, match="went back from 10 to 8"):
        reader.partitions(start, end)


ENDS_AT_LATEST = '{"t": {"0": -1, "1": -1}}'


def batch(*ends: Mapping[TopicPartition, int], **more: str) -> list[tuple[int, int, int]]:
    chosen = options(streaming=False, **more)
    return ranges(_BatchReader(chosen, ReportedEnds(chosen, *ends)).partitions())


@pytest.mark.parametrize(
    "looked_up", [(BOTH, LOWER), (LOWER, BOTH), ({**BOTH, P1: 20}, {**BOTH, P0: 8})]
)
def test_a_batch_up_to_the_latest_offsets_reads_to_the_higher_end_that_was_reported(
    looked_up: Sequence[Mapping[TopicPartition, int]],
) -> None:
    """A new leader between two lookups was "the log ends at 8, below offset 12", or a result without four records."""
    assert batch(*looked_up) == [(0, 0, 12), (1, 0, 25)]


def test_a_lower_end_at_the_second_lookup_is_no_loss_where_the_first_one_reported_the_ending_offset() -> (
    None
):
    assert batch(BOTH, LOWER, endingOffsets=ENDS_AT_LATEST) == [(0, 0, 12), (1, 0, 25)]
    with pytest.raises(DataLoss, match="the log of t-0 ends at 8, below offset 12"):
        batch(LOWER, endingOffsets='{"t": {"0": 12, "1": 20}}')
