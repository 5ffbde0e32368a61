"""Each state of a topic at both clusters, and what promote and --abort conclude from it.

The rows are those of the tables in docs/design/mirror-promotion.md.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import CancelledError, Deferred

from kclient.errors import KafkaTimeoutError
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import UnknownTopicOrPartition
from kclient.wire.versions import ApiKey
from mirrormaker.command_exit import Refused
from mirrormaker.config import FlowConfig
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.promote import Options, Promotion
from mirrormaker.promotion import LostSource, Stage, stage_of
from mirrormaker.promotion_fence import (
    Marked,
    fence_is_aborting,
    fence_is_opening,
    fence_is_over,
    fence_of,
    marked_as,
    marks_before_the_fence,
    without_fence_after_failback,
)
from mirrormaker.promotion_record import EXCHANGED, PRODUCERS_STOPPED, Opened, mode_of
from mirrormaker.removable_fences import fenced, marked_by, of_other_clusters
from mirrormaker.settings import LinkSettings
from mirrormaker.topics import (
    CREATE_TIME,
    MARK,
    PATH,
    PROMOTION,
    SOURCE_LOST,
    Topic,
    TopicPair,
    compared_with,
)
from tests.kit.scripted_cluster import HELD, ScriptedCluster
from tests.unit.mirror.test_promotion_marks import (
    EAST as EAST_CONFIG,
)
from tests.unit.mirror.test_promotion_marks import (
    WEST as WEST_CONFIG,
)
from tests.unit.mirror.test_promotion_marks import (
    Clusters,
    Fencing,
    clusters,
    failing_audit,
    fence_with_cuts,
    fenced_by,
    refuse_mirrors,
)

__all__ = ["clusters"]

Settings = dict[str, str]
EAST_ID, WEST_ID = UUID(int=1), UUID(int=2)
FOUND = Opened("E", EXCHANGED, 100, (5, 7), (90, None))
BACK = "west->east"


def lost_west(topics: str) -> str:
    """Return the command that opens *topics* of east without west."""
    return (
        f"kmirror promote FILE --flow 'west->east' --source-lost --topics '{topics}' --source-id W (west->east has to "
        "be enabled in FILE)"
    )


def changed(settings: Settings, change: Mapping[str, str | None]) -> Settings:
    """Return *settings* after a change of configs (None: to reset)."""
    return {name: text for name, text in (settings | dict(change)).items() if text is not None}


def east_topic(settings: Settings) -> Topic:
    return Topic(2, EAST_ID, settings)


def opening(settings: Settings) -> Settings:
    return changed(settings, fence_is_opening(east_topic(settings)))


def aborting(settings: Settings) -> Settings:
    return changed(settings, fence_is_aborting(east_topic(settings)))


def over(settings: Settings) -> Settings:
    return changed(settings, fence_is_over(east_topic(settings)))


OF_WEST = {MARK: "W", SOURCE_TOPIC_ID: text_of(WEST_ID)}
BEFORE_ONLY = {PROMOTION: '{"before":{}}'}
"""As releases before this one stored a fence."""

EAST: dict[str, tuple[Settings, Marked]] = {
    "set": (fenced_by({}), Marked.FENCE),
    "set, CreateTime before": (fenced_by(dict(CREATE_TIME)), Marked.FENCE),
    "set, CreateTime since": (fenced_by({}) | CREATE_TIME, Marked.MIRROR),
    "opening": (opening(fenced_by({})), Marked.OPENING),
    "opening, CreateTime before": (opening(fenced_by(dict(CREATE_TIME))), Marked.OPENING),
    "opening, CreateTime since": (opening(fenced_by({})) | CREATE_TIME, Marked.MIRROR),
    "opening, aborted": (aborting(opening(fenced_by({}))), Marked.OPENING),
    "opening, aborted, CreateTime before": (
        aborting(opening(fenced_by(dict(CREATE_TIME)))),
        Marked.OPENING,
    ),
    "opening, aborted, CreateTime since": (
        aborting(opening(fenced_by({}))) | CREATE_TIME,
        Marked.MIRROR,
    ),
    "opened": (over(opening(fenced_by({}))), Marked.MIRROR),
    "opened, CreateTime before": (over(opening(fenced_by(dict(CREATE_TIME)))), Marked.MIRROR),
    "earlier release": (OF_WEST | BEFORE_ONLY, Marked.FENCE),
    "earlier release, CreateTime": (OF_WEST | BEFORE_ONLY | CREATE_TIME, Marked.MIRROR),
    "no statement": (OF_WEST, Marked.FENCE),
    "ordinary mirror": (OF_WEST | CREATE_TIME, Marked.MIRROR),
    "failback": ({MARK: "W"}, Marked.FAILBACK),
    "failback over a fence": (
        {name: text for name, text in fenced_by({}).items() if name != SOURCE_TOPIC_ID},
        Marked.FAILBACK,
    ),
}
WEST: dict[str, Settings | None] = {
    "no topic": None,
    "no settings": {},
    "mirror": {MARK: "E", SOURCE_TOPIC_ID: text_of(EAST_ID), **CREATE_TIME},
    "promoted": {MARK: "", SOURCE_TOPIC_ID: text_of(EAST_ID), PROMOTION: FOUND.text()},
    "topic id": {SOURCE_TOPIC_ID: text_of(EAST_ID)},
    "promoted, mark removed": {SOURCE_TOPIC_ID: text_of(EAST_ID), PROMOTION: FOUND.text()},
}
STATED = ("set, CreateTime since", *(name for name in EAST if name.startswith("open")))
"""East states by itself that west was opened, or about to be with all records."""


def expected_stage(east: str, west: str) -> Stage | str:
    """Return the stage, or a part of the refusal."""
    kind = EAST[east][1]
    if west == "mirror":
        return Stage.FENCED
    if west == "promoted":
        return Stage.PROMOTED
    if west == "no topic":
        if kind is Marked.MIRROR:
            return Stage.OTHER_DIRECTION
        return "does not exist at the target, and the source may have a fence"
    if west == "no settings":
        is_west_open = kind is Marked.MIRROR or east in STATED
        return Stage.OTHER_DIRECTION if is_west_open else "to the empty string"
    if east not in STATED:
        return "to the empty string"
    return Stage.OTHER_DIRECTION if west == "topic id" else Stage.PROMOTED


def pair(source: Settings, target: Settings | None, *, partitions: int = 2) -> TopicPair:
    return TopicPair(
        name="t",
        source=east_topic(source),
        target=None if target is None else Topic(partitions, WEST_ID, target),
        copy="t",
        source_id="E",
        target_id="W",
    )


@pytest.mark.parametrize("east", EAST)
def test_the_settings_of_a_marked_topic_show_what_its_mark_is(east: str) -> None:
    settings, kind = EAST[east]
    assert marked_as(east_topic(settings)) is kind


@pytest.mark.parametrize("west", WEST)
@pytest.mark.parametrize("east", EAST)
def test_each_state_of_a_marked_source_has_a_stage_or_a_refusal(east: str, west: str) -> None:
    found = pair(EAST[east][0], WEST[west])
    expected = expected_stage(east, west)
    if isinstance(expected, Stage):
        assert stage_of(found) is expected
    else:
        with pytest.raises(Refused, match=expected):
            stage_of(found)


@pytest.mark.parametrize("east", EAST)
def test_no_refusal_names_only_the_way_to_close_a_topic_that_may_be_live(east: str) -> None:
    for target in WEST.values():
        try:
            stage_of(pair(EAST[east][0], target))
        except Refused as refusal:
            text = str(refusal)
            assert ("set it to E" in text) is ("to the empty string" in text)


@pytest.mark.parametrize("west", ["no settings", "promoted"])
def test_partitions_that_were_added_at_an_open_target_are_no_refusal(west: str) -> None:
    """The promotion of all other topics was refused, until kmirror run had added the partition at east."""
    assert stage_of(pair(EAST["opened"][0], WEST[west], partitions=3)) in (
        Stage.OTHER_DIRECTION,
        Stage.PROMOTED,
    )


@pytest.mark.parametrize("east", EAST)
def test_an_abort_without_the_target_opens_only_a_fence(east: str) -> None:
    """Each topic that was ever promoted counted as one: live mirrors accepted producers."""
    settings, kind = EAST[east]
    found, stay = marked_by({"t": east_topic(settings)}, "W", BACK)
    assert (found, [*stay]) == ((["t"], []) if kind is Marked.FENCE else ([], ["t"]))


@pytest.mark.parametrize("west", WEST)
@pytest.mark.parametrize("east", EAST)
def test_an_abort_decides_by_the_marks_of_a_target_that_answers(east: str, west: str) -> None:
    settings, kind = EAST[east]
    target = WEST[west]
    there = {} if target is None else {"t": Topic(2, WEST_ID, target)}
    topics = {"t": east_topic(settings)}
    found, unknown = fenced(topics, there, {}, source_id="E", target_id="W", back=BACK)
    assert found == (["t"] if west == "mirror" else [])
    is_lost = kind is Marked.FENCE and west not in ("mirror", "promoted")
    assert [*unknown] == (["t"] if west == "no topic" or is_lost else [])
    assert ("--target-id opens it" in "".join(unknown.values())) is (
        west == "no topic" and kind is Marked.FENCE
    )
    unreadable = {"t": UnknownTopicOrPartition("not yet")}
    found, unknown = fenced(topics, {}, unreadable, source_id="E", target_id="W", back=BACK)
    assert (found, [*unknown]) == ([], ["t"])
    assert f"at the target: {unreadable['t']}. Repeat the command" in unknown["t"]
    assert ("--target-id opens it" in unknown["t"]) is (kind is Marked.FENCE)


@pytest.mark.parametrize("east", EAST)
@pytest.mark.parametrize("state", ["set", "opening", "earlier release", "no statement"])
def test_an_abort_in_the_wrong_direction_does_not_open_the_mirror(east: str, state: str) -> None:
    """Both are marked, and the fence is at west: east lacks records that only west has."""
    fence = fence_of(Topic(2, WEST_ID), "E", text_of(EAST_ID))
    west = changed({}, fence)
    if state == "opening":
        west = changed(west, fence_is_opening(Topic(2, WEST_ID, west)))
    elif state != "set":
        west = {MARK: "E", SOURCE_TOPIC_ID: text_of(EAST_ID)}
        west |= BEFORE_ONLY if state == "earlier release" else {}
    found, unknown = fenced(
        {"t": east_topic(EAST[east][0])},
        {"t": Topic(2, WEST_ID, west)},
        {},
        source_id="E",
        target_id="W",
        back=BACK,
    )
    stated = ("set", "opening", "aborting")
    states_fence = any(f'"fence":"{each}"' in str(EAST[east][0]) for each in stated)
    is_of_west = EAST[east][1] is Marked.MIRROR or (
        state in ("set", "opening") and not states_fence
    )
    assert (found == ["t"]) is not is_of_west
    assert ("--abort of that direction" in "".join(unknown.values())) is is_of_west


@pytest.mark.parametrize("east", EAST)
@pytest.mark.parametrize("copied", ["not", "on", "by both", "unknown"])
def test_an_abort_proposes_a_statement_only_for_topics_that_it_then_opens(
    east: str, copied: str
) -> None:
    """It proposed --target-id for ordinary mirrors of a third cluster, which left them alone: exit code 5 for ever."""
    settings, kind = EAST[east]
    west = {"not": {}, "on": {MARK: "E", PATH: "W"}, "by both": {MARK: "W"}}
    there = {"t": Topic(2, None, west[copied])} if copied in west else {}
    topics = {"t": east_topic(settings)}
    found, ordinary, undecided = of_other_clusters(
        topics, there, topics.keys() - there.keys(), source_id="E", target_id="rebuilt"
    )
    assert len(found) + len(ordinary) + len(undecided) == 1
    assert bool(ordinary) is (kind is Marked.MIRROR)
    assert bool(found) is (kind is Marked.FENCE and copied == "not")
    if found:
        assert marked_by(topics, "W", BACK)[0] == ["t"]


@pytest.mark.parametrize("west", [{MARK: "N"}, {}, {SOURCE_TOPIC_ID: text_of(EAST_ID)}])
def test_an_abort_names_a_fence_that_it_leaves_because_the_target_is_no_mirror(
    clusters: Clusters, west: Settings
) -> None:
    """It ended with 0 and "no fence was removed": no line named the topic that stays read-only."""
    clusters.configs["east"]["t"] = fenced_by({})
    clusters.configs["west"]["t"] = dict(west)
    assert clusters.abort() == 5
    way = f"{lost_west('t')} opens it" if west.get(MARK) else "set it to E"
    assert clusters.printed[0].startswith("  t: its mark was not removed: ")
    assert clusters.printed[0].endswith(way)
    assert clusters.configs["east"]["t"][MARK] == "W"


@pytest.mark.parametrize("east", EAST)
def test_an_abort_names_every_topic_that_may_be_closed_at_both_clusters(
    clusters: Clusters, east: str
) -> None:
    """It ended with 0 and no line about those that are no plain fence, and no producer could write anywhere."""
    clusters.configs["east"]["t"] = dict(EAST[east][0])
    clusters.configs["west"]["t"] = {MARK: "N"}
    is_over = '"fence":"opened"' in str(EAST[east][0])
    assert clusters.abort() == (0 if is_over else 5)
    assert (f"{lost_west('t')} opens it" in clusters.printed[0]) is not is_over
    assert clusters.configs["east"]["t"][MARK] == "W"


def test_an_abort_leaves_the_mirror_of_a_mirror_alone(clusters: Clusters) -> None:
    clusters.configs["east"]["t"] = EAST["ordinary mirror"][0] | {PATH: "M,N"}
    clusters.configs["west"]["t"] = {MARK: "N", PATH: "M"}
    assert clusters.abort() == 0
    assert clusters.printed == ["east: no fence was removed"]


@pytest.mark.parametrize("seconds", [20, 300])
def test_an_abort_waits_for_a_broker_that_does_not_know_the_topics_yet(
    clusters: Clusters, seconds: float
) -> None:
    """It took the topic for absent, named --target-id, and left the fence: exit code 5."""
    does_not_know(clusters, seconds)
    code = clusters.abort()
    if seconds > 60:
        assert code == 5
        problem = UnknownTopicOrPartition("the broker does not know t yet")
        assert clusters.printed[0] == (
            f"  t: its mark was not removed: its configs cannot be read at the target: {problem}. Repeat the command. "
            "If no producer wrote there, --target-id opens it"
        )
        return
    assert (code, clusters.printed) == (0, ["east accepts producers again: t"])


def test_an_abort_does_not_wait_for_the_mirrors_of_other_clusters(clusters: Clusters) -> None:
    """It waited 60 s, and then proposed to open a topic that the broker at west had not shown yet."""
    clusters.configs["east"]["t"] = fenced_by({}, "N")
    does_not_know(clusters, 300)
    assert clusters.abort() == 5
    assert clusters.east.clock.seconds() < 10
    assert not [line for line in clusters.printed if "--target-id" in line]


def test_an_abort_with_the_cluster_id_waits_for_a_broker_that_does_not_know_a_promoted_topic_yet(
    clusters: Clusters,
) -> None:
    """West had opened it, and a broker there had just started: both clusters accepted producers, exit code 0."""
    does_not_know(clusters, 20)
    clusters.configs["west"]["t"] = {MARK: ""}
    assert clusters.abort(target_id="W") == 0
    assert clusters.printed == ["east: no fence was removed"]
    assert clusters.configs["east"]["t"][MARK] == "W"


def does_not_know(clusters: Clusters, seconds: float) -> None:
    """Let the broker at west not know `t` for *seconds*; its controller does."""
    knows, west = clusters.west.answers[ApiKey.METADATA], clusters.west

    def answer(request: Any) -> Any:
        answered = knows(request)
        if [each.name for each in request.topics or ()] != ["t"]:  # else it asks the controller
            answered.topics = []
        return answered

    west.answers[ApiKey.METADATA] = answer
    west.clock.callLater(seconds, west.answers.__setitem__, ApiKey.METADATA, knows)


def test_the_settings_of_a_fence_are_gone_with_it() -> None:
    for before in ({}, CREATE_TIME, {MARK: "", SOURCE_TOPIC_ID: "x", PROMOTION: FOUND.text()}):
        for after in (lambda each: each, opening, lambda each: aborting(opening(each))):
            settings = after(fenced_by(dict(before)))
            assert changed(settings, marks_before_the_fence(east_topic(settings))) == before


def test_the_end_of_a_fence_is_written_once() -> None:
    for name, (settings, kind) in EAST.items():
        written = fence_is_over(east_topic(settings))
        assert bool(written) is (kind is not Marked.MIRROR or '"before"' in str(settings)), name
        after = east_topic(changed(settings, written))
        assert marked_as(after) is Marked.MIRROR
        assert fence_is_over(after) == {}


@pytest.mark.parametrize("mode", [SOURCE_LOST, EXCHANGED])
def test_a_failback_leaves_no_fence(mode: str) -> None:
    """The promotion was killed behind its fence, and west was promoted without east: the fence stayed for ever."""
    lost = Topic(2, WEST_ID, {MARK: "", PROMOTION: Opened("E", mode, 7, (5, 7), (1, 1)).text()})
    compared = compared_with(lost, "E")
    east = fenced_by(dict(CREATE_TIME))
    after = changed(east, without_fence_after_failback(east_topic(east), compared))
    assert marked_as(east_topic(after)) is Marked.MIRROR
    assert ('"compared":7' in after[PROMOTION]) is (mode == SOURCE_LOST)


@pytest.mark.parametrize("had", [{}, CREATE_TIME], ids=["new", "went both ways"])
def test_a_promotion_that_is_killed_between_any_two_changes_is_continued_or_aborted(
    clusters: Clusters, had: Settings
) -> None:
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = dict(had)
    states: list[dict[str, dict[str, Settings]]] = [copy.deepcopy(clusters.configs)]
    for scripted in (clusters.east, clusters.west):
        served = scripted.answers[ApiKey.INCREMENTAL_ALTER_CONFIGS]

        def altered(request: Any, served: Any = served) -> Any:
            answer = served(request)
            states.append(copy.deepcopy(clusters.configs))
            return answer

        scripted.answers[ApiKey.INCREMENTAL_ALTER_CONFIGS] = altered
    assert clusters.result(clusters.promotion(Fencing).run()) == 0, clusters.printed
    kinds = [
        marked_as(east_topic(each["east"]["t"])) for each in states if each["east"]["t"].get(MARK)
    ]
    assert kinds == [Marked.FENCE, Marked.OPENING, Marked.OPENING, Marked.MIRROR]
    is_open = [each["west"]["t"][MARK] == "" for each in states]
    assert is_open == [False, False, False, True, True]

    def restore(state: dict[str, dict[str, Settings]]) -> None:
        for name, topics in copy.deepcopy(state).items():
            clusters.configs[name].clear()
            clusters.configs[name].update(topics)

    ended = states[-1]
    for state in states[:]:
        restore(state)
        assert clusters.result(clusters.promotion(Fencing).run()) == 0, clusters.printed
        assert clusters.configs["east"] == ended["east"]
        assert clusters.configs["west"]["t"][MARK] == ""
    for state, west_is_open in zip(states[: len(is_open)], is_open, strict=True):
        restore(state)
        code = clusters.abort()
        assert (clusters.configs["east"]["t"] == had) is not west_is_open
        assert code == 0
        restore(state)
        clusters.west.down = {1}
        clusters.abort(target_id="W")
        clusters.west.down = set()
        is_still_marked = bool(clusters.configs["east"]["t"].get(MARK))
        assert is_still_marked or not west_is_open


def test_a_broker_that_does_not_store_the_statements_is_promoted_to_the_end(
    clusters: Clusters,
) -> None:
    clusters.east.serve_configs(clusters.configs["east"], refused=[PROMOTION])
    fence_with_cuts(clusters)
    assert clusters.result(clusters.promotion(Fencing).run()) == 0, clusters.printed
    assert clusters.configs["east"]["t"].keys() == {MARK, SOURCE_TOPIC_ID}
    assert clusters.configs["west"]["t"][MARK] == ""
    assert not [line for line in clusters.printed if "does not state" in line]


@pytest.mark.parametrize("had", [{}, CREATE_TIME], ids=["new", "went both ways"])
@pytest.mark.parametrize("refused_from", ["opening", "opened"])
def test_a_target_is_not_opened_behind_a_fence_that_cannot_state_it(
    clusters: Clusters, refused_from: str, had: Settings
) -> None:
    """Brokers are upgraded one by one: the fence stated "set" and --abort --target-id opened a live mirror."""
    refused: list[str] = []
    clusters.east.serve_configs(clusters.configs["east"], refused=refused)
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = dict(had)

    class Rolling(Fencing):
        async def _copy_groups(self, _: object) -> None:
            if refused_from == "opening":
                refused.append(PROMOTION)

        async def _open(self, *given: Any) -> None:
            await super()._open(*given)
            refused.append(PROMOTION)

    code = clusters.result(clusters.promotion(Rolling).run())
    if refused_from == "opening":
        assert code == 5, clusters.printed
        refusal = "refused: east refuses to state how far the promotion is: t ("
        assert clusters.printed[-1].startswith(refusal)
        assert clusters.configs["west"]["t"][MARK] == "E"
        assert MARK not in clusters.configs["east"]["t"]
        return
    assert code == 0, clusters.printed
    assert [line for line in clusters.printed if "does not state" in line]
    assert clusters.configs["west"]["t"][MARK] == ""


@pytest.mark.parametrize(("seconds", "code"), [(20, 0), (100, 5), (300, 5)])
def test_a_source_that_restarts_before_the_opening_is_waited_for(
    clusters: Clusters, seconds: float, code: int
) -> None:
    fence_with_cuts(clusters)

    class Grouping(Fencing):
        async def _copy_groups(self, _: object) -> None:
            answers = clusters.east.answers
            served = answers[ApiKey.DESCRIBE_CONFIGS]
            answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: KafkaTimeoutError("silent")
            clusters.east.clock.callLater(
                seconds, answers.__setitem__, ApiKey.DESCRIBE_CONFIGS, served
            )

    assert clusters.result(clusters.promotion(Grouping).run()) == code, clusters.printed
    assert clusters.configs["west"]["t"][MARK] == ("" if code == 0 else "E")
    assert bool(clusters.configs["east"]["t"].get(MARK)) is (seconds != 100)
    is_named = bool([line for line in clusters.printed if "is still read-only: t. " in line])
    assert is_named is (seconds == 300), "its fence cannot be read"


def test_an_earlier_promotion_does_not_open_its_mirror_with_a_later_abort(
    clusters: Clusters,
) -> None:
    """West was unreachable, and --target-id W opened each topic that was ever promoted: both logs forked."""
    fence_with_cuts(clusters)
    assert clusters.result(clusters.promotion(Fencing).run()) == 0, clusters.printed
    mirror = clusters.configs["east"].pop("t") | CREATE_TIME
    for name in ("a", "b"):
        clusters.east.topics[name] = clusters.west.topics[name] = 1
    clusters.configs["east"] |= {
        "a": dict(mirror),
        "b": OF_WEST | BEFORE_ONLY | CREATE_TIME,
        "t": fenced_by({}),
    }
    clusters.west.down = {1}
    clusters.printed.clear()
    assert clusters.abort(target_id="W") == 5
    assert clusters.printed[-1] == "east accepts producers again: t"
    assert clusters.configs["east"]["a"] == mirror
    assert clusters.configs["east"]["b"][MARK] == "W"
    assert clusters.configs["east"]["t"] == {}


def test_mirrors_of_the_other_direction_are_not_called_promoted(clusters: Clusters) -> None:
    """With a wrong --flow the operator read "promoted", and a deleted topic at west kept others from being promoted."""
    fence_with_cuts(clusters)
    of_the_other, mirror = {"bills": 2, "gone": 1}, OF_WEST | CREATE_TIME
    clusters.east.topics |= of_the_other
    clusters.west.topics["bills"] = 3
    clusters.configs["east"] |= {name: dict(mirror) for name in of_the_other}
    promoting = clusters.promotion(Fencing)
    assert clusters.result(promoting.run()) == 0, clusters.printed
    lines = [f"  {name}: mirror of the other direction" for name in of_the_other]
    assert clusters.printed[:3] == ["  t: mirrored", *lines]
    assert promoting.record is not None
    assert {each["topic"] for each in promoting.record["partitions"]} == {"t"}
    clusters.printed.clear()
    promoting = clusters.promotion(Fencing, topics="bills,gone")
    assert clusters.result(promoting.run()) == 0
    assert clusters.printed == [
        *lines,
        "nothing to promote: every topic is a mirror of west already",
    ]
    assert promoting.record is None


@pytest.mark.parametrize("was_opening", [False, True], ids=["now", "an earlier command"])
def test_a_target_that_is_lost_after_the_opening_began_names_the_command_that_works(
    clusters: Clusters, was_opening: bool
) -> None:
    """The text named --abort --target-id, which opens no fence that states `opening`."""
    fence_with_cuts(clusters)

    class Losing(Fencing):
        def lose(self) -> None:
            clusters.west.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: KafkaTimeoutError("silent")
            raise KafkaTimeoutError("silent")

        async def _compare(self, *_: object) -> dict[TopicPartition, int | None]:
            if was_opening:
                self.lose()
            return {}

        async def _check_target(self, *_: object) -> None:
            self.lose()

    if was_opening:
        clusters.configs["east"]["t"] = opening(fenced_by({}))
    assert clusters.result(clusters.promotion(Losing).run()) == 5
    lines = clusters.printed[:]
    assert not [line for line in lines if "--target-id" in line]
    assert [line for line in lines if f"{lost_west('t')} opens t: a promotion had begun" in line]
    clusters.west.down = {1}
    assert clusters.abort(target_id="W") == 5
    config = FlowConfig("west", "east", WEST_CONFIG, EAST_CONFIG, LinkSettings(enabled=True))
    refuse_mirrors(clusters, "east")
    lost = Promotion(
        clusters.east.clock,
        config,
        Options(source_lost=True),
        clusters.printed.append,
        cluster=clusters.cluster,
    )
    assert clusters.result(lost.run()) == 0, clusters.printed
    assert clusters.configs["east"]["t"][MARK] == ""


@pytest.mark.parametrize("east", EAST)
def test_an_abort_without_an_answer_proposes_a_statement_only_for_a_fence(
    clusters: Clusters, east: str
) -> None:
    """It proposed --target-id for live mirrors, and the command then left them alone: exit code 5."""
    settings, kind = EAST[east]
    clusters.configs["east"]["t"] = dict(settings)
    clusters.west.down = {1}
    assert clusters.abort() == 5
    assert ("--target-id" in clusters.printed[-1]) is (kind is Marked.FENCE)
    assert (f"{lost_west('t')} opens t" in clusters.printed[-1]) is (kind is not Marked.FENCE)
    assert clusters.abort(target_id="W") == (0 if kind is Marked.FENCE else 5)


@pytest.mark.parametrize("seconds", [20, 300])
@pytest.mark.parametrize("east", ["opened", "ordinary mirror", "earlier release, CreateTime"])
def test_a_topic_that_a_broker_does_not_know_yet_is_no_mirror_of_the_other_direction(
    clusters: Clusters, east: str, seconds: float
) -> None:
    """The promotion ended with 0 and "nothing to promote": the broker at west had just started."""
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = dict(EAST[east][0])
    clusters.configs["west"]["t"] = {
        MARK: "E",
        SOURCE_TOPIC_ID: text_of(clusters.east.topic_id("t")),
    }
    does_not_know(clusters, seconds)
    code = clusters.result(clusters.promotion(Fencing).run())
    assert not [line for line in clusters.printed if "other direction" in line]
    if seconds > 60:
        assert code == 5
        assert clusters.printed[-1].startswith("refused: the broker at west does not know t yet")
        assert clusters.configs["west"]["t"][MARK] == "E"
    else:
        assert code == 0, clusters.printed
        assert clusters.configs["west"]["t"][MARK] == ""


def test_a_repeated_command_has_the_mode_of_the_first(clusters: Clusters) -> None:
    """`t` was fenced before, `u` was not: "producers stopped" the first time, "exchanged" the second."""
    fence_with_cuts(clusters)
    clusters.east.topics["u"] = clusters.west.topics["u"] = 2
    for scripted in (clusters.east, clusters.west):
        scripted.serve_offsets({TopicPartition(name, n): (0, 5) for name in "tu" for n in (0, 1)})
    for name in ("t", "u"):
        copied = text_of(clusters.east.topic_id(name))
        clusters.configs["west"][name] = {MARK: "E", SOURCE_TOPIC_ID: copied}
    clusters.configs["east"] |= {"t": fenced_by({}), "u": {}}
    modes = []
    for _ in range(2):
        promoting = clusters.promotion(Fencing, producers_stopped=True)
        clusters.result(promoting.run())
        assert promoting.record is not None, clusters.printed
        modes.append(promoting.record["mode"])
    assert modes == [PRODUCERS_STOPPED] * 2


def test_the_mode_of_several_topics_is_the_one_that_proves_least() -> None:
    assert mode_of([EXCHANGED, SOURCE_LOST, PRODUCERS_STOPPED]) == SOURCE_LOST
    assert mode_of([EXCHANGED, PRODUCERS_STOPPED, EXCHANGED]) == PRODUCERS_STOPPED
    assert mode_of([EXCHANGED]) == EXCHANGED
    opened = {"a": FOUND, "b": Opened("E", PRODUCERS_STOPPED, 1, (), ())}
    assert LostSource("E", [], opened).mode == PRODUCERS_STOPPED
    assert LostSource("E", ["c"], opened).mode == SOURCE_LOST


@pytest.mark.parametrize("is_source_lost", [False, True])
def test_an_error_while_the_target_is_opened_names_what_may_accept_producers(
    clusters: Clusters, is_source_lost: bool
) -> None:
    """Only a signal had the line. The error looked like one before anything was changed: exit code 3."""
    fence_with_cuts(clusters)
    clusters.west.answers[ApiKey.INCREMENTAL_ALTER_CONFIGS] = lambda _: KafkaTimeoutError("silent")
    promoting = clusters.promotion(Fencing, source_lost=is_source_lost)
    assert isinstance(clusters.result(promoting.run()), KafkaTimeoutError)
    line = "west may accept producers: t. Repeat the command to continue"
    assert line in clusters.printed
    assert promoting.record is None
    way = "kmirror promote --abort opens there what west has not opened"
    assert clusters.printed[-1].endswith(line if is_source_lost else way)
    assert is_source_lost or clusters.abort() == 0
    assert bool(clusters.configs["east"]["t"].get(MARK)) is False


def test_an_error_after_the_target_is_opened_names_the_missing_record(
    clusters: Clusters,
) -> None:
    fence_with_cuts(clusters)

    class Ending(Fencing):
        async def _source_ends(self, *_: object) -> Any:
            raise KafkaTimeoutError("silent")

    promoting = clusters.promotion(Ending)
    assert isinstance(clusters.result(promoting.run()), KafkaTimeoutError)
    assert clusters.printed[-1].startswith("promoted; there is no record")
    assert clusters.configs["west"]["t"][MARK] == ""


def test_an_undo_leaves_the_fence_of_a_topic_that_another_command_is_about_to_open(
    clusters: Clusters,
) -> None:
    """The first command was ended while the second opened one topic after the other: both clusters had producers."""
    line = "is still read-only: another command has begun to open the target. "

    def begin_to_open() -> None:
        clusters.configs["east"]["t"] = opening(clusters.configs["east"]["t"])

    printed = failing_audit(clusters, begin_to_open)
    assert marked_as(east_topic(clusters.configs["east"]["t"])) is Marked.OPENING
    assert not clusters.configs["east"]["u"].get(MARK)
    assert [each for each in printed if each.startswith(f"  t: east {line}")]


def another_process(clusters: Clusters) -> Clusters:
    """Return the same *clusters* with other connections: the end of one process fails no request of the other."""
    other = copy.copy(clusters)
    other.east, other.west = copy.copy(other.east), copy.copy(other.west)
    for scripted in (other.east, other.west):
        scripted.requests, scripted._connections = [], {}
    return other


class TwoCommands:
    """Topics that one command opens at west, one after the other, and the commands that run meanwhile.

    After each change of a topic, no topic may accept producers at both clusters.
    """

    def __init__(self, clusters: Clusters, meanwhile: Any, *, at_change: int, held: float) -> None:
        """Run *meanwhile* at the change *at_change* of west, which is made *held* seconds after it is asked for."""
        self.clusters, self.both_open = clusters, set[str]()
        fence_with_cuts(clusters)
        refuse_mirrors(clusters, "east")
        copied = text_of(clusters.east.topic_id("t"))
        for name in ("t", "u", "v"):
            clusters.east.topics[name] = clusters.west.topics[name] = 2
            copied = text_of(clusters.east.topic_id(name))
            clusters.configs["east"][name] = {}
            clusters.configs["west"][name] = {MARK: "E", SOURCE_TOPIC_ID: copied}
        offsets = {TopicPartition(name, n): (0, 5) for name in "tuv" for n in (0, 1)}
        api = ApiKey.INCREMENTAL_ALTER_CONFIGS
        for scripted in (clusters.east, clusters.west):
            scripted.serve_offsets(offsets)
            served = scripted.answers[api]
            changes: list[int] = []

            def altered(
                request: Any, scripted: Any = scripted, served: Any = served, changes: Any = changes
            ) -> Any:
                changes.append(1)
                if scripted is clusters.west and len(changes) == at_change:
                    meanwhile()
                    (asked,) = scripted.waiting(api)
                    clusters.east.clock.callLater(
                        held, lambda: asked.answer(self.after(served, request))
                    )
                    return HELD
                return self.after(served, request)

            scripted.answers[api] = altered

    def after(self, served: Any, request: Any) -> Any:
        answer = served(request)
        for name in ("t", "u", "v"):
            at_east, at_west = (self.clusters.configs[each][name] for each in ("east", "west"))
            if not at_east.get(MARK) and not at_west.get(MARK):
                self.both_open.add(name)
        return answer

    def opened(self, count: int | None) -> str:
        """Return the topics that accept producers at west: *count*, if it is known. The others accept them at east."""
        configs = self.clusters.configs
        west, east = (
            "".join(each for each in "tuv" if not configs[name][each].get(MARK))
            for name in ("west", "east")
        )
        assert (self.both_open, west + east) == (set(), "tuv"), self.clusters.printed
        assert count in (None, len(west))
        return west


@pytest.mark.parametrize("held", [0.0, 14.0])
@pytest.mark.parametrize("at_change", [1, 2, 3])
def test_an_abort_beside_a_promotion_that_opens_its_topics_leaves_each_open_at_one_cluster(
    clusters: Clusters, at_change: int, held: float
) -> None:
    """It removed the fences of topics that the promotion had not opened yet, and opened then: two logs, exit code 0."""
    codes: list[int] = []

    def abort() -> None:
        aborting = another_process(clusters).aborting()
        Deferred.fromCoroutine(aborting).addCallback(codes.append)

    two = TwoCommands(clusters, abort, at_change=at_change, held=held)
    code = clusters.result(clusters.promotion(Fencing).run())
    clusters.east.pass_time(200.0, 0.5)
    opened = two.opened(at_change if held else None)
    assert codes == [0]
    assert code == (0 if opened == "tuv" else 5), clusters.printed
    if code:
        line = f"west may accept producers: {', '.join(opened)}. Repeat the command to continue"
        assert line in clusters.printed
        assert [
            each for each in clusters.printed if each.startswith("refused: ") and "--abort" in each
        ]
        assert clusters.result(clusters.promotion(Fencing).run()) == 0, clusters.printed
        assert two.opened(3) == "tuv"


@pytest.mark.parametrize("held", [0.0, 14.0])
@pytest.mark.parametrize("at_change", [1, 2, 3])
def test_an_undo_beside_a_promotion_that_opens_its_topics_leaves_each_open_at_one_cluster(
    clusters: Clusters, at_change: int, held: float
) -> None:
    """Both had begun to open. The command that was ended took the statements for its own, and removed the fences."""
    ended: list[Any] = []
    waits = Deferred[None]()

    class First(Fencing):
        async def _check_target(self, *_: object) -> None:
            waits.callback(None)
            await Deferred[None]()

    two = TwoCommands(clusters, lambda: first.cancel(), at_change=at_change, held=held)
    first = Deferred.fromCoroutine(another_process(clusters).promotion(First).run())
    first.addBoth(ended.append)
    clusters.result(as_coroutine(waits))
    code = clusters.result(clusters.promotion(Fencing).run())
    clusters.east.pass_time(200.0, 0.5)
    assert isinstance(ended[0].value, CancelledError)
    opened = two.opened(at_change if held else None)
    assert code == (0 if opened == "tuv" else 5), clusters.printed


def test_a_fence_that_is_gone_when_its_topic_is_opened_is_a_refusal(clusters: Clusters) -> None:
    """The fences were looked for once, before the first topic: a tool for configs removed one after that."""

    def remove() -> None:
        clusters.configs["east"]["u"] = {}

    two = TwoCommands(clusters, remove, at_change=1, held=0.0)
    assert clusters.result(clusters.promotion(Fencing).run()) == 5
    assert two.both_open == set()
    marks = [clusters.configs["west"][name][MARK] for name in "tuv"]
    assert marks == ["", "E", "E"]
    assert "west may accept producers: t. Repeat the command to continue" in clusters.printed
    assert clusters.printed[-1] == "refused: east accepts producers in u-0, u-1: it has no fence"


@pytest.mark.parametrize(("seconds", "is_opened"), [(20, True), (300, False)])
def test_a_broker_that_does_not_show_the_statement_yet_is_asked_again(
    clusters: Clusters, seconds: float, is_opened: bool
) -> None:
    """Its ZooKeeper server may be behind that of the controller."""
    fence_with_cuts(clusters)

    class Behind(Fencing):
        async def _check_target(self, *_: object) -> None:
            answers = clusters.east.answers
            served = answers[ApiKey.DESCRIBE_CONFIGS]
            stated = clusters.configs["east"]["t"]
            earlier = ScriptedCluster()
            earlier.serve_configs({"t": stated | {PROMOTION: fenced_by({})[PROMOTION]}})
            answers[ApiKey.DESCRIBE_CONFIGS] = earlier.answers[ApiKey.DESCRIBE_CONFIGS]
            clusters.east.clock.callLater(
                seconds, answers.__setitem__, ApiKey.DESCRIBE_CONFIGS, served
            )

    found = clusters.result(clusters.promotion(Behind).run())
    assert found == 0 if is_opened else isinstance(found, KafkaTimeoutError), clusters.printed
    assert clusters.configs["west"]["t"][MARK] == ("" if is_opened else "E")
    assert clusters.configs["east"]["t"][MARK] == "W"


async def as_coroutine(waiting: Deferred[None]) -> None:
    await waiting


@pytest.mark.parametrize("command", ["promote", "abort"])
def test_an_abort_that_is_ended_is_continued_or_replaced_by_a_promotion(
    clusters: Clusters, command: str
) -> None:
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = opening(fenced_by({}))
    aborted: list[Any] = []
    running = Deferred.fromCoroutine(clusters.aborting()).addBoth(aborted.append)
    clusters.east.pass_time(5.0)
    assert '"aborting"' in clusters.configs["east"]["t"][PROMOTION]
    running.cancel()
    clusters.east.pass_time(1.0)
    assert isinstance(aborted[0].value, CancelledError)
    if command == "promote":
        assert clusters.result(clusters.promotion(Fencing).run()) == 0, clusters.printed
    else:
        assert clusters.abort() == 0
    assert (clusters.configs["west"]["t"][MARK] == "") is (command == "promote")
    assert (clusters.configs["east"]["t"] == {}) is (command == "abort")


@pytest.mark.parametrize("at_change", [1, 2])
def test_a_promotion_beside_an_abort_leaves_its_topic_open_at_one_cluster(
    clusters: Clusters, at_change: int
) -> None:
    """The --abort has looked at the fence that it then removes, or it will. The promotion begins meanwhile."""
    fence_with_cuts(clusters)
    refuse_mirrors(clusters, "east")
    clusters.configs["east"]["t"] = opening(fenced_by({}))
    api = ApiKey.INCREMENTAL_ALTER_CONFIGS
    served = clusters.east.answers[api]
    changes: list[Any] = []
    codes: list[int] = []
    other = another_process(clusters)

    def altered(request: Any) -> Any:
        changes.append(request)
        if len(changes) != at_change:
            return served(request)
        Deferred.fromCoroutine(other.promotion(Fencing).run()).addCallback(codes.append)
        (asked,) = clusters.east.waiting(api)
        clusters.east.clock.callLater(14.0, lambda: asked.answer(served(request)))
        return HELD

    clusters.east.answers[api] = altered
    clusters.abort()
    clusters.east.pass_time(200.0, 0.5)
    is_open_at_east = not clusters.configs["east"]["t"].get(MARK)
    assert is_open_at_east is (at_change == 2)
    assert (clusters.configs["west"]["t"][MARK] == "") is not is_open_at_east
    assert codes == [5 if is_open_at_east else 0], clusters.printed


@pytest.mark.parametrize("api", [ApiKey.DESCRIBE_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS])
@pytest.mark.parametrize("seconds", [20, 300])
def test_an_undo_waits_until_the_fence_can_be_read_and_removed(
    clusters: Clusters, seconds: float, api: ApiKey
) -> None:
    """A broker at east had just started: the fence was removed unread, although another command had begun to open."""
    served = clusters.east.answers[api]

    def begin_to_open() -> None:
        clusters.configs["east"]["t"] = opening(clusters.configs["east"]["t"])

        def failing(request: Any) -> Any:
            answer = served(request)
            for each in answer.results if api is ApiKey.DESCRIBE_CONFIGS else answer.responses:
                each.error_code, each.configs = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
            return answer

        def unchanged(_: Any) -> Any:
            return KafkaTimeoutError("silent")

        clusters.east.answers[api] = failing if api is ApiKey.DESCRIBE_CONFIGS else unchanged
        clusters.east.clock.callLater(seconds, clusters.east.answers.__setitem__, api, served)

    printed = failing_audit(clusters, begin_to_open)
    assert marked_as(east_topic(clusters.configs["east"]["t"])) is Marked.OPENING
    assert bool(clusters.configs["east"]["u"].get(MARK)) is (seconds == 300)
    if seconds == 300:
        assert [line for line in printed if line.startswith("  u: its mark cannot be removed: ")]
        assert [line for line in printed if line.startswith("east is still read-only: ")]


def test_an_undo_without_the_target_names_the_way_by_what_the_fence_states_now(
    clusters: Clusters,
) -> None:
    """Another command had begun to open `t` meanwhile: --abort --target-id was named, and refused it."""

    def begin_to_open() -> None:
        clusters.configs["east"]["t"] = opening(clusters.configs["east"]["t"])
        clusters.west.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: KafkaTimeoutError("silent")

    printed = failing_audit(clusters, begin_to_open)
    assert [each for each in printed if f"{lost_west('t')} opens t: a promotion had begun" in each]
    assert [each for each in printed if each.endswith("--abort --target-id W --topics 'u' opens u")]


@pytest.mark.parametrize("state", [opening, lambda settings: over(opening(settings))])
@pytest.mark.parametrize("command", ["undo", "abort"])
def test_a_fence_stays_if_another_command_opens_its_topic_after_the_marks_at_west_were_read(
    clusters: Clusters, command: str, state: Any
) -> None:
    """They were read once for all topics. The removal of one fence after the other takes a while."""
    served = clusters.east.answers[ApiKey.INCREMENTAL_ALTER_CONFIGS]

    def altered(request: Any) -> Any:
        (asked,) = request.resources
        answer = served(request)
        if asked.resource_name == "t" and not clusters.configs["east"]["t"].get(MARK):
            clusters.configs["east"]["u"] = state(clusters.configs["east"]["u"])
            clusters.configs["west"]["u"][MARK] = ""
        return answer

    clusters.east.answers[ApiKey.INCREMENTAL_ALTER_CONFIGS] = altered
    if command == "undo":
        failing_audit(clusters, lambda: None)
    else:
        clusters.east.topics["u"] = clusters.west.topics["u"] = 1
        for name in ("t", "u"):
            clusters.configs["east"][name] = fenced_by({})
            clusters.configs["west"][name] = {MARK: "E", SOURCE_TOPIC_ID: "D"}
        assert clusters.abort() == 5
    assert not clusters.configs["east"]["t"].get(MARK)
    assert clusters.configs["east"]["u"].get(MARK) == "W"
