"""How far a follower is, and whether its broker is live; time is in seconds."""

from __future__ import annotations

from kbroker.replica.core.remote_replicas import NEVER, FollowerLiveness, RemoteReplica


def test_a_fetch_from_the_leaders_end_has_everything() -> None:
    follower = RemoteReplica(NEVER)
    follower.update_fetch_state(10, leader_end=10, now=5.0)
    assert follower.caught_up_at == 5.0
    assert follower.is_caught_up(10, now=100.0, lag_time_max=1.0)


def test_a_fetch_from_the_end_of_the_fetch_before_was_caught_up_then() -> None:
    follower = RemoteReplica(NEVER)
    follower.update_fetch_state(0, leader_end=10, now=5.0)
    assert follower.caught_up_at == NEVER
    follower.update_fetch_state(10, leader_end=20, now=6.0)
    assert follower.caught_up_at == 5.0
    follower.update_fetch_state(19, leader_end=30, now=7.0)
    assert follower.caught_up_at == 5.0


def test_a_lagging_follower_is_in_sync_for_a_while() -> None:
    follower = RemoteReplica(5.0)
    follower.update_fetch_state(9, leader_end=10, now=6.0)
    assert follower.is_caught_up(10, now=7.0, lag_time_max=2.0)
    assert not follower.is_caught_up(10, now=7.5, lag_time_max=2.0)


def test_a_broker_without_a_fetch_is_not_live() -> None:
    assert not FollowerLiveness(3.0).is_live(2, NEVER, 0.0)


def test_what_was_fetched_once_in_a_session_is_followed_as_long_as_it_goes_on() -> None:
    liveness = FollowerLiveness(3.0)
    liveness.fetch_received(2, 1.0, is_full=True)
    liveness.fetch_received(2, 9.0, is_full=False)
    assert liveness.is_live(2, fetched_at=1.0, now=12.0)
    assert not liveness.is_live(2, fetched_at=1.0, now=12.5)  # silent for too long


def test_a_new_session_names_every_followed_partition() -> None:
    liveness = FollowerLiveness(3.0)
    liveness.fetch_received(2, 1.0, is_full=True)
    liveness.fetch_received(2, 2.0, is_full=True)
    assert not liveness.is_live(2, fetched_at=1.0, now=2.0)
    assert liveness.is_live(2, fetched_at=2.0, now=2.0)
