"""Promotions, --abort and --source-lost that run beside each other: no topic gets producers at both clusters."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.errors import KafkaTimeoutError
from kclient.types import TopicPartition
from kclient.wire.versions import ApiKey
from mirrormaker.command_exit import Refused
from mirrormaker.config import FlowConfig
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.promote import Options, Promotion
from mirrormaker.promotion import stage_of, without_source
from mirrormaker.promotion_fence import FenceState, Marked, fence_state, marked_as
from mirrormaker.removable_fences import fenced, marked_by
from mirrormaker.settings import LinkSettings
from mirrormaker.topics import MARK, PROMOTION, Topic
from tests.kit.scripted_cluster import HELD, PendingRequest, ScriptedCluster
from tests.unit.mirror.test_promotion_marks import (
    EAST,
    WEST,
    Clusters,
    Fencing,
    clusters,
    failing_audit,
    fence_with_cuts,
    fenced_by,
    refuse_mirrors,
)
from tests.unit.mirror.test_promotion_states import (
    BACK,
    WEST_ID,
    aborting,
    another_process,
    east_topic,
    opening,
    pair,
)
from tests.unit.mirror.test_promotion_states import WEST as WEST_STATES

__all__ = ["clusters"]

ALTER = ApiKey.INCREMENTAL_ALTER_CONFIGS


def began(coroutine: Any) -> list[Any]:
    """Begin *coroutine*; return a list that gets its result."""
    results: list[Any] = []
    Deferred.fromCoroutine(coroutine).addBoth(results.append)
    return results


def of_the_other_direction(clusters: Clusters) -> Promotion:
    """Return ``promote --source-lost`` of west->east: east's topics accept producers."""
    config = FlowConfig("west", "east", WEST, EAST, LinkSettings(enabled=True))
    return Promotion(
        clusters.east.clock,
        config,
        Options(source_lost=True),
        clusters.printed.append,
        cluster=clusters.cluster,
    )


def state(clusters: Clusters, name: str = "t") -> FenceState | None:
    return fence_state(clusters.configs["east"][name])


def stating(what: str) -> dict[str, str]:
    """Return the settings of a topic with a fence that states *what*."""
    settings = fenced_by({})
    return settings | {PROMOTION: settings[PROMOTION].replace('"set"', f'"{what}"')}


@pytest.mark.parametrize("is_opened", [False, True])
def test_an_abort_that_waits_for_a_silent_target_judges_the_fences_as_of_after_that(
    clusters: Clusters, is_opened: bool
) -> None:
    """It judged them by what it had read before. The other promotion reached west, and both clusters had producers."""
    clusters.configs["east"]["t"] = fenced_by({})
    other = another_process(clusters)
    other.west.answers = dict(clusters.west.answers)
    clusters.west.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: KafkaTimeoutError("silent")
    code = began(clusters.aborting(target_id="W"))
    clusters.east.pass_time(5.0)
    assert not code
    clusters.configs["east"]["t"] = opening(clusters.configs["east"]["t"])
    if is_opened:
        clusters.configs["west"]["t"][MARK] = ""
    clusters.east.pass_time(300.0, 0.5)
    assert code == [5], clusters.printed
    assert clusters.configs["east"]["t"][MARK] == "W"
    assert marked_as(east_topic(clusters.configs["east"]["t"])) is Marked.OPENING


def test_an_undo_leaves_the_fence_that_another_command_has_begun_to_remove(
    clusters: Clusters,
) -> None:
    """It removed it without the wait of that command: a promotion that looked before may open west within it."""

    def abort_t() -> None:
        settings = clusters.configs["east"]["t"]
        clusters.configs["east"]["t"] = aborting(opening(settings))

    printed = failing_audit(clusters, abort_t)
    assert state(clusters) is FenceState.ABORTING
    assert not clusters.configs["east"]["u"].get(MARK)
    line = "  t: east is still read-only: another command has begun to remove its fence"
    assert [each for each in printed if each.startswith(line)]


