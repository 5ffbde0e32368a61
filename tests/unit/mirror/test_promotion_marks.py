"""The fence of a promotion: the marks that it sets at the source, and those that are there after it is removed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.errors import KafkaTimeoutError
from kclient.net.cluster import Cluster
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from kclient.wire.versions import ApiKey
from mirrormaker import failback_stage
from mirrormaker.audit_proof import Proof
from mirrormaker.catalog import Catalog
from mirrormaker.command_exit import Refused
from mirrormaker.config import FlowConfig
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.promote import Options, Promotion
from mirrormaker.promotion_abort import PromotionAbort
from mirrormaker.promotion_fence import fence_of, marks_before_the_fence
from mirrormaker.promotion_record import (
    EXCHANGED,
    LONGEST_VALUE,
    PRODUCERS_STOPPED,
    Groups,
    Opened,
    stored_promotion,
)
from mirrormaker.recopy import Recopy
from mirrormaker.settings import LinkSettings
from mirrormaker.topics import (
    CREATE_TIME,
    MARK,
    MARKS,
    PATH,
    PROMOTION,
    SOURCE_LOST,
    Topic,
    TopicPair,
)
from tests.kit.scripted_cluster import HELD, ScriptedCluster, batch_of, part

EAST = CommonConfig.load({"bootstrap.servers": "east:1"})
WEST = CommonConfig.load({"bootstrap.servers": "west:1"})
CONFIG = CommonConfig.load({"bootstrap.servers": "a:1"})
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FOUND = Opened("N", EXCHANGED, 100, (5, 7), (90, None), "run-1", Groups(3, ()))
ORDINARY = {"retention.ms": "1"}
PROMOTED = {MARK: "", SOURCE_TOPIC_ID: "earlier", PATH: "N", PROMOTION: FOUND.text()}
PROMOTED_BY_AN_EARLIER_RELEASE = {MARK: "", SOURCE_TOPIC_ID: "earlier"}


def done(scripted: ScriptedCluster, coroutine: Any) -> Any:
    results: list[Any] = []
    Deferred.fromCoroutine(coroutine).addBoth(results.append)
    scripted.pass_time(1.0)
    (result,) = results
    if isinstance(getattr(result, "value", None), Exception):
        raise result.value
    return result


@pytest.mark.parametrize("before", [ORDINARY, PROMOTED, PROMOTED_BY_AN_EARLIER_RELEASE])
@pytest.mark.parametrize("refused", [(), (PROMOTION,)])
def test_a_fence_that_is_removed_leaves_the_marks_that_were_there(
    before: dict[str, str], refused: tuple[str, ...]
) -> None:
    """A promoted source lost its empty mark and its topic id by it: every later failback was refused."""
    before = {name: value for name, value in before.items() if name not in refused}
    scripted, configs = ScriptedCluster({"t": 2}), {"t": dict(before)}
    scripted.serve_configs(configs, refused=refused)
    catalog = Catalog(scripted.cluster(CONFIG))
    fence = fence_of(Topic(2, None, before), "W", "C")
    done(scripted, catalog.change("t", fence))
    assert {name: configs["t"].get(name) for name in MARKS} == {
        MARK: "W",
        SOURCE_TOPIC_ID: "C",
        PATH: None,
    }
    done(scripted, catalog.change("t", {name: before.get(name) for name in fence}))
    assert configs["t"] == before


@pytest.mark.parametrize("before", [ORDINARY, PROMOTED, PROMOTED_BY_AN_EARLIER_RELEASE])
def test_another_process_finds_the_marks_that_were_there_before_the_fence(
    before: dict[str, str],
) -> None:
    scripted, configs = ScriptedCluster({"t": 2}), {"t": dict(before)}
    scripted.serve_configs(configs)
    catalog = Catalog(scripted.cluster(CONFIG))
    done(scripted, catalog.change("t", fence_of(Topic(2, None, before), "W", "C")))
    fenced = Topic(2, None, dict(configs["t"]))
    assert stored_promotion(fenced) == stored_promotion(Topic(2, None, before))
    done(scripted, catalog.change("t", marks_before_the_fence(fenced)))
    assert configs["t"] == before


def test_of_a_fence_that_states_no_earlier_marks_all_marks_are_removed() -> None:
    for text in ("", "5", "[]", "not JSON", '{"before":5}', '{"before":{"retention.ms":"1"}}'):
        found = marks_before_the_fence(Topic(1, None, {MARK: "W", PROMOTION: text}))
        expected: dict[str, str | None] = dict.fromkeys(MARKS)
        assert found == expected | ({PROMOTION: None} if "before" in text else {})


def test_a_record_of_many_partitions_makes_place_for_the_earlier_marks() -> None:
    longest = "5" * LONGEST_VALUE
    fence = fence_of(Topic(1, None, {**PROMOTED, PROMOTION: longest}), "W", "C")
    assert len(fence[PROMOTION] or "") < 1000
    marks = {MARK: "", SOURCE_TOPIC_ID: "earlier", PATH: "N"}
    found = marks_before_the_fence(Topic(1, None, {PROMOTION: fence[PROMOTION] or ""}))
    assert found == marks | {PROMOTION: None}


class Clusters:
    """East and west on scripted brokers: topics with marks, and promotions from east to west."""

    def __init__(self) -> None:
        self.east, self.west = ScriptedCluster({"t": 2}), ScriptedCluster({"t": 2})
        self.west.clock = self.east.clock
        self.east.cluster_id, self.west.cluster_id = "E", "W"
        self.configs: dict[str, dict[str, dict[str, str]]] = {"east": {}, "west": {}}
        self.east.serve_configs(self.configs["east"])
        self.west.serve_configs(self.configs["west"])
        self.printed: list[str] = []

    def promotion(self, kind: type[Promotion] = Promotion, **options: Any) -> Promotion:
        config = FlowConfig("east", "west", EAST, WEST, LinkSettings(enabled=True))
        return kind(
            self.east.clock, config, Options(**options), self.printed.append, cluster=self.cluster
        )

    def cluster(self, reactor: Any, config: CommonConfig) -> Cluster:
        scripted = self.east if config is EAST else self.west
        return scripted.attach(Cluster(reactor, config))

    def result(self, coroutine: Any) -> Any:
        results: list[Any] = []
        Deferred.fromCoroutine(coroutine).addBoth(results.append)
        for _ in range(600):
            if not results:
                self.east.pass_time(1.0, 0.5)
        (found,) = results
        return getattr(found, "value", found)

    def aborting(
        self, topics: str = ".*", target_id: str | None = None
    ) -> Coroutine[Any, Any, int]:
        config = FlowConfig("east", "west", EAST, WEST, LinkSettings(enabled=True))
        return PromotionAbort(
            self.east.clock, config, topics, target_id, self.printed.append, cluster=self.cluster
        ).run()

    def abort(self, **options: Any) -> Any:
        return self.result(self.aborting(**options))


@pytest.fixture
def clusters() -> Clusters:
    made = Clusters()
    made.configs["east"]["t"] = {MARK: "W", SOURCE_TOPIC_ID: "C"}
    made.configs["west"]["t"] = {MARK: "E", SOURCE_TOPIC_ID: "D"}
    return made


def mirror_of(cluster_id: str) -> dict[str, str]:
    """Return the settings of a topic that kmirror copies from *cluster_id*."""
    return {MARK: cluster_id, SOURCE_TOPIC_ID: "C", **CREATE_TIME}


def fence_of_before(cluster_id: str = "W") -> dict[str, str]:
    """Return the settings of a topic with the fence of an earlier release, on a topic without marks."""
    return {MARK: cluster_id, SOURCE_TOPIC_ID: "C"}


def fenced_by(promoting: dict[str, str], target_id: str = "W") -> dict[str, str]:
    """Return the settings of a topic that has *promoting* when it is fenced."""
    fence = fence_of(Topic(1, None, promoting), target_id, "C")
    return promoting | {name: text for name, text in fence.items() if text}


def test_an_abort_needs_no_equal_number_of_partitions(clusters: Clusters) -> None:
    clusters.east.topics["t"] = 4
    assert clusters.abort() == 0
    assert clusters.configs["east"]["t"] == {}
    assert clusters.printed == ["east accepts producers again: t"]


def test_an_abort_leaves_topics_alone_that_are_no_fence_of_this_direction(
    clusters: Clusters,
) -> None:
    clusters.east.topics |= {"promoted": 1, "chain": 1, "other": 1, "free": 1, "gone": 1}
    clusters.west.topics |= {"promoted": 1, "chain": 1, "other": 1, "free": 1}
    clusters.configs["east"] |= {name: fence_of_before() for name in ("promoted", "chain", "gone")}
    clusters.configs["east"]["other"] = mirror_of("N")
    clusters.configs["west"] |= {"promoted": {MARK: ""}, "chain": {MARK: "N"}}
    clusters.configs["west"]["other"] = {MARK: "E", PATH: "N"}
    before = {name: dict(each) for name, each in clusters.configs["east"].items()}
    assert clusters.abort() == 5, "gone and chain are in doubt"
    assert clusters.configs["east"] == before | {"t": {}}
    assert clusters.printed[1].startswith(
        "  chain: its mark was not removed: a mirror of cluster N"
    )
    assert clusters.printed[2].startswith("  gone: its mark was not removed: it does not exist")
    assert clusters.abort(topics="gone", target_id="W") == 0
    assert clusters.configs["east"]["gone"] == {}


def test_an_abort_with_the_cluster_id_opens_no_topic_that_the_target_shows_as_promoted(
    clusters: Clusters,
) -> None:
    """The target did not answer for a moment; the operator repeats the command with the id that it printed."""
    clusters.east.topics |= {"promoted": 1, "gone": 1}
    clusters.west.topics |= {"promoted": 1}
    clusters.configs["east"] |= {name: fence_of_before() for name in ("promoted", "gone")}
    clusters.configs["west"]["promoted"] = {MARK: ""}
    assert clusters.abort(target_id="W") == 0
    assert clusters.configs["east"] == {"t": {}, "promoted": fence_of_before(), "gone": {}}
    assert clusters.printed == ["east accepts producers again: t, gone"]


def test_an_abort_of_a_lost_target_opens_its_topics_although_another_cluster_answers(
    clusters: Clusters,
) -> None:
    clusters.west.cluster_id = "rebuilt"
    assert clusters.abort(target_id="W") == 0
    assert clusters.configs["east"]["t"] == {}


def test_an_abort_names_the_topics_if_another_cluster_answers_for_the_target(
    clusters: Clusters,
) -> None:
    """West was built again, or its address is wrong: the command ended with 0, and the source stayed read-only."""
    clusters.west.cluster_id = "rebuilt"
    assert clusters.abort() == 5
    assert clusters.printed == [
        "  t: its mark was not removed: it is a mirror of cluster W",
        "east: no fence was removed",
        "the cluster at west's address is rebuilt. If another one was there, and no producer wrote to it, --target-id "
        "with its id opens the topics that are marked as its mirrors: t",
    ]
    assert clusters.configs["east"]["t"][MARK] == "W"


def test_an_abort_leaves_mirrors_alone_that_the_target_has_copies_of(clusters: Clusters) -> None:
    """East is a hub. The second command ended with 5, and advised to remove the marks of its live mirrors."""
    for name in ("chain", "longer"):
        clusters.east.topics[name] = clusters.west.topics[name] = 1
        clusters.configs["east"][name] = mirror_of("N")
        clusters.configs["west"][name] = {MARK: "E", PATH: "N" if name == "chain" else "M,N"}
    alone = [f"  {name}: left alone: a mirror of cluster N" for name in ("chain", "longer")]
    assert clusters.abort() == 0
    assert clusters.printed == [*alone, "east accepts producers again: t"]
    clusters.printed.clear()
    assert clusters.abort() == 0
    assert clusters.printed == [*alone, "east: no fence was removed"]


def test_an_abort_neither_opens_nor_advises_to_open_mirrors_that_may_be_live(
    clusters: Clusters,
) -> None:
    """A mirror of N at both clusters is ordinary. One that is copied on may be either, with the setting of a fence."""
    for name in ("of both", "copied on"):
        clusters.east.topics[name] = clusters.west.topics[name] = 1
    fence = fence_of(Topic(1, None, {}), "N", "C")
    clusters.configs["east"] |= {
        "of both": mirror_of("N"),
        "copied on": {name: text for name, text in fence.items() if text},
    }
    clusters.configs["west"] |= {"of both": {MARK: "N"}, "copied on": {MARK: "E", PATH: "N"}}
    assert clusters.abort(target_id="W") == 5
    assert clusters.printed == [
        "  of both: left alone: a mirror of cluster N",
        "  copied on: its mark was not removed: it is a mirror of cluster N, by a promotion or by its fence: look "
        "whether that cluster accepts producers",
        "east accepts producers again: t",
    ]
    assert clusters.configs["east"]["copied on"][MARK] == "N"


@pytest.mark.parametrize("copied", ["", "before the fence", "of a promoted topic"])
def test_an_abort_is_no_success_while_a_topic_may_have_the_fence_of_another_cluster(
    clusters: Clusters, copied: str
) -> None:
    """West was built again. One fence was opened, and the command ended with 0 although the others stayed."""
    clusters.east.topics["other"] = 1
    fence = fence_of(Topic(1, None, PROMOTED if copied == "of a promoted topic" else {}), "N", "C")
    clusters.configs["east"]["other"] = {name: text for name, text in fence.items() if text}
    if copied:
        clusters.west.topics["other"] = 1
        path = {PATH: "N"} if copied == "of a promoted topic" else {}
        clusters.configs["west"]["other"] = {MARK: "E", **path}
    assert clusters.abort() == 5
    line, opened = clusters.printed[:2]
    assert line.startswith("  other: its mark was not removed: it is a mirror of cluster N")
    assert opened == "east accepts producers again: t"
    assert clusters.configs["east"]["other"][MARK] == "N"
    assert clusters.abort(target_id="N") == 0
    assert not clusters.configs["east"]["other"].get(MARK)


@pytest.mark.parametrize("topics", ["typo", ""])
def test_an_abort_that_selects_no_topic_is_refused(clusters: Clusters, topics: str) -> None:
    """It ended with 0, as one that found no fence, and the source stayed read-only."""
    assert clusters.abort(topics=topics) == 5
    assert clusters.printed == ["refused: no topic is selected"]
    assert clusters.configs["east"]["t"][MARK] == "W"


def test_an_abort_without_the_target_needs_its_cluster_id(clusters: Clusters) -> None:
    clusters.west.down = {1}
    assert clusters.abort() == 5
    assert clusters.printed[-1].startswith("refused: west does not answer")
    assert "t (W)" in clusters.printed[-1]
    assert clusters.abort(target_id="X") == 5
    assert clusters.configs["east"]["t"][MARK] == "W"
    assert clusters.abort(target_id="W") == 0
    assert clusters.configs["east"]["t"] == {}
    assert clusters.abort() == 0, "no topic has a mark: the target is not asked"
    assert clusters.printed[-1] == "east: no fence was removed"


@pytest.mark.parametrize("answers", ["nothing", "another cluster", "no such topic"])
def test_an_abort_with_the_cluster_id_opens_no_ordinary_mirror_of_it(
    clusters: Clusters, answers: str
) -> None:
    """Its log is at west: the first record at east forked it, and no promotion had ever fenced it."""
    clusters.east.topics["mirror"] = 1
    clusters.configs["east"]["mirror"] = dict(mirror_of("W"))
    if answers == "nothing":
        clusters.west.down = {1}
    elif answers == "another cluster":
        clusters.west.cluster_id = "rebuilt"
    assert clusters.abort(target_id="W") == 5
    assert clusters.configs["east"] == {"t": {}, "mirror": mirror_of("W")}
    absent = "it does not exist at the target; " if answers == "no such topic" else ""
    assert clusters.printed == [
        f"  mirror: its mark was not removed: {absent}it seems to be an ordinary mirror of cluster W. If producers are "
        "to write here, kmirror promote FILE --flow 'west->east' --source-lost --topics 'mirror' --source-id W "
        "(west->east has to be enabled in FILE) opens mirror",
        "east accepts producers again: t",
    ]


@pytest.mark.parametrize(("by_kmirror", "code"), [(False, 5), (True, 0)])
def test_a_fence_of_an_earlier_release_is_no_ordinary_mirror(
    clusters: Clusters, by_kmirror: bool, code: int
) -> None:
    """It has no earlier marks. West was built again and copied it: --abort ended with 0, and it stayed read-only."""
    clusters.east.topics["other"] = clusters.west.topics["other"] = 1
    clusters.configs["east"]["other"] = mirror_of("N") if by_kmirror else fence_of_before("N")
    clusters.configs["west"]["other"] = {MARK: "E", PATH: "N"}
    assert clusters.abort() == code
    assert ("left alone" in clusters.printed[0]) is by_kmirror
    assert clusters.configs["east"]["other"][MARK] == "N"


class Fencing(Promotion):
    """A promotion that has nothing to copy or to compare."""

    async def _drain(self, *_: object) -> None: ...

    async def _compare(self, *_: object) -> dict[TopicPartition, int | None]:
        return {}

    async def _copy_groups(self, _: object) -> None: ...


def test_an_error_before_the_target_is_opened_removes_the_fence(clusters: Clusters) -> None:
    """One at the last reading of the target left the source read-only, without a line."""
    before = {MARK: "", SOURCE_TOPIC_ID: "earlier"}
    clusters.configs["east"]["t"] = dict(before)
    copied = text_of(clusters.east.topic_id("t"))
    clusters.configs["west"]["t"] = {MARK: "E", SOURCE_TOPIC_ID: copied}
    for scripted in (clusters.east, clusters.west):
        scripted.serve_log_ends(5)
        scripted.answers[ApiKey.LIST_OFFSETS] = lambda _: ValueError("no such field")
    promoting = clusters.promotion(Fencing)
    assert isinstance(clusters.result(promoting.run()), ValueError)
    assert clusters.configs["east"]["t"] == before
    assert clusters.printed[-1] == "east accepts producers again; nothing was promoted"
    assert clusters.configs["west"]["t"][MARK] == "E"
    clusters.configs["east"]["t"] = {MARK: "W"}
    assert isinstance(clusters.result(clusters.promotion(Fencing).run()), ValueError)
    assert clusters.printed[-1].startswith("east is still read-only: t."), (
        "an earlier command fenced it"
    )


def failing_audit(clusters: Clusters, meanwhile: Callable[[], None]) -> list[str]:
    """Run a promotion of `t` and `u`; *meanwhile* runs before its audit fails. Return what it printed."""
    clusters.east.topics["u"] = clusters.west.topics["u"] = 1
    for name in ("t", "u"):
        clusters.configs["east"][name] = {}
        copied = text_of(clusters.east.topic_id(name))
        clusters.configs["west"][name] = {MARK: "E", SOURCE_TOPIC_ID: copied}
    for scripted in (clusters.east, clusters.west):
        scripted.serve_log_ends(5)

    class Auditing(Fencing):
        async def _audit(self, *_: object) -> None:
            meanwhile()
            raise Refused("the verdict is DIVERGED")

    assert clusters.result(clusters.promotion(Auditing).run()) == 5
    return clusters.printed


def test_a_promotion_that_fails_leaves_the_fence_of_what_another_command_has_promoted(
    clusters: Clusters,
) -> None:
    """The operator took this command for dead, and ran it again: both clusters accepted producers."""

    def promote_t() -> None:
        clusters.configs["west"]["t"][MARK] = ""

    printed = failing_audit(clusters, promote_t)
    assert clusters.configs["east"]["t"][MARK] == "W"
    assert clusters.configs["east"]["u"] == {}
    assert printed[-3:] == [
        "east accepts producers again: u",
        "  t: east is still read-only: promoted by another command",
        "refused: the verdict is DIVERGED",
    ]


@pytest.mark.parametrize("how", ["gone", "unreadable", "silent"])
def test_a_promotion_that_fails_leaves_the_fence_if_the_target_shows_no_mark(
    clusters: Clusters, how: str
) -> None:
    def lose_t() -> None:
        if how == "gone":
            del clusters.west.topics["t"]
        elif how == "silent":
            clusters.west.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: KafkaTimeoutError("silent")
        else:
            clusters.west.answers[ApiKey.DESCRIBE_CONFIGS] = lambda request: (
                DescribeConfigsResponse(
                    results=[
                        DescribeConfigsResult(
                            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                            resource_type=each.resource_type,
                            resource_name=each.resource_name,
                        )
                        for each in request.resources
                    ]
                )
            )

    printed = failing_audit(clusters, lose_t)
    assert clusters.configs["east"]["t"][MARK] == "W"
    assert clusters.configs["east"]["u"].get(MARK) == (None if how == "gone" else "W")
    names = "t" if how == "gone" else "t, u"
    assert printed[-4].startswith(f"the marks at west are not read: {names}. ")
    assert printed[-3].startswith(f"east is still read-only: {names}. Repeat")
    assert printed[-2] == (
        "without west, if no producer wrote there, kmirror promote FILE --flow 'east->west' --abort --target-id W "
        f"--topics '{names.replace(', ', '|')}' opens {names}"
    )
    line = "east is read-only until the marks at west are read: t, u"
    assert printed.index(line) < len(printed) - 3


def test_an_undo_waits_for_a_broker_that_does_not_know_the_topic_yet(clusters: Clusters) -> None:
    """One that has just started: its first answer left east read-only."""
    left_at_10: list[int] = []

    def restart() -> None:
        knows, west = clusters.west.answers[ApiKey.METADATA], clusters.west

        def answer(request: Any) -> Any:
            answered = knows(request)
            is_controller = [each.name for each in request.topics or ()] == ["t"]
            for topic in answered.topics:
                if topic.name == "t" and not is_controller:
                    topic.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    topic.partitions = []
            return answered

        west.answers[ApiKey.METADATA] = answer
        west.clock.callLater(20, west.answers.__setitem__, ApiKey.METADATA, knows)
        west.clock.callLater(10, lambda: left_at_10.append(len(clusters.configs["east"]["u"])))

    printed = failing_audit(clusters, restart)
    assert printed[-2] == "east accepts producers again; nothing was promoted"
    assert clusters.configs["east"]["t"] == {}
    assert left_at_10 == [0], "u was open before"


def test_an_undo_without_an_answer_has_named_what_is_read_only(clusters: Clusters) -> None:
    """It was silent for a minute, until the operator ended it: nothing named the topics."""

    def stop() -> None:
        clusters.west.answers[ApiKey.DESCRIBE_CONFIGS] = lambda _: HELD

    clusters.east.clock.callLater(5, lambda: early.extend(clusters.printed))
    early: list[str] = []
    failing_audit(clusters, stop)
    assert early[-1] == "east is read-only until the marks at west are read: t, u"


def serve_log(scripted: ScriptedCluster, end: int, last: bytes, *, committed: int) -> None:
    """Let both logs end at *end*, the last batch have the value *last*, and records be committed up to *committed*."""
    scripted.serve_log_ends(end)
    scripted.serve_offsets({T0: (0, committed), T1: (0, committed)})
    scripted.answers[ApiKey.FETCH] = lambda request: scripted.fetched(
        *(
            (
                TopicPartition("t", p.partition),
                part(p.partition, batch_of(p.fetch_offset, last)),
            )
            for topic in request.topics
            for p in topic.partitions
        )
    )


@pytest.mark.parametrize(
    ("at_east", "code", "rpo"),
    [
        (b"west's", 0, 0),  # copied back by a mirror that runs
        (b"east's", 4, 6),  # written there after the cut
    ],
)
def test_records_that_a_running_mirror_has_copied_back_are_not_left_behind(
    clusters: Clusters, at_east: bytes, code: int, rpo: int
) -> None:
    """The first command compared only log ends, and took every copy for a record that was left behind."""
    fence_with_cuts(clusters)
    opened: list[bool] = []

    class Opening(Fencing):
        async def _open(self, *given: Any) -> None:
            await super()._open(*given)
            opened.append(True)
            serve_log(clusters.east, 8, at_east, committed=8)
            serve_log(clusters.west, 8, b"west's", committed=8)

    promoting = clusters.promotion(Opening)
    assert clusters.result(promoting.run()) == code
    assert opened
    assert promoting.record is not None
    assert promoting.record["rpo_records"] == rpo


def fence_with_cuts(clusters: Clusters) -> None:
    """Let both logs end at 5; the leaders at west refuse a mirror when its mark is empty."""
    for scripted in (clusters.east, clusters.west):
        serve_log(scripted, 5, b"copied", committed=5)
    copied = text_of(clusters.east.topic_id("t"))
    clusters.configs["east"]["t"] = {}
    clusters.configs["west"]["t"] = {MARK: "E", SOURCE_TOPIC_ID: copied}
    refuse_mirrors(clusters, "west")


def refuse_mirrors(clusters: Clusters, name: str) -> None:
    """Let the leaders of cluster *name* refuse a mirror of a topic while it has no mark, or an empty one."""
    scripted: ScriptedCluster = getattr(clusters, name)
    of_a_mirror = scripted.answers[ApiKey.PRODUCE]

    def produced(request: Any) -> Any:
        answer = of_a_mirror(request)
        for topic in answer.topics:
            if not clusters.configs[name].get(topic.name, {}).get(MARK):
                for each in topic.partitions:
                    each.error_code, each.log_end_offset = ErrorCode.POLICY_VIOLATION, -1
        return answer

    scripted.answers[ApiKey.PRODUCE] = produced


def test_a_fence_that_is_removed_before_the_target_is_opened_is_a_refusal(
    clusters: Clusters,
) -> None:
    """Another operator's --abort: the target was opened, and both clusters accepted producers, with exit code 0."""
    fence_with_cuts(clusters)
    refuse_mirrors(clusters, "east")

    class Draining(Fencing):
        async def _drain(self, *_: object) -> None:
            clusters.configs["east"]["t"] = {}

    promoting = clusters.promotion(Draining)
    assert clusters.result(promoting.run()) == 5
    assert clusters.configs["west"]["t"][MARK] == "E"
    assert promoting.record is None
    assert clusters.printed[-1] == "refused: east accepts producers in t-0, t-1: it has no fence"


