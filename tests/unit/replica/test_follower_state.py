"""Where a follower cuts its log off, for each of the leader's answers."""

from __future__ import annotations

from kbroker.replica.core.follower_state import EpochEnd, FollowerState


def follower(mark: int = 5) -> FollowerState:
    """Follow broker 2."""
    return FollowerState(2, 9, mark)


def test_an_epoch_that_ended_earlier_at_the_leader_is_cut_there() -> None:
    assert follower().agreed_end(EpochEnd(4, 7), EpochEnd(4, 9), 9) == 7


def test_an_epoch_of_which_we_have_less_is_cut_at_our_own_end_of_it() -> None:
    assert follower().agreed_end(EpochEnd(4, 20), EpochEnd(4, 8), 12) == 8


def test_an_epoch_we_never_saw_leads_to_the_one_before_it() -> None:
    assert follower().agreed_end(EpochEnd(4, 20), EpochEnd(3, 6), 12) == 6


def test_an_epoch_before_all_of_ours_is_truncated_at_the_leaders_end() -> None:
    assert follower().agreed_end(EpochEnd(1, 3), EpochEnd(-1, -1), 12) == 3


def test_a_leader_that_knows_no_epoch_leaves_only_the_watermark() -> None:
    assert follower(mark=5).agreed_end(EpochEnd(-1, -1), EpochEnd(-1, -1), 12) == 5


def test_nothing_is_cut_behind_the_end() -> None:
    assert follower().agreed_end(EpochEnd(4, 20), EpochEnd(4, 12), 12) == 12


def test_the_high_watermark_rises_as_far_as_the_log_reaches() -> None:
    follower_state = follower(mark=5)
    follower_state.update_high_watermark(20, 8)
    assert follower_state.high_watermark == 8
    follower_state.update_high_watermark(6, 9)
    assert follower_state.high_watermark == 8
    follower_state.truncated(7)
    assert follower_state.high_watermark == 7