def test_a_promotion_looks_at_each_fence_directly_before_it_states_the_opening(
    clusters: Clusters,
) -> None:
    """It looked at all before the first. It replaced the statement of an --abort, and did not wait for its removal."""
    fence_with_cuts(clusters)
    names = ("t", "u")
    clusters.east.topics["u"] = clusters.west.topics["u"] = 2
    offsets = {TopicPartition(name, n): (0, 5) for name in names for n in (0, 1)}
    for scripted in (clusters.east, clusters.west):
        scripted.serve_offsets(offsets)
    for name in names:
        copied = text_of(clusters.east.topic_id(name))
        clusters.configs["east"][name] = fenced_by({})
        clusters.configs["west"][name] = {MARK: "E", SOURCE_TOPIC_ID: copied}
    served = clusters.east.answers[ALTER]

    def altered(request: Any) -> Any:
        clusters.east.answers[ALTER] = served
        clusters.configs["east"]["u"] = aborting(opening(clusters.configs["east"]["u"]))
        return served(request)

    clusters.east.answers[ALTER] = altered
    code = began(clusters.promotion(Fencing).run())
    clusters.east.pass_time(30.0, 0.5)
    assert [clusters.configs["west"][name][MARK] for name in names] == ["E", "E"]
    assert [each for each in clusters.printed if each.startswith("an --abort, or an undo, has")]
    clusters.east.pass_time(60.0, 0.5)
    assert code == [0], clusters.printed


def test_a_source_that_is_lost_takes_the_opening_back_before_its_mirror_is_opened(
    clusters: Clusters,
) -> None:
    """It opened east at once. A promotion that had looked at the fence opened west after that."""
    fence_with_cuts(clusters)
    refuse_mirrors(clusters, "east")
    held: list[Any] = []
    served = clusters.west.answers[ALTER]

    def altered(request: Any) -> Any:
        (asked,) = clusters.west.waiting(ALTER)
        held.append(asked)
        clusters.east.clock.callLater(14.0, lambda: asked.answer(served(request)))
        return HELD

    clusters.west.answers[ALTER] = altered
    promoted = began(clusters.promotion(Fencing).run())
    clusters.east.pass_time(1.0)
    assert held
    lost = began(of_the_other_direction(another_process(clusters)).run())
    clusters.east.pass_time(10.0, 0.5)
    assert state(clusters) is FenceState.ABORTING
    assert clusters.configs["east"]["t"][MARK] == "W"
    clusters.east.pass_time(120.0, 0.5)
    assert promoted == [0], "west was asked to open the topic before"
    # The operator states that west is lost. So the topic is opened at east, if no promotion states the opening since.
    assert lost == [5], clusters.printed
    assert clusters.configs["east"]["t"][MARK] == "W"


def test_a_source_that_is_lost_opens_a_fence_that_stays_as_it_is(clusters: Clusters) -> None:
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = opening(fenced_by({}))
    refuse_mirrors(clusters, "east")
    lost = began(of_the_other_direction(clusters).run())
    clusters.east.pass_time(44.0, 0.5)
    assert not lost
    clusters.east.pass_time(5.0, 0.5)
    assert lost == [0], clusters.printed
    assert clusters.configs["east"]["t"][MARK] == ""


@pytest.mark.parametrize("command", ["abort", "abort without west", "promote", "undo"])
def test_a_statement_of_a_later_release_keeps_its_fence(clusters: Clusters, command: str) -> None:
    """It was taken for a fence that states nothing: --abort opened east, and promote replaced the statement."""
    if command == "undo":

        def restate() -> None:
            clusters.configs["east"]["t"] = stating("resting")

        failing_audit(clusters, restate)
    else:
        fence_with_cuts(clusters)
        clusters.configs["east"]["t"] = stating("resting")
        if command == "promote":
            assert clusters.result(clusters.promotion(Fencing).run()) == 5
            assert clusters.configs["west"]["t"][MARK] == "E"
        else:
            if command == "abort without west":
                clusters.west.down = {1}
            assert clusters.abort(target_id="W") == 5
    assert '"resting"' in clusters.configs["east"]["t"][PROMOTION]
    assert clusters.configs["east"]["t"][MARK] == "W"
    assert [each for each in clusters.printed if "later release" in each], clusters.printed


def does_not_know(scripted: ScriptedCluster, seconds: float) -> None:
    """Let the broker that is asked for metadata know no topic for *seconds*. Another one is the controller."""
    scripted.brokers.append(2)
    answer = scripted.answer

    def answered(asked: PendingRequest) -> None:
        if asked.api is ApiKey.METADATA and asked.waits:
            response = scripted.answers[ApiKey.METADATA](asked.message)
            response.controller_id = 2
            if asked.node == 1 and scripted.clock.seconds() < seconds:
                response.topics = []
            asked.answer(response)
        answer(asked)

    scripted.answer = answered  # type: ignore[method-assign]