def test_a_fence_that_was_removed_for_a_while_is_a_refusal_if_a_record_was_written(
    clusters: Clusters,
) -> None:
    fence_with_cuts(clusters)

    class Draining(Fencing):
        async def _copy_groups(self, _: object) -> None:
            clusters.east.serve_log_ends(6)

    assert clusters.result(clusters.promotion(Draining).run()) == 5
    assert clusters.configs["west"]["t"][MARK] == "E"
    assert clusters.printed[-1].startswith("refused: the fence of east was removed meanwhile")
    assert clusters.printed[-1].endswith(
        "t-0 ends at 6, not at its cut 5; t-1 ends at 6, not at its cut 5"
    )


class Comparing(Fencing):
    """A promotion that compares the logs; an audit finds them equal, and *meanwhile* runs during it."""

    meanwhile: Callable[[], None] | None = None
    aged_out = 0

    async def _compare(self, *given: Any) -> Any:
        return await Promotion._compare(self, *given)

    async def _audit(self, *_: object) -> Proof | None:
        if self.meanwhile is None:
            return None
        self.meanwhile()
        return Proof("r", self.aged_out)


@pytest.mark.parametrize(("start", "code"), [(5, 5), (4, 0)])
def test_a_target_that_has_deleted_all_that_it_had_is_not_opened(
    clusters: Clusters, start: int, code: int
) -> None:
    """Retention or DeleteRecords at west: it was promoted without a word, and what it lacks was at east only."""
    fence_with_cuts(clusters)
    clusters.west.serve_offsets({T0: (start, 5), T1: (0, 5)})

    promoting = clusters.promotion(Comparing)
    assert clusters.result(promoting.run()) == code, clusters.printed
    text = "\n".join(clusters.printed)
    assert f"the target lacks {start} offsets from 0 on" in text or "it lacks 5 offsets" in text
    if code:
        assert clusters.configs["west"]["t"][MARK] == "E"
        assert clusters.configs["east"]["t"] == {}
        return
    assert promoting.record is not None
    assert promoting.record["target_lacks"] == 4
    again = clusters.promotion(Comparing)
    assert clusters.result(again.run()) == 0
    assert again.record is not None
    assert again.record["target_lacks"] == 4


