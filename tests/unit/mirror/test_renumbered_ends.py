"""The log ends of a target that renumbers offsets: what is behind the stored positions."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.types import TopicPartition
from kclient.wire.errors import KafkaError
from kclient.wire.fetch import FetchResponse, FetchTopicResponse
from kclient.wire.versions import ApiKey
from mirrormaker.lineage import text_of
from mirrormaker.link_state import Cause, LogEnds, Problem
from mirrormaker.position import Position
from mirrormaker.renumbered_ends import read_renumbered_ends
from tests.kit.scripted_cluster import ScriptedCluster, batch_of, part

PAIRS = {TopicPartition("t", n): TopicPartition("east.t", n) for n in (0, 1)}
CONFIG = CommonConfig.load({"bootstrap.servers": "a:1"})


class Reading:
    """Both partitions end at 9 in the target; the stored positions describe it up to 5."""

    def __init__(self) -> None:
        east, self.west = ScriptedCluster({"t": 2}), ScriptedCluster({"east.t": 2}, brokers=2)
        self.west.clock = east.clock
        east.serve_offsets(dict.fromkeys(PAIRS, (0, 9)))
        self.west.serve_offsets(dict.fromkeys(PAIRS.values(), (0, 9)))
        source, target = east.cluster(CONFIG), self.west.cluster(CONFIG)
        copy_id = text_of(target.metadata.topic_id("east.t"))
        position = Position(7, target_topic_id=copy_id, target_end=5)
        positions = dict.fromkeys(PAIRS.values(), position)
        self.results: list[Any] = []
        reading = read_renumbered_ends(
            source, target, PAIRS, positions, "kmirror-east", is_transactional=True
        )
        Deferred.fromCoroutine(reading).addBoth(self.results.append)
        self.west.pass_time(1.0)

    def answer(self, broker: int, data: bytes = b"", end: int = 9) -> None:
        """Answer the fetch from *broker*, which leads one partition of the target."""
        (asked,) = [each for each in self.west.waiting(ApiKey.FETCH) if each.node == broker]
        answered = part(broker - 1, data, high_watermark=end, last_stable_offset=end)
        asked.answer(FetchResponse([FetchTopicResponse("east.t", [answered])]))
        self.west.pass_time(1.0)

    @property
    def ends(self) -> list[LogEnds | KafkaError]:
        (found,) = self.results
        assert isinstance(found, dict), found
        return [found[tp] for tp in PAIRS]


def test_a_visible_record_behind_a_position_is_found_and_nothing_behind_it_is_no_problem() -> None:
    reading = Reading()
    assert len(reading.west.waiting(ApiKey.FETCH)) == 2, "one fetch of each leader, at once"
    reading.answer(1, batch_of(5, b"a", b"b", b"c", b"d"))
    reading.answer(2, end=5)
    written, copied = reading.ends
    assert isinstance(written, LogEnds)
    assert isinstance(copied, LogEnds)
    assert isinstance(written.problem, Problem)
    assert written.problem.cause is Cause.TARGET_WRITTEN
    assert copied.problem is None
    assert copied.target_end == 7


def test_a_leader_that_fails_keeps_no_partition_of_another_leader_from_its_log_ends() -> None:
    reading = Reading()
    (asked,) = [each for each in reading.west.waiting(ApiKey.FETCH) if each.node == 1]
    asked.fail()
    reading.answer(2, end=5)
    failed, copied = reading.ends
    assert isinstance(failed, KafkaError)
    assert isinstance(copied, LogEnds)
    assert copied.problem is None
