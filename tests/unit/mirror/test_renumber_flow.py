"""The flow into a target that renumbers offsets: first positions and their outcome, without any broker."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from kclient.config import CommonConfig
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from mirrormaker.lineage import text_of
from mirrormaker.link import PartitionLink
from mirrormaker.link_state import LogEnds
from mirrormaker.offset_pairs import OffsetPair, Translate, Translated
from mirrormaker.position import Position
from mirrormaker.renumber_flow import RenumberFlow
from mirrormaker.settings import LinkSettings
from mirrormaker.target_offsets import RenumberedOffsets
from mirrormaker.transaction import State

TP = TopicPartition("t", 0)
COPY = TopicPartition("east.t", 0)


def idle_flow(clock: Clock) -> RenumberFlow:
    """A flow with one link, its positions read, and clusters that never answer."""

    def never(*_: Any, **__: Any) -> Deferred[Any]:
        return Deferred()

    config = CommonConfig.load({"bootstrap.servers": "127.0.0.1:1"})
    flow = RenumberFlow(
        Cluster(clock, config, dial=never),
        Cluster(clock, config, dial=never),
        LinkSettings(target_offsets="renumber"),
        source_id=lambda: "east-id",
        report=lambda _about, _what: None,
        done=lambda: None,
        defect=lambda failure: failure.raiseException(),
        mark=None,
        too_large=None,
        record=None,
        rejected=None,
    )
    flow.add(PartitionLink(TP), COPY)
    flow.send_requests()
    flow.machine.initialized(flow.machine.generation, (7, 0))
    flow.machine.positions_read(flow.machine.generation, {})
    assert flow.machine.state is State.IDLE
    return flow


def test_a_partition_without_a_position_gets_one_before_its_first_record() -> None:
    flow = idle_flow(Clock())
    flow._take_ends(TP, COPY, 0, LogEnds(0, 9, 0, 0), {})
    flow.send_requests()
    assert flow.machine.state is State.ADDING
    assert not flow.links[TP].wants_fetch


def test_a_position_that_was_stored_meanwhile_is_not_set_back() -> None:
    flow = idle_flow(Clock())
    flow._take_ends(TP, COPY, 0, LogEnds(0, 9, 0, 0), {})
    flow.machine.positions[COPY] = Position(5)
    flow.send_requests()
    assert [part.position for part in flow.machine._parts] == [Position(5)], "only its refresh"


def test_a_new_link_is_located_although_the_first_position_was_for_its_predecessor() -> None:
    clock = Clock()
    flow = idle_flow(clock)
    flow._take_ends(TP, COPY, 0, LogEnds(0, 9, 0, 0), {})
    flow.send_requests()
    flow.remove(TP)
    flow.add(PartitionLink(TP), COPY)
    clock.advance(0)
    flow._committed(flow.machine._parts)
    assert flow._positions_wanted.due == {TP: flow.links[TP].generation}


def test_a_first_position_that_waits_is_not_stored_for_a_later_topic_of_the_name() -> None:
    """Its topic id would be that of the earlier topic, and the new link would stop as RECREATED."""
    flow = idle_flow(Clock())
    flow.remove(TP)
    flow.add(PartitionLink(TP, topic_id=UUID(int=1)), COPY)
    generation = flow.links[TP].generation
    flow._take_ends(
        TP, COPY, generation, LogEnds(0, 9, 0, 0), {}
    )  # a transaction is open meanwhile
    flow.remove(TP)
    flow.add(PartitionLink(TP, topic_id=UUID(int=2)), COPY)
    flow.send_requests()
    assert flow.machine.state is State.IDLE, "nothing is stored for the removed link"
    flow._take_ends(TP, COPY, generation + 1, LogEnds(0, 9, 0, 0), {})
    flow.send_requests()
    assert [part.position.topic_id for part in flow.machine._parts] == [text_of(UUID(int=2))]


def test_offsets_are_translated_with_the_positions_of_the_flow_that_copies() -> None:
    """A coordinator may still return those before the last transaction."""
    config = CommonConfig.load({"bootstrap.servers": "127.0.0.1:1"})
    clusters = [Cluster(Clock(), config, dial=lambda *_, **__: Deferred()) for _ in range(2)]
    offsets = RenumberedOffsets(
        *clusters, is_transactional=True, source_id=lambda: "east-id", target_id=lambda: "west-id"
    )
    flow = offsets.flow(
        *clusters,
        LinkSettings(target_offsets="renumber"),
        report=lambda _about, _what: None,
        done=lambda: None,
        defect=lambda failure: failure.raiseException(),
        mark=None,
        too_large=None,
        record=None,
        rejected=None,
    )
    flow.machine.positions[COPY] = Position(
        10, target_topic_id="id", target_end=30, pairs=(OffsetPair(4, 20),)
    )
    found: list[Translate] = []
    Deferred.fromCoroutine(offsets.translator({TP: COPY})).addCallback(found.append)
    (translate,) = found
    assert translate(COPY, 10) == Translated(30)
    assert translate(COPY, 6) == Translated(20, again=2)
    assert translate(TopicPartition("east.t", 1), 6) is None