@pytest.mark.parametrize("aged_out", [0, 1])
@pytest.mark.parametrize("how", ["emptied", "without its tail", "opened"])
def test_a_target_that_changes_while_kaudit_reads_is_not_opened(
    clusters: Clusters, how: str, aged_out: int
) -> None:
    """It was opened with an RPO of 0: kaudit had read the partition before it was emptied."""
    fence_with_cuts(clusters)

    def change() -> None:
        if how == "emptied":
            clusters.west.serve_offsets({T0: (5, 5), T1: (0, 5)})
        elif how == "without its tail":
            serve_log(clusters.west, 4, b"copied", committed=4)
            refuse_mirrors(clusters, "west")
        else:
            clusters.configs["west"]["t"] = {MARK: "", PROMOTION: FOUND.text()}

    promoting: Any = clusters.promotion(Comparing)
    promoting.meanwhile, promoting.aged_out = change, aged_out
    assert clusters.result(promoting.run()) == 5, clusters.printed
    assert promoting.record is None
    reason = {
        "emptied": "refused: t-0: the target has deleted all that it had",
        "without its tail": "refused: t-0 ends at 4, not at 5; t-1 ends at 4, not at 5",
        "opened": "refused: west accepts producers in t-0, t-1: another command has opened it",
    }
    assert clusters.printed[-1].startswith(reason[how])
    if how == "opened":
        assert clusters.configs["west"]["t"] == {MARK: "", PROMOTION: FOUND.text()}
        assert clusters.configs["east"]["t"][MARK] == "W"
    else:
        assert clusters.configs["west"]["t"][MARK] == "E"
        assert clusters.configs["east"]["t"] == {}


