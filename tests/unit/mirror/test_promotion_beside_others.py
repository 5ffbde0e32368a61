"""Promotions, --abort and --source-lost that run beside each other: no topic gets producers at both clusters."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.errors import KafkaTimeoutError
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.versions import ApiKey
from mirrormaker.catalog import Catalog
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
    Proving,
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


def does_not_know(scripted: ScriptedCluster, seconds: float, *names: str) -> None:
    """Let the broker that is asked for metadata not know *names*, or any topic, for *seconds*.

    Another one is the controller.
    """
    scripted.brokers.append(2)
    answer = scripted.answer

    def answered(asked: PendingRequest) -> None:
        if asked.api is ApiKey.METADATA and asked.waits:
            response = scripted.answers[ApiKey.METADATA](asked.message)
            response.controller_id = 2
            if asked.node == 1 and scripted.clock.seconds() < seconds:
                response.topics = [
                    each for each in response.topics if names and each.name not in names
                ]
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


@pytest.mark.parametrize("command", ["abort", "source lost"])
def test_a_controller_that_has_just_started_is_asked_again(
    clusters: Clusters, command: str
) -> None:
    """It knew no topic, as the broker: "no topic is selected", or "no mirror topics"."""
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = fenced_by({})
    scripted = clusters.west if command == "source lost" else clusters.east
    knows = scripted.answers[ApiKey.METADATA]

    def answer(request: Any) -> Any:
        answered = knows(request)
        if request.topics is None:
            answered.topics = []
        for each in answered.topics:
            each.error_code, each.partitions = ErrorCode.LEADER_NOT_AVAILABLE, []
        return answered

    scripted.answers[ApiKey.METADATA] = answer
    scripted.clock.callLater(20, scripted.answers.__setitem__, ApiKey.METADATA, knows)
    if command == "abort":
        assert clusters.abort() == 0, clusters.printed
        assert not clusters.configs["east"]["t"].get(MARK)
    else:
        promoting = clusters.promotion(Fencing, source_lost=True)
        assert clusters.result(promoting.run()) == 0, clusters.printed


@pytest.mark.parametrize("seconds", [20, 300])
def test_a_failback_waits_for_topics_that_only_the_controller_knows(
    clusters: Clusters, seconds: float
) -> None:
    """A topic of the target that the broker did not know yet took no part, and its source was not a mirror's."""
    cluster = clusters.west.cluster(WEST)
    does_not_know(clusters.west, seconds)
    reading = Proving(clusters, 0)._read_catalog("west", cluster, Catalog(cluster), "t".__eq__)
    found = clusters.result(reading)
    if seconds == 300:
        assert isinstance(found, Refused)
        assert "west does not know t" in str(found)
    else:
        assert [*found] == ["t"]


def two_topics(clusters: Clusters, *, t: dict[str, str], u: dict[str, str]) -> None:
    """Have the topics t and u at both clusters, with these settings at east, as mirrors at west."""
    fence_with_cuts(clusters)
    refuse_mirrors(clusters, "east")
    clusters.east.topics["u"] = clusters.west.topics["u"] = 2
    offsets = {TopicPartition(name, n): (0, 5) for name in "tu" for n in (0, 1)}
    for scripted in (clusters.east, clusters.west):
        scripted.serve_offsets(offsets)
    for name, settings in {"t": t, "u": u}.items():
        copied = text_of(clusters.east.topic_id(name))
        clusters.configs["east"][name] = dict(settings)
        clusters.configs["west"][name] = {MARK: "E", SOURCE_TOPIC_ID: copied}


@pytest.mark.parametrize("what", ["opened", "opening", "resting", "of another cluster"])
def test_a_source_that_is_lost_opens_no_topic_that_another_command_has_changed_meanwhile(
    clusters: Clusters, what: str
) -> None:
    """Only topics that it had taken back were looked at: the promotion of another one had opened west by then."""
    two_topics(clusters, t=opening(fenced_by({})), u=fenced_by({}))
    lost = began(of_the_other_direction(clusters).run())
    clusters.east.pass_time(20.0, 0.5)
    assert not lost
    now = fenced_by({}, "N") if what == "of another cluster" else stating(what)
    clusters.configs["east"]["u"] = dict(now)
    clusters.east.pass_time(60.0, 0.5)
    assert lost == [5], clusters.printed
    assert clusters.configs["east"]["u"] == now
    assert [each for each in clusters.printed if each.startswith("refused: u is not opened: ")]


def test_a_source_that_is_lost_opens_a_topic_of_which_a_broker_refuses_the_statement(
    clusters: Clusters,
) -> None:
    """Each repetition was refused, although no promotion went on."""
    fence_with_cuts(clusters)
    refuse_mirrors(clusters, "east")
    clusters.configs["east"]["t"] = opening(fenced_by({}))
    clusters.east.serve_configs(clusters.configs["east"], refused=(PROMOTION,))
    assert clusters.result(of_the_other_direction(clusters).run()) == 0, clusters.printed
    assert clusters.configs["east"]["t"][MARK] == ""


