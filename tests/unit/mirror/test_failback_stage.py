"""How far the failback of a topic is, from the marks and topic ids of both clusters and the export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from kclient.wire.errors import CorruptMessage
from kclient.wire.records import Record as KafkaRecord
from kclient.wire.records import encode_batch
from mirrormaker.command_exit import Refused
from mirrormaker.divergence import Batch, read_batches
from mirrormaker.export_manifest import ExportedFile, ExportedPartition, Manifest
from mirrormaker.failback_stage import (
    FailbackReport,
    Stage,
    TargetState,
    changed,
    no_longer_equal,
    not_created_again,
    proven_until,
    refusal,
    source_damage,
    stage_of,
    state_after,
    state_at_target,
    summary,
    unreadable,
)
from mirrormaker.lineage import SOURCE_TOPIC_ID, text_of
from mirrormaker.promotion_record import Opened
from mirrormaker.settings import LinkSettings
from mirrormaker.tail_export import (
    BadExport,
    begin,
    directory_of,
    locked,
    read_manifest,
    verify,
    write_manifest,
)
from mirrormaker.topics import (
    MARK,
    PROMOTION,
    SOURCE_LOST,
    Plan,
    Selection,
    Topic,
    TopicPair,
    compared_with,
)

LOST, PROMOTED, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)


def topic(
    topic_id: UUID, mark: str | None = None, copied: UUID | None = None, policy: str = "delete"
) -> Topic:
    overrides = {} if mark is None else {MARK: mark}
    if copied is not None:
        overrides[SOURCE_TOPIC_ID] = text_of(copied)
    return Topic(1, topic_id, overrides, {"cleanup.policy": policy}, 1)


WEST = topic(PROMOTED, "", LOST)


def stage(
    source: Topic, target: Topic | None, *, copy: str = "t", is_exported: bool = False
) -> Stage | None:
    pair = TopicPair(
        name="t", source=source, target=target, copy=copy, source_id="W", target_id="E"
    )
    return stage_of(pair, is_exported=is_exported)


@pytest.mark.parametrize(
    ("target", "is_exported", "expected"),
    [
        (topic(LOST), False, Stage.RETURNED),
        (topic(LOST, ""), False, Stage.RETURNED),
        (topic(LOST, "W"), False, Stage.FENCED),
        (topic(LOST, "W"), True, Stage.FENCED),
        (None, True, Stage.DELETED),
        (topic(OTHER, "W", PROMOTED), True, Stage.MIRROR),
        (topic(LOST, "W", PROMOTED), True, Stage.MIRROR),
        # A pair that failed back before: the statement of that time is of an earlier topic.
        (topic(LOST, "W", OTHER), False, Stage.FENCED),
        (topic(LOST, "", PROMOTED), False, Stage.RETURNED),
    ],
)
def test_the_marks_the_topic_ids_and_the_export_are_the_state(
    target: Topic | None, is_exported: bool, expected: Stage
) -> None:
    assert stage(WEST, target, is_exported=is_exported) is expected


@pytest.mark.parametrize(
    ("source", "target", "is_exported", "reason"),
    [
        (topic(PROMOTED, "E", LOST), topic(LOST), False, "promote --source-lost opens it first"),
        (topic(PROMOTED, "N", LOST), topic(LOST), False, "is a mirror of cluster N"),
        (WEST, None, False, "has no export of topic id"),
        (WEST, topic(LOST, "N"), False, "the target's topic is a mirror of cluster N"),
        (WEST, topic(OTHER), False, "it is another topic"),
        (WEST, topic(OTHER, "W"), False, "it is another topic"),
        (WEST, topic(OTHER), True, "another client created it"),
        (topic(PROMOTED), topic(LOST), False, "no topic id of the target"),
        (WEST, topic(LOST, policy="compact"), False, "is compacted"),
        (topic(PROMOTED, "", LOST, "compact,delete"), topic(LOST), False, "is compacted"),
    ],
)
def test_what_could_remove_another_topic_is_refused(
    source: Topic, target: Topic | None, is_exported: bool, reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        stage(source, target, is_exported=is_exported)


def promoted_without_its_source(source: Topic, *, began_ms: int = 100) -> Topic:
    stored = Opened("E", SOURCE_LOST, began_ms, (5,), (None,)).text()
    return replace(source, overrides={**source.overrides, PROMOTION: stored})


def test_a_fence_that_was_set_before_the_source_was_lost_proves_nothing() -> None:
    """Before, the topic was a mirror: never compared, and a compacted one continued behind records of its own."""
    west, fenced = promoted_without_its_source(WEST), topic(LOST, "W", PROMOTED)
    pair = TopicPair(name="t", source=west, target=fenced, copy="t", source_id="W", target_id="E")
    assert stage_of(pair, is_exported=False) is Stage.RETURNED
    assert stage_of(pair, is_exported=True) is Stage.RETURNED
    compared = replace(fenced, overrides={**fenced.overrides, **compared_with(west, "E")})
    assert stage(west, compared) is Stage.MIRROR  # whatever the directory of the next command
    later = promoted_without_its_source(WEST, began_ms=200)
    assert stage(later, compared) is Stage.RETURNED
    assert stage(WEST, fenced) is Stage.MIRROR  # of a promotion that copied everything
    created_again = topic(OTHER, "W", PROMOTED)
    assert stage(west, created_again) is Stage.MIRROR
    with pytest.raises(Refused, match="is compacted"):
        stage(west, topic(LOST, "W", PROMOTED, policy="compact"))


@pytest.mark.parametrize("mark", [None, "W"])
@pytest.mark.parametrize(
    ("here", "there"), [("compact", "compact"), ("compact", "delete"), ("delete", "compact")]
)
def test_a_compacted_topic_that_came_back_is_not_continued(
    mark: str | None, here: str, there: str
) -> None:
    """Its batches cannot show that it has records of its own: kmirror appended behind them."""
    west = promoted_without_its_source(topic(PROMOTED, "", LOST, here))
    lost = topic(LOST, mark, PROMOTED if mark else None, there)
    selection = Selection("west", "east", LinkSettings())
    plan = selection.plan({"t": west}, {"t": lost}, "W", "E")
    assert "t was lost with its cluster" in plan.conflicts["t"]
    compared = replace(lost, overrides={**lost.overrides, **compared_with(west, "E")})
    assert selection.plan({"t": west}, {"t": compared}, "W", "E").conflicts == {}
    again = replace(lost, topic_id=OTHER)  # deleted, and created again
    assert selection.plan({"t": west}, {"t": again}, "W", "E").conflicts == {}
    assert selection.plan({"t": west}, {}, "W", "E").conflicts == {}


def test_a_renamed_topic_is_refused_and_a_new_one_of_the_promoted_cluster_is_left_alone() -> None:
    with pytest.raises(Refused, match="needs one name"):
        stage(WEST, topic(LOST), copy="west.t")
    assert stage(topic(PROMOTED), None) is None


def partition(
    number: int, *, end: int, first_unequal: int | None, start: int = 0
) -> ExportedPartition:
    files: tuple[ExportedFile, ...] = ()
    if first_unequal is not None:
        name = f"{first_unequal:020}.log"
        files = (
            ExportedFile(
                name, "tail", first_unequal, end, 1, end - first_unequal, 0, 9, "", 1_000, 3_500
            ),
        )
    equal_end = end if first_unequal is None else first_unequal
    return ExportedPartition(number, start, end, 0, equal_end or None, first_unequal, 1, 0, files)


def manifest(*partitions: ExportedPartition) -> Manifest:
    return Manifest("t", text_of(LOST), "E", "W", text_of(PROMOTED), 3, 2, partitions)


def test_the_rpo_is_the_sum_of_the_exported_records_and_the_span_of_their_timestamps() -> None:
    made = manifest(partition(0, end=9, first_unequal=4), partition(1, end=3, first_unequal=None))
    document = FailbackReport("west->east", "W", "E", {"t": made}).document(began_ms=1, ended_ms=2)
    assert (document["rpo_records"], document["rpo_seconds"]) == (5, 2.5)
    assert [each["divergence"] for each in document["topics"][0]["partitions"]] == [4, 3]
    assert document["groups_not_restored"] == []
    left = FailbackReport(
        "west->east", "W", "E", {"t": made}, groups_not_restored={"g": "has members"}
    )
    assert left.document(began_ms=1, ended_ms=2)["groups_not_restored"] == [
        {"group": "g", "reason": "has members"}
    ]
    elsewhere = FailbackReport("west->east", "W", "E", {"t": made}, ("u",), ("u",))
    assert elsewhere.document(began_ms=1, ended_ms=2)["rpo_records"] is None
    nothing = FailbackReport("west->east", "W", "E", {}, ("t",)).document(began_ms=1, ended_ms=2)
    assert (nothing["rpo_records"], nothing["already_mirrors"]) == (None, ["t"])


@pytest.mark.parametrize(
    ("cuts", "source_id", "topic_id", "reason"),
    [
        ({0: 9}, "W", PROMOTED, ""),
        ({0: 10}, "W", PROMOTED, "the logs end at {0: 10}"),
        ({0: 9, 1: 0}, "W", PROMOTED, "the logs end at"),
        ({0: 9}, "N", PROMOTED, "is of clusters E and W"),
        ({0: 9}, "W", OTHER, "compares with topic id"),
    ],
)
def test_an_export_of_another_log_is_not_used(
    cuts: dict[int, int], source_id: str, topic_id: UUID, reason: str
) -> None:
    found = changed(
        manifest(partition(0, end=9, first_unequal=4)),
        cuts,
        source_id=source_id,
        target_id="E",
        source_topic_id=text_of(topic_id),
    )
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_topic_stays_if_each_partition_is_a_prefix_of_one_at_the_other_cluster() -> None:
    same = [partition(n, end=3, first_unequal=None) for n in range(3)]
    assert manifest(*same[:2]).stays
    assert not manifest(*same).stays  # the other cluster has 2 partitions
    assert not manifest(same[0], partition(1, end=9, first_unequal=4)).stays
    without_common_batch = replace(same[0], other_start=2, last_equal_end=None)
    assert not manifest(without_common_batch).stays


def test_a_topic_with_a_hole_does_not_stay_and_its_committed_offsets_do() -> None:
    """Before, `kmirror repair` kept a mirror without a batch in its middle, and ended with 0 with --no-audit."""
    holed = replace(partition(0, end=9, first_unequal=None), first_lacking=4)
    made = manifest(holed)
    assert not made.stays
    assert holed.divergence.kept_until == 9
    assert list(summary(made, "d")) == [
        "t-0: has a hole at 4, where the source has records; ends at 9"
    ]


@pytest.mark.parametrize(
    ("other_start", "proven_until", "stays", "is_unknown", "kept_until"),
    [
        (0, 0, False, True, 0),
        (0, 8, False, True, 0),  # what it had from 8 on is unknown
        (0, 10, True, False, 10),  # it had nothing else
        (10, 0, True, True, 10),
        (20, 0, True, True, 10),
    ],
)
def test_a_log_that_is_empty_and_was_written_may_have_had_anything(
    other_start: int, proven_until: int, stays: bool, is_unknown: bool, kept_until: int
) -> None:
    """Before, it stayed: what it had lost was an RPO of 0, and it never got the source's records below its end."""
    emptied = ExportedPartition(
        0, 10, 10, other_start, None, None, 0, 0, (), proven_until=proven_until
    )
    made = manifest(emptied)
    found = (made.stays, made.is_unknown, emptied.divergence.kept_until)
    assert found == (stays, is_unknown, kept_until)
    assert is_unknown == ("t-0: is empty and ends at 10" in next(iter(summary(made, "d"))))