def silent_for(clusters: Clusters, seconds: float, api: ApiKey) -> None:
    """Let west fail all requests of *api* for *seconds*, as while a broker starts again."""
    served = clusters.west.answers[api]
    clusters.west.answers[api] = lambda _: KafkaTimeoutError("silent")
    clusters.west.clock.callLater(seconds, clusters.west.answers.__setitem__, api, served)


@pytest.mark.parametrize(("seconds", "code"), [(20, 0), (300, 5)])
def test_a_broker_that_restarts_after_the_audit_does_not_undo_it(
    clusters: Clusters, seconds: float, code: int
) -> None:
    """The comparison asked once, within 3 s: an audit of hours, and the waiting of producers, were in vain."""
    fence_with_cuts(clusters)
    promoting: Any = clusters.promotion(Comparing)
    promoting.meanwhile = lambda: silent_for(clusters, seconds, ApiKey.FETCH)
    assert clusters.result(promoting.run()) == code, clusters.printed
    assert (promoting.record is None) is (code == 5)


@pytest.mark.parametrize("api", [ApiKey.FETCH, ApiKey.LIST_OFFSETS])
@pytest.mark.parametrize(("seconds", "proven"), [(20, True), (300, False)])
def test_a_broker_that_restarts_after_the_audit_of_a_failback_leaves_it_proven(
    clusters: Clusters, seconds: float, proven: bool, api: ApiKey
) -> None:
    fence_with_cuts(clusters)
    proving = Proving(clusters, 0)
    silent_for(clusters, seconds, api)
    found = clusters.result(proving.proof({T0: 5, T1: 5}))
    assert found == Proof("r", 0) if proven else "silent" in str(found)