def test_the_log_ends_of_a_lost_source_are_read_after_the_wait(clusters: Clusters) -> None:
    """A mirror that still copied had more by then: the record had too low an end."""
    fence_with_cuts(clusters)
    refuse_mirrors(clusters, "east")
    clusters.configs["east"]["t"] = opening(fenced_by({}))
    promoting = of_the_other_direction(clusters)
    lost = began(promoting.run())
    clusters.east.pass_time(20.0, 0.5)
    clusters.east.serve_log_ends(9)
    refuse_mirrors(clusters, "east")
    clusters.east.pass_time(60.0, 0.5)
    assert lost == [0], clusters.printed
    assert promoting.record is not None
    assert [each["end"] for each in promoting.record["partitions"]] == [9, 9]


def test_an_abort_that_can_no_longer_read_the_source_names_what_it_has_taken_back(
    clusters: Clusters,
) -> None:
    """The only line was about describing configs: exit code 3, and no topic was named that stays read-only."""
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = opening(fenced_by({}))
    code = began(clusters.aborting())
    clusters.east.pass_time(20.0, 0.5)
    clusters.east.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: KafkaTimeoutError("silent")
    clusters.east.pass_time(200.0, 0.5)
    (problem,) = code
    assert isinstance(problem.value, KafkaTimeoutError)
    assert clusters.printed[-1].startswith("east: topics may still be read-only: t. Repeat")


def test_a_topic_that_is_gone_does_not_end_the_removal_of_the_other_fences(
    clusters: Clusters,
) -> None:
    """After a minute of successes its error was the reason for all others, and they stayed read-only."""
    names = [f"t{n}" for n in range(10)]
    clusters.east.topics = dict.fromkeys(names, 1)
    clusters.west.topics = dict.fromkeys(names, 1)
    for name in names:
        clusters.configs["east"][name] = fenced_by({})
        copied = text_of(clusters.east.topic_id(name))
        clusters.configs["west"][name] = {MARK: "E", SOURCE_TOPIC_ID: copied}
    served = clusters.east.answers[ALTER]

    def slowly(request: Any) -> Any:
        (asked,) = clusters.east.waiting(ALTER)
        answer = served(request)
        if request.resources[0].resource_name == "t8":
            answer.responses[0].error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        clusters.east.clock.callLater(10.0, asked.answer, answer)
        return HELD

    clusters.east.answers[ALTER] = slowly
    code = began(clusters.aborting())
    clusters.east.pass_time(300.0, 0.5)
    assert code == [5], clusters.printed
    assert not clusters.configs["east"]["t9"].get(MARK)


def test_a_promotion_of_many_topics_waits_for_each_of_them(clusters: Clusters) -> None:
    """All had one minute: after that a single answer of a broker that restarts undid the promotion."""
    names = "tabcde"
    fence_with_cuts(clusters)
    clusters.east.topics = dict.fromkeys(names, 1)
    clusters.west.topics = dict.fromkeys(names, 1)
    for scripted in (clusters.east, clusters.west):
        scripted.serve_offsets({TopicPartition(name, 0): (0, 5) for name in names})
    for name in names:
        copied = text_of(clusters.east.topic_id(name))
        clusters.configs["east"][name] = {}
        clusters.configs["west"][name] = {MARK: "E", SOURCE_TOPIC_ID: copied}
    served = clusters.east.answers[ALTER]
    changes: list[int] = []
    restarts_until: list[float] = []

    def slowly(request: Any) -> Any:
        changes.append(1)
        if len(changes) <= len(names):  # the fences
            return served(request)
        now = clusters.east.clock.seconds()
        if len(changes) >= 2 * len(names):
            restarts_until.append(now + 20)
            if now < restarts_until[0]:
                return KafkaTimeoutError("restarts")
        (asked,) = clusters.east.waiting(ALTER)
        clusters.east.clock.callLater(14.0, lambda: asked.answer(served(request)))
        return HELD

    clusters.east.answers[ALTER] = slowly
    code = clusters.result(clusters.promotion(Fencing).run())
    assert code == 0, clusters.printed


def test_a_topic_that_is_not_selected_is_not_waited_for(clusters: Clusters) -> None:
    """Each command waited a minute for a topic that had just been created, or asked for each topic of the cluster."""
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = fenced_by({})
    others = [f"u{n}" for n in range(50)]
    clusters.east.topics |= dict.fromkeys(others, 1)
    does_not_know(clusters.east, 10**9, *others)
    assert clusters.abort(topics="t") == 0, clusters.printed
    assert clusters.east.clock.seconds() < 10
    assert clusters.east.count(ApiKey.METADATA) < 20


def test_an_undo_names_no_command_for_the_fence_of_a_later_release_that_is_then_refused(
    clusters: Clusters,
) -> None:
    def lose_west() -> None:
        clusters.configs["east"]["t"] = stating("resting")
        clusters.west.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: KafkaTimeoutError("silent")

    printed = failing_audit(clusters, lose_west)
    assert [each for each in printed if each.startswith("  t: ") and "later release" in each]
    assert not [each for each in printed if "--source-lost" in each]
