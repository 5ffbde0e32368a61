"""The topics that `kmirror status` names without reading their logs."""

from __future__ import annotations

from mirrormaker.health import Health, exit_code
from mirrormaker.settings import LinkSettings
from mirrormaker.status import topics_left_alone
from mirrormaker.topics import MARK, Plan, Selection, Topic


def test_a_topic_that_would_be_copied_back_is_named_and_is_no_error() -> None:
    selection = Selection("east", "west", LinkSettings())
    theirs = Topic(1, overrides={MARK: "west-id"})
    plan = selection.plan({"orders": theirs}, {}, "east-id", "west-id")
    assert not plan.mirrored
    ((name, found),) = topics_left_alone(plan)
    assert (name, found.health) == ("orders", Health.SKIPPED)
    assert (
        found.detail
        == "its records come from west; a loop or a second copy is prevented, exit code 0"
    )
    assert exit_code([found.health]) == 0


def test_a_conflict_is_stopped_and_comes_before_what_is_skipped() -> None:
    plan = Plan(conflicts={"a": "has more partitions"}, skipped={"b": "reason"})
    found = dict(topics_left_alone(plan))
    assert [each.health for each in found.values()] == [Health.STOPPED, Health.SKIPPED]
    assert found["a"].detail == "has more partitions"
    assert exit_code(each.health for each in found.values()) == 5
