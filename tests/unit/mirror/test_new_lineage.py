"""A new lineage begins when its entries are in the ledger, and the source's controller knows the topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from twisted.internet.defer import Deferred

from kclient.errors import KafkaError
from kclient.types import TopicPartition
from kclient.wire.errors import LeaderNotAvailable, NotEnoughReplicas
from mirrormaker.lineage import text_of
from mirrormaker.link_state import Cause, Gap
from mirrormaker.new_lineage import begin_lineages
from mirrormaker.topics import NewLineage

EARLIER, LATER = UUID(int=1), UUID(int=2)
IDS = text_of(EARLIER), text_of(LATER)
NEW = NewLineage(
    "orders", "east.orders", "lineage.x.east.orders", *IDS, partitions=2, is_begun=False
)
ENDS: dict[TopicPartition, int | KafkaError] = {
    TopicPartition("east.orders", 0): 100,
    TopicPartition("east.orders", 1): 0,
}


class Clusters:
    """The source's controller, the target's logs and the ledger."""

    def __init__(
        self,
        *,
        at_controller: UUID | None = LATER,
        ends: Mapping[TopicPartition, int | KafkaError] = ENDS,
        problem: KafkaError | None = None,
    ) -> None:
        self.at_controller = at_controller
        self.ends = ends
        self.problem = problem
        self.entries: list[tuple[TopicPartition, TopicPartition, Gap, str]] = []

    async def topic_id_of(self, topic: str) -> UUID | None:
        assert topic == "orders"
        return self.at_controller

    async def ends_of(
        self, tps: Mapping[TopicPartition, None]
    ) -> Mapping[TopicPartition, int | KafkaError]:
        return {tp: self.ends[tp] for tp in tps}

    async def record(
        self, source: TopicPartition, copy: TopicPartition, gap: Gap, topic_id: str
    ) -> None:
        self.entries.append((source, copy, gap, topic_id))
        if self.problem is not None and copy.partition == 1:
            raise self.problem

    def begin(self, *lineages: NewLineage) -> dict[str, str]:
        """Return the topics that have to wait."""
        found: list[dict[str, str]] = []
        begun = begin_lineages(
            lineages, topic_id_of=self.topic_id_of, ends_of=self.ends_of, record=self.record
        )
        Deferred.fromCoroutine(begun).addCallback(found.append)
        return found[0]


def test_each_partition_of_the_earlier_copy_gets_the_offset_where_it_ends() -> None:
    clusters = Clusters()
    assert clusters.begin(NEW) == {}
    assert clusters.entries == [
        (
            TopicPartition("orders", number),
            TopicPartition("east.orders", number),
            Gap(end, end, Cause.RECREATED, *IDS),
            IDS[1],
        )
        for number, end in enumerate((100, 0))
    ]


def test_a_lineage_waits_for_the_acknowledgement_of_every_entry() -> None:
    waiting = Clusters(problem=NotEnoughReplicas("east.gaps.internal")).begin(NEW)
    assert "lineage.x.east.orders waits: NOT_ENOUGH_REPLICAS" in waiting["orders"]


def test_a_topic_id_that_the_controller_does_not_have_begins_nothing() -> None:
    """The metadata of a broker may be old: then the target's topic is the later one."""
    for at_controller in (EARLIER, None):
        clusters = Clusters(at_controller=at_controller)
        assert "the source's controller has orders with" in clusters.begin(NEW)["orders"]
        assert clusters.entries == []


def test_an_end_that_cannot_be_read_writes_no_entry() -> None:
    clusters = Clusters(ends={**ENDS, TopicPartition("east.orders", 1): LeaderNotAvailable("x")})
    assert "LEADER_NOT_AVAILABLE" in clusters.begin(NEW)["orders"]
    assert clusters.entries == []


def test_a_lineage_that_was_begun_writes_nothing_again() -> None:
    clusters = Clusters(problem=NotEnoughReplicas("x"))
    assert clusters.begin(replace(NEW, is_begun=True)) == {}
    assert clusters.entries == []
