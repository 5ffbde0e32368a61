"""Which members may commit offsets, and when."""

from kclient.wire.error_codes import ErrorCode
from tests.kit.groups import GroupHarness, stable_group


def commit(harness: GroupHarness, member_id: str = "", generation: int = -1) -> ErrorCode:
    return harness.group.check_commit(member_id, None, generation, harness.now)


def test_any_client_may_commit_for_an_empty_group() -> None:
    assert commit(GroupHarness()) is ErrorCode.NONE
    assert commit(GroupHarness(), "some-admin") is ErrorCode.NONE


def test_no_outsider_may_commit_for_a_group_with_members() -> None:
    assert commit(stable_group("a")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_of_this_generation_may_commit() -> None:
    harness = stable_group("a")
    assert commit(harness, "a-id", 1) is ErrorCode.NONE
    assert commit(harness, "a-id", 0) is ErrorCode.ILLEGAL_GENERATION
    assert commit(harness, "a-id", 2) is ErrorCode.ILLEGAL_GENERATION
    assert commit(harness, "b-id", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_may_commit_what_it_did_before_it_rejoins() -> None:
    harness = stable_group("a")
    harness.enter("b")
    assert commit(harness, "a-id", 1) is ErrorCode.NONE


def test_a_member_that_rejoined_may_not_commit_before_it_knows_its_partitions() -> None:
    harness = stable_group("a")
    harness.join("a", "a-id")
    assert commit(harness, "a-id", 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_was_away_too_long_may_not_commit() -> None:
    harness = stable_group("a", "b")
    harness.advance(11.0, "a")
    assert commit(harness, "b-id", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_keeps_its_member_alive() -> None:
    harness = stable_group("a")
    for _ in range(5):
        harness.advance(8.0)
        assert commit(harness, "a-id", 1) is ErrorCode.NONE