def test_a_log_that_was_never_written_is_a_prefix() -> None:
    made = manifest(ExportedPartition(0, 0, 0, 0, None, None, 0, 0, ()))
    assert (made.stays, made.is_unknown) == (True, False)


@pytest.mark.parametrize(("number", "end"), [(0, 5), (1, 0)])
def test_the_ends_of_a_promotion_prove_what_is_below_them(number: int, end: int) -> None:
    west = promoted_without_its_source(WEST)
    pair = TopicPair(
        name="t", source=west, target=topic(LOST), copy="t", source_id="W", target_id="E"
    )
    assert proven_until(pair, number) == end


def test_an_export_is_read_only_in_the_directory_of_its_topic_and_undamaged(tmp_path: Path) -> None:
    for name in ("../t", "t/../../x", ""):
        with pytest.raises(BadExport, match="is not a topic"):
            directory_of(tmp_path, name, "/id")
    made = manifest(partition(0, end=9, first_unequal=4))
    directory = directory_of(tmp_path, "t", made.topic_id)
    begin(directory)
    write_manifest(directory, made)
    assert read_manifest(directory) == made
    with pytest.raises(BadExport, match=r"cannot be read: No such file"):
        verify(directory, made)
    (directory / "0").mkdir()
    (directory / "0" / made.partitions[0].files[0].name).write_bytes(b"another")
    with pytest.raises(BadExport, match="is not the file of the manifest"):
        verify(directory, made)
    with pytest.raises(BadExport, match="has an export already"):
        begin(directory)
    moved = directory_of(tmp_path, "other", made.topic_id)
    directory.rename(moved)
    with pytest.raises(BadExport, match=r"it is of t-"):
        read_manifest(moved)
    (moved / "manifest.json").write_text("{}")
    with pytest.raises(BadExport, match="cannot be read"):
        read_manifest(moved)
    with locked(tmp_path), pytest.raises(BadExport, match="another command"), locked(tmp_path):
        pass