def test_what_the_target_lacks_is_printed_again_only_if_the_audit_took_it_up_to_more(
    clusters: Clusters,
) -> None:
    fence_with_cuts(clusters)
    clusters.west.serve_offsets({T0: (2, 5), T1: (3, 5)})
    promoting: Any = clusters.promotion(Comparing)
    promoting.meanwhile = lambda: clusters.west.serve_offsets({T0: (2, 5), T1: (4, 5)})
    assert clusters.result(promoting.run()) == 0, clusters.printed
    assert promoting.record["target_lacks"] == 6
    assert [each.split(" offsets")[0] for each in clusters.printed if "starts later" in each] == [
        "  t-0: starts later: the target lacks 2",
        "  t-1: starts later: the target lacks 3",
        "  t-1: starts later: the target lacks 4",
    ]


def test_what_a_lost_source_had_is_unknown_also_after_its_failback(clusters: Clusters) -> None:
    """The failback has removed it: the logs are equal, and the record had rpo_records 0 with the mode source lost."""
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = {MARK: "W", SOURCE_TOPIC_ID: "C"}
    lost = Opened("E", SOURCE_LOST, 100, (5, 5), (90, None))
    clusters.configs["west"]["t"] = {MARK: "", PROMOTION: lost.text()}
    promoting = clusters.promotion()
    assert clusters.result(promoting.run()) == 4
    assert promoting.record is not None
    assert (promoting.record["mode"], promoting.record["rpo_records"]) == (SOURCE_LOST, None)
    assert clusters.printed[-2:] == [
        "every topic is promoted already",
        "records that east had and west lacks: unknown. t: promoted without east; the record of kmirror failback has "
        "what it exported",
    ]