@pytest.mark.parametrize("seconds", [20, 300])
@pytest.mark.parametrize("command", ["abort", "promote", "source lost"])
def test_the_topics_of_a_broker_that_has_just_started_are_waited_for(
    clusters: Clusters, command: str, seconds: float
) -> None:
    """It had no topic: "no topic is selected". With some of its topics the others stayed as they were, exit code 0."""
    fence_with_cuts(clusters)
    source = clusters.west if command == "source lost" else clusters.east
    does_not_know(source, seconds)
    if command == "abort":
        clusters.configs["east"]["t"] = fenced_by({})
        code = clusters.abort()
    else:
        promoting = clusters.promotion(Fencing, source_lost=command == "source lost")
        code = clusters.result(promoting.run())
    assert code == (5 if seconds == 300 else 0), clusters.printed
    if seconds == 300:
        assert [each for each in clusters.printed if "does not know" in each], clusters.printed


@pytest.mark.parametrize("west", WEST_STATES)
def test_a_fence_of_a_later_release_is_refused_in_each_state_of_the_target(west: str) -> None:
    with pytest.raises(Refused, match="later release"):
        stage_of(pair(stating("resting"), WEST_STATES[west]))
    source, target = east_topic(stating("resting")), WEST_STATES[west]
    there = {} if target is None else {"t": Topic(2, WEST_ID, target)}
    found, unknown = fenced({"t": source}, there, {}, source_id="E", target_id="W", back=BACK)
    assert (found, [*unknown]) == ([], ["t"] if west in ("mirror", "no topic") else [])
    assert not marked_by({"t": source}, "W", BACK)[0]
    with pytest.raises(Refused, match="later release"):
        without_source({"t": source}, ["t"], None)


@pytest.mark.parametrize("command", ["abort", "undo"])
def test_the_removal_of_many_fences_at_a_silent_source_ends(
    clusters: Clusters, command: str
) -> None:
    """Each of them was asked for 15 s, one after the other: 40 topics took ten minutes, and Ctrl-C did not end it."""
    names = [f"t{n}" for n in range(40)]
    clusters.east.topics = dict.fromkeys(names, 1)
    clusters.west.topics = dict.fromkeys(names, 1)
    for name in names:
        clusters.configs["east"][name] = fenced_by({}) if command == "abort" else {}
        copied = text_of(clusters.east.topic_id(name))
        clusters.configs["west"][name] = {MARK: "E", SOURCE_TOPIC_ID: copied}
    for scripted in (clusters.east, clusters.west):
        scripted.serve_log_ends(5)

    class Losing(Fencing):
        async def _drain(self, *_: object) -> None:
            clusters.east.answers[ALTER] = lambda _: KafkaTimeoutError("silent")
            raise KafkaTimeoutError("silent")

    if command == "abort":
        clusters.east.answers[ALTER] = lambda _: KafkaTimeoutError("silent")
        code = began(clusters.aborting())
    else:
        code = began(clusters.promotion(Losing).run())
    clusters.east.pass_time(140.0, 0.5)
    assert code == [5], clusters.printed
    assert [each for each in clusters.printed if each.startswith("  t39: its mark ")]


def test_a_broker_that_refuses_to_take_the_opening_back_is_named(clusters: Clusters) -> None:
    """The line was that another command had begun to open the target."""
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = opening(fenced_by({}))
    clusters.east.serve_configs(clusters.configs["east"], refused=(PROMOTION,))
    assert clusters.abort() == 5
    assert clusters.configs["east"]["t"][MARK] == "W"
    line = "  t: east does not take back that west may be open: "
    assert [each for each in clusters.printed if each.startswith(line)], clusters.printed


def test_the_command_that_opens_the_source_without_the_target_is_printed_whole(
    clusters: Clusters,
) -> None:
    """FILE, the flow and the topics were missing: with another flow, or all topics, it opened others."""

    def lose_west() -> None:
        clusters.west.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: KafkaTimeoutError("silent")

    printed = failing_audit(clusters, lose_west)
    command = "kmirror promote FILE --flow 'east->west' --abort --target-id W --topics 't|u'"
    assert printed[-2].endswith(f"if no producer wrote there, {command} opens t, u")