def batch(base_offset: int, value: bytes = b"x") -> Batch:
    data = bytearray(encode_batch([KafkaRecord(0, 1, None, value)]))
    data[:8] = base_offset.to_bytes(8, "big")
    return read_batches(bytes(data))[0]


def test_a_topic_that_kmirror_would_not_copy_again_is_not_deleted() -> None:
    """Before, it was deleted, and 'created' by a plan that left it alone."""
    selection = Selection("east", "west", LinkSettings())
    topics = {"loop": topic(LOST, "W"), "t": topic(PROMOTED)}
    plan = selection.plan(topics, {}, "E", "W")
    (problem,) = not_created_again(plan, {"loop": "loop", "t": "t"}, ["u"])
    assert problem == "loop: kmirror does not copy it: its records come from west"


def test_a_topic_with_the_name_of_another_one_at_the_target_is_not_deleted() -> None:
    """Else `kmirror truncate` would replace the mirror of the other one."""
    plan = Plan(mirrored={"a": "x", "b": "y"})
    (problem,) = not_created_again(plan, {"a": "x", "b": "y"}, ["x", "z"])
    assert problem == "a: 2 topics of the source have the name x at the target"


def test_a_refusal_states_what_was_changed_and_no_more() -> None:
    assert state_at_target("east", {}) == "Nothing was changed at east"
    found = state_at_target(
        "east",
        {
            "b": TargetState.READ_ONLY,
            "x": TargetState.UNKNOWN,
            "c": TargetState.DELETED,
            "a": TargetState.READ_ONLY,
        },
    )
    assert found == (
        "Read-only at east, with all their records: a, b. "
        "Perhaps read-only at east, with all their records: x. "
        "Deleted, or being deleted, at east, and exported: c"
    )