STOPPED = Opened("E", PRODUCERS_STOPPED, 100, (5, 5), (90, None))


def test_a_topic_that_is_fenced_already_is_exchanged_although_producers_were_stopped(
    clusters: Clusters,
) -> None:
    """The cut was the high watermark: a record that was committed later was above it, and was not copied."""
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = {MARK: "W"}
    serve_log(clusters.east, 6, b"copied", committed=5)
    serve_log(clusters.west, 6, b"copied", committed=6)
    refuse_mirrors(clusters, "west")
    promoting = clusters.promotion(Fencing, producers_stopped=True)
    assert clusters.result(promoting.run()) == 0, clusters.printed
    assert promoting.record is not None
    assert promoting.record["mode"] == EXCHANGED
    assert [each["end"] for each in promoting.record["partitions"]] == [6, 6]
    found = stored_promotion(Topic(2, None, clusters.configs["west"]["t"]))
    assert found is not None
    assert (found.mode, found.ends) == (EXCHANGED, (6, 6))


def test_a_fence_that_is_removed_is_a_refusal_although_producers_were_stopped(
    clusters: Clusters,
) -> None:
    fence_with_cuts(clusters)
    refuse_mirrors(clusters, "east")
    clusters.configs["east"]["t"] = {MARK: "W"}

    class Draining(Fencing):
        async def _drain(self, *_: object) -> None:
            clusters.configs["east"]["t"] = {}

    promoting = clusters.promotion(Draining, producers_stopped=True)
    assert clusters.result(promoting.run()) == 5
    assert clusters.configs["west"]["t"][MARK] == "E"
    assert clusters.printed[-1] == "refused: east accepts producers in t-0, t-1: it has no fence"


