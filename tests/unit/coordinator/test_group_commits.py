"""Which members may commit offsets, and when."""

from kclient.wire.error_codes import ErrorCode
from tests.kit.groups import GroupOnTheTable, stable_group


def commit(table: GroupOnTheTable, member_id: str = "", generation: int = -1) -> ErrorCode:
    return table.group.check_commit(member_id, None, generation, table.now)


def test_any_client_may_commit_for_an_empty_group() -> None:
    assert commit(GroupOnTheTable()) is ErrorCode.NONE
    assert commit(GroupOnTheTable(), "some-admin") is ErrorCode.NONE


def test_no_outsider_may_commit_for_a_group_with_members() -> None:
    assert commit(stable_group("a")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_of_this_generation_may_commit() -> None:
    table = stable_group("a")
    assert commit(table, "a-id", 1) is ErrorCode.NONE
    assert commit(table, "a-id", 0) is ErrorCode.ILLEGAL_GENERATION
    assert commit(table, "a-id", 2) is ErrorCode.ILLEGAL_GENERATION
    assert commit(table, "b-id", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_may_commit_what_it_did_before_it_rejoins() -> None:
    table = stable_group("a")
    table.enter("b")
    assert commit(table, "a-id", 1) is ErrorCode.NONE


def test_a_member_that_rejoined_may_not_commit_before_it_knows_its_partitions() -> None:
    table = stable_group("a")
    table.join("a", "a-id")
    assert commit(table, "a-id", 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_was_away_too_long_may_not_commit() -> None:
    table = stable_group("a", "b")
    table.advance(11.0, "a")
    assert commit(table, "b-id", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_keeps_its_member_alive() -> None:
    table = stable_group("a")
    for _ in range(5):
        table.advance(8.0)
        assert commit(table, "a-id", 1) is ErrorCode.NONE