def test_a_refusal_after_a_deletion_names_the_directory_and_the_topics_that_continue() -> None:
    copies = {"a": "east.a", "b": "east.b", "c": "east.c"}
    states = {"a": TargetState.DELETED, "b": TargetState.READ_ONLY, "c": TargetState.MIRROR}
    text = refusal("why", "west", states, copies, ())
    assert text.startswith(
        "why. Read-only at west, with all their records: east.b. Deleted, or being deleted, at west, and exported: "
        "east.a. Read-only mirrors at west, perhaps not copied to the end: east.c. Mend the cause"
    )
    assert text.endswith("run it with --topics 'a' first")
    del states["a"]
    # A topic that was deleted and created again: its committed offsets are in the directory alone.
    again = refusal("why", "west", states, copies, {"c"})
    assert again.endswith("run it with --topics 'c' first")
    dotted = refusal("why", "west", {"a.b": TargetState.DELETED}, {"a.b": "a.b"}, ())
    assert dotted.endswith(r"run it with --topics 'a\.b' first")
    text = refusal("why", "west", states, copies, ())
    assert text.endswith("Mend the cause and run the command again")
    assert "Nothing was changed at west. Mend" in refusal("why", "west", {}, copies, ())


def test_a_refusal_of_a_mirror_that_differs_again_names_another_way_than_the_same_command() -> None:
    """Before, it was "run the command again with this directory", and that was refused for the same reason."""
    copies = {"a": "east.a", "b": "east.b"}
    states = dict.fromkeys(copies, TargetState.MIRROR)
    text = refusal("why", "west", states, copies, {"a"}, {"a"}, "Name another directory")
    assert text.endswith(
        "makes these a prefix of the source again: a. Name another directory. Keep this directory: only it has the "
        "records and the committed offsets that were removed"
    )
    text = refusal("why", "west", states, copies, {"a", "b"}, {"a"}, "Name another directory")
    assert text.endswith("For the others run the command again with it and --topics 'b'")
    text = refusal("why", "west", states, copies, (), {"a"}, "Use truncate")
    assert text.endswith("of the source again: a. Use truncate")