@pytest.mark.parametrize(("at_east", "code", "rpo"), [(b"west's", 0, 0), (b"east's", 4, 6)])
def test_copies_at_a_source_that_became_the_mirror_later_are_not_left_behind(
    clusters: Clusters, at_east: bytes, code: int, rpo: int
) -> None:
    """Its producers were stopped, and a failback marked it. West's own records counted as left behind at east."""
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = mirror_of("W")
    clusters.configs["west"]["t"] |= {MARK: "", PROMOTION: STOPPED.text()}
    serve_log(clusters.east, 8, at_east, committed=8)
    serve_log(clusters.west, 8, b"west's", committed=8)
    promoting = clusters.promotion(producers_stopped=True)
    assert clusters.result(promoting.run()) == code, clusters.printed
    assert promoting.record is not None
    assert promoting.record["rpo_records"] == rpo
    assert promoting.record["mode"] == PRODUCERS_STOPPED


@pytest.mark.parametrize("mode", [PRODUCERS_STOPPED, EXCHANGED])
def test_what_a_source_had_that_was_created_again_since_is_unknown(
    clusters: Clusters, mode: str
) -> None:
    """A failback exports what only the source has, and copies it again: the logs are equal, and rpo_records was 0."""
    fence_with_cuts(clusters)
    clusters.configs["east"]["t"] = mirror_of("W")
    found = replace(STOPPED, mode=mode)
    clusters.configs["west"]["t"] = {MARK: "", SOURCE_TOPIC_ID: "old", PROMOTION: found.text()}
    promoting = clusters.promotion()
    assert clusters.result(promoting.run()) == 4
    assert promoting.record is not None
    assert (promoting.record["mode"], promoting.record["rpo_records"]) == (mode, None)
    assert clusters.printed[-1] == (
        "records that east had and west lacks: unknown. t: created again at east since; if by kmirror failback, its "
        "record has what it exported"
    )


@pytest.mark.parametrize("both", [True, False])
def test_a_source_that_is_lost_in_the_midst_of_the_opening_leaves_a_record_of_all_topics(
    clusters: Clusters, both: bool
) -> None:
    """Those that were opened with it were in no record. If all were, the command was refused: no mirror topics."""
    fence_with_cuts(clusters)
    clusters.west.topics["u"] = 2
    exchanged = replace(STOPPED, mode=EXCHANGED)
    clusters.configs["west"]["t"] = {MARK: "E", SOURCE_TOPIC_ID: "C"}
    clusters.configs["west"]["u"] = {MARK: "", PROMOTION: exchanged.text()}
    if both:
        clusters.configs["west"]["t"] = dict(clusters.configs["west"]["u"])
    clusters.east.down = {1}
    promoting = clusters.promotion(source_lost=True)
    assert clusters.result(promoting.run()) == 0, clusters.printed
    record = promoting.record
    assert record is not None
    assert {each["topic"] for each in record["partitions"]} == {"t", "u"}
    assert record["mode"] == (EXCHANGED if both else SOURCE_LOST)
    assert record["rpo_records"] is None
    assert clusters.configs["west"]["u"] == {MARK: "", PROMOTION: exchanged.text()}


class Proving(Recopy):
    """A recopy that is at its audit: kaudit has found the logs equal."""

    def __init__(self, clusters: Clusters, aged_out: int) -> None:
        self._reactor = clusters.east.clock
        self._config = FlowConfig("east", "west", EAST, WEST, LinkSettings(enabled=True))
        self._source, self._target = clusters.east.cluster(EAST), clusters.west.cluster(WEST)
        self._options: Any = SimpleNamespace(without_audit=False, audit=Path("report"))
        self._echo = clusters.printed.append
        self._aged_out = aged_out

    async def _proof(self, *_: object) -> Proof:
        return Proof("r", self._aged_out)

    async def proof(self, cuts: dict[TopicPartition, int]) -> Proof | None:
        topics: Any = SimpleNamespace(copy_of=lambda tp: tp)
        return await self._audit(topics, cuts)


@pytest.mark.parametrize("aged_out", [0, 1])
@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        (5, 5, "t-0: the target has deleted all that it had"),
        (0, 4, "t-0 ends at 4 at the target, below its cut 5"),
        (4, 5, ""),
        (0, 0, "t-0 ends at 0 at the target, below its cut 5"),
    ],
)
def test_a_failback_is_not_proven_if_the_target_is_emptied_while_kaudit_reads(
    clusters: Clusters, start: int, end: int, reason: str, aged_out: int
) -> None:
    """kaudit has compared nothing of it, or had read it before."""
    fence_with_cuts(clusters)
    clusters.west.serve_offsets({T0: (start, end), T1: (0, 5)})
    found = clusters.result(Proving(clusters, aged_out).proof({T0: 5, T1: 5}))
    assert found == Proof("r", aged_out) if not reason else reason in str(found)


