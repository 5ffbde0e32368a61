"""The reader of a whole log, when the leader of the partition changes."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.types import TopicPartition
from kclient.wire.errors import OffsetNotAvailable
from kclient.wire.fetch import FetchPartitionResponse
from kclient.wire.records import Record, encode_batch
from kclient.wire.versions import ApiKey
from mirrormaker.whole_log import TIMEOUT, LogReader
from tests.kit.scripted_cluster import ScriptedCluster

TP = TopicPartition("t", 0)


class Reading:
    """A partition with the high watermarks of *answers*, the last one for ever, and one record below offset 1."""

    def __init__(self, *answers: int) -> None:
        self.left = list(answers)
        self.scripted = ScriptedCluster({"t": 1})
        self.scripted.answers[ApiKey.FETCH] = self._fetched
        cluster = self.scripted.cluster(CommonConfig.load({"bootstrap.servers": "a:1"}))
        self.reader = LogReader(cluster, TP, 0, 1)

    def _fetched(self, _: Any) -> Any:
        high_watermark = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        data = encode_batch([Record(0, 1, b"key", b"value")]) if high_watermark else b""
        answer = FetchPartitionResponse(
            0, high_watermark=high_watermark, records=[memoryview(data)]
        )
        return self.scripted.fetched((TP, answer))

    def read(self) -> Any:
        results: list[Any] = []
        Deferred.fromCoroutine(self.reader.read()).addBoth(results.append)
        self.scripted.pass_time(TIMEOUT + 5)
        (result,) = results
        return result


def test_a_new_leader_with_a_lower_high_watermark_does_not_end_the_log() -> None:
    """Its high watermark is that of its last fetch, until the followers have fetched from it."""
    (batch,) = Reading(0, 0, 1).read()
    assert batch.next_offset == 1


def test_a_log_that_lost_what_was_there_is_an_error_in_the_end() -> None:
    result = Reading(0).read()
    with pytest.raises(OffsetNotAvailable, match="t-0 ends at 0, not at 1"):
        result.raiseException()
