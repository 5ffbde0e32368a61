"""The stored position of a mirror with other offsets at the target, and what it proves."""

from __future__ import annotations

from kclient.types import OffsetAndMetadata
from mirrormaker.lineage import Lineage
from mirrormaker.link_state import Cause, GapPolicy, LastBatch, LogEnds, Problem
from mirrormaker.position import Position, read_position
from mirrormaker.prefix import judgement
from mirrormaker.renumbered_ends import refusal

POSITION = Position(17, 12, 0xDEADBEEF, 3, "source-id", "target-id", 170)


def judged(ends: LogEnds, lineage: Lineage | None = None) -> Problem:
    problem = judgement(ends, lineage or Lineage(), GapPolicy.FAIL, compacted=False)
    assert isinstance(problem, Problem)
    return problem


def test_a_position_is_read_as_it_was_committed() -> None:
    committed = POSITION.committed()
    assert committed.offset == 17
    assert committed.leader_epoch is None
    assert len(committed.metadata) < 4096
    assert read_position(committed) == POSITION


def test_an_offset_that_an_operator_committed_is_a_position() -> None:
    for metadata in ("", "by hand", "[]", '{"base": "x"}', "null"):
        assert read_position(OffsetAndMetadata(5, metadata)) == Position(5)


def test_a_log_with_records_and_no_position_is_not_continued() -> None:
    problem = refusal(None, 3, "kmirror-east")
    assert problem is not None
    assert problem.cause is Cause.UNPROVEN
    assert "kmirror-east has no offset for it" in str(problem)
    assert refusal(None, 0, "kmirror-east") is None
    assert judged(LogEnds(0, 9, 0, 0, problem=problem)) == problem


def test_a_log_that_is_shorter_than_the_position_states_is_not_continued() -> None:
    problem = refusal(POSITION, 169, "g")
    assert problem is not None
    assert problem.cause is Cause.TARGET_LOST
    assert refusal(POSITION, 170, "g") is None


def test_a_visible_record_behind_the_position_is_not_doubled() -> None:
    problem = refusal(POSITION, 190, "g", written=180)
    assert problem is not None
    assert problem.cause is Cause.TARGET_WRITTEN
    assert "offset 180 of the target is visible" in str(problem)


def test_only_a_position_of_kmirror_states_more_than_an_offset() -> None:
    assert POSITION.is_described
    assert Position(0, target_topic_id="id").is_described
    assert not read_position(OffsetAndMetadata(5)).is_described


def test_a_source_with_another_batch_at_the_position_has_diverged() -> None:
    copied = LastBatch(12, 17, 0xDEADBEEF, 3)
    ends = LogEnds(0, 40, 0, 17, LastBatch(12, 17, 1, 4), copied)
    assert judged(ends).cause is Cause.DIVERGED


def test_a_source_topic_that_was_created_again_is_noticed() -> None:
    ends = LogEnds(0, 40, 0, 17)
    assert judged(ends, Lineage("new-id", POSITION.topic_id)).cause is Cause.RECREATED