def test_a_failback_is_proven_of_a_partition_that_the_source_had_emptied_before(
    clusters: Clusters,
) -> None:
    """Nothing was there to copy. It was NOT PROVEN, and every repetition was, too."""
    fence_with_cuts(clusters)
    clusters.east.serve_offsets({T0: (5, 5), T1: (0, 5)})
    clusters.west.serve_offsets({T0: (0, 0), T1: (0, 5)})
    assert clusters.result(Proving(clusters, 0).proof({T0: 5, T1: 5})) == Proof("r", 0)


@pytest.mark.parametrize("name", ["east", "west"])
def test_a_search_names_the_cluster_of_a_header_that_cannot_be_read(
    clusters: Clusters, name: str
) -> None:
    """It was a bare CORRUPT_MESSAGE: which replica to replace was unknown, and --topics was not named."""
    fence_with_cuts(clusters)
    scripted: ScriptedCluster = getattr(clusters, name)
    served = scripted.answers[ApiKey.FETCH]

    def without_magic(request: Any) -> Any:
        answer = served(request)
        for topic in answer.topics:
            for each in topic.partitions:
                data = bytearray(each.record_set)
                data[16] = 7
                each.records = [memoryview(data)]
        return answer

    scripted.answers[ApiKey.FETCH] = without_magic
    topics: Any = SimpleNamespace(copy_of=lambda tp: tp)
    found = clusters.result(Proving(clusters, 0)._pair(topics, T0, 4))
    assert isinstance(found, Refused), found
    assert str(found).startswith(f"{name}: fetch of t-0 at offset 4: ")
    assert "leave the topic out (--topics)" in str(found)


def test_a_source_that_lost_its_fence_is_no_success(clusters: Clusters) -> None:
    """Its high watermarks were read instead: rpo_records 0 and exit code 0, and it accepted producers."""
    fence_with_cuts(clusters)
    refuse_mirrors(clusters, "east")

    class Opening(Fencing):
        async def _open(self, *given: Any) -> None:
            await super()._open(*given)
            clusters.configs["east"]["t"] = {}

    promoting = clusters.promotion(Opening)
    assert clusters.result(promoting.run()) == 4
    assert promoting.record is not None
    assert promoting.record["rpo_records"] is None
    assert clusters.printed[-1].startswith("east accepts producers in t-0, t-1: it has no fence")
    assert clusters.printed[-1].endswith(
        "Stop its producers. kmirror failback of the other direction then exports these records, and makes east the "
        "mirror; of a compacted topic, or one that was created again, consume them, and delete it at east: kmirror run "
        "of the other direction copies it again"
    )
    assert not any("reads it again" in each for each in clusters.printed)
    assert clusters.result(clusters.promotion(Fencing).run()) == 5
    assert clusters.printed[-1].startswith(
        "refused: t: the target was promoted, and the source has lost its mark since, so it may accept producers."
    )
    east, west = (Topic(2, None, clusters.configs[name]["t"]) for name in ("east", "west"))
    ids = clusters.east.topic_id("t"), clusters.west.topic_id("t")
    back = TopicPair(
        name="t",
        source=replace(west, topic_id=ids[1]),
        target=replace(east, topic_id=ids[0]),
        copy="t",
        source_id="W",
        target_id="E",
    )
    assert failback_stage.stage_of(back, is_exported=False) is failback_stage.Stage.RETURNED


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NOT_LEADER_OR_FOLLOWER]
)
def test_partitions_without_a_confirmed_fence_have_no_known_end(
    clusters: Clusters, code: ErrorCode
) -> None:
    """Their high watermarks are the cut while no record was written yet: rpo_records 0 and exit code 0."""
    clusters.east.topics["u"] = clusters.west.topics["u"] = 1
    fence_with_cuts(clusters)
    copied = text_of(clusters.east.topic_id("u"))
    clusters.configs["west"]["u"] = {MARK: "E", SOURCE_TOPIC_ID: copied}
    ends = {T0: (0, 5), T1: (0, 5), TopicPartition("u", 0): (0, 5)}
    for scripted in (clusters.east, clusters.west):
        scripted.serve_offsets(ends)
    of_a_mirror = clusters.east.answers[ApiKey.PRODUCE]

    def produced(request: Any) -> Any:
        answer = of_a_mirror(request)
        for topic in answer.topics:
            for each in topic.partitions:
                each.error_code = ErrorCode.POLICY_VIOLATION if topic.name == "u" else code
                each.log_end_offset = -1
        return answer

    class Opening(Fencing):
        async def _open(self, *_: object) -> None:
            clusters.east.answers[ApiKey.PRODUCE] = produced

    promoting = clusters.promotion(Opening)
    assert clusters.result(promoting.run()) == 4, clusters.printed
    assert promoting.record is not None
    assert promoting.record["rpo_records"] is None
    assert [each["source_end"] for each in promoting.record["partitions"]] == [None] * 3
    text = "\n".join(clusters.printed)
    assert "east accepts producers in u-0: it has no fence" in text
    assert "the end of east's own records is unknown in 2 of 3 partitions" in text


@pytest.mark.parametrize("soon", [True, False])
def test_copies_that_are_not_committed_yet_are_waited_for(clusters: Clusters, soon: bool) -> None:
    fence_with_cuts(clusters)

    class Opening(Fencing):
        async def _open(self, *given: Any) -> None:
            await super()._open(*given)
            serve_log(clusters.east, 8, b"west's", committed=7)
            serve_log(clusters.west, 8, b"west's", committed=8)
            if soon:
                clusters.east.clock.callLater(
                    3, serve_log, clusters.east, 8, b"west's", committed=8
                )

    promoting = clusters.promotion(Opening)
    assert clusters.result(promoting.run()) == (0 if soon else 4)
    assert promoting.record is not None
    assert promoting.record["rpo_records"] == (0 if soon else None)
