"""Which topics can change their roles, and what a report of kaudit proves of them."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from twisted.internet.defer import Deferred

from kclient.config import CommonConfig
from kclient.types import TopicPartition
from kclient.wire.error_codes import ErrorCode
from kclient.wire.schema.metadata import MetadataResponse, MetadataResponseTopic
from kclient.wire.versions import ApiKey
from mirrormaker import failback_stage
from mirrormaker.audit_proof import not_proven
from mirrormaker.catalog import Catalog
from mirrormaker.command_exit import Refused
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.link_state import LastBatch, LogEnds
from mirrormaker.promote import Options, Promotion
from mirrormaker.promotion import (
    Stage,
    emptied,
    lacked,
    not_at_the_cut,
    stage_of,
    stages,
    without_source,
)
from mirrormaker.promotion_fence import fence_of
from mirrormaker.promotion_record import (
    EXCHANGED,
    LONGEST_VALUE,
    PRODUCERS_STOPPED,
    Groups,
    Opened,
    PromotedPartition,
    PromotionReport,
    end_without_copies,
    opened,
    stored_promotion,
)
from mirrormaker.promotion_topics import Roles
from mirrormaker.settings import LinkSettings
from mirrormaker.topics import CREATE_TIME, MARK, PROMOTION, SOURCE_LOST, Topic, TopicPair
from tests.kit.scripted_cluster import ScriptedCluster

ID, OTHER = UUID(int=1), UUID(int=2)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def topic(mark: str = "", copied: UUID | None = None, *, partitions: int = 2) -> Topic:
    overrides = {MARK: mark, SOURCE_TOPIC_ID: text_of(copied)}
    return Topic(partitions, ID, {name: value for name, value in overrides.items() if value})


def pair(name: str, source: Topic, target: Topic | None, *, copy: str) -> TopicPair:
    return TopicPair(
        name=name, source=source, target=target, copy=copy, source_id="E", target_id="W"
    )


def stage(source: Topic, target: Topic | None, *, copy: str = "t") -> Stage:
    return stage_of(pair("t", source, target, copy=copy))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (topic(), topic("E", ID), Stage.MIRRORED),
        (topic("W"), topic("E", ID), Stage.FENCED),
        (topic("W"), Topic(2, ID, {MARK: ""}), Stage.PROMOTED),
    ],
)
def test_the_marks_of_both_clusters_are_the_state(
    source: Topic, target: Topic, expected: Stage
) -> None:
    assert stage(source, target) is expected


@pytest.mark.parametrize(
    ("source", "target", "copy", "reason"),
    [
        (topic(), None, "t", "does not exist"),
        (topic(), topic("E", ID), "east.t", "the target's name is east.t"),
        (topic(), topic("E", ID, partitions=3), "t", "2 partitions at the source, 3"),
        (topic("N"), topic("E", ID), "t", "itself a mirror, of cluster N"),
        (topic(), topic("N", ID), "t", "a mirror of cluster N"),
        (topic(), topic(), "t", "not marked as a mirror"),
        (topic(), topic("E", OTHER), "t", "it was created again"),
        (topic(), topic("E"), "t", "does not state .* kmirror failback"),
        (topic("W"), topic("E"), "t", "does not state .* kmirror failback"),
        (topic("W"), topic("N"), "t", "a mirror of cluster N"),
    ],
)
def test_what_cannot_change_its_role_is_refused_with_the_reason(
    source: Topic, target: Topic | None, copy: str, reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        stage(source, target, copy=copy)


def test_a_source_without_topic_ids_needs_none_at_the_target() -> None:
    assert stage(Topic(2, None), topic("E")) is Stage.MIRRORED


def test_a_refusal_names_every_topic_that_cannot_be_promoted() -> None:
    targets = {"a": None, "b": topic("E", ID), "c": None}
    with pytest.raises(Refused, match=r"a: .*; c: "):
        stages(pair(name, topic(), target, copy=name) for name, target in targets.items())
    with pytest.raises(Refused, match="no topic"):
        stages([])


def test_without_the_source_its_mirrors_are_found_by_their_mark() -> None:
    topics = {"a": topic("E"), "b": topic("N"), "c": topic(), "d": topic("E")}
    assert without_source(topics, ["a", "c", "d"], None).mirrors == ["a", "d"]
    assert without_source(topics, topics, "N").mirrors == ["b"]
    with pytest.raises(Refused, match="several clusters"):
        without_source(topics, topics, None)
    with pytest.raises(Refused, match="no mirror topics"):
        without_source(topics, ["c"], None)
    with pytest.raises(Refused, match="of cluster X"):
        without_source(topics, topics, "X")


def promoted(found: Opened, mark: str = "", copied: UUID = ID) -> Topic:
    marks = {MARK: mark, SOURCE_TOPIC_ID: text_of(copied)}
    return Topic(len(found.ends), ID, {**marks, PROMOTION: found.text()})


FOUND = Opened("E", EXCHANGED, 100, (5, 7), (90, None), "run-1", Groups(3, ("standby",)))
LOST = Opened("E", SOURCE_LOST, 100, (5, 7), (90, None))


def test_a_promoted_topic_states_what_its_promotion_found() -> None:
    assert opened(promoted(FOUND), "E") == FOUND
    assert opened(promoted(FOUND, mark="E"), "E") is None
    assert opened(promoted(FOUND), "N") is None
    for text in ("", "5", "[]", "{}", '{"ends":[1]}', '{"ends":null}', "not JSON"):
        assert stored_promotion(Topic(1, ID, {PROMOTION: text})) is None


def test_of_many_partitions_the_timestamps_are_left_out_before_the_ends() -> None:
    def stored(partitions: int) -> str:
        ends, stamps = (10**9,) * partitions, (10**12,) * partitions
        return Opened("E", EXCHANGED, 1, ends, stamps).text()

    found = stored_promotion(Topic(2000, ID, {PROMOTION: stored(2000)}))
    assert len(stored(2000)) <= LONGEST_VALUE
    assert found is not None
    assert (found.ends, found.timestamps) == ((10**9,) * 2000, (None,) * 2000)
    assert stored(4000) == ""
    names = tuple("g" * 249 for _ in range(200))
    found = stored_promotion(
        Topic(1, ID, {PROMOTION: replace(FOUND, groups=Groups(3, names)).text()})
    )
    assert found == replace(FOUND, groups=Groups(3, None)), "the names are left out first"


def test_groups_with_members_at_the_target_are_named_and_not_counted_as_copied() -> None:
    def stated(groups: Groups | None, *earlier: Groups | None) -> tuple[Any, Any]:
        record = PromotionReport("east->west", "E", "W", EXCHANGED, (), None, groups)
        before = [replace(FOUND, groups=each) for each in earlier]
        document = record.joined(before, []).document(ended_ms=1)
        return document["groups"], document["groups_with_members"]

    assert stated(Groups(2, ("b",)), Groups(3, ("a",))) == (3, ["a", "b"])
    assert stated(None) == (None, None)
    assert stated(None, Groups(1, ())) == (1, [])
    assert stated(Groups(1, ()), Groups(2, None)) == (2, None), (
        "an earlier release did not state them"
    )
    old = json.loads(FOUND.text())
    del old["groups_with_members"]
    found = stored_promotion(Topic(2, ID, {PROMOTION: json.dumps(old)}))
    assert found is not None
    assert found.groups == Groups(3, None)


def test_topics_that_were_promoted_without_the_source_are_found_again() -> None:
    topics = {"a": topic("E"), "b": promoted(LOST), "d": topic()}
    lost = without_source(topics, topics, None)
    assert (lost.source_id, lost.mirrors, dict(lost.opened)) == ("E", ["a"], {"b": LOST})
    lost = without_source(topics, ["b", "d"], None)
    assert (lost.source_id, lost.mirrors, dict(lost.opened)) == ("E", [], {"b": LOST})
    with pytest.raises(Refused, match="no mirror topics"):
        without_source(topics, ["d"], None)


@pytest.mark.parametrize("mode", [EXCHANGED, PRODUCERS_STOPPED])
def test_without_the_source_topics_that_were_promoted_with_it_are_found_again(mode: str) -> None:
    """A promotion was killed between two topics, then the source was lost: the record had one of them."""
    half = replace(FOUND, mode=mode)
    topics = {"a": topic("E"), "c": promoted(half), "n": promoted(replace(FOUND, source_id="N"))}
    lost = without_source(topics, topics, None)
    assert (lost.source_id, lost.mirrors, dict(lost.opened)) == ("E", ["a"], {"c": half})
    lost = without_source(topics, ["c"], None)
    assert (lost.source_id, lost.mirrors, dict(lost.opened)) == ("E", [], {"c": half})
    with pytest.raises(Refused, match="several clusters"):
        without_source(topics, ["c", "n"], None)
    assert dict(without_source(topics, topics, "N").opened).keys() == {"n"}


def test_a_source_without_marks_is_promoted_if_the_target_states_it() -> None:
    stopped = Opened("E", PRODUCERS_STOPPED, 100, (5, 7), (None, None))
    assert stage(topic(), promoted(stopped)) is Stage.PROMOTED
    with pytest.raises(Refused, match="has lost its mark since"):
        stage(topic(), promoted(FOUND))


@pytest.mark.parametrize("mode", [SOURCE_LOST, PRODUCERS_STOPPED])
def test_a_source_that_was_promoted_later_is_not_called_one_that_lost_its_mark(mode: str) -> None:
    """The advice was a failback in the wrong direction: it deletes topics that producers write to."""
    back = Opened("W", mode, FOUND.began_ms + 1, (5, 7), (None, None))
    for west in (FOUND, replace(FOUND, mode=PRODUCERS_STOPPED)):
        with pytest.raises(
            Refused, match="the source was promoted after the target was"
        ) as refused:
            stage(promoted(back), promoted(west))
        assert "kmirror failback of this direction" in str(refused.value)


@pytest.mark.parametrize("mode", [EXCHANGED, SOURCE_LOST])
@pytest.mark.parametrize(
    ("at_source", "copied", "fails_back"),
    [
        ({}, ID, True),
        ({"cleanup.policy": "compact"}, ID, False),
        ({}, OTHER, False),  # deleted and created again since
    ],
)
def test_a_source_without_its_mark_has_a_way_back_that_is_not_refused(
    mode: str, at_source: dict[str, str], copied: UUID, fails_back: bool
) -> None:
    """kmirror failback refuses compacted topics, and those that were created again."""
    source, target = (
        replace(topic(), effective=at_source),
        promoted(replace(FOUND, mode=mode), copied=copied),
    )
    text = (
        "the target was promoted without the source"
        if mode == SOURCE_LOST
        else "lost its mark since"
    )
    with pytest.raises(Refused, match=text) as refused:
        stage(source, target)
    deletes = "delete the topic at the source, and kmirror run of the other direction"
    assert (deletes in str(refused.value)) is not fails_back
    assert ("kmirror failback of the other direction then" in str(refused.value)) is fails_back
    assert accepts_failback(target, source) is fails_back


def accepts_failback(promoted_topic: Topic, returned: Topic) -> bool:
    """Return whether a failback from *promoted_topic* to *returned* is not refused."""
    back = replace(pair("t", promoted_topic, returned, copy="t"), source_id="W", target_id="E")
    try:
        failback_stage.stage_of(back, is_exported=False)
    except Refused:
        return False
    return True


@pytest.mark.parametrize(
    ("at_target", "copied", "fails_back"),
    [({}, ID, True), ({"cleanup.policy": "compact"}, ID, False), ({}, OTHER, False)],
)
def test_a_target_that_is_behind_a_later_promotion_has_a_way_back_that_is_not_refused(
    at_target: dict[str, str], copied: UUID, fails_back: bool
) -> None:
    back = Opened("W", SOURCE_LOST, FOUND.began_ms + 1, (5, 7), (None, None))
    source = promoted(back, copied=copied)
    target = replace(promoted(FOUND), effective=at_target)
    with pytest.raises(Refused, match="the source was promoted after the target was") as refused:
        stage(source, target)
    deletes = "delete the topic at the target, and kmirror run of this direction"
    assert (deletes in str(refused.value)) is not fails_back
    failback = replace(pair("t", source, target, copy="t"), source_id="E", target_id="W")
    if fails_back:
        assert failback_stage.stage_of(failback, is_exported=False)
    else:
        with pytest.raises(Refused):
            failback_stage.stage_of(failback, is_exported=False)


def test_a_target_that_lost_its_mark_is_not_promoted() -> None:
    """A config tool removed it while a promotion ran: the same command then ended with 0, and had compared nothing."""
    with pytest.raises(Refused, match=f"lost its mark, {MARK}.* Only if not, set it to E"):
        stage(topic("W", ID), topic())


def test_a_mirror_of_the_other_direction_needs_no_promotion() -> None:
    """Both directions mirror the same names. The whole promotion was refused, with the advice to close a live topic."""
    mirror = Topic(2, OTHER, {MARK: "W", SOURCE_TOPIC_ID: text_of(ID), **CREATE_TIME})
    assert stage(mirror, topic()) is Stage.OTHER_DIRECTION
    lost = r"lost its mark, .* set it to the empty string"
    with pytest.raises(Refused, match=lost):
        stage(mirror, Topic(2, ID, {SOURCE_TOPIC_ID: text_of(OTHER)}))
    fenced = fence_of(Topic(2, OTHER, CREATE_TIME), "W", text_of(ID))
    overrides = {name: value for name, value in fenced.items() if value}
    with pytest.raises(Refused, match=lost):
        stage(Topic(2, OTHER, {**overrides, **CREATE_TIME}), topic())


def test_a_later_command_has_the_record_of_all_partitions() -> None:
    again = PromotionReport("east->west", "E", "W", EXCHANGED, (), None, None, 900)
    joined = again.joined([FOUND], FOUND.partitions("t"))
    assert (joined.began_ms, joined.audit, joined.groups) == (100, "run-1", FOUND.groups)
    assert [(each.tp, each.end, each.last_timestamp_ms) for each in joined.partitions] == [
        (T0, 5, 90),
        (T1, 7, None),
    ]
    half = PromotionReport(
        "east->west", "E", "W", EXCHANGED, (PromotedPartition(T0, 5, 5),), None, Groups(4, ()), 900
    )
    assert half.joined([FOUND], []).audit is None
    assert half.joined([FOUND], []).groups == Groups(4, ("standby",))
    assert half.joined([], []) == half


def test_what_the_audits_of_several_commands_did_not_compare_is_counted_once_for_each() -> None:
    first, second = replace(FOUND, aged_out=4), replace(FOUND, audit="run-2", aged_out=2)
    assert stored_promotion(promoted(first)) == first
    own = PromotedPartition(T0, 5, 5)
    record = PromotionReport("east->west", "E", "W", EXCHANGED, (own,), "run-3", None, 900, 1)
    joined = record.joined([first, first, second], [])
    assert joined.audit == "run-1,run-2,run-3"
    assert joined.document(ended_ms=1)["audit_aged_out"] == 7
    assert replace(record, audit=None).document(ended_ms=1)["audit_aged_out"] is None


def ends(source_end: int, target_end: int, source_crc: int = 1, target_crc: int = 1) -> LogEnds:
    below = target_end - 1
    return LogEnds(
        0,
        source_end,
        0,
        target_end,
        LastBatch(below, target_end, source_crc, 0) if target_end <= source_end else None,
        LastBatch(below, target_end, target_crc, 0),
    )


@pytest.mark.parametrize(
    ("end", "copied_back", "own_end"),
    [
        (5, None, 5),
        (8, ends(9, 8), 5),  # the target's records, copied back
        (8, ends(9, 8, target_crc=2), 8),  # its own records, at offsets of the target's
        (8, ends(6, 8), 8),  # its own, further than the target's log
        (8, ends(9, 7), None),  # not all of them are committed
        (8, None, None),
    ],
)
def test_copies_of_the_targets_records_are_not_left_behind(
    end: int, copied_back: LogEnds | None, own_end: int | None
) -> None:
    assert end_without_copies(5, end, copied_back, compacted=False) == own_end


def test_different_batches_of_a_compacted_topic_show_nothing() -> None:
    assert end_without_copies(5, 8, ends(9, 8, target_crc=2), compacted=True) is None
    assert end_without_copies(5, 8, ends(9, 8), compacted=True) == 5


def test_a_target_that_starts_later_is_counted_and_one_that_is_emptied_is_named() -> None:
    later, whole, both = LogEnds(0, 9, 4, 9), LogEnds(3, 9, 0, 9), LogEnds(9, 9, 9, 9)
    gone, compacted = LogEnds(2, 9, 9, 9), True
    assert [lacked(each, compacted=False) for each in (later, whole, both, gone)] == [4, 0, 0, 7]
    assert [lacked(each, compacted=compacted) for each in (later, whole)] == [None, 0]
    assert [emptied(T0, each) for each in (later, whole, both)] == ["", "", ""]
    assert "it lacks 7 offsets from 2 on" in emptied(T0, gone)
    never_written = LogEnds(9, 9, 0, 0)
    assert emptied(T0, never_written) == "", "the prefix check has it"


def test_what_the_target_lacks_below_its_log_start_is_in_every_record() -> None:
    found = stored_promotion(promoted(replace(FOUND, lacks=(4, None))))
    assert found is not None
    assert [each.lacks for each in found.partitions("t")] == [4, None]
    assert [each.lacks for each in FOUND.partitions("t")] == [None, None], "an earlier release"
    for text in ('{"target_lacks":[1],', '{"target_lacks":5,'):
        broken = FOUND.text().replace('"target_lacks":null,', "").replace("{", text, 1)
        assert stored_promotion(Topic(2, ID, {PROMOTION: broken})) is None

    def stated(*lacks: int | None) -> Any:
        partitions = tuple(PromotedPartition(T0, 5, 5, None, each) for each in lacks)
        record = PromotionReport("east->west", "E", "W", EXCHANGED, partitions).document(ended_ms=1)
        return record["target_lacks"], [each["target_lacks"] for each in record["partitions"]]

    assert stated(4, 0) == (4, [4, 0])
    assert stated(4, None) == (None, [4, None])


def test_a_target_that_is_behind_or_ahead_of_the_cut_is_named() -> None:
    assert not_at_the_cut({T0: 3, T1: 4}, {T0: 3, T1: 4}) == ""
    assert not_at_the_cut({T0: 3, T1: 4}, {T0: 2, T1: 5}) == (
        "t-0 ends at 2, not at 3; t-1 ends at 5, not at 4"
    )
    never_written = not_at_the_cut({T0: 0, T1: 4}, {T0: 0, T1: 0})
    assert never_written.startswith("t-1 ends at 0, not at 4; an end of 0")


def report(*, verdict: str = "CONSISTENT", target: str = "W", **proven: int) -> dict[str, Any]:
    partitions = [{"partition": int(name[1:]), "proven_up_to": end} for name, end in proven.items()]
    return {
        "verdict": verdict,
        "source": {"cluster_id": "E"},
        "target": {"cluster_id": target},
        "topics": [{"topic": "t", "partitions": partitions}],
    }


@pytest.mark.parametrize(
    ("found", "left_open"),
    [
        (report(p0=3, p1=9), ""),
        (report(p0=2, p1=4), "t-0 is proven up to 2, not to 3"),
        (report(p0=3), "t-1 is not in it"),
        (report(verdict="DIVERGED", p0=3, p1=4), "the verdict is DIVERGED"),
        (report(target="X", p0=3, p1=4), "the report compares clusters E and X"),
        ({"verdict": "ERROR"}, "the report compares clusters None and None"),
    ],
)
def test_a_report_proves_only_what_it_compared(found: dict[str, Any], left_open: str) -> None:
    cuts = {T0: 3, T1: 4}
    assert not_proven(found, cuts, source_id="E", target_id="W") == left_open


def test_records_left_behind_are_unknown_unless_every_source_partition_was_read() -> None:
    def made(*ends: int | None) -> int | None:
        partitions = tuple(PromotedPartition(T0, 5, end) for end in ends)
        return PromotionReport("east->west", "E", "W", "exchanged", partitions).left_behind

    assert made(5, 5) == 0
    assert made(5, 8) == 3
    assert made(5, None) is None


@pytest.mark.parametrize(
    ("found", "code", "lines"),
    [
        ({T0: 5, T1: 5}, 0, []),
        ({T0: 5, T1: 8}, 4, ["3 offsets at east are behind the cut"]),
        ({T0: 5}, 4, ["the end of east's own records is unknown in 1 of 2 partitions"]),
        ({T0: 8}, 4, ["the end of east's own records is unknown", "3 offsets at east are behind"]),
    ],
)
def test_records_behind_the_cut_and_partitions_of_which_they_are_unknown_are_exit_code_4(
    found: dict[TopicPartition, int], code: int, lines: list[str]
) -> None:
    class Ending(Promotion):
        async def _source_ends(self, *_: object) -> Any:
            return found, ()

        async def _end_fences(self, *_: object) -> None: ...

    config = SimpleNamespace(
        name="east->west", source="east", target="west", settings=LinkSettings()
    )
    stages = {"t": Stage.MIRRORED}
    roles: Any = Roles("E", "W", None, None, {"t": topic()}, {"t": topic("E", ID)}, stages)  # type: ignore[arg-type]
    printed: list[str] = []
    ending: Any = Ending(None, config, Options(), printed.append)  # type: ignore[arg-type]
    codes: list[int] = []
    Deferred.fromCoroutine(
        ending._ended(None, roles, {T0: 5, T1: 5}, {}, {}, None, None)
    ).addCallback(codes.append)
    assert codes == [code]
    assert len(printed) == len(lines)
    assert all(text.startswith(start) for text, start in zip(printed, lines, strict=True))


@pytest.mark.parametrize("stopped", [False, True])
def test_partitions_that_were_added_before_the_fence_are_not_left_behind_unseen(
    stopped: bool,
) -> None:
    """They were in no cut: what producers had written there was in no record, and the exit code was 0."""
    scripted = ScriptedCluster({"t": 3})
    ends = {TopicPartition("t", n): (0, 5) for n in range(3)}
    scripted.serve_offsets(ends)
    scripted.serve_log_ends(5)
    cluster = scripted.cluster(CommonConfig.load({"bootstrap.servers": "a:1"}))
    config: Any = SimpleNamespace(
        name="east->west", source="east", target="west", settings=LinkSettings()
    )
    promoting = Promotion(
        scripted.clock, config, Options(producers_stopped=stopped), lambda _: None
    )
    topics = Catalog(cluster)
    roles: Any = Roles(
        "E", "W", topics, topics, {"t": topic()}, {"t": topic("E", ID)}, {"t": Stage.FENCED}
    )
    mirror: Any = SimpleNamespace(source=cluster)

    def cut() -> Any:
        results: list[Any] = []
        Deferred.fromCoroutine(promoting._cut(mirror, roles, {})).addBoth(results.append)
        scripted.pass_time(1.0)
        return results[0]

    found = cut()
    assert isinstance(getattr(found, "value", None), Refused), found
    assert "t has 3 partitions at the source now, and had 2" in str(found.value)
    scripted.topics["t"] = 2
    assert cut() == {T0: 5, T1: 5}


def test_a_controller_that_does_not_know_the_topics_yet_is_no_deletion_of_them() -> None:
    """The command was refused with "has 0 partitions at the source now", as for a topic that was deleted."""
    scripted = ScriptedCluster({"t": 2})
    topics = Catalog(scripted.cluster(CommonConfig.load({"bootstrap.servers": "a:1"})))

    def counted(code: int) -> Any:
        scripted.answers[ApiKey.METADATA] = lambda _: MetadataResponse(
            topics=[MetadataResponseTopic(error_code=code, name="t")]
        )
        results: list[Any] = []
        Deferred.fromCoroutine(topics.partitions_at_controller(["t"])).addBoth(results.append)
        scripted.pass_time(1.0)
        return results[0]

    assert counted(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == {"t": 0}
    starting = counted(ErrorCode.LEADER_NOT_AVAILABLE)
    assert starting.value.code == ErrorCode.LEADER_NOT_AVAILABLE