@pytest.mark.parametrize(
    ("before", "stage", "after"),
    [
        (None, Stage.RETURNED, None),
        (None, Stage.FENCED, TargetState.READ_ONLY),
        (TargetState.READ_ONLY, Stage.DELETED, TargetState.DELETED),
        (TargetState.DELETED, Stage.FENCED, TargetState.DELETED),  # a broker with old metadata
        (TargetState.DELETED, Stage.MIRROR, TargetState.MIRROR),
    ],
)
def test_the_state_of_a_topic_follows_its_stage(
    before: TargetState | None, stage: Stage, after: TargetState | None
) -> None:
    assert state_after(before, stage) is after


def test_a_topic_with_a_damaged_batch_at_the_source_is_not_deleted() -> None:
    assert source_damage("t", "west", {}) == ""
    found = source_damage("t", "west", {2: 7, 0: 4})
    assert "t: the batch of west at offset 4 of partition 0, at offset 7 of partition 2" in found
    assert "undamaged replica the leader" in found


def test_a_log_that_cannot_be_read_is_refused_with_what_mends_it() -> None:
    found = unreadable("east", CorruptMessage("a header is damaged"))
    assert found == (
        "east: a header is damaged. Make a broker of east with an undamaged replica the leader, or leave the topic "
        "out (--topics)"
    )


@pytest.mark.parametrize(
    ("pair", "is_still_there"),
    [
        ((batch(3), batch(3)), True),
        ((batch(3), batch(3, b"y")), False),
        ((batch(3), batch(7)), False),  # retention, or an unclean election
        ((batch(7), batch(7)), False),
        ((batch(3), None), False),
    ],
)
def test_a_topic_stays_if_the_source_lost_the_common_batches_meanwhile(
    pair: tuple[Batch, Batch | None], is_still_there: bool
) -> None:
    made = manifest(partition(0, end=9, first_unequal=4))
    found = no_longer_equal(made, text_of(PROMOTED), {0: pair}, {0: 0})
    assert (found == "") is is_still_there
    assert "has id" in no_longer_equal(made, text_of(OTHER), {0: pair}, {0: 0})
    assert no_longer_equal(made, text_of(PROMOTED), {}, {0: 0})


@pytest.mark.parametrize(
    ("start", "at_source", "at_source_now", "is_still_there"),
    [
        (0, 0, 0, True),
        (0, 0, 2, False),
        (0, 2, 2, True),  # the offsets below are head: exported, or the topic is refused
        (2, 0, 2, True),  # the target has none of the deleted ones
        (2, 0, 3, False),
    ],
)
def test_a_topic_stays_if_the_source_deleted_records_since_they_were_compared(
    start: int, at_source: int, at_source_now: int, is_still_there: bool
) -> None:
    """Before, only the last equal batch was looked at: retention of the others left no copy, and no export."""
    compared = partition(0, end=9, first_unequal=4, start=start)
    made = manifest(replace(compared, other_start=at_source))
    found = no_longer_equal(made, text_of(PROMOTED), {0: (batch(3), batch(3))}, {0: at_source_now})
    assert (found == "") is is_still_there
    assert is_still_there or f"deleted its records below {at_source_now}" in found
