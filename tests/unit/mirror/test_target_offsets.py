"""Where a copy continues, and its lineage, with target.offsets=keep and with target.offsets=renumber."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.types import TopicPartition
from kclient.wire.schema import offset_fetch
from kclient.wire.versions import ApiKey
from mirrormaker.lineage import Lineage, text_of
from mirrormaker.link_state import LogEnds
from mirrormaker.position import Position, position_group
from mirrormaker.target_offsets import KeptOffsets, RenumberedOffsets
from mirrormaker.topics import Plan
from tests.kit.scripted_cluster import ScriptedCluster

TP = TopicPartition("orders", 0)
COPY = TopicPartition("east.orders", 0)
CONFIG = CommonConfig.load({"bootstrap.servers": "a:1"})
PLAN = Plan({"orders": "east.orders"}, lineages={"east.orders": Lineage("first", "second")})


def serve_positions(scripted: ScriptedCluster, group: str, positions: dict[str, Position]) -> None:
    """Answer OffsetFetch for all partitions of *group*: partition 0 of each topic of *positions*."""

    def answer(request: offset_fetch.OffsetFetchRequest) -> Any:
        (asked,) = request.groups
        assert asked.topics is None
        found = positions if asked.group_id == group else {}
        topics = [
            offset_fetch.OffsetFetchResponseTopics(
                name=name,
                partitions=[
                    offset_fetch.OffsetFetchResponsePartitions(
                        partition_index=0,
                        committed_offset=position.offset,
                        metadata=position.committed().metadata,
                    )
                ],
            )
            for name, position in found.items()
        ]
        answered = offset_fetch.OffsetFetchResponseGroup(group_id=asked.group_id, topics=topics)
        return offset_fetch.OffsetFetchResponse(groups=[answered])

    scripted.answers[ApiKey.OFFSET_FETCH] = answer


class Pair:
    """A source with offsets 3 to 9, and a target that ends at 20."""

    def __init__(self) -> None:
        self.east = ScriptedCluster({"orders": 1, "invoices": 1})
        self.west = ScriptedCluster({"east.orders": 1})
        self.west.clock = self.east.clock
        self.east.serve_offsets({TP: (3, 9)})
        self.west.serve_offsets({COPY: (0, 20)})
        self.source, self.target = self.east.cluster(CONFIG), self.west.cluster(CONFIG)

    def renumbered(self) -> RenumberedOffsets:
        return RenumberedOffsets(
            self.source,
            self.target,
            is_transactional=True,
            source_id=lambda: "east-id",
            target_id=lambda: "west-id",
        )

    def done(self, reading: Callable[..., Any], *given: Any) -> Any:
        """Return what *reading* returns."""
        results: list[Any] = []
        Deferred.fromCoroutine(reading(*given)).addBoth(results.append)
        self.east.pass_time(1.0)
        (result,) = results
        return result


def test_a_renumbered_copy_continues_at_its_position_and_has_the_lineage_of_it() -> None:
    pair = Pair()
    copy_id = text_of(pair.target.metadata.topic_id(COPY.topic))
    position = Position(5, topic_id="first", target_topic_id=copy_id, target_end=20)
    serve_positions(pair.west, position_group("east-id"), {COPY.topic: position})
    offsets = pair.renumbered()
    assert offsets.lineage_of(PLAN, TP) == Lineage(), "no position is read yet"
    ends = pair.done(offsets.read_ends, {TP: COPY})[TP]
    assert isinstance(ends, LogEnds)
    assert (ends.source_start, ends.source_end, ends.target_end, ends.problem) == (3, 9, 5, None)
    source_id = text_of(pair.source.metadata.topic_id(TP.topic))
    assert offsets.lineage_of(PLAN, TP) == Lineage(source_id, "first")


def test_the_lineage_of_a_copy_with_kept_offsets_is_in_the_plan() -> None:
    pair = Pair()
    assert KeptOffsets(pair.source, pair.target).lineage_of(PLAN, TP) == Lineage("first", "second")


def test_topics_that_a_renumbering_mirror_copied_from_the_target_come_back_by_name() -> None:
    pair = Pair()
    stored = {name: Position(1) for name in ("invoices", "deleted")}
    serve_positions(pair.east, position_group("west-id"), stored)
    assert pair.done(pair.renumbered().returned, ["orders", "invoices"]) == ["invoices"]
    assert pair.done(KeptOffsets(pair.source, pair.target).returned, ["orders", "invoices"]) == []
